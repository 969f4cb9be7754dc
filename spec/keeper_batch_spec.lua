--- Many locks held by one client: few flights, little work, and an end within one timeout.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local memlock = require "memlock"

local full = os.getenv("FULL") == "1"
local sanitized = keeping.is_sanitized()

-- How many records of `prefix .. number` the server has.
local function count_records(server, prefix, count)
  local raw = server:raw()
  local found = 0
  for i = 1, count do
    if raw:get(keeping.key(prefix .. i)) then found = found + 1 end
  end
  raw:close()
  return found
end

local function take(client, prefix, count, options)
  local locks = {}
  for i = 1, count do locks[i] = assert(client:lock(prefix .. i, options):acquire()) end
  return locks
end

local function count_held(locks)
  local held = 0
  for _, lock in pairs(locks) do held = held + (lock:held() and 1 or 0) end
  return held
end

describe("many locks of one client", function()
  local count, ttl = full and 10000 or 2000, full and 15 or 2.4

  it("are renewed in few flights, with little work, and none is lost", function()
    local server = support.memcached { memory = 256 }
    local relay = support.relay(server)
    local prefix = support.name("many")
    local program = keeping.program(relay.address, prefix, count, ttl)
    program:eval([[
      client = memlock.client(arg[1]) locks = {}
      for i = 1, tonumber(arg[3]) do
        locks[i] = assert(client:lock(arg[2] .. i, { ttl = tonumber(arg[4]), auto_refresh = true })
          :acquire())
      end
      function held()
        local n = 0
        for i = 1, #locks do n = n + (locks[i]:held() and 1 or 0) end
        return n
      end
    ]], 120)
    relay:delay("both", 0.0005) -- a round trip takes a millisecond, from here on

    -- Stopped until every lock is due, the program then makes a pass over all of them.
    program:eval "mark = client:stats()"
    program:kill("STOP")
    support.sleep(ttl * 0.45)
    program:tell [[
      local start = posix.now()
      local stats
      repeat posix.sleep(0.001) stats = client:stats()
      until stats.renewals - mark.renewals >= #locks or posix.now() > start + 20
      return posix.now() - start, stats.round_trips - mark.round_trips, held()
    ]]
    program:kill("CONT")
    local took, trips, held = program:answer(30):match("^(%S+) (%S+) (%S+)$")
    assert.equal(count, tonumber(held))
    assert.is_true(tonumber(took) < support.slack(count / 10000), took)
    -- Ten of them: what was due while the program was told to mark, and what is not full.
    assert.is_true(tonumber(trips) < 10 + 100 * count / 10000, trips)

    local before, cpu = program:eval "return client:stats().losses, posix.cpu_time()":match
      "^(%S+) (%S+)$"
    assert.equal("0", before)
    program:eval(([[ posix.sleep(%g) ]]):format(3 * ttl), 3 * ttl + 10)
    local losses, after, all = program:eval
      "return client:stats().losses, posix.cpu_time(), held()":match "^(%S+) (%S+) (%S+)$"
    assert.same({ 0, count }, { tonumber(losses), tonumber(all) })
    if not sanitized then
      local share = (tonumber(after) - tonumber(cpu)) / (3 * ttl)
      local load = count / 10000 * 15 / ttl -- renewals a second, of those that the bound is for
      assert.is_true(share < support.slack(0.05) * load, share)
    end
    assert.equal(count, count_records(server, prefix, count))

    local closing = support.elapsed(function() program:eval "client:close()" end)
    assert.is_true(closing < support.slack(0.5), closing)
    assert.equal(0, count_records(server, prefix, count))
    program:finish()
  end)
end)

