--- Whose lock it is: nobody deletes, extends or overwrites what somebody else holds.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server, raw, client, other, name, key
local kept -- locks that a test holds on to: one that is collected is given up

before_each(function()
  kept = {}
  server = support.server()
  raw = server:raw()
  client = memlock.client(server.address, { label = "first" })
  other = memlock.client(server.address, { label = "second" })
  name = support.name()
  key = "memlock:" .. name
end)

after_each(function()
  client:close()
  other:close()
end)

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
  assert.truthy(message:find(name, 1, true), message)
end

-- Value, flags and CAS id: what no operation may change that is not the holder's.
local function record()
  return { raw:gets(key) }
end

-- Acquires a lock that stays until the end of the test, whatever is collected meanwhile.
local function take(of, options)
  local lock = assert(of:lock(name, options):acquire())
  kept[#kept + 1] = lock
  return lock
end

local function expired(lock)
  support.eventually(function() return not lock:held() end)
end

-- Waits until the server has dropped the record, up to three seconds after a short lease.
local function dropped()
  support.eventually(function() return raw:get(key) == nil end, 8)
end

-- The same for those with less time: the lease has run out, and the server has no record.
local function over(lock)
  expired(lock)
  raw:delete(key)
end

-- A holder in a process of its own, so that it can be kept waiting in a call. It does what it is
-- told, a method of the lock at a time, and sends the results.
local function holder(address, options)
  return support.child(function(channel)
    local locks = memlock.client(address, options)
    local lock
    while true do
      local what, argument = channel:receive(60)
      if what == "lock" then
        lock = locks:lock(argument)
        channel:send("ready")
      elseif what == "acquire" then
        local ok, message, code = lock:acquire()
        channel:send(ok and true or nil, message, code)
      else
        channel:send(lock[what](lock, argument))
      end
    end
  end)
end

local function ask(child, ...)
  child:send(...)
  return child:receive()
end

describe("a holder whose lease ran out", function()
  local lock, next_one

  before_each(function()
    lock = take(client, { ttl = 0.2 })
    next_one = other:lock(name, { ttl = 60 })
  end)

  it("does not hold it before anybody else can", function()
    support.eventually(function()
      local taken = next_one:acquire()
      if taken then assert.is_false((lock:held())) end
      return taken
    end, 8)
  end)

  for _, call in ipairs { "release", "refresh", "verify" } do
    it("leaves the next holder's record as it is: " .. call, function()
      if call == "verify" then over(lock) else dropped() end
      assert.is_false((lock:held()))
      assert(next_one:acquire())
      local before, ttl = record(), raw:ttl(key)
      assert_fails("lost", "lease ended", lock[call](lock))
      assert.same(before, record())
      assert.is_true(raw:ttl(key) >= ttl - support.slack(1))
      assert_fails("not_held", "not held", lock:release())
      assert_fails("not_held", "not held", lock:refresh())
      assert.same(before, record())
      assert.is_false((lock:held()))
      assert.is_true((next_one:held()))
      assert.is_true(next_one:verify())
    end)
  end

  it("never creates it anew", function()
    over(lock)
    assert_fails("lost", "lease ended", lock:refresh(60))
    assert_fails("not_held", "not held", lock:refresh(60))
    assert.is_nil(raw:get(key))
    assert.is_false((lock:held()))
  end)

  it("cannot refresh it even while the server still has the record", function()
    expired(lock)
    assert.is_truthy(raw:get(key))
    assert_fails("lost", "lease ended", lock:refresh(60))
    assert.is_nil(raw:get(key)) -- nobody has to wait for it
    assert.is_truthy(next_one:acquire())
  end)

  it("loses it once, by the end of a block as well", function()
    over(lock)
    assert(next_one:acquire())
    local before = record()
    getmetatable(lock).__close(lock)
    assert.same(before, record())
    assert_fails("not_held", "not held", lock:release())
    assert.equal(1, client:stats().lost)
  end)

  it("can acquire it again, as any other", function()
    over(lock)
    local token = lock:token()
    assert(next_one:acquire())
    assert_fails("held", "second", lock:acquire())
    assert.is_true(next_one:release())
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:token() > token)
    assert.is_true((lock:held()))
  end)
end)

