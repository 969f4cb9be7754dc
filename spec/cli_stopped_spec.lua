--- memlock run that is stopped (SIGSTOP), and so renews nothing: its command is over before
-- somebody else has the lock, and does not go on afterwards.

local support = require "spec.support"
support.setup()

local jobs = require "spec.support.jobs"
local memlock = require "memlock"

local server = support.server()

local LOST = 73
local assert_ends, living = jobs.assert_ends, jobs.living

local name

before_each(function() name = support.name() end)

local function start(address, options, script)
  return jobs.start(address, name, options, script)
end

it("a stop of memlock past the lease: the command is gone by then, and it says lost", function()
  local program, pids = start(server, { "-t", "2" }, jobs.stubborn)
  local other = memlock.client(server.address):lock(name)
  program:kill("STOP")
  support.eventually(function() return other:acquire() end, 20)
  assert.equal(0, living(pids))
  program:kill("CONT")
  local result = assert_ends(program, LOST)
  assert.truthy(result.err:find("was lost", 1, true), result.err)
  assert(other:verify())
  other:release()
end)

it("a stop until the guard has struck, and no longer: it says lost, renewed or not", function()
  for _ = 1, support.count(20) do
    name = support.name()
    local program, pids = start(server, { "-t", "3" }, jobs.stubborn)
    program:kill("STOP")
    support.eventually(function() return living(pids) == 0 end, 20)
    program:kill("CONT")
    assert_ends(program, LOST)
  end
end)

it("a stop of everything past the lease: the command does not go on", function()
  local program, pids = start(server, { "-t", "2" }, [[
    echo $$; echo ready
    while :; do echo beat; sleep 0.05; done]])
  program:kill("STOP")
  support.posix.kill(-pids[1], "STOP")
  support.sleep(0.2)
  program:pump(0)
  local before = #program.text.out
  local other = memlock.client(server.address):lock(name)
  support.eventually(function() return other:acquire() end, 20)
  program:kill("CONT")
  local result = assert_ends(program, LOST)
  assert.is_true(#result.out <= before + #"beat\n", result.out)
  assert.equal(0, living(pids))
  other:release()
end)

it("a stop that is short does no harm", function()
  local program = start(server, { "-t", "10" }, "echo ready; read line; exit 4")
  program:kill("STOP")
  support.sleep(1)
  program:kill("CONT")
  support.sleep(0.2)
  program:write("\n")
  assert.equal("", assert_ends(program, 4).err)
end)
