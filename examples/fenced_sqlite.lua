-- Writes to an SQLite table that refuses a writer who comes too late, by the fencing token.
--
--     lua5.4 examples/fenced_sqlite.lua [server [file [account [amount [seconds]]]]]
--
-- adds an amount to an account, and thinks for some seconds between the read and the write. It
-- needs LuaSQL (Debian: lua-sql-sqlite3). A program that is frozen there for longer than the ttl
-- wakes up without the lock, and another one may have written meanwhile. No check in the program
-- can rule that out, since it may freeze between the check and the write. So the table remembers
-- the token of its last writer, and the write itself, in one statement, asks for a token that is
-- not smaller.

local memlock = require "memlock"
local sqlite = require "luasql.sqlite3"

local server, file = arg[1] or "127.0.0.1:11211", arg[2] or "accounts.db"
local account, amount = arg[3] or "alice", math.tointeger(tonumber(arg[4] or 1))
local seconds = tonumber(arg[5]) or 0

local database = assert(sqlite.sqlite3():connect(file, 5000)) -- waits so many ms for another writer

-- Runs a statement; %s are strings, which are quoted. Returns a cursor, or how many rows changed.
local function sql(text, ...)
  local values = { ... }
  for i, value in ipairs(values) do
    if type(value) == "string" then values[i] = "'" .. database:escape(value) .. "'" end
  end
  return assert(database:execute(text:format(table.unpack(values))))
end

local function balance_of(name)
  local cursor = sql("SELECT balance FROM accounts WHERE name = %s", name)
  local balance = cursor:fetch()
  cursor:close()
  return balance
end

local function set_balance(name, balance, token)
  local changed = sql([[UPDATE accounts SET balance = %d, token = %d
                        WHERE name = %s AND token <= %d]], balance, token, name, token)
  if changed == 0 then error("too late: a later holder of the lock has written", 0) end
end

sql [[CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER, token INTEGER)]]
sql("INSERT OR IGNORE INTO accounts VALUES (%s, 0, 0)", account)

local lock = memlock.client(server):lock("account:" .. account, { ttl = 2, wait = 30 })
assert(lock:with(function()
  local balance = balance_of(account)
  if seconds > 0 then
    print(("read %d"):format(balance))
    io.flush()
    memlock.sleep(seconds)
  end
  set_balance(account, balance + amount, lock:token())
  print(("wrote %d"):format(balance + amount))
end))
