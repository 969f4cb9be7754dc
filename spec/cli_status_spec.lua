--- memlock status, list, watch, break and check: who has it, and how to get rid of that.

local support = require "spec.support"
support.setup()

local disguised = require "spec.support.disguised"
local memlock = require "memlock"

local server = support.server()
local raw = server:raw()

local name

before_each(function() name = support.name() end)

local function run(...)
  return support.command(server, { ... })
end

local function ends(code, ...)
  local result = run(...)
  assert.same({ "exit", code }, { result.kind, result.code }, tostring(result))
  return result
end

local function hold(options, its_name)
  local client = memlock.client(server.address, options)
  local lock = assert(client:lock(its_name or name):acquire())
  support.defer(function()
    lock:release()
    client:close()
  end)
  return lock
end

-- Just enough of JSON for what the command prints.
local function json(text)
  local at = 1
  local function skip() at = text:find("%S", at) or #text + 1 end
  local value
  local function string()
    local out = {}
    at = at + 1
    while text:sub(at, at) ~= '"' do
      local c = text:sub(at, at)
      assert(c ~= "" and c:byte() >= 0x20, "bad string in " .. text)
      if c == "\\" then
        at = at + 1
        c = text:sub(at, at)
        assert(c == "\\" or c == '"', "bad escape in " .. text)
      end
      out[#out + 1] = c
      at = at + 1
    end
    at = at + 1
    return table.concat(out)
  end
  local function list(close, item)
    local result = {}
    at = at + 1
    skip()
    while text:sub(at, at) ~= close do
      item(result)
      skip()
      local c = text:sub(at, at)
      assert(c == "," or c == close, "bad list in " .. text)
      if c == "," then at = at + 1 end
      skip()
    end
    at = at + 1
    return result
  end
  function value()
    skip()
    local c = text:sub(at, at)
    if c == '"' then return string() end
    if c == "[" then return list("]", function(r) r[#r + 1] = value() end) end
    if c == "{" then
      return list("}", function(r)
        local key = string()
        skip()
        assert(text:sub(at, at) == ":", "no colon in " .. text)
        at = at + 1
        r[key] = value()
      end)
    end
    local word = assert(text:match("^[%w.+-]+", at), "bad JSON: " .. text)
    at = at + #word
    if word == "true" or word == "false" then return word == "true" end
    return assert(tonumber(word), "bad word in " .. text)
  end
  local result = value()
  skip()
  assert(at > #text, "more than one value in " .. text)
  return result
end

describe("status", function()
  it("shows the holder in a table", function()
    local lock = hold({ label = "web-1:42", ttl = 30 })
    local holder = lock:holder()
    local free = support.name("free")
    local out = ends(0, "status", name, free).out
    local lines = {}
    for line in out:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal(3, #lines, out)
    assert.truthy(lines[1]:find("^NAME +HOLDER +SINCE +TTL +ID$"), out)
    local cells = { lines[2]:match("^(%S+)  +(%S+)  +(%S+ %S+)  +(%S+)  +(%S+)$") }
    assert.same({ name, "web-1:42", os.date("%Y-%m-%d %H:%M:%S", holder.since), "30", holder.id },
      cells)
    assert.equal(lines[2]:find("web-1:42", 1, true), lines[3]:find("(free)", 1, true))
  end)

  it("tells programs the same", function()
    local holder = hold({ label = 'say "hi" \\', ttl = 2.5 }):holder()
    local free = support.name("free")
    assert.same({
      { name = name, state = "held", label = 'say "hi" \\\\', since = holder.since, ttl = 2.5,
        id = holder.id },
      { name = free, state = "free" },
    }, json(ends(0, "status", "--json", name, free).out))
  end)

  it("never shows odd values raw, nor fails of them", function()
    local value = "memlock/1 id\xff 7 1700000000 30 "
    local odd = {
      [value .. "\xc2\x9b31m \xe2\x80\xaecafe"] = "\\xc2\\x9b31m \\xe2\\x80\\xaecafe",
      [value .. "caf\xc3\xa9 \xff\xc3"] = "caf\xc3\xa9 \\xff\\xc3",
      [value .. "back\\slash"] = "back\\\\slash",
      ["memlock/1 id 7 9223372036854775807 30 x"] = "@9223372036854775807",
      ["memlock/2 id 7 1 30 new"] = 'unknown: "memlock/2 id 7 1 30 new" (23 bytes)',
      ["1"] = 'unknown: "1" (1 bytes)',
      ["\27[2J\27]0;x\7\0\127"] = '"\\x1b[2J\\x1b]0;x\\x07\\x00\\x7f" (12 bytes)',
      [("\0"):rep(1000000)] = ("\\x00"):rep(48) .. '"... (1000000 bytes)',
      [value .. ("x"):rep(128)] = ("x"):rep(128),
    }
    for bytes, shown in pairs(odd) do
      assert(raw:set("memlock:" .. name, bytes, 60))
      local result = ends(0, "status", name)
      assert.truthy(result.out:find(shown, 1, true), result.out)
      assert.is_nil(result.out:find("[\0-\9\11-\31\127]"), result.out)
      assert.equal("", result.err)
      local object = json(ends(0, "status", "--json", name).out)[1]
      assert.equal(name, object.name)
      if shown:find("bytes)", 1, true) then
        assert.same({ "foreign", #bytes }, { object.state, object.length })
      else
        assert.equal("held", object.state)
      end
    end
    raw:set("memlock:" .. name, "", 60)
    assert.truthy(ends(0, "status", name).out:find("(free)", 1, true))
    raw:delete("memlock:" .. name)
  end)

  it("shows odd names escaped", function()
    local its_name = name .. "\xff\xe2\x80\xae"
    assert.truthy(ends(0, "status", its_name).out:find(name .. "\\xff\\xe2\\x80\\xae", 1, true))
  end)

  it("tells what cannot be asked, and goes on", function()
    for _, address in ipairs { support.refusing(), support.silent().address } do
      local result = support.command(address, { "status", "--timeout", "0.3", name, "other" })
      assert.equal(69, result.code, tostring(result))
      assert.truthy(result.err:find(("memlock: lock %q"):format(name), 1, true))
      assert.truthy(result.err:find('memlock: lock "other"', 1, true))
      assert.is_nil(result.out:find("(free)", 1, true), result.out)
      local list = support.command(address, { "status", "--timeout", "0.3", "--json", name })
      local object = json(list.out)[1]
      assert.equal("unknown", object.state)
      assert.truthy(object.code == "unreachable" or object.code == "timeout", object.code)
    end
  end)

  it("refuses wrong use", function()
    for _, words in ipairs { { "status" }, { "status", "a b" }, { "status", "--yes", "x" },
      { "status", "-y", "x" }, { "list", "x" }, { "watch" }, { "watch", "a", "b" },
      { "watch", "-i", "0", "a" }, { "break" }, { "break", "a", "b" }, { "check", "x" },
      { "check", "--no-such" } } do
      local result = ends(64, table.unpack(words))
      assert.equal("", result.out)
      assert.truthy(result.err:find("memlock help " .. words[1], 1, true), tostring(result))
    end
  end)
end)

describe("list", function()
  it("shows what is held, with this prefix, and nothing else", function()
    local own = support.memcached()
    local client = memlock.client(own.address, { label = "me", ttl = 60 })
    local other = memlock.client(own.address, { prefix = "other:", ttl = 60 })
    local names = { "b", "a", "caf\xc3\xa9", "p%20c", "z/1" }
    local locks = {} -- what is collected is given up
    for i, its_name in ipairs(names) do locks[i] = assert(client:lock(its_name):acquire()) end
    locks.other = assert(other:lock("d"):acquire())
    local given_up = assert(client:lock("e"):acquire())
    given_up:release()
    own:raw():set("memlock:f", "theirs", 60)
    own:raw():set("unrelated", "x", 60)
    local listed = support.command(own, { "list", "--json" })
    assert.equal(0, listed.code, tostring(listed))
    local list = json(listed.out)
    local got = {}
    for i, sight in ipairs(list) do got[i] = sight.name .. " " .. (sight.label or sight.state) end
    assert.same({ "a me", "b me", "caf\xc3\xa9 me", "f foreign", "p%20c me", "z/1 me" }, got)
    local result = support.command(own, { "list", "--prefix", "other:" })
    assert.truthy(result.out:find("\nd +%S"), result.out)
    for _, lock in pairs(locks) do assert(lock:release()) end
  end)

  it("asks all servers, and one with a password", function()
    local place = support.tempdir()
    support.write_file(place .. "/users", "alice:secret\n")
    local servers = {}
    for i = 1, 3 do
      servers[i] = support.memcached { args = { "-Y", place .. "/users" }, unix = i == 3 }.address
    end
    local client = memlock.client(servers, { username = "alice", password = "secret", ttl = 60 })
    local locks = {}
    for i = 1, 20 do locks[i] = assert(client:lock("n" .. i):acquire()) end
    local result = support.command(table.concat(servers, ","), { "list", "--json",
      "--user", "alice", env = { MEMLOCK_PASSWORD = "secret" } })
    assert.equal(0, result.code, tostring(result))
    assert.equal(#locks, #json(result.out))
    local refused = support.command(servers[1], { "list", "--user", "alice",
      env = { MEMLOCK_PASSWORD = "wrong" } })
    assert.equal(69, refused.code)
    assert.truthy(refused.err:find("refused the username", 1, true), refused.err)
    client:close()
  end)

  it("misses none, and manages with a memcached that only knows the old way", function()
    local own = support.memcached()
    local client = memlock.client(own.address, { ttl = 300 })
    local locks = {} -- what is collected is given up
    local function count(address)
      return #json(support.command(address, { "list", "--json" }).out)
    end
    for i = 1, support.count(100) do
      locks[i] = assert(client:lock("n" .. i):acquire())
      assert.equal(i, count(own))
    end
    local old = support.fake(function(connection)
      local raw_client = support.raw(own.address)
      while true do
        local command = connection:read_command()
        if not command then return end
        if command.line == "lru_crawler metadump all" then
          connection:write("key=memlock%3An1 exp=1 la=1\nkey=%23memlock%3An1 exp=1 la=1\nEND\r\n")
        elseif command.name == "lru_crawler" then
          connection:write("BADCLASS invalid class id\r\n")
        elseif command.name == "gets" then
          local value, flags, cas = raw_client:gets(command.key)
          connection:write(("VALUE %s %d %d %d\r\n%s\r\nEND\r\n"):format(command.key, flags, #value,
            cas, value))
        end
      end
    end)
    assert.equal(1, count(old))
    for _, lock in pairs(locks) do assert(lock:release()) end
  end)

  it("says where it cannot be had", function()
    local result = support.command(support.refusing(), { "list" })
    assert.equal(69, result.code)
    assert.truthy(result.err:find("cannot be listed", 1, true), result.err)
    local silent = support.command(support.silent(), { "list", "--timeout", "0.3" })
    assert.equal(69, silent.code)
    assert.is_true(silent.elapsed < 0.3 + support.slack(1))
    local fake = support.fake(function(connection)
      while connection:read_line() do connection:write("CLIENT_ERROR no \27[2J crawler\r\n") end
    end)
    -- One that is busy is not one that only knows the old way, which may miss some.
    local busy = support.fake(function(connection)
      while true do
        local command = connection:read_command()
        if not command then return end
        connection:write(command.line:find("hash", 1, true) and
          "BUSY currently processing crawler request\r\n" or "END\r\n")
      end
    end)
    local later = support.command(busy, { "list", "--timeout", "0.3" })
    assert.equal(69, later.code)
    assert.truthy(later.err:find("is listing for somebody else", 1, true), later.err)
    local odd = support.command(fake, { "list" })
    assert.equal(69, odd.code)
    assert.truthy(odd.err:find("does not list what it has: CLIENT_ERROR no \\x1b[2J", 1, true),
      odd.err)
  end)
end)

describe("watch", function()
  it("prints a line for each holder, until Ctrl-C", function()
    local program = support.start_command(server, { "watch", "-i", "0.02", name })
    local function next_line() return program:read_line():match("^%d+%-%d+%-%d+ [%d:]+  (.*)$") end
    assert.equal(name .. " is free", next_line())
    for _, label in ipairs { "first", "second" } do
      local lock = hold { label = label }
      local line = next_line()
      assert.truthy(line:find(name .. " is held by " .. label .. " since ", 1, true), line)
      assert(lock:refresh())
      support.sleep(0.2)
      lock:release()
      assert.equal(name .. " is free", next_line())
    end
    program:kill("INT")
    local result = program:wait()
    assert.same({ "signal", support.posix.signals.INT, "", "" },
      { result.kind, result.code, result.out, result.err })
  end)

  it("tells programs, and what cannot be asked", function()
    local own = support.memcached()
    local program = support.start_command(own, { "watch", "-i", "0.02", "--json", name })
    local first = json(program:read_line())
    assert.equal("free", first.seen.state)
    assert.is_true(math.abs(os.time() - first.at) < 60)
    own:kill()
    local object = json(program:read_line()).seen
    assert.same({ "unknown", "unreachable" }, { object.state, object.code })
    own:restart()
    assert.equal("free", json(program:read_line()).seen.state)
    program:kill("TERM")
    program:wait()
  end)

  it("ends when nobody reads it any more", function()
    local result = support.run { "sh", "-c", '"$0" watch -i 0.02 "$1" | head -n 1',
      support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
    assert.truthy(result.out:find("is free", 1, true), tostring(result))
  end)
end)

describe("break", function()
  it("removes the holder with --yes, and shows it", function()
    local lock = hold { label = "dead" }
    local result = ends(0, "break", "--yes", name)
    assert.truthy(result.out:find(name .. " is held by dead since ", 1, true), result.out)
    assert.truthy(result.err:find("is free now", 1, true))
    assert.equal("lost", select(3, lock:verify()))
    local again = ends(0, "break", "-y", name)
    assert.equal(name .. " is free\n", again.out)
  end)

  it("removes the holder with the id that status shows, and nobody else", function()
    for _, identity in ipairs { false, "caf\xc3\xa9", "odd\xff\\" } do
      local lock = hold { identity = identity or nil }
      local id = json(ends(0, "status", "--json", name).out)[1].id
      local refused = ends(75, "break", "--id", id .. "x", name)
      assert.truthy(refused.err:find("nothing was removed", 1, true), refused.err)
      assert(lock:verify())
      ends(0, "break", name, "--id", id)
      assert.equal("lost", select(3, lock:verify()))
    end
  end)

  it("does nothing without being told to where it cannot ask", function()
    local lock = hold()
    local result = ends(64, "break", name)
    assert.truthy(result.err:find("--yes, or --id", 1, true), result.err)
    assert(lock:verify())
  end)

  it("removes other programs' values, and exactly what was shown", function()
    raw:set("memlock:" .. name, ("x"):rep(100000), 60)
    ends(0, "break", "--yes", name)
    assert.is_nil(raw:get("memlock:" .. name))
  end)

  it("removes a holder that renews all the time", function()
    local program = support.start_command(server, { "run", "-t", "0.3", name, "--", "sleep",
      "300" })
    support.eventually(function() return raw:get("memlock:" .. name) end)
    ends(0, "break", "--yes", name)
    local result = program:wait()
    assert.equal(73, result.code, tostring(result))
  end)

  it("says what cannot be asked", function()
    local result = support.command(support.refusing(), { "break", "--yes", name })
    assert.equal(69, result.code, tostring(result))
  end)

  describe("at a terminal", function()
    local function ask(answer, between)
      local terminal = support.terminal { support.command_path, "break", name,
        env = { MEMLOCK_SERVERS = server.address } }
      terminal:expect("is held by")
      terminal:expect("Remove it%? %[y/N%] ")
      if between then between() end
      terminal:type(answer)
      local kind, code = terminal:wait()
      assert.equal("exit", kind)
      return code, terminal.shown
    end

    it("asks", function()
      local lock = hold()
      for _, answer in ipairs { "\n", "n\n", "no\n", "x\n", "yikes\n", "\4" } do
        assert.equal(1, (ask(answer)))
        assert(lock:verify())
      end
      assert.equal(0, (ask("y\n")))
      assert.equal("lost", select(3, lock:verify()))
      hold()
      assert.equal(0, (ask("yes\n")))
    end)

    it("removes nothing that it could not show", function()
      local lock = hold()
      local terminal = support.terminal { "sh", "-c", '"$0" break "$1" >/dev/full',
        support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
      terminal:type("y\n")
      assert.same({ "exit", 1 }, { terminal:wait() })
      assert(lock:verify())
    end)

    it("leaves somebody else alone who got it meanwhile", function()
      local lock = hold { label = "first" }
      local second
      local code, shown = ask("y\n", function()
        lock:release()
        second = hold { label = "second" }
      end)
      assert.equal(75, code, shown)
      assert(second:verify())
    end)

    it("leaves somebody's new value alone", function()
      raw:set("memlock:" .. name, "first", 60)
      local code = ask("y\n", function() raw:set("memlock:" .. name, "third", 60) end)
      assert.equal(75, code)
      assert.equal("third", raw:get("memlock:" .. name))
    end)

    it("removes a holder that has renewed meanwhile", function()
      local lock = hold()
      assert.equal(0, (ask("y\n", function() assert(lock:refresh()) end)))
      assert.equal("lost", select(3, lock:verify()))
    end)
  end)
end)

describe("check", function()
  it("finds what makes a server unfit", function()
    local result = ends(1, "check")
    assert.truthy(result.out:find("^" .. server.address:gsub("%p", "%%%0") ..
      ", memcached 1%.%d+.*: not fit\n"), result.out)
    assert.truthy(result.out:find("start it with -M", 1, true), result.out)
    local object = json(ends(1, "check", "--json").out)[1]
    local expected = memlock.client(server.address):check()[1]
    assert.same({ server.address, false, true, expected.version, #expected.findings },
      { object.server, object.fit, object.cas, object.version, #object.findings })
    assert.same(expected.findings[1], object.findings[1])
  end)

  it("tells what cannot be asked, and of the others", function()
    local refusing = support.refusing()
    local result = support.command(server.address .. "," .. refusing, { "check" })
    assert.equal(69, result.code, tostring(result))
    assert.truthy(result.out:find(refusing .. ": not known", 1, true), result.out)
    assert.truthy(result.out:find(server.address .. ", memcached", 1, true), result.out)
    local list = support.command(refusing, { "check", "--json" })
    assert.equal(69, list.code)
    assert.same({ refusing, false, "unreachable" },
      { json(list.out)[1].server, json(list.out)[1].fit, json(list.out)[1].code })
  end)

  it("is 0 only when all is well", function()
    local fit = disguised {}
    local result = support.command(fit, { "check" })
    assert.equal(0, result.code, tostring(result))
    assert.truthy(result.out:find("away: fit\n$"), result.out)
    local object = json(support.command(fit, { "check", "--json" }).out)[1]
    assert.same({ true, {}, 100000 }, { object.fit, object.findings, object.uptime })
    local both = support.command(fit.address .. "," .. server.address, { "check" })
    assert.equal(1, both.code, tostring(both))
  end)

  it("shows what a server says of itself escaped", function()
    local odd = disguised { version = "1.\27[2J" }
    local result = support.command(odd, { "check" })
    assert.is_nil(result.out:find("[\0-\9\11-\31]"), result.out)
    assert.truthy(result.out:find("1.\\x1b[2J", 1, true), result.out)
  end)
end)
