--- acquire(wait): when it tries, when it gives up, and what many waiters cost a server.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local full = os.getenv("FULL") == "1"

local function client(options)
  return memlock.client(server.address, options)
end

local holders = {} -- kept here, since a lock that is collected is released

after_each(function()
  holders = {}
end)

-- A lock that somebody else holds until the test is over: its name, and the holder.
local function held()
  local holder = client { label = "the holder" }:lock(support.name(), { ttl = 60 })
  assert(holder:acquire())
  holders[#holders + 1] = holder
  return holder:name(), holder
end

-- Attempts that a server has seen: each counts the fence up once.
local function tries(raw)
  local stats = raw:stats()
  return math.tointeger(tonumber(stats.incr_hits)) + math.tointeger(tonumber(stats.incr_misses))
end

-- A client whose pauses are noted: { seconds, when it began }.
local function noting(options, sleep)
  local pauses = {}
  options.sleep = function(seconds)
    pauses[#pauses + 1] = { seconds, support.now() }
    return (sleep or support.sleep)(seconds)
  end
  return client(options), pauses
end

describe("a wait", function()
  it("begins with a try at once", function()
    for _, wait in ipairs { 0, 0.25, 3, math.huge } do
      local waiter, pauses = noting {}
      local took, lock = support.elapsed(function()
        return waiter:lock(support.name()):acquire(wait)
      end)
      assert.is_true(lock and lock:held())
      assert.is_true(took < support.slack(0.1), took)
      assert.same({}, pauses)
    end
  end)

  it("of 0 is one try", function()
    local name = held()
    local raw = server:raw()
    for _, arguments in ipairs { { n = 0 }, { n = 1, 0 }, { n = 1 } } do
      local waiter, pauses = noting {}
      local before = tries(raw)
      local took, lock, message, code = support.elapsed(function()
        return waiter:lock(name):acquire(table.unpack(arguments, 1, arguments.n))
      end)
      assert.same({ nil, "held" }, { lock, code })
      assert.truthy(message:find(name, 1, true) and message:find("the holder", 1, true), message)
      assert.is_true(took < support.slack(0.1), took)
      assert.same({}, pauses)
      assert.equal(1, tries(raw) - before)
      assert.equal(1, waiter:stats().attempts)
      assert.equal(1, waiter:stats().contended)
    end
  end)

  it("may be the lock's own, or its client's", function()
    local name = held()
    for _, lock in ipairs {
      client():lock(name, { wait = 0.1 }), client { wait = 0.1 }:lock(name),
      client { wait = 5 }:lock(name, { wait = 0.1 }),
    } do
      local took, _, _, code = support.elapsed(lock.acquire, lock)
      assert.equal("held", code)
      assert.is_true(took >= 0.1 and took < 0.1 + support.slack(0.1), took)
    end
    local patient = client { wait = 5 }:lock(name)
    assert.is_true(support.elapsed(patient.acquire, patient, 0) < support.slack(0.1))
  end)

  it("of a quarter of a second takes that, and no more than a little longer", function()
    local name = held()
    local lock = client():lock(name)
    for _ = 1, support.count(20) do
      local took, got, _, code = support.elapsed(lock.acquire, lock, 0.25)
      assert.same({ nil, "held" }, { got, code })
      assert.is_true(took >= 0.25 and took < 0.25 + support.slack(0.1), took)
    end
  end)

  it("never pauses for longer than what is left, and tries once more at the end", function()
    local name = held()
    local waiter, pauses = noting {}
    local raw = server:raw()
    local before, start = tries(raw), support.now()
    local lock, _, code = waiter:lock(name):acquire(0.6)
    local deadline = support.now()
    assert.same({ nil, "held" }, { lock, code })
    assert.is_true(#pauses >= 3)
    for _, pause in ipairs(pauses) do
      assert.is_true(pause[1] > 0 and pause[2] + pause[1] <= deadline + 0.001)
      assert.is_true(pause[1] <= start + 0.6 - pause[2] + support.slack(0.05))
    end
    assert.equal(#pauses + 1, tries(raw) - before)
  end)

  it("gets a lock that became free during its last pause, however long that was", function()
    local name, holder = held()
    local waiter = client { sleep = function()
      support.sleep(0.3) -- the host overslept
      holder:release()
    end }
    local lock = waiter:lock(name)
    assert.equal(lock, lock:acquire(0.1))
    assert.is_true(lock:held())
    assert.equal(2, waiter:stats().attempts)
  end)

  it("goes on when sleep returns early", function()
    local name = held()
    local waiter, pauses = noting({}, function() end)
    local took, lock, _, code = support.elapsed(function()
      return waiter:lock(name):acquire(0.1)
    end)
    assert.same({ nil, "held" }, { lock, code })
    assert.is_true(took >= 0.1 and took < 0.1 + support.slack(0.05), took)
    assert.is_true(#pauses > 3)
  end)

  it("without an end ends with the lock", function()
    local name, holder = held()
    local waiter = support.child(function()
      local lock = client():lock(name)
      assert(lock:acquire(math.huge) == lock)
      return support.now()
    end)
    support.sleep(0.4)
    assert.is_true(waiter:alive())
    local released = support.now()
    assert(holder:release())
    local got = waiter:join()
    assert.is_true(got >= released and got <= released + 0.25 + support.slack(0.05))
  end)

  it("refuses what is no time", function()
    local lock = client():lock(support.name())
    for _, wait in ipairs { -1, 0 / 0, "1", {}, false } do
      assert.has_error(function() lock:acquire(wait) end)
    end
    assert.is_false((lock:held()))
  end)

  it("ends at once when this very object holds the lock", function()
    local lock = client():lock(support.name())
    assert(lock:acquire())
    local took, got, _, code = support.elapsed(lock.acquire, lock, 5)
    assert.same({ nil, "held" }, { got, code })
    assert.is_true(took < support.slack(0.1))
    assert.is_true(lock:held())
  end)

  it("ends when its client is closed", function()
    local name = held()
    local waiter
    waiter = client { sleep = function() waiter:close() end }
    local lock = waiter:lock(name)
    local got, message, code = lock:acquire(5)
    assert.same({ nil, "closed" }, { got, code })
    assert.is_string(message)
    assert.same({ nil, "closed" }, { (lock:acquire()), select(3, lock:acquire()) })
  end)
end)

describe("retry_min and retry_max", function()
  -- The pauses of a wait, without the last, which the deadline cuts.
  local function pauses_with(options)
    local name = held()
    local waiter, pauses = noting(options)
    waiter:lock(name):acquire(0.3)
    pauses[#pauses] = nil
    return pauses
  end

  it("bound the pauses", function()
    for _, pause in ipairs(pauses_with { retry_min = 0.1 }) do
      assert.is_true(pause[1] >= 0.1)
    end
    local short = pauses_with { retry_max = 0.005 }
    assert.is_true(#short > 20)
    for _, pause in ipairs(short) do assert.is_true(pause[1] <= 0.005) end
    local same = pauses_with { retry_min = 0.05, retry_max = 0.05 }
    assert.is_true(#same >= 3 and #same <= 6, #same)
    for _, pause in ipairs(same) do assert.is_true(math.abs(pause[1] - 0.05) < 1e-6) end
  end)

  it("differ from pause to pause otherwise: waiters do not move in step", function()
    local seen, count = {}, 0
    for _, pause in ipairs(pauses_with {}) do
      if not seen[pause[1]] then count = count + 1 end
      seen[pause[1]] = true
    end
    assert.is_true(count >= 3)
  end)

  it("leave the pauses their chance, unless they are the same", function()
    for _, options in ipairs { { retry_min = 0.02 }, { retry_max = 0.005 },
      { retry_min = 0.02, retry_max = 0.03 } } do
      local least, most = options.retry_min or 0, options.retry_max or math.huge
      local pauses = pauses_with(options)
      local seen, count = {}, 0
      for _, pause in ipairs(pauses) do
        assert.is_true(pause[1] >= least and pause[1] <= most, pause[1])
        if not seen[pause[1]] then count = count + 1 end
        seen[pause[1]] = true
      end
      assert.is_true(#pauses >= 3, #pauses)
      assert.is_true(count > #pauses * 0.9, count)
    end
  end)

  it("refuse to be the wrong way round", function()
    assert.has_error(function() client { retry_min = 1, retry_max = 0.5 } end)
  end)
end)

it("a lock released after one second is had soon after, every time", function()
  local at_once = 10
  for _ = 1, support.count(100) // at_once do
    local released, waiters = {}, {}
    holders = {}
    for i = 1, at_once do
      local name = held()
      waiters[i] = support.child(function(channel)
        local lock = client():lock(name)
        channel:send("waiting")
        local got, message = lock:acquire(3)
        return got == lock and support.now(), message
      end)
    end
    for _, waiter in ipairs(waiters) do waiter:receive() end
    support.sleep(1)
    for i, holder in ipairs(holders) do
      released[i] = support.now()
      assert(holder:release())
    end
    for i, waiter in ipairs(waiters) do
      local got, message = waiter:join()
      assert.is_truthy(got, message)
      local after = got - released[i]
      assert.is_true(after >= 0 and after <= 0.25 + support.slack(0.05), after)
    end
  end
end)

it("a lock whose holder died is had when its record has run out", function()
  local holder = support.child(function(channel, name)
    local start = support.now()
    local lock = client():lock(name, { ttl = 0.2 })
    assert(lock:acquire())
    channel:send(name, start)
    support.sleep(60)
  end, support.name())
  local name, start = holder:receive()
  holder:kill("KILL")
  holder:wait()
  local lock = client():lock(name)
  assert(lock:acquire(6))
  local after = support.now() - start
  -- Never before the lease is over; a record lives for some three seconds longer.
  assert.is_true(after >= 0.2 and after <= 3.25 + support.slack(0.05), after)
end)

describe("a server that", function()
  local timeout = 0.5

  local function wait_for(address, seconds)
    local waiter = memlock.client(address, { timeout = timeout })
    local took, lock, message, code = support.elapsed(function()
      return waiter:lock(support.name()):acquire(seconds)
    end)
    assert.is_nil(lock)
    assert.is_true(took >= seconds and took <= seconds + support.slack(1.2 * timeout), took)
    return code, message, waiter:stats()
  end

  it("is down all the time is unreachable when the wait is over, not before", function()
    local address = support.refusing()
    local code, message, stats = wait_for(address, 2)
    assert.equal("unreachable", code)
    assert.truthy(message:find(address, 1, true), message)
    assert.is_true(stats.attempts >= 4)
    assert.is_true(stats.attempts <= 2 / 0.006)
    assert.equal(stats.attempts, stats.errors)
  end)

  it("never answers is a timeout when the wait is over", function()
    assert.equal("timeout", (wait_for(support.silent().address, 0.6)))
  end)

  it("goes away in the middle of a wait is what the wait reports, not `held`", function()
    local own = support.memcached()
    local name = support.name()
    assert(memlock.client(own.address):lock(name):acquire())
    local waiter
    waiter = memlock.client(own.address, { timeout = timeout, sleep = function(seconds)
      if waiter:stats().attempts == 3 then own:kill() end
      support.sleep(seconds)
    end })
    local _, _, code = waiter:lock(name):acquire(0.6)
    assert.equal("unreachable", code)
  end)

  for how, stop in pairs { killed = "kill", stopped = "stop_process" } do
    it("comes back after a second gives the lock: " .. how, function()
      local own = support.memcached()
      local name = support.name()
      own[stop](own)
      local waiter = support.child(function(channel)
        local lock = memlock.client(own.address, { timeout = timeout }):lock(name)
        channel:send("waiting")
        assert(lock:acquire(5) == lock)
        local got = support.now()
        assert(lock:verify())
        channel:send(got, lock:token())
        channel:receive()
        assert(lock:release())
      end)
      waiter:receive()
      support.sleep(1)
      if how == "killed" then own:restart() else own:continue_process() end
      local back = support.now()
      local got = waiter:receive()
      assert.is_true(got <= back + 0.25 + support.slack(0.1), got - back)
      -- Many attempts were in doubt; exactly one record stands, and it goes with its release.
      local other = memlock.client(own.address)
      assert.equal("held", select(3, other:lock(name):acquire()))
      waiter:send("release")
      waiter:join()
      assert.is_false(other:holder(name))
    end)
  end
end)

describe("many waiters", function()
  -- Waits are steps of coroutines here, so that one process can have hundreds: a sleep that yields
  -- the seconds, and this, which resumes whoever is due.
  local function run_all(waits, deadline)
    local due = {}
    for co in pairs(waits) do due[co] = support.now() + waits[co] end
    while support.now() < deadline do
      local now = support.now()
      for co, at in pairs(due) do
        if at <= now then
          local ok, seconds = coroutine.resume(co)
          assert(ok, seconds)
          due[co] = coroutine.status(co) ~= "dead" and support.now() + seconds or nil
        end
      end
      support.sleep(0.001)
    end
  end

  -- `processes` children with `each` waiters in them, that begin within a second and go on for
  -- `seconds`. They take turns at one lock, which each holds for `hold` seconds; or, when somebody
  -- else has it all the time, they only wait.
  -- @return attempts in the worst second, without the one in which they came; acquisitions
  local function load(name, processes, each, seconds, hold)
    local children = {}
    for i = 1, processes do
      children[i] = support.child(function(channel)
        local own = client { sleep = coroutine.yield }
        local function wait_again_and_again(lock)
          while true do
            assert(lock:acquire(math.huge) == lock)
            coroutine.yield(hold)
            assert(lock:release())
          end
        end
        local waits = {}
        for n = 1, each do
          local lock = own:lock(name, { ttl = 30 })
          waits[coroutine.create(function() wait_again_and_again(lock) end)] =
            (n - i / processes) / each
        end
        channel:send("ready")
        run_all(waits, channel:receive(60))
        return own:stats().acquired, own:stats().errors
      end)
    end
    for _, child in ipairs(children) do child:receive(60) end
    local raw = server:raw()
    local start = support.now() + 0.1
    for _, child in ipairs(children) do child:send(start + seconds) end
    local rates, before, at = {}, tries(raw), support.now()
    while support.now() < start + seconds - 1 do
      support.sleep(1)
      local now, count = support.now(), tries(raw)
      rates[#rates + 1] = (count - before) / (now - at)
      before, at = count, now
    end
    local first = table.remove(rates, 1)
    local worst = math.max(table.unpack(rates))
    local acquired = 0
    for _, child in ipairs(children) do
      local count, errors = child:join(60)
      assert.equal(0, errors)
      acquired = acquired + count
    end
    if os.getenv("FIGURES") then
      io.stderr:write(("%d x %d waiters: at most %.0f tries/s (%.0f when they came), %.1f acq/s\n")
        :format(processes, each, worst, first, acquired / seconds))
    end
    return worst, acquired
  end

  it("of a lock held for long ask some ten times a second each", function()
    local name, holder = held()
    local rate, acquired = load(name, 16, 1, full and 20 or 2.1, 0.005)
    assert.equal(0, acquired)
    assert.is_true(rate / 16 <= 11, rate)
    assert.is_true(rate / 16 >= 1, rate) -- and do not fall asleep
    assert.is_true(holder:held())
  end)

  for _, case in ipairs { { 64, 1 }, { 8, 125 } } do
    local processes, each = table.unpack(case)
    it(("of all %d stay under 2,000 tries a second together"):format(processes * each), function()
      local rate, acquired = load(support.name(), processes, each, full and 15 or 2.6, 0.005)
      assert.is_true(acquired >= 100, acquired)
      assert.is_true(rate <= 2000, rate)
    end)
  end

  it("of all 1,000 stay under that, too, when nothing moves", function()
    local rate, acquired = load((held()), 8, 125, full and 15 or 3, 0.005)
    assert.equal(0, acquired)
    assert.is_true(rate <= 2000, rate)
  end)
end)
