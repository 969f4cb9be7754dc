--- Losses in event loops: client:fd() and client:poll().

local uv = require "luv"
uv.update_time() -- the loop of this process begins here, and is nobody's leak

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local posix = support.posix
local server = support.server()
local truth = server:raw()

local client, told
local alive -- what a test does not want to be collected

before_each(function()
  client = memlock.client(server.address)
  told, alive = {}, {}
end)

after_each(function() client:close() end)

local function note(lock, message) told[#told + 1] = { lock, message } end

local function held_lock(options)
  options = options or {}
  options.ttl = options.ttl or 0.15
  options.auto_refresh = true
  if options.on_lost == nil then options.on_lost = note end
  local lock = client:lock(support.name(), options)
  alive[#alive + 1] = lock
  return assert(lock:acquire())
end

local function break_lock(lock) assert.is_true(truth:delete("memlock:" .. lock:name())) end

local function is_readable(fd, seconds)
  return #assert(posix.poll({ fd or client:fd() }, seconds or 0)) == 1
end

local function lose(...)
  local before = client:stats().losses
  local locks = { ... }
  for _, lock in ipairs(locks) do break_lock(lock) end
  support.eventually(function() return client:stats().losses == before + #locks end)
end

describe("client:fd", function()
  it("is readable after a loss, and not before", function()
    local fd = client:fd()
    assert.equal("integer", math.type(fd))
    assert.equal(fd, client:fd())
    local lock = held_lock()
    local kept = held_lock()
    support.eventually(function() return client:stats().renewals >= 6 end)
    assert.is_true(lock:refresh())
    assert.is_true(kept:release())
    assert.is_false(is_readable(fd))
    break_lock(lock)
    assert.is_true(is_readable(fd, 2))
    assert.is_false((lock:held()))
    assert.equal(1, client:poll())
    assert.is_false(is_readable(fd))
    assert.equal(0, client:poll())
  end)

  it("is readable for what was lost before it was asked for", function()
    lose(held_lock())
    assert.is_true(is_readable())
    assert.equal(1, client:poll())
    assert.is_false(is_readable())
  end)

  it("is asked for before or after the first lock", function()
    local lock = held_lock()
    local fd = client:fd()
    lose(lock)
    assert.is_true(is_readable(fd))
    client:poll()
    lose(held_lock(), held_lock())
    assert.is_true(is_readable(fd))
    assert.equal(2, client:poll())
  end)

  it("does not leak into programs, and is closed with the client", function()
    local before = posix.open_fds()
    local other = memlock.client(server.address)
    local fd = other:fd()
    local result = support.run { "sh", "-c", "ls /proc/$$/fd | tr '\\n' ' '" }
    assert.is_nil((" " .. result.out):find((" %d "):format(fd)), result.out)
    other:close()
    assert.equal(before, posix.open_fds())
    local none, message, code = other:fd()
    assert.same({ nil, "closed" }, { none, code }, message)
    assert.equal(0, other:poll())
  end)

  it("stays readable for many losses, more than a pipe holds", function()
    local fd = client:fd()
    local count = 0
    local locks = {}
    local function on_lost() count = count + 1 end
    for i = 1, 300 do locks[i] = held_lock { ttl = 0.9, on_lost = on_lost } end
    lose(table.unpack(locks))
    assert.is_true(is_readable(fd))
    assert.equal(300, client:poll())
    assert.equal(300, count)
    assert.is_false(is_readable(fd))
  end)
end)

describe("client:poll", function()
  it("calls on_lost once, with the lock and a message, in the caller's coroutine", function()
    local where
    local lock = held_lock { on_lost = function(...)
      note(...)
      where = coroutine.running()
    end }
    lose(lock)
    local co = coroutine.create(function() return client:poll() end)
    assert.same({ true, 1 }, { coroutine.resume(co) })
    assert.equal(co, where)
    assert.equal(1, #told)
    assert.equal(lock, told[1][1])
    assert.truthy(told[1][2]:find(lock:name(), 1, true), told[1][2])
    assert.truthy(told[1][2]:find("lost", 1, true), told[1][2])
    assert.equal(0, client:poll())
    assert.equal(1, #told)
    assert.equal("lost", (select(3, lock:refresh()))) -- as if poll had not been called
  end)

  it("does nothing where nothing was lost, or nothing is renewed", function()
    assert.equal(0, client:poll())
    local lock = held_lock()
    assert.equal(0, client:poll())
    lock:release()
    assert.equal(0, client:poll())
    assert.equal(0, #told)
  end)

  it("calls nothing by itself", function()
    lose(held_lock())
    support.sleep(0.05)
    collectgarbage()
    assert.equal(0, #told)
  end)

  it("keeps the order of losses, and skips locks without on_lost", function()
    local locks = {}
    local plain = client:lock(support.name(), { ttl = 0.15, auto_refresh = true })
    for i = 1, 4 do
      locks[i] = held_lock()
      lose(locks[i])
      if i == 2 then lose(assert(plain:acquire())) end
    end
    assert.equal(4, client:poll())
    local order = {}
    for _, lock in ipairs(locks) do order[#order + 1] = lock:name() end
    local seen = {}
    for _, call in ipairs(told) do seen[#seen + 1] = call[1]:name() end
    assert.same(order, seen)
    assert.is_false(is_readable())
  end)

  it("lets an error of on_lost through, and loses none of the others", function()
    local first = held_lock { on_lost = function() error { "mine" } end }
    local second = held_lock()
    lose(first)
    lose(second)
    local fd = client:fd()
    local ok, err = pcall(client.poll, client)
    assert.is_false(ok)
    assert.same({ "mine" }, err)
    assert.equal(0, #told)
    assert.is_true(is_readable(fd))
    assert.equal(1, client:poll())
    assert.equal(second, told[1][1])
    assert.is_false(is_readable(fd))
  end)

  it("may be left by a yield in on_lost, and goes on", function()
    local locks = {}
    for i = 1, 3 do
      locks[i] = held_lock { on_lost = function(...)
        note(...)
        coroutine.yield(i)
      end }
      lose(locks[i])
    end
    local co = coroutine.wrap(function() return "end", client:poll() end)
    assert.equal(1, co())
    assert.equal(2, co())
    assert.equal(3, co())
    assert.same({ "end", 3 }, { co() })
    for i = 1, 3 do assert.equal(locks[i], told[i][1]) end
  end)

  it("survives a coroutine that never comes back, and a close in on_lost", function()
    lose(held_lock { on_lost = function() coroutine.yield() end })
    lose(held_lock { on_lost = function(...)
      note(...)
      client:close()
    end })
    lose(held_lock())
    coroutine.wrap(function() client:poll() end)()
    collectgarbage()
    assert.equal(1, client:poll())
    assert.equal(1, #told)
  end)

  it("may acquire, release and drop locks in on_lost", function()
    local again
    local lock = held_lock { on_lost = function(lost)
      again = lost:acquire()
      lost:release()
      held_lock():release()
    end }
    local name = lock:name()
    lose(lock)
    assert.equal(1, client:poll())
    assert.equal(lock, again)
    assert.is_nil((truth:get("memlock:" .. name)))
  end)

  it("does not speak of locks that were collected", function()
    local lock = held_lock()
    lose(lock)
    lock, alive = nil, nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(0, client:poll())
    assert.equal(0, #told)
    assert.is_false(is_readable())
  end)

  it("does not keep a lock alive whose on_lost refers to it", function()
    local seen = setmetatable({}, { __mode = "k" })
    do
      local lock
      lock = held_lock { on_lost = function() lock:release() end }
      seen[lock] = true
      alive = nil
    end
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(seen))
  end)

  it("tells of each loss of an object that acquires again", function()
    local lock = held_lock()
    for i = 1, 3 do
      lose(lock)
      assert.equal(1, client:poll())
      assert.equal(i, #told)
      assert.equal(lock, lock:acquire())
    end
  end)

  it("does not call what a refresh or release found to be lost before the keeper did", function()
    local lock = held_lock { ttl = 30 }
    break_lock(lock)
    assert.equal("lost", (select(3, lock:refresh())))
    assert.equal(0, client:poll())
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:refresh())
    break_lock(lock)
    assert.equal("lost", (select(3, lock:release())))
    assert.equal(0, client:poll())
    assert.equal(0, #told)
  end)

  it("does not speak of an acquisition that is over when the object holds again", function()
    for _, method in ipairs { "refresh", "release", "verify", "acquire" } do
      local lock = held_lock { on_lost = function(...)
        note(...)
        ;(...):release() -- it would give up what has been acquired since
      end }
      lose(lock)
      if method ~= "acquire" then assert.equal("lost", (select(3, lock[method](lock)))) end
      assert.equal(lock, lock:acquire())
      assert.equal(0, client:poll())
      assert.is_true((lock:held()))
      assert.is_true(lock:release())
    end
    assert.equal(0, #told)
  end)

  it("is not owed more than one call by an object, however often it was lost", function()
    local lock = held_lock()
    for i = 1, 5 do
      lose(lock)
      if i % 2 == 0 then assert.equal("lost", (select(3, lock:release()))) end
      if i < 5 then assert.equal(lock, lock:acquire()) end
    end
    assert.equal(1, client:poll())
    assert.equal(0, client:poll())
  end)

  it("tells of the end by max_hold", function()
    held_lock { max_hold = 0.1 }
    assert.is_true(is_readable(nil, 2))
    assert.equal(1, client:poll())
    assert.truthy(told[1][2]:find("max_hold", 1, true), told[1][2])
  end)
end)

describe("in a libuv loop", function()
  it("a watched descriptor brings the loss", function()
    local lock = held_lock()
    local poll, timer = uv.new_poll(client:fd()), uv.new_timer()
    local ticks, calls = 0, 0
    local start, lost_at = support.now(), nil
    poll:start("r", function()
      calls = calls + client:poll()
      lost_at = support.now()
      poll:close()
      timer:close()
    end)
    timer:start(10, 10, function()
      ticks = ticks + 1
      if ticks == 20 then break_lock(lock) end
      if ticks == 400 then error("no loss was seen") end
    end)
    uv.run()
    assert.same({ 1, 1 }, { calls, #told })
    assert.is_true(ticks >= 20)
    assert.is_true(lost_at - start < 0.2 + 0.05 + support.slack(0.1), lost_at - start)
  end)

  it("the example keeps its lock, and stops its work when the lock is lost", function()
    local program = support.start_lua { file = "examples/renewal.lua", server.address }
    assert.truthy(program:read_line():find("got the lock", 1, true))
    assert.truthy(program:read_line():find("working", 1, true))
    assert.is_true(truth:delete("memlock:renewal"))
    local line
    repeat line = program:read_line() until not line:find("working", 1, true)
    assert.truthy(line:find("lost", 1, true), line)
    local result = program:wait()
    assert.same({ "exit", 1, "" }, { result.kind, result.code, result.err }, tostring(result))
  end)

  it("the example ends well when nothing goes wrong", function()
    local result = support.run_lua { file = "examples/renewal.lua", server.address, 0.5 }
    assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
    assert.truthy(result.out:find("done", 1, true), tostring(result))
    assert.is_nil((truth:get("memlock:renewal")))
  end)

  it("the example says that there is no server", function()
    local result = support.run_lua { file = "examples/renewal.lua", support.refusing() }
    assert.same({ "exit", 1, "" }, { result.kind, result.code, result.out }, tostring(result))
    assert.truthy(result.err:find("cannot be reached", 1, true), tostring(result))
  end)
end)
