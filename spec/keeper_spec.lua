--- Background renewal: what a program that holds a lock with auto_refresh sees, and what the
-- servers see of it.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local memlock = require "memlock"

local full = os.getenv("FULL") == "1"
local server = support.server()
local truth = server:raw() -- what the server really has
local others = memlock.client(server.address, { retry_max = 0.02 })

support.defer(function() others:close() end)

local relay, client

before_each(function()
  relay = support.relay(server)
  client = memlock.client(relay.address, { timeout = 0.5 })
end)

after_each(function()
  client:close()
end)

local function new_lock(options)
  options.auto_refresh = true
  return client:lock(support.name(), options)
end

local function held_lock(options)
  return assert(new_lock(options):acquire())
end

local function record(lock) return (truth:get(keeping.key(lock:name()))) end

local function code_of(...) return (select(3, ...)) end

local function is_taken(lock)
  return code_of(others:lock(lock:name()):acquire()) == "held"
end

-- Lets the keeper renew `lock` at least once from now.
local function renewed(what)
  local before = (what or client):stats().renewals
  support.eventually(function() return (what or client):stats().renewals > before end)
end

local function fails_as(code, ...)
  assert.same({ nil, code }, { (...), (select(3, ...)) }, tostring((select(2, ...))))
end

--------------------------------------------------------------------------------
-- The host does something else

describe("a lock stays held", function()
  local host

  -- The program runs beside the other tests; each step blocks its only Lua thread for longer than
  -- the ttl of 2 s.
  local seconds = full and 10 or 3
  local names = { support.name("lua"), support.name("sleep"), support.name("find") }

  lazy_setup(function()
    host = keeping.program(server.address, seconds, table.unpack(names))
    host:eval [[
      client = memlock.client(arg[1]) locks = {}
      for i = 3, 5 do
        locks[i] = assert(client:lock(arg[i], { ttl = 2, auto_refresh = true }):acquire())
      end
      seconds = tonumber(arg[2])
      function all_held()
        local count = 0
        for i = 3, 5 do count = count + (locks[i]:held() and 1 or 0) end
        return count
      end
    ]]
    host:tell [[
      local stop = posix.now() + seconds
      while posix.now() < stop do end
      return all_held()
    ]]
    host:tell "posix.sleep(seconds) return all_held()"
    -- One call of C that computes: a small one tells how large it is to be, in steps because a
    -- busy machine may make one look long.
    host:tell [[
      local size, took = 200, 0
      while took < 2.5 do
        local start, text = posix.now(), ("a"):rep(size)
        assert(not text:find(".-.-.-b"))
        took = posix.now() - start
        size = math.ceil(size * math.max(1.1, math.min(4, (3 / took) ^ (1 / 3))))
      end
      return all_held()
    ]]
  end)

  it("while the link is cut for less than the lease lasts", function()
    local scale = full and 1 or 0.5
    local lock = held_lock { ttl = 6 * scale }
    renewed()
    relay:pause("both")
    keeping.throughout(2.5 * scale, function() assert.is_true(lock:held()) end)
    relay:resume("both")
    assert.is_true(is_taken(lock))
    keeping.throughout(4 * scale, function() assert.is_true(lock:held()) end)
    assert.equal(0, client:stats().losses)
    assert.is_true(is_taken(lock))
    assert.is_true(lock:release())
  end)

  it("no longer than its lease while the link is cut, and is renewed again afterwards", function()
    local scale = full and 1 or 0.5
    local lock = held_lock { ttl = 6 * scale }
    renewed()
    relay:pause("both")
    local deadline = 0
    local lost_at
    keeping.throughout(8 * scale, function()
      local now = support.now()
      local held, left = lock:held()
      if held then
        assert.is_nil(lost_at, "held again")
        deadline = math.max(deadline, now + left)
      else
        lost_at = lost_at or support.now()
      end
    end)
    assert.truthy(lost_at)
    assert.is_true(lost_at >= deadline, lost_at - deadline)
    assert.is_true(lost_at < deadline + support.slack(0.05), lost_at - deadline)
    assert.is_true(deadline > support.now() - 8 * scale + 6 * scale * 0.6)
    assert.equal(1, client:stats().losses)
    relay:resume("both")
    support.eventually(function() return lock:acquire() end)
    keeping.throughout(full and 20 or 3.5, function() assert.is_true(lock:held()) end)
    assert.is_true(is_taken(lock))
    assert.is_true(lock:release())
  end)

  it("while single answers, requests or connections are lost", function()
    local lock = held_lock { ttl = 2.4 }
    for _, trouble in ipairs { "drop_reply", "cut", "hold_up" } do
      local before = client:stats()
      relay[trouble](relay, trouble == "hold_up" and "cas" or nil)
      support.eventually(function() return client:stats().renewals > before.renewals end, 3)
      relay:plain()
      assert.is_true(lock:held())
    end
    assert.is_true(client:stats().failures >= 1)
    assert.equal(0, client:stats().losses)
    assert.is_true(lock:release())
  end)

  for i, what in ipairs { "computes in Lua", "sleeps in C", "computes in C" } do
    it("while its program " .. what .. ", for longer than the ttl", function()
      local rival = others:lock(names[i])
      local done
      repeat
        fails_as("held", rival:acquire())
        done = host.process.text.out:find("\n") or host.process:pump(0.02)
      until done
      assert.equal("3", host:answer(60))
      fails_as("held", rival:acquire())
    end)
  end

  it("until its program ends", function()
    host:finish()
    for _, name in ipairs(names) do assert.is_nil((truth:get(keeping.key(name)))) end
  end)
end)