describe("a refresh does not wait for many locks that are asked about one by one:", function()
  local server, relay

  before_each(function()
    server = support.memcached()
    relay = support.relay(server)
  end)

  -- The keeper ends the flight that is under way, and then has the wish its turn.
  local function refreshes(client, lock)
    for _ = 1, 3 do
      local took, ok, message = support.elapsed(lock.refresh, lock)
      assert.is_true(ok, message)
      assert.is_true(took < support.slack(0.1), took)
      support.sleep(0.05)
    end
    client:close()
  end

  it("after losses", function()
    local client = memlock.client(relay.address, { timeout = 1 })
    local locks = take(client, support.name("one"), 150, { ttl = 3, auto_refresh = true })
    support.eventually(function() return client:stats().renewals >= 150 end)
    local lock = assert(client:lock(support.name(), { ttl = 60, auto_refresh = true }):acquire())
    relay:delay("both", 0.01) -- 150 locks at two round trips of 20 ms: six seconds
    local raw = server:raw()
    for _, lost in ipairs(locks) do raw:delete(keeping.key(lost:name())) end
    support.sleep(1.1) -- the next renewals have found nothing
    refreshes(client, lock)
  end)

  it("behind a proxy", function()
    local client = memlock.client(relay.address, { timeout = 1, proxy = true })
    local locks = take(client, support.name("one"), 100, { ttl = 3, auto_refresh = true })
    local lock = assert(client:lock(support.name(), { ttl = 60, auto_refresh = true }):acquire())
    relay:delay("both", 0.01)
    support.sleep(1.1) -- the first renewals are under way
    refreshes(client, lock)
    assert.equal(100, #locks) -- they were there all the time
  end)
end)

describe("the end of many locks", function()
  local count = full and 3000 or 500
  local server, relay, client, prefix

  before_each(function()
    server = support.memcached()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 0.5 })
    prefix = support.name("end")
  end)

  after_each(function() client:close() end)

  -- All of them written by the keeper.
  local function kept(some)
    local locks = take(client, prefix, some or count, { ttl = 30, auto_refresh = true })
    for _, lock in ipairs(locks) do assert.is_true(lock:refresh()) end
    return locks
  end

  local function closes_within(seconds)
    local took = support.elapsed(client.close, client)
    assert.is_true(took < seconds, took)
  end

  it("by close gives up all of them, whoever writes them, in few flights", function()
    local locks = take(client, prefix, count, { ttl = 30, auto_refresh = true })
    for i = 1, count, 2 do assert.is_true(locks[i]:refresh()) end
    local before = client:stats().round_trips
    relay:delay("both", 0.0005)
    closes_within(0.5)
    relay:plain()
    assert.equal(0, count_records(server, prefix, count))
    assert.equal(0, count_held(locks))
    local trips = client:stats().round_trips - before
    assert.is_true(trips <= count / 100 + count / 2 / 100 + 6, trips)
    assert.equal(count, client:stats().released)
  end)

  it("by close takes one timeout when the server does not answer", function()
    local locks = kept()
    server:stop_process()
    closes_within(0.5 + support.slack(0.1))
    assert.equal(0, count_held(locks))
    server:continue_process()
  end)

  it("by close takes one timeout when nothing passes any more", function()
    kept()
    relay:blackhole()
    closes_within(0.5 + support.slack(0.1))
  end)

  it("by close takes no time when the server is gone", function()
    kept()
    server:kill()
    closes_within(0.5 + support.slack(0.1))
  end)

  it("by close leaves no record when the connections had been cut", function()
    kept(300) -- they have to go one by one, and within the timeout
    relay:cut()
    closes_within(0.5 + support.slack(0.1))
    assert.equal(0, count_records(server, prefix, 300))
  end)

  it("by close is not kept waiting by losses that are looked into one by one", function()
    local locks = take(client, prefix, 250, { ttl = 0.9, auto_refresh = true })
    support.eventually(function() return client:stats().renewals >= 250 end)
    relay:delay("both", 0.01) -- 250 locks at two round trips of 20 ms: ten seconds
    server:raw():flush_all()
    support.eventually(function() return client:stats().losses > 0 end)
    closes_within(0.5 + support.slack(0.1))
    assert.equal(0, count_held(locks))
  end)

  -- Behind a proxy all of them are renewed and given up one by one.
  it("by close takes one timeout also where they go one by one, behind a proxy", function()
    local own = memlock.client(relay.address, { timeout = 0.5, proxy = true })
    local locks = take(own, prefix, 100, { ttl = 3, auto_refresh = true })
    relay:delay("both", 0.01) -- 100 locks at two round trips of 20 ms: four seconds
    support.sleep(1.1) -- the first renewals are under way
    local took = support.elapsed(own.close, own)
    assert.is_true(took < 0.5 + support.slack(0.1), took)
    assert.equal(0, count_held(locks))
  end)

  it("by the collector does not wait, and gives up all of them", function()
    kept()
    local before = client:stats().round_trips
    relay:delay("both", 0.05)
    local took = support.elapsed(function()
      collectgarbage()
      collectgarbage()
    end)
    assert.is_true(took < support.slack(0.1), took)
    support.eventually(function() return count_records(server, prefix, count) == 0 end, 20)
    local trips = client:stats().round_trips - before
    assert.is_true(trips <= 2 * count / 100 + 6, trips)
  end)

  it("by the collector does not wait for a server that is stopped", function()
    kept()
    server:stop_process()
    local took = support.elapsed(function()
      collectgarbage()
      collectgarbage()
    end)
    assert.is_true(took < support.slack(0.1), took)
    closes_within(0.5 + support.slack(0.1))
    server:continue_process()
  end)

  it("and of their client by the collector leaves no record", function()
    local own = memlock.client(relay.address)
    local locks = take(own, prefix, count, { ttl = 30, auto_refresh = true })
    for i = 1, count, 3 do assert.is_true(locks[i]:refresh()) end
    own, locks = nil, nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    support.eventually(function() return count_records(server, prefix, count) == 0 end)
  end)
