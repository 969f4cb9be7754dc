--- The end of a program, or of a Lua state, while a thread of ours renews locks in it.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local memlock = require "memlock"

local TIMEOUT = 0.3
local runs = os.getenv("FULL") == "1" and 500 or 25
local at_once = 25
local sanitized = keeping.is_sanitized()

-- What a program does once it has its locks and was told to go on.
local ends = {
  ["the end of the script"] = "",
  ["error()"] = "error 'the end'",
  ["os.exit(0)"] = "os.exit(0)",
  ["os.exit(true, true)"] = "os.exit(true, true)",
  ["an error inside with"] = "local l = client:lock(arg[2] .. 'with', { auto_refresh = true }) "
    .. "l:with(function() posix.sleep(0.01) error 'the end' end) error 'the end'",
}

local fails = { ["error()"] = true, ["an error inside with"] = true }

-- One lock is being renewed all the time, one was renewed once, one never.
local program = [[
  posix = require "memlock_posix"
  client = require "memlock".client(arg[1], { timeout = tonumber(arg[3]) })
  local function take(name, ttl)
    return assert(client:lock(arg[2] .. name, { ttl = ttl, auto_refresh = true }):acquire(10))
  end
  busy, once, never = take("busy", 0.15), take("once", 30), take("never", 30)
  while not once:refresh() do assert(once:held()) end -- a busy machine may take its time
  print "ready" io.flush() io.read()
]]

-- Ends programs, many at a time, with the server as `spoil` leaves it.
local function try(what, spoil, check)
  for _ = 1, runs, at_once do
    local server = support.memcached()
    local programs, names = {}, {}
    for i = 1, math.min(runs, at_once) do
      names[i] = support.name()
      programs[i] = support.start_lua { code = program .. ends[what], server.address, names[i],
        TIMEOUT }
    end
    for _, running in ipairs(programs) do assert.equal("ready", running:read_line(30)) end
    if spoil then spoil(server) end
    local start = support.now()
    for _, running in ipairs(programs) do running:write("\n") end
    for _, running in ipairs(programs) do
      local result = running:wait(30)
      local code = fails[what] and 1 or 0
      assert.same({ "exit", code }, { result.kind, result.code }, tostring(result))
      -- `with` waits for its lock first, and all of them end at the same time.
      local bound = TIMEOUT + support.slack(0.5) + (what:find("with") and TIMEOUT or 0)
      assert.is_true(result.elapsed + running.start - start < bound, tostring(result))
    end
    if check then check(server, names) end
    server:stop()
  end
end

local function none_left(server, names)
  local raw = server:raw()
  for _, name in ipairs(names) do
    for _, lock in ipairs { "once", "never", "with" } do
      assert.is_nil((raw:get(keeping.key(name .. lock))))
    end
    -- On a busy machine its lease may have ended, and then the record does, two seconds later.
    support.eventually(function() return not raw:get(keeping.key(name .. "busy")) end)
  end
end

for what in pairs(ends) do
  describe("a program that ends by " .. what .. ", with its server", function()
    it("up, ends well, and gives its locks up if it can", function()
      try(what, nil, what ~= "os.exit(0)" and none_left or nil)
    end)

    it("stopped, ends in time", function()
      try(what, function(server) server:stop_process() end)
    end)

    it("refusing, ends in time", function()
      try(what, function(server) server:kill() end)
    end)
  end)
end

