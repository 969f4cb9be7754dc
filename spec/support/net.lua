--- Ports, sockets, and other places with names that must not clash.

local lfs = require "lfs"
local posix = require "memlock_posix"
local socket = require "socket"
local unix = require "socket.unix"
local scope = require "spec.support.scope"

local net = {}

-- Not math.random: forked children would share its state, and busted seeds it.
local function random_bytes(n)
  local source = assert(io.open("/dev/urandom", "rb"))
  source:setvbuf("no")
  local bytes = source:read(n)
  source:close()
  return bytes
end

--- Random hex digits, two for each of `n` bytes.
function net.random_hex(n)
  return (random_bytes(n):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- A new TCP socket, not connected.
function net.tcp()
  return assert(socket.tcp4())
end

-- Below the ports that the kernel gives to clients: none of them can sit on a port while its server
-- is restarted, nor connect to itself there.
local first_port, last_port = 20000, 32000

--- A listening socket on a free port of 127.0.0.1.
-- @return the socket, its port
function net.listen(backlog)
  for _ = 1, 1000 do
    local port = first_port + ("I2"):unpack(random_bytes(2)) % (last_port - first_port)
    local listener = net.tcp()
    if listener:bind("127.0.0.1", port) and listener:listen(backlog) then return listener, port end
    listener:close()
  end
  error("no free port")
end

--- A free port of 127.0.0.1. Nothing keeps it free: whoever listens on it must be ready to take
-- another.
function net.free_port()
  local listener, port = net.listen(1)
  listener:close()
  return port
end

--- Connects to an address: `host:port` or `/path`.
-- @return the socket; or nil, message
function net.connect(address, seconds)
  local host, port = address:match("^([^/]*):(%d+)$")
  local connection = host and net.tcp() or assert(unix.stream())
  connection:settimeout(seconds)
  local ok, message
  if host then
    ok, message = connection:connect(host, tonumber(port))
    connection:setoption("tcp-nodelay", true)
  else
    ok, message = connection:connect(address)
  end
  if ok then return connection end
  connection:close()
  return nil, message
end

--- A new empty directory, removed with all it holds at the end of its scope.
-- @return its path, short enough for unix sockets
function net.tempdir()
  local parent = os.getenv("TMPDIR") or "/tmp"
  local path = ("%s/memlock-%d-%s"):format(parent, posix.getpid(), net.random_hex(4))
  assert(lfs.mkdir(path))
  local function remove(place)
    if lfs.symlinkattributes(place, "mode") ~= "directory" then return os.remove(place) end
    for entry in lfs.dir(place) do
      if entry ~= "." and entry ~= ".." then remove(place .. "/" .. entry) end
    end
    return lfs.rmdir(place)
  end
  scope.add { close = function() remove(path) end, forget = function() end }
  return path
end

return net