end)

describe("one server that is stopped", function()
  -- Names that live on the first of two servers, and on the second.
  local function place(client, first, prefix, count)
    local lists = { {}, {} }
    local raw = first:raw()
    local i = 0
    while #lists[1] < count or #lists[2] < 1 do
      i = i + 1
      local lock = assert(client:lock(prefix .. i):acquire())
      local list = raw:get(keeping.key(prefix .. i)) and lists[1] or lists[2]
      list[#list + 1] = prefix .. i
      assert(lock:release())
    end
    return lists[1], lists[2]
  end

  it("does not cost a lock on another whose lease is shorter than the timeout", function()
    local first, second = support.memcached(), support.memcached()
    local client = memlock.client({ first.address, second.address }, { timeout = 1 })
    local on_first, on_second = place(client, first, support.name("two"), 1)
    local lock = assert(client:lock(on_first[1], { ttl = 3, auto_refresh = true }):acquire())
    local other = assert(client:lock(on_second[1], { ttl = 0.9, auto_refresh = true }):acquire())
    first:stop_process()
    keeping.throughout(3.5, function() assert.is_true(other:held()) end)
    assert.is_false((lock:held()))
    assert.is_true(other:verify())
    first:continue_process()
    client:close()
  end)

  for _, what in ipairs { "kept", "collected" } do
    it("does not cost the locks on another, with many " .. what .. " on it", function()
      local first, second = support.memcached(), support.memcached()
      local client = memlock.client({ first.address, second.address }, { timeout = 0.5 })
      local many = full and 3000 or 800
      local on_first, on_second = place(client, first, support.name("two"), many)
      local locks = {}
      for i = 1, many do
        local lock = client:lock(on_first[i], { ttl = 4, auto_refresh = true })
        locks[i] = assert(lock:acquire())
        if what == "collected" then assert.is_true(lock:refresh()) end
      end
      local other = assert(client:lock(on_second[1], { ttl = 2.4, auto_refresh = true }):acquire())
      first:stop_process()
      if what == "collected" then
        locks = nil
        collectgarbage()
        collectgarbage()
      end
      keeping.throughout(4.6, function() assert.is_true(other:held()) end)
      assert.is_true(other:release())
      if locks then assert.equal(0, count_held(locks)) end
      local took = support.elapsed(client.close, client)
      assert.is_true(took < 0.5 + support.slack(0.1), took)
      first:continue_process()
    end)
  end
end)
