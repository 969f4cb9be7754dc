--- Giving up: by close, collection, and the end of a state; with the server up or not.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local timeout = 0.3

local function key_of(lock) return "memlock:" .. lock:name() end

-- That many held locks of one client; their keys.
local function hold(client, count, options)
  local locks, keys = {}, {}
  for i = 1, count do
    locks[i] = assert(client:lock(support.name(), options):acquire())
    keys[i] = key_of(locks[i])
  end
  return locks, keys
end

local function count_there(raw, keys)
  local there = 0
  for _, key in ipairs(keys) do
    if raw:get(key) then there = there + 1 end
  end
  return there
end

local function about_one_timeout(took)
  assert.is_true(took >= 0.95 * timeout and took <= timeout + support.slack(0.2 * timeout), took)
end

describe("client:close", function()
  it("gives up all that is held, and leaves others' alone", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local other = memlock.client(server.address)
    local locks, keys = hold(client, 3)
    local theirs = assert(other:lock(support.name()):acquire())
    local busy = client:lock(theirs:name())
    assert.equal("held", select(3, busy:acquire()))
    assert.equal(3, count_there(raw, keys))
    assert.is_true(client:close())
    assert.equal(0, count_there(raw, keys)) -- at once, not soon
    for _, lock in ipairs(locks) do assert.same({ false, 0 }, { lock:held() }) end
    assert.is_true(theirs:verify())
    local again = other:lock(locks[1]:name())
    assert.equal(again, again:acquire())
    other:close()
  end)

  it("leaves a record alone that has become somebody else's", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local lock = assert(client:lock(support.name()):acquire())
    assert.is_true(raw:set(key_of(lock), "somebody else"))
    assert.is_true(client:close())
    assert.equal("somebody else", raw:get(key_of(lock)))
  end)

  it("of 1,000 held locks removes all records in one round trip", function()
    local relay = support.relay(support.server())
    local client = memlock.client(relay.address)
    local _, keys = hold(client, support.count(1000))
    local raw = support.server():raw()
    assert.equal(#keys, count_there(raw, keys))
    local before = client:stats().round_trips
    relay:delay("both", 0.02)
    local took = support.elapsed(client.close, client)
    assert.equal(0, count_there(raw, keys))
    assert.is_true(took < 0.04 + support.slack(0.1), took)
    assert.equal(before + 1, client:stats().round_trips)
    assert.equal(#keys, client:stats().released)
  end)

  it("of 1,000 held locks takes one timeout when the server is stopped", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local locks = hold(client, support.count(1000))
    server:stop_process()
    local took, result = support.elapsed(client.close, client)
    assert.is_true(result)
    about_one_timeout(took)
    for _, lock in ipairs(locks) do assert.is_false((lock:held())) end
  end)

  it("of locks on several servers that are all stopped takes one timeout", function()
    local servers, addresses = {}, {}
    for i = 1, 3 do
      servers[i] = support.memcached()
      addresses[i] = servers[i].address
    end
    local client = memlock.client(addresses, { timeout = timeout })
    hold(client, 30)
    for _, server in ipairs(servers) do server:stop_process() end
    about_one_timeout((support.elapsed(client.close, client)))
  end)

  for _, background in ipairs { false, true } do
    local what = background and ", renewed in the background" or ""
    it("frees what is on one server when another is stopped" .. what, function()
      for _, cut in ipairs { false, true } do
        local dead, alive = support.memcached(), support.memcached()
        local relay = support.relay(alive)
        local raw = alive:raw()
        local client = memlock.client({ dead.address, relay.address }, { timeout = 1 })
        local locks, keys = hold(client, 40, { ttl = 60, auto_refresh = background })
        if background then
          for _, lock in ipairs(locks) do assert.is_true(lock:refresh()) end
        end
        assert.is_true(count_there(raw, keys) > 5)
        dead:stop_process()
        if cut then -- so that they have to go one by one
          relay:cut()
          support.eventually(function() return relay:stats().open == 0 end)
          support.sleep(0.05)
        end
        local took = support.elapsed(client.close, client)
        assert.equal(0, count_there(raw, keys))
        assert.is_true(took <= 1 + support.slack(0.2), took)
        dead:kill()
      end
    end)
  end

  it("takes no time when the server is dead, or when nothing was ever asked", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = 5 })
    hold(client, 100)
    server:kill()
    assert.is_true(support.elapsed(client.close, client) < support.slack(0.1))
    local unused = memlock.client(support.silent().address, { timeout = 5 })
    unused:lock("job")
    assert.is_true(support.elapsed(unused.close, unused) < support.slack(0.02))
  end)

  it("twice is as good as once", function()
    local relay = support.relay(support.server())
    local client = memlock.client(relay.address)
    hold(client, 2)
    assert.is_true(client:close())
    support.eventually(function() return relay:stats().open == 0 end)
    relay:reset()
    assert.is_true(client:close())
    assert.is_true(client:close())
    assert.equal(0, relay:stats().up)
    assert.equal(0, relay:stats().connections)
  end)

  it("closes the connections", function()
    local before = support.posix.open_fds()
    local client = memlock.client(support.server().address)
    hold(client, 1)
    assert.equal(before + 1, support.posix.open_fds())
    client:close()
    assert.equal(before, support.posix.open_fds())
  end)
end)

