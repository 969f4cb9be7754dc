--- The whole of a lock's behaviour through a real proxy: one list of behaviours, run over each way
-- in which the proxy can be set up.
--
-- With several connections to a server the proxy deals requests out among them, so that nothing
-- keeps the order of what is not waited for; with several servers a lock's two keys may live apart.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local TIMEOUT = 0.3 -- where one is waited for

local settings = {
  { title = "one server", servers = 1, connections = 1 },
  { title = "one server over four connections", servers = 1, connections = 4 },
  { title = "two servers over four connections each", servers = 2, connections = 4 },
}

local proxy, backends, raws -- of the setting; the raw clients see what the servers really have
local client, other, name, key
local kept -- locks that a test holds on to: one that is collected is given up

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

local function open(options, address)
  options = options or {}
  options.proxy = true
  return memlock.client(address or proxy.address, options)
end

-- A client of this test only.
local function fresh(options, address)
  local opened = open(options, address)
  support.defer(function() opened:close() end)
  return opened
end

local function take(of, options)
  local lock = assert(of:lock(name, options):acquire())
  kept[#kept + 1] = lock
  return lock
end

-- What the servers have under a key: value, flags, CAS id, and the number of the server.
local function look(at)
  local found
  for i, raw in ipairs(raws) do
    local value, flags, id = raw:gets(at or key)
    if value then
      assert.is_nil(found, "on two servers")
      found = { value, flags, id, i }
    end
  end
  return found
end

local function is_gone(at) return look(at) == nil end

local function forget(at)
  for _, raw in ipairs(raws) do raw:delete(at or key) end
end

-- Puts a value where the proxy looks for it.
local function put(value, at)
  assert.is_true(proxy:raw():set(at or key, value, 60, 7))
end

local function expired(lock)
  support.eventually(function() return not lock:held() end)
end

--------------------------------------------------------------------------------

local function holding()
  it("acquires, knows it, refreshes, verifies and releases, by turns", function()
    local mine, its = client:lock(name, { ttl = 30 }), other:lock(name, { ttl = 30 })
    local last = 0
    for _ = 1, 5 do
      for _, turn in ipairs { { mine, its, "first" }, { its, mine, "second" } } do
        local lock, rival, label = table.unpack(turn)
        assert.equal(lock, lock:acquire())
        local held, left = lock:held()
        assert.is_true(held and left > 25 and left <= 30)
        assert.is_true(lock:token() > last)
        last = lock:token()
        local before = look()
        assert_fails("held", label, rival:acquire())
        assert_fails("held", "this very object", lock:acquire())
        assert_fails("not_held", name, rival:refresh())
        assert_fails("not_held", name, rival:release())
        assert.same(before, look())
        assert.is_true(lock:verify())
        assert.is_true(lock:refresh(20))
        assert.is_true(select(2, lock:held()) <= 20)
        assert.equal(20, lock:holder().ttl)
        assert.is_true(lock:holder().mine)
        assert.is_false(rival:holder().mine)
        assert.equal(label, rival:holder().label)
        assert.is_true(lock:release())
        assert.is_false((lock:held()))
        assert_fails("not_held", name, lock:release())
        assert_fails("not_held", name, lock:refresh())
        assert.is_true(is_gone())
        assert.is_false(lock:holder())
      end
    end
  end)

  it("sees what it has just written, however often", function()
    local lock = client:lock(name, { ttl = 60 })
    for _ = 1, support.count(500) do
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:refresh())
      assert.is_true(lock:verify())
      assert.is_true(lock:release())
      assert.is_false(lock:holder())
    end
  end)

  it("works wherever its keys live", function()
    local places = {}
    for _ = 1, 40 do
      name = support.name()
      key = "memlock:" .. name
      local lock = take(client)
      assert_fails("held", "first", other:lock(name):acquire())
      places[look()[4] .. " " .. look("#" .. key)[4]] = true
      assert.is_true(lock:refresh())
      assert.is_true(lock:release())
      assert.is_true(is_gone())
    end
    local different = 0
    for _ in pairs(places) do different = different + 1 end
    assert.equal((#backends) ^ 2, different)
  end)

  it("gives tokens that rise, also when the counter was lost or the lock was", function()
    local last = 0
    for round = 1, 12 do
      local lock = (round % 2 == 0 and client or other):lock(name, { ttl = 30 })
      assert(lock:acquire())
      assert.is_true(lock:token() > last)
      last = lock:token()
      if round % 3 == 0 then forget("#" .. key) end
      if round % 4 == 0 then
        forget()
        assert_fails("lost", name, lock:refresh())
      else
        assert.is_true(lock:release())
      end
    end
  end)

  it("refuses a counter that is garbage", function()
    put("garbage", "#" .. key)
    local lock = client:lock(name)
    assert_fails("refused", name, lock:acquire())
    assert.is_false((lock:held()))
    forget("#" .. key)
    forget()
    assert.equal(lock, lock:acquire())
  end)
end

local function losing()
  for _, call in ipairs { "refresh", "release", "verify" } do
    it("is lost, once, when its record is gone: " .. call, function()
      local lock = take(client)
      forget()
      assert_fails("lost", "gone", lock[call](lock))
      assert.is_true(is_gone())
      assert.is_false((lock:held()))
      assert_fails("not_held", name, lock[call](lock))
      assert.equal(1, client:stats().lost)
    end)

    it("is lost to whoever has it now, whose record stays as it is: " .. call, function()
      local lock = take(client)
      forget()
      local its = take(other)
      local before = look()
      assert_fails("lost", "lost", lock[call](lock))
      assert_fails("not_held", name, lock[call](lock))
      assert.same(before, look())
      assert.is_true(its:verify())

      forget()
      assert(lock:acquire())
      put("of another program")
      before = look()
      assert_fails("lost", "lost", lock[call](lock))
      assert.same(before, look())
    end)

    it("whose lease has ended leaves the next holder's record as it is: " .. call, function()
      local lock = take(client, { ttl = 0.1 })
      expired(lock)
      forget()
      local its = take(other)
      local before = look()
      assert_fails("lost", "lease ended", lock[call](lock))
      assert_fails("not_held", name, lock:release())
      assert.same(before, look())
      assert.is_true(its:release())
    end)
  end

  it("ends by itself, and another gets it no sooner than it is over", function()
    local lock = take(client, { ttl = 0.5 })
    local its = other:lock(name, { ttl = 30 })
    support.eventually(function()
      local got = its:acquire()
      if got then assert.is_false((lock:held())) end
      return got
    end, 10)
    local before = look()
    assert_fails("lost", "lease ended", lock:refresh())
    assert_fails("held", "second", lock:acquire())
    assert.same(before, look())
    assert.is_true(its:token() > lock:token())
  end)

  it("is given up by no finalizer when it is another's by then", function()
    take(client)
    forget()
    take(other)
    local before = look()
    kept[1] = nil
    collectgarbage()
    collectgarbage()
    assert.is_true(client:lock(support.name()):acquire():release())
    client:close()
    assert.same(before, look())
  end)

  it("is kept out by another program's value, and not by an empty one", function()
    local lock = client:lock(name)
    put("of another program")
    local before = look()
    assert_fails("held", "another program", lock:acquire())
    assert.same({ mine = false, value = "of another program" }, lock:holder())
    assert.same(before, look())
    put("")
    assert.is_false(lock:holder())
    assert.equal(lock, lock:acquire())
    assert.is_false((proxy:raw():add(key, "of another program", 60)))
    assert.is_true(lock:release())
  end)
end

local function sharing()
  it("is shared by an identity, taken over by it, and never given up by an older object", function()
    local identity = support.name("web")
    local older = client:lock(name, { identity = identity, ttl = 30 })
    local newer = other:lock(name, { identity = identity, ttl = 30 })
    assert(older:acquire())
    assert.equal(newer, newer:acquire())
    assert.is_true(newer:token() > older:token())
    assert.is_true((older:held()))
    assert.equal(identity, older:holder().id)
    assert_fails("held", "second", client:lock(name):acquire())
    local before = look()
    assert_fails("lost", "lost", older:release())
    assert.same(before, look())
    assert.is_true(newer:refresh())
    assert.is_true(newer:release())
    assert.is_true(is_gone())
  end)

  it("is taken over at once after a process of this identity died", function()
    local identity = support.name("web")
    local child = support.child(function(channel, address, its_name, its_identity)
      local lock = memlock.client(address, { proxy = true }):lock(its_name,
        { identity = its_identity, ttl = 600 })
      channel:send(assert(lock:acquire()):token())
      support.sleep(60)
    end, proxy.address, name, identity)
    local token = child:receive()
    child:kill("KILL")
    child:wait()
    assert_fails("held", "has held it", client:lock(name):acquire())
    local lock = take(client, { identity = identity })
    assert.is_true(lock:token() > token)
    assert.is_true(lock:release())
  end)

  it("runs a function with the lock held, and gives it up whatever happens", function()
    local lock = client:lock(name, { ttl = 30 })
    assert.same({ true, 1, nil, 3, n = 4 }, table.pack(lock:with(function(got, ...)
      assert.equal(lock, got)
      assert_fails("held", "first", other:lock(name):acquire())
      return ...
    end, 1, nil, 3)))
    assert.is_true(is_gone())
    local problem = {}
    assert.equal(problem, select(2, pcall(lock.with, lock, function() error(problem) end)))
    assert.is_true(is_gone())
    assert_fails("lost", name, lock:with(function() forget() end))
    local its = take(other)
    assert_fails("held", "second", lock:with(error))
    assert.is_true(its:verify())
    local results = table.pack(lock:with(error))
    assert.equal(3, results.n)
  end)

  it("updates a key by turns of many, losing none", function()
    local children = {}
    for i = 1, 3 do
      children[i] = support.child(function(_, address, at, rounds)
        local its = memlock.client(address, { proxy = true })
        for _ = 1, rounds do
          assert(its:update(at, function(old) return ("%d"):format((old or 0) + 1) end,
            { wait = 30, ttl = 60 }))
        end
      end, proxy.address, name, support.count(200))
    end
    for _, child in ipairs(children) do child:join(60) end
    assert.equal(tostring(3 * support.count(200)), look(name)[1])
    assert.same({ true, tostring(3 * support.count(200)) },
      { client:update(name, function() return nil end) })
    put("x", name)
    assert.same({ true, "xy" }, { client:update(name, function(old, flags)
      assert.equal(7, flags)
      return old .. "y"
    end) })
    assert.same({ "xy", 7 }, { table.unpack(look(name), 1, 2) })
  end)

  it("is broken exactly as shown", function()
    local lock = take(client)
    local shown = other:holder(name)
    assert.is_true(lock:refresh())
    local before = look()
    assert_fails("held", name, other:break_lock(name, shown))
    assert.same(before, look())
    assert.is_true(other:break_lock(name, other:holder(name)))
    assert.is_true(is_gone())
    assert_fails("not_held", name, other:break_lock(name, shown))
    assert_fails("lost", "gone", lock:refresh())
    put("of another program")
    assert.is_true(other:break_lock(name, other:holder(name)))
    assert.is_true(is_gone())
  end)
end

local function waiting()
  it("is waited for, and got when it is released", function()
    local child = support.child(function(channel, address, its_name)
      local lock = assert(memlock.client(address, { proxy = true }):lock(its_name):acquire())
      channel:send("held")
      support.sleep(0.3)
      return lock:release()
    end, proxy.address, name)
    child:receive()
    local took, lock = support.elapsed(function() return client:lock(name):acquire(10) end)
    assert.is_truthy(lock)
    assert.is_true(took > 0.2 and took < 0.3 + support.slack(0.4), took)
    assert.is_true(child:join())
    assert.is_true(lock:release())
  end)

  it("is waited for no longer than wanted", function()
    local its = take(other)
    local took, ok, message, code = support.elapsed(function()
      return client:lock(name):acquire(0.3)
    end)
    assert_fails("held", "second", ok, message, code)
    assert.is_true(took >= 0.3 and took < 0.3 + support.slack(0.2), took)
    assert.is_true(its:verify())
  end)

  it("has one holder at a time among many, and none is kept out", function()
    local rounds = support.count(100)
    local children = {}
    put("0", name)
    for i = 1, 4 do
      children[i] = support.child(function(_, address, its_name)
        local its = memlock.client(address, { proxy = true, retry_max = 0.02 })
        local lock = its:lock(its_name, { ttl = 30 })
        local raw = support.raw(address)
        local tokens = {}
        for round = 1, rounds do
          assert(lock:acquire(60))
          tokens[round] = lock:token()
          local value = raw:get(its_name) -- a read and a write that only the lock holds together
          raw:set(its_name, ("%d"):format(value + 1))
          assert(lock:release())
        end
        return tokens
      end, proxy.address, name)
    end
    local seen = {}
    for _, child in ipairs(children) do
      local last = 0
      for _, token in ipairs(child:join(120)) do
        assert.is_true(token > last and not seen[token])
        last, seen[token] = token, true
      end
    end
    assert.equal(tostring(4 * rounds), look(name)[1])
  end)

  it("is renewed in the background, for as long as it is held", function()
    local lock = client:lock(name, { ttl = 1, auto_refresh = true })
    assert(lock:acquire())
    local id = look()[1]:match("^memlock/1 (%S+)")
    local stop = support.now() + 2.5
    repeat
      assert.is_true((lock:held()))
      assert.equal(id, look()[1]:match("^memlock/1 (%S+)"))
      support.sleep(0.05)
    until support.now() > stop
    assert_fails("held", "first", other:lock(name):acquire())
    assert.is_true(client:stats().renewals > 2)
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    assert.is_true(is_gone())
    assert.equal(0, client:stats().lost)
  end)

  it("is lost in the background where it is gone or another's, and said so once", function()
    for round = 1, 2 do
      local messages = {}
      local lock = client:lock(name, { ttl = 0.9, auto_refresh = true,
        on_lost = function(_, message) messages[#messages + 1] = message end })
      assert(lock:acquire())
      forget()
      local its = round == 2 and take(other)
      local before = look()
      support.eventually(function() return not lock:held() end)
      support.eventually(function() return client:poll() > 0 end)
      assert.equal(1, #messages)
      assert.truthy(messages[1]:find(name, 1, true))
      assert.equal(0, client:poll())
      assert_fails("lost", name, lock:refresh())
      assert_fails("not_held", name, lock:release())
      assert.same(before, look())
      if its then assert.is_true(its:release()) end
    end
  end)

  it("is renewed in the background beside many others", function()
    local locks = {}
    for i = 1, 30 do
      locks[i] = assert(client:lock(support.name(), { ttl = 1.5, auto_refresh = true }):acquire())
    end
    support.sleep(2)
    for _, lock in ipairs(locks) do
      assert.is_true((lock:held()))
      assert.is_false(other:holder(lock:name()) == false)
    end
    client:close()
    for _, lock in ipairs(locks) do assert.is_true(is_gone("memlock:" .. lock:name())) end
  end)
end

local function doubting()
  local relay, hasty

  before_each(function()
    relay = support.relay(proxy)
    hasty = fresh({ timeout = TIMEOUT, label = "hasty" }, relay.address)
  end)

  -- Lets the client work, which looks for what it has in doubt, until the record is gone.
  local function settles()
    support.eventually(function()
      assert.is_true(hasty:lock(support.name()):acquire():release())
      return is_gone()
    end, support.slack(2))
  end

  it("in an acquire: the same object takes its record over, or its client removes it", function()
    local lock = hasty:lock(name, { ttl = 30 })
    relay:pause("down")
    local took, ok, message, code = support.elapsed(lock.acquire, lock)
    assert_fails("timeout", name, ok, message, code)
    assert.is_true(took < support.slack(1.5 * TIMEOUT), took)
    assert.is_false((lock:held()))
    local id = look()[1]:match("^memlock/1 (%S+)")
    assert_fails("held", "hasty", client:lock(name):acquire())
    relay:plain()
    assert.equal(lock, lock:acquire())
    assert.equal(id, lock:holder().id)
    assert.is_true(lock:release())
    assert.is_true(is_gone())

    relay:pause("down")
    assert_fails("timeout", name, lock:acquire())
    assert.is_false(is_gone())
    relay:plain()
    settles()
    assert.is_truthy(client:lock(name):acquire())
  end)

  it("in an acquire whose command comes late: it is found and removed", function()
    local lock = hasty:lock(name, { ttl = 30 })
    relay:hold_up("add " .. key)
    assert_fails("timeout", name, lock:acquire())
    assert.is_true(is_gone())
    relay:resume("up")
    support.eventually(function() return not is_gone() end)
    relay:plain()
    settles()
  end)

  it("in a refresh: the lease that is known goes on, and is refreshed later", function()
    local lock = assert(hasty:lock(name, { ttl = 30 }):acquire())
    relay:pause("down")
    assert_fails("timeout", name, lock:refresh())
    assert.is_true((lock:held()))
    relay:plain()
    relay:hold_up("cas " .. key)
    assert_fails("timeout", name, lock:refresh(20)) -- this much may come to be, and no more
    local held, left = lock:held()
    assert.is_true(held and left <= 20)
    relay:plain()
    assert.is_true(lock:refresh())
    assert.is_true(select(2, lock:held()) > 25)
    assert.is_true(lock:release())
  end)

  it("in a release: the next call finishes the job, whether or not it was done", function()
    for _, trouble in ipairs { "hold_up", "drop_reply" } do
      local lock = assert(hasty:lock(name, { ttl = 30 }):acquire())
      relay[trouble](relay, "cas " .. key)
      if trouble == "drop_reply" then
        assert.is_true(lock:release()) -- the counter tells that nobody else was there
      else
        assert_fails("timeout", name, lock:release())
        assert.is_false((lock:held()))
        assert.is_false(is_gone())
        relay:plain()
        assert.is_true(lock:release())
      end
      relay:plain()
      assert.is_true(is_gone())
      assert_fails("not_held", name, lock:release())
    end
  end)

  it("in a release that comes late: the next holder's record stays as it is", function()
    for _ = 1, 3 do
      local lock = assert(hasty:lock(name, { ttl = 30 }):acquire())
      relay:hold_up("cas " .. key)
      assert_fails("timeout", name, lock:release())
      forget()
      forget("#" .. key) -- a server that forgets, forgets both
      local its = take(other)
      local before = look()
      relay:resume("up")
      relay:plain()
      assert_fails("lost", "lost", lock:release())
      support.sleep(0.05)
      assert.same(before, look())
      assert.is_true(its:release())
    end
  end)

  it("while a server stands still, which takes no longer than the timeout", function()
    local lock = assert(hasty:lock(name, { ttl = 30 }):acquire())
    for _, backend in ipairs(backends) do backend:stop_process() end
    for _, call in ipairs { "refresh", "verify", "holder", "release" } do
      local took, ok, message, code = support.elapsed(lock[call], lock)
      assert_fails("timeout", name, ok, message, code)
      assert.is_true(took < support.slack(1.5 * TIMEOUT), took)
    end
    for _, backend in ipairs(backends) do backend:continue_process() end
    settles()
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
  end)

  it("after the line to the proxy was cut", function()
    local lock = assert(hasty:lock(name, { ttl = 30 }):acquire())
    for _, call in ipairs { "refresh", "verify", "holder", "release", "acquire", "release" } do
      relay:cut()
      assert.is_truthy(lock[call](lock))
    end
    assert.is_true(is_gone())
  end)

  it("through a proxy that gives up first, and says so", function()
    local impatient = support.nutcracker(backends,
      { connections = proxy.connections, timeout = 0.1 })
    local its = fresh({ timeout = 3 }, impatient.address)
    local lock = assert(its:lock(name, { ttl = 30 }):acquire())
    for _, backend in ipairs(backends) do backend:stop_process() end
    for _, call in ipairs { "refresh", "verify", "holder", "release" } do
      local ok, message, code = lock[call](lock)
      assert.is_nil(ok)
      assert.is_true(code == "refused" or code == "unreachable" or code == "timeout", code)
      assert.truthy(message:find(name, 1, true), message)
    end
    for _, backend in ipairs(backends) do backend:continue_process() end
    support.eventually(function() return lock:release() or is_gone() end)
    assert.is_true(is_gone())
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
  end)
end

-- Servers that are killed: of the test's own, behind a proxy of its own.
local function restarting(setting)
  local own, servers

  before_each(function()
    servers = {}
    for i = 1, setting.servers do servers[i] = support.memcached() end
    own = support.nutcracker(servers, { connections = setting.connections })
  end)

  local function all(what)
    for _, server in ipairs(servers) do server[what](server) end
  end

  local function its(at)
    local found
    for _, server in ipairs(servers) do
      local value, flags, id = server:raw():gets(at)
      if value then found = { value, flags, id } end
    end
    return found
  end

  it("that are away are neither somebody's lock nor a lost one", function()
    local lone = fresh({ timeout = 1 }, own.address)
    local lock = assert(lone:lock(name, { ttl = 30 }):acquire())
    all "kill"
    for _, call in ipairs { "refresh", "verify", "holder", "release" } do
      local ok, message, code = lock[call](lock)
      assert.is_nil(ok)
      assert.is_true(code == "refused" or code == "unreachable" or code == "timeout", code)
      assert.truthy(message:find(name, 1, true), message)
    end
    local ok, _, code = lone:lock(support.name()):acquire()
    assert.is_nil(ok)
    assert.is_true(code == "refused" or code == "unreachable" or code == "timeout", code)
    all "restart"
    assert.equal(lock, support.eventually(function() return lock:acquire() end))
    assert.is_true(lock:release())
  end)

  it("and come back empty leave a lost lock, and the next holder's record as it is", function()
    local one, two = fresh({ timeout = 5 }, own.address), fresh({ timeout = 5 }, own.address)
    for round = 1, support.count(30) do
      local call = ({ "refresh", "release", "verify" })[round % 3 + 1]
      local old = assert(one:lock(name, { ttl = 60 }):acquire())
      local id = its(key)[3]
      all "restart"
      local new = two:lock(name, { ttl = 60 })
      support.eventually(function() return new:acquire() end)
      local before = its(key)
      assert.is_true(before[3] <= id + 8) -- ids start over
      assert_fails("lost", "lost", old[call](old))
      assert.same(before, its(key))
      assert.is_true(new:verify())
      assert.is_true(new:token() > old:token())
      assert.is_true(new:release())
    end
  end)
end

local function checking()
  it("is told apart from a memcached by check", function()
    local facts = assert(client:check())
    assert.equal(1, #facts)
    assert.is_true(facts[1].proxy)
    assert.is_true(facts[1].cas)
    assert.truthy(table.concat(facts[1].findings, " "):find("option proxy", 1, true))
    assert.is_true(client:lock(name):acquire():release())
  end)
end

if not support.has_nutcracker() then
  pending "nutcracker is not installed"
  return
end

for _, setting in ipairs(settings) do
  describe("through nutcracker, " .. setting.title .. ", a lock", function()
    lazy_setup(function()
      backends, raws = {}, {}
      for i = 1, setting.servers do
        backends[i] = support.memcached()
        raws[i] = backends[i]:raw()
      end
      proxy = support.nutcracker(backends, { connections = setting.connections })
    end)

    lazy_teardown(function()
      proxy:close()
      for i, backend in ipairs(backends) do
        raws[i]:close()
        backend:close()
      end
    end)

    before_each(function()
      kept = {}
      client = open { timeout = 5, label = "first" }
      other = open { timeout = 5, label = "second" }
      name = support.name()
      key = "memlock:" .. name
    end)

    after_each(function()
      for _, backend in ipairs(backends) do backend:continue_process() end
      client:close()
      other:close()
    end)

    holding()
    losing()
    sharing()
    waiting()
    checking()
    describe("in doubt,", doubting)
    describe("whose servers are killed,", function() restarting(setting) end)
  end)
end