describe("a record that is gone or another's before the lease ran out", function()
  local lock

  before_each(function()
    lock = take(client, { ttl = 60 })
  end)

  for _, call in ipairs { "release", "refresh", "verify" } do
    it("is lost, once, and not created anew: " .. call, function()
      raw:delete(key)
      assert_fails("lost", "gone", lock[call](lock))
      assert.is_nil(raw:get(key))
      assert.is_false((lock:held()))
      assert_fails("not_held", "not held", lock:refresh())
      assert_fails("not_held", "not held", lock:release())
      assert.is_nil(raw:get(key))
    end)

    it("is lost to whoever has it now: " .. call, function()
      raw:delete(key)
      take(other)
      local before = record()
      assert_fails("lost", call == "release" and "lost" or "second", lock[call](lock))
      assert_fails("not_held", "not held", lock:release())
      assert.same(before, record())
      assert.is_false((lock:held()))
    end)

    it("is lost to another program's value: " .. call, function()
      raw:set(key, "of another program", 60, 7)
      local before = record()
      assert_fails("lost", call == "release" and "lost" or "another program", lock[call](lock))
      assert.same(before, record())
    end)

    it("is lost to a copy of the record with another id: " .. call, function()
      local value, flags = raw:get(key)
      local id = value:match("^memlock/1 (%x+) ")
      assert.equal(32, #id)
      raw:set(key, (value:gsub(id, id:reverse() .. "x")), 60, flags)
      local before = record()
      assert_fails("lost", "lost", lock[call](lock))
      assert.same(before, record())
    end)
  end

  it("still is ours when it was only written anew", function()
    local value, flags = raw:get(key)
    raw:set(key, value, 60, flags) -- another CAS id
    assert.is_true(lock:verify())
    assert.is_true(lock:refresh())
    value, flags = raw:get(key)
    raw:set(key, value, 60, flags)
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end)

  it("is not given up by a late finalizer", function()
    raw:delete(key)
    take(other)
    local before = record()
    lock, kept[1] = nil, nil
    collectgarbage()
    assert.is_true(client:lock(support.name()):acquire():release()) -- all before it is done
    assert.same(before, record())
  end)
end)

describe("a release that is held back on its way", function()
  local relay, first

  before_each(function()
    relay = support.relay(server)
    first = holder(relay.address, { ttl = 0.5, timeout = 30, label = "first" })
    ask(first, "lock", name)
  end)

  it("past the expiry does not touch the next holder's record", function()
    assert.is_true(ask(first, "acquire"))
    relay:hold_up("cas " .. key)
    first:send("release")
    assert.is_true(relay:wait_held())
    dropped()
    local second = take(other, { ttl = 30 })
    local before = record()
    relay:resume("up")
    assert_fails("lost", "lost", first:receive())
    assert.same(before, record())
    assert_fails("held", "second", client:lock(name):acquire())
    assert.is_true((second:held()))
    assert.is_true(second:release())
  end)

  it("does not touch it either when the server forgot the lock, at any moment", function()
    for _ = 1, support.count(200) do
      assert.is_true(ask(first, "acquire"))
      relay:hold_up("cas " .. key)
      first:send("release")
      assert.is_true(relay:wait_held())
      raw:delete(key)
      local second = take(other, { ttl = 30 })
      support.sleep(math.random() * 0.005)
      local before = record()
      relay:resume("up")
      assert_fails("lost", "lost", first:receive())
      assert.same(before, record())
      assert_fails("held", "second", client:lock(name):acquire())
      assert.is_true(second:release())
    end
  end)

  it("races with the next holder, and one of the two answers is true", function()
    for _ = 1, support.count(200) do
      assert.is_true(ask(first, "acquire"))
      first:send("release")
      support.sleep(math.random() * 0.0005)
      raw:delete(key)
      local second = other:lock(name, { ttl = 30 })
      local taken = second:acquire()
      local released, message, code = first:receive()
      if taken then
        assert.is_true(second:verify())
        assert.is_true(second:release())
      end
      assert.is_true(released or code == "lost", message)
      assert.is_nil(raw:get(key))
    end
  end)
end)

it("a refresh that is held back past the expiry does not touch the next holder's record", function()
  local relay = support.relay(server)
  local first = holder(relay.address, { ttl = 1, timeout = 30 })
  ask(first, "lock", name)
  assert.is_true(ask(first, "acquire"))
  relay:hold_up("cas " .. key)
  first:send("refresh")
  assert.is_true(relay:wait_held())
  raw:delete(key)
  local second = take(other, { ttl = 30 })
  local before = record()
  support.sleep(1)
  relay:resume("up")
  assert_fails("lost", "lost", first:receive())
  assert.is_false(ask(first, "held"))
  assert.same(before, record())
  assert.is_true(second:refresh())
end)

describe("what is not a record of ours", function()
  for _, value in ipairs { "1", " ", "\0", "memlock/1", "memlock/1 a b c d e",
    "memlock/2 x 1 1 1 y", ("x"):rep(5000) } do
    it("is held and never overwritten: " .. ("%q"):format(value:sub(1, 20)), function()
      assert.is_true(raw:add(key, value, 60, 3)) -- as another program locks
      local before = record()
      local lock = client:lock(name)
      assert_fails("held", "another program", lock:acquire())
      assert_fails("held", "another program", lock:acquire(0.05))
      assert.same({ mine = false, value = value }, lock:holder())
      assert_fails("not_held", "not held", lock:release())
      assert_fails("not_held", "not held", lock:refresh())
      assert.same(before, record())
      assert.is_true(raw:delete(key)) -- as it gives up
      assert.equal(lock, lock:acquire())
    end)
  end

  it("is kept out by us in turn", function()
    take(client)
    assert.is_false(raw:add(key, "of another program", 60))
  end)

  it("is free where it is empty, and is taken", function()
    raw:set(key, "", 0)
    local lock = client:lock(name, { ttl = 30 })
    assert.is_false(lock:holder())
    assert.equal(lock, lock:acquire())
    assert.is_true((lock:held()))
    assert.is_true(raw:ttl(key) > 0) -- it does not live on for ever
    assert_fails("held", "first", other:lock(name):acquire())
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end)

  it("is taken by one only where it is empty", function()
    local children = {}
    for i = 1, 4 do
      children[i] = holder(server.address, { ttl = 30 })
      ask(children[i], "lock", name)
    end
    for _ = 1, support.count(100) do
      raw:set(key, "", 0)
      for _, child in ipairs(children) do child:send("acquire") end
      local winners = {}
      for _, child in ipairs(children) do
        local ok, message, code = child:receive()
        if ok then winners[#winners + 1] = child end
        assert.is_true(ok or code == "held", message)
      end
      assert.equal(1, #winners)
      assert.is_true(ask(winners[1], "verify"))
      assert.is_true(ask(winners[1], "release"))
    end
  end)
end)

describe("an identity", function()
  local identity

  before_each(function() identity = support.name("web") end)

  it("shares a lock between its objects, and between its processes", function()
    local one = client:lock(name, { identity = identity, ttl = 30 })
    local two = other:lock(name, { identity = identity, ttl = 30 })
    assert.equal(one, one:acquire())
    assert.truthy(raw:get(key):find("^memlock/1 " .. identity:gsub("%-", "%%-") .. " "))
    assert.equal(two, two:acquire())
    assert.is_true((one:held()))
    assert.is_true((two:held()))
    assert.is_true(two:token() > one:token())
    assert.is_true(one:holder().mine)
    assert.equal(identity, two:holder().id)
    assert_fails("held", "second", client:lock(name):acquire())
    assert_fails("held", "second", client:lock(name, { identity = identity .. "x" }):acquire())
  end)

  it("takes over at once what it had in a process that died", function()
    local child = holder(server.address, { identity = identity, ttl = 600 })
    ask(child, "lock", name)
    assert.is_true(ask(child, "acquire"))
    local token = ask(child, "token")
    child:kill("KILL")
    child:wait()
    assert_fails("held", "has held it", client:lock(name):acquire())
    local again = memlock.client(server.address, { identity = identity })
    local took, lock = support.elapsed(function() return again:lock(name):acquire() end)
    assert.is_truthy(lock)
    assert.is_true(took < support.slack(0.1), took)
    assert.is_true(lock:token() > token)
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
    again:close()
  end)

  it("does not give up with an older object what the newer one took", function()
    local older = client:lock(name, { identity = identity, ttl = 30 })
    local newer = other:lock(name, { identity = identity, ttl = 30 })
    assert(older:acquire())
    assert(newer:acquire())
    local before = record()
    assert_fails("lost", "lost", older:release())
    assert_fails("not_held", "not held", older:release())
    assert.same(before, record())
    assert.is_true(newer:verify())
    assert.is_true(newer:refresh())
    assert.is_true(newer:release())
    assert.is_nil(raw:get(key))
  end)

  it("does not give it up by collecting or closing the older object", function()
    local older = client:lock(name, { identity = identity, ttl = 30 })
    local newer = other:lock(name, { identity = identity, ttl = 30 })
    assert(older:acquire())
    assert(newer:acquire())
    local before = record()
    older = nil -- luacheck: ignore
    collectgarbage()
    client:close()
    assert.same(before, record())
    assert.is_true(newer:verify())
  end)

  it("does not lose the longer lease of one object when another asks for a shorter one", function()
    local longer = client:lock(name, { identity = identity, ttl = 60 })
    local shorter = other:lock(name, { identity = identity, ttl = 0.2 })
    assert(longer:acquire())
    local function stands()
      assert.is_true(raw:ttl(key) >= 59, raw:ttl(key))
      assert.is_true(select(2, longer:held()) > 50)
      assert_fails("held", "second", client:lock(name):acquire())
    end
    assert(shorter:acquire())
    assert.is_true(select(2, shorter:held()) <= 0.2)
    stands()
    assert.is_true(shorter:refresh(0.1))
    stands()
    assert.is_true(longer:verify())
    assert.is_true(longer:refresh())
    assert.is_true(longer:release())
  end)

  it("does not lose it either when the shorter one ran out and is acquired anew", function()
    local longer = client:lock(name, { identity = identity, ttl = 60 })
    local shorter = other:lock(name, { identity = identity, ttl = 0.2 })
    assert(longer:acquire())
    for _ = 1, 3 do -- from the second on, the record that is there is its own
      assert(shorter:acquire())
      assert.is_true(raw:ttl(key) >= 59, raw:ttl(key))
      expired(shorter)
    end
    assert.is_true(longer:verify())
    assert.is_true(longer:release())
  end)

  it("does not lose it either when the shorter one is renewed in the background", function()
    local shorter = other:lock(name, { identity = identity, ttl = 0.9, auto_refresh = true })
    local longer = client:lock(name, { identity = identity, ttl = 60 })
    assert(shorter:acquire())
    assert(longer:acquire()) -- before the first renewal
    support.eventually(function()
      assert.is_true(raw:ttl(key) >= 59, raw:ttl(key))
      return other:stats().renewals >= 3
    end)
    assert.is_true(longer:verify())
    assert.is_true(longer:release())
  end)

  it("does not keep the older lease when a newer one was shortened and ran out", function()
    local older = client:lock(name, { identity = identity, ttl = 60 })
    local newer = other:lock(name, { identity = identity, ttl = 0.2 })
    assert(older:acquire())
    assert(newer:acquire())
    over(newer)
    assert_fails("lost", "gone", older:refresh())
    assert.is_nil(raw:get(key))
    assert.is_false((older:held()))
  end)
end)

it("a refresh that shortened the lease beyond its end reports the loss once", function()
  local lock = take(client, { ttl = 60 })
  assert.is_true(lock:refresh(0.05))
  expired(lock)
  assert_fails("lost", "lease ended", lock:refresh())
  assert_fails("not_held", "not held", lock:refresh())
  assert.equal(1, client:stats().lost)
end)
