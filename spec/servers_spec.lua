--- Several servers, and all forms of addresses.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

describe("several servers", function()
  local servers, addresses, reversed

  before_each(function()
    servers, addresses, reversed = {}, {}, {}
    for i = 1, 3 do
      servers[i] = support.memcached()
      addresses[i] = servers[i].address
      table.insert(reversed, 1, servers[i].address)
    end
  end)

  -- The servers that have the key, by number.
  local function places(raws, key)
    local found = {}
    for i, raw in ipairs(raws) do
      if raw:get(key) then found[#found + 1] = i end
    end
    return found
  end

  local function raw_clients()
    local raws = {}
    for i, server in ipairs(servers) do raws[i] = server:raw() end
    return raws
  end

  it("are agreed upon by clients that list them in any order, for each of many names", function()
    local raws = raw_clients()
    local one = memlock.client(addresses, { label = "first" })
    local two = memlock.client(reversed)
    local three = memlock.client(table.concat({ addresses[2], addresses[3], addresses[1] }, ","))
    local names, kept, share = {}, {}, { 0, 0, 0 }
    for i = 1, 1000 do
      names[i] = support.name()
      kept[i] = assert(one:lock(names[i], { ttl = 600 }):acquire())
      assert_fails("held", "first", two:lock(names[i]):acquire())
      assert_fails("held", "first", three:lock(names[i]):acquire())
    end
    for i, name in ipairs(names) do
      local at = places(raws, "memlock:" .. name)
      assert.equal(1, #at)
      assert.same(at, places(raws, "#memlock:" .. name)) -- the fence is on the same one
      share[at[1]] = share[at[1]] + 1
      assert.is_true((kept[i]:held()))
    end
    for i = 1, 3 do assert.is_true(share[i] > 100, share[i]) end -- each has its part
    for i = 1, 1000, 10 do
      assert.is_true(kept[i]:refresh())
      assert.is_true(kept[i]:release())
      local next_one = assert(two:lock(names[i]):acquire())
      assert.is_true(next_one:token() > kept[i]:token())
      assert.is_true(next_one:release())
    end
    for _, client in ipairs { one, two, three } do client:close() end
    for _, name in ipairs(names) do assert.same({}, places(raws, "memlock:" .. name)) end
  end)

  it("are not deputies for one another: when one is down, its locks are taken by nobody", function()
    local raws = raw_clients()
    local one = memlock.client(addresses, { timeout = 1 })
    local held, of = {}, { {}, {}, {} }
    for i = 1, 90 do
      held[i] = assert(one:lock(support.name(), { ttl = 600 }):acquire())
      local place = places(raws, "memlock:" .. held[i]:name())[1]
      table.insert(of[place], held[i])
    end
    servers[2]:kill()
    local two = memlock.client(reversed, { timeout = 1, label = "second" })
    for place, locks in ipairs(of) do
      assert.is_true(#locks > 5)
      for _, lock in ipairs(locks) do
        local rival = two:lock(lock:name())
        for _ = 1, 2 do -- nor the second time
          local ok, message, code = rival:acquire()
          if place == 2 then
            assert_fails("unreachable", addresses[2], ok, message, code)
          else
            assert_fails("held", lock:name(), ok, message, code)
          end
        end
        assert.is_false((rival:held()))
      end
    end
    -- New names, too: those of the dead server are unreachable, all others work.
    local unreachable = 0
    for _ = 1, 60 do
      local lock = two:lock(support.name())
      local ok, message, code = lock:acquire()
      if ok then
        assert.is_true(lock:refresh())
        assert.is_true(lock:release())
      else
        assert_fails("unreachable", addresses[2], ok, message, code)
        assert.same({}, places({ raws[1], raws[3] }, "memlock:" .. lock:name()))
        unreachable = unreachable + 1
      end
    end
    assert.is_true(unreachable > 3 and unreachable < 57, unreachable)
    -- The holders: on the dead server they cannot ask, and hold on until their time is over.
    for place, locks in ipairs(of) do
      if place == 2 then
        assert_fails("unreachable", addresses[2], locks[1]:refresh())
        assert.is_true((locks[1]:held()))
        assert_fails("unreachable", addresses[2], locks[1]:holder())
        assert_fails("unreachable", addresses[2], locks[1]:release())
      else
        assert.is_true(locks[1]:refresh())
        assert.is_true(locks[1]:release())
      end
    end
    -- When it is back it has forgotten, and is the place for the same names again.
    servers[2]:restart()
    local again = assert(two:lock(of[2][2]:name()):acquire())
    assert.is_truthy(servers[2]:raw():get("memlock:" .. again:name()))
    assert_fails("lost", "second", of[2][2]:refresh())
    one:close()
    two:close()
  end)

  it("that do not answer cost only those that ask them", function()
    local raws = raw_clients()
    local client = memlock.client(addresses, { timeout = 0.3 })
    local on = {}
    support.eventually(function()
      local lock = assert(client:lock(support.name(), { ttl = 600 }):acquire())
      local place = places(raws, "memlock:" .. lock:name())[1]
      on[place] = on[place] or lock
      return on[1] and on[2] and on[3]
    end)
    servers[3]:stop_process()
    support.sleep(0.05) -- until the signal has stopped all of it
    assert_fails("timeout", addresses[3], on[3]:refresh())
    local took = support.elapsed(function()
      assert.is_true(on[1]:refresh())
      assert.is_true(on[2]:refresh())
    end)
    assert.is_true(took < 0.3, took)
    servers[3]:continue_process()
    assert.is_true(on[3]:refresh())
    client:close()
  end)

  it("count as one when one is listed twice", function()
    local client = memlock.client { addresses[1], addresses[2], addresses[1] }
    local plain = memlock.client { addresses[2], addresses[1] }
    for _ = 1, 100 do
      local lock = assert(client:lock(support.name()):acquire())
      assert_fails("held", lock:name(), plain:lock(lock:name()):acquire())
    end
    client:close()
    plain:close()
  end)
end)

describe("an address works as", function()
  -- Acquires through memlock, and asserts that the server really has the record.
  local function assert_works(raw, ...)
    local client = memlock.client(...)
    local name = support.name()
    local lock = client:lock(name, { ttl = 30 })
    local ok, message = lock:acquire()
    assert.equal(lock, ok, message)
    assert.is_truthy(raw:get("memlock:" .. name))
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    assert.is_nil(raw:get("memlock:" .. name))
    client:close()
  end

  it("host:port, in a string or a table", function()
    local server = support.server()
    assert_works(server:raw(), "127.0.0.1:" .. server.port)
    assert_works(server:raw(), { "127.0.0.1:" .. server.port })
    assert_works(server:raw(), "localhost:" .. server.port)
  end)

  it("host alone, at the usual port", function()
    -- All of 127.0.0.0/8 is this machine: an address on which nobody else can be at that port.
    local pid = support.posix.getpid()
    local host = ("127.%d.%d.77"):format(100 + pid // 250 % 100, 1 + pid % 250)
    local server = support.memcached { args = { "-l", host .. ":11211" } }
    assert_works(server:raw(), host)
    assert_works(server:raw(), { host })
    assert_works(server:raw(), host .. ":11211")
  end)

  it("[v6]:port", function()
    local port = support.free_port()
    local ok, server = pcall(support.memcached, { args = { "-l", "[::1]:" .. port } })
    if not ok then return pending("there is no [::1] on this machine") end
    assert_works(server:raw(), ("[::1]:%d"):format(port))
    assert_works(server:raw(), { ("[0:0:0:0:0:0:0:1]:%d"):format(port) })
  end)

  it("a path of a unix socket", function()
    local server = support.memcached { unix = true }
    assert.equal("/", server.address:sub(1, 1))
    assert_works(server:raw(), server.address)
    assert_works(server:raw(), { server.address })
  end)

  it("part of a list: a table, a string with commas, or both, with or without spaces", function()
    local one, two = support.memcached(), support.memcached { unix = true }
    local raws = { one:raw(), two:raw() }
    local forms = { { one.address, two.address }, one.address .. "," .. two.address,
      one.address .. " , " .. two.address, { two.address .. "," .. one.address } }
    for _, form in ipairs(forms) do
      local client = memlock.client(form)
      local used = {}
      for _ = 1, 40 do
        local lock = assert(client:lock(support.name()):acquire())
        for i, raw in ipairs(raws) do
          if raw:get("memlock:" .. lock:name()) then used[i] = true end
        end
        assert.is_true(lock:release())
      end
      assert.same({ true, true }, used)
      client:close()
    end
  end)

  it("one at which nobody is: unreachable, in no time", function()
    for _, address in ipairs { support.refusing(), support.tempdir() .. "/nobody" } do
      local client = memlock.client(address, { timeout = 2 })
      local lock = client:lock(support.name())
      local took, ok, message, code = support.elapsed(lock.acquire, lock)
      assert_fails("unreachable", address, ok, message, code)
      assert.is_true(took < support.slack(0.2), took)
      client:close()
    end
  end)
end)
