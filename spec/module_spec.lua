--- The module itself: what require brings, what its objects say about themselves.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local posix = support.posix

local function run(text)
  local file = assert(io.popen(text))
  local output = file:read("a")
  file:close()
  return output
end

-- Collects `object` and brings it back to life. Finalizers run in the reverse order of marking, so
-- the one that saves it is marked before it and runs after its own.
local function collected(make)
  local saved
  do
    local keeper = setmetatable({}, { __gc = function(self) saved = self.object end })
    keeper.object = make()
  end
  collectgarbage()
  assert(saved, "it was not collected")
  return saved
end

describe("require", function()
  it("touches no global, no metatable of a basic type, and loads one module", function()
    local result = support.run_lua [[
      local function picture()
        local seen = {}
        local function note(what, t)
          for key, value in pairs(t) do seen[what .. "." .. tostring(key)] = tostring(value) end
        end
        note("_G", _G)
        note("loaded", package.loaded)
        note("preload", package.preload)
        for name, library in pairs(package.loaded) do
          if type(library) == "table" and name ~= "_G" then note(name, library) end
        end
        for _, value in ipairs { "", 1, true, print, coroutine.create(print) } do
          seen[type(value)] = tostring(debug.getmetatable(value))
        end
        note("string metatable", getmetatable(""))
        seen["global metatable"] = tostring(getmetatable(_G))
        seen.random = nil
        return seen
      end
      local before = picture()
      local module = require "memlock"
      local after = picture()
      for key, value in pairs(after) do
        if before[key] ~= value and not key:find "^memlock%." then print(key) end
      end
      for key in pairs(before) do
        if after[key] == nil then print("gone: " .. key) end
      end
      assert(package.loaded.memlock == module and _G.memlock == nil)
    ]]
    assert.equal("loaded.memlock\n", result.out, tostring(result))
    assert.equal(0, result.code, tostring(result))
  end)

  it("works under a strict global environment", function()
    local result = support.run_lua [[
      setmetatable(_G, {
        __newindex = function(_, name) error("global " .. name .. " was set") end,
        __index = function(_, name) error("global " .. name .. " was read") end,
      })
      local memlock = require "memlock"
      memlock.client("127.0.0.1:1"):lock("job"):held()
      io.write "done"
    ]]
    assert.equal("done", result.out, tostring(result))
  end)

  it("leaves the state of math.random alone", function()
    local result = support.run_lua [[
      math.randomseed(42)
      local expected = math.random(1 << 40)
      math.randomseed(42)
      local memlock = require "memlock"
      memlock.client("127.0.0.1:1"):lock("job"):acquire()
      assert(math.random(1 << 40) == expected)
      io.write "done"
    ]]
    assert.equal("done", result.out, tostring(result))
  end)

  it("brings these functions and nothing else", function()
    local names = {}
    for name in pairs(memlock) do names[#names + 1] = name end
    table.sort(names)
    assert.same({ "_VERSION", "check_name", "client", "sleep", "type" }, names)
    assert.is_nil(getmetatable(memlock))
  end)

  it("twice gives two modules that know each other's objects", function()
    local address = support.server().address
    local old_client = memlock.client(address)
    local old_lock = old_client:lock(support.name())
    assert(old_lock:acquire())
    package.loaded.memlock = nil
    local again = require "memlock"
    package.loaded.memlock = memlock
    assert.are_not.equal(memlock, again)
    assert.equal(memlock._VERSION, again._VERSION)
    assert.equal("client", again.type(old_client))
    assert.equal("lock", again.type(old_lock))
    local new_client = again.client(address)
    assert.equal("client", memlock.type(new_client))
    assert.equal(debug.getmetatable(old_client), debug.getmetatable(new_client))
    assert.equal("held", select(3, new_client:lock(old_lock:name()):acquire()))
    assert.is_true(old_lock:release())
    local new_lock = assert(new_client:lock(old_lock:name()):acquire())
    assert.is_true(new_lock:release())
  end)

  it("twice in one state works, with collections in between", function()
    local result = support.run_lua { code = [[
      for i = 1, 20 do
        package.loaded.memlock = nil
        local memlock = require "memlock"
        local lock = memlock.client(arg[1]):lock(arg[2])
        assert(lock:acquire(5))
        if i % 2 == 0 then assert(lock:release()) end
        lock = nil
        collectgarbage()
      end
      io.write "done"
    ]], support.server().address, support.name() }
    assert.equal("done", result.out, tostring(result))
  end)
end)

it("_VERSION is that of src/version.h", function()
  local text = assert(io.open("src/version.h")):read("a")
  assert.equal(text:match('#define ML_VERSION "([^"]+)"'), memlock._VERSION)
end)

it("the library exports luaopen_memlock and nothing else", function()
  local symbols = {}
  local output = run("nm -D --defined-only " .. support.build .. "/memlock.so")
  for name in output:gmatch("%x+ %a ([^%s@]+)") do symbols[#symbols + 1] = name end
  assert.same({ "luaopen_memlock" }, symbols)
end)

describe("type", function()
  it("tells clients, closed clients and locks", function()
    local client = memlock.client(support.server().address)
    local lock = client:lock(support.name())
    assert.equal("client", memlock.type(client))
    assert.equal("lock", memlock.type(lock))
    client:close()
    assert.equal("closed client", memlock.type(client))
    assert.equal("lock", memlock.type(lock))
  end)

  it("answers nil for anything else, and never raises", function()
    local client = memlock.client(support.server().address)
    local others = { 1, 1.5, "memlock.client", true, false, {}, print, coroutine.create(print),
      io.stdout, setmetatable({}, debug.getmetatable(client)) }
    for _, value in ipairs(others) do
      assert.is_nil(memlock.type(value))
    end
    assert.is_nil(memlock.type(nil))
    assert.is_nil(memlock.type())
  end)

  it("tells what a finalizer brought back to life", function()
    assert.equal("closed client", memlock.type(collected(function()
      return memlock.client(support.server().address)
    end)))
    assert.equal("lock", memlock.type(collected(function()
      return memlock.client(support.server().address):lock(support.name())
    end)))
  end)
end)

describe("tostring", function()
  local server = support.server

  it("of a client names its server and counts what it holds", function()
    local address = server().address
    local client = memlock.client(address)
    local one, two = client:lock(support.name()), client:lock(support.name())
    assert.equal(("memlock.client (%s, 0 held)"):format(address), tostring(client))
    assert(one:acquire())
    assert.equal(("memlock.client (%s, 1 held)"):format(address), tostring(client))
    assert(two:acquire())
    assert.equal(("memlock.client (%s, 2 held)"):format(address), tostring(client))
    one:release()
    two:release()
    assert.equal(("memlock.client (%s, 0 held)"):format(address), tostring(client))
    client:close()
    assert.equal("memlock.client (closed)", tostring(client))
  end)

  it("of a client of several servers says how many more", function()
    local client = memlock.client { "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1" }
    assert.equal("memlock.client (127.0.0.1:1 and 2 more, 0 held)", tostring(client))
    assert.equal("memlock.client (127.0.0.1:11211, 0 held)", tostring(memlock.client()))
    assert.equal("memlock.client ([::1]:11211, 0 held)", tostring(memlock.client("[::1]")))
    assert.equal("memlock.client (/path/socket, 0 held)", tostring(memlock.client("/path/socket")))
  end)

  it("of a lock has its name and state", function()
    local client = memlock.client(server().address)
    local name = support.name()
    local lock = client:lock(name, { ttl = 20 })
    local free = ('memlock.lock "%s" (not held)'):format(name)
    assert.equal(free, tostring(lock))
    assert(lock:acquire())
    local shown, left = tostring(lock):match('^memlock%.lock "(.-)" %(held, (%d+) ms left%)$')
    assert.equal(name, shown, tostring(lock))
    assert.is_true(tonumber(left) > 15000 and tonumber(left) <= 20000, left)
    lock:release()
    assert.equal(free, tostring(lock))
  end)

  it("of a lock that was lost, ran out or whose client was closed says not held", function()
    local client = memlock.client(server().address)
    local lock = client:lock(support.name(), { ttl = 0.1 })
    local free = ('memlock.lock "%s" (not held)'):format(lock:name())
    assert(lock:acquire())
    support.sleep(0.12)
    assert.equal(free, tostring(lock))
    local other = client:lock(support.name())
    assert(other:acquire())
    assert.is_true(server():raw():delete("memlock:" .. other:name()))
    assert.equal("lost", select(3, other:refresh()))
    assert.equal(('memlock.lock "%s" (not held)'):format(other:name()), tostring(other))
    local third = client:lock(support.name())
    assert(third:acquire())
    client:close()
    assert.equal(('memlock.lock "%s" (not held)'):format(third:name()), tostring(third))
  end)

  it("of what was collected does not crash", function()
    assert.equal("memlock.client (closed)", tostring(collected(function()
      return memlock.client(server().address)
    end)))
    assert.equal("memlock.lock (collected)", tostring(collected(function()
      return memlock.client(server().address):lock(support.name())
    end)))
  end)

  it("of a lock with the longest ttl has all of it", function()
    local lock = memlock.client(server().address):lock(support.name(), { ttl = 2419200 })
    assert(lock:acquire())
    local left = tostring(lock):match("held, (%-?%d+) ms left")
    assert.is_true(left and tonumber(left) > 2419100000, tostring(lock))
    lock:release()
  end)
end)

describe("objects", function()
  local client = memlock.client("127.0.0.1:1")
  local lock = client:lock("job")

  it("have names that Lua's own messages use", function()
    assert.equal("memlock.client", debug.getmetatable(client).__name)
    assert.equal("memlock.lock", debug.getmetatable(lock).__name)
    local _, message = pcall(client.lock, io.stdout, "job")
    assert.truthy(message:find("memlock.client expected, got FILE*", 1, true), message)
    _, message = pcall(math.floor, lock)
    assert.truthy(message:find("got memlock.lock", 1, true), message)
  end)

  it("do not show their metamethods as methods", function()
    for _, object in ipairs { client, lock } do
      local count = 0
      for name in pairs(debug.getmetatable(object)) do
        count = count + 1
        assert.is_nil(object[name], name)
        assert.has_error(function() object[name](object) end)
      end
      assert.is_true(count >= 5) -- __name, __gc, __close, __tostring, __index
    end
  end)

  it("have no fields to set, and answer nil for unknown ones", function()
    for _, object in ipairs { client, lock } do
      assert.is_nil(object.no_such_method)
      assert.is_nil(object[1])
      assert.has_error(function() object.field = 1 end)
    end
  end)

  it("have all their methods", function()
    for _, name in ipairs { "lock", "holder", "break_lock", "update", "stats", "close" } do
      assert.equal("function", type(client[name]), name)
    end
    for _, name in ipairs { "acquire", "refresh", "release", "held", "verify", "token", "holder",
      "with", "name" } do
      assert.equal("function", type(lock[name]), name)
    end
    assert.equal("job", lock:name())
  end)

  it("survive a finalizer that is called by hand, twice", function()
    local server = support.server()
    local victim = memlock.client(server.address)
    local held = assert(victim:lock(support.name()):acquire())
    local key = "memlock:" .. held:name()
    local finalize = debug.getmetatable(held).__gc
    local raw = server:raw()
    assert.truthy(raw:get(key))
    finalize(held)
    finalize(held)
    support.eventually(function() return not raw:get(key) end)
    for _, method in ipairs { "acquire", "refresh", "release", "held", "verify", "token",
      "holder", "name" } do
      local ok, message = pcall(held[method], held)
      assert.is_false(ok, method)
      assert.truthy(message:find("the lock was collected", 1, true), message)
    end
    finalize = debug.getmetatable(victim).__gc
    finalize(victim)
    finalize(victim)
    for _, method in ipairs { "lock", "holder", "stats", "close" } do
      local ok, message = pcall(victim[method], victim, "job")
      assert.is_false(ok, method)
      assert.truthy(message:find("the client was collected", 1, true), message)
    end
  end)
end)

describe("check_name", function()
  it("says true to what client:lock takes", function()
    for _, name in ipairs { "a", "nightly-report", "caf\u{e9}", "\u{65e5}\u{672c}", "#1", "~!",
      ("x"):rep(241) } do
      assert.is_true(memlock.check_name(name))
      memlock.client("127.0.0.1:1"):lock(name)
    end
  end)

  it("says nil and what is wrong to the rest, which client:lock raises", function()
    for name, part in pairs {
      [""] = "name is empty",
      ["nightly job"] = "byte 0x20 at position 8",
      ["a\r\nb"] = "byte 0x0d at position 2",
      ["a\0"] = "byte 0x00 at position 2",
      [("x"):rep(242)] = "name has 242 bytes",
    } do
      local ok, message = memlock.check_name(name)
      assert.is_nil(ok)
      assert.truthy(message:find(part, 1, true), message)
      local raised, text = pcall(memlock.client("127.0.0.1:1").lock, memlock.client(), name)
      assert.is_false(raised)
      assert.truthy(text:find(message, 1, true), text)
    end
  end)

  it("takes the prefix of the client into account", function()
    assert.is_true(memlock.check_name(("x"):rep(249), ""))
    assert.is_nil((memlock.check_name(("x"):rep(250), "")))
    assert.is_true(memlock.check_name(("x"):rep(247), "a:"))
    local _, message = memlock.check_name(("x"):rep(248), "a:")
    assert.truthy(message:find('with the prefix "a:" at most 247', 1, true), message)
    _, message = memlock.check_name("#x", "")
    assert.truthy(message:find("begins with '#'", 1, true), message)
  end)

  it("raises for what is no name and for a bad prefix", function()
    for _, value in ipairs { true, {}, print, 12 } do
      local ok, message = pcall(memlock.check_name, value)
      assert.is_false(ok, tostring(value))
      assert.truthy(message:find("string expected", 1, true), message)
    end
    assert.has_error(function() memlock.check_name() end)
    local ok, message = pcall(memlock.check_name, "a", "b c")
    assert.is_false(ok)
    assert.truthy(message:find("#2", 1, true) and message:find("prefix has byte 0x20", 1, true),
      message)
  end)
end)

describe("sleep", function()
  it("sleeps as long as it is told, and returns true", function()
    local took, result = support.elapsed(memlock.sleep, 0.05)
    assert.is_true(result)
    assert.is_true(took >= 0.05 and took < 0.05 + support.slack(0.05), took)
    for _, seconds in ipairs { 0, 0.0, 1e-9, 1e-300 } do
      took, result = support.elapsed(memlock.sleep, seconds)
      assert.is_true(result)
      assert.is_true(took < support.slack(0.01), took)
    end
  end)

  it("returns early on a signal, however long it was to sleep", function()
    for _, seconds in ipairs { 30, 1e6, 1e300, math.huge } do
      for _, restart in ipairs { true, false } do
        posix.setitimer(0.05, restart)
        local took, result = support.elapsed(memlock.sleep, seconds)
        posix.setitimer(0)
        assert.is_true(result)
        assert.is_true(took >= 0.04 and took < 0.05 + support.slack(0.05), took)
      end
    end
    posix.signal("ALRM", "default")
  end)

  it("raises for what is no time", function()
    for _, value in ipairs { -1, -math.huge, 0 / 0, "1", {}, true } do
      local ok, message = pcall(memlock.sleep, value)
      assert.is_false(ok, tostring(value))
      assert.truthy(message:find("#1", 1, true), message)
      assert.truthy(message:find("number expected", 1, true)
        or message:find("seconds must be 0 or more", 1, true), message)
    end
    assert.has_error(function() memlock.sleep() end)
  end)
end)