--------------------------------------------------------------------------------
-- Frozen

describe("a program that is stopped past its ttl", function()
  it("does not hold the lock when it goes on, and never writes another's record", function()
    local name = support.name()
    local program = keeping.program(relay.address, name)
    program:eval [[
      client = memlock.client(arg[1])
      lock = client:lock(arg[2], { ttl = 0.4, auto_refresh = true })
    ]]
    relay:record()
    for _ = 1, support.count(40) do
      assert.equal("true", program:eval "return lock:acquire(5) == lock")
      support.sleep(math.random() * 0.3) -- anywhere between two renewals, or in one
      program:kill("STOP")
      program:tell "return lock:held()"
      support.sleep(0.45)
      local rival = others:lock(name, { ttl = 60 })
      if not rival:acquire() then
        others:break_lock(name, rival:holder())
        assert(rival:acquire(10))
      end
      local value, _, cas = truth:gets(keeping.key(name))
      local taken_at = support.now()
      program:kill("CONT")
      assert.equal("false 0.0", program:answer())
      support.sleep(0.1)
      assert.same({ value, cas }, { value, (select(3, truth:gets(keeping.key(name)))) })
      assert.truthy(program:eval("return lock:refresh()"):find("lost$"))
      assert.truthy(program:eval("return lock:release()"):find("not_held$"))
      local same, _, cas_now = truth:gets(keeping.key(name))
      assert.same({ value, cas }, { same, cas_now })
      assert.is_true(rival:release())
      for _, write in ipairs(keeping.writes(relay)) do
        assert.is_true(write.at < taken_at or write.value == "", write.value)
      end
      relay:reset()
    end
    program:finish()
  end)
end)

--------------------------------------------------------------------------------
-- Loss

