--- Many Lua states in one process, and states that run out of memory: nothing leaks or breaks.

local support = require "spec.support"
support.setup()

local server = support.server()

-- Under a sanitizer malloc tells nothing, freed memory is kept for a while, and modules stay
-- loaded; it finds leaks itself.
local sanitized = support.read_file(support.build .. "/flags"):find("-fsanitize=", 1, true) ~= nil

-- Runs build/spec/host (see spec/support/host.c) with a script of this text.
local function host(mode, count, text, ...)
  local path = support.tempdir() .. "/script.lua"
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  local command = { support.build .. "/spec/host", mode, count and tostring(count) or path }
  if count then command[#command + 1] = path end
  for _, argument in ipairs { ... } do command[#command + 1] = tostring(argument) end
  command.timeout = 300
  command.env = support.environment { GLIBC_TUNABLES = "glibc.malloc.tcache_count=0" }
  local result = support.run(command)
  assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
  assert.equal("", result.err, tostring(result))
  return result.out
end

-- The two reports of `run` and `keep`.
local function reports(output)
  local list = {}
  for line in output:gmatch("heap=[^\n]*") do
    local report = {}
    for key, value in line:gmatch("(%a+)=(%d+)") do
      report[key] = math.tointeger(tonumber(value))
    end
    list[#list + 1] = report
  end
  assert.equal(2, #list, output)
  return list[1], list[2]
end

-- No more of the heap than one small object in all, and no more pages than the loader or malloc may
-- need for their own ends.
local function flat(before, after)
  assert.equal(before.fds, after.fds)
  if sanitized then return end
  assert.is_true(after.heap - before.heap < 1024,
    ("the heap grew by %d bytes"):format(after.heap - before.heap))
  assert.is_true(after.rss - before.rss < 1 << 20,
    ("resident memory grew by %d bytes"):format(after.rss - before.rss))
end

describe("states that come and go", function()
  local count = support.count(1000)

  local cycle = [[
    local number, address, name = ...
    local memlock = require "memlock"
    local client = memlock.client(address, { ttl = 5 })
    local lock = client:lock(name .. number)
    assert(lock:acquire())
    assert(lock:refresh())
    assert(lock:holder().mine)
    assert(client:update(name, function(old) return (old or "") .. "x" end))
    local ok = pcall(lock.with, client:lock(name .. "-with"), error)
    assert(not ok)
  ]]

  local function check(before, after, loaded)
    flat(before, after)
    if not sanitized then assert.same({ loaded, loaded }, { before.loaded, after.loaded }) end
  end

  -- Nobody holds anything when all is over.
  local function all_free(name)
    local raw = server:raw()
    for i = 1, count do
      support.eventually(function() return not raw:get("memlock:" .. name .. i) end)
    end
    assert.is_nil(raw:get("memlock:" .. name .. "-with"))
    assert.equal(count, #raw:get(name))
  end

  it("leak nothing, with the module unloaded in between", function()
    local name = support.name()
    local before, after = reports(host("run", count, cycle .. "lock:release() client:close()",
      server.address, name))
    check(before, after, 0)
    all_free(name)
  end)

  it("leak nothing, while another state keeps the module", function()
    local name = support.name()
    local before, after = reports(host("keep", count, cycle .. "lock:release() client:close()",
      server.address, name))
    check(before, after, 1)
    all_free(name)
  end)

  it("leak nothing and leave no record, when lua_close has to do all of it", function()
    for mode, loaded in pairs { run = 0, keep = 1 } do
      local name = support.name()
      local before, after = reports(host(mode, count, cycle .. "keep = { lock, client }",
        server.address, name))
      check(before, after, loaded)
      all_free(name)
    end
  end)

  it("leak nothing when there is no server", function()
    local before, after = reports(host("run", count, [[
      local _, address = ...
      local memlock = require "memlock"
      local client = memlock.client(address)
      for i = 1, 3 do assert(not client:lock("job" .. i):acquire()) end
      assert(not client:update("key", print))
    ]], support.refusing()))
    check(before, after, 0)
  end)

  it("leak nothing when they only load the module", function()
    local before, after = reports(host("run", count, "assert(require 'memlock'.client())"))
    check(before, after, 0)
  end)

  it("may hold locks of their own side by side, and end in any order", function()
    local name = support.name()
    local before, after = reports(host("run", count, [[
      local number, address, name = ...
      package.loaded.memlock = nil
      local one = require "memlock"
      package.loaded.memlock = nil
      local two = require "memlock"
      local clients = { one.client(address), two.client(address), one.client(address) }
      local locks = {}
      for i, client in ipairs(clients) do
        locks[i] = assert(client:lock(name .. number .. "-" .. i):acquire())
      end
      if number % 2 == 0 then clients[2]:close() end
      if number % 3 == 0 then clients[1] = nil collectgarbage() end
      keep = { locks, clients }
    ]], server.address, name))
    check(before, after, 0)
  end)
end)

describe("one state that goes on and on", function()
  -- Runs `body` many times; `heap`, `rss` and `fds` are taken after a tenth and at the end.
  local function grow(count, body, ...)
    local output = host("run", 1, ([[
      local _, address, name = ...
      local memlock = require "memlock"
      local client = memlock.client(address)
      local lock = client:lock(name)
      local count = %d
      local heap, rss, fds
      for i = 1, count do
        %s
        if i == (count + 9) // 10 then
          collectgarbage()
          heap, rss, fds = host.heap(), host.rss(), host.fds()
        end
      end
      collectgarbage()
      print(host.heap() - heap, host.rss() - rss, host.fds() - fds)
    ]]):format(count, body), ...)
    local heap, rss, fds = output:match("(%-?%d+)\t(%-?%d+)\t(%-?%d+)")
    assert.equal("0", fds)
    if sanitized then return end
    assert.is_true(tonumber(heap) < 4096, ("the heap grew by %s bytes"):format(heap))
    assert.is_true(tonumber(rss) < 1 << 20, ("resident memory grew by %s bytes"):format(rss))
  end

  it("keeps its memory flat over 10,000 acquisitions and releases", function()
    grow(support.count(10000), "assert(lock:acquire()) assert(lock:release())", server.address,
      support.name())
  end)

  it("keeps its memory flat over refused, lost and forgotten locks", function()
    server:raw():set("memlock:taken", "somebody")
    grow(support.count(5000), [[
      assert(not client:lock("taken"):acquire())
      assert(client:lock(name .. i):acquire())
      local lost = assert(client:lock(name .. "-lost"):acquire())
      assert(client:break_lock(name .. "-lost", lost:holder()))
      assert(not lost:refresh())
      assert(not pcall(client.lock, client, "a b"))
      assert(not pcall(memlock.client, "a b"))
      if i % 10 == 0 then collectgarbage() end
    ]], server.address, support.name())
  end)

  it("keeps its memory and descriptors flat over clients that are closed or forgotten", function()
    grow(support.count(3000), [[
      local one = memlock.client(address)
      assert(one:lock(name .. "-" .. i):acquire())
      if i % 2 == 0 then one:close() end
      one = nil
      collectgarbage()
    ]], server.address, support.name())
  end)

  it("keeps its memory flat over a server that is away", function()
    grow(support.count(3000), [[
      assert(not lock:acquire())
      assert(not client:holder(name))
      assert(not client:update(name, print))
    ]], support.refusing(), support.name())
  end)
end)

describe("a state that runs out of memory", function()
  -- Everything a program does, with a lock per step that may be left behind.
  local all = [[
    local number, address, name = ...
    local memlock = require "memlock"
    local client = memlock.client({ address }, { ttl = 60, label = "host", sleep = memlock.sleep })
    local lock = client:lock(name .. number, { ttl = 50, wait = 1 })
    assert(lock:acquire())
    assert(lock:held() and lock:token() and tostring(lock) and tostring(client))
    assert(lock:refresh())
    assert(lock:verify())
    assert(lock:holder().mine)
    assert(client:stats().acquired == 1)
    local second = client:lock(name .. number .. "-second")
    assert(second:acquire(0.001))
    local third = client:lock(name .. number .. "-third", { identity = "web-1" })
    assert(third:with(function(one) return one:held(), tostring(client) end))
    assert(client:update(name .. number .. "-key", function(old) return (old or "") .. "x" end))
    assert(client:break_lock(second:name(), client:holder(second:name())))
    assert(select(3, second:release()) == "lost")
    local fourth ]] .. (support.end_block and "<close>" or "") .. [[ =
      assert(client:lock(name .. number .. "-fourth"):acquire())
    local other = memlock.client(address)
    assert(select(3, other:lock(fourth:name()):acquire()) == "held")
    assert(not pcall(client.lock, client, "a b"))
    assert(lock:release())
    assert(client:close())
    assert(memlock.type(client) == "closed client")
  ]]

  for mode, what in pairs {
    once = "for a moment, at any allocation",
    from = "for good, at any allocation",
  } do
    it(what .. ": no crash, and no record stays that nobody holds", function()
      local name = support.name()
      local output = host(mode, nil, all, server.address, name)
      local states, out_of_memory = 0, 0
      for line in output:gmatch("[^\n]+") do
        states = states + 1
        assert.equal(states, tonumber(line:match("^(%d+) ")), line)
        local status = line:match("^%d+ (.*)$")
        -- Nothing but an honest lack of memory may come of it.
        if status:find("not enough memory", 1, true) then
          out_of_memory = out_of_memory + 1
        else
          assert.equal("ok", status)
        end
      end
      assert.is_true(states >= 50, output) -- or the script did not do what it should
      -- All but what Lua can do without, such as a larger table of strings, and what pcall hides.
      if mode == "from" then assert.is_true(out_of_memory >= states - 10, output) end
      local raw = server:raw()
      for i = 1, states do
        for _, suffix in ipairs { "", "-second", "-third", "-fourth" } do
          support.eventually(function()
            return not raw:get("memlock:" .. name .. i .. suffix)
          end)
        end
      end
    end)
  end
end)