describe("a state that is closed", function()
  local server = support.server()

  -- Runs build/spec/host (see spec/support/host.c); returns what it reported at a tenth and at the
  -- end of its states.
  local function host(mode, count, text, ...)
    local path = support.tempdir() .. "/script.lua"
    support.write_file(path, text)
    local command = { support.build .. "/spec/host", mode, tostring(count), path }
    for _, argument in ipairs { ... } do command[#command + 1] = tostring(argument) end
    command.timeout = 300
    command.env = support.environment()
    local result = support.run(command)
    assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
    local reports = {}
    for fds in result.out:gmatch("fds=(%d+)") do reports[#reports + 1] = tonumber(fds) end
    assert.equal(2, #reports, result.out)
    return reports[1], reports[2]
  end

  local take = [[
    local number, address, name = ...
    local memlock = require "memlock"
    local client = memlock.client(address, { timeout = 0.3 })
    locks = { client }
    for i, ttl in ipairs { 0.006, 0.03, 30 } do
      locks[i + 1] = client:lock(name .. i, { ttl = ttl, auto_refresh = true, on_lost = print })
      locks[i + 1]:acquire(1)
    end
    client:fd()
  ]]
  local moment = "local stop = os.clock() + number % 7 / 1000 while os.clock() < stop do end\n"

  local ways = {
    ["leaves all to the end of the state"] = "",
    ["released its locks"] = "for i = 2, 4 do locks[i]:release() end",
    ["closed its client"] = "client:close()",
    ["dropped its locks"] = "locks = nil collectgarbage() collectgarbage()",
    ["dropped its locks and then its client"] =
      "locks = nil collectgarbage() collectgarbage() client = nil collectgarbage()",
  }

  for _, mode in ipairs { "run", "keep" } do
    local module = mode == "run" and ", with the module unloaded" or ", with the module kept"
    for what, code in pairs(ways) do
      it(what .. module .. ": no crash, no leak, no record", function()
        local name = support.name()
        local before, after = host(mode, support.count(1000), take .. moment .. code,
          server.address, name)
        assert.equal(before, after)
        local raw = server:raw()
        assert.is_nil((raw:get(keeping.key(name .. 3))))
        support.eventually(function() return not raw:get(keeping.key(name .. 1)) end)
      end)
    end
  end

  it("with no server there ends all the same", function()
    local gone = support.memcached()
    local relay = support.relay(gone)
    gone:kill()
    local before, after = host("run", support.count(1000),
      (take:gsub("acquire%(1%)", "acquire()")), relay.address, "x")
    assert.equal(before, after)
  end)

  it("by a finalizer that makes a client of its own does not crash", function()
    local late = [[
      local address, name = ARGUMENTS
      local memlock = require "memlock"
      keep = setmetatable({}, { __gc = function()
        local client = memlock.client(address, { timeout = 0.3 })
        local lock = client:lock(name, { ttl = 0.03, auto_refresh = true })
        lock:acquire(1)
      end })
    ]]
    local name = support.name()
    for i = 1, support.count(100) do
      local code = late:gsub("ARGUMENTS", "arg[1], arg[2]")
      -- Lua finalizes nothing that is made then, which a leak checker tells rightly.
      local result = support.run_lua { code = code, env = { ASAN_OPTIONS = "detect_leaks=0" },
        server.address, name .. i }
      assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    end
    -- In a host that lives on, what was made then is nobody's: its thread goes on, in our code.
    if not sanitized then
      host("run", support.count(100), late:gsub("ARGUMENTS", "select(2, ...) name = name .. ...")
        .. "local stop = os.clock() + 0.01 while os.clock() < stop do end",
        server.address, support.name())
    end
  end)
end)

it("a client that goes on its own, while others renew, ends its thread only", function()
  local server = support.server()
  local keep = memlock.client(server.address)
  local held = assert(keep:lock(support.name(), { ttl = 0.3, auto_refresh = true }):acquire())
  for i = 1, support.count(300) do
    local client = memlock.client(server.address)
    local lock = client:lock(support.name(), { ttl = 0.09, auto_refresh = true })
    assert(lock:acquire())
    if i % 3 == 0 then client:close() end
    if i % 3 == 1 then lock:release() end
    client, lock = nil, nil -- luacheck: ignore
    collectgarbage()
  end
  assert.is_true(held:held())
  assert.is_true(held:release())
  keep:close()
end)
