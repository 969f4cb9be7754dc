-- A session store in the way web frameworks use one: open, read, write, close, destroy.
--
--     lua5.4 examples/session.lua [servers [locked|free|destroy [visitor]]]
--
-- Servers are a comma list: each visitor's session lives on one of them, and so does its lock.
--
-- locked   the session is locked from open to close, so that requests of one visitor queue up; what
--          a request does in between may take its time and need not be repeatable
-- free     nobody waits: the change is a function, which runs again when another request was faster
--
-- Whatever goes wrong is raised: a request that cannot have its session ends as an error page, not
-- with an empty session.

local memlock = require "memlock"

local servers, mode, visitor = arg[1] or "127.0.0.1:11211", arg[2] or "locked", arg[3] or "alice"
local lifetime = 3600 -- seconds without a request after which a session is forgotten

local Session = {}
Session.__index = Session

--- Opens a visitor's session, and keeps other requests out of it until close.
local function open(client, id)
  local lock = assert(client:lock("session:" .. id, { ttl = 30 }):acquire(5))
  return setmetatable({ client = client, key = "session-data:" .. id, lock = lock }, Session)
end

-- A value begins with the fencing token of its writer: "17 visits=3". An empty one is no session.
local function split(value)
  local token, data = (value or ""):match("^(%d+) (.*)$")
  return math.tointeger(tonumber(token)) or 0, data
end

--- The session's data, nil for a new one.
function Session:read()
  local _, value = assert(self.client:update(self.key, function() end)) -- changes nothing
  return select(2, split(value))
end

-- Writes unless a later holder of the lock has: then this one was too slow, and has lost it.
local function write(self, value, ttl)
  assert(self.client:update(self.key, function(old)
    if split(old) > self.lock:token() then error("another request has taken the session over") end
    return value
  end, { ttl = ttl }))
end

function Session:write(data)
  write(self, ("%d %s"):format(self.lock:token(), data), lifetime)
end

function Session:destroy()
  write(self, "", 1)
end

function Session:close()
  self.lock:release()
end

Session.__close = Session.close -- for: local session <close> = open(...)

--- The same without a lock: `fn` gets the data, nil for a new session, and returns the new data.
local function change(client, id, fn)
  local _, value = assert(client:update("session-data:" .. id, function(old)
    local token, data = split(old)
    return ("%d %s"):format(token, fn(data))
  end, { ttl = lifetime, wait = 10 }))
  return select(2, split(value))
end

local function one_more(data)
  local visits = data and data:match("^visits=(%d+)$") or "0"
  return "visits=" .. math.tointeger(tonumber(visits)) + 1
end

local client = memlock.client(servers)

if mode == "free" then
  print(visitor, change(client, visitor, one_more))
else
  local session <close> = open(client, visitor)
  if mode == "destroy" then
    session:destroy()
    print(visitor, "destroyed")
  else
    local data = one_more(session:read())
    session:write(data)
    print(visitor, data)
  end
end
