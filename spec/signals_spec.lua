--- Signals do not stretch a time bound, and Ctrl-C gets through.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local posix = support.posix

local timeout = 0.5

-- Runs fn(...) while SIGALRM comes every `seconds`.
local function alarmed(seconds, restart, fn, ...)
  posix.setitimer(seconds, restart)
  local results = table.pack(support.elapsed(pcall, fn, ...))
  posix.setitimer(0)
  posix.signal("ALRM", "default")
  assert(results[2], results[3])
  return results[1], table.unpack(results, 3, results.n)
end

for _, restart in ipairs { true, false } do
  describe(restart and "SIGALRM with SA_RESTART" or "SIGALRM without SA_RESTART", function()
    it("keeps the time of an operation on a server that is stopped", function()
      local server = support.memcached()
      local client = memlock.client(server.address, { timeout = timeout })
      local lock = assert(client:lock(support.name()):acquire())
      local other = client:lock(support.name())
      server:stop_process()
      for _, call in ipairs {
        { 0.05, other, "acquire" }, { 0.05, lock, "refresh" }, { 0.001, lock, "verify" },
        { 0.001, lock, "release" },
      } do
        local interval, object, method = table.unpack(call)
        local took, ok, _, code = alarmed(interval, restart, object[method], object)
        assert.same({ nil, "timeout" }, { ok, code }, method)
        assert.is_true(took >= 0.95 * timeout and took <= timeout + support.slack(0.2 * timeout),
          ("%s took %.3f s"):format(method, took))
      end
      local took = alarmed(0.01, restart, client.close, client)
      assert.is_true(took <= timeout + support.slack(0.2 * timeout), took)
    end)

    it("keeps the time of an operation on a queue of connections that is full", function()
      local client = memlock.client(support.full().address, { timeout = timeout })
      local took, ok, _, code = alarmed(0.05, restart, function()
        return client:lock(support.name()):acquire()
      end)
      assert.same({ nil, "timeout" }, { ok, code })
      assert.is_true(took >= 0.95 * timeout and took <= timeout + support.slack(0.2 * timeout),
        took)
    end)

    it("does not end a wait early, nor make it longer", function()
      local name = support.name()
      local holder = assert(memlock.client(support.server().address):lock(name):acquire())
      local client = memlock.client(support.server().address)
      local took, ok, _, code = alarmed(0.02, restart, function()
        return client:lock(name):acquire(0.5)
      end)
      assert.same({ nil, "held" }, { ok, code })
      assert.is_true(took >= 0.49 and took <= 0.5 + support.slack(0.1), took)
      holder:release()
      client:close()
    end)

    it("disturbs no operation that is answered", function()
      local client = memlock.client(support.server().address)
      local lock = client:lock(support.name())
      local rounds = support.count(3000)
      alarmed(0.0005, restart, function()
        for _ = 1, rounds do
          assert(lock:acquire())
          assert(lock:refresh())
          assert(lock:release())
        end
      end)
      local stats = client:stats()
      assert.same({ rounds, rounds, rounds, 0, 3 * rounds }, { stats.acquired, stats.refreshed,
        stats.released, stats.errors, stats.round_trips })
      client:close()
    end)
  end)
end

it("signals that came during an operation are delivered at its end", function()
  local client = memlock.client(support.silent().address, { timeout = 0.2 })
  posix.signal("USR1", "count")
  posix.signal("USR2", "ignore")
  local pid = posix.getpid()
  local child = support.child(function()
    support.sleep(0.05)
    posix.kill(pid, "USR1")
    posix.kill(pid, "USR2")
  end)
  assert.equal("timeout", select(3, client:lock(support.name()):acquire()))
  assert.equal(1, posix.signal_count("USR1"))
  child:join()
  posix.signal("USR1", "default")
  posix.signal("USR2", "default")
end)

