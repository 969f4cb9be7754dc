--- How often an operation asks the server: counted by a relay, which sees what a network sees.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

-- After a connection was lost: a flight that finds out, and what learns the truth.
local RECOVERY = 5

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

for _, unix in ipairs { false, true } do
  describe(unix and "through a unix socket" or "through TCP", function()
    local server, relay, client, name, lock

    -- All tests but those that restart it share a server.
    before_each(function()
      server = support.server()
      relay = support.relay(server, { unix = unix })
      client = memlock.client(relay.address, { timeout = 5 })
      name = support.name()
      lock = client:lock(name, { ttl = 30 })
    end)

    after_each(function() client:close() end)

    -- Asserts that `fn` asks `expected` times, and that the client counts alike.
    -- Returns what `fn` returns.
    local function asks(expected, fn, ...)
      relay:reset()
      local before = client:stats().round_trips
      local results = table.pack(fn(...))
      local stats = relay:stats()
      assert.equal(expected, stats.asked)
      assert.equal(expected, stats.answered)
      assert.equal(expected, client:stats().round_trips - before)
      return table.unpack(results, 1, results.n)
    end

    it("acquire asks once: the first of a client and a name, and all others", function()
      assert.equal(lock, asks(1, lock.acquire, lock))
      lock:release()
      assert.equal(lock, asks(1, lock.acquire, lock))
      local other = client:lock(support.name())
      assert.equal(other, asks(1, other.acquire, other))
      assert.equal(0, relay:stats().connections) -- since the reset
    end)

    it("acquire asks once when somebody else holds the lock", function()
      local holder = memlock.client(server.address, { label = "somebody else" })
      local its = assert(holder:lock(name):acquire())
      assert_fails("held", "somebody else", asks(1, lock.acquire, lock))
      assert_fails("held", "somebody else", asks(1, lock.acquire, lock))
      assert.is_true(its:release())
      holder:close()
      server:raw():set("memlock:" .. name, "of another program", 30)
      assert_fails("held", "another program", asks(1, lock.acquire, lock))
    end)

    it("acquire does not ask for what the object holds already", function()
      assert(lock:acquire())
      assert_fails("held", "this very object", asks(0, lock.acquire, lock))
    end)

    it("acquire asks twice where a compare-and-swap has to follow the look", function()
      server:raw():set("memlock:" .. name, "", 30)
      assert.equal(lock, asks(2, lock.acquire, lock))
      lock:release()
      local one = client:lock(name, { identity = "web-1" })
      local two = client:lock(name, { identity = "web-1" })
      assert.equal(one, asks(1, one.acquire, one))
      assert.equal(two, asks(2, two.acquire, two))
    end)

    it("refresh and release ask once, again and again", function()
      for _ = 1, 3 do
        assert(lock:acquire())
        assert.is_true(asks(1, lock.refresh, lock))
        assert.is_true(asks(1, lock.refresh, lock, 20))
        assert.is_true(asks(1, lock.release, lock))
      end
    end)

    it("the end of a block asks once", function()
      support.needs("<close>", pending)
      assert(lock:acquire())
      asks(1, support.end_block, lock)
    end)

    it("closing a client asks once for all its locks", function()
      local locks = {}
      for i = 1, 20 do
        locks[i] = client:lock(support.name())
        assert(locks[i]:acquire())
      end
      relay:reset()
      client:close()
      assert.equal(1, relay:stats().answered)
      local raw = server:raw()
      for _, closed in ipairs(locks) do
        assert.is_nil(raw:get("memlock:" .. closed:name()))
      end
    end)

    it("held, token, name and tostring never ask", function()
      assert(lock:acquire())
      asks(0, function()
        assert.is_true(lock:held())
        assert.is_truthy(lock:token())
        assert.equal(name, lock:name())
        assert.truthy(tostring(lock):find("held", 1, true))
      end)
    end)

    it("holder and verify ask once while the record stands", function()
      assert(lock:acquire())
      assert.is_true(asks(1, lock.verify, lock))
      assert.is_true(asks(1, lock.holder, lock).mine)
      assert.is_true(asks(1, client.holder, client, name).mine)
    end)

    it("holder asks once more before it says that a lock is free", function()
      assert(lock:acquire())
      lock:release()
      assert.is_false(asks(2, lock.holder, lock))
    end)

    it("refresh and release of what is not held do not ask", function()
      assert_fails("not_held", name, asks(0, lock.refresh, lock))
      assert_fails("not_held", name, asks(0, lock.release, lock))
      assert_fails("not_held", name, asks(0, lock.verify, lock))
    end)

    for _, how in ipairs { "end", "rst" } do
      it("calls survive a connection that was cut while idle (" .. how .. ")", function()
        local function survives(fn, ...)
          relay:cut(how == "rst" and "rst" or nil)
          relay:reset()
          local results = table.pack(fn(...))
          local stats = relay:stats()
          assert.is_true(stats.connections >= 1) -- or nothing was cut
          assert.is_true(stats.answered <= RECOVERY, stats.answered)
          return table.unpack(results, 1, results.n)
        end
        assert(client:holder(name) == false) -- connects
        assert.equal(lock, survives(lock.acquire, lock))
        assert.is_true(survives(lock.verify, lock))
        assert.is_true(survives(lock.refresh, lock))
        assert.is_true(survives(lock.holder, lock).mine)
        assert.is_true(survives(lock.release, lock))
        assert.is_false(survives(lock.holder, lock))
        assert.is_nil(server:raw():get("memlock:" .. name))
        assert.equal(lock, survives(lock.acquire, lock))
        assert.is_true((lock:held()))
      end)
    end
  end)
