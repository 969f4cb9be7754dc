--- The examples that show who may do a job, each run by several processes at a time.

local support = require "spec.support"
support.setup()

local example = require "spec.support.example"

local server, truth

before_each(function()
  server = support.memcached()
  truth = server:raw()
end)

local function start(name, ...)
  return example.start(name, server.address, ...)
end

local function holder(name)
  return example.holder(truth, name)
end

-- The token of a program's next line that matches the pattern; lines before that do not are passed.
local function token_in(program, pattern, seconds)
  local deadline = support.now() + (seconds or 20)
  repeat
    local token = program:read_line(math.max(0.1, deadline - support.now())):match(pattern)
    if token then return math.tointeger(tonumber(token)) end
  until support.now() > deadline
  error("no such line: " .. pattern)
end

describe("leader", function()
  local leading = "^leading, under token (%d+)$"
  local programs

  -- The program that has the lock, by what memcached says.
  local function leader()
    local pid = holder "leader"
    for _, program in ipairs(programs) do
      if program.pid == pid then return program end
    end
  end

  -- The leader once it is another one than `before`.
  local function successor(before)
    return support.eventually(function()
      local program = leader()
      return program ~= before and program
    end, support.slack(8))
  end

  before_each(function()
    programs = {}
    for i = 1, 3 do programs[i] = start("leader", 2) end
  end)

  it("is one of three, and followed by another when it is killed, under a larger token", function()
    local first = support.eventually(leader, support.slack(5))
    local token = token_in(first, leading)
    support.sleep(3) -- longer than the ttl
    assert.equal(first, leader())
    first:kill "KILL"
    first:wait()
    local second = successor(first)
    assert.is_true(token_in(second, leading) > token)
    for _, program in ipairs(programs) do
      if program ~= first and program ~= second then -- it has waited all the time, and says nothing
        program:kill "TERM"
        assert.equal("", program:wait().out)
      end
    end
  end)

  it("does nothing more when it wakes up after another took over", function()
    local first = support.eventually(leader, support.slack(5))
    local token = token_in(first, leading)
    first:kill "STOP"
    local second = successor(first)
    local later = token_in(second, leading)
    assert.is_true(later > token)
    first:kill "CONT"
    -- Only one step, which it may have been in the middle of, comes after the stop.
    support.eventually(function() return first:read_line() == "leading no more" end)
    support.sleep(1)
    assert.equal(second, leader())
    first:kill "TERM"
    assert.equal("", first:wait().out)
  end)
end)

describe("once_per_slot", function()
  local journal

  before_each(function()
    journal = support.tempdir() .. "/journal"
  end)

  local function runs()
    local lines = {}
    local file = io.open(journal)
    if not file then return lines end
    for line in file:lines() do lines[#lines + 1] = line end
    file:close()
    return lines
  end

  local function start_slot(slot, command)
    return start("once_per_slot", "nightly", 60, command:gsub("JOURNAL", journal), slot)
  end

  it("runs the job of a slot on one of many machines that start it", function()
    for slot = 100, 102 do
      local programs, outcomes = {}, {}
      for i = 1, 5 do
        programs[i] = start_slot(slot, "sleep 0.2; echo run >>JOURNAL")
      end
      for _, program in ipairs(programs) do
        local outcome = example.output(program):match("^nightly, slot " .. slot .. ": (.*)\n$")
        outcomes[outcome] = (outcomes[outcome] or 0) + 1
      end
      assert.same({ ["done"] = 1, ["done by another"] = 4 }, outcomes)
      assert.equal(slot - 99, #runs())
    end
    assert.equal("102", truth:get "done:nightly")
    assert.is_nil(holder "job:nightly")
  end)

  it("does not run a job again for a machine that comes late", function()
    local command = "echo run >>JOURNAL"
    assert.equal("nightly, slot 7: done\n", example.output(start_slot(7, command)))
    assert.equal("nightly, slot 6: done by another\n", example.output(start_slot(6, command)))
    assert.equal(1, #runs())
  end)

  it("has another machine do it when the job fails", function()
    local program = start_slot(1, "false")
    local result = program:wait()
    assert.equal(1, result.code)
    assert.truthy(result.err:find("the job failed: false", 1, true), tostring(result))
    assert.is_nil(truth:get "done:nightly")
    assert.equal("nightly, slot 1: done\n", example.output(start_slot(1, "echo run >>JOURNAL")))
  end)

  it("has another machine do it when the first dies in the middle", function()
    local first = start_slot(1, "echo $$ >>JOURNAL; exec sleep 60")
    local job = support.eventually(function() return tonumber(runs()[1]) end)
    support.defer(function() support.posix.kill(job, "KILL") end)
    local second = start_slot(1, "echo run >>JOURNAL")
    support.sleep(0.3)
    assert.is_true(second:alive())
    assert.equal(first.pid, holder "job:nightly")
    first:kill "KILL"
    assert.equal("nightly, slot 1: done\n", example.output(second))
    assert.same({ ("%d"):format(job), "run" }, runs())
  end)

  it("takes its slot from the clock", function()
    local before = os.time() // 3600
    local program = start("once_per_slot", "hourly", 3600, "true")
    local slot = tonumber(example.output(program):match "^hourly, slot (%d+): done\n$")
    assert.is_true(slot >= before and slot <= os.time() // 3600)
  end)
end)