describe("after client:close", function()
  local relay, client, lock, used

  before_each(function()
    relay = support.relay(support.server())
    client = memlock.client(relay.address)
    lock = client:lock(support.name())
    used = assert(client:lock(support.name()):acquire())
    client:close()
    support.eventually(function() return relay:stats().open == 0 end)
    relay:reset()
  end)

  it("every operation says closed, and sends nothing", function()
    local ran = 0
    local function fn() ran = ran + 1 end
    for _, one in ipairs { lock, used } do
      for _, call in ipairs {
        { "acquire" }, { "acquire", 0 }, { "acquire", 30 }, { "refresh" }, { "refresh", 5 },
        { "release" }, { "verify" }, { "holder" }, { "with", fn },
      } do
        local took, result, message, code = support.elapsed(one[call[1]], one,
          table.unpack(call, 2))
        assert.same({ nil, "closed" }, { result, code }, call[1])
        assert.truthy(message:find("closed", 1, true), message)
        assert.is_true(took < support.slack(0.05), call[1])
      end
    end
    for _, call in ipairs {
      { "holder", lock:name() }, { "break_lock", lock:name(), { value = "x" } },
      { "update", "key", fn },
    } do
      local result, message, code = client[call[1]](client, table.unpack(call, 2))
      assert.same({ nil, "closed" }, { result, code }, call[1])
      assert.truthy(message:find("closed", 1, true), message)
    end
    assert.equal(0, ran)
    assert.equal(0, relay:stats().connections)
  end)

  it("what asks nobody still answers", function()
    assert.same({ false, 0 }, { used:held() })
    assert.equal("integer", math.type(used:token()))
    assert.is_nil(lock:token())
    assert.equal("string", type(used:name()))
    assert.equal(1, client:stats().acquired)
    assert.equal(1, client:stats().released)
    assert.equal("closed client", memlock.type(client))
  end)

  it("no lock can be made", function()
    local made, message, code = client:lock(support.name())
    assert.is_nil(made)
    assert.equal("closed", code)
    assert.truthy(message:find("closed", 1, true), message)
  end)

  it("leaving scopes and collecting is quiet", function()
    debug.getmetatable(used).__close(used)
    debug.getmetatable(client).__close(client)
    lock, used, client = nil, nil, nil
    collectgarbage()
    assert.equal(0, relay:stats().connections)
  end)
end)

it("a client closed inside its own sleep ends the wait with closed", function()
  local server = support.server()
  local name = support.name()
  local holder = assert(memlock.client(server.address):lock(name):acquire())
  local client
  client = memlock.client(server.address, { sleep = function() client:close() end })
  local took, result, _, code = support.elapsed(function()
    return client:lock(name):acquire(30)
  end)
  assert.same({ nil, "closed" }, { result, code })
  assert.is_true(took < support.slack(0.1), took)
  holder:release()
end)

