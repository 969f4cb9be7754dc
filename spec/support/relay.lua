--- The relay of relay.c: a network that goes wrong on request.

local build = require "spec.support.build"
local net = require "spec.support.net"
local process = require "spec.support.process"

local relay = {}

local Relay = {}
Relay.__index = Relay

local short = { ["\r"] = "\\r", ["\n"] = "\\n", ["\\"] = "\\\\" }

local function escape(text)
  return (text:gsub("[%c\\\x80-\xff]", function(c)
    return short[c] or ("\\x%02x"):format(c:byte())
  end))
end

local function unescape(text)
  return (text:gsub("\\(x?)(.)([0-9a-f]?)", function(x, a, b)
    if x == "x" then return string.char(tonumber(a .. b, 16)) end
    return (a == "r" and "\r" or a == "n" and "\n" or a) .. b
  end))
end

--- Starts a relay in front of a server.
-- @param target a server, a fake, or an address
-- @param options `unix` (true: the relay listens on a unix socket)
-- @return a relay: `address` (as memlock takes it), `port` or `path`, `pid`, and the methods below
function relay.start(target, options)
  local address = type(target) == "table" and target.address or target
  local command = { build.place .. "/spec/relay", "--target", address }
  if options and options.unix then
    command[4], command[5] = "--listen", net.tempdir() .. "/relay"
  end
  local running = process.start(command)
  local self = setmetatable({ process = running, pid = running.pid }, Relay)
  local kind, place = running:read_line():match("^(%a+) (.+)$")
  if kind == "port" then
    self.port = math.tointeger(tonumber(place))
    self.address = "127.0.0.1:" .. place
  else
    self.path, self.address = place, place
  end
  return self
end

--- Sends one command line and reads the one line of its answer.
function Relay:command(line, seconds)
  self.process:write(line .. "\n")
  local reply = self.process:read_line(seconds)
  if reply:find("^error") then error("relay: " .. reply, 3) end
  return reply
end

--- What passed: `connections` (accepted), `open` (now), `asked` (requests that began), `answered`
-- (requests that got a byte back), `round_trips` (= asked), `up` and `down` (bytes).
function Relay:stats()
  local stats = {}
  for key, value in self:command("stats"):gmatch("(%a+)=(%d+)") do
    stats[key] = math.tointeger(tonumber(value))
  end
  stats.round_trips = stats.asked
  return stats
end

--- Round trips (requests begun) since the last reset.
function Relay:round_trips()
  return self:stats().asked
end

--- Sets the counts to 0 and empties the log.
function Relay:reset() self:command("reset") end

--- Every byte leaves `seconds` after it came, as on a long line; side: "up" (to the server),
-- "down", "both".
function Relay:delay(side, seconds) self:command(("delay %s %.9f"):format(side, seconds)) end

--- One byte per `seconds`; 0 ends it.
function Relay:dribble(side, seconds) self:command(("dribble %s %.9f"):format(side, seconds)) end

--- Holds all bytes back; resume delivers them.
function Relay:pause(side) self:command("pause " .. side) end

--- Ends pause and whatever a trigger holds.
function Relay:resume(side) self:command("resume " .. side) end

--- Swallows all bytes that come from now on, without closing anything; a hang-up still passes.
function Relay:drop(side) self:command("drop " .. side) end

--- Ends drop.
function Relay:undrop(side) self:command("undrop " .. side) end

--- Closes all present connections, on both sides, with what they still hold; "rst": by reset.
function Relay:cut(how) self:command(how and "cut " .. how or "cut") end

--- Stops listening: new connections are refused, present ones go on.
function Relay:refuse() self:command("refuse") end

--- Listens again, at the same address.
function Relay:accept() self:command("accept") end

--- From now on nothing passes, on present connections (for good) and on new ones, which are still
-- accepted.
function Relay:blackhole() self:command("blackhole") end

--- Ends blackhole for connections to come.
function Relay:forward() self:command("forward") end

--- Trigger: lets `n` replies begin, then holds what the client that got the last one sends next,
-- until resume("up").
-- With 0 it holds the next request of anybody.
function Relay:hold_after_reply(n) self:command(("hold-after-reply %d"):format(n)) end

--- Trigger: holds the first request in which `text` appears, and what its client sends later, until
-- resume("up").
function Relay:hold_up(text) self:command("hold-up " .. escape(text)) end

--- Trigger: passes `n` bytes of the next reply, then cuts that connection.
function Relay:cut_reply(n) self:command(("cut-reply %d"):format(n)) end

--- Trigger: swallows the next reply, or that to the next request in which `text` appears, and cuts
-- that connection.
function Relay:drop_reply(text)
  self:command(text and "drop-reply " .. escape(text) or "drop-reply")
end

--- Trigger: puts `text` before the next reply.
function Relay:inject_reply(text) self:command("inject-reply " .. escape(text)) end

--- Forgets all triggers that wait.
function Relay:disarm() self:command("disarm") end

--- A plain relay again: no delay, no pause, no drop, no trigger, listening. Counts and log stay.
function Relay:plain() self:command("plain") end

--- Waits until something is held (by pause or a trigger).
-- @param seconds how long (5)
-- @return whether something is
function Relay:wait_held(seconds)
  seconds = seconds or 5
  return self:command(("wait-held %.9f"):format(seconds), seconds + 10) == "ok"
end

--- Records what clients send, from now on (false: no more).
function Relay:record(on) self:command(on == false and "log off" or "log on") end

--- What clients sent while it was recorded.
-- @return a list of pieces `{ at = seconds as of now(), connection = number, data = string }`
function Relay:log()
  local log = {}
  local line = self:command("log")
  while line ~= "." do
    local at, connection, data = line:match("^(%S+) (%d+) (.*)$")
    connection = math.tointeger(tonumber(connection))
    log[#log + 1] = { at = tonumber(at), connection = connection, data = unescape(data) }
    line = self.process:read_line()
  end
  return log
end

--- All that clients sent while it was recorded, as one string (of one connection, if given).
function Relay:sent(connection)
  local pieces = {}
  for _, piece in ipairs(self:log()) do
    if not connection or piece.connection == connection then pieces[#pieces + 1] = piece.data end
  end
  return table.concat(pieces)
end

--- Ends it; its connections are closed.
function Relay:stop()
  self.process:close()
end

return relay