describe("a loss", function()
  local ways = {
    flush_all = function() truth:flush_all() end,
    break_lock = function(lock) assert(others:break_lock(lock:name(), lock:holder())) end,
    ["another's record"] = function(lock)
      truth:set(keeping.key(lock:name()), "memlock/1 somebody 1 1 60000 else", 60)
    end,
  }

  for way, break_it in pairs(ways) do
    it("by " .. way .. " is seen within a renewal, and the record is left alone", function()
      local lock = held_lock { ttl = 0.9 }
      renewed()
      break_it(lock)
      local left_behind = record(lock)
      local took = support.elapsed(function()
        support.eventually(function() return not lock:held() end)
      end)
      assert.is_true(took < 0.3 + support.slack(0.05), took)
      relay:record()
      support.sleep(0.6)
      assert.same({ "", left_behind }, { relay:sent(), record(lock) })
      assert.equal(1, client:stats().losses)
      fails_as("lost", lock:refresh())
      fails_as("not_held", lock:refresh())
      fails_as("not_held", lock:release())
      assert.same({ "", left_behind }, { relay:sent(), record(lock) })
      truth:delete(keeping.key(lock:name()))
    end)
  end

  it("is reported once by release", function()
    local lock = held_lock { ttl = 0.3 }
    truth:delete(keeping.key(lock:name()))
    support.eventually(function() return not lock:held() end)
    fails_as("lost", lock:release())
    fails_as("not_held", lock:release())
    fails_as("not_held", lock:verify())
  end)

  it("is reported once by verify", function()
    local lock = held_lock { ttl = 0.3 }
    truth:delete(keeping.key(lock:name()))
    support.eventually(function() return not lock:held() end)
    fails_as("lost", lock:verify())
    fails_as("not_held", lock:refresh())
  end)

  it("is reported by with, whose function ran", function()
    local lock = new_lock { ttl = 0.3 }
    local result = table.pack(lock:with(function()
      truth:delete(keeping.key(lock:name()))
      support.eventually(function() return not lock:held() end)
      return "done"
    end))
    assert.same({ nil, "lost", "done" }, { result[1], result[3], result[4] })
    fails_as("not_held", lock:release())
  end)

  it("leaves an object that acquires, and is renewed, as if new", function()
    local lock = held_lock { ttl = 0.3 }
    for i = 1, 5 do
      truth:delete(keeping.key(lock:name()))
      support.eventually(function() return not lock:held() end)
      if i % 2 == 0 then fails_as("lost", lock:refresh()) end
      assert.equal(lock, lock:acquire())
      keeping.throughout(0.4, function() assert.is_true(lock:held()) end)
      assert.is_true(is_taken(lock))
    end
    assert.is_true(lock:release())
    assert.is_nil(record(lock))
  end)

  -- The caller has waited its time for a refresh that the keeper does afterwards.
  it("that a late answer brings is told by the next call", function()
    local lock = held_lock { ttl = 6 }
    assert.is_true(lock:refresh())
    local blocker = held_lock { ttl = 1.2 }
    relay:pause("up")
    support.eventually(function() return relay:wait_held(0.01) end) -- the blocker's renewal
    support.sleep(0.1)
    truth:delete(keeping.key(lock:name()))
    local refused = { lock:refresh() }
    assert.equal("timeout", refused[3])
    relay:resume("up")
    support.eventually(function() return not lock:held() end, 3)
    fails_as("lost", lock:refresh())
    fails_as("not_held", lock:refresh())
    blocker:release()
  end)
end)

-- As in a host that allows itself no more threads. Here no thread fits: its stack would be larger
-- than all memory that the program may have.
it("without a thread to be had takes nothing, however long it waits", function()
  if keeping.is_sanitized() then return pending "a sanitizer needs more memory than that" end
  local name = support.name()
  local result = support.run_lua {
    prefix = "prlimit --stack=4294967296 --as=2147483648",
    code = [[
      local client = require "memlock".client(arg[1])
      local lock, message, code = client:lock(arg[2], { auto_refresh = true }):acquire(0.5)
      print(lock, code, message)
      print((assert(client:lock(arg[2] .. "-plain"):acquire()):held()))
    ]], server.address, name }
  assert.same({ 0, "" }, { result.code, result.err }, tostring(result))
  local refusal, plain = result.out:match "^(.-)\n(.-)\n$"
  assert.truthy(refusal:find("^nil\trefused\tno thread to renew in the background"), refusal)
  assert.equal("true", plain)
  assert.is_nil(truth:get("#" .. keeping.key(name))) -- not even a token
end)
