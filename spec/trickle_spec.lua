--- Answers that come byte by byte, and what a lock that is kept meets in the background.

local support = require "spec.support"
support.setup()

local scenes = require "spec.support.scenes"
local memlock = require "memlock"

local server = support.server()

--------------------------------------------------------------------------------
-- One byte at a time

describe("a server that answers one byte per 50 ms", function()
  local pace = 0.05

  -- The answer to a read of a lock or of a value takes this long, and no call ends before it has
  -- come: libmemcached bounds each of its waits, not their sum.
  local cases = {
    { "acquire", 0, function(_, lock) return lock:acquire() end },
    { "brief", 0, function(client, lock)
      local brief = client:lock(lock:name(), { ttl = 0.5 })
      local result, message, code = brief:acquire()
      assert(not brief:held())
      return result, message, code
    end, code = "timeout" },
    { "kept", 1, function(_, lock) return lock:refresh() end, kept = true, code = "timeout" },
    { "refresh", 1, function(_, lock) return lock:refresh() end },
    { "verify", 1, function(_, lock) return lock:verify() end },
    { "holder", 1, function(_, lock) return lock:holder() end },
    { "release", 1, function(_, lock) return lock:release() end },
    { "update", 0, function(client, lock)
      return client:update(lock:name() .. "x", function() return "x" end)
    end },
  }

  -- Each in a process of its own, all at a time.
  local function start(case, options, seconds)
    return support.child(function()
      local relay = support.relay(server)
      local client = memlock.client(relay.address, options)
      local lock = client:lock("s" .. case[1]:sub(1, 1) .. support.posix.getpid(),
        { ttl = 60, auto_refresh = case.kept })
      if case[2] == 1 then assert(lock:acquire()) else assert(not client:holder(lock:name())) end
      relay:reset()
      relay:dribble("down", seconds)
      local took, result, message, code = support.elapsed(case[3], client, lock)
      local bytes = case.kept and 0 or relay:stats().down
      local good = result == nil or result == true or result == lock or result.mine
      if case[1] == "acquire" then good = good and (result ~= nil) == (lock:held()) end
      relay:plain()
      support.eventually(function() -- the keeper may be at the old answer
        return select(3, lock:release()) ~= "timeout"
      end)
      scenes.usable(client, lock, case[1])
      return took, bytes, good, message, code
    end)
  end

  it("is waited for as long as its bytes keep coming, and no longer", function()
    local children = {}
    for i, case in ipairs(cases) do
      children[i] = start(case, { timeout = 0.3, identity = "i", label = "l", prefix = "" }, pace)
    end
    for i, case in ipairs(cases) do
      local took, bytes, good, message, code = children[i]:join(30)
      local context = ("%s: %g s, %d bytes, %s"):format(case[1], took, bytes, message or "well")
      assert.is_true(good, context)
      assert.is_true(code == case.code or code == "timeout", context)
      assert.is_true(took < bytes * pace + 0.3 + support.slack(0.3), context)
    end
  end)
end)

--------------------------------------------------------------------------------
-- In the background

describe("a lock that is kept", function()
  local texts = { "ERROR\r\n", "garbage\r\n", "VALUE memlock:nobody 0 1 5\r\nx\r\nEND\r\n",
    "SERVER_ERROR down\r\n", "CLIENT_ERROR no\r\n" }

  for i = 1, math.max(3, support.count(#texts)) do
    local text = texts[i]
    it("outlives wrong answers that end in time, and no others: " .. text:match("%g+"), function()
      local spoiler = support.spoiler(server)
      local client = memlock.client(spoiler.address, { timeout = 0.3 })
      local told
      local function keep()
        return assert(client:lock(support.name(), { ttl = 0.9, auto_refresh = true,
          on_lost = function(_, message) told = message end }):acquire())
      end
      local kept, more = keep(), {}
      for n = 1, 7 do more[n] = keep() end
      support.eventually(function() return client:stats().renewals > 0 end)
      spoiler:plan { first = 1, last = math.huge, text = text, polite = true }
      support.eventually(function() return client:stats().failures > 1 end)
      assert.is_true((kept:held()))
      spoiler:plan()
      local before = client:stats().renewals
      support.eventually(function() return client:stats().renewals > before + 1 end)
      assert.is_true((kept:held()))
      assert.equal(0, client:stats().losses)
      spoiler:plan { first = 1, last = math.huge, text = text, polite = true }
      local took = support.elapsed(function()
        support.eventually(function() return not kept:held() end)
      end)
      assert.is_true(took < 0.9 + support.slack(0.1), took)
      support.eventually(function() return client:stats().losses == 8 end)
      local calls = 0
      support.eventually(function()
        calls = calls + client:poll()
        return calls == 8
      end)
      assert.truthy(told:find("lost", 1, true), told)
      assert.equal("lost", select(3, kept:verify()))
      spoiler:plan()
      scenes.usable(client, kept, text) -- though its old record may still be there
      for _, other in ipairs(more) do
        assert.equal(other, other:acquire())
        assert.is_true(other:release())
      end
      client:close()
    end)
  end
end)
