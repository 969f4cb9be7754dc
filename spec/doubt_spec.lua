--- Outcomes that nobody told us: what may have happened, or may still happen, after a timeout.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local TIMEOUT = 0.15

local server, raw, client, other, name, key

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

-- Asserts that a call ends with `timeout`, in about the time that it has.
local function assert_times_out(fn, ...)
  local took, ok, message, code = support.elapsed(fn, ...)
  assert_fails("timeout", "in time", ok, message, code)
  assert.is_true(took >= 0.9 * TIMEOUT and took <= support.slack(1.2 * TIMEOUT), took)
end

-- What a client may be doing while it has something in doubt, on names of its own.
local work = {
  acquire = function() return client:lock(support.name()):acquire() end,
  release = function()
    local lock = assert(client:lock(support.name()):acquire())
    assert.is_true(lock:release())
  end,
  held = function(held) assert_fails("held", "held it", client:lock(held:name()):acquire()) end,
  refresh = function(held) assert.is_true(held:refresh()) end,
  verify = function(held) assert.is_true(held:verify()) end,
  holder = function(held) assert.is_true(held:holder().mine) end,
}

-- Asserts that `fn` gets true within a second, while the client goes on with its work.
local function settles(fn, what, held)
  support.eventually(function()
    work[what or "release"](held)
    return fn()
  end, support.slack(1))
end

-- Lets the client work for some time, in which all that is in doubt is looked for.
local function work_on(seconds)
  local start = support.now()
  repeat
    work.release()
    support.sleep(0.02)
  until support.now() > start + seconds
end

local function is_gone() return raw:get(key) == nil end

before_each(function()
  name = support.name()
  key = "memlock:" .. name
end)

