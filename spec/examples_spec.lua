--- The examples, run for real.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server

before_each(function()
  server = support.memcached()
end)

-- How `examples/name.lua` is started by the stock interpreter, with its arguments.
local function command(name, ...)
  return { file = ("examples/%s.lua"):format(name), timeout = 30, server.address, ... }
end

local function uses_blocks(name)
  return support.read_file("examples/" .. name .. ".lua"):find("<close>", 1, true)
end

local function run(name, ...)
  return support.run_lua(command(name, ...))
end

-- Runs it; it must end well and complain about nothing.
-- @return what it printed
local function prints(name, ...)
  local result = run(name, ...)
  assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
  return result.out
end

local function is_free(name)
  return server:raw():get("memlock:" .. name) == nil
end

it("say so and fail, instead of carrying on, when no server is there", function()
  server:kill()
  local programs = {} -- all at once, since some of them wait
  for _, name in ipairs { "try_lock", "scoped", "counter", "session", "cqueues", "luv",
    "stampede" } do
    if support.end_block or not uses_blocks(name) then
      programs[name] = support.start_lua(command(name))
    end
  end
  for name, program in pairs(programs) do
    local result = program:wait(20)
    local told = name .. ": " .. tostring(result)
    assert.same({ "exit", 1, "" }, { result.kind, result.code, result.out }, told)
    assert.truthy(result.err:find("cannot be reached", 1, true), told)
  end
end)

describe("critical_section", function()
  it("writes the report under a token that grows, and leaves the lock free", function()
    local pattern = "^report written under token (%d+)\n$"
    local first = tonumber(prints("critical_section"):match(pattern))
    assert.is_true(is_free("nightly-report"))
    local second = tonumber(prints("critical_section"):match(pattern))
    assert.is_true(second > first)
  end)

  it("is what the README shows", function()
    local shown = "```lua\n" .. support.read_file "examples/critical_section.lua" .. "```"
    assert.truthy(support.read_file "README.md":find(shown, 1, true))
  end)

  it("waits for the one before it", function()
    local lock = memlock.client(server.address):lock("nightly-report")
    assert(lock:acquire())
    local program = support.start_lua(command("critical_section"))
    support.sleep(0.3)
    assert.is_true(program:alive())
    assert(lock:release())
    local result = program:wait()
    assert.is_true(result.elapsed >= 0.3)
    assert.is_true(tonumber(result.out:match("%d+")) > lock:token(), tostring(result))
  end)
end)

describe("try_lock", function()
  it("works when it is alone", function()
    assert.equal("cleaning up\ndone\n", prints("try_lock", 0))
    assert.is_true(is_free("clean-up"))
  end)

  it("is skipped, at once, when another is at it", function()
    local first = support.start_lua(command("try_lock", 60))
    assert.equal("cleaning up", first:read_line())
    local took, out = support.elapsed(prints, "try_lock", 60)
    assert.is_true(took < support.slack(1))
    assert.truthy(out:find('^skipped: lock "clean%-up": .*:' .. first.pid), out)
  end)
end)

describe("scoped", function()
  it("releases in every way", function()
    support.needs("<close>", pending)
    local out = prints("scoped"):gsub("token %d+", "token N")
    assert.equal("in the block: held\ttoken N\n" ..
      "after the block: not held\n" ..
      "in the function: held\n" ..
      "after the function: not held\t5 pages\n" ..
      "after the error: not held\tout of paper\n", out)
    assert.is_true(is_free("printer"))
  end)
end)

