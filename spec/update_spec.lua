--- client:update(key, fn [, options]): read-modify-write of any key.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()
local client, key, raw

before_each(function()
  client = memlock.client(server.address)
  key = support.name("key")
  raw = server:raw()
end)

after_each(function()
  client, raw = nil, nil
end)

-- A function for update that must not be called.
local function never()
  error("the function was called")
end

local function returning(value)
  return function() return value end
end

local function fails(code, ok, message, got)
  assert.same({ nil, code }, { ok, got }, message)
  assert.truthy(message:find(key, 1, true), message)
  return message
end

describe("update", function()
  it("makes a key, changes it, and says what is there now", function()
    assert.same({ true, "1" }, { client:update(key, function(old, flags)
      assert.is_nil(old)
      assert.equal(0, flags)
      return "1"
    end) })
    assert.equal("1", raw:get(key))
    assert.same({ n = 2, true, "12" }, table.pack(client:update(key, function(...)
      assert.same({ n = 2, "1", 0 }, table.pack(...))
      return (...) .. "2"
    end)))
    assert.equal("12", raw:get(key))
    assert.equal(-1, raw:ttl(key))
  end)

  it("has no prefix, and leaves locks alone", function()
    local lock = client:lock(key)
    assert(lock:acquire())
    assert(client:update(key, returning "value"))
    assert.equal("value", raw:get(key))
    assert(lock:verify())
  end)

  it("takes numbers for strings, as Lua does, and nothing else", function()
    assert.same({ true, "17" }, { client:update(key, returning(17)) })
    assert.equal("17", raw:get(key))
    for _, wrong in ipairs { true, false, {}, print } do
      local ok, message = pcall(client.update, client, key, returning(wrong))
      assert.is_false(ok)
      assert.truthy(message:find(type(wrong), 1, true), message)
    end
    assert.equal("17", raw:get(key))
  end)

  it("leaves value, ttl and flags alone when the function returns nil", function()
    raw:set(key, "old", 100, 7)
    local _, _, cas = raw:gets(key)
    assert.same({ n = 2, true, "old" }, table.pack(client:update(key, function() end)))
    assert.same({ n = 2, true, "old" },
      table.pack(client:update(key, returning(nil), { ttl = 5 })))
    local value, flags, same = raw:gets(key)
    assert.same({ "old", 7, cas }, { value, flags, same })
    assert.is_true(raw:ttl(key) > 90)
  end)

  it("leaves a missing key missing when the function returns nil", function()
    assert.same({ n = 2, true }, table.pack(client:update(key, returning(nil))))
    assert.is_nil(raw:get(key))
  end)

  it("takes values for what they are", function()
    local all = {}
    for byte = 0, 255 do all[#all + 1] = string.char(byte) end
    for _, value in ipairs {
      "", "END\r\n", "END", "STORED", "STORED\r\n", "ERROR\r\n", "SERVER_ERROR x\r\n", "\r\n", "\n",
      "\0", "VALUE " .. key .. " 0 1\r\nx\r\nEND\r\n", "-1", table.concat(all), ("x"):rep(100000),
    } do
      assert.same({ true, value }, { client:update(key, returning(value)) })
      assert.equal(value, raw:get(key))
      local seen
      assert.same({ true, "next" }, { client:update(key, function(old)
        seen = old
        return "next"
      end) })
      assert.equal(value, seen)
      raw:set(key, value) -- as another client writes it
      assert.same({ true, value }, { client:update(key, returning(nil)) })
    end
  end)

  it("keeps the flags", function()
    for _, flags in ipairs { 0, 1, 0x6d6c, 4294967295 } do
      raw:set(key, "old", 0, flags)
      local seen
      assert(client:update(key, function(_, f)
        seen = f
        return "new"
      end))
      assert.equal(flags, seen)
      assert.same({ "new", flags }, { raw:get(key) })
    end
  end)

  it("gives the value the ttl that it is told, or none", function()
    raw:set(key, "old", 100)
    assert(client:update(key, returning "new", { ttl = 50 }))
    assert.is_true(raw:ttl(key) > 45 and raw:ttl(key) <= 50)
    assert(client:update(key, returning "new", { ttl = 0.5 })) -- memcached counts whole seconds
    assert.is_true(raw:ttl(key) <= 1 and raw:ttl(key) >= 0)
    assert(client:update(key, returning "new", { ttl = 2419200 }))
    assert.is_true(raw:ttl(key) > 2419190)
    assert(client:update(key, returning "new", { ttl = 0 }))
    assert.equal(-1, raw:ttl(key))
    assert(client:update(key, returning "new", { ttl = 50 }))
    assert(client:update(key, returning "new"))
    assert.equal(-1, raw:ttl(key))
  end)

  it("gives it the shortest ttl there is where that is less, and not none", function()
    for _, ttl in ipairs { 0.001, 1e-9, 1e-10, 5e-324 } do
      assert(client:update(key, returning "new", { ttl = ttl }))
      local left = raw:ttl(key)
      assert.is_true(left == nil or left >= 0 and left <= 1, left) -- -1 would be for ever
    end
  end)

  it("calls a function that yields", function()
    raw:set(key, "a")
    local co = coroutine.wrap(function()
      return client:update(key, function(old)
        return old .. coroutine.yield(old) .. coroutine.yield("more")
      end)
    end)
    assert.equal("a", co())
    assert.equal("more", co("b"))
    assert.same({ true, "abc" }, { co("c") })
    assert.equal("abc", raw:get(key))
  end)

  it("starts over when another wrote while the function yielded", function()
    raw:set(key, "a")
    local own = memlock.client(server.address, { sleep = function(seconds)
      assert.is_true(seconds > 0)
      coroutine.yield("pause")
    end })
    local co = coroutine.wrap(function()
      return own:update(key, function(old) return old .. coroutine.yield(old) end)
    end)
    assert.equal("a", co())
    raw:set(key, "b")
    assert.equal("pause", co("!"))
    assert.equal("b", co())
    assert.same({ true, "b!" }, { co("!") })
    assert.equal("b!", raw:get(key))
  end)

  it("leaves nothing behind when its coroutine is closed", function()
    support.needs("coroutine.close", pending)
    raw:set(key, "a")
    local co = coroutine.create(function() client:update(key, coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    assert.is_true(coroutine.close(co))
    assert.equal("a", raw:get(key))
    assert.same({ true, "b" }, { client:update(key, returning "b") })
  end)

  it("leaves nothing behind when its coroutine is dropped", function()
    raw:set(key, "a")
    local co = coroutine.create(function() client:update(key, coroutine.yield) end)
    assert.is_true(coroutine.resume(co))
    co = nil -- luacheck: ignore
    collectgarbage()
    assert.equal("a", raw:get(key))
    assert.same({ true, "b" }, { client:update(key, returning "b") })
  end)

  it("may be called from its own function", function()
    local other = support.name("key")
    assert.same({ true, "outer" }, { client:update(key, function()
      assert.same({ true, "inner" }, { client:update(other, returning "inner") })
      return "outer"
    end) })
    assert.same({ "outer", "inner" }, { raw:get(key), (raw:get(other)) })
  end)
end)

describe("an error in the function", function()
  it("comes out as it is, and nothing is written", function()
    raw:set(key, "old")
    local object = setmetatable({}, { __tostring = function() error "do not ask" end })
    for _, problem in ipairs { object, "text", 17, true, false, print, io.stdout } do
      local ok, err = pcall(client.update, client, key, function() error(problem, 0) end)
      assert.is_true(not ok and rawequal(problem, err))
    end
    assert.same({ n = 2, false }, table.pack(pcall(client.update, client, key, function()
      error(nil)
    end)))
    assert.equal("old", raw:get(key))
    pcall(client.update, client, support.name("other"), error)
    assert.equal("old", raw:get(key))
  end)

  it("comes out after a yield, and shows its line", function()
    local problem, trace = {}, nil
    local co = coroutine.wrap(function()
      return xpcall(client.update, function(err)
        trace = debug.traceback("")
        return err
      end, client, key, function()
        coroutine.yield()
        problem.line = debug.getinfo(1, "l").currentline + 1
        error(problem)
      end)
    end)
    co()
    local ok, err = co()
    assert.is_true(not ok and rawequal(problem, err))
    assert.truthy(trace:find(("update_spec.lua:%d: in "):format(problem.line), 1, true), trace)
    assert.is_nil(raw:get(key))
  end)
end)

describe("a race", function()
  -- Runs `fn(i)` in `count` processes that begin together.
  local function race(count, fn)
    local children = {}
    for i = 1, count do
      children[i] = support.child(function(channel)
        channel:send("ready")
        channel:receive()
        return fn(i)
      end)
    end
    for _, child in ipairs(children) do child:receive() end
    for _, child in ipairs(children) do child:send("go") end
    for _, child in ipairs(children) do child:join(120) end
  end

  it("loses no increment of 16 processes", function()
    local each = support.count(500)
    race(16, function()
      local own = memlock.client(server.address)
      for _ = 1, each do
        assert(own:update(key, function(old)
          return ("%d"):format((tonumber(old) or 0) + 1)
        end, { wait = 60 }))
      end
    end)
    assert.equal(tostring(16 * each), raw:get(key))
  end)

  it("loses no line that 20 processes append to a missing key", function()
    for _ = 1, support.count(20) do
      raw:delete(key)
      race(20, function(i)
        assert(memlock.client(server.address):update(key, function(old)
          return (old or "") .. "line " .. i .. "\n"
        end, { wait = 60 }))
      end)
      local lines, seen = 0, {}
      for i in raw:get(key):gmatch("line (%d+)\n") do
        lines = lines + 1
        seen[tonumber(i)] = true
      end
      assert.equal(20, lines)
      assert.equal(20, #seen)
    end
  end)

  it("that is lost each time ends with `conflict` within wait", function()
    for _, wait in ipairs { 0, 0.3 } do
      local calls, pauses = 0, {}
      local own = memlock.client(server.address, { sleep = function(seconds)
        pauses[#pauses + 1] = seconds
        support.sleep(seconds)
      end })
      local took, ok, message, code = support.elapsed(own.update, own, key, function()
        calls = calls + 1
        raw:set(key, "theirs " .. calls)
        return "mine"
      end, { wait = wait })
      fails("conflict", ok, message, code)
      assert.equal("theirs " .. calls, raw:get(key))
      assert.equal(#pauses + 1, calls)
      assert.is_true(took >= wait and took < wait + support.slack(0.1), took)
      if wait == 0 then
        assert.equal(1, calls)
      else
        assert.is_true(calls >= 5 and calls <= 150, calls) -- neither spinning nor asleep
      end
    end
  end)

  it("gives up after a second by default", function()
    local took, ok, message, code = support.elapsed(client.update, client, key, function()
      raw:set(key, "theirs")
      return "mine"
    end)
    fails("conflict", ok, message, code)
    assert.is_true(took >= 1 and took < 1 + support.slack(0.1), took)
  end)

  it("is lost to who adds a missing key, and to who deletes a present one", function()
    local olds = {}
    assert.same({ true, "mine" }, { client:update(key, function(old)
      if #olds == 0 then raw:set(key, "theirs") end
      olds[#olds + 1] = tostring(old)
      return "mine"
    end) })
    assert.same({ "nil", "theirs" }, olds)
    olds = {}
    assert.same({ true, "again" }, { client:update(key, function(old)
      if #olds == 0 then raw:delete(key) end
      olds[#olds + 1] = tostring(old)
      return "again"
    end) })
    assert.same({ "mine", "nil" }, olds)
    assert.equal("again", raw:get(key))
  end)

  it("is lost also to who writes the same value again", function()
    raw:set(key, "same")
    local calls = 0
    assert(client:update(key, function()
      calls = calls + 1
      if calls == 1 then raw:set(key, "same") end
      return "mine"
    end))
    assert.equal(2, calls)
  end)

  it("may be left by a sleep that returns false, or raises", function()
    local function theirs()
      raw:set(key, "theirs")
      return "mine"
    end
    local own = memlock.client(server.address, { sleep = function() return false end })
    fails("cancelled", own:update(key, theirs))
    local problem = {}
    own = memlock.client(server.address, { sleep = function() error(problem) end })
    local ok, err = pcall(own.update, own, key, theirs)
    assert.is_true(not ok and rawequal(problem, err))
    assert.equal("theirs", raw:get(key))
  end)

  it("ends with `closed` when the client is closed meanwhile", function()
    raw:set(key, "old")
    local own
    own = memlock.client(server.address, { sleep = function() own:close() end })
    assert.equal("closed", select(3, own:update(key, function()
      raw:set(key, "theirs")
      return "mine"
    end)))
    own = memlock.client(server.address)
    local function close()
      own:close()
      return "mine"
    end
    assert.equal("closed", select(3, own:update(key, close)))
    assert.equal("closed", select(3, own:update(key, never)))
    assert.equal("theirs", raw:get(key))
  end)
end)

describe("a value that is too large", function()
  it("is refused, and the old one is still there", function()
    local mib = 1024 * 1024
    for _, old in ipairs { false, "old" } do
      if old then raw:set(key, old) end
      for _, size in ipairs { mib, 3 * mib } do
        fails("refused", client:update(key, returning(("x"):rep(size))))
        assert.equal(old or nil, (raw:get(key)))
      end
    end
    assert.same({ true, "small" }, { client:update(key, returning "small") })
  end)

  it("is not what just fits", function()
    local value = ("x"):rep(1024 * 1024 - 1024)
    assert(client:update(key, returning(value)))
    assert.equal(value, raw:get(key))
    local size
    assert(client:update(key, function(old)
      size = #old
      return "small"
    end))
    assert.equal(#value, size)
  end)

  it("is also what a full server has no room for", function()
    local own = support.memcached { memory = 8, args = { "-M" } }
    local full = memlock.client(own.address)
    local kept
    for i = 1, 200 do
      local ok, message, code = full:update(key .. i, returning(("x"):rep(500000)))
      if not ok then
        assert.equal("refused", code, message)
        assert.truthy(message:lower():find("memory") or message:lower():find("allocate"), message)
        kept = i
        break
      end
    end
    assert.is_truthy(kept)
    assert.is_nil(own:raw():get(key .. kept))
  end)
end)

describe("when the reply to the write is lost", function()
  local relay, own

  before_each(function()
    relay = support.relay(server)
    own = memlock.client(relay.address, { timeout = 0.3 })
  end)

  after_each(function()
    relay, own = nil, nil
  end)

  local function writes(command)
    local count = 0
    for _ in relay:sent():gmatch(command .. " " .. key:gsub("%-", "%%-") .. " ") do
      count = count + 1
    end
    return count
  end

  it("update says `timeout`, and has written once", function()
    raw:set(key, "1")
    relay:record()
    relay:drop_reply("cas ")
    local message = fails("timeout", own:update(key, function(old) return old .. "+" end))
    assert.truthy(message:find("not known", 1, true), message)
    assert.equal("1+", raw:get(key))
    assert.equal(1, writes("cas"))
    assert.equal(0, writes("set") + writes("add"))
    -- and is fit for more
    assert.same({ true, "1++" }, { own:update(key, function(old) return old .. "+" end) })
    assert.equal(2, writes("cas"))
  end)

  it("so it is for a key that was missing", function()
    relay:record()
    relay:drop_reply("add ")
    fails("timeout", own:update(key, returning "1"))
    assert.equal("1", raw:get(key))
    assert.equal(1, writes("add"))
    assert.equal(0, writes("set"))
  end)

  it("so it is when the server is stopped, and runs on later", function()
    local stopped = support.memcached()
    own = memlock.client(stopped.address, { timeout = 0.3 })
    assert(own:update(key, returning "1"))
    local calls = 0
    local took, ok, message, code = support.elapsed(own.update, own, key, function(old)
      calls = calls + 1
      stopped:stop_process()
      return old .. "+"
    end, { wait = 5 })
    fails("timeout", ok, message, code)
    assert.equal(1, calls)
    assert.is_true(took >= 0.3 and took < support.slack(0.4), took)
    stopped:continue_process()
    support.eventually(function() return stopped:raw():get(key) == "1+" end)
    support.sleep(0.1)
    assert.equal("1+", stopped:raw():get(key)) -- once
  end)

  it("so it is when the reply makes no sense", function()
    raw:set(key, "1")
    fails("timeout", own:update(key, function(old)
      relay:inject_reply("NONSENSE\r\n")
      return old .. "+"
    end))
    assert.equal("1+", raw:get(key))
    assert.same({ true, "1+" }, { own:update(key, returning(nil)) })
  end)

  it("but an answer that came is no doubt, however late", function()
    relay:delay("down", 0.1)
    assert.same({ true, "1" }, { own:update(key, returning "1") })
    assert.equal("1", raw:get(key))
  end)
end)

describe("when the server cannot be asked", function()
  it("the function is not called, and nothing written", function()
    local away = memlock.client(support.refusing())
    assert.is_true(fails("unreachable", away:update(key, never)) ~= nil)
    local silent = memlock.client(support.silent().address, { timeout = 0.2 })
    local took, ok, message, code = support.elapsed(silent.update, silent, key, never)
    fails("timeout", ok, message, code)
    assert.is_true(took < support.slack(0.3), took)
    assert.is_nil(raw:get(key))
  end)

  it("`unreachable` means that nothing was written, also after the function ran", function()
    local own = support.memcached()
    local mine = memlock.client(own.address, { timeout = 0.3 })
    local ok, _, code = mine:update(key, function()
      own:kill()
      return "new"
    end)
    assert.is_nil(ok)
    assert.is_true(code == "unreachable" or code == "timeout", code)
  end)

  for what, reply in pairs {
    ["ERROR"] = "ERROR\r\n",
    ["SERVER_ERROR"] = "SERVER_ERROR out of order\r\n",
    ["CLIENT_ERROR"] = "CLIENT_ERROR bad command line format\r\n",
    ["nonsense"] = "NONSENSE\r\n",
    ["nothing, and hangs up"] = "",
  } do
    it("an error does not look like a missing key: " .. what, function()
      local fake = support.fake(function(connection)
        while reply ~= "" and connection:read_command() do connection:write(reply) end
      end)
      local mine = memlock.client(fake.address, { timeout = 0.3 })
      local ok, message, code = mine:update(key, never)
      assert.is_nil(ok, message)
      assert.is_true(code == "refused" or code == "unreachable" or code == "timeout", code)
      if what:find("ERROR", 1, true) then assert.equal("refused", code) end
    end)
  end

  it("a server without CAS is unsupported, and keeps its value", function()
    local own = support.memcached { args = { "-C" } }
    own:raw():set(key, "old")
    fails("unsupported", memlock.client(own.address):update(key, never))
    assert.equal("old", own:raw():get(key))
  end)

  it("a server that came back empty is read anew, and nothing of it overwritten", function()
    local own = support.memcached()
    own:raw():set(key, "old")
    local mine = memlock.client(own.address, { timeout = 0.5 })
    local olds = {}
    local ok, _, code = mine:update(key, function(old)
      olds[#olds + 1] = old
      if #olds == 1 then
        own:restart()
        own:raw():set(key, "theirs") -- with the very CAS id that `old` had
      end
      return old .. "+"
    end)
    local now = own:raw():get(key)
    if ok then
      assert.equal("theirs+", now)
    else
      assert.equal("theirs", now)
      assert.is_true(code == "timeout" or code == "unreachable", code)
    end
  end)
end)

describe("wrong use", function()
  it("of keys raises before anything is sent", function()
    for _, wrong in ipairs {
      "", "with space", "tab\t", "line\r\nset x 0 0 1", "zero\0", "del\127", ("k"):rep(251), 17,
      true, {},
    } do
      local ok, message = pcall(client.update, client, wrong, never)
      assert.is_false(ok)
      assert.truthy(message:find("bad argument #1 to 'update'", 1, true)
        or message:find("bad argument", 1, true), message)
    end
    assert.equal(0, client:stats().round_trips)
  end)

  it("is none: keys of 250 bytes, with `#`, and in UTF-8", function()
    for _, right in ipairs { key .. ("k"):rep(250 - #key), "#" .. key, key .. "-\u{e9}\u{20ac}" } do
      assert.same({ true, "1" }, { client:update(right, returning "1") })
      assert.equal("1", raw:get(right))
    end
  end)

  it("of functions and options raises", function()
    for _, wrong in ipairs { 1, "f", {}, true } do
      assert.has_error(function() client:update(key, wrong) end)
    end
    assert.has_error(function() client:update(key) end)
    for _, options in ipairs {
      { ttl = -1 }, { ttl = 2419201 }, { ttl = math.huge }, { ttl = 0 / 0 }, { ttl = "5" },
      { wait = -1 }, { wait = 0 / 0 }, { wait = "1" }, { tll = 5 }, { 5 }, 5, "ttl",
    } do
      assert.has_error(function() client:update(key, never, options) end)
    end
    assert.equal(0, client:stats().round_trips)
  end)
end)
