--- A fork while locks are renewed in the background: the child has no such thread, and harms none.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local memlock = require "memlock"

local posix = support.posix
local server = support.server()
local truth = server:raw()

-- How a child ends that inherited `client` and `locks`.
local ends = {
  ["closing its state"] = "os.exit(true, true)",
  ["os.exit"] = "os.exit(0)",
  ["_exit"] = "posix._exit(0)",
  ["an error"] = "client, locks = nil collectgarbage() collectgarbage() error 'x'",
  ["a signal"] = "posix.kill(posix.getpid(), 'KILL')",
  ["client:close"] = "client:close() os.exit(0, true)",
  ["releasing all"] = "for _, lock in ipairs(locks) do lock:release() end os.exit(0, true)",
}

for what, code in pairs(ends) do
  it("a child that ends by " .. what .. " leaves the parent's locks held and renewed", function()
    local relay = support.relay(server)
    local name = support.name()
    local program = keeping.program(relay.address, name)
    program:eval [[
      client = memlock.client(arg[1]) locks = {}
      for i = 1, 3 do
        locks[i] = assert(client:lock(arg[2] .. i, { ttl = 0.6, auto_refresh = true }):acquire())
      end
      fd = client:fd()
    ]]
    -- The child's error message goes nowhere.
    program:eval(([[
      posix.sleep(0.25)
      local pid = posix.fork()
      if pid == 0 then
        posix.pdeathsig "KILL"
        posix.close(2)
        %s
      end
      assert(posix.waitpid(pid, 10))
    ]]):format(code))
    local connections = relay:stats().connections
    local other = memlock.client(server.address)
    keeping.throughout(1.3, function()
      for i = 1, 3 do
        assert.equal("held", (select(3, other:lock(name .. i):acquire())))
      end
    end)
    other:close()
    assert.equal("true true true 0", program:eval [[
      return locks[1]:held() and locks[2]:held() and locks[3]:held(), locks[1]:refresh(),
        locks[2]:release(), client:stats().losses
    ]])
    assert.is_nil((truth:get(keeping.key(name .. 2))))
    truth:delete(keeping.key(name .. 1))
    assert.equal("1 1", program:eval [[
      local ready = posix.poll({ fd }, 3)
      return #ready, client:stats().losses
    ]])
    assert.equal(connections, relay:stats().connections) -- nothing of the child's
    program:finish()
  end)
end

describe("in a child,", function()
  local client, lock

  before_each(function()
    client = memlock.client(server.address, { timeout = 0.5 })
    lock = assert(client:lock(support.name(), { ttl = 0.6, auto_refresh = true }):acquire())
  end)

  after_each(function()
    assert.is_true(lock:held())
    assert.is_true(lock:refresh())
    client:close()
  end)

  it("the copy of a lock is not held, and is not renewed", function()
    local results = { support.child(function()
      local held, left = lock:held()
      local _, _, refresh = lock:refresh()
      local _, _, release = lock:release()
      local _, _, again = lock:acquire()
      return held, left, refresh, release, again, client:poll()
    end):join() }
    assert.same({ false, 0, "not_held", "not_held", "held", 0 }, results)
  end)

  it("locks of its own are renewed, with the inherited client and with a new one", function()
    local name = support.name()
    local child = support.child(function(channel)
      local own = memlock.client(server.address)
      local first = assert(client:lock(name .. 1, { ttl = 0.3, auto_refresh = true }):acquire())
      local second = assert(own:lock(name .. 2, { ttl = 0.3, auto_refresh = true }):acquire())
      channel:send("acquired")
      channel:receive()
      local held = first:held() and second:held()
      local renewals = client:stats().renewals
      local released = first:release() and second:release()
      own:close()
      client:close()
      return held, renewals, released
    end)
    assert.equal("acquired", child:receive())
    local other = memlock.client(server.address)
    keeping.throughout(1, function()
      assert.equal("held", (select(3, other:lock(name .. 1):acquire())))
      assert.equal("held", (select(3, other:lock(name .. 2):acquire())))
    end)
    other:close()
    child:send("go")
    local held, renewals, released = child:join()
    assert.same({ true, true }, { held, released })
    assert.is_true(renewals >= 8 and renewals <= 15, renewals) -- its own, not the parent's
  end)

  it("the descriptor is another one, and what happens there is not seen here", function()
    local fd = client:fd()
    local child = support.child(function(channel)
      local told = 0
      local own = client:lock(support.name(), { ttl = 0.3, auto_refresh = true,
        on_lost = function() told = told + 1 end })
      assert(own:acquire())
      local raw = server:raw()
      raw:delete(keeping.key(own:name()))
      assert(#posix.poll({ client:fd() }, 3) == 1)
      channel:send("lost")
      local calls = client:poll()
      assert(#posix.poll({ client:fd() }, 0) == 0)
      client:close()
      return calls, told
    end)
    assert.equal("lost", child:receive())
    assert.equal(0, #posix.poll({ fd }, 0.05))
    assert.same({ 1, 1 }, { child:join() })
    assert.equal(0, #posix.poll({ fd }, 0.05))
  end)

  it("a loss that the parent was not told of yet is the parent's", function()
    local told = 0
    local gone = client:lock(support.name(), { ttl = 0.15, auto_refresh = true,
      on_lost = function() told = told + 1 end })
    assert(gone:acquire())
    truth:delete(keeping.key(gone:name()))
    support.eventually(function() return not gone:held() and client:stats().losses == 1 end)
    local calls, again, seen = support.child(function()
      local calls = client:poll()
      client:fd()
      return calls, client:poll(), told
    end):join()
    assert.same({ 0, 0, 0 }, { calls, again, seen })
    assert.equal(1, client:poll())
    assert.equal(1, told)
  end)

  it("no call waits for a mutex that the thread had at the time of the fork", function()
    -- With many locks and short leases the thread has it much of the time.
    local busy = memlock.client(server.address)
    local locks = {}
    for i = 1, 600 do
      locks[i] = assert(busy:lock(support.name(), { ttl = 60, auto_refresh = true }):acquire())
    end
    for i = 1, 600 do locks[i]:refresh(0.12) end
    for _ = 1, support.count(1000) do
      local pid = assert(posix.fork())
      if pid == 0 then
        local stats, calls = busy:stats(), busy:poll()
        local fine = stats.attempts == 600 and calls == 0 and not locks[1]:held()
          and tostring(busy):find("0 held", 1, true)
        posix._exit(fine and 0 or 1)
      end
      local kind, code = posix.waitpid(pid, 5)
      if kind == nil then
        posix.kill(pid, "KILL")
        posix.waitpid(pid, 5)
      end
      assert.same({ "exit", 0 }, { kind, code })
    end
    busy:close()
  end)
end)
