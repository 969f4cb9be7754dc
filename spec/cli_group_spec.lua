--- memlock run, of a command that has left the process group that it was given for another one: it
-- is the command all the same.

local support = require "spec.support"
support.setup()

local jobs = require "spec.support.jobs"

local server = support.server()
local raw = server:raw()

local LOST = 73

local name

before_each(function() name = support.name() end)

-- It goes to the group that memlock is in, which must stay unharmed.
local function start()
  local script = [[
    local posix = require "memlock_posix"
    assert(posix.setpgid(0, posix.getppid()))
    print(posix.getpid())
    io.stdout:flush()
    posix.sleep(300)]]
  local program = support.start_command(server, { "run", "-w", "10", "-t", "3", name, "--",
    os.getenv("LUA") or "lua5.4", "-e", script, env = support.environment(), newgroup = true })
  local pid = math.tointeger(tonumber(program:read_line(20)))
  support.defer(function() support.posix.kill(pid, "KILL") end)
  return program, pid
end

it("a signal reaches it", function()
  local program, pid = start()
  program:kill("TERM")
  jobs.assert_ends(program, 128 + support.posix.signals.TERM)
  assert.is_false(support.running(pid))
end)

it("the loss of the lock ends it", function()
  local program, pid = start()
  raw:delete("memlock:" .. name)
  jobs.assert_ends(program, LOST)
  assert.is_false(support.running(pid))
end)

it("it ends before the lease does when memlock is stopped", function()
  local program, pid = start()
  local other = require("memlock").client(server.address):lock(name)
  program:kill("STOP")
  support.eventually(function() return other:acquire() end, 20)
  assert.is_false(support.running(pid))
  program:kill("CONT")
  jobs.assert_ends(program, LOST)
  assert(other:release())
end)

it("it does not outlive memlock", function()
  local program, pid = start()
  program:kill("KILL")
  support.eventually(function() return not support.running(pid) end)
  program:wait()
end)
