--- An independent client for the text protocol: what a server really holds.
-- It shares no code with memlock. A reply that is not one of the expected ones is raised, with its
-- text.

local net = require "spec.support.net"

local Client = {}
Client.__index = Client

local raw = {}

--- Connects to an address, `host:port` or `/path`.
-- @param seconds timeout of each step (5)
function raw.connect(address, seconds)
  local socket, message = net.connect(address, seconds or 5)
  if not socket then error(("raw client: %s: %s"):format(address, message), 2) end
  return setmetatable({ socket = socket, address = address }, Client)
end

--- Sends bytes as they are.
function Client:send(bytes)
  local ok, message = self.socket:send(bytes)
  if not ok then error(("raw client: %s: %s"):format(self.address, message), 2) end
end

--- Reads one line, without its end.
function Client:line()
  local line, message = self.socket:receive("*l")
  if not line then error(("raw client: %s: %s"):format(self.address, message), 2) end
  return line
end

--- Sends one command line, with its data block if given.
-- @return the first line of the reply, whatever it is
function Client:command(text, data)
  self:send(text .. "\r\n" .. (data and data .. "\r\n" or ""))
  return self:line()
end

--- Passes on a command that a fake server has read and that wants a reply; of values of one line.
-- @return the whole reply
function Client:answer(command)
  local lines = { self:command(command.line, command.data) }
  if command.name == "gets" then
    while lines[#lines] ~= "END" and not lines[#lines]:find "^[%u_]*ERROR" do
      lines[#lines + 1] = self:line()
    end
  end
  return table.concat(lines, "\r\n") .. "\r\n"
end

local function unexpected(command, reply)
  error(("raw client: unexpected reply to %q: %q"):format(command, reply), 3)
end

-- true for `yes`, false and the reply for one of the others
local function choose(command, reply, yes, ...)
  if reply == yes then return true end
  for _, no in ipairs { ... } do
    if reply == no then return false, reply end
  end
  unexpected(command, reply)
end

local function retrieve(self, command)
  local reply = self:command(command)
  if reply == "END" then return nil end
  local flags, size, cas = reply:match("^VALUE %S+ (%d+) (%d+) ?(%d*)$")
  if not flags then unexpected(command, reply) end
  local block = self.socket:receive(tonumber(size) + 2)
  if not block or block:sub(-2) ~= "\r\n" or self:line() ~= "END" then
    unexpected(command, tostring(block))
  end
  return block:sub(1, -3), math.tointeger(tonumber(flags)), math.tointeger(tonumber(cas))
end

--- @return value, flags; nil when missing
function Client:get(key)
  local value, flags = retrieve(self, "get " .. key)
  return value, flags
end

--- @return value, flags, cas id; nil when missing
function Client:gets(key)
  return retrieve(self, "gets " .. key)
end

local function store(self, command, key, value, exptime, flags, cas)
  local line = ("%s %s %d %d %d"):format(command, key, flags or 0, exptime or 0, #value)
  if cas then line = line .. " " .. cas end
  return choose(line, self:command(line, value), "STORED", "NOT_STORED", "EXISTS", "NOT_FOUND")
end

--- set, add, replace: @return true when stored; false, reply when not
function Client:set(key, value, exptime, flags)
  return store(self, "set", key, value, exptime, flags)
end

function Client:add(key, value, exptime, flags)
  return store(self, "add", key, value, exptime, flags)
end

function Client:replace(key, value, exptime, flags)
  return store(self, "replace", key, value, exptime, flags)
end


--- @param cas the id that gets returned
-- @return true when stored; false, "EXISTS" or "NOT_FOUND"
function Client:cas(key, value, cas, exptime, flags)
  return store(self, "cas", key, value, exptime, flags, cas)
end


--- @return true; false when missing
function Client:delete(key)
  local line = "delete " .. key
  return (choose(line, self:command(line), "DELETED", "NOT_FOUND"))
end

--- @return the new number; nil when missing
function Client:incr(key, by)
  local line = ("incr %s %d"):format(key, by or 1)
  local reply = self:command(line)
  if reply == "NOT_FOUND" then return nil end
  return math.tointeger(tonumber(reply)) or unexpected(line, reply)
end

--- @return true; false when missing
function Client:touch(key, exptime)
  local line = ("touch %s %d"):format(key, exptime)
  return (choose(line, self:command(line), "TOUCHED", "NOT_FOUND"))
end

--- Forgets everything on the server.
function Client:flush_all()
  return (choose("flush_all", self:command("flush_all"), "OK"))
end

--- @return seconds until the item expires, -1 for never; nil when missing
function Client:ttl(key)
  local line = ("mg %s t"):format(key)
  local reply = self:command(line)
  if reply == "EN" then return nil end
  return math.tointeger(tonumber(reply:match("^HD t(%-?%d+)$"))) or unexpected(line, reply)
end

--- @return a table of the server's statistics, by name, as strings
function Client:stats(what)
  local line = what and "stats " .. what or "stats"
  local stats = {}
  local reply = self:command(line)
  while reply ~= "END" do
    local key, value = reply:match("^STAT (%S+) (.*)$")
    if not key then unexpected(line, reply) end
    stats[key] = value
    reply = self:line()
  end
  return stats
end

--- @return the server's version
function Client:version()
  local reply = self:command("version")
  return reply:match("^VERSION (.+)$") or unexpected("version", reply)
end

--- Hangs up.
function Client:close()
  self.socket:close()
end

Client.forget = Client.close

return raw
