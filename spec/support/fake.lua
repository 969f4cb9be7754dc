--- Servers that misbehave: as a Lua function says, or by not answering at all.

local posix = require "memlock_posix"
local child = require "spec.support.child"
local net = require "spec.support.net"
local scope = require "spec.support.scope"

local fake = {}

local Connection = {}
Connection.__index = Connection

--- The next line, without its end; nil when the client has hung up or after `seconds` (60).
function Connection:read_line(seconds)
  self.socket:settimeout(seconds or 60)
  return (self.socket:receive("*l"))
end

--- The next `n` bytes; nil as above.
function Connection:read(n, seconds)
  self.socket:settimeout(seconds or 60)
  return (self.socket:receive(n))
end

--- The next memcached command.
-- @return `{ line =, name =, key =, noreply =, data = (the block of a storage command) }`; nil as
--   above
function Connection:read_command(seconds)
  local line = self:read_line(seconds)
  if not line then return nil end
  local command = { line = line, name = line:match("^%S*"), key = line:match("^%S+ (%S+)"),
    noreply = line:find(" noreply$") ~= nil }
  local size = ("add set replace append prepend cas "):find(command.name .. " ", 1, true)
    and line:match("^%S+ %S+ %d+ %-?%d+ (%d+)")
  if size then
    command.data = self:read(tonumber(size), seconds)
    self:read(2, seconds)
  end
  return command
end

--- Sends; nil when the client has hung up.
function Connection:write(text)
  self.socket:settimeout(60)
  return (self.socket:send(text))
end

--- Hangs up.
function Connection:close() self.socket:close() end

--- Hangs up by reset.
function Connection:reset()
  self.socket:setoption("linger", { on = true, timeout = 0 })
  self.socket:close()
end

--- Tells the test something, which gets it by fake:receive().
function Connection:send(...) self.channel:send(...) end

--- A server that answers as a function says, in a process of its own, and each connection in one of
-- its own again.
-- @param fn `fn(connection, number)`, called for each connection (number: 1, 2, ...), which is
--   closed when it returns
-- @return a fake: a child (receive() and so on) with `address` and `port`. An error in `fn` fails
--   the test.
function fake.start(fn)
  local listener, port = net.listen(64)
  local self = child.fork(function(channel)
    local number = 0
    while true do
      local socket = listener:accept()
      if socket then
        number = number + 1
        socket:setoption("tcp-nodelay", true)
        local pid = assert(posix.fork())
        if pid == 0 then
          local server = posix.getppid()
          posix.pdeathsig("KILL")
          if posix.getppid() ~= server then posix._exit(1) end
          listener:close()
          local connection = setmetatable({ socket = socket, channel = channel }, Connection)
          local ok, err = xpcall(fn, child.traced, connection, number)
          if not ok then channel.pipe:send("error", err) end
          posix._exit(0)
        end
        socket:close()
      end
      while posix.waitpid(-1, 0) do end
    end
  end)
  listener:close()
  self.port, self.address = port, "127.0.0.1:" .. port
  return self
end

local function silent(listener, port, kept)
  local function close()
    listener:close()
    for _, socket in ipairs(kept) do socket:close() end
  end
  local address = "127.0.0.1:" .. port
  return scope.add { port = port, address = address, close = close, forget = close, stop = close }
end

--- A server that accepts connections (in fact the kernel does) and never answers.
-- @return `address`, `port`, `stop()`
function fake.silent()
  local listener, port = net.listen(1024)
  return silent(listener, port, {})
end

--- A server whose queue of connections is full, so that connecting to it hangs.
-- @return `address`, `port`, `stop()`
function fake.full()
  local listener, port = net.listen(0)
  local kept = {}
  for _ = 1, 64 do
    local socket = net.tcp()
    socket:settimeout(0.05)
    kept[#kept + 1] = socket
    if not socket:connect("127.0.0.1", port) then return silent(listener, port, kept) end
  end
  error("the queue of connections does not fill")
end

--- An address at which nobody listens.
function fake.refusing()
  return "127.0.0.1:" .. net.free_port()
end

return fake
