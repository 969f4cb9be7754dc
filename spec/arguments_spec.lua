--- Wrong use: each mistake is raised by name before anything is sent, and does no harm.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local nan = 0 / 0
local default_prefix = "memlock:"

local server = support.server()
local relay = support.relay(server)
local raw = server:raw()

local function show(value)
  if type(value) == "string" then return ("%q"):format(value):sub(1, 60):gsub("\\\n", "\\n") end
  return tostring(value)
end

-- Calls fn(...), which must raise one line with all of `parts` in it.
local function raises(parts, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "it was accepted")
  assert.equal("string", type(message))
  for _, part in ipairs(parts) do
    assert.truthy(message:find(part, 1, true), ("no %q in: %s"):format(part, message))
  end
  assert.is_nil(message:find("[%z\1-\31\127]"), "a control byte in: " .. show(message))
end

-- Called by name, so that messages can say the name.
local function create(...)
  local made = memlock.client(...)
  return made
end

-- A client behind the relay, with one lock that it holds and nothing sent since.
local client, lock

before_each(function()
  relay:reset()
  client = memlock.client(relay.address)
  lock = client:lock(support.name())
  assert(lock:acquire())
  relay:reset()
  relay:record()
end)

-- After the mistakes of a test: nothing was sent, the same connection still works in step, and the
-- lock that was held stands.
after_each(function()
  local sent = relay:sent()
  assert.equal("", sent)
  local other = memlock.client(server.address):lock(lock:name())
  assert.equal("held", select(3, other:acquire()))
  assert.is_true(lock:held())
  assert.is_true(lock:refresh())
  assert.is_true(lock:release())
  assert.same({ 2, 0 }, { relay:round_trips(), relay:stats().connections })
  client:close()
end)

--------------------------------------------------------------------------------

