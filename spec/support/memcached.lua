--- memcached servers of our own.

local lfs = require "lfs"
local posix = require "memlock_posix"
local net = require "spec.support.net"
local raw = require "spec.support.raw"
local scope = require "spec.support.scope"

local memcached = {}

local Server = {}
Server.__index = Server

-- By its process id: another memcached may have taken the port while ours was on its way. One that
-- wants a password (-Y) tells nothing; it is believed.
local function is_ready(server)
  local ok, client = pcall(raw.connect, server.address, 0.2)
  if not ok then return false end
  local known, stats = pcall(client.stats, client)
  client:close()
  if not known then return stats:find("unauthenticated", 1, true) ~= nil end
  return tonumber(stats.pid) == server.pid
end

local function is_stopped(task)
  local file = io.open(task .. "/stat")
  if not file then return true end -- it has ended
  local stat = file:read("a")
  file:close()
  return stat:find("^%d+ %b() T") ~= nil
end

local is_root = lfs.attributes("/proc/self", "uid") == 0

local function launch(server)
  local command = { "memcached", "-U", "0", "-t", "2", "-m", tostring(server.memory),
    stdin = "/dev/null", stdout = "/dev/null", stderr = "/dev/null", pdeathsig = "KILL",
    env = { LD_PRELOAD = false } }
  local where = { "-l", "127.0.0.1", "-p", tostring(server.port) }
  if server.path then where = { "-s", server.path } end
  for _, list in ipairs { where, is_root and { "-u", "root" } or {}, server.args } do
    table.move(list, 1, #list, #command + 1, command)
  end
  server.pid = assert(posix.spawn(command))
  server.ended = false
  local deadline = posix.now() + 5
  repeat
    if is_ready(server) then return true end
    if posix.waitpid(server.pid, 0.005) then
      server.ended = true
      return false
    end
  until posix.now() > deadline
  server:kill()
  return false
end

--- Starts a memcached and waits until it answers.
-- @param options `args` (more arguments, a list), `unix` (true: on a unix socket), `memory`
--   (megabytes, 64), `port`
-- @return a server: `address` (as memlock takes it), `port` or `path`, `pid`, and the methods below
function memcached.start(options)
  options = options or {}
  local server = { args = options.args or {}, memory = options.memory or 64, ended = true }
  setmetatable(server, Server)
  if options.unix then
    server.path = net.tempdir() .. "/socket"
    server.address = server.path
  end
  scope.add(server)
  for _ = 1, 10 do
    if not server.path then
      server.port = options.port or net.free_port()
      server.address = "127.0.0.1:" .. server.port
    end
    if launch(server) then return server end
  end
  error("memcached does not start: " .. table.concat(server.args, " "), 2)
end

--- A new raw client of it (see raw.lua), closed at the end of the present scope.
function Server:raw()
  return scope.add(raw.connect(self.address))
end

--- Fills every size of item that a lock or its fence may need, until it says that it is out of
-- memory. For one that was started with -M and little memory.
function Server:fill()
  local client = raw.connect(self.address)
  for size = 1, 900, 24 do
    local full = false
    local n = 0
    while not full do
      local batch = {}
      for i = 1, 500 do
        batch[i] = ("set fill-%d-%d 0 0 %d\r\n%s\r\n"):format(size, n + i, size, ("x"):rep(size))
      end
      client:send(table.concat(batch))
      for _ = 1, 500 do
        if client:line():find("^SERVER_ERROR out of memory") then full = true end
      end
      n = n + 500
    end
  end
  client:close()
end

--- Stops the process where it is (SIGSTOP): it accepts connections, thanks to the kernel, but
-- answers nothing.
function Server:stop_process()
  assert(posix.kill(self.pid, "STOP"))
  -- The signal takes a moment to stop all threads; until then one of them may still answer.
  local tasks = ("/proc/%d/task/"):format(self.pid)
  local deadline = posix.now() + 5
  for task in lfs.dir(tasks) do
    while tonumber(task) and not is_stopped(tasks .. task) do
      assert(posix.now() < deadline, "memcached does not stop")
      posix.sleep(0.001)
    end
  end
end

--- Lets it run on (SIGCONT).
function Server:continue_process()
  assert(posix.kill(self.pid, "CONT"))
end

--- Kills it (SIGKILL) and waits for its end. Its port then refuses connections.
function Server:kill()
  if self.ended then return end
  assert(posix.kill(self.pid, "KILL"))
  assert(posix.waitpid(self.pid, 10))
  self.ended = true
end

--- Kills it, if it runs, and starts it anew at the same address: empty, with CAS ids from the
-- beginning.
function Server:restart()
  self:kill()
  local deadline = posix.now() + 10
  repeat
    if launch(self) then return end
    posix.sleep(0.05)
  until posix.now() > deadline
  error("memcached does not come back at " .. self.address, 2)
end

--- Ends it for good.
function Server:stop()
  self:kill()
  self.closed = true
end

Server.close = Server.stop

-- A child may go on using the server; it only cannot end it.
function Server:forget()
  self.ended = true
end

local shared

--- The memcached that the tests of one spec file share; it lives until the end of the file. Forked
-- children share it too, if it was asked for before the fork.
function memcached.server()
  if not shared or shared.closed then shared = scope.outermost(memcached.start) end
  return shared
end

return memcached
