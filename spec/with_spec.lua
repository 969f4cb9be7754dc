--- lock:with(fn, ...): what comes in, what comes out, and that the lock is given up in the end.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local name, client, lock

before_each(function()
  name = support.name()
  client = memlock.client(server.address)
  lock = client:lock(name, { ttl = 60 })
end)

after_each(function()
  client, lock = nil, nil
end)

local function is_free(which)
  return server:raw():get("memlock:" .. (which or name)) == nil
end

local function is_released()
  assert.same({ false, 0 }, { lock:held() })
  assert.is_true(is_free())
end

local function collect()
  collectgarbage()
  collectgarbage()
end

-- Objects of every type, to be raised.
local problems = { {}, setmetatable({}, { __tostring = function() error "do not ask" end }), "text",
  "", 17, 1.5, true, false, print, io.stdout, coroutine.create(print) }

describe("with", function()
  it("calls the function with the lock held, and its arguments", function()
    local seen
    assert.is_true(lock:with(function(...)
      seen = table.pack(...)
      assert.is_true(lock:held())
      assert.truthy(server:raw():get("memlock:" .. name))
      assert(lock:verify())
    end, 1, nil, "three", nil))
    assert.same({ n = 5, lock, 1, nil, "three", nil }, seen)
    is_released()
  end)

  for what, results in pairs {
    ["nothing"] = { n = 0 },
    ["nil"] = { n = 1 },
    ['nil, "x"'] = { n = 2, nil, "x" },
    ["1, nil, 3, nil"] = { n = 4, 1, nil, 3, nil },
    ["false"] = { n = 1, false },
    ['nil, "message", "held"'] = { n = 3, nil, "message", "held" },
  } do
    it("returns true and what the function returned: " .. what, function()
      local got = table.pack(lock:with(function()
        return table.unpack(results, 1, results.n)
      end))
      assert.same({ n = results.n + 1, true, table.unpack(results, 1, results.n) }, got)
      is_released()
    end)
  end

  it("passes 200 arguments in and 200 results out, and more", function()
    for _, count in ipairs { 200, 5000 } do
      local many = {}
      for i = 1, count do many[i] = i % 7 ~= 0 and i or nil end
      local got = table.pack(lock:with(function(_, ...)
        assert.equal(count, select("#", ...))
        return ...
      end, table.unpack(many, 1, count)))
      assert.equal(count + 1, got.n)
      assert.is_true(got[1])
      for i = 1, count do assert.equal(many[i], got[i + 1]) end
      is_released()
    end
  end)

  it("says what went wrong when there is not room for all results", function()
    local ok, err = pcall(lock.with, lock, function()
      return table.unpack({}, 1, 999000) -- Lua's stack has room for a million
    end)
    assert.is_true(ok or type(err) == "string")
    is_released()
  end)

  it("calls whatever can be called", function()
    local callable = setmetatable({}, { __call = function(self, ...) return self, ... end })
    assert.same({ true, callable, lock, 1 }, { lock:with(callable, 1) })
    is_released()
    assert.same({ true, "userdata" }, { lock:with(type) })
    is_released()
  end)

  it("refuses what cannot be called, before it does anything", function()
    for _, wrong in ipairs { 1, "f", {}, true, setmetatable({}, {}) } do
      local ok, message = pcall(lock.with, lock, wrong)
      assert.is_false(ok)
      assert.truthy(message:find("function expected", 1, true), message)
    end
    assert.has_error(function() lock:with() end)
    assert.equal(0, client:stats().attempts)
  end)

  it("may be used again and again, also from a loop", function()
    for i = 1, 50 do assert.same({ true, i }, { lock:with(function() return i end) }) end
    assert.equal(50, client:stats().released)
    is_released()
  end)

  it("has a fencing token", function()
    local _, first = lock:with(lock.token)
    local _, second = lock:with(lock.token)
    assert.is_true(second > first)
  end)
end)

