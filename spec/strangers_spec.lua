--- What is no memcached at all, one that ends in the middle of a word, and one at its limits.

local support = require "spec.support"
support.setup()

local scenes = require "spec.support.scenes"
local memlock = require "memlock"

local server = support.server()
local truth = server:raw()

-- Every operation, at a place where none can succeed. Returns what each was told, by name.
local function all_fail(client, context)
  local codes = {}
  local lock = client:lock(support.name())
  local calls = {
    acquire = function() return lock:acquire() end,
    holder = function() return lock:holder() end,
    break_lock = function() return client:break_lock(lock:name(), { value = "x" }) end,
    update = function() return client:update(lock:name(), function() error "it was called" end) end,
    with = function() return lock:with(function() error "it was called" end) end,
  }
  for name, call in pairs(calls) do
    local results = table.pack(call())
    local what = context .. ", " .. name
    assert.is_true(scenes.failed(results, what), what .. ": " .. scenes.shown(results))
    codes[name] = results[3]
    assert.is_false((lock:held()), what)
  end
  local about = assert(client:check(), context)
  assert.is_false(about[1].fit, context)
  assert.truthy(about[1].code, context)
  assert.equal(1, #about[1].findings, context)
  return codes
end

--------------------------------------------------------------------------------
-- Other servers

-- Each is a server that greets, and answers every line.
local strangers = {
  ["an HTTP server"] = { reply = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" },
  ["an HTTP server that closes"] = { close = true,
    reply = "HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n<html>no</html>\n" },
  ["a mail server"] = { greeting = "220 mail ESMTP\r\n", reply = "502 what?\r\n" },
  ["a file server"] = { greeting = "220-hello\r\n220 FTP\r\n", reply = "530 log in\r\n" },
  ["a shell"] = { greeting = "SSH-2.0-OpenSSH_9.2\r\n", close = true, reply = "" },
  ["a Redis"] = { reply = "-ERR unknown command\r\n" },
  ["a mailbox"] = { greeting = "* OK ready\r\n", reply = "x BAD what?\r\n" },
  ["a server of TLS"] = { close = true, reply = "\x15\x03\x01\x00\x02\x02\x32" },
  ["an echo"] = { reply = function(line) return line .. "\r\n" end },
  ["one that says OK to all"] = { reply = "OK\r\n" },
  ["one that counts"] = { reply = "1\r\n" },
  ["one that talks and talks"] = { greeting = ("x"):rep(100000), reply = ("y"):rep(5000) },
  ["one that hangs up"] = { close = true, greeting = "" },
}

local function run_stranger(stranger)
  return support.fake(function(connection)
    if stranger.greeting then connection:write(stranger.greeting) end
    if stranger.close and not stranger.reply then return end
    while true do
      local line = connection:read_line()
      if not line then return end
      local reply = stranger.reply
      if type(reply) == "function" then reply = reply(line) end
      if not connection:write(reply) or stranger.close then return end
    end
  end)
end

describe("what is no memcached", function()
  for what, stranger in pairs(strangers) do
    it("is told from one: " .. what, function()
      local fake = run_stranger(stranger)
      -- Who talks without an end keeps us until our time is over.
      local timeout = what:find("talks", 1, true) and 0.3 or 2
      local client = memlock.client(fake.address, { timeout = timeout })
      local codes = all_fail(client, what)
      if not stranger.close then
        for name, code in pairs(codes) do
          if code ~= "timeout" or not what:find("talks", 1, true) then
            assert.equal("refused", code, what .. ", " .. name)
          end
        end
      end
      client:close()
    end)
  end

  it("does not make the client forget how to speak with one", function()
    local relay = support.relay(run_stranger(strangers["a mail server"]))
    local port = relay.port
    local client = memlock.client(relay.address, { timeout = 1 })
    all_fail(client, "at first")
    relay:stop()
    local memcached = support.memcached { port = port }
    scenes.usable(client, client:lock(support.name()), "afterwards")
    client:close()
    memcached:stop()
  end)
end)

--------------------------------------------------------------------------------
-- What libmemcached itself does not survive

-- One operation in a program of its own; its functions reach back to the test over the standard
-- streams: from mark() on its server's answers go wrong, after gone() there is no record.
local program = [==[
  function mark() print "mark" io.flush() io.read() end
  function gone() print "gone" io.flush() io.read() end
  local memlock = require "memlock"
  local client = memlock.client(arg[1], load("return " .. arg[3])())
  local lock = client:lock(arg[4], { ttl = 30 })
  print(load("local client, lock = ... " .. arg[2])(client, lock))
]==]

describe("a write that waits for its reply", function()
  -- What each call waits for: the write among its commands, when all goes well.
  local exposed = {
    { "release", "lock:acquire() mark() return lock:release()", { 1 } },
    { "holder of a free name", "mark() return lock:holder()", { 2 } },
    { "verify of what is gone", "lock:acquire() gone() mark() return lock:verify()", { 2 } },
    { "refresh of what is gone", "lock:acquire() gone() mark() return lock:refresh()", { 3 } },
    { "update of a new key", "mark() return client:update(lock:name(), function() return 'x' end)",
      { 2, 3 } },
    { "break_lock", "lock:acquire() local h = lock:holder() mark() "
      .. "return client:break_lock(lock:name(), h)", { 2 } },
    { "check", "mark() return client:check()[1].fit", { 2, 4 } },
    { "acquire, proxy = true", "mark() return lock:acquire()", { 1, 2 }, "proxy = true" },
    { "refresh, proxy = true", "lock:acquire() mark() return lock:refresh()", { 2 },
      "proxy = true" },
    { "a username", "mark() return lock:holder()", { 1 },
      "username = 'u', password = 'p'" },
  }
  local words = { "OK", "END", "7", "VALUE x 0 1 1\r\nx\r\nEND", "DELETED", "TOUCHED", "STAT a b",
    "VERSION 1.6", "ITEM x [1 b; 0 s]" }

  local function run(spoiler, case, n, text)
    local name = support.name()
    local options = ("{ timeout = 1, %s }"):format(case[4] or "")
    local running = support.start_lua { code = program, spoiler.address, case[2], options, name }
    if running:read_line() == "gone" then
      truth:delete("memlock:" .. name)
      running:write("\n")
      running:read_line()
    end
    spoiler:plan { first = n, text = text .. "\r\n" }
    running:write("\n")
    return running:wait()
  end

  local function assert_ended(result, place)
    assert.same({ "signal", 6 }, { result.kind, result.code }, tostring(result))
    assert.truthy(result.err:find(place, 1, true), tostring(result))
  end

  local function assert_refused(result)
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
  end

  for _, case in ipairs(exposed) do
    it("ends the process if the answer is good news of another kind: " .. case[1], function()
      local spoiler = support.spoiler(server)
      for _, n in ipairs(case[3]) do
        for i = 1, math.max(4, support.count(#words)) do
          assert_ended(run(spoiler, case, n, words[i]), "storage.cc")
        end
        assert_refused(run(spoiler, case, n, "no words of memcached's"))
      end
    end)
  end

  it("alone does so, beside an incr that waits and is answered by too long a line", function()
    local spoiler = support.spoiler(server)
    local case = { nil, "mark() return lock:acquire()", nil, "proxy = true" }
    for _, text in ipairs { "OK", "END", "STORED", "no words of memcached's" } do
      assert_refused(run(spoiler, case, 3, text))
    end
    assert_ended(run(spoiler, case, 3, ("1"):rep(2000)), "auto.cc")
  end)
end)

--------------------------------------------------------------------------------
-- Half of an answer

describe("an answer that ends", function()
  -- The bytes of the answer to the last thing that an operation sends.
  local function size_of_answer(operation, relay)
    local scene = scenes.new(operation, relay.address, {})
    relay:reset()
    operation.run(scene)
    scene.client:close()
    return relay:stats().down
  end

  local step = 50 // support.count(50) -- every byte where there is time for it

  for what, operation in pairs(scenes.operations) do
    it("after any of its bytes is told or made good: " .. what, function()
      local relay = support.relay(server)
      local size = size_of_answer(operation, relay)
      assert.is_true(size > 4)
      for offset = 0, size - 1, step do
        local at = math.min(size - 1, offset + math.random(0, step - 1))
        scenes.endure(operation, relay.address, { timeout = 2 },
          function() relay:cut_reply(at) end,
          function() relay:disarm() end, ("%s, %d bytes"):format(what, at))
      end
    end)
  end
end)

describe("an impossible length", function()
  -- Of one more, 2^64-2, libmemcached makes an address that no program survives.
  local lengths = { "2147483648", "4294967296", "9223372036854775807", "18446744073709551613",
    "18446744073709551615", "99999999999999999999999", "-1", "x", "" }

  -- In a program of its own, since a sanitizer would end it for asking for that much memory.
  it("is believed by nobody", function()
    local fake = support.fake(function(connection)
      while true do
        local command = connection:read_command()
        if not command then return end
        if command.name == "gets" then
          local line = command.line
          connection:write(("VALUE %s 0 %s 5\r\nmemlock/1 a 1 1 1 a\r\nEND\r\n"):format(
            line:match("^gets (%S+)"), line:match("len:([^:]*):")))
        end
      end
    end)
    local result = support.run_lua { timeout = 30, fake.address, table.concat(lengths, ","),
      env = { ASAN_OPTIONS = (os.getenv("ASAN_OPTIONS") or "") .. ":allocator_may_return_null=1" },
      code = [[
        local memlock = require "memlock"
        for length in (arg[2] .. ","):gmatch("([^,]*),") do
          local client = memlock.client(arg[1], { timeout = 0.2 })
          local lock = client:lock("len:" .. length .. ":")
          for _, method in ipairs { "acquire", "holder" } do
            local result, message, code = lock[method](lock)
            assert(result == nil and (code == "refused" or code == "timeout"), message)
            assert(not lock:held())
          end
        end
      ]] }
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
  end)
end)

--------------------------------------------------------------------------------
-- A memcached at its limits

describe("a server with as many connections as it may have", function()
  local small, raws

  -- Takes them all: the last one is told so, or hung up on.
  local function fill()
    raws = {}
    for i = 1, 64 do
      local raw = support.raw(small.address)
      raws[i] = raw
      local ok, reply = pcall(raw.command, raw, "version")
      if not ok or reply:find("Too many open connections", 1, true) then return end
    end
    error("it takes any number of connections")
  end

  local function empty()
    for _, raw in ipairs(raws) do raw:close() end
    support.eventually(function()
      local raw = support.raw(small.address)
      local ok, reply = pcall(raw.command, raw, "version")
      raw:close()
      return ok and reply:find("^VERSION")
    end)
  end

  before_each(function() small = support.memcached { args = { "-c", "24" } } end)

  it("refuses or hangs up, and no call succeeds", function()
    local client = memlock.client(small.address)
    fill()
    for _ = 1, 5 do
      for name, code in pairs(all_fail(client, "full")) do
        assert.is_true(code == "refused" or code == "unreachable", name .. ": " .. code)
      end
    end
    empty()
    scenes.usable(client, client:lock(support.name()), "afterwards")
    client:close()
  end)

  it("does not end what holds a connection, and that keeps its locks", function()
    local client = memlock.client(small.address)
    local lock = assert(client:lock(support.name()):acquire())
    fill()
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
    local other = client:lock(support.name())
    assert.equal(other, other:acquire())
    local second = memlock.client(small.address)
    all_fail(second, "a second client")
    empty()
    scenes.usable(second, second:lock(support.name()), "afterwards")
    assert.is_true(lock:release())
    client:close()
    second:close()
  end)

  it("ends a wait when one is free", function()
    local client = memlock.client(small.address, { retry_max = 0.05 })
    fill()
    local lock = client:lock(support.name())
    local result, message, code = lock:acquire(0.2)
    assert.is_nil(result)
    assert.is_true(code == "refused" or code == "unreachable", message)
    local freed = false
    local waiting = memlock.client(small.address, { retry_max = 0.05, sleep = function(seconds)
      if not freed then empty() end
      freed = true
      memlock.sleep(seconds)
    end })
    lock = waiting:lock(support.name())
    assert.equal(lock, lock:acquire(5))
    assert.is_true(lock:release())
    waiting:close()
    client:close()
  end)

  it("leaves a kept lock its lease, and what came too late is a loss", function()
    local client = memlock.client(small.address, { timeout = 0.3 })
    local kept = assert(client:lock(support.name(), { ttl = 1.5, auto_refresh = true }):acquire())
    fill() -- the keeper has no connection yet
    support.eventually(function() return client:stats().failures > 1 end)
    assert.is_true((kept:held()))
    empty()
    support.eventually(function() return client:stats().renewals > 1 end)
    assert.is_true((kept:held()))
    assert.equal(0, client:stats().losses)
    assert.is_true(kept:release())
    client:close()
  end)
end)

describe("a server without memory", function()
  it("refuses every write that is new, and leaves every lease its time", function()
    local full = support.memcached { args = { "-M", "-I", "512k" }, memory = 1 }
    local client = memlock.client(full.address)
    local kept = assert(client:lock(support.name(), { ttl = 1.2, auto_refresh = true }):acquire())
    local held = assert(client:lock(support.name(), { ttl = 60 }):acquire())
    local raw = full:raw()
    full:fill()
    local lost_at = support.now() + 1.2
    for _, call in ipairs {
      function() return client:lock(support.name()):acquire() end,
      function() return client:holder(support.name()) end,
      function() return client:update(support.name(), function() return "x" end) end,
      function() return client:break_lock(held:name(), client:holder(held:name())) end,
    } do
      local results = table.pack(call())
      assert.same({ nil, "refused" }, { results[1], results[3] }, scenes.shown(results))
      assert.truthy(results[2]:find("ALLOCATE", 1, true), results[2])
    end
    assert.is_true(held:verify())
    assert.is_true(held:holder().mine)
    support.eventually(function() return client:stats().losses == 1 end)
    assert.is_true(support.now() < lost_at + support.slack(0.3))
    assert.is_false((kept:held()))
    assert.is_true((held:held()))
    raw:flush_all()
    assert.equal("lost", select(3, held:refresh()))
    support.eventually(function() return raw:set("room", ("x"):rep(200)) end)
    support.eventually(function() return kept:acquire() end)
    assert.is_true(kept:release())
    scenes.usable(client, held, "afterwards")
    client:close()
  end)
end)
