--- How long a lease lasts: for its holder, who counts by a clock of its own, and on the server,
-- which drops nothing before the holder has stopped counting.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server, raw, client

before_each(function()
  server = support.server()
  raw = server:raw()
  client = memlock.client(server.address, { timeout = 5 })
end)

after_each(function() client:close() end)

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

local function key_of(lock) return "memlock:" .. lock:name() end

describe("nobody else gets in", function()
  -- Tries `add` on all keys at once. Returns the set of those that were free.
  local function add_all(keys)
    local lines = {}
    for key in pairs(keys) do lines[#lines + 1] = ("add %s 0 60 1\r\nx\r\n"):format(key) end
    raw:send(table.concat(lines))
    local free = {}
    for key in pairs(keys) do
      local reply = raw:line()
      if reply == "STORED" then free[key] = true else assert.equal("NOT_STORED", reply) end
    end
    return free
  end

  it("before held() is false, nor within the ttl, at any moment of the server's clock", function()
    local left = support.count(200)
    while left > 0 do
      -- A few at a time, each begun at a moment of its own, all watched in one loop.
      local due, watched = {}, {}
      local start = support.now()
      for _ = 1, math.min(left, 20) do due[#due + 1] = start + math.random() * 1.2 end
      left = left - #due
      table.sort(due)
      while #due > 0 or next(watched) do
        while due[1] and support.now() >= due[1] do
          table.remove(due, 1)
          local lock = client:lock(support.name(), { ttl = 1 })
          local called = support.now()
          assert(lock:acquire())
          watched[key_of(lock)] = { lock = lock, called = called }
        end
        if next(watched) then
          for key in pairs(add_all(watched)) do
            local holder = watched[key]
            assert.is_false((holder.lock:held()))
            assert.is_true(support.now() - holder.called >= 1.0)
            watched[key] = nil
          end
        end
        assert.is_true(support.now() - start < support.slack(6))
        support.sleep(0.005)
      end
    end
  end)
end)

describe("the expiry that is sent", function()
  local relay

  before_each(function()
    relay = support.relay(server)
    client:close()
    client = memlock.client(relay.address, { timeout = 5 })
    relay:record()
  end)

  -- ceil(1.001 * ttl) + 2
  for ttl, expiry in pairs { [0.25] = 3, [0.5] = 3, [0.999] = 3, [1] = 4, [1.5] = 4, [16] = 19,
    [999] = 1002, [1000] = 1003, [1001] = 1005, [86400] = 86489, [2419200] = 2421622 } do
    it(("outlives a ttl of %g s by two seconds and a thousandth"):format(ttl), function()
      local lock = client:lock(support.name(), { ttl = ttl })
      assert(lock:acquire())
      local sent = relay:sent()
      assert.equal(expiry, tonumber(sent:match("add " .. key_of(lock):gsub("%-", "%%-")
        .. " %d+ (%d+) %d+ noreply\r\n")), sent)
      local there = raw:ttl(key_of(lock))
      assert.is_true(there == expiry or there == expiry - 1, there) -- whole seconds
      if ttl < 1 then return end -- too short to refresh in any case
      relay:reset()
      assert.is_true(lock:refresh())
      sent = relay:sent()
      assert.equal(expiry, tonumber(sent:match("cas " .. key_of(lock):gsub("%-", "%%-")
        .. " %d+ (%d+) %d+ %d+ noreply\r\n")), sent)
      relay:reset()
      assert.is_true(lock:release())
      assert.truthy(relay:sent():find(" 2592001 0 ", 1, true)) -- in the past: gone at once
    end)
  end

  it("is that of the ttl that refresh is given", function()
    local lock = assert(client:lock(support.name(), { ttl = 16 }):acquire())
    for ttl, expiry in pairs { [5] = 8, [100] = 103, [2.5] = 5 } do
      assert.is_true(lock:refresh(ttl))
      local there = raw:ttl(key_of(lock))
      assert.is_true(there == expiry or there == expiry - 1, there)
      assert.equal(ttl, lock:holder().ttl)
    end
  end)
end)

describe("held()", function()
  it("counts down from the ttl, and says what is left", function()
    local lock = client:lock(support.name(), { ttl = 0.5 })
    assert.same({ false, 0.0 }, { lock:held() })
    local called = support.now()
    assert(lock:acquire())
    local acquired = support.now()
    local before = math.huge
    while true do
      local at = support.now()
      local held, left = lock:held()
      assert.equal(held, left > 0)
      assert.is_true(left <= before)
      if held then
        assert.is_true(at - acquired < 0.5)
        assert.is_true(left <= 0.5 - (at - acquired))
      else
        assert.is_true(support.now() - called >= 0.5)
        assert.equal(0, left)
        break
      end
      before = left
      support.sleep(0.01)
    end
    assert.is_truthy(raw:get(key_of(lock))) -- the server keeps it for longer
  end)

  it("is as long as the ttl, fractions included, from before the call on", function()
    for _, ttl in ipairs { 0.25, 1, 1.75, 2.5, 60, 2419200 } do
      local lock = client:lock(support.name(), { ttl = ttl })
      local took = support.elapsed(function() assert(lock:acquire()) end)
      local held, left = lock:held()
      assert.is_true(held)
      assert.is_true(left <= ttl)
      assert.is_true(left > ttl - took - support.slack(0.02), left)
      assert.equal(ttl, lock:holder().ttl)
    end
  end)

  it("is false once it is given up or lost, and the name can be taken", function()
    local lock = assert(client:lock(support.name(), { ttl = 60 }):acquire())
    assert.is_true(lock:release())
    assert.same({ false, 0.0 }, { lock:held() })
    assert.is_true(raw:add(key_of(lock), "x"))
    assert.is_true(raw:delete(key_of(lock)))
    assert(lock:acquire())
    raw:delete(key_of(lock))
    assert.is_true((lock:held())) -- nobody has told it yet
    assert_fails("lost", "gone", lock:refresh())
    assert.same({ false, 0.0 }, { lock:held() })
  end)

  it("starts anew with each acquisition", function()
    local lock = client:lock(support.name(), { ttl = 0.2 })
    for _ = 1, 3 do
      assert(lock:acquire())
      support.eventually(function() return not lock:held() end)
      raw:delete(key_of(lock))
    end
    local again = assert(client:lock(lock:name(), { ttl = 60 }):acquire())
    assert.is_false((lock:held()))
    assert.is_true((again:held()))
  end)

  it("counts from before the request, not from the reply", function()
    local relay = support.relay(server)
    relay:delay("down", 0.3)
    local far = memlock.client(relay.address, { timeout = 5 })
    local lock = assert(far:lock(support.name(), { ttl = 10 }):acquire())
    local _, left = lock:held()
    assert.is_true(left <= 9.7, left)
    assert.is_true(lock:refresh())
    _, left = lock:held()
    assert.is_true(left <= 9.7 and left > 9.7 - support.slack(0.2), left)
    relay:plain()
    far:close()
  end)
end)

describe("refresh", function()
  local relay, lock

  before_each(function()
    relay = support.relay(server)
    client:close()
    client = memlock.client(relay.address, { timeout = 0.2 })
    lock = assert(client:lock(support.name(), { ttl = 20 }):acquire())
  end)

  local function left()
    return (select(2, lock:held()))
  end

  local function assert_about(seconds)
    assert.is_true(left() <= seconds and left() > seconds - support.slack(0.1), left())
  end

  it("gives a full ttl from now", function()
    support.sleep(0.1)
    assert.is_true(left() <= 19.9)
    assert.is_true(lock:refresh())
    assert_about(20)
  end)

  it("makes the lease shorter or longer", function()
    assert.is_true(lock:refresh(5))
    assert_about(5)
    assert.is_true(lock:refresh(100))
    assert_about(100)
    assert.is_true(lock:refresh())
    assert_about(20)
    assert.is_true(lock:refresh(0.15))
    assert_about(0.15)
    support.eventually(function() return not lock:held() end)
    assert_fails("lost", "lease ended", lock:refresh(100))
    assert.is_false((lock:held()))
  end)

  it("makes the lease shorter before it is known that the server did", function()
    relay:pause("up")
    assert_fails("timeout", relay.address, lock:refresh(5))
    assert_about(5)
    relay:plain()
  end)

  it("makes the lease longer only when the server did", function()
    relay:pause("up")
    assert_fails("timeout", relay.address, lock:refresh(100))
    assert.is_true(left() <= 20)
    relay:drop("up")
    relay:resume("up")
    assert_fails("timeout", relay.address, lock:refresh(100))
    assert.is_true(left() <= 20)
    assert.is_true((lock:held()))
    relay:plain()
    assert.is_true(lock:refresh(100))
    assert_about(100)
  end)

  it("does not count a longer lease by a reply that did not come", function()
    relay:pause("down")
    assert_fails("timeout", relay.address, lock:refresh(100))
    assert.is_true(left() <= 20)
    assert.is_true(raw:ttl(key_of(lock)) > 20) -- although it was done
    relay:plain()
  end)
end)

describe("a holder that is frozen past its lease", function()
  it("finds at its first look that it does not hold it", function()
    local child = support.child(function(channel, address, name)
      local lock = assert(memlock.client(address):lock(name, { ttl = 0.5 }):acquire())
      assert(lock:held())
      channel:send("held")
      channel:receive(60)
      local held, left = lock:held()
      local ok, _, code = lock:refresh()
      return held, left, ok, code, (lock:held())
    end, server.address, support.name())
    child:receive()
    child:kill("STOP")
    support.sleep(0.6)
    child:send("look")
    child:kill("CONT")
    assert.same({ n = 5, false, 0.0, nil, "lost", false }, table.pack(child:join()))
  end)

  it("never believes that it holds it longer than its ttl, however often it is frozen", function()
    local name = support.name()
    local child = support.child(function(channel, address, its_name)
      local lock = memlock.client(address):lock(its_name, { ttl = 0.3 })
      assert(lock:acquire())
      local start = support.now()
      channel:send("held")
      local looks, late = 0, 0
      repeat
        local at = support.now()
        local held = lock:held()
        looks = looks + 1
        if held and at - start >= 0.3 then late = late + 1 end
        support.sleep(0.001)
      until at - start > 0.6
      return looks, late, (lock:held())
    end, server.address, name)
    child:receive()
    for _ = 1, 20 do
      child:kill("STOP")
      support.sleep(0.02)
      child:kill("CONT")
      support.sleep(0.005)
    end
    local looks, late, held = child:join()
    assert.is_true(looks > 5)
    assert.equal(0, late)
    assert.is_false(held)
  end)

  it("finds the next holder in place, and leaves it there", function()
    local name = support.name()
    local child = support.child(function(channel, address)
      local lock = assert(memlock.client(address):lock(name, { ttl = 0.2 }):acquire())
      channel:send("held")
      channel:receive(60)
      local held = lock:held()
      return held, (select(3, lock:refresh())), (select(3, lock:release()))
    end, server.address)
    child:receive()
    child:kill("STOP")
    local lock = client:lock(name, { ttl = 60 })
    support.eventually(function() return lock:acquire() end, 8)
    local before = { raw:gets(key_of(lock)) }
    child:send("look")
    child:kill("CONT")
    assert.same({ false, "lost", "not_held" }, { child:join() })
    assert.same(before, { raw:gets(key_of(lock)) })
    assert.is_true(lock:verify())
  end)
end)
