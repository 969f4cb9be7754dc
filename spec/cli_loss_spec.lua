--- memlock run, when the lock is lost: the command is over before anybody else can have the lock,
-- and the exit code says so.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local raw = server:raw()

local LOST = 73

local name, key

before_each(function()
  name = support.name()
  key = "memlock:" .. name
end)

-- Starts `memlock run` with a shell script that says which processes it has, one line each, and
-- then "ready".
-- @return the program, and the list of those processes
local function start(address, options, script)
  local words = { "run" }
  table.move(options, 1, #options, 2, words)
  for _, word in ipairs { name, "--", "sh", "-c", script } do words[#words + 1] = word end
  local program = support.start_command(address, words)
  local pids = {}
  local line = program:read_line()
  while line ~= "ready" do
    pids[#pids + 1] = math.tointeger(tonumber(line))
    line = program:read_line()
  end
  support.defer(function()
    for _, pid in ipairs(pids) do support.posix.kill(pid, "KILL") end
  end)
  return program, pids
end

-- A command and a grandchild in its group, neither of which hears TERM.
local stubborn = [[
  trap "" TERM
  sh -c 'trap "" TERM; echo $$; while :; do sleep 0.1; done' &
  sleep 0.2; echo $$; echo ready
  while :; do sleep 0.1; done]]

-- One that ends with TERM and says so, with 0.
local docile = [[
  trap 'echo term; exit 0' TERM
  echo $$; echo ready
  while :; do sleep 0.05; done]]

local function living(pids)
  local count = 0
  for _, pid in ipairs(pids) do
    if support.running(pid) then count = count + 1 end
  end
  return count
end

local function assert_ends(program, code, seconds)
  local result = program:wait(seconds or 20)
  assert.same({ "exit", code }, { result.kind, result.code }, tostring(result))
  return result
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
        cut_run(offset, stubborn)
        return true
      end)
      if #children % 4 == 0 then
        for k = i - 3, i do assert.is_true(children[k]:join(60)) end
      end
    end
    for _, child in ipairs(children) do assert.is_true(child:join(60)) end
  end)

  it("is lost also when the command then ends with 0", function()
    local result = cut_run(1, docile)
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

  it("or is somebody else's: the same, and it stays theirs", function()
    local program, pids = start(server, { "-t", "1.5" }, stubborn)
    raw:set(key, "memlock/1 other 1 1 60 somebody", 60)
    local result = assert_ends(program, LOST)
    assert.truthy(result.err:find("was lost", 1, true), result.err)
    assert.equal(0, living(pids))
    assert.equal("memlock/1 other 1 1 60 somebody", raw:get(key))
  end)

  it("sends TERM first with --loss-grace, and KILL later", function()
    local program = start(server, { "-t", "1.5", "--loss-grace", "5" }, docile)
    raw:delete(key)
    assert.equal("term\n", assert_ends(program, LOST).out)
    local slow, pids = start(server, { "-t", "1.5", "--loss-grace", "1" }, stubborn)
    raw:delete(key)
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
      local program, pids = start(own, { "-t", "3" }, stubborn)
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

describe("a stop", function()
  it("of memlock past the lease: the command is gone by then, and it says lost", function()
    local program, pids = start(server, { "-t", "2" }, stubborn)
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

  it("of everything past the lease: the command does not go on", function()
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

  it("that is short does no harm", function()
    local program = start(server, { "-t", "10" }, "echo ready; read line; exit 4")
    program:kill("STOP")
    support.sleep(1)
    program:kill("CONT")
    support.sleep(0.2)
    program:write("\n")
    assert.equal("", assert_ends(program, 4).err)
  end)
end)
