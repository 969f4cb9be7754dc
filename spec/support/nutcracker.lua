--- nutcracker (twemproxy), a proxy in front of memcached servers of our own.

local lfs = require "lfs"
local posix = require "memlock_posix"
local net = require "spec.support.net"
local raw = require "spec.support.raw"
local scope = require "spec.support.scope"

local nutcracker = {}

local Proxy = {}
Proxy.__index = Proxy

--- Where the program is, or nil. Debian keeps it out of the PATH of plain users.
function nutcracker.program()
  for directory in (os.getenv("PATH") .. ":/usr/local/sbin:/usr/sbin"):gmatch("[^:]+") do
    local path = directory .. "/nutcracker"
    if lfs.attributes(path, "mode") == "file" then return path end
  end
end

-- Keys are spread as libmemcached would spread them, and no server is ever given up: a name whose
-- server is away must not move to another one.
local configuration = [[
memlock:
  listen: 127.0.0.1:%d
  hash: fnv1a_64
  distribution: ketama
  auto_eject_hosts: false
  preconnect: true
  server_connections: %d
%s  servers:
]]

local function configure(proxy)
  local timeout = proxy.timeout and ("  timeout: %d\n"):format(proxy.timeout * 1000) or ""
  local text = { configuration:format(proxy.port, proxy.connections, timeout) }
  for i, server in ipairs(proxy.servers) do
    text[#text + 1] = ("   - 127.0.0.1:%d:1 backend-%d\n"):format(server.port, i)
  end
  local file = assert(io.open(proxy.directory .. "/nutcracker.yml", "w"))
  assert(file:write(table.concat(text)))
  file:close()
end

-- By a mark that its servers, and nobody else's, have: another program may have taken the port
-- while ours was on its way.
local function is_ready(proxy)
  local ok, client = pcall(raw.connect, proxy.address, 0.5)
  if not ok then return false end
  local known, value = pcall(client.get, client, proxy.mark)
  client:close()
  return known and value == proxy.mark
end

local function launch(proxy)
  configure(proxy)
  local stats_port = net.free_port() -- it wants one
  proxy.pid = assert(posix.spawn { nutcracker.program(), "-c", proxy.directory .. "/nutcracker.yml",
    "-p", proxy.directory .. "/pid", "-o", "/dev/null", "-v", "0",
    "-a", "127.0.0.1", "-s", tostring(stats_port), "-i", "600000",
    stdin = "/dev/null", stdout = "/dev/null", stderr = "/dev/null", pdeathsig = "KILL",
    env = { LD_PRELOAD = false } })
  proxy.ended = false
  local deadline = posix.now() + 5
  repeat
    if is_ready(proxy) then return true end
    if posix.waitpid(proxy.pid, 0.005) then
      proxy.ended = true
      return false
    end
  until posix.now() > deadline
  proxy:close()
  return false
end

--- Starts a nutcracker with a configuration of its own, and waits until it answers.
-- @param servers a list of memcached servers (support.memcached), on ports
-- @param options `connections` (how many it opens to each server, 1), `timeout` (seconds that it
--   waits for a server; for ever)
-- @return a proxy: `address`, `port`, `pid`, `servers`, and the methods below
function nutcracker.start(servers, options)
  options = options or {}
  local proxy = setmetatable({ servers = servers, connections = options.connections or 1,
    timeout = options.timeout, ended = true, directory = net.tempdir(),
    mark = "mark-" .. net.random_hex(8) }, Proxy)
  for _, server in ipairs(servers) do
    local client = raw.connect(server.address)
    client:set(proxy.mark, proxy.mark)
    client:close()
  end
  scope.add(proxy)
  for _ = 1, 10 do
    proxy.port = net.free_port()
    proxy.address = "127.0.0.1:" .. proxy.port
    if launch(proxy) then return proxy end
  end
  error("nutcracker does not start", 2)
end

--- A new raw client that goes through it (see raw.lua), closed at the end of the present scope.
function Proxy:raw()
  return scope.add(raw.connect(self.address))
end

--- Kills it and waits for its end.
function Proxy:close()
  if self.ended then return end
  assert(posix.kill(self.pid, "KILL"))
  assert(posix.waitpid(self.pid, 10))
  self.ended = true
end

-- A child may go on using it; it only cannot end it.
function Proxy:forget()
  self.ended = true
end

return nutcracker
