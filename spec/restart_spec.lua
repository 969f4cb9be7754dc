--- A server that forgets: restarts, after which CAS ids start over, and flushes.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

local calls = { "refresh", "release", "verify" }

for _, kind in ipairs { "a port", "a unix socket", "a relay" } do
  describe("CAS ids that start over, on " .. kind, function()
    -- Each round: A acquires on a fresh server, which then restarts; B acquires with the very same
    -- commands, so that its record gets the CAS id that A's had; A goes on as if nothing had
    -- happened. In some rounds A's client has a new connection by then, which makes no old id good.
    it("do not make an old holder touch a new holder's record", function()
      local server = support.memcached { unix = kind == "a unix socket" }
      local address = kind == "a relay" and support.relay(server).address or server.address
      local rounds, collisions = support.count(200), 0
      if kind ~= "a port" then rounds = math.max(6, rounds // 4) end
      for round = 1, rounds do
        local call = calls[round % 3 + 1]
        local reconnected = round % 2 == 0
        local name = support.name()
        local key = "memlock:" .. name
        local a = memlock.client(address, { timeout = 5 })
        local b = memlock.client(address, { timeout = 5, label = "second" })
        local old = assert(a:lock(name, { ttl = 60 }):acquire())
        local _, _, old_id = server:raw():gets(key)

        server:restart()
        local raw = server:raw()
        local new = assert(b:lock(name, { ttl = 60 }):acquire())
        local before = { raw:gets(key) }
        if before[3] == old_id then collisions = collisions + 1 end
        if reconnected then assert.is_false(a:holder(support.name())) end

        -- What a release says that was sent on a dead connection is the matter of a test below.
        if call ~= "release" or reconnected then
          assert_fails("lost", "lost", old[call](old))
        else
          old:release()
        end
        assert.same(before, { raw:gets(key) })
        assert.is_false((old:held()))
        assert_fails("not_held", "not held", old:release())
        assert_fails("not_held", "not held", old:refresh())
        a:close()
        assert.same(before, { raw:gets(key) })
        assert.is_true((new:held()))
        assert.is_true(new:release())
        b:close()
        raw:close()
        server:restart() -- the next round begins on a fresh one, too
      end
      assert.is_true(collisions > rounds / 2, collisions .. " of " .. rounds)
    end)

    it("do not make a finalizer or a close touch it", function()
      local server = support.memcached { unix = kind == "a unix socket" }
      local address = kind == "a relay" and support.relay(server).address or server.address
      local collisions = 0
      local rounds = support.count(60)
      for round = 1, rounds do
        local name = support.name()
        local key = "memlock:" .. name
        local a = memlock.client(address, { timeout = 5 })
        local b = memlock.client(address, { timeout = 5 })
        local old = assert(a:lock(name, { ttl = 60 }):acquire())
        local _, _, old_id = server:raw():gets(key)
        server:restart()
        local raw = server:raw()
        local new = assert(b:lock(name, { ttl = 60 }):acquire())
        local before = { raw:gets(key) }
        if before[3] == old_id then collisions = collisions + 1 end
        assert.is_true((old:held())) -- it does not know yet
        if round % 2 == 0 then assert.is_false(a:holder(support.name())) end
        old = nil -- luacheck: ignore
        if round % 3 == 0 then collectgarbage() end
        a:close()
        assert.same(before, { raw:gets(key) })
        assert.is_true(new:verify())
        b:close()
        raw:close()
        server:restart()
      end
      assert.is_true(collisions > rounds / 2, collisions .. " of " .. rounds)
    end)
  end)
end

describe("a server that restarted", function()
  local server, client, lock, key

  before_each(function()
    server = support.memcached()
    client = memlock.client(server.address, { timeout = 5 })
    local name = support.name()
    key = "memlock:" .. name
    lock = assert(client:lock(name, { ttl = 60 }):acquire())
    server:restart()
  end)

  after_each(function() client:close() end)

  for _, call in ipairs(calls) do
    it("has lost the lock, once, and gets no record back: " .. call, function()
      assert_fails("lost", "gone", lock[call](lock))
      assert.is_false((lock:held()))
      assert_fails("not_held", "not held", lock[call](lock))
      assert.is_nil(server:raw():get(key))
      assert.equal(1, client:stats().lost)
    end)
  end

  for _, call in ipairs(calls) do
    it("has lost the lock to whoever came first: " .. call, function()
      local other = memlock.client(server.address, { timeout = 5, label = "second" })
      local new = assert(other:lock(lock:name(), { ttl = 60 }):acquire())
      local raw = server:raw()
      local before = { raw:gets(key) }
      assert_fails("lost", "lost", lock[call](lock))
      assert.same(before, { raw:gets(key) })
      assert_fails("not_held", "not held", lock:release())
      assert.is_true(new:release())
      other:close()
    end)
  end

  it("is asked anew, by the same object too, and counts tokens on", function()
    local token = lock:token()
    assert_fails("lost", "gone", lock:release())
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:token() > token)
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    assert.is_nil(server:raw():get(key))
  end)

  it("keeps the lock of a holder that comes after a wait", function()
    local other = memlock.client(server.address, { timeout = 5, label = "second" })
    local new = assert(other:lock(lock:name(), { ttl = 60 }):acquire())
    assert_fails("lost", "second", lock:refresh())
    assert_fails("held", "second", lock:acquire())
    assert.is_true(new:verify())
    other:close()
  end)
end)

it("a server that is down has not lost the lock: the refresh after it comes back decides",
  function()
    local server = support.memcached()
    local relay = support.relay(server)
    local client = memlock.client(relay.address, { timeout = 2 })
    local lock = assert(client:lock(support.name(), { ttl = 60 }):acquire())
    relay:refuse()
    relay:cut()
    assert_fails("unreachable", relay.address, lock:refresh())
    assert.is_true((lock:held()))
    assert_fails("unreachable", relay.address, lock:verify())
    assert.is_true((lock:held()))
    relay:accept()
    assert.is_true(lock:refresh())
    relay:refuse()
    relay:cut()
    assert_fails("unreachable", relay.address, lock:refresh())
    server:restart()
    relay:accept()
    assert_fails("lost", "gone", lock:refresh())
    client:close()
  end)

describe("flush_all", function()
  local raw, client, lock, key

  before_each(function()
    local server = support.server()
    raw = server:raw()
    client = memlock.client(server.address, { timeout = 5 })
    local name = support.name()
    key = "memlock:" .. name
    lock = assert(client:lock(name, { ttl = 60 }):acquire())
    raw:flush_all()
  end)

  after_each(function() client:close() end)

  for _, call in ipairs(calls) do
    it("is noticed, once, and the record is not created anew: " .. call, function()
      assert_fails("lost", "gone", lock[call](lock))
      assert.is_false((lock:held()))
      for _, again in ipairs(calls) do
        assert_fails("not_held", "not held", lock[again](lock))
      end
      assert.is_nil(raw:get(key))
      assert.equal(1, client:stats().lost)
      assert.is_false(lock:holder())
    end)
  end

  it("leaves the next holder's record alone", function()
    local next_one = assert(client:lock(lock:name(), { ttl = 60 }):acquire())
    local before = { raw:gets(key) }
    assert_fails("lost", "lost", lock:release())
    assert.same(before, { raw:gets(key) })
    assert.is_true(next_one:verify())
  end)
end)
