--- Many processes at one lock that ask again at once: nobody is left out. FIGURES=1 in the
--- environment prints what was measured.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local full = os.getenv("FULL") == "1"

-- Jain's index: 1 when all have the same, 1/n when one has it all.
local function jain(values)
  local sum, squares = 0, 0
  for _, value in ipairs(values) do
    sum = sum + value
    squares = squares + value * value
  end
  return sum * sum / (#values * squares)
end

local function median(values)
  table.sort(values)
  return values[(#values + 1) // 2]
end

-- `count` processes that take the lock `name` for `hold` seconds, again and again, until
-- `seconds` are over.
-- @return a list of `{ from =, to =, token =, process = }` in the order of their beginning, the
--   acquisitions of each process, and the longest wait, those that the end cut off included
local function compete(count, name, seconds, hold)
  local children = {}
  for i = 1, count do
    children[i] = support.child(function(channel)
      local client = memlock.client(server.address)
      local lock = client:lock(name, { ttl = 30 })
      channel:send("ready")
      local start, stop = channel:receive(60)
      support.sleep(start - support.now())
      local spans, longest = {}, 0
      while true do
        local asked = support.now()
        if asked >= stop then break end
        local got, message, code = lock:acquire(stop - asked)
        longest = math.max(longest, support.now() - asked)
        assert(got or code == "held", message)
        if not got then break end
        local from = support.now()
        support.sleep(hold)
        spans[#spans + 1] = { from = from, to = support.now(), token = lock:token(), process = i }
        assert(lock:release())
      end
      return spans, longest, client:stats().errors
    end)
  end
  for _, child in ipairs(children) do child:receive(60) end
  local start = support.now() + 0.2
  for _, child in ipairs(children) do child:send(start, start + seconds) end
  local all, of_each, longest = {}, {}, 0
  for i, child in ipairs(children) do
    local spans, wait, errors = child:join(seconds + 30)
    assert.equal(0, errors)
    table.move(spans, 1, #spans, #all + 1, all)
    of_each[i] = #spans
    longest = math.max(longest, wait)
  end
  table.sort(all, function(a, b) return a.from < b.from end)
  return all, of_each, longest
end

local function commands()
  local stats = server:raw():stats()
  local sum = 0
  for _, kind in ipairs { "cmd_get", "cmd_set", "incr_hits", "incr_misses" } do
    sum = sum + math.tointeger(tonumber(stats[kind]))
  end
  return sum
end

it("16 processes that ask again at once all get their share, one at a time", function()
  local seconds = full and 20 or 4
  local before = commands()
  local all, of_each, longest = compete(16, support.name(), seconds, 0.005)
  local least, most = math.min(table.unpack(of_each)), math.max(table.unpack(of_each))
  local figures = ("%.1f acq/s, Jain %.3f, %d to %d each, longest wait %.2f s, %.0f commands/s")
    :format(#all / seconds, jain(of_each), least, most, longest, (commands() - before) / seconds)
  if os.getenv("FIGURES") then io.stderr:write(figures, "\n") end

  for i = 2, #all do
    assert.is_true(all[i].from >= all[i - 1].to, "two at a time")
    assert.is_true(all[i].token > all[i - 1].token, "a token that does not grow")
  end
  assert.is_true(least > 0, figures)
  assert.is_true(longest <= 5, figures)
  -- In four seconds each gets some forty turns, which chance deals out less evenly.
  assert.is_true(jain(of_each) >= (full and 0.85 or 0.7), figures)
  assert.is_true(#all / seconds >= 200 / support.slack(1) / 1.5, figures)
end)

describe("courtesy", function()
  -- A lock whose pauses are noted, not slept; and another that competes with it.
  local function rivals()
    local name, pauses = support.name(), {}
    local client = memlock.client(server.address, { sleep = function(seconds)
      pauses[#pauses + 1] = seconds
      support.sleep(seconds)
    end })
    return client:lock(name), memlock.client(server.address):lock(name), pauses
  end

  -- One turn of `lock`; the other tries in vain meanwhile, if it is asked to.
  local function turn(lock, other, hold)
    if other then assert.is_nil((other:acquire())) end
    support.sleep(hold)
    assert(lock:release())
  end

  it("lets others go first after a release, for a quarter of the time that it was held", function()
    local lock, other, pauses = rivals()
    local longest, began = 0, support.now()
    assert(lock:acquire(5))
    for i = 1, 21 do
      turn(lock, other, 0.02)
      longest = math.max(longest, support.now() - began)
      if i == 1 then assert.same({}, pauses) end -- nobody had been seen when it was acquired
      began = support.now()
      assert(lock:acquire(5))
    end
    assert.is_true(#pauses >= 10 and #pauses <= 20, #pauses)
    for i, pause in ipairs(pauses) do
      assert.is_true(pause <= longest / 4, pause)
      for k = 1, i - 1 do assert.is_true(pause ~= pauses[k], "pauses in step") end
    end
  end)

  it("never makes a try without a wait pause, nor one that comes late anyway", function()
    local lock, other, pauses = rivals()
    assert(lock:acquire())
    for _ = 1, 10 do
      turn(lock, other, 0.01)
      assert(lock:acquire())
      assert.same({}, pauses)
    end
    turn(lock, other, 0.01)
    support.sleep(0.1)
    assert(lock:acquire(5))
    assert.same({}, pauses)
  end)

  it("is part of the wait", function()
    local lock, other, pauses = rivals()
    for _ = 1, 10 do
      assert(lock:acquire())
      turn(lock, other, 0.02)
      assert(lock:acquire())
      turn(lock, other, 0.02)
      local took = support.elapsed(lock.acquire, lock, 0.001)
      assert.is_true(took < 0.001 + support.slack(0.1), took)
      lock:release()
    end
    assert.is_true(#pauses > 0)
    for _, pause in ipairs(pauses) do assert.is_true(pause <= 0.001) end
  end)

  it("ends when the others are gone", function()
    local lock, other, pauses = rivals()
    assert(lock:acquire(5))
    turn(lock, other, 0.02)
    for _ = 1, 3 do
      assert(lock:acquire(5))
      turn(lock, nil, 0)
    end
    local paused = #pauses
    assert.is_true(paused <= 2)
    for _ = 1, 100 do
      assert(lock:acquire(5))
      turn(lock, nil, 0)
    end
    assert.equal(paused, #pauses)
  end)

  it("costs a process that is alone on its name nothing", function()
    local client = memlock.client(server.address)
    local lock = client:lock(support.name())
    local function cycles(...)
      local count, stop = 0, support.now() + (full and 0.3 or 0.05)
      while support.now() < stop do
        assert(lock:acquire(...))
        assert(lock:release())
        count = count + 1
      end
      return count
    end
    local ratios = {} -- a try without a wait knows no courtesy
    for round = 1, 15 do
      local first, second = {}, {}
      first[1], second[1], second[2], first[2] = cycles(5), cycles(0), cycles(0), cycles(5)
      ratios[round] = (first[1] + first[2]) / (second[1] + second[2])
    end
    assert.equal(0, client:stats().waited)
    if os.getenv("FIGURES") then
      io.stderr:write(("alone: %.2f times the cycles without\n"):format(median(ratios)))
    end
    assert.is_true(median(ratios) >= 0.85, median(ratios))
  end)
end)