describe("an error in the function", function()
  it("comes out as it is, after the release", function()
    for _, problem in ipairs(problems) do
      local result = table.pack(pcall(lock.with, lock, function() error(problem, 0) end))
      assert.equal(2, result.n)
      assert.is_true(result[1] == false and rawequal(problem, result[2]))
      is_released()
    end
    assert.same({ n = 2, false }, table.pack(pcall(lock.with, lock, function() error() end)))
    is_released()
  end)

  it("comes after a yield too", function()
    for _, problem in ipairs(problems) do
      local co = coroutine.wrap(function()
        return lock:with(function()
          coroutine.yield()
          error(problem, 0)
        end)
      end)
      co()
      assert.is_true(lock:held())
      local ok, err = pcall(co)
      assert.is_false(ok)
      -- coroutine.wrap puts a position before errors that are strings.
      if type(problem) == "string" then
        assert.equal(problem, err:sub(-#problem - 1):match("^ ?(.*)$"))
      else
        assert.is_true(rawequal(problem, err))
      end
      is_released()
    end
  end)

  -- Lua's rule for <close> holds here too: the stack of a coroutine that died of an error is
  -- unwound when it is closed, which coroutine.wrap does and coroutine.resume does not.
  it("that ends a coroutine releases when that is closed or collected", function()
    for _, yields in ipairs { false, true } do
      for _, how in ipairs { collectgarbage, coroutine.close } do -- the last is not there in 5.3
        local problem = {}
        local co = coroutine.create(function()
          return lock:with(function()
            if yields then coroutine.yield() end
            error(problem)
          end)
        end)
        if yields then assert.is_true(coroutine.resume(co)) end
        local ok, err = coroutine.resume(co)
        assert.is_true(not ok and rawequal(problem, err))
        if how == coroutine.close then
          ok, err = coroutine.close(co)
          assert.is_true(not ok and rawequal(problem, err))
        else
          co = nil -- luacheck: ignore
          collect()
        end
        support.eventually(is_free)
        is_released()
      end
    end
  end)

  it("shows its line in the traceback of a message handler", function()
    support.needs("tracebacks through with", pending)
    local held_in_handler
    local function fails()
      local line = debug.getinfo(1, "l").currentline + 1
      error("here " .. line)
    end
    local _, trace = xpcall(lock.with, function(message)
      held_in_handler = lock:held()
      return debug.traceback(message)
    end, lock, fails)
    local line = trace:match("here (%d+)")
    local where = "with_spec.lua:" .. line .. ": in "
    assert.truthy(trace:find(where, 1, true), trace)
    assert.truthy(trace:find("memlock", 1, true) or trace:find("[C]: in", 1, true), trace)
    assert.is_true(held_in_handler)
    is_released()
  end)

  it("shows it after a yield as well", function()
    support.needs("tracebacks through with", pending)
    local trace
    local co = coroutine.wrap(function()
      return xpcall(lock.with, function(message) trace = debug.traceback(message) end, lock,
        function()
          coroutine.yield()
          error("here " .. debug.getinfo(1, "l").currentline)
        end)
    end)
    co()
    assert.is_false((co()))
    assert.truthy(trace:find("with_spec.lua:" .. trace:match("here (%d+)") .. ": in ", 1, true),
      trace)
    is_released()
  end)

  it("comes out when the release fails too", function()
    local own = support.memcached()
    local other = memlock.client(own.address, { timeout = 0.2 }):lock(name)
    local problem = {}
    local took, ok, err = support.elapsed(pcall, other.with, other, function()
      own:stop_process()
      error(problem)
    end)
    assert.is_true(not ok and rawequal(problem, err))
    assert.is_true(took < support.slack(0.4), took)
    assert.is_false((other:held()))
    own:continue_process()
  end)

  it("of memory or of the stack releases as well", function()
    local function deep() return 1 + deep() end
    local ok, err = pcall(lock.with, lock, deep)
    assert.is_false(ok)
    assert.truthy(err:find("stack overflow", 1, true), err)
    is_released()
  end)
end)

it("with, nested until the C stack is full, raises and releases all", function()
  local locks = {}
  for i = 1, 250 do locks[i] = client:lock(support.name()) end
  local deepest = 0
  local function nest(i)
    deepest = i
    return locks[i]:with(function() return nest(i + 1) end)
  end
  local ok, err = pcall(nest, 1)
  assert.is_false(ok)
  assert.truthy(tostring(err):find("C stack overflow", 1, true), err)
  assert.is_true(deepest > 20)
  for i = 1, deepest do
    assert.is_false((locks[i]:held()))
    assert.is_true(is_free(locks[i]:name()))
  end
end)

describe("a function that yields", function()
  it("goes on, with values both ways", function()
    local co = coroutine.wrap(function(...)
      return lock:with(function(_, a)
        local b, c = coroutine.yield(a)
        local d = coroutine.yield(b, c)
        return d, nil, false
      end, ...)
    end)
    assert.equal("a", co("a"))
    assert.is_true(lock:held())
    assert.same({ "b", "c" }, { co("b", "c") })
    assert(lock:verify())
    assert.same({ n = 4, true, "d", nil, false }, table.pack(co("d")))
    is_released()
  end)

  it("may do so within pcall, inside or outside", function()
    local co = coroutine.wrap(function()
      return pcall(lock.with, lock, function()
        local ok, err = pcall(function()
          coroutine.yield "inner"
          error "caught"
        end)
        coroutine.yield(ok, err)
        error("not caught", 0)
      end)
    end)
    assert.equal("inner", co())
    local ok, err = co()
    assert.is_true(not ok and err:find("caught", 1, true) ~= nil)
    assert.is_true(lock:held())
    assert.same({ false, "not caught" }, { co() })
    is_released()
  end)

  it("releases when its coroutine is closed", function()
    support.needs("coroutine.close", pending)
    local co = coroutine.create(function() lock:with(coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    assert.is_true(lock:held())
    assert.is_true(coroutine.close(co))
    is_released()
  end)

  it("releases when its coroutine is dropped and collected", function()
    local co = coroutine.create(function() lock:with(coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    assert.is_false(is_free())
    local gone = setmetatable({ co }, { __mode = "v" })
    co = nil -- luacheck: ignore
    collect()
    assert.is_nil(gone[1])
    assert.is_false((lock:held()))
    support.eventually(is_free)
    assert(lock:acquire())
    assert(lock:release())
  end)

  it("releases when all of it is dropped: coroutine, lock, client", function()
    local gone = setmetatable({}, { __mode = "v" })
    do
      local own = memlock.client(server.address):lock(name)
      local co = coroutine.create(function() own:with(coroutine.yield) end)
      assert.is_true(coroutine.resume(co))
      gone[1], gone[2] = own, co
    end
    assert.is_false(is_free())
    collect()
    collect()
    assert.same({}, { gone[1], gone[2] })
    support.eventually(is_free)
  end)

  it("does not release, when it is collected late, what was acquired anew", function()
    local co = coroutine.create(function() lock:with(coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    assert(lock:release())
    assert(lock:acquire())
    co = nil -- luacheck: ignore
    collect()
    assert.is_true(lock:held())
    assert(lock:verify())
  end)

  it("keeps its lock and client while it is suspended", function()
    local co
    do
      local own = memlock.client(server.address):lock(name)
      co = coroutine.wrap(function()
        return own:with(function(held)
          coroutine.yield()
          return held:verify()
        end)
      end)
    end
    co()
    collect()
    collect()
    assert.same({ true, true }, { co() })
    assert.is_true(is_free())
  end)

  it("nests, on two names", function()
    local second = client:lock(support.name())
    local function both()
      return lock:with(function()
        return second:with(function()
          coroutine.yield()
          return "both"
        end)
      end)
    end
    local co = coroutine.create(both)
    assert.is_true(coroutine.resume(co))
    assert.is_true(lock:held() and second:held())
    assert.same({ true, true, true, "both" }, { coroutine.resume(co) })
    is_released()
    assert.is_true(is_free(second:name()))

    support.needs("coroutine.close", pending)
    co = coroutine.create(both)
    assert.is_true(coroutine.resume(co))
    assert.is_true(coroutine.close(co))
    is_released()
    assert.is_true(is_free(second:name()))
    assert.is_false((second:held()))
  end)

  it("cannot do so outside a coroutine, and releases all the same", function()
    local result = support.run_lua { server.address, name, code = [[
      local lock = require "memlock".client(arg[1]):lock(arg[2])
      local ok, message = pcall(lock.with, lock, coroutine.yield)
      print(ok, message, (lock:held()))
    ]] }
    assert.equal("false\tattempt to yield from outside a coroutine\tfalse\n", result.out,
      tostring(result))
    assert.is_true(is_free())
  end)
end)

describe("a release in doubt", function()
  it("is still true, and the results", function()
    local own = support.memcached()
    local other = memlock.client(own.address, { timeout = 0.2 }):lock(name)
    local took, a, b, c, d = support.elapsed(other.with, other, function()
      own:stop_process()
      return 1, nil, 3
    end)
    assert.same({ true, 1, nil, 3 }, { a, b, c, d })
    assert.is_true(took < support.slack(0.4), took)
    assert.is_false((other:held()))
    own:continue_process()
    -- A second release finishes the job.
    assert.is_true(other:release())
    assert.is_nil(own:raw():get("memlock:" .. name))
  end)

  it("holds a coroutine up no longer than `timeout` when it is closed", function()
    support.needs("coroutine.close", pending)
    local own = support.memcached()
    local other = memlock.client(own.address, { timeout = 0.2 }):lock(name)
    local co = coroutine.create(function() return other:with(coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    own:stop_process()
    local took, ok = support.elapsed(coroutine.close, co)
    assert.is_true(ok)
    assert.is_true(took < support.slack(0.25), took)
    assert.is_false((other:held()))
    own:continue_process()
  end)

  it("is still true when the server died", function()
    local own = support.memcached()
    local other = memlock.client(own.address, { timeout = 0.2 }):lock(name)
    assert.same({ true, "done" }, { other:with(function()
      own:kill()
      return "done"
    end) })
    assert.is_false((other:held()))
  end)
end)

describe("a lock lost while the function ran", function()
  local thief

  -- Somebody else has it now; the lease was good for longer.
  local function steal()
    server:raw():delete("memlock:" .. name)
    thief = memlock.client(server.address, { label = "the thief" }):lock(name)
    assert(thief:acquire())
  end

  after_each(function()
    thief = nil
  end)

  local function is_lost(results, expected)
    assert.equal(3 + expected.n, results.n)
    assert.is_nil(results[1])
    assert.truthy(results[2]:find(name, 1, true), results[2])
    assert.equal("lost", results[3])
    for i = 1, expected.n do assert.equal(expected[i], results[3 + i]) end
    assert.same({ false, 0 }, { lock:held() })
  end

  it("is told, before the results", function()
    is_lost(table.pack(lock:with(function()
      steal()
      return 1, nil, 3
    end)), table.pack(1, nil, 3))
    assert(thief:verify())
    assert.equal(1, client:stats().lost)
  end)

  it("is told when the function knows already", function()
    for _, method in ipairs { "refresh", "verify", "release" } do
      is_lost(table.pack(lock:with(function()
        steal()
        local ok, _, code = lock[method](lock)
        assert.same({ nil, "lost" }, { ok, code })
        return method
      end)), table.pack(method))
      assert(thief:release())
    end
  end)

  it("is told when only its record is gone", function()
    is_lost(table.pack(lock:with(function()
      server:raw():delete("memlock:" .. name)
    end)), table.pack())
  end)

  it("is told when the lease ended, and nobody took it", function()
    lock = client:lock(name, { ttl = 0.3 })
    is_lost(table.pack(lock:with(function()
      support.sleep(0.35)
      return "late"
    end)), table.pack("late"))
    assert.is_true(is_free())
  end)

  it("is told after a yield", function()
    local co = coroutine.wrap(function() return lock:with(coroutine.yield) end)
    assert.equal(lock, co())
    steal()
    is_lost(table.pack(co("result")), table.pack("result"))
    assert(thief:verify())
  end)

  it("is told though another coroutine has taken it meanwhile, by the same object", function()
    lock = client:lock(name, { ttl = 0.3 })
    local co = coroutine.wrap(function() return lock:with(coroutine.yield) end)
    assert.equal(lock, co())
    support.sleep(0.35)
    assert(lock:acquire()) -- whoever does it, for something of its own
    local token = lock:token()
    local results = table.pack(co("result"))
    assert.same({ n = 4, nil, results[2], "lost", "result" }, results)
    assert.equal(token, lock:token())
    if select(2, lock:held()) > 0 then assert(lock:verify()) end
  end)

  it("is told though the function has taken it anew", function()
    lock = client:lock(name, { ttl = 0.3 })
    local results = table.pack(lock:with(function()
      support.sleep(0.35)
      assert(lock:acquire())
      return "result"
    end))
    assert.same({ n = 4, nil, results[2], "lost", "result" }, results)
  end)

  it("does not hide an error of the function, nor touch the other's lock", function()
    local problem = {}
    local ok, err = pcall(lock.with, lock, function()
      steal()
      error(problem)
    end)
    assert.is_true(not ok and rawequal(problem, err))
    assert(thief:verify())
    assert.is_false((lock:held()))
  end)

  it("is not touched by a closed or collected coroutine", function()
    for _, leave in ipairs { collect, coroutine.close } do -- the last is not there in 5.3
      local co = coroutine.create(function() return lock:with(coroutine.yield) end)
      assert.is_true(coroutine.resume(co))
      steal()
      leave(co)
      co = nil -- luacheck: ignore
      collect()
      assert(thief:verify())
      assert(thief:release())
    end
  end)
end)

describe("the function is not called", function()
  local ran

  local function count()
    ran = ran + 1
  end

  -- With what `with` answers; it is never `lost`, which says that the function ran.
  local function answers(which, code)
    ran = 0
    local results = table.pack(which:with(count))
    assert.same({ n = 3, nil, results[2], code }, results)
    assert.is_string(results[2])
    assert.equal(0, ran)
    return results[2]
  end

  it("while another holds the lock, also after a wait", function()
    local holder = memlock.client(server.address, { label = "the holder" }):lock(name)
    assert(holder:acquire())
    local message = answers(lock, "held")
    assert.truthy(message:find(name, 1, true) and message:find("the holder", 1, true), message)
    local took = support.elapsed(answers, client:lock(name, { wait = 0.2 }), "held")
    assert.is_true(took >= 0.2 and took < 0.2 + support.slack(0.1), took)
    assert(holder:verify())
  end)

  it("while this object holds it, which it goes on doing", function()
    assert(lock:acquire())
    answers(lock, "held")
    assert.is_true(lock:held())
    assert(lock:verify())
    assert(lock:release())
    lock:with(function() answers(lock, "held") end)
    is_released()
  end)

  it("when the server cannot be asked", function()
    answers(memlock.client(support.refusing()):lock(name), "unreachable")
    answers(memlock.client(support.silent().address, { timeout = 0.1 }):lock(name), "timeout")
    answers(memlock.client(support.memcached { args = { "-C" } }.address):lock(name), "unsupported")
  end)

  it("when the client is closed", function()
    client:close()
    answers(lock, "closed")
  end)

  it("when a lock was lost before", function()
    lock = client:lock(name, { ttl = 0.3 })
    assert(lock:acquire())
    support.sleep(0.35)
    local holder = memlock.client(server.address):lock(name)
    assert(holder:acquire(5))
    answers(lock, "held")
    server:raw():delete("memlock:" .. name)
    assert.same({ true, "ran" }, { lock:with(function() return "ran" end) })
  end)
end)

describe("a function that does it itself", function()
  it("releases: nothing is left to do", function()
    assert.same({ true, "result" }, { lock:with(function()
      assert(lock:release())
      return "result"
    end) })
    assert.equal(1, client:stats().released)
    assert.equal(0, client:stats().lost)
    is_released()
  end)

  it("releases, and another has the lock: it is left alone", function()
    local other = memlock.client(server.address):lock(name)
    assert.is_true(lock:with(function()
      assert(lock:release())
      assert(other:acquire())
    end))
    assert(other:verify())
    assert.is_false((lock:held()))
  end)

  it("releases and acquires again: that acquisition is its own, and is not ended", function()
    local token
    assert.is_true(lock:with(function()
      token = lock:token()
      assert(lock:release())
      assert(lock:acquire())
    end))
    assert.is_true(lock:held())
    assert.is_true(lock:token() > token)
    assert(lock:verify())
    assert(lock:release())
    is_released()
  end)

  it("refreshes, also for less", function()
    assert.is_true(lock:with(function()
      assert(lock:refresh(5))
      assert.is_true(select(2, lock:held()) <= 5)
    end))
    is_released()
  end)

  it("closes the client: everything is given up, and nothing raised", function()
    assert.same({ true, "closed it" }, { lock:with(function()
      client:close()
      return "closed it"
    end) })
    is_released()
  end)
end)
