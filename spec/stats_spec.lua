--- The counters of a client, each after a known sequence.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local raw = server:raw()

local function key_of(lock) return "memlock:" .. lock:name() end

-- The counters that are not 0; round_trips and the times have tests of their own.
local function counts(client)
  local stats = client:stats()
  stats.round_trips, stats.waited, stats.longest_delay = nil, nil, nil
  for name, count in pairs(stats) do
    assert.equal("integer", math.type(count), name)
    if count == 0 then stats[name] = nil end
  end
  return stats
end

it("a new client has all counters, all of them 0", function()
  local client = memlock.client(server.address)
  assert.same({ attempts = 0, acquired = 0, contended = 0, refreshed = 0, lost = 0, released = 0,
    errors = 0, round_trips = 0, waited = 0, passes = 0, renewals = 0, failures = 0, losses = 0,
    longest_delay = 0 }, client:stats())
  client:lock(support.name())
  assert.same({}, counts(client))
  assert.equal("float", math.type(client:stats().waited))
end)

it("stats is a table of the caller's", function()
  local client = memlock.client(server.address)
  local one = client:stats()
  one.attempts = 17
  assert.are_not.equal(one, client:stats())
  assert.equal(0, client:stats().attempts)
end)

it("each counter counts what it is named after", function()
  local client = memlock.client(server.address)
  local other = memlock.client(server.address)
  local lock = client:lock(support.name())
  local same = other:lock(lock:name())

  assert(lock:acquire())
  assert.same({ attempts = 1, acquired = 1 }, counts(client))
  assert.equal("held", select(3, same:acquire()))
  assert.equal("held", select(3, same:acquire()))
  assert.same({ attempts = 2, contended = 2 }, counts(other))
  for _ = 1, 3 do assert(lock:refresh()) end
  assert.same({ attempts = 1, acquired = 1, refreshed = 3 }, counts(client))
  assert(lock:verify())
  assert(lock:holder())
  assert(lock:held())
  assert(client:holder(lock:name()))
  assert.same({ attempts = 1, acquired = 1, refreshed = 3 }, counts(client))
  assert(lock:release())
  assert.same({ attempts = 1, acquired = 1, refreshed = 3, released = 1 }, counts(client))
  assert.equal("not_held", select(3, lock:release()))
  assert.equal("not_held", select(3, lock:refresh()))
  assert.equal("not_held", select(3, lock:verify()))
  assert.same({ attempts = 1, acquired = 1, refreshed = 3, released = 1 }, counts(client))
  assert(same:acquire())
  assert.same({ attempts = 3, contended = 2, acquired = 1 }, counts(other))
  assert(same:release())
  client:close()
  other:close()
end)

it("each loss is counted once, by whichever call notices it", function()
  local client = memlock.client(server.address)
  for i, method in ipairs { "refresh", "verify", "release" } do
    local lock = assert(client:lock(support.name()):acquire())
    assert.is_true(raw:delete(key_of(lock)))
    assert.equal("lost", select(3, lock[method](lock)))
    assert.equal(i, client:stats().lost)
    assert.equal("not_held", select(3, lock:refresh()))
    assert.equal("not_held", select(3, lock:release()))
    assert.equal(i, client:stats().lost)
  end
  local late = assert(client:lock(support.name(), { ttl = 0.05 }):acquire())
  support.sleep(0.06)
  assert.is_false((late:held()))
  assert.equal(3, client:stats().lost) -- nobody was told yet
  assert.equal("lost", select(3, late:refresh()))
  assert.equal(4, client:stats().lost)
  assert.same({ attempts = 4, acquired = 4, lost = 4 }, counts(client))
  client:close()
end)

it("a loss is counted that acquire finds, and is otherwise silent about", function()
  local client = memlock.client(server.address)
  local lock = assert(client:lock(support.name(), { ttl = 0.05 }):acquire())
  support.sleep(0.06)
  assert.equal(lock, lock:acquire())
  assert.same({ attempts = 2, acquired = 2, lost = 1 }, counts(client))
  support.sleep(0.06)
  assert.is_true(raw:set(key_of(lock), "somebody else", 60))
  assert.equal("held", select(3, lock:acquire()))
  assert.equal("held", select(3, lock:acquire()))
  assert.equal(2, client:stats().lost)
  client:close()

  local renewing = memlock.client(server.address)
  local kept = renewing:lock(support.name(), { ttl = 0.3, auto_refresh = true })
  assert(kept:acquire())
  raw:delete(key_of(kept))
  support.eventually(function() return not kept:held() end)
  assert.equal(0, renewing:stats().lost)
  assert.equal(kept, kept:acquire())
  assert.equal(1, renewing:stats().lost)
  assert.is_true(kept:release())
  assert.equal(1, renewing:stats().lost)
  renewing:close()
end)

it("errors are counted: timeout, unreachable, refused and unsupported, and nothing else", function()
  local dead = memlock.client(support.refusing())
  local lock = dead:lock(support.name())
  assert.equal("unreachable", select(3, lock:acquire()))
  assert.equal("unreachable", select(3, lock:holder()))
  assert.equal("unreachable", select(3, dead:break_lock(lock:name(), { value = "x" })))
  assert.equal("unreachable", select(3, dead:update(lock:name(), function() return "x" end)))
  assert.same({ attempts = 1, errors = 4 }, counts(dead))

  local silent = memlock.client(support.silent().address, { timeout = 0.05 })
  assert.equal("timeout", select(3, silent:lock(support.name()):acquire()))
  assert.same({ attempts = 1, errors = 1 }, counts(silent))

  local without = memlock.client(support.memcached({ args = { "-C" } }).address)
  assert.equal("unsupported", select(3, without:lock(support.name()):acquire()))
  assert.same({ attempts = 1, errors = 1 }, counts(without))
  without:close()

  local fine = memlock.client(server.address)
  assert.equal("not_held", select(3, fine:lock(support.name()):release()))
  assert.has_error(function() fine:lock("a b") end)
  assert.same({}, counts(fine))
  fine:close()
  assert.equal("closed", select(3, fine:holder(support.name())))
  assert.same({}, counts(fine))
end)

