--- `proxy = true`: the order of commands is not relied upon, nor what an earlier connection said.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server, raw, relay, client, other, name, key

before_each(function()
  server = support.server()
  raw = server:raw()
  relay = support.relay(server)
  client = memlock.client(relay.address, { proxy = true, timeout = 1, label = "first" })
  other = memlock.client(server.address, { proxy = true, timeout = 1, label = "second" })
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
end

-- The commands that `fn` sends, each with its key, in a list; and what `fn` returns.
-- Asserts that each waits for its reply, which takes a round trip.
local function sends(fn, ...)
  relay:reset()
  relay:record()
  local results = table.pack(fn(...))
  local sent = relay:sent()
  assert.is_nil(sent:find("noreply", 1, true), sent)
  local commands = {}
  for command, rest in sent:gmatch("(%a+) (#?memlock:[^\r\n]*)\r\n") do
    commands[#commands + 1] = command .. " " .. rest:match("^%S+"):gsub("^#?memlock:.*",
      function(of) return of:sub(1, 1) == "#" and "fence" or "lock" end)
  end
  assert.equal(#commands, relay:stats().answered)
  return commands, table.unpack(results, 1, results.n)
end

describe("behind a proxy every command waits for its reply", function()
  it("in acquire, which sends them in an order in which each is done before the next", function()
    local lock = client:lock(name)
    local commands, result = sends(lock.acquire, lock)
    assert.same({ "add lock", "add fence", "incr fence", "gets lock" }, commands)
    assert.equal(lock, result)
    assert.is_true(lock:release())
    assert.same({ "add lock", "add fence", "incr fence", "gets lock" },
      (sends(lock.acquire, lock)))
  end)

  it("in acquire of what somebody else holds", function()
    local taken = assert(other:lock(name):acquire())
    local lock = client:lock(name)
    local commands, ok, message, code = sends(lock.acquire, lock)
    assert_fails("held", "second", ok, message, code)
    assert.same({ "add lock", "add fence", "incr fence", "gets lock" }, commands)
    assert.is_true(taken:release())
  end)

  it("in refresh and release, which trust no id that an earlier call read", function()
    local lock = assert(client:lock(name):acquire())
    for _ = 1, 3 do
      local commands, refreshed = sends(lock.refresh, lock)
      assert.is_true(refreshed)
      assert.same({ "gets lock", "cas lock" }, commands)
    end
    local commands, released = sends(lock.release, lock)
    assert.is_true(released)
    assert.equal("cas lock", table.remove(commands))
    assert.equal(1, #commands) -- the read before it
    assert.truthy(commands[1]:find("^gets "))
    assert.is_nil(raw:get(key))
  end)

  it("in holder and verify", function()
    local lock = assert(client:lock(name):acquire())
    assert.same({ "gets lock" }, (sends(lock.verify, lock)))
    assert.same({ "gets lock" }, (sends(lock.holder, lock)))
    assert.is_true(lock:release())
    local commands, holder = sends(lock.holder, lock)
    assert.is_false(holder)
    assert.same({ "gets lock", "cas lock" }, commands)
  end)

  it("when a record is taken by compare-and-swap", function()
    raw:set(key, "", 30)
    local lock = client:lock(name)
    local commands, result = sends(lock.acquire, lock)
    assert.equal(lock, result)
    assert.same({ "add lock", "add fence", "incr fence", "gets lock",
      "cas lock", "add fence", "incr fence", "gets lock" }, commands)
  end)

  it("after a line that was cut", function()
    local lock = assert(client:lock(name):acquire())
    for _, call in ipairs { "refresh", "verify", "release", "acquire" } do
      relay:cut()
      local sent = select(2, sends(function()
        local ok = lock[call](lock)
        return ok
      end))
      assert.is_truthy(sent)
    end
  end)
end)

describe("behind a proxy a lock is a lock", function()
  it("that one holds at a time, by turns", function()
    local mine, its = client:lock(name, { ttl = 30 }), other:lock(name, { ttl = 30 })
    local last = 0
    for _ = 1, 3 do
      for _, pair in ipairs { { mine, its, "first" }, { its, mine, "second" } } do
        local lock, rival, label = pair[1], pair[2], pair[3]
        assert.equal(lock, lock:acquire())
        assert.is_true((lock:held()))
        assert.is_true(lock:token() > last)
        last = lock:token()
        assert_fails("held", label, rival:acquire())
        assert_fails("held", "this very object", lock:acquire())
        assert.is_true(lock:verify())
        assert.is_true(lock:refresh(20))
        assert.equal(20, lock:holder().ttl)
        assert.is_false(rival:holder().mine)
        assert.is_true(lock:release())
        assert_fails("not_held", name, lock:release())
        assert_fails("not_held", name, lock:refresh())
        assert.is_nil(raw:get(key))
      end
    end
  end)

  it("that a waiter gets when it is released", function()
    local child = support.child(function(channel, address, its_name)
      local lock = assert(memlock.client(address, { proxy = true }):lock(its_name):acquire())
      channel:send("held")
      support.sleep(0.3)
      return lock:release()
    end, server.address, name)
    child:receive()
    local lock = client:lock(name)
    local took, got = support.elapsed(lock.acquire, lock, 5)
    assert.equal(lock, got)
    assert.is_true(took > 0.2 and took < 0.3 + support.slack(0.3), took)
    assert.is_true(child:join())
  end)

  for _, call in ipairs { "refresh", "release", "verify" } do
    it("that is lost when it is gone, or another's: " .. call, function()
      local lock = assert(client:lock(name):acquire())
      raw:delete(key)
      assert_fails("lost", "gone", lock[call](lock))
      assert.is_nil(raw:get(key))
      assert_fails("not_held", name, lock[call](lock))

      assert(lock:acquire())
      raw:delete(key)
      local its = assert(other:lock(name):acquire())
      local before = { raw:gets(key) }
      assert_fails("lost", "lost", lock[call](lock))
      assert_fails("not_held", name, lock[call](lock))
      assert.same(before, { raw:gets(key) })
      assert.is_true(its:release())
    end)

    it("whose end nobody else's record feels: " .. call, function()
      local lock = assert(client:lock(name, { ttl = 0.1 }):acquire())
      support.eventually(function() return not lock:held() end)
      raw:delete(key)
      local its = assert(other:lock(name):acquire())
      local before = { raw:gets(key) }
      assert_fails("lost", "lease ended", lock[call](lock))
      assert.same(before, { raw:gets(key) })
      assert.is_true(its:release())
    end)
  end

  it("that another program's value keeps out, and an empty one does not", function()
    local lock = client:lock(name)
    raw:set(key, "of another program", 30)
    assert_fails("held", "another program", lock:acquire())
    assert.equal("of another program", (raw:get(key)))
    raw:set(key, "", 30)
    assert.equal(lock, lock:acquire())
  end)

  it("that an identity shares, and takes over", function()
    local one = client:lock(name, { identity = "web-1" })
    local two = other:lock(name, { identity = "web-1" })
    assert(one:acquire())
    assert.equal(two, two:acquire())
    local before = { raw:gets(key) }
    assert_fails("lost", "lost", one:release())
    assert.same(before, { raw:gets(key) })
    assert.is_true(two:release())
    assert.is_nil(raw:get(key))
  end)

  it("that is taken over by its object after a timeout, and removed by its client", function()
    local lock = client:lock(name, { ttl = 30 })
    relay:pause("down")
    assert_fails("timeout", name, lock:acquire())
    assert.is_truthy(raw:get(key))
    relay:plain()
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
    relay:pause("down")
    assert_fails("timeout", name, lock:acquire())
    relay:plain()
    assert.is_truthy(raw:get(key))
    support.eventually(function()
      assert.is_true(client:lock(support.name()):acquire():release())
      return raw:get(key) == nil
    end, support.slack(1))
  end)

  it("that the release of finishes when it is asked for again", function()
    local lock = assert(client:lock(name, { ttl = 30 }):acquire())
    relay:hold_up("cas " .. key)
    assert_fails("timeout", name, lock:release())
    assert.is_truthy(raw:get(key))
    relay:plain()
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end)
end)

it("behind a proxy an old holder leaves a new one's record alone after a restart", function()
  local own = support.memcached()
  for round = 1, support.count(60) do
    local call = ({ "refresh", "release", "verify" })[round % 3 + 1]
    local a = memlock.client(own.address, { proxy = true, timeout = 5 })
    local b = memlock.client(own.address, { proxy = true, timeout = 5 })
    local old = assert(a:lock(name, { ttl = 60 }):acquire())
    local _, _, id = own:raw():gets(key)
    own:restart()
    local new = assert(b:lock(name, { ttl = 60 }):acquire())
    local before = { own:raw():gets(key) }
    assert.equal(id, before[3])
    assert_fails("lost", "lost", old[call](old))
    assert.same(before, { own:raw():gets(key) })
    assert.is_true(new:release())
    a:close()
    b:close()
    own:restart()
  end
end)

-- Somebody is always there when it adds, and gone again when it looks; or again somebody is there
-- when it then asks whether nobody is.
for _, asked in ipairs { "NOT_FOUND", "EXISTS" } do
  it("behind a proxy a lock that others take and leave all the time is held: " .. asked, function()
    local fake = support.fake(function(connection)
      local count = 1796023714502099
      while true do
        local command = connection:read_command()
        if not command then return end
        if command.name == "incr" then
          count = count + 1
          connection:write(count .. "\r\n")
        elseif command.name == "gets" then
          local fence = command.line:match("#%S+")
          local reply = fence and ("VALUE %s 0 %d 7\r\n%d\r\n"):format(fence, #(count .. ""), count)
          connection:write((reply or "") .. "END\r\n")
        else
          connection:write((command.name == "cas" and asked or "NOT_STORED") .. "\r\n")
        end
      end
    end)
    local contender = memlock.client(fake.address, { proxy = true, timeout = 1 })
    local lock = contender:lock(name)
    assert_fails("held", "others keep taking it", lock:acquire())
    local stats = contender:stats()
    assert.same({ 1, 1, 0 }, { stats.attempts, stats.contended, stats.errors })
    contender:close()
  end)
end

it("behind a proxy a lock that changes hands quickly is acquired, or held", function()
  local rival = support.child(function(channel)
    local connection = server:raw()
    channel:send("ready")
    while not pcall(channel.receive, channel, 0) do
      local taken = connection:add(key, "of another program", 30)
      support.sleep(0.001)
      if taken then connection:delete(key) end
      support.sleep(0.001)
    end
  end)
  rival:receive()
  relay:delay("both", 0.0005) -- so that much happens between its commands
  local lock = client:lock(name)
  local acquired = 0
  for _ = 1, support.count(1000) do
    local ok, message, code = lock:acquire()
    if ok then
      acquired = acquired + 1
      assert.is_true(lock:release())
    else
      assert.equal("held", code, message)
    end
  end
  rival:send("stop")
  rival:join()
  assert.equal(0, client:stats().errors)
  assert.equal(acquired, client:stats().acquired)
end)

describe("behind a proxy a counter that is garbage", function()
  it("is refused", function()
    raw:set("#" .. key, "garbage", 100)
    local lock = client:lock(name)
    assert_fails("refused", name, lock:acquire())
    assert.is_false((lock:held()))
    raw:delete("#" .. key)
    raw:delete(key)
    assert.equal(lock, lock:acquire())
  end)
end)
