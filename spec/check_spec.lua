--- client:check(): what each server is, and what makes it unfit for locks, in sentences.

local support = require "spec.support"
support.setup()

local disguised = require "spec.support.disguised"
local memlock = require "memlock"

local full_length = os.getenv("FULL") == "1"

-- What check() says of a client's only server.
local function check(address, options)
  local client = memlock.client(address, options)
  local list = assert(client:check())
  assert.equal(1, #list)
  client:close()
  return list[1]
end

local function says(about, part)
  for _, sentence in ipairs(about.findings) do
    if sentence:find(part, 1, true) then return true end
  end
  return false
end

local function assert_says(about, part)
  assert.is_true(says(about, part), ("no %q in: %s"):format(part,
    table.concat(about.findings, " ")))
  assert.is_false(about.fit)
end

local function assert_silent(about, part)
  assert.is_false(says(about, part), table.concat(about.findings, " "))
end

-- The fields of a memcached that answers, and their types.
local function assert_whole(about)
  local types = { server = "string", fit = "boolean", findings = "table", cas = "boolean",
    proxy = "boolean", round_trip = "float", version = "string", uptime = "integer",
    clock_offset = "integer", evicting = "boolean", evictions = "integer",
    memory_limit = "integer", memory_used = "integer" }
  for field, kind in pairs(types) do
    assert.equal(kind, math.type(about[field]) or type(about[field]), field)
  end
  for field in pairs(about) do assert.truthy(types[field], "unknown field: " .. tostring(field)) end
  assert.equal(about.fit, #about.findings == 0)
  for _, sentence in ipairs(about.findings) do
    assert.truthy(sentence:find("^%u.*%.$"), sentence)
    assert.is_nil(sentence:find("%c"), sentence)
  end
end

describe("a real server", function()
  it("is described in all fields, and what is wrong with it in sentences", function()
    local server = support.memcached { memory = 32 }
    local about = check(server.address)
    assert_whole(about)
    local raw = server:raw()
    local stats = raw:stats()
    assert.equal(server.address, about.server)
    assert.equal(stats.version, about.version)
    assert.is_true(about.cas)
    assert.is_false(about.proxy)
    assert.is_true(about.evicting)
    assert.equal(0, about.evictions)
    assert.equal(32 * 1024 * 1024, about.memory_limit)
    assert.is_true(about.memory_used >= 0 and about.memory_used < 100000)
    assert.is_true(math.abs(about.clock_offset) <= 1)
    assert.is_true(about.round_trip > 0 and about.round_trip < support.slack(0.1))
    assert.is_true(math.abs(about.uptime - tonumber(stats.uptime)) <= 1)
    assert_says(about, "start it with -M")
    assert_says(about, "It was started")
    assert.equal(2, #about.findings)
  end)

  it("that was started with -M is not said to drop items", function()
    local about = check(support.memcached({ args = { "-M" } }).address)
    assert_whole(about)
    assert.is_false(about.evicting)
    assert_silent(about, "-M")
    assert_says(about, "It was started")
    assert.equal(1, #about.findings)
  end)

  it("that was started with -C is said to have no compare-and-swap", function()
    local about = check(support.memcached({ args = { "-C", "-M" } }).address)
    assert_whole(about)
    assert.is_false(about.cas)
    assert_says(about, "no compare-and-swap")
    assert_says(about, "-C")
  end)

  it("that is nearly full is said to be", function()
    local server = support.memcached { args = { "-M", "-I", "512k" }, memory = 2 }
    local raw = server:raw()
    assert_silent(check(server.address), "nearly full")
    local n = 0
    repeat
      n = n + 1
      local stored = raw:command(("set big-%d 0 0 100000"):format(n), ("x"):rep(100000))
    until stored ~= "STORED"
    local stats = raw:stats()
    local about = check(server.address)
    assert_whole(about)
    local is_full = tonumber(stats.bytes) > 0.91 * tonumber(stats.limit_maxbytes)
    if is_full then assert_says(about, "nearly full") end
    assert.is_true(about.memory_used > 1000000)
    assert.equal(2 * 1024 * 1024, about.memory_limit)
  end)

  it("that has dropped items is said to have", function()
    local server = support.memcached { args = { "-I", "512k" }, memory = 1 }
    local raw = server:raw()
    local stats
    repeat
      for i = 1, 200 do raw:set(support.name("big") .. i, ("x"):rep(20000)) end
      stats = raw:stats()
    until tonumber(stats.evictions) > 0
    local about = check(server.address)
    assert_whole(about)
    assert.equal(tonumber(stats.evictions), about.evictions)
    assert_says(about, ("It has dropped %d items"):format(about.evictions))
  end)

  it("that is full to the last item cannot be tried, and says why", function()
    local server = support.memcached { args = { "-M", "-I", "512k" }, memory = 1 }
    server:fill()
    local about = check(server.address)
    assert.is_false(about.fit)
    assert.equal("refused", about.code)
    assert_says(about, "ALLOCATE")
  end)

  it("is left as it was", function()
    local server = support.memcached()
    local raw = server:raw()
    local client = memlock.client(server.address)
    for _ = 1, 5 do assert(client:check()) end
    local line
    support.eventually(function() -- its own crawler may be at work
      raw:send("lru_crawler metadump all\r\n")
      line = raw:line()
      return not line:find("^BUSY")
    end)
    while line ~= "END" do
      local key = line:match("key=(%S+)"):gsub("%%(%x%x)", function(hex)
        return string.char(tonumber(hex, 16))
      end)
      assert.is_nil(raw:get(key), key)
      line = raw:line()
    end
    local lock = assert(client:lock(support.name()):acquire())
    assert(client:check())
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    client:close()
  end)

  it("may be at a unix socket", function()
    local server = support.memcached { unix = true }
    local about = check(server.address)
    assert_whole(about)
    assert.equal(server.path, about.server)
    assert.is_true(about.cas)
  end)

  it("grows up", function()
    -- For a server to be fit it must have run for a minute, which only a long run waits for.
    local server = support.memcached { args = { "-M" } }
    if full_length then
      support.eventually(function() return #check(server.address).findings == 0 end, 70)
      local about = check(server.address)
      assert.is_true(about.fit)
      assert.same({}, about.findings)
      assert.is_true(about.uptime >= 60)
    else
      assert_says(check(server.address), "may still be at work")
    end
  end)
end)

describe("what a server says of itself", function()
  it("is believed: nothing against it", function()
    local about = check(disguised({}).address)
    assert_whole(about)
    assert.same({}, about.findings)
    assert.is_true(about.fit)
    assert.equal(100000, about.uptime)
  end)

  local cases = {
    { "an old version", { version = "1.4.13" }, "Version 1.4.13 is very old", "version" },
    { "a wall clock ahead", { time = 100 }, "Its wall clock and ours differ by", "clock_offset" },
    { "a wall clock behind", { time = -100 }, "differ by -", "clock_offset" },
    { "evictions", { evictions = "12" }, "It has dropped 12 items", "evictions" },
    { "that it evicts", { evictions = "on" }, "start it with -M", "evicting" },
    { "its youth", { uptime = "7" }, "It was started 7 s ago", "uptime" },
    { "full memory", { bytes = "66000000" }, "nearly full (66000000 of ", "memory_used" },
  }
  for _, case in ipairs(cases) do
    it("is told where it makes it unfit: " .. case[1], function()
      local about = check(disguised(case[2]).address)
      assert_whole(about)
      assert_says(about, case[3])
      assert.equal(1, #about.findings, table.concat(about.findings, " "))
      assert.is_not_nil(about[case[4]])
    end)
  end

  it("cannot put control characters, or more than there is room for, into a sentence", function()
    local about = check(disguised({ version = "1.0.7-" .. ("x"):rep(60) }).address)
    assert_whole(about)
    assert_says(about, "is very old")
    assert.is_true(#about.version < 32)
  end)
end)

describe("servers that cannot be asked", function()
  it("are told apart, each by its code and in a sentence", function()
    local cases = {
      { support.refusing(), "unreachable", "cannot be reached" },
      { support.silent().address, "timeout", "did not answer in time" },
      { support.fake(function(c)
        while c:read_line() do c:write("HTTP/1.1 400 no\r\n\r\n") end
      end).address, "refused", "no reply of memcached" },
      { "/nowhere/to/be/found", "unreachable", "cannot be reached" },
    }
    for _, case in ipairs(cases) do
      local took, about = support.elapsed(check, case[1], { timeout = 0.2 })
      assert.same({ case[1], false, case[2] }, { about.server, about.fit, about.code })
      assert.truthy(about.message:find(case[3], 1, true), about.message)
      assert.truthy(about.message:find(case[1], 1, true), about.message)
      assert.equal(1, #about.findings)
      assert.truthy(about.findings[1]:find("^It could not be asked: .*%.$"), about.findings[1])
      assert.is_nil(about.version)
      assert.is_true(took < 0.2 + support.slack(0.1), took)
    end
  end)

  it("do not keep the others of a list from it", function()
    local dead, silent = support.refusing(), support.silent().address
    local good, bare = support.memcached { args = { "-M" } }, support.memcached { args = { "-C" } }
    local client = memlock.client({ dead, good.address, silent, bare.address }, { timeout = 0.3 })
    local took, list = support.elapsed(client.check, client)
    assert.is_true(took < 0.3 + support.slack(0.2), took)
    assert.equal(4, #list)
    local by_address = {}
    for _, about in ipairs(list) do by_address[about.server] = about end
    assert.equal("unreachable", by_address[dead].code)
    assert.equal("timeout", by_address[silent].code)
    for _, server in ipairs { good, bare } do
      assert_whole(by_address[server.address])
      assert.equal(server == good, by_address[server.address].cas)
    end
    client:close()
  end)

  it("are asked anew each time", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = 0.2 })
    for _ = 1, 2 do
      assert.is_true(client:check()[1].cas)
      server:kill()
      assert.equal("unreachable", client:check()[1].code)
      server:restart()
      server:stop_process()
      assert.equal("timeout", client:check()[1].code)
      server:continue_process()
    end
    assert.is_true(client:check()[1].cas)
    client:close()
  end)

  it("one that ends in the middle is either told of whole or not at all", function()
    local server = support.memcached()
    local relay = support.relay(server)
    local client = memlock.client(relay.address, { timeout = 1 })
    for _ = 1, 2 do assert(client:check()) end
    relay:reset()
    assert(client:check())
    local size = relay:stats().down
    for at = 0, size, 400 // support.count(40) do
      relay:cut_reply(at % 1200)
      local about = client:check()[1]
      if about.code then
        assert.is_false(about.fit)
      else
        assert.equal("boolean", type(about.proxy))
        if not about.proxy then assert_whole(about) end
      end
      relay:disarm()
    end
    assert_whole(client:check()[1])
    client:close()
  end)
end)

it("the round trip is that of the network", function()
  local relay = support.relay(support.server())
  local client = memlock.client(relay.address, { timeout = 5 })
  for _, delay in ipairs { 0.02, 0.1 } do
    relay:delay("both", delay / 2)
    local round_trip = client:check()[1].round_trip
    assert.is_true(round_trip >= 0.9 * delay and round_trip < delay + support.slack(0.03),
      round_trip)
  end
  client:close()
end)

it("a closed client checks nothing", function()
  local client = memlock.client(support.server().address)
  client:close()
  local list, message, code = client:check()
  assert.same({ nil, "closed" }, { list, code })
  assert.equal("string", type(message))
end)

it("a child of a fork checks over connections of its own", function()
  local client = memlock.client(support.server().address)
  assert(client:check())
  assert.is_true(support.child(function() return client:check()[1].cas end):join())
  assert.is_true(client:check()[1].cas)
  client:close()
end)

describe("what is no memcached by its own words", function()
  it("may be a proxy, and is said to be", function()
    local server = support.memcached { args = { "-M" } }
    -- Passes on what has a key, and hangs up at everything else, as twemproxy does.
    local fake = support.fake(function(connection)
      local raw = support.raw(server.address)
      while true do
        local command = connection:read_command()
        if not command or not command.key or command.name == "stats" then return end
        connection:write(raw:answer(command))
      end
    end)
    local about = check(fake.address)
    assert.is_true(about.proxy)
    assert.is_true(about.cas)
    assert_says(about, "option proxy")
    assert.equal(1, #about.findings, table.concat(about.findings, " "))
    assert.is_nil(about.version)
    assert.is_nil(about.uptime)
    assert.equal("float", math.type(about.round_trip))
  end)

  local function installed()
    return support.run({ "sh", "-c", "command -v nutcracker" }).code == 0
  end

  it("twemproxy itself, where it is installed", function()
    if not installed() then pending("nutcracker is not installed") end
    local server = support.memcached { args = { "-M" } }
    local port, directory = support.free_port(), support.tempdir()
    support.write_file(directory .. "/proxy.yml", ([[
memlock:
  listen: 127.0.0.1:%d
  hash: fnv1a_64
  distribution: ketama
  timeout: 1000
  servers:
   - %s:1
]]):format(port, server.address))
    support.start { "nutcracker", "-c", directory .. "/proxy.yml", "-s",
      tostring(support.free_port()), "-o", directory .. "/log" }
    local address = "127.0.0.1:" .. port
    local about = support.eventually(function()
      local found = check(address, { proxy = true })
      return not found.code and found
    end)
    assert.is_true(about.proxy)
    assert.is_true(about.cas)
    assert_says(about, "check the servers behind it")
    local client = memlock.client(address, { proxy = true })
    local lock = assert(client:lock(support.name()):acquire())
    assert(client:check())
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    client:close()
  end)
end)
