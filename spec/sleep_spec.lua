--- The function that sleeps: pauses belong to the host, whatever it does in them.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local name, holder

-- Somebody else holds the lock that the tests wait for.
before_each(function()
  name = support.name()
  holder = memlock.client(server.address):lock(name, { ttl = 60 })
  assert(holder:acquire())
end)

after_each(function()
  holder = nil
end)

local function client(sleep, options)
  options = options or {}
  options.sleep = sleep
  return memlock.client(server.address, options)
end

-- The lock object is as good as new: it does not believe to hold anything, nobody else's record was
-- touched, and nothing of its own is left; it can be used again.
local function is_clean(lock)
  assert.same({ false, 0 }, { lock:held() })
  assert.same({ nil, "not_held" }, { (lock:release()), select(3, lock:release()) })
  assert(holder:verify())
  assert(holder:release())
  local raw = server:raw()
  assert.is_nil(raw:get("memlock:" .. name))
  support.sleep(0.05) -- nothing comes later either
  assert.is_nil(raw:get("memlock:" .. name))
  assert(lock:acquire())
  assert(lock:verify())
  assert(lock:release())
end

describe("sleep", function()
  it("gets seconds above 0, and nothing else", function()
    local calls = {}
    local lock = client(function(...)
      calls[#calls + 1] = table.pack(...)
      support.sleep((...))
    end):lock(name)
    assert.is_nil((lock:acquire(0.1)))
    assert.is_true(#calls >= 2)
    for _, call in ipairs(calls) do
      assert.equal(1, call.n)
      assert.equal("float", math.type(call[1]))
      assert.is_true(call[1] > 0 and call[1] <= 0.1)
    end
    is_clean(lock)
  end)

  it("is slept in, and counted as waited", function()
    local waiter = client(support.sleep)
    local took = support.elapsed(function() waiter:lock(name):acquire(0.2) end)
    local waited = waiter:stats().waited
    assert.is_true(waited > 0.1 and waited <= took, waited)
  end)

  it("goes on after whatever it returns, but for false", function()
    for _, result in ipairs { true, 0, "false", table.pack(), table.pack(nil, false) } do
      local calls = 0
      local lock = client(function()
        calls = calls + 1
        if calls == 3 then holder:release() end
        if type(result) == "table" then return table.unpack(result, 1, result.n) end
        return result
      end):lock(name)
      assert.equal(lock, lock:acquire(5))
      assert.equal(3, calls)
      assert(lock:release())
      assert(holder:acquire())
    end
  end)

  it("cancels the wait by returning false", function()
    for _, wait in ipairs { 5, math.huge } do
      local calls = 0
      local lock = client(function()
        calls = calls + 1
        return calls < 3
      end):lock(name, { wait = wait })
      local got, message, code = lock:acquire()
      assert.same({ nil, "cancelled", 3 }, { got, code, calls })
      assert.truthy(message:find(name, 1, true), message)
      calls = 0
      local ran = false
      got, _, code = lock:with(function() ran = true end)
      assert.same({ nil, "cancelled", 3, false }, { got, code, calls, ran })
      assert.same({ false, 0 }, { lock:held() })
    end
    is_clean(client():lock(name))
  end)

  it("passes its errors on as they are, and leaves the lock clean", function()
    local object = setmetatable({}, { __tostring = function() error "do not ask" end })
    for _, problem in ipairs { object, "text", 17, true, false, print, io.stdout } do
      local lock = client(function() error(problem, 0) end):lock(name, { wait = 5 })
      for _, call in ipairs {
        function() return lock:acquire(5) end,
        function() return lock:with(error) end,
      } do
        local ok, err = pcall(call)
        assert.is_false(ok)
        assert.is_true(rawequal(problem, err))
        assert.same({ false, 0 }, { lock:held() })
      end
    end
    local lock = client(function() error(nil) end):lock(name)
    assert.same({ n = 2, false }, table.pack(pcall(lock.acquire, lock, 5)))
    is_clean(lock)
  end)

  it("may raise after it has yielded", function()
    local problem = {}
    local lock = client(function()
      coroutine.yield()
      error(problem)
    end):lock(name)
    local co = coroutine.create(function() return lock:acquire(5) end)
    assert.is_true(coroutine.resume(co))
    local ok, err = coroutine.resume(co)
    assert.is_true(not ok and rawequal(problem, err))
    is_clean(lock)
  end)

  it("may use the lock and the client", function()
    local lock, waiter
    waiter = client(function()
      assert.is_false((lock:held()))
      assert.equal(name, lock:name())
      assert.is_false(lock:holder().mine)
      assert.equal("not_held", select(3, lock:refresh()))
      assert.equal("held", select(3, lock:acquire(0))) -- a try of its own
      assert(waiter:update(support.name(), function() return "x" end))
      holder:release()
    end)
    lock = waiter:lock(name)
    assert.equal(lock, lock:acquire(5))
    assert(lock:verify())
  end)

  it("may get the lock by itself: the wait then says `held`, and is not mistaken", function()
    local lock
    lock = client(function()
      holder:release()
      assert(lock:acquire(0))
    end):lock(name)
    local got, _, code = lock:acquire(5)
    assert.same({ nil, "held" }, { got, code })
    assert.is_true(lock:held())
    assert(lock:verify())
    assert(lock:release())
  end)

  it("may close the client: the wait ends with `closed`", function()
    local waiter
    waiter = client(function() waiter:close() end, { wait = 5 })
    local lock = waiter:lock(name)
    assert.same({ nil, "closed" }, { (lock:acquire(5)), select(3, lock:acquire(5)) })
    local ran = false
    assert.equal("closed", select(3, lock:with(function() ran = true end)))
    assert.is_false(ran)
    assert.same({ false, 0 }, { lock:held() })
    assert(holder:verify())
  end)

  it("must be a function", function()
    for _, wrong in ipairs { true, 1, "sleep", {} } do
      assert.has_error(function() client(wrong) end)
    end
  end)
end)

describe("a coroutine that waits", function()
  -- A wait in a coroutine, brought to its first pause; `method`: acquire or with.
  local function waiting(method, lock)
    local co = coroutine.create(function()
      if method == "with" then return lock:with(function() return "ran" end) end
      return lock:acquire()
    end)
    local ok, seconds = coroutine.resume(co)
    assert.is_true(ok, seconds)
    assert.is_true(seconds > 0)
    return co
  end

  for _, method in ipairs { "acquire", "with" } do
    it("goes on after a yield in its pauses: " .. method, function()
      local lock = client(coroutine.yield):lock(name, { wait = 30 })
      local co = waiting(method, lock)
      for _ = 1, 20 do
        local ok, seconds = coroutine.resume(co)
        assert.is_true(ok and seconds > 0)
        assert.is_false((lock:held()))
      end
      assert(holder:release())
      assert.same({ true, method == "with" and true or lock, method == "with" and "ran" or nil },
        { coroutine.resume(co) })
      assert.equal("dead", coroutine.status(co))
      assert.equal(method == "acquire", (lock:held()))
      lock:release()
      assert(holder:acquire())
      is_clean(lock)
    end)

    it("may be cancelled by what it is resumed with: " .. method, function()
      local lock = client(coroutine.yield):lock(name, { wait = 30 })
      local co = waiting(method, lock)
      local ok, got, _, code = coroutine.resume(co, false)
      assert.same({ true, nil, "cancelled" }, { ok, got, code })
      is_clean(lock)
    end)

    it("may be closed: " .. method, function()
      support.needs("coroutine.close", pending)
      local lock = client(coroutine.yield):lock(name, { wait = 30 })
      local co = waiting(method, lock)
      assert.is_true(coroutine.close(co))
      is_clean(lock)
    end)

    it("may be dropped and collected: " .. method, function()
      local lock = client(coroutine.yield):lock(name, { wait = 30 })
      local gone = setmetatable({ waiting(method, lock) }, { __mode = "v" })
      collectgarbage()
      collectgarbage()
      assert.is_nil(gone[1])
      is_clean(lock)
    end)

    it("may be dropped with its lock and its client: " .. method, function()
      local gone = setmetatable({}, { __mode = "v" })
      do
        local lock = client(coroutine.yield):lock(name, { wait = 30 })
        gone[1], gone[2] = lock, waiting(method, lock)
      end
      collectgarbage()
      collectgarbage()
      collectgarbage()
      assert.is_nil(gone[1])
      assert.is_nil(gone[2])
      assert(holder:verify())
    end)

    it("may see its client closed: " .. method, function()
      local own = client(coroutine.yield)
      local co = waiting(method, own:lock(name, { wait = 30 }))
      own:close()
      local ok, got, _, code = coroutine.resume(co)
      assert.same({ true, nil, "closed" }, { ok, got, code })
      assert(holder:verify())
    end)
  end

  it("keeps its lock and client alive", function()
    local co = waiting("acquire", client(coroutine.yield):lock(name, { wait = 30 }))
    collectgarbage()
    collectgarbage()
    assert(holder:release())
    local ok, lock = coroutine.resume(co)
    assert.is_true(ok and lock:held())
    assert(lock:verify())
  end)

  it("is not deceived by a sleep that yields across pcall and metamethods", function()
    local lock = client(coroutine.yield):lock(name, { wait = 30 })
    local indexed = setmetatable({}, { __index = function() return lock:acquire(30) end })
    local co = coroutine.wrap(function()
      return select(2, pcall(function() return indexed.lock end))
    end)
    assert.is_true(co() > 0)
    assert.is_true(co() > 0)
    assert(holder:release())
    assert.equal(lock, co())
    assert.is_true(lock:held())
  end)
end)

describe("two coroutines at one lock object", function()
  local lock, first, second

  local function waiter()
    return coroutine.wrap(function()
      local got, _, code = lock:acquire(30)
      return got == lock and "got it" or code
    end)
  end

  before_each(function()
    lock = client(coroutine.yield):lock(name)
    first, second = waiter(), waiter()
    for _ = 1, 5 do
      assert.is_number(first())
      assert.is_number(second())
    end
    assert.is_false((lock:held()))
    assert(holder:release())
    assert.equal("got it", first())
    assert.is_true(lock:held())
  end)

  after_each(function()
    lock, first, second = nil, nil, nil
  end)

  it("one gets it, the other is told that it is held", function()
    assert.equal("held", second())
    assert.is_true(lock:held())
    assert(lock:verify())
    assert(lock:release())
    assert.is_nil(server:raw():get("memlock:" .. name))
  end)

  it("one gets it, the other after the release", function()
    local token = lock:token()
    assert(lock:release())
    assert.is_false((lock:held()))
    assert.equal("got it", second())
    assert.is_true(lock:held())
    assert.is_true(lock:token() > token)
    assert(lock:verify())
    assert(lock:release())
  end)

  it("believes nothing when a third took it in between", function()
    assert(lock:release())
    assert(holder:acquire())
    assert.is_number(second())
    assert.is_false((lock:held()))
    assert.equal("not_held", select(3, lock:verify()))
    assert(holder:verify())
    assert(holder:release())
    assert.equal("got it", second())
  end)
end)

describe("memlock.sleep", function()
  it("sleeps the thread", function()
    local took, result = support.elapsed(memlock.sleep, 0.05)
    assert.is_true(result)
    assert.is_true(took >= 0.05 and took < 0.05 + support.slack(0.05), took)
    assert.is_true(support.elapsed(memlock.sleep, 0) < support.slack(0.05))
    for _, wrong in ipairs { -1, 0 / 0, "1", {} } do
      assert.has_error(function() memlock.sleep(wrong) end)
    end
  end)

  it("returns early on a signal; a wait goes on all the same", function()
    local posix = support.posix
    posix.setitimer(0.01, true)
    local took = support.elapsed(memlock.sleep, 5)
    posix.setitimer(0.01, false)
    local waited, got, _, code = support.elapsed(function()
      return client():lock(name):acquire(0.3)
    end)
    posix.setitimer(0)
    assert.is_true(took < support.slack(0.1), took)
    assert.same({ nil, "held" }, { got, code })
    assert.is_true(waited >= 0.3 and waited < 0.3 + support.slack(0.1), waited)
  end)

  -- The stock interpreter stops its main thread at the first Ctrl-C.
  for _, state in ipairs { "held", "free", "without a server" } do
    it("lets Ctrl-C end a script that waits for a lock: " .. state, function()
      local address = state == "without a server" and support.refusing() or server.address
      local wanted = state == "free" and support.name() or name
      local program = support.start_lua { address, wanted, state, code = [[
        local memlock = require "memlock"
        local lock = memlock.client(arg[1]):lock(arg[2])
        if arg[3] == "free" then assert(lock:acquire()) end
        print "waiting"
        io.flush()
        if arg[3] == "free" then memlock.sleep(60) else lock:acquire(60) end
        print "not reached"
      ]] }
      assert.equal("waiting", program:read_line())
      support.sleep(1)
      assert.is_true(program:alive())
      local struck = support.now()
      program:kill("INT")
      local result = program:wait()
      local took = support.now() - struck
      assert.same({ "exit", 1, "" }, { result.kind, result.code, result.out }, tostring(result))
      assert.truthy(result.err:find("interrupted!", 1, true), tostring(result))
      assert.is_true(took < support.slack(0.2), took)
      assert(holder:verify())
      assert(holder:release())
      local raw = server:raw()
      support.eventually(function() return not raw:get("memlock:" .. wanted) end)
    end)
  end
end)