describe("a server that is stopped", function()
  before_each(function()
    server = support.memcached()
    raw = server:raw()
    client = memlock.client(server.address, { timeout = TIMEOUT, label = "first" })
    other = memlock.client(server.address, { timeout = 5, label = "second" })
  end)

  after_each(function()
    server:continue_process()
    client:close()
    other:close()
  end)

  -- An acquire that the server gets to see when it runs again.
  local function acquire_while_stopped(lock, connected)
    if connected then assert.is_false(client:holder(support.name())) end
    server:stop_process()
    assert_times_out(lock.acquire, lock)
    assert.is_false((lock:held()))
    assert.is_nil(lock:token())
    server:continue_process()
  end

  it("makes every operation end in time, as a timeout that names the lock and the server",
    function()
      local held = assert(client:lock(name, { ttl = 60 }):acquire())
      local free = client:lock(support.name())
      server:stop_process()
      for _, call in ipairs { "refresh", "verify", "holder", "release" } do
        assert_times_out(held[call], held)
      end
      assert_times_out(free.acquire, free)
      local _, message = free:acquire()
      assert.truthy(message:find(free:name(), 1, true), message)
      assert.truthy(message:find(server.address, 1, true), message)
      assert_times_out(client.holder, client, name)
    end)

  it("does not slow down what needs no server", function()
    local lock, free = client:lock(name), client:lock(support.name())
    server:stop_process()
    assert_times_out(lock.acquire, lock)
    local took = support.elapsed(function()
      assert_fails("not_held", name, lock:release())
      assert_fails("not_held", name, lock:refresh())
      assert_fails("not_held", free:name(), free:release())
      assert.is_false((lock:held()))
    end)
    assert.is_true(took < TIMEOUT / 2, took)
  end)

  it("makes a wait end in its time, with the failure and not with `held`", function()
    local lock = client:lock(name)
    server:stop_process()
    local took, ok, message, code = support.elapsed(lock.acquire, lock, 0.6)
    assert_fails("timeout", "in time", ok, message, code)
    assert.is_true(took >= 0.6 and took <= 0.6 + support.slack(1.2 * TIMEOUT), took)
  end)

  for _, connected in ipairs { true, false } do
    local how = connected and ", connected" or ", not connected before"

    it("may have done it all the same: the same object takes over" .. how, function()
      local lock = client:lock(name, { ttl = 30 })
      acquire_while_stopped(lock, connected)
      local value = support.eventually(function() return (raw:get(key)) end)
      local id = value:match("^memlock/1 (%x+) ")
      assert.equal(lock, lock:acquire()) -- not `held`, by nobody but itself
      assert.equal(id, lock:holder().id)
      assert.is_true((lock:held()))
      assert.is_true(lock:token() > 0)
      assert.is_not.equal(value, (raw:get(key))) -- a write of its own
      assert.is_true(lock:refresh())
      assert.is_true(lock:release())
      assert.is_nil(raw:get(key))
    end)

    it("may have done it all the same: the record is gone soon" .. how, function()
      local lock = client:lock(name, { ttl = 30 })
      acquire_while_stopped(lock, connected)
      support.eventually(function() return raw:get(key) end)
      settles(is_gone)
      assert.is_false((lock:held()))
      assert.is_truthy(other:lock(name):acquire())
    end)
  end

  for what in pairs(work) do
    it("has the record removed by whatever the client does next: " .. what, function()
      local held = assert(client:lock(support.name(), { ttl = 60 }):acquire())
      local lock = client:lock(name, { ttl = 30 })
      acquire_while_stopped(lock)
      support.eventually(function() return raw:get(key) end)
      settles(is_gone, what, held)
    end)
  end

  it("has it removed when the object is gone, and when the client is closed", function()
    local lock = client:lock(name, { ttl = 30 })
    acquire_while_stopped(lock, true)
    support.eventually(function() return raw:get(key) end)
    lock = nil -- luacheck: ignore
    collectgarbage()
    settles(is_gone)

    name = support.name()
    key = "memlock:" .. name
    acquire_while_stopped(client:lock(name, { ttl = 30 }), true)
    support.eventually(function() return raw:get(key) end)
    client:close()
    assert.is_nil(raw:get(key))
  end)

  it("may be stopped for longer than a ttl: the record is removed all the same", function()
    local lock = client:lock(name, { ttl = 1 })
    server:stop_process()
    assert_times_out(lock.acquire, lock)
    assert_fails("not_held", name, lock:release()) -- as a program that cleans up may say
    support.sleep(3.2)
    server:continue_process()
    support.eventually(function() return raw:get(key) end)
    support.eventually(function() -- before it ends by itself
      work.release()
      return is_gone()
    end, 2)
  end)

  it("does not end a wait: it goes on when the server does", function()
    local patient = memlock.client(server.address, { timeout = TIMEOUT, sleep = function(seconds)
      server:continue_process()
      return memlock.sleep(seconds)
    end })
    local lock = patient:lock(name, { ttl = 30 })
    server:stop_process()
    assert.equal(lock, lock:acquire(5))
    assert.is_true(lock:verify())
    patient:close()
    assert.is_nil(raw:get(key))
  end)

  it("has each of many records in doubt removed", function()
    local locks = {}
    for i = 1, 8 do
      locks[i] = client:lock(support.name(), { ttl = 30 })
    end
    server:stop_process()
    for _, lock in ipairs(locks) do assert_times_out(lock.acquire, lock) end
    server:continue_process()
    for _, lock in ipairs(locks) do
      support.eventually(function() return raw:get("memlock:" .. lock:name()) end)
    end
    settles(function()
      for _, lock in ipairs(locks) do
        if raw:get("memlock:" .. lock:name()) then return false end
      end
      return true
    end)
  end)
end)

describe("an add that is on its way for long", function()
  local relay, lock

  before_each(function()
    server = support.server()
    raw = server:raw()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = TIMEOUT, label = "first" })
    other = memlock.client(server.address, { timeout = 5, label = "second" })
    lock = client:lock(name, { ttl = 10 })
    relay:hold_up("add " .. key)
    assert_times_out(lock.acquire, lock)
    assert.is_nil(raw:get(key))
  end)

  after_each(function()
    client:close()
    other:close()
  end)

  local function arrives()
    relay:resume("up")
    support.eventually(function() return raw:get(key) end)
  end

  it("is removed when it arrives, however often it was not there before", function()
    work_on(0.6)
    assert.is_nil(raw:get(key))
    arrives()
    settles(is_gone)
    assert.is_truthy(other:lock(name):acquire())
  end)

  it("is removed when it arrives after the release of what the same object got meanwhile",
    function()
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:refresh())
      assert.is_true(lock:release())
      arrives()
      settles(is_gone)
    end)

  it("does not keep the same object out for longer than that either", function()
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
    arrives()
    assert.equal(lock, lock:acquire(support.slack(1)))
    assert.is_true(lock:verify())
  end)

  it("does no harm to what the same object has meanwhile", function()
    assert.equal(lock, lock:acquire())
    local before = { raw:gets(key) }
    relay:resume("up")
    work_on(0.4)
    assert.same(before, { raw:gets(key) })
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
  end)

  it("does no harm to what somebody else has meanwhile", function()
    local taken = assert(other:lock(name, { ttl = 60 }):acquire())
    local before = { raw:gets(key) }
    work_on(0.4)
    relay:resume("up")
    work_on(0.4)
    assert.same(before, { raw:gets(key) })
    assert_fails("held", "second", lock:acquire())
    assert.is_true(taken:release())
  end)

  it("is taken over by the same object when it arrived", function()
    arrives()
    local id = raw:get(key):match("^memlock/1 (%x+) ")
    assert.equal(lock, lock:acquire())
    assert.equal(id, lock:holder().id)
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end)
end)