describe("a collected lock", function()
  it("is given up without waiting, and its record is gone soon", function()
    local server = support.server()
    local raw = server:raw()
    local relay = support.relay(server)
    local client = memlock.client(relay.address)
    local keys = select(2, hold(client, 20))
    relay:delay("up", 0.3)
    local took = support.elapsed(collectgarbage)
    assert.is_true(took < 0.3, took)
    assert.equal(20, count_there(raw, keys)) -- the bytes are still on their way
    support.eventually(function() return count_there(raw, keys) == 0 end, 2)
    relay:plain()
    local lock = client:lock(support.name())
    assert.equal(lock, lock:acquire()) -- the connection is still in step
    assert.is_true(lock:release())
    client:close()
  end)

  it("with its client is given up as well", function()
    local server = support.server()
    local raw = server:raw()
    local before = support.posix.open_fds()
    local keys = select(2, hold(memlock.client(server.address), 20))
    collectgarbage()
    support.eventually(function() return count_there(raw, keys) == 0 end, 2)
    assert.equal(before, support.posix.open_fds())
  end)

  it("costs no wait at all when the server is stopped: 1,000 of them, and the client", function()
    local server = support.memcached()
    local count = support.count(1000)
    do
      local client = memlock.client(server.address, { timeout = 5 })
      hold(client, count)
      server:stop_process()
      local took = support.elapsed(collectgarbage)
      assert.is_true(took < support.slack(0.1), took)
      assert.equal(0, tonumber(tostring(client):match("(%d+) held")))
      hold(memlock.client(support.server().address), 1)
    end
    local took = support.elapsed(collectgarbage)
    assert.is_true(took < support.slack(0.1), took)
  end)

  it("costs no wait when the server is dead or the line is cut", function()
    local server = support.memcached()
    local relay = support.relay(server)
    hold(memlock.client(relay.address, { timeout = 5 }), 20)
    relay:cut()
    relay:refuse()
    assert.is_true(support.elapsed(collectgarbage) < support.slack(0.1))
    hold(memlock.client(server.address, { timeout = 5 }), 20)
    server:kill()
    assert.is_true(support.elapsed(collectgarbage) < support.slack(0.1))
  end)

  for _, how in ipairs { "rst", "fin" } do
    it("whose connection had ended (" .. how .. ") is removed by later operations", function()
      local server = support.server()
      local raw = server:raw()
      local relay = support.relay(server)
      local client = memlock.client(relay.address)
      local busy = assert(client:lock(support.name()):acquire())
      local keys = select(2, hold(client, 3))
      relay:cut(how == "rst" and "rst" or nil)
      support.eventually(function() return relay:stats().open == 0 end)
      support.sleep(0.05) -- nobody has told the client yet
      collectgarbage()
      support.eventually(function()
        assert(busy:refresh())
        return count_there(raw, keys) == 0
      end, 2)
      client:close()
    end)
  end

  it("that was not held says nothing to the server", function()
    local relay = support.relay(support.server())
    local client = memlock.client(relay.address)
    do
      local lock = assert(client:lock(support.name()):acquire())
      assert.is_true(lock:release())
      client:lock(support.name())
    end
    relay:reset()
    collectgarbage()
    assert.is_false(client:holder(support.name()))
    local up = relay:stats().up
    relay:reset()
    assert.is_false(client:holder(support.name()))
    assert.equal(up, relay:stats().up)
    client:close()
  end)

  it("whose lease ran out does not take the next holder's record", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local name
    do
      local lock = assert(client:lock(support.name(), { ttl = 0.05 }):acquire())
      name = lock:name()
      raw:set("memlock:" .. name, "the next holder")
      support.sleep(0.06)
    end
    collectgarbage()
    client:close()
    assert.equal("the next holder", raw:get("memlock:" .. name))
  end)
end)

describe("whatever is finalised first,", function()
  -- Runs code in a state of its own, with warnings on where there are any, and returns what it
  -- wrote.
  local function run(code, ...)
    local result = support.run_lua { code = 'if warn then warn "@on" end\n' .. code, ... }
    assert.equal("", result.err, tostring(result))
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    return result.out
  end

  it("a client before its locks: they say closed, and are collected in peace", function()
    local server = support.server()
    local name = support.name()
    assert.equal("nil closed false\n", run([[
      local memlock = require "memlock"
      local client = memlock.client(arg[1])
      local lock = assert(client:lock(arg[2]):acquire())
      debug.getmetatable(client).__gc(client)
      local ok, _, code = lock:refresh()
      print(ok, code, (lock:held()))
      client = nil
      collectgarbage()
      lock = nil
      collectgarbage()
    ]], server.address, name):gsub("\t", " "), nil)
    local raw = server:raw()
    support.eventually(function() return not raw:get("memlock:" .. name) end)
  end)

  it("locks that are finalised before or after what brings them back to life", function()
    local server = support.server()
    local name = support.name()
    local out = run([[
      local memlock = require "memlock"
      -- Finalizers run in the reverse order of marking: `first` runs after the lock's own.
      local saved = {}
      local function keeper(what)
        return setmetatable({}, { __gc = function(self) saved[what] = self.object end })
      end
      do
        local late = keeper "late"
        local client = memlock.client(arg[1])
        local lock = assert(client:lock(arg[2]):acquire())
        local early = keeper "early"
        late.object, early.object = lock, client
      end
      collectgarbage()
      -- The client came back before its finalizer ran, the lock after.
      print(memlock.type(saved.early), tostring(saved.early), tostring(saved.late))
      print(pcall(saved.late.acquire, saved.late))
      print(pcall(saved.early.lock, saved.early, "job"))
      saved = nil
      collectgarbage()
    ]], server.address, name)
    assert.truthy(out:find("closed client\tmemlock.client (closed)\tmemlock.lock (collected)", 1,
      true), out)
    assert.truthy(out:find("the lock was collected", 1, true), out)
    assert.truthy(out:find("the client was collected", 1, true), out)
    local raw = server:raw()
    support.eventually(function() return not raw:get("memlock:" .. name) end)
  end)

  it("a lock that other finalizers use while the state closes", function()
    local out = run([[
      local memlock = require "memlock"
      local client, lock
      -- These run after, and before, the finalizers of client and lock.
      local after = setmetatable({}, { __gc = function()
        print("after", pcall(lock.held, lock))
        print("after", pcall(client.stats, client))
        print("after", tostring(lock), tostring(client))
      end })
      client = memlock.client(arg[1])
      lock = assert(client:lock(arg[2]):acquire())
      local before = setmetatable({}, { __gc = function()
        print("before", lock:held())
        print("before", lock:release())
        print("before", lock:acquire() == lock)
      end })
      keep = { after, before, client, lock }
    ]], support.server().address, support.name())
    assert.truthy(out:find("before\ttrue\t%d+%.%d+\nbefore\ttrue\nbefore\ttrue\n"), out)
    assert.truthy(out:find("after\tfalse\t[^\n]*the lock was collected"), out)
    assert.truthy(out:find("after\tmemlock.lock (collected)\tmemlock.client (closed)", 1, true),
      out)
  end)

  it("a lock that outlives all other references to its client", function()
    local server = support.server()
    local lock = assert(memlock.client(server.address):lock(support.name()):acquire())
    collectgarbage()
    collectgarbage()
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
  end)
end)