-- Values that are wrong for a text that becomes part of a key: value -> parts of the message.
-- `what` is how the message calls it.
local function bad_texts(what)
  local list = {
    { what .. " is empty", "" },
    { "byte 0x0d at position 2", "a\r\nb" },
    { "byte 0x0d at position 2", "x\r\nset hacked 0 0 1\r\n1" },
    { "byte 0x20 at position 8", "nightly job" },
    { "byte 0x20 at position 4", "job " },
    { "byte 0x20 at position 1", " " },
  }
  for byte = 0, 255 do
    if byte <= 0x20 or byte == 0x7f then
      for position, text in ipairs { "%sxyz", "w%syz", "wx%sz", "wxy%s" } do
        local part = ("%s has byte 0x%02x at position %d"):format(what, byte, position)
        list[#list + 1] = { part, (text:gsub("%%s", { ["%s"] = string.char(byte) })) }
      end
    end
  end
  return list
end

local wrong_strings = { 12, 1.5, true, false, {}, print, io.stdout }

describe("a bad name", function()
  local names = bad_texts("name")

  it("is refused by client:lock, with the offending byte", function()
    for _, case in ipairs(names) do
      raises({ "#1 to 'lock'", case[1] }, function() client:lock(case[2]) end)
    end
  end)

  it("is refused by client:holder and client:break_lock as well", function()
    for _, case in ipairs(names) do
      raises({ "#1 to 'holder'", case[1] }, function() client:holder(case[2]) end)
      raises({ "#1 to 'break_lock'", case[1] }, function()
        client:break_lock(case[2], { value = "x" })
      end)
    end
  end)

  it("is refused by type", function()
    local methods = {
      lock = function(...) client:lock(...) end,
      holder = function(...) client:holder(...) end,
      break_lock = function(...) client:break_lock(...) end,
    }
    for name, method in pairs(methods) do
      local place = ("#1 to '%s'"):format(name)
      for _, value in ipairs(wrong_strings) do
        raises({ place, "string expected, got " }, method, value, {})
      end
      raises({ place, "string expected, got " }, method)
      raises({ place, "string expected, got nil" }, method, nil, {})
    end
  end)

  it("is refused where the prefix makes it too long, with length, prefix and limit", function()
    for _, prefix in ipairs { default_prefix, "", "a:", ("p"):rep(20), ("p"):rep(100),
      ("p"):rep(248) } do
      local limit = 249 - #prefix
      local prefixed = memlock.client(relay.address, { prefix = prefix })
      for _, length in ipairs { limit + 1, limit + 2, 250, 251, 252, 300, 70000 } do
        local parts = { ("name has %d bytes"):format(length),
          ('prefix "%s" at most %d fit'):format(prefix, limit) }
        local name = ("n"):rep(length)
        raises(parts, function() prefixed:lock(name) end)
        raises(parts, function() prefixed:holder(name) end)
        raises(parts, function() prefixed:break_lock(name, { value = "x" }) end)
      end
      prefixed:close()
    end
    raises({ "name has 242 bytes", "at most 241" }, function() client:lock(("x"):rep(242)) end)
  end)

  it("is one with '#' in front only without a prefix", function()
    local bare = memlock.client(relay.address, { prefix = "" })
    raises({ "#1 to 'lock'", "name begins with '#'" }, function() bare:lock("#job") end)
    assert.equal("lock", memlock.type(client:lock("#job")))
  end)
end)

describe("a bad prefix", function()
  it("is refused with the offending byte, the length or the reason", function()
    for _, case in ipairs(bad_texts("prefix")) do
      -- A zero byte is met before the others; an empty prefix is fine.
      local part = case[2]:find("\0", 1, true) and "option 'prefix' has a zero byte" or case[1]
      if case[2] ~= "" then
        raises({ "#2 to 'client'", part }, create, relay.address, { prefix = case[2] })
      end
    end
    for _, length in ipairs { 249, 250, 251, 70000 } do
      raises({ "#2 to 'client'", ("prefix has %d bytes: at most 248"):format(length) },
        create, relay.address, { prefix = ("p"):rep(length) })
    end
    raises({ "#2 to 'client'", "prefix begins with '#'" }, create, relay.address,
      { prefix = "#locks:" })
  end)
end)

describe("a bad server", function()
  it("is refused, alone, in a comma list and in a table, with the text and the reason", function()
    local path = "/" .. ("d"):rep(120)
    for _, case in ipairs {
      { "it is empty", "" },
      { "it is empty", " " },
      { "the host is empty", ":11211" },
      { "letters, digits", "a b" },
      { "letters, digits", "host\r\n" },
      { "letters, digits", "http//host" },
      { "port is a number from 1 to 65535", "host:" },
      { "port is a number from 1 to 65535", "host:0" },
      { "port is a number from 1 to 65535", "host:65536" },
      { "port is a number from 1 to 65535", "host:99999" },
      { "port is a number from 1 to 65535", "host:4294978507" },
      { "port is a number from 1 to 65535", "host:-1" },
      { "port is a number from 1 to 65535", "host:+1" },
      { "port is a number from 1 to 65535", "host:11211x" },
      { "port is a number from 1 to 65535", "host: 11211" },
      { "port is a number from 1 to 65535", "host:1.5" },
      { "stands in brackets", "::1" },
      { "stands in brackets", "fe80::1:11211" },
      { "bracket is not closed", "[::1" },
      { "is not an IPv6 address", "[zz]:11211" },
      { "the host is empty", "[]:11211" },
      { "is not an IPv6 address", "[127.0.0.1]:11211" },
      { "is not an IPv6 address", "[1:2:3]" },
      { "only :port may follow", "[::1]11211" },
      { "zone behind '%' is empty", "[fe80::1%]" },
      { "empty part", "a..b" },
      { "empty part", ".a" },
      { "ends with '.'", "a." },
      { "begins with '-'", "-host" },
      { "begins with '-'", "a.-b" },
      { "longer than 63", ("h"):rep(64) },
      { "longer than 253", ("h."):rep(127) .. "h" },
      { "IPv4 address", "999.1.1.1" },
      { "IPv4 address", "127.1" },
      { "IPv4 address", "11211" },
      { "zero byte", "ho\0st" },
      { "longer than a unix socket's", path },
      { "control character", "/tmp/a\nb" },
      { "control character", "/tmp/a\0b" },
    } do
      local part, text = case[1], case[2]
      local parts = { "#1 to 'client'", "server address", part }
      if text:find("^[%w./:-]+$") and #text < 100 then parts[#parts + 1] = '"' .. text .. '"' end
      raises(parts, create, text)
      raises(parts, create, "127.0.0.1:1," .. text)
      raises(parts, create, text .. ",127.0.0.1:1")
      raises(parts, create, { "127.0.0.1:1", text })
    end
    raises({ "#1 to 'client'", "it is empty" }, create, "127.0.0.1:1,")
    raises({ "#1 to 'client'", "it is empty" }, create, "a,,b")
  end)

  it("is refused as a whole where the list is none", function()
    raises({ "#1 to 'client'", "list of servers is empty" }, create, {})
    for _, value in ipairs { 11211, true, false, print, io.stdout } do
      raises({ "#1 to 'client'", "string or table of servers expected, got " }, create, value)
    end
    for _, value in ipairs { 11211, true, {}, print } do
      raises({ "#1 to 'client'", "a server is a string, not a " .. type(value) },
        create, { "127.0.0.1:1", value })
    end
    -- options given as the first argument, a usual slip
    raises({ "#1 to 'client'", "options are the second argument" }, create,
      { prefix = "a:" })
    raises({ "#1 to 'client'", "options are the second argument" }, create,
      { "127.0.0.1:1", ttl = 3 })
    local many = {}
    for port = 1, 65 do many[port] = "127.0.0.1:" .. port end
    raises({ "#1 to 'client'", "more than 64 servers" }, create, many)
    raises({ "#1 to 'client'", "more than 64 servers" }, create, table.concat(many, ","))
    many[65] = nil
    assert.equal("client", memlock.type(memlock.client(many)))
  end)
end)

describe("a bad ttl", function()
  local range = "above 0 and at most 2419200"
  local ttls = {
    { range, 0 }, { range, 0.0 }, { range, -0.0 }, { range, -1 }, { range, -0.001 },
    { range, nan }, { range, math.huge }, { range, -math.huge },
    { range, 2419201 }, { range, 2419200.001 }, { range, 2592000 }, { range, 2592001 },
    { range, 3e6 }, { range, 1e12 }, { range, 2 ^ 53 }, { range, 1760000000000 },
    { range, 1e300 }, { range, math.maxinteger }, { range, math.mininteger },
    { "number", "10" }, { "number", "" }, { "number", true }, { "number", false },
    { "number", {} }, { "number", print },
  }

  it("is refused as an option of a client and of a lock, by name and with the limit", function()
    for _, case in ipairs(ttls) do
      raises({ "#2 to 'client'", "ttl", case[1] }, create, relay.address,
        { ttl = case[2] })
      raises({ "#2 to 'lock'", "ttl", case[1] }, function()
        client:lock("job", { ttl = case[2] })
      end)
    end
  end)

  it("is refused by lock:refresh, and the lease stays as it is", function()
    local _, before = lock:held()
    for _, case in ipairs(ttls) do
      raises({ "#1 to 'refresh'", case[1] }, function() lock:refresh(case[2]) end)
    end
    local _, after = lock:held()
    assert.is_true(after <= before and after > before - support.slack(0.5))
  end)

  it("is refused by client:update", function()
    local function unused() error("it was called") end
    for _, value in ipairs { -1, -0.001, nan, math.huge, -math.huge, 2419201, 2592001, 1e300,
      math.maxinteger, "10", true, {} } do
      raises({ "#3 to 'update'", "option 'ttl'" }, function()
        client:update("key", unused, { ttl = value })
      end)
    end
  end)
end)

describe("a wrong option", function()
  local function noop() end

  it("is refused when nobody knows it", function()
    local function refused(option, value)
      local options = { [option] = value }
      local part = type(option) == "string" and ("unknown option '%s'"):format(option)
        or "options are named: a key is not a string"
      raises({ "#2 to 'client'", part }, create, relay.address, options)
      raises({ "#2 to 'lock'", part }, function() client:lock("job", options) end)
      raises({ "#3 to 'update'", part }, function() client:update("key", noop, options) end)
    end
    for _, option in ipairs { "ttll", "TTL", "Ttl", "", "ttl ", "retry", "expire", "blocking", 1,
      2.5, true, print } do
      refused(option, 1)
      refused(option, false)
    end
    -- known elsewhere
    for _, option in ipairs { "prefix", "timeout", "retry_min", "retry_max", "sleep", "label",
      "proxy", "username", "password" } do
      local part = ("unknown option '%s'"):format(option)
      raises({ "#2 to 'lock'", part }, function() client:lock("job", { [option] = "x" }) end)
      raises({ "#3 to 'update'", part }, function()
        client:update("key", noop, { [option] = "x" })
      end)
    end
    raises({ "#3 to 'update'", "unknown option 'identity'" }, function()
      client:update("key", noop, { identity = "x" })
    end)
    raises({ "unknown option 'ttll'" }, create, relay.address, { ttl = 1, ttll = 1 })
  end)

  it("is refused where the options are no table", function()
    for _, value in ipairs { "x", 1, true, false, print, io.stdout } do
      raises({ "#2 to 'client'", "table expected, got " }, create, relay.address, value)
      raises({ "#2 to 'lock'", "table expected, got " }, function()
        client:lock("job", value)
      end)
      raises({ "#3 to 'update'", "table expected, got " }, function()
        client:update("key", noop, value)
      end)
    end
  end)

  -- Wrong types of a kind of option: their values.
  local no_string = { 1, 1.5, true, false, {}, print }
  local no_number = { "1", "", true, false, {}, print }
  local no_boolean = { 1, 0, "true", "", {}, print }
  local no_function = { 1, "sleep", true, false, {}, setmetatable({}, { __call = noop }) }
  local control = { "a\nb", "\27[2J", "a\127", "\t" }
  local function either(...)
    local list = {}
    for _, part in ipairs { ... } do table.move(part, 1, #part, #list + 1, list) end
    return list
  end
  local bad_id = { "", "a b", " ", "a\nb", "\127", ("i"):rep(65) }

  local of_client = {
    prefix = no_string,
    ttl = no_number,
    wait = either(no_number, { -1, -0.1, nan, -math.huge }),
    timeout = either(no_number, { 0, -1, nan, math.huge, -math.huge }),
    retry_min = either(no_number, { -1, nan, math.huge, -math.huge }),
    retry_max = either(no_number, { 0, -1, nan, math.huge, -math.huge }),
    sleep = no_function,
    label = either(no_string, control, { ("l"):rep(129), "a\0b" }),
    identity = either(no_string, bad_id, { "a\0b" }),
    proxy = no_boolean,
  }

  it("is refused by its name, each with each wrong value: client", function()
    for option, values in pairs(of_client) do
      for _, value in ipairs(values) do
        raises({ "#2 to 'client'", ("option '%s'"):format(option) }, create,
          relay.address, { [option] = value })
      end
    end
    for _, value in ipairs(either(no_string, bad_id, { "a\0b" })) do
      raises({ "#2 to 'client'", "option 'username'" }, create, relay.address,
        { username = value, password = "secret" })
    end
    for _, value in ipairs(either(no_string, control, { ("p"):rep(129), "a\0b" })) do
      raises({ "#2 to 'client'", "option 'password'" }, create, relay.address,
        { username = "user", password = value })
    end
  end)

  it("is refused by its name, each with each wrong value: lock", function()
    for option, values in pairs {
      ttl = no_number,
      wait = either(no_number, { -1, nan, -math.huge }),
      identity = either(no_string, bad_id, { "a\0b" }),
    } do
      for _, value in ipairs(values) do
        raises({ "#2 to 'lock'", ("option '%s'"):format(option) }, function()
          client:lock("job", { [option] = value })
        end)
      end
    end
  end)

  it("is refused by its name, each with each wrong value: update", function()
    for option, values in pairs {
      ttl = no_number,
      wait = either(no_number, { -1, nan, -math.huge }),
    } do
      for _, value in ipairs(values) do
        raises({ "#3 to 'update'", ("option '%s'"):format(option) }, function()
          client:update("key", noop, { [option] = value })
        end)
      end
    end
  end)

  it("is refused where two do not go together", function()
    raises({ "'username'", "'password'" }, create, relay.address, { username = "u" })
    raises({ "'username'", "'password'" }, create, relay.address, { password = "p" })
    raises({ "'retry_min'", "'retry_max'" }, create, relay.address,
      { retry_min = 2, retry_max = 1 })
  end)

  it("is refused when a zero byte hides its end", function()
    raises({ "unknown option" }, create, relay.address, { ["ttl\0"] = 1 })
    raises({ "unknown option" }, function() client:lock("job", { ["wait\0x"] = 1 }) end)
  end)

  -- What is read there may live nowhere else, and be gone before it is used.
  it("is none that only a metatable has: it is not asked, and nothing of it counts", function()
    local asked = {}
    local function through(values)
      return setmetatable({}, { __index = function(_, option)
        asked[#asked + 1] = option
        collectgarbage()
        local value = values[option]
        return type(value) == "string" and value:rep(2) or value
      end })
    end
    local direct = memlock.client(server.address, through { prefix = ("p"):rep(50),
      label = ("l"):rep(50), identity = ("i"):rep(30), ttl = "long", wait = -1, timeout = 0,
      retry_min = true, retry_max = true, sleep = 1, proxy = 1, username = "x" })
    local one = direct:lock(support.name(), through { ttl = "long", wait = -1,
      identity = ("i"):rep(30), auto_refresh = 1, max_hold = -1, on_lost = 1 })
    assert.equal(one, one:acquire())
    local shown = one:holder()
    assert.equal(raw:get(default_prefix .. one:name()), shown.value)
    assert.same({ 16, nil }, { shown.ttl, shown.label:match("^l") })
    assert.equal(32, #shown.id)
    local key = support.name("key")
    assert.is_true((direct:update(key, function() return "x" end, through { ttl = -1, wait = -1 })))
    assert.equal(-1, raw:ttl(key))
    assert.same({}, asked)
    direct:close()
  end)

  it("never shows the password", function()
    local ok, message = pcall(memlock.client, relay.address, { username = "user",
      password = "secret\n" })
    assert.is_false(ok)
    assert.is_nil(message:find("secret", 1, true))
  end)
end)

describe("a wrong argument", function()
  local function noop() end

  it("of acquire is refused by number", function()
    local free = client:lock(support.name())
    for _, value in ipairs { -1, -0.5, nan, -math.huge, "1", "", true, false, {}, print } do
      raises({ "#1 to 'acquire'" }, function() free:acquire(value) end)
    end
    assert.is_false((free:held()))
  end)

  it("of with is refused by number", function()
    local free = client:lock(support.name())
    for _, value in ipairs { 1, "f", true, false, {}, io.stdout } do
      raises({ "#1 to 'with'", "function expected, got " }, function() free:with(value) end)
    end
    raises({ "#1 to 'with'", "function expected, got no value" }, function() free:with() end)
  end)

  it("of update is refused by number", function()
    for _, case in ipairs(bad_texts("key")) do
      raises({ "#1 to 'update'", case[1] }, function() client:update(case[2], noop) end)
    end
    for _, length in ipairs { 251, 252, 70000 } do
      raises({ "#1 to 'update'", ("key has %d bytes: at most 250"):format(length) }, function()
        client:update(("k"):rep(length), noop)
      end)
    end
    for _, value in ipairs(wrong_strings) do
      raises({ "#1 to 'update'", "string expected, got " }, function()
        client:update(value, noop)
      end)
    end
    for _, value in ipairs { 1, "f", true, {}, io.stdout } do
      raises({ "#2 to 'update'", "function expected, got " }, function()
        client:update("key", value)
      end)
    end
    raises({ "#1 to 'update'" }, function() client:update() end)
    raises({ "#2 to 'update'" }, function() client:update("key") end)
  end)

  it("of break_lock is refused by number", function()
    for _, value in ipairs { 1, "x", true, false, print } do
      raises({ "#2 to 'break_lock'", "table expected, got " }, function()
        client:break_lock("job", value)
      end)
    end
    raises({ "#2 to 'break_lock'" }, function() client:break_lock("job") end)
    for _, value in ipairs { {}, { value = 1 }, { value = true }, { id = "x" } } do
      raises({ "#2 to 'break_lock'", "holder()" }, function() client:break_lock("job", value) end)
    end
    raises({ "#2 to 'break_lock'", "empty" }, function()
      client:break_lock("job", { value = "" })
    end)
  end)
end)

describe("a wrong self", function()
  it("is refused by every method of a client and of a lock", function()
    local metatable = debug.getmetatable(client)
    for class, case in pairs { client = { client, lock }, lock = { lock, client } } do
      local right, other = case[1], case[2]
      local methods = debug.getmetatable(right).__index
      local count = 0
      for name, method in pairs(methods) do
        count = count + 1
        local expected = ("memlock.%s expected, got "):format(class)
        for _, value in ipairs { other, "x", 1, true, {}, print, io.stdout,
          setmetatable({}, metatable) } do
          raises({ expected }, method, value)
        end
        raises({ expected }, method)
        raises({ expected }, method, nil)
        -- a dot instead of a colon
        raises({ expected }, function() right[name]("job") end)
      end
      assert.is_true(count >= 6)
    end
  end)

  it("is refused by the metamethods", function()
    for _, object in ipairs { client, lock } do
      local metatable = debug.getmetatable(object)
      for _, name in ipairs { "__close", "__tostring" } do
        raises({ metatable.__name .. " expected, got " }, metatable[name], {})
        raises({ metatable.__name .. " expected, got " }, metatable[name])
        raises({ metatable.__name .. " expected, got " }, metatable[name],
          object == lock and client or lock)
      end
    end
  end)

  it("is nothing to the finalizers, which never raise", function()
    local held = lock:held()
    for _, object in ipairs { client, lock } do
      local finalize = debug.getmetatable(object).__gc
      finalize({})
      finalize()
      finalize(object == lock and client or lock)
    end
    assert.equal("client", memlock.type(client))
    assert.equal(held, (lock:held()))
  end)
end)

it("too many arguments are no harm, as everywhere in Lua", function()
  local one = memlock.client(server.address, {}, "more", 1)
  local free = one:lock(support.name(), {}, "more", 1)
  assert.equal(free, free:acquire(0, "more", 1))
  assert.is_true(free:refresh(5, "more"))
  assert.is_true(free:verify("more"))
  assert.is_true((free:held("more")))
  assert.equal("table", type(free:holder("more")))
  assert.equal("string", type(free:name("more")))
  assert.equal("integer", math.type(free:token("more")))
  assert.is_true(free:release("more", 1))
  assert.is_false(one:holder(free:name(), "more"))
  assert.is_true(one:close("more"))
  assert.is_true(memlock.sleep(0, "more"))
end)

it("nil stands for what is left out", function()
  local one = memlock.client(server.address, nil)
  local free = one:lock(support.name(), nil)
  assert.equal(free, free:acquire(nil))
  assert.is_true(free:refresh(nil))
  assert.is_true(free:release())
  one:close()
  assert.equal("memlock.client (127.0.0.1:11211, 0 held)", tostring(memlock.client(nil, nil)))
end)

--------------------------------------------------------------------------------

describe("what is at the edge and right", function()
  it("are names of any one allowed byte", function()
    local direct = memlock.client(server.address, { prefix = support.name() .. ":" })
    local locks = {}
    for byte = 0x21, 0xff do
      if byte ~= 0x7f then
        local one = direct:lock(string.char(byte))
        assert.equal(one, one:acquire(), ("byte 0x%02x"):format(byte))
        locks[#locks + 1] = one
      end
    end
    for _, one in ipairs(locks) do assert.is_true(one:verify()) end
    assert.equal(222, #locks)
    direct:close()
  end)

  it("are names in UTF-8", function()
    local direct = memlock.client(server.address)
    for _, word in ipairs { "caf\u{e9}", "\u{65e5}\u{672c}", "\u{1f512}" } do
      local one = direct:lock(support.name(word))
      assert.equal(one, one:acquire())
      assert.truthy(raw:get(default_prefix .. one:name()):find("^memlock/1 "))
      assert.is_true(one:release())
    end
  end)

  it("are the longest names of each prefix, which reach the server whole", function()
    for _, prefix in ipairs { default_prefix, "", "a:", ("p"):rep(20), ("p"):rep(248) } do
      local direct = memlock.client(server.address, { prefix = prefix })
      local limit = 249 - #prefix
      local name = limit > 60 and support.name() or support.name():sub(-limit)
      name = name .. ("n"):rep(limit - #name)
      local one = direct:lock(name)
      assert.equal(one, one:acquire())
      assert.truthy(raw:get(prefix .. name):find("^memlock/1 "))
      if limit > 1 then -- never cut short: one that differs in its last byte is another
        local two = direct:lock(name:sub(1, -2) .. "m")
        assert.equal(two, two:acquire())
      end
      assert.equal(name, one:name())
      direct:close()
      assert.is_nil(raw:get(prefix .. name))
    end
  end)

  it("are ttls: taken, with a record that ends and is there", function()
    local direct = memlock.client(server.address)
    for _, ttl in ipairs { 0.4, 0.5, 1, 1.5, 2, 60, 2419199.999, 2419200 } do
      local one = direct:lock(support.name(), { ttl = ttl })
      assert.equal(one, one:acquire())
      local held, left = one:held()
      assert.is_true(held and left <= ttl and left > ttl - support.slack(0.1))
      local there = raw:ttl(default_prefix .. one:name())
      assert.is_true(there >= ttl and there <= 1.001 * ttl + 3, ("%s: %s"):format(ttl, there))
      assert.is_true(one:refresh(ttl))
      assert.is_true(one:release())
    end
    direct:close()
  end)

  it("are waits without end where the lock is free", function()
    local direct = memlock.client(server.address, { wait = math.huge, retry_min = 0,
      label = "", identity = ("i"):rep(64), timeout = 1e9 })
    local one = direct:lock(support.name())
    assert.equal(one, one:acquire(math.huge))
    assert.is_true(one:release())
    assert.equal(one, one:acquire())
    direct:close()
  end)
end)

it("no smuggled command was carried out in all of the above", function()
  assert.is_nil(raw:get("hacked"))
end)

it("one bad name does not make the next answers come out of step", function()
  local other = memlock.client(server.address)
  local deploy = other:lock(support.name("deploy"))
  assert(deploy:acquire())
  local direct = memlock.client(server.address)
  for _, bad in ipairs { "nightly job", "a\r\nb", "a\tb", "", ("x"):rep(243), ("x"):rep(244) } do
    assert.has_error(function() direct:lock(bad):acquire() end)
    local spare = direct:lock(support.name("spare"))
    assert.equal(spare, spare:acquire())
    local ok, message, code = direct:lock(deploy:name()):acquire()
    assert.same({ nil, "held" }, { ok, code })
    assert.truthy(message:find(deploy:name(), 1, true), message)
    assert.is_true(spare:release())
  end
  deploy:release()
  direct:close()
end)

it("a stray line in the server's answers never makes a held lock ours", function()
  local other = memlock.client(server.address)
  local deploy = other:lock(support.name("deploy"))
  assert(deploy:acquire())
  local second = support.relay(server)
  for _, stray in ipairs { "SERVER_ERROR x\r\n", "ERROR\r\n", "CLIENT_ERROR x\r\n",
    "NOT_STORED\r\n", "NOT_FOUND\r\n", "EXISTS\r\n", "END\r\n" } do
    local behind = memlock.client(second.address, { timeout = 0.5 })
    assert.is_false(behind:holder(support.name()))
    second:inject_reply(stray)
    behind:lock(support.name("spare")):acquire()
    for _ = 1, 3 do
      local ok, _, code = behind:lock(deploy:name()):acquire()
      assert.same({ nil, "held" }, { ok, code }, stray)
    end
    behind:close()
    second:disarm()
  end
  assert.is_true(deploy:verify())
  deploy:release()
end)