it("a wait counts each of its attempts, and the time of its pauses", function()
  local name = support.name()
  local holder = memlock.client(server.address)
  assert(holder:lock(name):acquire())
  local slept, calls = 0, 0
  local client = memlock.client(server.address, { sleep = function(seconds)
    slept, calls = slept + seconds, calls + 1
    support.sleep(seconds)
  end })
  assert.equal("held", select(3, client:lock(name):acquire(0.3)))
  local stats = client:stats()
  assert.is_true(calls > 0)
  assert.equal(calls + 1, stats.attempts)
  assert.equal(calls + 1, stats.contended)
  assert.is_true(math.abs(stats.waited - slept) < 1e-6, stats.waited)
  assert.is_true(stats.waited > 0 and stats.waited <= 0.3, stats.waited)
  assert.equal(0, holder:stats().waited)
  assert.equal("held", select(3, client:lock(name):acquire()))
  assert.equal(stats.waited, client:stats().waited) -- one try does not wait
  client:close()
  holder:close()
end)

it("with counts as what it does", function()
  local client = memlock.client(server.address)
  local lock = client:lock(support.name())
  assert(lock:with(function() assert(lock:refresh()) end))
  assert.is_false((pcall(lock.with, lock, error)))
  assert.same({ attempts = 2, acquired = 2, refreshed = 1, released = 2 }, counts(client))
  client:close()
end)

it("update does not count as an attempt", function()
  local client = memlock.client(server.address)
  assert(client:update(support.name(), function() return "x" end, { ttl = 10 }))
  assert.same({}, counts(client))
  client:close()
end)

it("close counts the locks that it gives up, and the counters stay", function()
  local client = memlock.client(server.address)
  for _ = 1, 5 do assert(client:lock(support.name()):acquire()) end
  local used = assert(client:lock(support.name()):acquire())
  assert(used:release())
  client:close()
  assert.same({ attempts = 6, acquired = 6, released = 6 }, counts(client))
  client:close()
  assert.same({ attempts = 6, acquired = 6, released = 6 }, counts(client))
end)

describe("round_trips", function()
  local relay, client

  -- Runs fn, and compares what the client counts with what the network saw.
  local function compare(fn)
    relay:reset()
    local before = client:stats().round_trips
    fn()
    local seen = relay:round_trips()
    assert.equal(seen, client:stats().round_trips - before)
    return seen
  end

  before_each(function()
    relay = support.relay(server)
    client = memlock.client(relay.address)
  end)

  after_each(function() client:close() end)

  it("are those of the network, for every operation", function()
    local lock = client:lock(support.name())
    local busy = assert(memlock.client(server.address):lock(support.name()):acquire())
    local theirs = client:lock(busy:name())
    assert.equal(1, compare(function() assert(lock:acquire()) end))
    assert.equal(1, compare(function() assert(lock:refresh()) end))
    assert.equal(1, compare(function() assert(lock:verify()) end))
    assert.equal(1, compare(function() assert(lock:holder()) end))
    assert.equal(1, compare(function() assert(not theirs:acquire()) end))
    assert.equal(1, compare(function() assert(client:holder(busy:name())) end))
    assert.equal(1, compare(function() assert(lock:release()) end))
    assert.equal(0, compare(function() lock:release() lock:refresh() lock:held() end))
    compare(function() assert(client:holder(lock:name()) == false) end)
    compare(function() assert(not client:break_lock(busy:name(), { value = "x" })) end)
    compare(function() client:break_lock(busy:name(), client:holder(busy:name())) end)
    compare(function() client:update(support.name(), function() return "x" end) end)
    compare(function() client:update(support.name(), function() end) end)
  end)

  it("are those of the network, when a lock was lost or ran out", function()
    for _, method in ipairs { "refresh", "verify", "release" } do
      local lock = assert(client:lock(support.name()):acquire())
      raw:delete(key_of(lock))
      compare(function() assert(not lock[method](lock)) end)
      local taken = assert(client:lock(support.name()):acquire())
      raw:set(key_of(taken), "somebody else")
      compare(function() assert(not taken[method](taken)) end)
    end
    local late = assert(client:lock(support.name(), { ttl = 0.03 }):acquire())
    support.sleep(0.04)
    compare(function() assert(not late:refresh()) end)
  end)

  it("are those of the network, in long runs of mixed operations", function()
    local lock = client:lock(support.name(), { wait = 1 })
    compare(function()
      for i = 1, support.count(1000) do
        assert(lock:acquire())
        if i % 2 == 0 then assert(lock:refresh()) end
        if i % 3 == 0 then assert(lock:holder()) end
        assert(lock:release())
      end
    end)
  end)

  it("are those of the network, with a proxy between", function()
    local client_of = client
    client = memlock.client(relay.address, { proxy = true })
    local lock = client:lock(support.name())
    compare(function() assert(lock:acquire()) end)
    compare(function() assert(lock:refresh()) end)
    compare(function() assert(lock:release()) end)
    client:close()
    client = client_of
  end)

  it("go on counting over new connections", function()
    local lock = client:lock(support.name())
    assert(lock:acquire())
    for _ = 1, 3 do
      local before = client:stats().round_trips
      relay:cut()
      assert(lock:refresh())
      assert.is_true(client:stats().round_trips > before)
    end
    local before = client:stats().round_trips
    client:close()
    assert.is_true(client:stats().round_trips >= before)
  end)
end)