describe("the end of a program", function()
  -- How it ends: code, the exit code, and whether locks are given up (else only the ttl ends them).
  local ends = {
    ["its last line"] = { "", 0, true },
    ["an error"] = { "error 'disk full'", 1, true },
    ["os.exit(0)"] = { "os.exit(0)", 0, false },
    ["os.exit(true, true)"] = { "os.exit(true, true)", 0, true },
    ["os.exit(3, true) in a coroutine"] = {
      "coroutine.wrap(function() os.exit(3, true) end)()", 3, true,
    },
    ["an error inside with"] = { "more:with(function() error 'disk full' end)", 1, true },
    ["os.exit(true, true) inside with"] = {
      "more:with(function() os.exit(true, true) end)", 0, true,
    },
    ["an error with a lock in a scope"] = {
      "local l <close> = assert(more:acquire()) error 'disk full'", 1, true,
    },
    ["a coroutine that is left alone with a lock in a scope"] = {
      "keep = coroutine.create(function() local l <close> = assert(more:acquire()) " ..
        "coroutine.yield() end) assert(coroutine.resume(keep))", 0, true,
    },
  }

  local prelude = [[
    local memlock = require "memlock"
    local client = memlock.client(arg[1], { timeout = 0.5 })
    held = {}
    for i = 1, 3 do held[i] = assert(client:lock(arg[2] .. i):acquire()) end
    local more = client:lock(arg[2] .. 4)
    assert(more:acquire())
    assert(more:release())
  ]]

  local function script(finish)
    return prelude .. "print 'ready' io.flush() io.read()\n" .. finish
  end

  for what, case in pairs(ends) do
    local in_block = case[1]:find("<close>", 1, true)

    it(what .. " gives up what it should: server up", function()
      if in_block then support.needs("<close>", pending) end
      local server = support.server()
      local raw = server:raw()
      for _ = 1, support.count(50) do
        local name = support.name()
        local result = support.run_lua { code = script(case[1]), stdin = "\n", server.address,
          name }
        assert.same({ "exit", case[2] }, { result.kind, result.code }, tostring(result))
        if case[2] == 1 then
          assert.truthy(result.err:find("disk full", 1, true), tostring(result))
        end
        assert.is_true(result.elapsed < support.slack(1), tostring(result))
        local function there()
          local n = 0
          for i = 1, 4 do n = n + (raw:get("memlock:" .. name .. i) and 1 or 0) end
          return n
        end
        if case[3] then
          support.eventually(function() return there() == 0 end)
        else
          assert.equal(3, there())
        end
      end
    end)

    it(what .. " neither hangs nor crashes: server stopped, or refusing", function()
      if in_block then support.needs("<close>", pending) end
      for _, trouble in ipairs { "stop_process", "kill" } do
        local server = support.memcached()
        local program = support.start_lua { code = script(case[1]), server.address,
          support.name() }
        assert.equal("ready", program:read_line())
        server[trouble](server)
        local start = support.now()
        program:write("\n")
        local result = program:wait()
        local took = support.now() - start
        assert.equal("exit", result.kind, tostring(result))
        assert.is_true(took < support.slack(0.8), tostring(result))
        assert.is_nil(result.err:find("attempt to", 1, true), tostring(result))
        server:kill()
      end
    end)
  end
end)
