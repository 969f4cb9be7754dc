--- The keeper as the writer of locks: what it sends, for how long, and what it sends no more.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local memlock = require "memlock"

local posix = support.posix
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

-- Lets the keeper renew `lock` at least once from now.
local function renewed(what)
  local before = (what or client):stats().renewals
  support.eventually(function() return (what or client):stats().renewals > before end)
end

local function fails_as(code, ...)
  assert.same({ nil, code }, { (...), (select(3, ...)) }, tostring((select(2, ...))))
end

--------------------------------------------------------------------------------
-- For how long

describe("max_hold", function()
  it("ends the renewal, and with the last lease the lock", function()
    local start = support.now()
    local lock = held_lock { ttl = 0.6, max_hold = 1 }
    support.eventually(function() return not lock:held() end)
    local took = support.now() - start
    assert.is_true(took >= 1, took)
    assert.is_true(took < 1.6 + support.slack(0.05), took)
    relay:record()
    support.sleep(0.4)
    assert.equal("", relay:sent())
    fails_as("lost", lock:release())
    assert.equal(lock, lock:acquire()) -- and counts anew
    keeping.throughout(0.9, function() assert.is_true(lock:held()) end)
    assert.is_true(lock:release())
  end)

  it("does not touch a lock that is released before", function()
    local lock = held_lock { ttl = 0.3, max_hold = 0.2 }
    support.sleep(0.1)
    assert.is_true(lock:release())
    support.sleep(0.4)
    fails_as("not_held", lock:release())
    assert.equal(0, client:stats().losses)
  end)

  it("shorter than an interval means that nothing is ever renewed", function()
    relay:record()
    local lock = held_lock { ttl = 0.6, max_hold = 0.05 }
    support.eventually(function() return not lock:held() end)
    assert.equal(1, #keeping.writes(relay))
  end)
end)

describe("refresh with a shorter ttl", function()
  -- While held() is true, the record must be there, and live for as long as held() says.
  local function check(lock, id, longest)
    local held, left = lock:held()
    if not held then return false end
    assert.is_true(left <= longest, left)
    assert.equal(id, keeping.id(record(lock)))
    assert.is_true(truth:ttl(keeping.key(lock:name())) >= left - 1)
    return true
  end

  it("over a slow link: held() ends in time", function()
    local lock = held_lock { ttl = 30 }
    assert.is_true(lock:refresh())
    local id = keeping.id(record(lock))
    relay:delay("both", 0.8)
    local start = support.now()
    fails_as("timeout", lock:refresh(1))
    while check(lock, id, 1) do support.sleep(0.01) end
    local took = support.now() - start
    assert.is_true(took < 1 + support.slack(0.05), took)
  end)

  for _, first in ipairs { "longer", "shorter" } do
    it("holds, also when the " .. first .. " write is the one that comes late", function()
      local lock = held_lock { ttl = 30 }
      assert.is_true(lock:refresh())
      local id = keeping.id(record(lock))
      relay:hold_up("cas")
      if first == "longer" then
        fails_as("timeout", lock:refresh(30)) -- this one waits in the relay
        relay:record()
        assert.is_true(lock:refresh(1))
      else
        fails_as("timeout", lock:refresh(1))
      end
      check(lock, id, 1)
      relay:resume("up")
      keeping.throughout(1.5, function() check(lock, id, 1) end)
      assert.is_true(lock:held()) -- since it was renewed with the new ttl
      relay:pause("both")
      local took = support.elapsed(function()
        support.eventually(function() return not check(lock, id, 1) end)
      end)
      assert.is_true(took < 1 + support.slack(0.05), took)
      support.eventually(function() return client:stats().losses == 1 end, 1)
    end)
  end

  it("that failed is made good, and if it cannot be the loss is noticed in time", function()
    local lock = held_lock { ttl = 60 }
    assert.is_true(lock:refresh())
    relay:pause("up")
    fails_as("timeout", lock:refresh(1.5))
    relay:resume("up")
    keeping.throughout(2, function() assert.is_true(lock:held()) end)
    relay:pause("up")
    local start = support.now()
    fails_as("timeout", lock:refresh(0.9))
    support.eventually(function() return client:stats().losses == 1 end)
    local took = support.now() - start
    -- A renewal that was under way, for a timeout at most, goes first.
    assert.is_true(took < 0.9 + 0.5 + support.slack(0.1), took)
  end)
end)

describe("refresh with a longer ttl that failed", function()
  it("leaves the renewal as it was, and the lock held", function()
    local own = memlock.client(relay.address, { timeout = 0.2 })
    local lock = assert(own:lock(support.name(), { ttl = 1, auto_refresh = true }):acquire())
    renewed(own)
    relay:pause("both")
    fails_as("timeout", lock:refresh(60))
    relay:plain()
    relay:cut()
    keeping.throughout(1.5, function()
      local held, left = lock:held()
      assert.is_true(held and left <= 1, left)
    end)
    assert.is_true(lock:refresh(60)) -- and one that succeeds is the rule from then on
    assert.is_true(select(2, lock:held()) > 1)
    assert.is_true(lock:release())
    own:close()
  end)
end)

--------------------------------------------------------------------------------
-- One writer

describe("one writer:", function()
  it("the program's connection releases what was never renewed, in one round trip", function()
    local lock = held_lock { ttl = 30 }
    relay:reset()
    relay:record()
    assert.is_true(lock:release())
    assert.equal(1, relay:round_trips())
    local writes = keeping.writes(relay)
    assert.same({ 1, 1, "cas", "" },
      { #writes, writes[1].connection, writes[1].verb, writes[1].value })
    assert.is_nil(record(lock))
  end)

  it("the keeper's refreshes and releases from the first renewal on, in one each", function()
    local lock = held_lock { ttl = 0.9 }
    renewed()
    relay:reset()
    relay:record()
    assert.is_true(lock:refresh())
    assert.is_true(lock:refresh(30))
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    assert.equal(4, relay:round_trips())
    for _, piece in ipairs(relay:log()) do assert.equal(2, piece.connection) end
    assert.same({ 30 * 1001 // 1000 + 3, 2592001 }, {
      keeping.writes(relay)[2].expiry, keeping.writes(relay)[3].expiry })
    assert.is_nil(record(lock))
  end)

  it("the keeper's refreshes even before, and then all else", function()
    local lock = held_lock { ttl = 30 }
    assert.is_true(lock:refresh())
    relay:reset()
    relay:record()
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    assert.equal(2, relay:round_trips())
    for _, piece in ipairs(relay:log()) do assert.equal(2, piece.connection) end
  end)

  it("what is asked for goes ahead of what is merely due", function()
    local locks = {}
    for i = 1, 50 do locks[i] = held_lock { ttl = 0.3 } end
    support.eventually(function() return client:stats().renewals >= 50 end)
    relay:delay("both", 0.01) -- now renewals are always under way
    support.sleep(0.05)
    for _ = 1, 10 do
      local took = support.elapsed(function() assert.is_true(locks[1]:refresh()) end)
      assert.is_true(took < support.slack(0.07), took) -- one flight that goes on, and its own
    end
    relay:plain()
    for _, lock in ipairs(locks) do lock:release() end
  end)

  it("each write has a seq of its own, whoever made it", function()
    relay:record()
    local lock = held_lock { ttl = 0.09 }
    for _ = 1, 10 do
      support.sleep(0.05)
      lock:refresh()
      lock:release()
      lock:acquire(1)
    end
    lock:release()
    local seen = {}
    for _, write in ipairs(keeping.writes(relay)) do
      if write.id then
        local seq = write.value:match("^memlock/1 (%S+ %d+)")
        assert.is_nil(seen[seq])
        seen[seq] = true
      end
    end
  end)
end)

describe("release", function()
  it("in doubt: held() is false at once and stays so, and a second one finishes it", function()
    for _, side in ipairs { "up", "down" } do
      local lock = held_lock { ttl = 3 }
      assert.is_true(lock:refresh())
      relay:pause(side)
      fails_as("timeout", lock:release())
      assert.same({ false, 0 }, { lock:held() })
      if side == "up" then assert.truthy(record(lock)) end
      relay:resume(side)
      keeping.throughout(0.1, function() assert.is_false((lock:held())) end)
      assert.is_true(lock:release())
      assert.is_nil(record(lock))
      fails_as("not_held", lock:release())
    end
  end)

  it("that nobody waited for happens all the same", function()
    local lock = held_lock { ttl = 30 }
    assert.is_true(lock:refresh())
    local blocker = held_lock { ttl = 1.2 }
    relay:pause("up")
    assert.is_true(relay:wait_held()) -- the blocker's renewal, after which the release has its turn
    fails_as("timeout", lock:release())
    relay:resume("up")
    support.eventually(function() return record(lock) == nil end, 1)
    blocker:release()
    assert.is_true(lock:acquire() == lock)
    keeping.throughout(1.2, function() assert.is_true(lock:held()) end)
    assert.is_true(lock:release())
  end)

  it("that said true leaves nothing to be sent", function()
    local lock = new_lock { ttl = 0.06 }
    relay:record()
    for _ = 1, support.count(200) do
      assert.equal(lock, lock:acquire(1))
      support.sleep(math.random() * 0.05)
      local outcome, message = lock:release()
      relay:reset()
      support.sleep(0.03)
      if outcome then assert.equal("", relay:sent(), message) end
    end
  end)
end)

describe("a lock that is collected while the server is out of reach", function()
  for _, writer in ipairs { "the program", "the keeper" } do
    it("is given up when it is back: written by " .. writer, function()
      local other = held_lock { ttl = 60 }
      local name = support.name()
      do
        local lock = assert(client:lock(name, { ttl = 30, auto_refresh = true }):acquire())
        if writer == "the keeper" then assert.is_true(lock:refresh()) end
        relay:refuse()
        relay:cut()
        support.eventually(function() return relay:stats().open == 0 end)
        support.sleep(0.05)
      end
      collectgarbage()
      collectgarbage()
      support.sleep(0.3) -- the first try at it is over
      assert.truthy((truth:get(keeping.key(name))))
      relay:accept()
      support.eventually(function()
        if writer == "the program" then other:holder() end -- whose next calls see to it
        return truth:get(keeping.key(name)) == nil
      end, support.slack(1.5))
      assert.is_true(other:release())
    end)
  end
end)

--------------------------------------------------------------------------------
-- Quiet

describe("a keeper", function()
  local function threads()
    local list = {}
    for task in require("lfs").dir("/proc/self/task") do
      if tonumber(task) then list[task] = true end
    end
    return list
  end

  local function switches(thread)
    local count = 0
    for line in io.lines(("/proc/self/task/%s/status"):format(thread)) do
      count = count + (tonumber(line:match("voluntary_ctxt_switches:%s+(%d+)")) or 0)
    end
    return count
  end

  it("sleeps while nothing is due", function()
    local before = threads()
    local lock = held_lock { ttl = 600 }
    local thread
    for task in pairs(threads()) do
      if not before[task] then
        assert.is_nil(thread, "more than one thread")
        thread = task
      end
    end
    assert.truthy(thread)
    assert.is_true(lock:refresh())
    for _ = 1, 2 do -- with a lock that is due much later, and with none
      support.sleep(0.05)
      local count = switches(thread)
      relay:reset()
      support.sleep(1)
      assert.is_true(switches(thread) - count <= 1, switches(thread) - count)
      assert.equal(0, relay:stats().up)
      lock:release()
    end
    client:close()
    assert.is_nil(threads()[thread])
  end)

  it("starts with the first lock that needs it, and is the only one", function()
    local function count()
      local n = 0
      for _ in pairs(threads()) do n = n + 1 end
      return n
    end
    local before = count()
    local plain = assert(client:lock(support.name()):acquire())
    local first, second = new_lock { ttl = 30 }, new_lock { ttl = 30 }
    assert.equal(before, count())
    first:acquire()
    second:acquire()
    assert.equal(before + 1, count())
    for _, lock in ipairs { plain, first, second } do assert.is_true(lock:release()) end
    client:close()
    assert.equal(before, count())
  end)

  it("counts what it does", function()
    local stats = client:stats()
    assert.same({ 0, 0, 0, 0, 0.0 }, { stats.passes, stats.renewals, stats.failures, stats.losses,
      stats.longest_delay })
    local locks = {}
    for i = 1, 20 do locks[i] = held_lock { ttl = 0.9 } end
    support.eventually(function() return client:stats().renewals >= 40 end)
    stats = client:stats()
    assert.is_true(stats.passes >= 2 and stats.passes <= 10, stats.passes)
    assert.is_true(stats.longest_delay < support.slack(0.05), stats.longest_delay)
    assert.is_true(stats.round_trips >= 20 + stats.passes)
    truth:delete(keeping.key(locks[1]:name()))
    support.eventually(function() return client:stats().losses == 1 end)
    relay:pause("up")
    support.eventually(function() return client:stats().failures > 0 end)
    relay:resume("up")
    for _, lock in ipairs(locks) do lock:release() end
    stats = client:stats()
    client:close()
    local last = client:stats()
    for _, name in ipairs { "passes", "renewals", "failures", "losses" } do
      assert.is_true(last[name] >= stats[name], name)
    end
  end)

  it("delivers no signals to itself", function()
    local lock = held_lock { ttl = 0.06 }
    posix.signal("USR1", "count")
    for _ = 1, 50 do
      posix.kill(posix.getpid(), "USR1")
      support.sleep(0.002)
    end
    assert.equal(50, posix.signal_count("USR1"))
    posix.signal("USR1", "default")
    assert.is_true(lock:held())
    assert.is_true(lock:release())
  end)
end)

it("options that mean nothing without auto_refresh are refused", function()
  for _, options in ipairs { { max_hold = 1 }, { on_lost = print },
    { auto_refresh = false, max_hold = 1 } } do
    assert.has_error(function() client:lock("x", options) end)
  end
  for _, bad in ipairs { 0, -1, 0 / 0, "1", true } do
    assert.has_error(function() client:lock("x", { auto_refresh = true, max_hold = bad }) end)
  end
  assert.has_error(function() client:lock("x", { auto_refresh = true, on_lost = 1 }) end)
  assert.has_error(function() client:lock("x", { auto_refresh = 1 }) end)
end)