end

describe("after a restart of the server", function()
  local server, relay, client, lock, name

  before_each(function()
    server = support.memcached()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 5 })
    name = support.name()
    lock = client:lock(name, { ttl = 30 })
    assert(lock:acquire())
  end)

  after_each(function() client:close() end)

  local function after_restart(fn, ...)
    server:restart()
    relay:reset()
    local results = table.pack(fn(...))
    local stats = relay:stats()
    assert.is_true(stats.answered >= 1 and stats.answered <= RECOVERY, stats.answered)
    return table.unpack(results, 1, results.n)
  end

  it("acquire succeeds", function()
    lock:release()
    assert.equal(lock, after_restart(lock.acquire, lock))
    assert.is_true(lock:holder().mine)
  end)

  it("acquire of another lock succeeds, and says who holds a taken one", function()
    local other = client:lock(support.name())
    assert.equal(other, after_restart(other.acquire, other))
    local holder = memlock.client(server.address, { label = "somebody else" })
    local taken = client:lock(support.name())
    local its = holder:lock(taken:name())
    assert_fails("held", "somebody else", after_restart(function()
      assert(its:acquire())
      return taken:acquire()
    end))
    assert.is_true(its:release())
    holder:close()
  end)

  it("refresh, release, verify and holder tell the truth", function()
    assert_fails("lost", "gone", after_restart(lock.refresh, lock))
    assert(lock:acquire())
    assert_fails("lost", "gone", after_restart(lock.release, lock))
    assert(lock:acquire())
    assert_fails("lost", "gone", after_restart(lock.verify, lock))
    assert(lock:acquire())
    assert.is_false(after_restart(lock.holder, lock))
  end)
end)

describe("system calls", function()
  -- The calls that a program makes between its marks, by name: one table for each pair of marks.
  local function traced(code)
    local place = support.tempdir() .. "/trace"
    local asan = (os.getenv("ASAN_OPTIONS") or "") .. ":detect_leaks=0" -- it cannot while traced
    local result = support.run_lua { code = code, support.server().address, support.name(),
      prefix = "strace -qq -o " .. place, env = { ASAN_OPTIONS = asan }, timeout = 60 }
    assert.equal(0, result.code, tostring(result))
    local parts = {}
    for line in io.lines(place) do
      local call = line:match("^(%w+)%(")
      if line:find('^write%(1, "mark"') then
        parts[#parts + 1] = setmetatable({}, { __index = function() return 0 end })
      elseif call and #parts > 0 then
        local part = parts[#parts]
        part[call] = part[call] + 1
      end
    end
    return parts
  end

  local function total(part)
    local sum = 0
    for _, count in pairs(part) do sum = sum + count end
    return sum
  end

  -- What a flight of `sends` commands may take: it sends, looks for the answer, waits for it, looks
  -- again, and keeps signals away meanwhile. (The answer may come in two pieces.)
  local function assert_one_flight(sends, part)
    assert.equal(sends, part.sendto)
    assert.is_true(part.recvfrom >= 1 and part.recvfrom <= 3, part.recvfrom)
    assert.is_true(part.poll <= 2, part.poll)
    assert.is_true(total(part) <= sends + part.recvfrom + part.poll + 2, total(part))
  end

  it("are no more than a flight needs", function()
    local ok, tool = pcall(support.run, { "strace", "-o", "/dev/null", "true" })
    if not ok then return pending("strace is not installed") end
    if tool.code ~= 0 then return pending("strace is not allowed to trace: " .. tool.err) end

    local parts = traced [[
      local client = require("memlock").client(arg[1])
      local lock = client:lock(arg[2])
      assert(lock:acquire() and lock:refresh() and lock:release()) -- connects
      collectgarbage("stop")
      io.stdout:setvbuf("no")
      local function mark() io.stdout:write("mark") end
      mark() lock:acquire()
      mark() lock:refresh()
      mark() lock:held()
      mark() lock:release()
      mark() client:lock(arg[2])
      mark() os.exit(true)
    ]]
    assert.equal(6, #parts)
    assert_one_flight(4, parts[1]) -- add, add, incr, gets
    assert_one_flight(2, parts[2]) -- cas, gets
    assert.equal(0, total(parts[3]))
    assert_one_flight(1, parts[4]) -- cas
    assert.equal(0, parts[5].sendto + parts[5].connect)
  end)
end)