describe("many records in doubt, over a slow link,", function()
  local relay

  -- Collected when nobody had told the client yet that its connection had ended.
  before_each(function()
    server = support.server()
    raw = server:raw()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 1 })
    do
      local locks = {}
      for i = 1, 16 do locks[i] = client:lock(support.name(), { ttl = 30 }) end
      for _, lock in ipairs(locks) do assert(lock:acquire()) end
      relay:cut()
      support.eventually(function() return relay:stats().open == 0 end)
      support.sleep(0.05)
    end
    collectgarbage()
    collectgarbage()
  end)

  after_each(function()
    relay:plain()
    client:close()
  end)

  -- To look for all of them at once takes two round trips each: 1.3 s.
  it("do not eat the lease of an acquire that won", function()
    relay:delay("both", 0.02)
    local ttl = 0.6
    local lock = client:lock(name, { ttl = ttl })
    assert.equal(lock, lock:acquire())
    local held, left = lock:held()
    assert.is_true(held)
    assert.is_true(left > ttl - support.slack(0.1), left)
    assert.is_true(lock:refresh())
    assert.is_true((lock:held()))
  end)

  -- Here it takes 2.6 s.
  it("leave holder and update their time", function()
    relay:delay("both", 0.04)
    for _ = 1, 4 do
      local took, holder, message = support.elapsed(client.holder, client, name)
      assert.is_false(holder, message)
      assert.is_true(took < 1, took)
      support.sleep(0.3) -- until what was not there may be looked for again
    end
    local ok, value = client:update(name, function() return "value" end, { ttl = 10 })
    assert.same({ true, "value" }, { ok, value })
  end)
end)

it("an add in doubt of an identity does no harm to what its other object has", function()
  server = support.server()
  raw = server:raw()
  local identity = support.name("web")
  local relay = support.relay(server)
  client = memlock.client(relay.address, { timeout = TIMEOUT, identity = identity })
  other = memlock.client(server.address, { identity = identity })
  local one, two = client:lock(name, { ttl = 10 }), other:lock(name, { ttl = 10 })
  relay:hold_up("add " .. key)
  assert_times_out(one.acquire, one)
  assert(two:acquire())
  local before = { raw:gets(key) }
  for _ = 1, 2 do
    work_on(0.4)
    relay:resume("up")
  end
  one = nil -- luacheck: ignore
  collectgarbage()
  client:close()
  assert.same(before, { raw:gets(key) })
  assert.is_true(two:release())
  other:close()
end)

describe("a release in doubt", function()
  local relay, lock

  before_each(function()
    server = support.server()
    raw = server:raw()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = TIMEOUT, label = "first" })
    other = memlock.client(server.address, { timeout = 5, label = "second" })
    lock = assert(client:lock(name, { ttl = 60 }):acquire())
  end)

  after_each(function()
    client:close()
    other:close()
  end)

  -- Asserts that the second release finishes the job, and the third finds nothing to do.
  local function assert_finishes()
    assert.is_false((lock:held()))
    relay:plain()
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
    assert_fails("not_held", name, lock:release())
    assert.is_false((lock:held()))
  end

  it("that never arrived is finished by a second one", function()
    relay:drop("up")
    assert_times_out(lock.release, lock)
    assert.is_truthy(raw:get(key))
    assert_finishes()
  end)

  it("that was done is known to be by a second one", function()
    relay:pause("down")
    assert_times_out(lock.release, lock)
    assert.is_nil(raw:get(key))
    assert_finishes()
  end)

  it("that arrives late is known to be done by a second one", function()
    relay:pause("up")
    assert_times_out(lock.release, lock)
    assert.is_truthy(raw:get(key))
    relay:resume("up")
    support.eventually(is_gone)
    assert_finishes()
  end)

  it("over a cut line is finished when the line is back", function()
    relay:refuse()
    relay:cut()
    assert_fails("unreachable", name, lock:release())
    assert_fails("unreachable", name, lock:release())
    assert_finishes()
  end)

  it("whose reply alone was lost is told from a loss in the same call", function()
    relay:drop_reply("cas " .. key)
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
    assert_fails("not_held", name, lock:release())
  end)

  it("is finished by the client's other operations as well", function()
    relay:drop("up")
    assert_times_out(lock.release, lock)
    relay:plain()
    assert.is_truthy(raw:get(key))
    settles(is_gone)
    local taken = assert(other:lock(name):acquire())
    local before = { raw:gets(key) }
    lock:release()
    assert.same(before, { raw:gets(key) })
    assert.is_true(taken:release())
  end)

  it("does not keep the same object from acquiring again, and does not end that", function()
    relay:hold_up("cas " .. key)
    assert_times_out(lock.release, lock)
    assert.is_truthy(raw:get(key))
    assert.equal(lock, lock:acquire())
    relay:resume("up")
    work_on(0.4) -- the late cas arrives, and what is in doubt is looked for
    assert.is_true((lock:held()))
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end)

  it("tells a lock that the server lost from one that was given up", function()
    relay:drop("up")
    assert_times_out(lock.release, lock)
    relay:plain()
    raw:flush_all()
    assert_fails("lost", "gone", lock:release())
    assert_fails("not_held", name, lock:release())
  end)

  it("at the end of a block is quiet, and no longer than its time", function()
    support.needs("<close>", pending)
    relay:drop("up")
    local took = support.elapsed(support.end_block, lock)
    assert.is_true(took <= support.slack(1.2 * TIMEOUT), took)
    assert.is_false((lock:held()))
    assert_finishes()
  end)
