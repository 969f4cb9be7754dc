--- A forked child has copies of clients and locks; they are nobody's, and do no harm.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local posix = support.posix

local function key_of(lock) return "memlock:" .. lock:name() end

local server = support.server()

describe("after a fork,", function()
  local relay, client, lock, watcher, other

  -- The parent's client, behind a relay, with one lock that it holds; `other` is somebody else's.
  before_each(function()
    relay = support.relay(server)
    client = memlock.client(relay.address)
    lock = assert(client:lock(support.name()):acquire())
    watcher = memlock.client(server.address)
    other = watcher:lock(lock:name())
    relay:reset()
    relay:record()
  end)

  -- Whatever the child did, the parent has its lock and works on its old connection.
  after_each(function()
    local connections = relay:stats().connections
    assert.is_true(lock:held())
    assert.equal("held", select(3, other:acquire()))
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    assert.equal(other, other:acquire())
    assert.is_true(other:release())
    assert.equal(connections, relay:stats().connections)
    client:close()
    watcher:close()
  end)

  local function silent()
    assert.same({ "", 0, 1 }, { relay:sent(), relay:stats().connections, relay:stats().open })
  end

  describe("the child's copy of a held lock", function()
    it("is not held", function()
      local token = lock:token()
      local results = { support.child(function()
        local held, left = lock:held()
        return held, left, tostring(lock), tostring(client), lock:name(), memlock.type(lock)
      end):join() }
      assert.same({ false, 0, ('memlock.lock "%s" (not held)'):format(lock:name()),
        ("memlock.client (%s, 0 held)"):format(relay.address), lock:name(), "lock" }, results)
      assert.equal(token, lock:token())
      silent()
    end)

    it("cannot be refreshed, verified or released, and nothing is sent", function()
      local results = support.child(function()
        local results = {}
        for _, method in ipairs { "refresh", "verify", "release", "release", "refresh" } do
          results[#results + 1] = { lock[method](lock) }
        end
        return results
      end):join()
      for _, result in ipairs(results) do
        assert.same({ nil, "not_held" }, { result[1], result[3] })
        assert.truthy(result[2]:find(lock:name(), 1, true), result[2])
      end
      silent()
    end)

    it("says that it is another process's", function()
      local _, message = support.child(function() return lock:release() end):join()
      assert.truthy(message:find("process", 1, true), message)
    end)

    it("finds the lock held by the parent", function()
      local message, code, mine, label = support.child(function()
        local _, message, code = lock:acquire()
        local holder = lock:holder()
        return message, code, holder.mine, holder.label
      end):join()
      assert.equal("held", code)
      assert.truthy(message:find(label, 1, true), message)
      assert.is_false(mine)
      assert.truthy(label:find(":" .. posix.getpid() .. "$"), label)
    end)

    it("can be acquired when the parent has given it up, and is then the child's", function()
      local child = support.child(function(channel)
        channel:send(lock:held())
        channel:receive()
        assert(lock:acquire())
        channel:send((lock:held()))
        channel:receive()
        return lock:release()
      end)
      assert.is_false((child:receive()))
      assert.is_true(lock:release())
      child:send("go")
      assert.is_true((child:receive()))
      local ok, _, code = lock:acquire()
      assert.same({ nil, "held" }, { ok, code })
      assert.is_false((lock:held()))
      child:send("go")
      assert.is_true((child:join()))
      assert.equal(lock, lock:acquire())
    end)
  end)

  -- Ways for a child to end with its copies, or to let go of them.
  local ends = {
    ["a full collection"] = "lock, client = nil collectgarbage() posix._exit(0)",
    ["the end of its script"] = "do return end",
    ["os.exit(0)"] = "os.exit(0)",
    ["os.exit(true, true)"] = "os.exit(true, true)",
    ["an error"] = "error 'disk full'",
    ["client:close"] = "assert(client:close()) posix._exit(0)",
    ["leaving scopes"] = "do local c <close> = client local l <close> = lock end posix._exit(0)",
    ["an error in a scope"] =
      "pcall(function() local l <close> = lock error 'x' end) posix._exit(0)",
    ["release and then its end"] = "assert(not lock:release()) do return end",
    ["held and then its end"] = "assert(not lock:held()) do return end",
    ["a signal"] = "posix.kill(posix.getpid(), 'TERM') posix.sleep(10)",
  }

  describe("a child", function()
    for what, code in pairs(ends) do
      it("that ends by " .. what .. " leaves the parent's lock and connection alone", function()
        if code:find("<close>", 1, true) then support.needs("<close>", pending) end
        local name = support.name()
        local parent = support.start_lua { code = [[
          posix = require "memlock_posix"
          local memlock = require "memlock"
          client = memlock.client(arg[1])
          lock = assert(client:lock(arg[2]):acquire())
          print "held" io.flush() io.read()
          local pid = posix.fork()
          if pid == 0 then
            posix.pdeathsig "KILL"
            ]] .. code .. [[

          end
          assert(posix.waitpid(pid, 10))
          print "ended" io.flush() io.read()
          print(lock:held()) print(lock:refresh()) print(lock:verify()) io.flush() io.read()
          print(lock:release()) io.flush() io.read()
        ]], relay.address, name }
        assert.equal("held", parent:read_line())
        relay:reset()
        relay:record()
        parent:write("\n")
        assert.equal("ended", parent:read_line())
        assert.same({ "", 0 }, { relay:sent(), relay:stats().connections })
        parent:write("\n")
        assert.truthy(parent:read_line():find("^true"))
        assert.equal("true", parent:read_line())
        assert.equal("true", parent:read_line())
        local third = memlock.client(server.address)
        assert.equal("held", select(3, third:lock(name):acquire()))
        parent:write("\n")
        assert.equal("true", parent:read_line())
        local free = third:lock(name)
        assert.equal(free, free:acquire())
        third:close()
        parent:write("\n")
        assert.equal(0, parent:wait().code)
        assert.equal(0, relay:stats().connections) -- still the first one
      end)
    end

    it("makes and holds locks of its own, with the inherited client and with new ones", function()
      local name = support.name()
      local child = support.child(function(channel)
        local inherited = assert(client:lock(name .. 1):acquire())
        local own = assert(memlock.client(relay.address):lock(name .. 2):acquire())
        channel:send(inherited:held() and own:held(), client:stats().acquired)
        channel:receive()
        assert(inherited:refresh() and inherited:verify() and own:refresh())
        return inherited:release(), own:release()
      end)
      assert.is_true((child:receive()))
      for i = 1, 2 do
        local mine = client:lock(name .. i)
        assert.equal("held", select(3, mine:acquire()))
      end
      assert.equal(2, relay:stats().connections) -- two new ones, of the child
      child:send("go")
      assert.same({ true, true }, { child:join() })
      for i = 1, 2 do
        local mine = client:lock(name .. i)
        assert.equal(mine, mine:acquire())
        assert.is_true(mine:release())
      end
    end)

    it("is named as the holder of what it holds", function()
      local name = support.name()
      local child = support.child(function(channel)
        assert(client:lock(name):acquire())
        channel:receive()
      end)
      local holder = support.eventually(function() return client:holder(name) end)
      assert.truthy(holder.label:find(":" .. child.pid .. "$"), holder.label)
      child:send("go")
      child:join()
    end)

    it("keeps the label that the program chose", function()
      local named = memlock.client(server.address, { label = "blue team" })
      local name = support.name()
      local label = support.child(function()
        assert(named:lock(name):acquire())
        return named:holder(name).label
      end):join()
      assert.equal("blue team", label)
      named:close()
    end)

    it("may close the inherited client; the parent's works on", function()
      local closed = support.child(function()
        client:close()
        return memlock.type(client), select(3, lock:acquire())
      end)
      assert.same({ "closed client", "closed" }, { closed:join() })
      assert.equal("client", memlock.type(client))
      silent()
    end)

    it("of a client that never connected works", function()
      local fresh = memlock.client(relay.address)
      local name = support.name()
      local child = support.child(function()
        collectgarbage "stop" -- a collected lock is given up
        return fresh:lock(name):acquire() ~= nil
      end)
      assert.is_true((child:join()))
      assert.equal("held", select(3, fresh:lock(name):acquire()))
      fresh:close()
    end)

    it("may have children: nothing is shared with grandparents either", function()
      local name = support.name()
      local results = { support.child(function()
        local mine = assert(client:lock(name):acquire())
        local grandchild = support.child(function()
          local held = (mine:held() or lock:held())
          local _, _, code = mine:release()
          local _, _, code2 = lock:release()
          local _, _, code3 = mine:acquire()
          local own = assert(client:lock(name .. "-grandchild"):acquire())
          local great = support.child(function()
            return (own:held() or mine:held() or lock:held()), (select(3, own:release()))
          end)
          local far, far_code = great:join()
          return held, code, code2, code3, far, far_code, own:release()
        end)
        local results = table.pack(grandchild:join())
        results[#results + 1] = (mine:held())
        results[#results + 1] = mine:refresh()
        results[#results + 1] = mine:release()
        return table.unpack(results)
      end):join() }
      assert.same({ false, "not_held", "not_held", "held", false, "not_held", true, true, true,
        true }, results)
    end)
  end)

  describe("processes that share one client", function()
    it("race over names: exactly one wins each, and the server agrees", function()
      local names = {}
      for i = 1, support.count(500) do names[i] = support.name() end
      local children = {}
      for i = 1, 4 do
        children[i] = support.child(function(channel)
          channel:send("ready")
          channel:receive()
          local won, kept = {}, {} -- what is not kept is collected, and given up
          for _, name in ipairs(names) do
            local mine = client:lock(name, { ttl = 60 })
            kept[#kept + 1] = mine
            local ok, message, code = mine:acquire()
            if ok then
              won[name] = { id = mine:holder().id, token = mine:token() }
              assert(mine:held())
            else
              assert(code == "held", message)
            end
          end
          channel:send(won)
          channel:receive() -- the winners hold until all are counted
          for _, mine in ipairs(kept) do assert(mine:held() == (won[mine:name()] ~= nil)) end
        end)
      end
      for _, child in ipairs(children) do child:receive() end
      for _, child in ipairs(children) do child:send("go") end
      local winners, ids, wins = {}, {}, 0
      for i, child in ipairs(children) do
        for name, win in pairs(child:receive(30)) do
          assert.is_nil(winners[name], name .. " has two winners")
          winners[name], ids[name] = i, win.id
          wins = wins + 1
        end
      end
      assert.equal(#names, wins)
      local raw = server:raw()
      local seen = {}
      for _, name in ipairs(names) do
        local value = raw:get("memlock:" .. name)
        assert.equal(ids[name], value:match("^memlock/1 (%S+) "))
        assert.is_nil(seen[ids[name]])
        seen[ids[name]] = true
      end
      for _, child in ipairs(children) do
        child:send("done")
        child:join()
      end
    end)

    it("one after the other, and all at once with the parent, get their own answers", function()
      local children = {}
      local rounds = support.count(1000)
      for i = 1, 4 do
        children[i] = support.child(function()
          local mine = client:lock(support.name())
          for _ = 1, rounds do
            assert(mine:acquire())
            local holder = assert(mine:holder())
            assert(holder.mine)
            assert(mine:release())
            assert(mine:holder() == false)
          end
          return true
        end)
      end
      for _ = 1, rounds do
        assert(lock:refresh())
        assert(lock:holder().mine)
      end
      for _, child in ipairs(children) do assert.is_true((child:join(60))) end
    end)
  end)

  it("what the parent closed or dropped before the fork may be collected in the child", function()
    for _, closing in ipairs { true, false } do
      do
        local garbage = memlock.client(server.address)
        assert(garbage:lock(support.name()):acquire())
        if closing then garbage:close() end
      end
      local child = support.child(function()
        collectgarbage()
        return "alive"
      end)
      assert.equal("alive", child:join())
    end
  end)

  it("a lock acquired after the fork is unknown to the child", function()
    local late = client:lock(support.name())
    local child = support.child(function(channel)
      channel:receive()
      return (late:held()), (select(3, late:release()))
    end)
    assert.equal(late, late:acquire())
    child:send("go")
    assert.same({ false, "not_held" }, { child:join() })
    assert.is_true(late:verify())
    assert.truthy(server:raw():get(key_of(late)))
    assert.is_true(late:release())
  end)
end)
