--- Who holds a lock, and how an operator removes exactly what he was shown.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local raw = server:raw()
local client, name, key

before_each(function()
  client = memlock.client(server.address)
  name = support.name()
  key = "memlock:" .. name
end)

after_each(function()
  client:close()
  raw:delete(key)
end)

local function fails(code, part, ...)
  local result, message, found = ...
  assert.same({ nil, code }, { result, found }, tostring(message))
  assert.truthy(message:find(part, 1, true), ("no %q in: %s"):format(part, message))
  assert.is_nil(message:find("%c"), message)
end

-- Both ways to ask.
local function ask()
  local one = table.pack(client:holder(name))
  local two = table.pack(client:lock(name):holder())
  assert.same(one, two)
  return table.unpack(one, 1, one.n)
end

describe("holder", function()
  it("of a free lock is false", function()
    assert.same({ n = 1, false }, table.pack(ask()))
    local lock = assert(client:lock(name):acquire())
    lock:release()
    assert.is_false((ask()))
  end)

  it("of a held lock tells all that its record has", function()
    local holder = memlock.client(server.address, { label = "blue team, \u{e9}quipe 1" })
    local lock = assert(holder:lock(name, { ttl = 12.5 }):acquire())
    local shown = client:holder(name)
    local value = raw:get(key)
    assert.same({ id = value:match("^memlock/1 (%x+) "), label = "blue team, \u{e9}quipe 1",
      since = shown.since, ttl = 12.5, mine = false, value = value }, shown)
    assert.equal(32, #shown.id)
    assert.equal("integer", math.type(shown.since))
    assert.equal("float", math.type(shown.ttl))
    assert.is_true(math.abs(os.time() - shown.since) <= 2) -- os.time may lag behind a little
    lock:refresh(100)
    local later = client:holder(name)
    assert.equal(shown.id, later.id)
    assert.equal(shown.since, later.since)
    assert.equal(100, later.ttl)
    assert.are_not.equal(shown.value, later.value)
    holder:close()
  end)

  it("has host and process as a label by default", function()
    local lock = assert(client:lock(name):acquire())
    local label = client:holder(name).label
    assert.truthy(label:find("^.+:" .. support.posix.getpid() .. "$"), label)
    lock:release()
  end)

  it("is asked in one round trip when there is one", function()
    local relay = support.relay(server)
    local asker = memlock.client(relay.address)
    assert.is_false(asker:holder(name))
    local lock = assert(client:lock(name):acquire())
    relay:reset()
    assert.is_false(asker:holder(name).mine)
    assert.equal(1, relay:round_trips())
    lock:release()
    asker:close()
  end)

  it("of another program's value is the value, and nothing made up", function()
    for _, value in ipairs { "1", "0", " ", "host-17:4711", "\0", "memlock", "\27[2J\27]0;x\7" } do
      raw:set(key, value)
      assert.same({ mine = false, value = value }, (ask()))
      fails("held", "another program", client:lock(name):acquire())
    end
  end)

  it("of an empty value is nobody: it may be taken", function()
    raw:set(key, "")
    assert.is_false((ask()))
    local lock = client:lock(name)
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
  end)

  it("of a damaged or hostile value is the value alone, and nobody takes it", function()
    local id = ("a"):rep(32)
    for _, value in ipairs {
      "memlock/1", "memlock/1 ", "memlock/1  ", "memlock/1 " .. id,
      "memlock/2 " .. id .. " 1 1 1 host:1",
      "memlock/11 " .. id .. " 1 1 1 host:1",
      "Memlock/1 " .. id .. " 1 1 1 host:1",
      " memlock/1 " .. id .. " 1 1 1 host:1",
      "memlock/1 " .. id .. " 1 1 1",
      "memlock/1 " .. id .. " x 1 1 host:1",
      "memlock/1 " .. id .. " -1 1 1 host:1",
      "memlock/1 " .. id .. " 1 x 1 host:1",
      "memlock/1 " .. id .. " 1 -1 1 host:1",
      "memlock/1 " .. id .. " 1 1 0 host:1",
      "memlock/1 " .. id .. " 1 1 -1 host:1",
      "memlock/1 " .. id .. " 1 1 1.2345 host:1",
      "memlock/1 " .. id .. " 1 1 1. host:1",
      "memlock/1 " .. id .. " 1 1 1e3 host:1",
      "memlock/1 " .. id .. " 1 1 nan host:1",
      "memlock/1 " .. id .. " 1  1 1 host:1",
      "memlock/1 " .. id .. " 18446744073709551616 1 1 host:1",
      "memlock/1 " .. id .. " 1 9223372036854775808 1 host:1",
      "memlock/1 " .. id .. " 1 1 9223372036854775807 host:1",
      "memlock/1 " .. ("a"):rep(65) .. " 1 1 1 host:1",
      "memlock/1 " .. id .. "\t 1 1 1 host:1",
      "memlock/1 " .. id .. " 1 1 1 " .. ("h"):rep(129),
      "memlock/1 " .. id .. " 1 1 1 \27[2Jhost:1",
      "memlock/1 " .. id .. " 1 1 1 host\0:1",
      "memlock/1 " .. id .. " 1 1 1 host:1\n",
      "memlock/1 " .. id .. " 1 1 1 host:1\r\nEND\r\n",
      "memlock/1 " .. id .. " 1 1 1 host:1\127",
      ("x"):rep(1000), ("\0"):rep(1000 * 1000), ("memlock/1 "):rep(10000),
    } do
      raw:set(key, value)
      assert.same({ mine = false, value = value }, (ask()), value:sub(1, 80))
      fails("held", name, client:lock(name):acquire())
      assert.equal(value, (raw:get(key)))
    end
  end)

  it("reads every well-formed record, also odd ones", function()
    for _, case in ipairs {
      { "memlock/1 x 0 0 0.001 ", id = "x", since = 0, ttl = 0.001, label = "" },
      { "memlock/1 \u{e9} 18446744073709551615 9223372036854775807 1 a b", id = "\u{e9}",
        since = math.maxinteger, ttl = 1, label = "a b" },
      { "memlock/1 " .. ("i"):rep(64) .. " 1 1 2419200.999 " .. ("l"):rep(128),
        id = ("i"):rep(64), since = 1, ttl = 2419200.999, label = ("l"):rep(128) },
      { "memlock/1 %s%n 7 7 1.5 %s%n%d", id = "%s%n", since = 7, ttl = 1.5, label = "%s%n%d" },
    } do
      raw:set(key, case[1])
      assert.same({ id = case.id, since = case.since, ttl = case.ttl, label = case.label,
        mine = false, value = case[1] }, (ask()))
      fails("held", case.label ~= "" and case.label or case.id, client:lock(name):acquire())
    end
  end)

  it("is mine for this client's locks, and for those of its identity", function()
    local lock = assert(client:lock(name):acquire())
    assert.is_true(client:holder(name).mine)
    assert.is_true(lock:holder().mine)
    assert.is_true(client:lock(name):holder().mine)
    local stranger = memlock.client(server.address)
    assert.is_false(stranger:holder(name).mine)
    lock:release()

    local web = memlock.client(server.address, { identity = "web-1" })
    assert(web:lock(name):acquire())
    assert.is_true(web:holder(name).mine)
    assert.is_true(memlock.client(server.address, { identity = "web-1" }):holder(name).mine)
    assert.is_false(memlock.client(server.address, { identity = "web-2" }):holder(name).mine)
    assert.is_false(stranger:holder(name).mine)
    assert.equal("web-1", stranger:holder(name).id)
    assert.is_true(stranger:lock(name, { identity = "web-1" }):holder().mine)
    web:close()
    stranger:close()
  end)

  it("is not mine any more when the lock was lost to another", function()
    local lock = assert(client:lock(name):acquire())
    raw:delete(key)
    local stranger = memlock.client(server.address)
    assert(stranger:lock(name):acquire())
    assert.is_false(client:holder(name).mine)
    assert.equal("lost", select(3, lock:refresh()))
    assert.is_false(client:holder(name).mine)
    stranger:close()
  end)

  -- What the client has read is overwritten by its next read, which a finalizer may make as soon as
  -- the table of the answer is made.
  it("is what was read, also while finalizers use the same client", function()
    local value = "a value of its own: " .. ("v"):rep(400)
    local other = support.name("key")
    raw:set(key, value)
    raw:set(other, ("x"):rep(100000))
    local busy, runs = false, 0
    local metatable = { __gc = function()
      if busy then return end
      busy, runs = true, runs + 1
      client:update(other, function() end)
      client:update(other, function() end)
      busy = false
    end }
    -- A collector that works at each allocation, so that finalizers run at all of them.
    support.collect_often()
    local wrong = 0
    for _ = 1, support.count(20000) do
      setmetatable({}, metatable)
      if client:holder(name).value ~= value then wrong = wrong + 1 end
    end
    raw:delete(other)
    assert.is_true(runs > 100, runs)
    assert.equal(0, wrong)
  end)

  it("tells failure from freedom", function()
    local dead = memlock.client(support.refusing())
    fails("unreachable", name, dead:holder(name))
    fails("unreachable", name, dead:lock(name):holder())
  end)

  it("is a table of the caller's, which changes nothing", function()
    local lock = assert(client:lock(name):acquire())
    local shown = client:holder(name)
    shown.value, shown.id, shown.mine = "x", "y", false
    assert.is_true(client:holder(name).mine)
    assert.is_true(lock:release())
  end)
end)

describe("break_lock", function()
  it("removes what holder showed; the holder notices, the next one gets it", function()
    local holder = memlock.client(server.address)
    local lock = assert(holder:lock(name):acquire())
    assert.is_true(client:break_lock(name, client:holder(name)))
    assert.is_nil(raw:get(key))
    local mine = client:lock(name)
    assert.equal(mine, mine:acquire())
    assert.is_true(mine:token() > lock:token())
    fails("lost", name, lock:refresh())
    assert.is_false((lock:held()))
    assert.is_true(mine:verify())
    holder:close()
  end)

  it("removes a foreign, damaged or very large value just as well", function()
    for _, value in ipairs { "1", "\0\0", "memlock/2 x", "\27[2J", ("\0"):rep(1000 * 1000) } do
      raw:set(key, value)
      assert.is_true(client:break_lock(name, client:holder(name)))
      assert.is_nil(raw:get(key))
    end
  end)

  it("needs no more of the table than its value", function()
    raw:set(key, "1")
    assert.is_true(client:break_lock(name, { value = "1" }))
    assert.is_nil(raw:get(key))
  end)

  it("removes nothing when another one has it by now", function()
    local first = memlock.client(server.address)
    local second = memlock.client(server.address)
    local lock = assert(first:lock(name):acquire())
    local shown = client:holder(name)
    assert.is_true(lock:release())
    local theirs = assert(second:lock(name):acquire())
    local before = table.pack(raw:gets(key))
    fails("held", "nothing was removed", client:break_lock(name, shown))
    fails("held", name, client:break_lock(name, shown))
    assert.same(before, table.pack(raw:gets(key))) -- the CAS id too
    assert.is_true(theirs:verify())
    first:close()
    second:close()
  end)

  it("removes nothing when the same one refreshed or acquired it anew", function()
    local holder = memlock.client(server.address, { identity = "web-1" })
    local lock = assert(holder:lock(name):acquire())
    local shown = client:holder(name)
    assert.is_true(lock:refresh())
    fails("held", "nothing was removed", client:break_lock(name, shown))
    shown = client:holder(name)
    assert.is_true(lock:release())
    assert(lock:acquire())
    fails("held", "nothing was removed", client:break_lock(name, shown))
    assert.is_true(lock:verify())
    holder:close()
  end)

  it("removes nothing that differs in a byte, is longer or shorter", function()
    local value = "memlock/1 x 1 1 10 host:1"
    for _, shown in ipairs { value .. " ", value:sub(1, -2), value .. "\0", value:upper(), "m" } do
      raw:set(key, value)
      fails("held", "nothing was removed", client:break_lock(name, { value = shown }))
      assert.equal(value, (raw:get(key)))
    end
  end)

  it("loses every race between its look and its write", function()
    local relay = support.relay(server)
    raw:set(key, "one")
    relay:hold_up("cas " .. key)
    local racer = support.child(function()
      local breaker = memlock.client(relay.address, { timeout = 5 })
      return breaker:break_lock(name, { value = "one" })
    end)
    assert.is_true(relay:wait_held())
    raw:set(key, "two")
    relay:resume("up")
    local result, _, code = racer:join()
    assert.same({ nil, "held" }, { result, code })
    assert.equal("two", (raw:get(key)))
  end)

  it("says not_held of what is free by now", function()
    local holder = memlock.client(server.address)
    local lock = assert(holder:lock(name):acquire())
    local shown = client:holder(name)
    assert.is_true(lock:release())
    fails("not_held", "free", client:break_lock(name, shown))
    assert.is_nil(raw:get(key))
    holder:close()
  end)

  it("may break a lock of its own client, which then is lost", function()
    local lock = assert(client:lock(name):acquire())
    assert.is_true(client:break_lock(name, lock:holder()))
    fails("lost", name, lock:release())
    assert.is_false((lock:held()))
  end)

  it("does not touch the fence: tokens go on rising", function()
    local lock = assert(client:lock(name):acquire())
    local token = lock:token()
    assert.is_true(client:break_lock(name, client:holder(name)))
    assert.equal(tostring(token), (raw:get("#" .. key)))
  end)

  it("raises for what holder() did not return", function()
    raw:set(key, "1")
    for _, wrong in ipairs { {}, { value = 1 }, { value = "" }, { id = "x" } } do
      local ok, message = pcall(client.break_lock, client, name, wrong)
      assert.is_false(ok)
      assert.truthy(message:find("bad argument", 1, true), message)
    end
    for _, wrong in ipairs { false, true, 1, "1", print } do
      local ok, message = pcall(client.break_lock, client, name, wrong)
      assert.is_false(ok)
      assert.truthy(message:find("table expected", 1, true), message)
    end
    assert.has_error(function() client:break_lock(name) end)
    assert.has_error(function() client:break_lock("a b", { value = "1" }) end)
    assert.equal("1", (raw:get(key)))
  end)

  it("says when the server cannot be asked", function()
    local dead = memlock.client(support.refusing())
    fails("unreachable", name, dead:break_lock(name, { value = "x" }))
    local silent = memlock.client(support.silent().address, { timeout = 0.1 })
    fails("timeout", name, silent:break_lock(name, { value = "x" }))
  end)
end)