describe("counter", function()
  it("counts, from a missing key on", function()
    assert.equal("visit number 1\n", prints("counter"))
    assert.equal("visit number 2\n", prints("counter"))
    assert.equal("2", server:raw():get("visits"))
    assert.equal("visit number 1\n", prints("counter", "other"))
  end)

  it("counts every one of many at a time", function()
    local programs = {}
    for i = 1, 8 do programs[i] = support.start_lua(command("counter")) end
    local seen = {}
    for _, program in ipairs(programs) do
      local result = program:wait()
      seen[tonumber(result.out:match("^visit number (%d+)\n$"))] = true
    end
    assert.equal(8, #seen)
    assert.equal("8", server:raw():get("visits"))
  end)
end)

local describe_scoped = support.end_block and describe or pending
describe_scoped("session", function()
  -- Two servers, as in a real installation.
  local second, both

  before_each(function()
    second = support.memcached()
    both = server.address .. "," .. second.address
  end)

  local function session(...)
    local result = support.run_lua { file = "examples/session.lua", both, ... }
    assert.same({ 0, "" }, { result.code, result.err }, tostring(result))
    return result.out
  end

  it("is opened, read, written and destroyed", function()
    assert.equal("bob\tvisits=1\n", session("locked", "bob"))
    assert.equal("bob\tvisits=2\n", session("locked", "bob"))
    assert.equal("bob\tvisits=3\n", session("free", "bob"))
    assert.equal("eve\tvisits=1\n", session("free", "eve"))
    assert.equal("bob\tvisits=4\n", session("locked", "bob"))
    assert.equal("bob\tdestroyed\n", session("destroy", "bob"))
    assert.equal("bob\tvisits=1\n", session("locked", "bob"))
    assert.equal("eve\tvisits=2\n", session("locked", "eve"))
  end)

  it("lives on one of several servers", function()
    local on = { 0, 0 }
    for i = 1, 12 do
      local key = "session-data:visitor-" .. i
      session("locked", "visitor-" .. i)
      for n, place in ipairs { server, second } do
        local value = place:raw():get(key)
        if value then
          on[n] = on[n] + 1
          assert.truthy(value:find("^%d+ visits=1$"))
          assert.is_true(place:raw():ttl(key) > 3500)
        end
      end
    end
    assert.equal(12, on[1] + on[2])
    assert.is_true(on[1] > 0 and on[2] > 0)
  end)

  for _, mode in ipairs { "locked", "free" } do
    it("loses no request of many at a time: " .. mode, function()
      local programs = {}
      for i = 1, 8 do
        programs[i] = support.start_lua { file = "examples/session.lua", both, mode, "bob" }
      end
      local seen = {}
      for _, program in ipairs(programs) do
        local result = program:wait(20)
        assert.same({ 0, "" }, { result.code, result.err }, tostring(result))
        seen[tonumber(result.out:match("^bob\tvisits=(%d+)\n$"))] = true
      end
      assert.equal(8, #seen)
    end)
  end

  it("refuses a request that was overtaken", function()
    session("locked", "bob")
    for _, place in ipairs { server, second } do
      -- As a later holder of the lock would have left it.
      place:raw():replace("session-data:bob", math.maxinteger .. " visits=7")
    end
    local result = support.run_lua { file = "examples/session.lua", both, "locked", "bob" }
    assert.equal(1, result.code)
    assert.truthy(result.err:find("another request has taken the session over", 1, true))
    assert.equal("bob\tvisits=8\n", session("free", "bob"))
  end)
end)

describe("mailbox", function()
  it("has each message once, in order", function()
    local path = support.tempdir() .. "/mail box"
    assert.equal("100 messages of 4 writers, numbered without a gap\n", prints("mailbox", path))
    local count, of_writer = 0, {}
    for line in io.lines(path) do
      count = count + 1
      local number, message, writer = line:match("^(%d+) message (%d+) of writer%-(%d)$")
      assert.equal(count, tonumber(number))
      of_writer[writer] = (of_writer[writer] or 0) + 1
      assert.equal(of_writer[writer], tonumber(message))
    end
    assert.same({ ["1"] = 25, ["2"] = 25, ["3"] = 25, ["4"] = 25 }, of_writer)
    assert.is_true(is_free("mailbox"))
  end)

  it("says when the numbers are wrong", function()
    local path = support.tempdir() .. "/mailbox"
    support.write_file(path, "1 message\n1 message\n")
    local result = run("mailbox", path)
    assert.equal(1, result.code)
    assert.truthy(result.err:find("out of order: 1 message", 1, true), tostring(result))
  end)
end)

for _, name in ipairs { "cqueues", "luv" } do
  describe(name, function()
    it("goes on with its loop while it waits", function()
      local seconds, ticks =
        prints(name):match("^got the lock after (%d%.%d) s, and the loop ticked (%d+) times")
      assert.is_true(tonumber(seconds) >= 0.5 and tonumber(seconds) < 0.7 + support.slack(0.1))
      assert.is_true(tonumber(ticks) > 50 / support.slack(1.2), ticks)
      assert.is_true(is_free("loop-" .. name))
    end)
  end)
end