end)

describe("a refresh in doubt", function()
  local relay, lock

  before_each(function()
    server = support.server()
    raw = server:raw()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = TIMEOUT })
    lock = assert(client:lock(name, { ttl = 60 }):acquire())
  end)

  after_each(function() client:close() end)

  for _, side in ipairs { "up", "down" } do
    it("leaves the lease as it was, and the next one is as good as ever: " .. side, function()
      local _, before = lock:held()
      relay:pause(side)
      assert_times_out(lock.refresh, lock)
      local held, left = lock:held()
      assert.is_true(held and left < before)
      relay:plain()
      assert.is_true(lock:refresh())
      _, left = lock:held()
      assert.is_true(left > before - support.slack(0.2))
      assert.is_true(lock:verify())
      assert.is_true(lock:release())
      assert.is_nil(raw:get(key))
    end)
  end

  it("that arrives after the release does not bring the record back", function()
    relay:hold_up("cas " .. key)
    assert_times_out(lock.refresh, lock)
    assert.is_true(lock:release())
    relay:resume("up")
    local start = support.now()
    while support.now() < start + 0.2 do
      assert.is_nil(raw:get(key))
      support.sleep(0.01)
    end
  end)
end)

describe("a reply that comes when the lease is over", function()
  local relay

  before_each(function()
    server = support.server()
    raw = server:raw()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 5 })
    relay:delay("down", 0.4)
  end)

  after_each(function()
    relay:plain()
    client:close()
  end)

  it("is not a success of acquire, and leaves no record", function()
    local lock = client:lock(name, { ttl = 0.3 })
    local took, ok, message, code = support.elapsed(lock.acquire, lock)
    assert_fails("timeout", "lease was over", ok, message, code)
    assert.is_true(took >= 0.4)
    assert.is_false((lock:held()))
    assert.is_nil(lock:token())
    assert.is_nil(raw:get(key))
    relay:plain()
    assert_fails("not_held", name, lock:release())
    assert.equal(lock, lock:acquire())
    assert.is_true((lock:held()))
  end)

  it("is not a success of refresh", function()
    relay:plain()
    local lock = assert(client:lock(name, { ttl = 0.3 }):acquire())
    relay:delay("down", 0.4)
    local ok, message, code = lock:refresh()
    assert.is_nil(ok)
    assert.is_true(code == "timeout" or code == "lost", message)
    assert.is_false((lock:held()))
    relay:plain()
    if code == "timeout" then assert_fails("lost", "lease ended", lock:refresh()) end
    assert_fails("not_held", name, lock:refresh())
  end)

  it("is not a success of verify", function()
    relay:plain()
    local lock = assert(client:lock(name, { ttl = 0.3 }):acquire())
    relay:delay("down", 0.4)
    local ok, message, code = lock:verify()
    assert.is_nil(ok)
    assert.is_true(code == "timeout" or code == "lost", message) -- lost: it was asked too late
    assert.is_false((lock:held()))
    relay:plain()
    if code == "timeout" then assert_fails("lost", "lease ended", lock:verify()) end
    assert_fails("not_held", name, lock:verify())
  end)
end)
