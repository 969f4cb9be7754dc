--- memlock run, when the lock is lost: the command is over before anybody else can have the lock,
-- and the exit code says so.

local support = require "spec.support"
support.setup()

local jobs = require "spec.support.jobs"
local memlock = require "memlock"

local server = support.server()
local raw = server:raw()

local LOST = 73
local assert_ends, living = jobs.assert_ends, jobs.living

local name, key

local function start(address, options, script)
  return jobs.start(address, name, options, script)
end

before_each(function()
  name = support.name()
  key = "memlock:" .. name
end)

-- Seconds of processor time that a process has used.
local function cpu_time(pid)
  local stat = support.read_file(("/proc/%d/stat"):format(pid))
  local user, system = stat:match("%) %a" .. (" %S+"):rep(10) .. " (%d+) (%d+)")
  return (user + system) / 100
end

describe("a link that is cut", function()
  -- Cuts it at some time of a renewal's period, and watches from another way who has the lock.
  local function cut_run(i, script)
    local relay = support.relay(server)
    local program, pids = start(relay.address, { "-t", "5", "--timeout", "0.5" }, script)
    support.sleep(1.7 * i / 20)
    relay:blackhole()
    local second = memlock.client(server.address):lock(name)
    local left = math.huge
    support.eventually(function()
      program:pump(0)
      local before = living(pids)
      if not second:acquire() then return false end
      left = before
      return true
    end, 30)
    assert.equal(0, left, "processes that ran when somebody else got the lock")
    local result = assert_ends(program, LOST)
    second:release()
    relay:stop()
    return result
  end

  it("ends every process of the group before anybody else gets the lock", function()
    local runs = support.count(20)
    local children = {}
    for i = 1, runs do
      local offset = i
      children[i] = support.child(function()
        name = support.name()
        cut_run(offset, jobs.stubborn)
        return true
      end)
      if #children % 4 == 0 then
        for k = i - 3, i do assert.is_true(children[k]:join(60)) end
      end
    end
    for _, child in ipairs(children) do assert.is_true(child:join(60)) end
  end)

  it("is lost also when the command then ends with 0", function()
    local result = cut_run(1, jobs.docile)
    assert.equal("term\n", result.out)
    assert.truthy(result.err:find("could not be renewed", 1, true), result.err)
  end)

  it("gives the command the grace that there is", function()
    local relay = support.relay(server)
    local program = start(relay.address, { "-t", "6", "-g", "1", "--timeout", "0.5" }, [[
      trap 'date +%s.%N' TERM
      echo ready
      while :; do sleep 0.05; done]])
    relay:blackhole()
    local start_of_cut = support.now()
    local term = tonumber(program:read_line(20))
    local since = memlock.client(server.address):holder(name).since
    -- The lease was last renewed at most 2 s after it was taken: then it ends 6 s later.
    assert.is_true(term - since >= 4.9 and term - since < 9, term - since)
    assert_ends(program, LOST)
    assert.is_true(support.now() - start_of_cut < 6 + support.slack(1))
  end)

  it("for a while does no harm", function()
    local relay = support.relay(server)
    local program = start(relay.address, { "-t", "6", "--timeout", "0.5" },
      "echo ready; sleep 7; exit 5")
    for _ = 1, 3 do
      relay:blackhole()
      support.sleep(1)
      relay:cut()
      relay:forward()
      support.sleep(1.5)
    end
    local result = assert_ends(program, 5)
    assert.equal("", result.err)
  end)
end)

describe("a record that is gone", function()
  it("ends the command at once, by KILL", function()
    local program, pids = start(server, { "-t", "1.5" }, [[
      trap "echo term" TERM; echo $$; echo ready
      while :; do sleep 0.05; done]])
    raw:delete(key)
    local result = assert_ends(program, LOST)
    assert.equal("", result.out)
    assert.truthy(result.err:find("was lost", 1, true), result.err)
    assert.equal(0, living(pids))
    assert.is_true(result.elapsed < 1.5 + support.slack(1), tostring(result))
    assert.is_nil(raw:get(key))
  end)

  it("ends the command also where nobody reads what we have to say", function()
    local place = support.tempdir() .. "/fifo"
    assert.equal(0, support.run({ "mkfifo", place }).code)
    local program = support.start { "sh", "-c", [[
      exec 3<>"$1"
      dd if=/dev/zero of="$1" bs=4096 oflag=nonblock 2>/dev/null # as much as goes in
      exec "$0" run --wait 10 --ttl 15 "$2" -- sh -c 'echo $$; exec sleep 300' 2>"$1"]],
      support.command_path, place, name, env = { MEMLOCK_SERVERS = server.address } }
    local pid = math.tointeger(tonumber(program:read_line(20)))
    support.defer(function() support.posix.kill(pid, "KILL") end)
    raw:set(key, "memlock/1 other 1 1 60 somebody", 60)
    -- The renewal after 5 s tells. The guard would only act when the lease has nearly ended.
    support.eventually(function() return not support.running(pid) end, 12)
    program:kill("KILL") -- it waits for its reader
    program:wait()
  end)

  it("or is somebody else's: the same, and it stays theirs", function()
    local program, pids = start(server, { "-t", "1.5" }, jobs.stubborn)
    raw:set(key, "memlock/1 other 1 1 60 somebody", 60)
    local result = assert_ends(program, LOST)
    assert.truthy(result.err:find("was lost", 1, true), result.err)
    assert.equal(0, living(pids))
    assert.equal("memlock/1 other 1 1 60 somebody", raw:get(key))
  end)

  it("sends TERM first with --loss-grace, and KILL later", function()
    local program = start(server, { "-t", "1.5", "--loss-grace", "5" }, jobs.docile)
    raw:delete(key)
    assert.equal("term\n", assert_ends(program, LOST).out)
    local slow, pids = start(server, { "-t", "1.5", "--loss-grace", "1" }, jobs.stubborn)
    raw:delete(key)
    support.eventually(function()
      slow:pump(0.01)
      return slow.text.err:find("asked to end", 1, true)
    end)
    local used = cpu_time(slow.pid)
    support.sleep(0.5)
    assert.is_true(cpu_time(slow.pid) - used < 0.25, "it is busy while it waits")
    assert_ends(slow, LOST)
    assert.equal(0, living(pids))
  end)

  it("is lost also when the command ends with 0 before anybody has noticed", function()
    local program = start(server, { "-t", "60" }, "echo ready; read line; exit 0")
    raw:delete(key)
    program:write("\n")
    local result = assert_ends(program, LOST)
    assert.truthy(result.err:find("was lost", 1, true), result.err)
  end)

  it("with a flush of the server, or its restart", function()
    local own = support.memcached()
    for _, spoil in ipairs { function() own:raw():flush_all() end, function() own:restart() end } do
      local program, pids = start(own, { "-t", "3" }, jobs.stubborn)
      spoil()
      assert_ends(program, LOST)
      assert.equal(0, living(pids))
    end
  end)
end)

it("a server that is out of reach at the end is said, and the code is the command's", function()
  local relay = support.relay(server)
  local program = start(relay.address, { "-t", "20", "--timeout", "0.3" },
    "echo ready; read line; exit 6")
  relay:blackhole()
  program:write("\n")
  local result = assert_ends(program, 6)
  assert.truthy(result.err:find("ends by itself", 1, true), result.err)
end)