describe("Ctrl-C", function()
  -- Starts stock Lua, which says "ready"; sends it SIGINT after `seconds`.
  -- @return its result, and how long it took to end
  local function interrupt(seconds, code, ...)
    local program = support.start_lua { code = code, ... }
    assert.equal("ready", program:read_line())
    support.sleep(seconds)
    local start = support.now()
    program:kill("INT")
    local result = program:wait()
    assert.same({ "exit", 1 }, { result.kind, result.code }, tostring(result))
    assert.truthy(result.err:find("interrupted!", 1, true), tostring(result))
    return result, support.now() - start
  end

  it("ends memlock.sleep", function()
    local _, took = interrupt(1, [[
      local memlock = require "memlock"
      print "ready" io.flush()
      memlock.sleep(60)
      print "slept"
    ]])
    assert.is_true(took < support.slack(0.2), took)
  end)

  it("ends a wait, and no record stays", function()
    local server = support.server()
    local raw = server:raw()
    local name = support.name()
    local holder = memlock.client(server.address)
    local lock = assert(holder:lock(name):acquire())
    local _, took = interrupt(1, [[
      local memlock = require "memlock"
      local client = memlock.client(arg[1])
      local own = assert(client:lock(arg[2] .. "-own"):acquire())
      print "ready" io.flush()
      client:lock(arg[2]):acquire(60)
      print "waited"
    ]], server.address, name)
    assert.is_true(took < support.slack(0.2), took)
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    support.sleep(0.05)
    assert.is_nil(raw:get("memlock:" .. name))
    support.eventually(function() return not raw:get("memlock:" .. name .. "-own") end)
    holder:close()
  end)

  it("ends a wait for a lock on a dead server", function()
    local _, took = interrupt(0.3, [[
      local memlock = require "memlock"
      print "ready" io.flush()
      memlock.client(arg[1]):lock(arg[2]):acquire(60)
    ]], support.refusing(), support.name())
    assert.is_true(took < support.slack(0.2), took)
  end)

  it("ends a wait for a lock on a stopped server with the attempt that is under way", function()
    local server = support.memcached()
    server:stop_process()
    local _, took = interrupt(0.3, [[
      local memlock = require "memlock"
      print "ready" io.flush()
      memlock.client(arg[1], { timeout = 0.4 }):lock(arg[2]):acquire(60)
    ]], server.address, support.name())
    assert.is_true(took < 0.4 + support.slack(0.2), took)
  end)

  it("in the middle of work gives up what is held", function()
    local server = support.server()
    local raw = server:raw()
    local name = support.name()
    interrupt(0.1, [[
      local memlock = require "memlock"
      local lock = memlock.client(arg[1]):lock(arg[2])
      lock:with(function()
        print "ready" io.flush()
        memlock.sleep(60)
      end)
    ]], server.address, name)
    assert.is_nil(raw:get("memlock:" .. name))
  end)
end)

describe("SIGPIPE", function()
  it("never kills: a connection that ended is met by every operation", function()
    local server = support.server()
    local relay = support.relay(server)
    for _, how in ipairs { "fin", "rst" } do
      local program = support.start_lua { code = [[
        local posix = require "memlock_posix"
        posix.signal("PIPE", "default")
        local memlock = require "memlock"
        local client = memlock.client(arg[1])
        local lock = client:lock(arg[2])
        local function pause(what) print(what) io.flush() assert(io.read()) end
        for _, method in ipairs { "refresh", "verify", "holder", "release" } do
          assert(lock:held() or lock:acquire())
          pause "cut"
          for _ = 1, 3 do lock[method](lock) end
        end
        assert(lock:held() or lock:acquire())
        pause "cut"
        debug.getmetatable(lock).__close(lock)
        for i = 1, 3 do
          local dropped = assert(client:lock(arg[2] .. "-dropped-" .. i):acquire())
          pause "cut"
          dropped = nil
          collectgarbage()
        end
        assert(lock:acquire())
        pause "cut"
        client:close()
        local last = assert(memlock.client(arg[1]):lock(arg[2]))
        last:acquire()
        pause "cut"
        print "done"
      ]], relay.address, support.name() }
      local line = program:read_line()
      while line == "cut" do
        relay:cut(how == "rst" and "rst" or nil)
        support.eventually(function() return relay:stats().open == 0 end)
        program:write("\n")
        line = program:read_line()
      end
      assert.equal("done", line)
      local result = program:wait()
      assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    end
  end)

  it("never kills: a server that died is met by many collected locks", function()
    local server = support.memcached()
    local program = support.start_lua { code = [[
      local memlock = require "memlock"
      local client = memlock.client(arg[1])
      local locks = {}
      for i = 1, 100 do locks[i] = assert(client:lock("job" .. i):acquire()) end
      print "ready" io.flush() assert(io.read())
      locks = nil
      collectgarbage()
      client:close()
      print "done"
    ]], server.address }
    assert.equal("ready", program:read_line())
    server:kill()
    program:write("\n")
    local result = program:wait()
    assert.same({ "exit", 0, "done\n" }, { result.kind, result.code, result.out },
      tostring(result))
  end)

  it("and all others keep their handlers and masks", function()
    local function masks()
      local file = assert(io.open("/proc/self/status"))
      local found = {}
      for name, mask in file:read("a"):gmatch("(Sig%a+):%s*(%x+)\n") do found[name] = mask end
      file:close()
      return found
    end
    local before = masks()
    assert.is_string(before.SigBlk)
    local client = memlock.client(support.server().address)
    local lock = assert(client:lock(support.name()):acquire())
    assert(lock:refresh())
    client:close()
    local dead = memlock.client(support.refusing())
    assert(not dead:lock(support.name()):acquire())
    assert.same(before, masks())
  end)
end)
