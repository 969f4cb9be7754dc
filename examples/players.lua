-- The players of a game with several servers: a player is on one of them at a time, and what one
-- server saves is what the next one loads.
--
--     lua5.4 examples/players.lua [server [directory]]
--
-- plays one of the game servers. It needs LuaFileSystem (Debian: lua-filesystem), and takes orders
-- from its standard input, as if from the network:
--
--     login NAME | earn NAME GOLD | logout NAME
--
-- A player who is logged in is locked, and one thread renews the locks of all of them. Should one
-- be lost (this server was frozen, or cut off), then the player may be elsewhere by now: the server
-- drops its copy.
--
-- To look before a save whether the lock is held is not enough: the server may freeze right after
-- that. So the name of a save has the token of the login in it, and the largest token counts: a
-- save that comes late is of an earlier login, and nobody looks at it any more.

local lfs = require "lfs"
local memlock = require "memlock"

local server, directory = arg[1] or "127.0.0.1:11211", arg[2] or "."

local client = memlock.client(server, { ttl = 3 })
local players = {} -- by name: `lock`, `gold`

---- Saves ----

local function path(name, token)
  return ("%s/%s.%d.save"):format(directory, name, token)
end

local function save(name, token, gold)
  local temporary = path(name, token) .. ".new"
  local file = assert(io.open(temporary, "w"))
  assert(file:write(gold, "\n"))
  assert(file:close())
  assert(os.rename(temporary, path(name, token))) -- whole, or not at all
end

-- The gold in the newest save of a player, and the tokens of the others.
local function load_newest(name)
  local newest, others = nil, {}
  for entry in lfs.dir(directory) do
    local who, token = entry:match "^(.*)%.(%d+)%.save$"
    token = math.tointeger(tonumber(token))
    if who == name and token > (newest or 0) then
      newest, others[#others + 1] = token, newest
    elseif who == name then
      others[#others + 1] = token
    end
  end
  if not newest then return 0, others end
  local file = assert(io.open(path(name, newest)))
  local gold = assert(file:read "n")
  file:close()
  others[#others + 1] = newest
  return gold, others
end

---- Orders ----

local orders = {}

local function drop(lock, message)
  local name = lock:name():match "^player:(.*)$"
  players[name] = nil
  print(name .. " dropped: " .. message)
end

function orders.login(name)
  if players[name] then return "is here already" end
  local lock = client:lock("player:" .. name, { auto_refresh = true, on_lost = drop })
  local ok, message = lock:acquire(2) -- the server before may be about to save
  if not ok then return "refused: " .. message end
  local gold, old_saves = load_newest(name)
  save(name, lock:token(), gold) -- from now on no earlier login can change anything
  for _, token in ipairs(old_saves) do os.remove(path(name, token)) end
  players[name] = { lock = lock, gold = gold }
  return ("in, gold %d"):format(gold)
end

function orders.earn(name, gold)
  local player = players[name]
  if not player then return "is not here" end
  player.gold = player.gold + math.tointeger(tonumber(gold))
  return ("gold %d"):format(player.gold)
end

function orders.logout(name)
  local player = players[name]
  if not player then return "is not here" end
  players[name] = nil
  if not player.lock:held() then return "dropped: the lock is lost" end
  save(name, player.lock:token(), player.gold)
  player.lock:release()
  return ("out, gold %d"):format(player.gold)
end

io.stdout:setvbuf "line"
for line in io.lines() do
  client:poll() -- calls drop for every lock that was lost since; a game does it every frame
  local order, name, rest = line:match "^(%a+) (%w+) ?(%d*)$"
  if orders[order] then
    print(name .. " " .. orders[order](name, rest))
  else
    print("what is " .. line .. "?")
  end
end
client:close()
