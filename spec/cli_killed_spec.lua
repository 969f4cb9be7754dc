--- memlock run that is killed, and cannot clean up: the command does not outlive it, and the lock
-- is free after its ttl.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()

local name

before_each(function() name = support.name() end)

-- The guard among these processes, and the others.
local function find_guard(pids)
  local guard, others = nil, {}
  for _, pid in ipairs(pids) do
    if support.process_name(pid) == "memlock-guard" then
      guard = pid
    else
      others[#others + 1] = pid
    end
  end
  return guard, others
end

-- Starts a command with a grandchild, none of which hears TERM, HUP or INT.
-- @return the program, and the processes by what they are: command, grandchild, guard
local function start(ttl)
  local program = support.start_command(server, { "run", "-t", ttl or "20", name, "--", "sh",
    "-c", [[
    trap "" TERM HUP INT
    sh -c 'trap "" TERM HUP INT; echo $$; while :; do sleep 0.1; done' &
    read line; while :; do sleep 0.1; done]] })
  local pids = { grandchild = math.tointeger(tonumber(program:read_line())) }
  local guard, others = find_guard(support.children(program.pid))
  assert.is_number(guard)
  assert.equal(1, #others)
  pids.guard, pids.command = guard, others[1]
  support.defer(function()
    for _, pid in pairs(pids) do support.posix.kill(pid, "KILL") end
  end)
  return program, pids
end

local function assert_all_end(pids)
  for what, pid in pairs(pids) do
    local ok = pcall(support.eventually, function() return not support.running(pid) end, 10)
    assert.is_true(ok, "it lives on: " .. what)
  end
end

it("kill -9 takes the command along, with its group", function()
  for _ = 1, support.count(20) do
    name = support.name()
    local program, pids = start()
    program:kill("KILL")
    local killed = support.now()
    assert_all_end(pids)
    assert.is_true(support.now() - killed < support.slack(1))
  end
end)

it("kill -9 of the guard has another one start", function()
  local program, pids = start()
  local first = pids.guard
  support.posix.kill(first, "KILL")
  local second = support.eventually(function()
    local guard = find_guard(support.children(program.pid))
    return guard ~= first and guard
  end)
  pids.guard = second
  support.sleep(1)
  assert.is_true(program:alive())
  program:kill("KILL")
  assert_all_end(pids)
end)

it("kill -9 of everything frees the lock for the next within ttl and 4 s", function()
  local program, pids = start("2")
  local second = support.start_command(server, { "run", "-w", "30", name, "--", "echo", "ran" })
  support.sleep(0.5)
  for _, pid in ipairs { program.pid, pids.guard, pids.command, pids.grandchild } do
    support.posix.kill(pid, "KILL")
  end
  program.expected = true
  local killed = support.now()
  assert.equal("ran", second:read_line(30))
  assert.is_true(support.now() - killed < 2 + 4 + support.slack(0.5), support.now() - killed)
  assert.equal(0, second:wait().code)
end)

it("no process of ours stays when all is over", function()
  local program = support.start_command(server, { "run", name, "--", "sh", "-c",
    "echo ready; read line" })
  program:read_line()
  local children = support.children(program.pid)
  assert.equal(2, #children) -- the command and the guard
  program:close_stdin()
  program:wait()
  for _, pid in ipairs(children) do assert.is_false(support.running(pid)) end
end)

it("kill -9 while it waits leaves no record", function()
  local lock = assert(memlock.client(server.address):lock(name):acquire())
  local waiting = support.start_command(server, { "run", "-w", "inf", name, "--", "echo", "ran" })
  support.sleep(0.5)
  waiting:kill("KILL")
  assert.equal("signal", waiting:wait().kind)
  assert(lock:release())
  support.sleep(0.2)
  assert.is_false(memlock.client(server.address):holder(name))
end)

it("a guard that is stopped keeps nobody waiting", function()
  local program, pids = start()
  support.posix.kill(pids.guard, "STOP")
  for _, what in ipairs { "command", "grandchild" } do support.posix.kill(pids[what], "KILL") end
  assert.equal(128 + support.posix.signals.KILL, program:wait(20).code)
  assert.is_false(support.running(pids.guard))
end)
