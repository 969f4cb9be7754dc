--- The tools of the other specs, tried on real servers.

local support = require "spec.support"
support.setup()

local posix = support.posix

describe("posix", function()
  it("says how a child ended", function()
    local pid = assert(posix.fork())
    if pid == 0 then posix._exit(7) end
    assert.same({ "exit", 7, pid }, { posix.waitpid(pid) })
  end)

  it("bounds waiting, and reports failures of the environment", function()
    local pid = assert(posix.spawn { "sleep", "60", pdeathsig = "KILL" })
    local took, kind, _, errno = support.elapsed(posix.waitpid, pid, 0.05)
    assert.same({ nil, 110 }, { kind, errno })
    assert.is_true(took >= 0.05 and took < support.slack(0.06))
    assert(posix.kill(pid, "KILL"))
    assert.same({ "signal", posix.signals.KILL, pid }, { posix.waitpid(pid) })
    assert.same({ nil, 10 }, { (posix.waitpid(pid)), select(3, posix.waitpid(pid)) })
  end)

  it("reports a program that cannot be run", function()
    local pid, message, errno = posix.spawn { "/no/such/program" }
    assert.same({ nil, "/no/such/program: No such file or directory", 2 }, { pid, message, errno })
  end)

  it("refuses wrong use", function()
    assert.has_error(function() posix.spawn { "true", stdinn = 0 } end)
    assert.has_error(function() posix.kill(-1, "TERM") end)
    assert.has_error(function() posix.kill(posix.getpid(), "NONE") end)
    assert.has_error(function() posix.sleep(-1) end)
  end)

  it("hands a program nothing but its three descriptors and the environment asked for", function()
    support.server():raw()
    local result = support.run { "sh", "-c", "ls -l /proc/$$/fd | grep -c socket:; echo $ONE $HOME",
      env = { ONE = "1", HOME = false } }
    -- What whoever started the tests left open is not ours: count what only we have.
    local before = support.run { "sh", "-c", "ls -l /proc/$PPID/fd | grep -c socket:" }
    assert.is_true(tonumber(result.out:match("^%d+")) < tonumber(before.out), tostring(result))
    assert.equal("1\n", result.out:match("\n(.*)"))
  end)

  it("counts signals, and sleeps through them", function()
    posix.signal("USR1", "count")
    posix.kill(posix.getpid(), "USR1")
    assert.equal(1, posix.signal_count("USR1"))
    posix.signal("USR1", "default")
    posix.signal("ALRM", "count")
    posix.setitimer(0.002, false)
    local took = support.elapsed(posix.sleep, 0.05)
    posix.setitimer(0)
    assert.is_true(took >= 0.05)
    assert.is_true(posix.signal_count("ALRM") >= 5)
  end)

  it("tells what the process uses", function()
    assert.is_true(posix.rss() > 100000)
    local before = posix.cpu_time()
    local start = posix.now()
    while posix.now() < start + 0.03 do end
    assert.is_true(posix.cpu_time() > before)
    local open = posix.open_fds()
    local r, w = posix.pipe()
    assert.equal(open + 2, posix.open_fds())
    posix.close(r)
    assert.same({ nil, 32 }, { (posix.write(w, "x")), select(3, posix.write(w, "x")) }) -- EPIPE
    posix.close(w)
  end)
end)

describe("helpers", function()
  it("make names that differ, also in a forked child", function()
    local child = support.child(function() return support.name() end)
    local one, two, three = support.name(), support.name("job"), child:join()
    assert.is_true(one ~= two and one ~= three)
    assert.truthy(two:find("^job%-"))
  end)

  it("wait for what happens", function()
    local n = 0
    assert.equal("yes", support.eventually(function()
      n = n + 1
      return n == 3 and "yes"
    end))
    assert.has_error(function() support.eventually(function() end, 0.02) end)
  end)

  it("remove directories and run deferred functions at the end of a scope", function()
    local scope = require "spec.support.scope"
    local done = false
    scope.open()
    local path = support.tempdir()
    assert(io.open(path .. "/file", "w")):close()
    support.defer(function() done = true end)
    support.cleanup()
    assert.is_true(done)
    assert.is_nil(io.open(path .. "/file"))
  end)
end)

for _, unix in ipairs { false, true } do
  describe(unix and "memcached on a unix socket" or "memcached on a port", function()
    local server, raw

    before_each(function()
      server = support.memcached { unix = unix }
      raw = server:raw()
    end)

    it("is what the raw client sees", function()
      assert.is_nil(raw:get("k"))
      assert.is_true(raw:add("k", "one\r\ntwo", 100, 5))
      assert.is_false(raw:add("k", "x"))
      local value, flags, cas = raw:gets("k")
      assert.same({ "one\r\ntwo", 5 }, { value, flags })
      assert.is_true(raw:ttl("k") > 95 and raw:ttl("k") <= 100)
      assert.is_true(raw:cas("k", "three", cas))
      assert.same({ false, "EXISTS" }, { raw:cas("k", "four", cas) })
      assert.same({ false, "NOT_FOUND" }, { raw:cas("none", "four", cas) })
      assert.equal("three", raw:get("k"))
      assert.equal(-1, raw:ttl("k"))
      assert.is_true(raw:touch("k", 50))
      assert.is_true(raw:ttl("k") <= 50)
      assert.is_true(raw:delete("k"))
      assert.is_false(raw:delete("k"))
      assert.is_nil(raw:ttl("k"))
      assert.is_true(raw:set("n", "41"))
      assert.equal(42, raw:incr("n"))
      assert.is_nil(raw:incr("none"))
      assert.equal(tostring(server.pid), raw:stats().pid)
      assert.truthy(raw:version():find("^%d"))
      assert.is_true(raw:flush_all())
      assert.is_nil(raw:get("n"))
      assert.has_error(function() raw:set("n", "x", 0, -1) end)
    end)

    it("restarts empty at the same address", function()
      raw:set("k", "v")
      local _, _, cas = raw:gets("k")
      local address = server.address
      server:restart()
      assert.equal(address, server.address)
      assert.has_error(function() raw:get("k") end)
      local again = server:raw()
      assert.is_nil(again:get("k"))
      again:set("k", "v")
      assert.equal(cas, (select(3, again:gets("k"))))
    end)

    it("can be stopped, continued and killed", function()
      server:stop_process()
      local impatient = support.raw(server.address, 0.05)
      assert.has_error(function() impatient:version() end)
      server:continue_process()
      assert.truthy(raw:version())
      server:kill()
      assert.has_error(function() server:raw() end)
    end)
  end)
end

it("memcached takes arguments, and says when it does not start", function()
  local raw = support.memcached({ args = { "-C" } }):raw()
  raw:set("k", "v")
  assert.equal(0, (select(3, raw:gets("k"))))
  assert.has_error(function() support.memcached { args = { "--no-such-thing" } } end)
end)

it("memcached of the file is one and the same", function()
  assert.equal(support.server(), support.server())
  assert.truthy(support.server():raw():version())
end)

describe("relay", function()
  local relay, raw

  before_each(function()
    relay = support.relay(support.server())
    raw = support.raw(relay.address)
  end)

  local function closes()
    return not pcall(raw.version, raw)
  end

  it("counts connections and round trips", function()
    local reply = "VERSION " .. raw:version() .. "\r\n"
    raw:send("set a 0 0 1 noreply\r\n1\r\nget a\r\n")
    for _ = 1, 3 do raw:line() end
    assert.same({ connections = 1, open = 1, asked = 2, answered = 2, round_trips = 2,
      up = #"version\r\nset a 0 0 1 noreply\r\n1\r\nget a\r\n",
      down = #reply + #"VALUE a 0 1\r\n1\r\nEND\r\n" }, relay:stats())
    relay:reset()
    assert.equal(0, relay:round_trips())
    raw:close()
    support.eventually(function() return relay:stats().open == 0 end)
  end)

  it("works on unix sockets, on both sides", function()
    local server = support.memcached { unix = true }
    local both = support.relay(server, { unix = true })
    assert.equal("/", both.address:sub(1, 1))
    assert.truthy(support.raw(both.address):version())
    both:refuse()
    assert.has_error(function() support.raw(both.address) end)
    both:accept()
    assert.truthy(support.raw(both.address):version())
  end)

  it("delays each way, and exactly", function()
    raw:version()
    relay:delay("up", 0.020)
    relay:delay("down", 0.005)
    local best = math.huge
    for _ = 1, 10 do
      local took = support.elapsed(raw.version, raw)
      assert.is_true(took >= 0.025)
      best = math.min(best, took)
    end
    assert.is_true(best < 0.025 + support.slack(0.001), best)
    relay:plain()
    assert.is_true(support.elapsed(raw.version, raw) < support.slack(0.005))
  end)

  it("delays without a limit on how much is on its way", function()
    relay:delay("both", 0.05)
    local took = support.elapsed(function()
      for _ = 1, 50 do
        raw:send("version\r\n")
        support.sleep(0.001)
      end
      for _ = 1, 50 do raw:line() end
    end)
    assert.is_true(took < support.slack(0.2), took)
  end)

  it("pauses, and delivers later, also what was sent before a hang-up", function()
    local key = support.name()
    relay:pause("up")
    raw:send(("set %s 0 0 1\r\n1\r\n"):format(key))
    raw:close()
    assert.is_true(relay:wait_held())
    assert.is_nil(support.server():raw():get(key))
    relay:resume("up")
    support.eventually(function() return support.server():raw():get(key) == "1" end)
  end)

  it("drops bytes", function()
    raw = support.raw(relay.address, 0.05)
    relay:drop("down")
    assert.is_true(closes())
    relay:undrop("down")
    assert.truthy(raw:version())
    relay:drop("up")
    assert.is_true(closes())
    assert.equal(3, relay:stats().asked)
    assert.equal(2, relay:stats().answered)
  end)

  it("cuts, by end or reset", function()
    for _, how in ipairs { false, "rst" } do
      raw = support.raw(relay.address)
      raw:version()
      relay:cut(how or nil)
      assert.is_true(closes())
    end
    assert.truthy(support.raw(relay.address):version())
  end)

  it("refuses, and comes back at the same port", function()
    raw:version()
    relay:refuse()
    assert.has_error(function() support.raw(relay.address) end)
    assert.truthy(raw:version())
    relay:accept()
    assert.truthy(support.raw(relay.address):version())
  end)

  it("is a black hole", function()
    raw = support.raw(relay.address, 0.05)
    raw:version()
    relay:blackhole()
    assert.is_true(closes())
    raw = support.raw(relay.address, 0.05)
    assert.is_true(closes())
    relay:forward()
    assert.truthy(support.raw(relay.address):version())
  end)

  it("holds the request after the n-th reply", function()
    local other = support.raw(relay.address)
    other:version()
    relay:hold_after_reply(2)
    raw:version()
    assert.is_false(relay:wait_held(0))
    raw:version()
    raw:send("version\r\n")
    assert.is_true(relay:wait_held())
    assert.truthy(other:version()) -- only the one connection is held
    relay:resume("up")
    assert.truthy(raw:line())
    assert.truthy(raw:version())
  end)

  it("holds the request with a text in it", function()
    local key = support.name()
    relay:hold_up("cas " .. key)
    raw:set(key, "1")
    local _, _, cas = raw:gets(key)
    raw:send(("cas %s 0 0 1 %d\r\n2\r\n"):format(key, cas))
    assert.is_true(relay:wait_held())
    local truth = support.server():raw()
    assert.equal("1", truth:get(key))
    truth:set(key, "3")
    relay:resume("up")
    assert.equal("EXISTS", raw:line())
    assert.equal("3", truth:get(key))
  end)

  it("finds a text that arrives in pieces", function()
    relay:hold_up("version\r\n")
    raw:send("ver")
    support.eventually(function() return relay:stats().up == 3 end)
    raw:send("sion\r\n")
    assert.is_true(relay:wait_held())
    relay:resume("up")
    assert.truthy(raw:line())
  end)

  it("loses replies, and lets the request do its work", function()
    local key = support.name()
    relay:drop_reply()
    assert.has_error(function() raw:set(key, "1") end)
    local truth = support.server():raw()
    assert.equal("1", truth:get(key))
    raw = support.raw(relay.address)
    relay:drop_reply("incr " .. key)
    assert.equal("1", raw:get(key))
    assert.has_error(function() raw:incr(key) end)
    assert.equal("2", truth:get(key))
    assert.equal("2", support.raw(relay.address):get(key))
  end)

  it("cuts replies short, and puts texts before them", function()
    raw:version()
    relay:inject_reply("SERVER_ERROR x\r\n")
    assert.equal("SERVER_ERROR x", raw:command("version"))
    assert.truthy(raw:line():find("^VERSION"))
    relay:cut_reply(4)
    raw:send("version\r\n")
    local reply, _, part = raw.socket:receive("*a")
    assert.equal("VERS", reply or part)
  end)

  it("forgets triggers", function()
    relay:drop_reply()
    relay:hold_up("version")
    relay:disarm()
    assert.truthy(raw:version())
  end)

  it("dribbles", function()
    raw:version()
    relay:dribble("down", 0.002)
    local took, version = support.elapsed(raw.version, raw)
    local bytes = #("VERSION " .. version .. "\r\n")
    assert.is_true(took >= 0.002 * (bytes - 1) and took < support.slack(0.002 * bytes))
    relay:dribble("down", 0)
    assert.is_true(support.elapsed(raw.version, raw) < support.slack(0.01))
  end)

  it("records what was sent, byte for byte", function()
    raw:version()
    relay:record()
    local data = "\0\1\\r\\x41\127\255 end"
    local start = support.now()
    raw:set("k", data)
    raw:version()
    relay:record(false)
    raw:version()
    local sent = ("set k 0 0 %d\r\n%s\r\nversion\r\n"):format(#data, data)
    assert.equal(sent, relay:sent())
    local log = relay:log()
    assert.is_true(log[1].at >= start and log[#log].at <= support.now())
    assert.equal(relay:sent(log[1].connection), sent)
    relay:reset()
    assert.equal("", relay:sent())
  end)

  it("ends when the process that drives it does", function()
    local place = support.child(function(channel)
      local inner = support.relay(support.server())
      channel:send(inner.pid, inner.address)
      posix._exit(0)
    end)
    local pid, address = place:receive()
    support.eventually(function() return not pcall(support.raw, address) end)
    support.eventually(function() return not support.running(pid) end)
  end)

  it("says what it does not understand", function()
    assert.has_error(function() relay:command("nonsense") end)
    assert.has_error(function() relay:delay("sideways", 1) end)
    assert.truthy(raw:version())
  end)
end)

describe("child", function()
  it("talks, both ways, and returns", function()
    local child = support.child(function(channel, a, b)
      channel:send(a + b, nil, { x = { 1, 2.5, "\0\r\n\"" }, [false] = math.mininteger })
      return channel:receive() .. "!", math.huge, nil
    end, 1, 2)
    assert.same({ 3, nil, { x = { 1, 2.5, "\0\r\n\"" }, [false] = math.mininteger } },
      { child:receive() })
    child:send("hello")
    assert.same({ n = 3, "hello!", math.huge }, table.pack(child:join()))
    assert.same({ "exit", 0 }, { child:wait() })
  end)

  it("brings errors back, with where they were", function()
    local child = support.child(function() error("disk full") end)
    local ok, message = pcall(child.join, child)
    assert.is_false(ok)
    assert.truthy(message:find("disk full", 1, true))
    assert.truthy(message:find("support_spec.lua", 1, true))
    child = support.child(function() assert.equal(1, 2) end)
    ok, message = pcall(child.receive, child)
    assert.is_false(ok)
    assert.truthy(message:find("Expected objects to be equal", 1, true))
  end)

  it("fails its test when nobody asks for its error", function()
    local scope = require "spec.support.scope"
    for _, fn in ipairs {
      function() error("disk full") end,
      function() posix.kill(posix.getpid(), "SEGV") end,
    } do
      scope.open()
      local child = support.child(fn)
      support.eventually(function() return not child:alive() end)
      assert.has_error(support.cleanup)
    end
  end)

  it("ends with its scope, and says how it ended", function()
    local child = support.child(function() support.sleep(60) end)
    assert.is_true(child:alive())
    child:kill("TERM")
    assert.same({ "signal", posix.signals.TERM }, { child:wait() })
    support.child(function() support.sleep(60) end)
  end)

  it("owns what it starts, and nothing of ours", function()
    local shared = support.server()
    local raw = shared:raw()
    local child = support.child(function()
      assert(not pcall(raw.version, raw))
      local server = support.memcached()
      assert(server:raw():version())
      assert(support.server() == shared and shared:raw():version())
      return server.address
    end)
    local address = child:join()
    assert.has_error(function() support.raw(address) end)
    assert.truthy(raw:version())
  end)
end)

describe("programs", function()
  it("run to their end", function()
    local code = "io.write(arg[1], io.read('a')) io.stderr:write('e') os.exit(3)"
    local result = support.run_lua { code = code, stdin = "in", "x" }
    assert.same({ "exit", 3, "xin", "e" }, { result.kind, result.code, result.out, result.err })
    assert.is_true(result.elapsed > 0 and result.elapsed < 5)
  end)

  it("find the modules of the build", function()
    local result = support.run_lua "print(require('memlock_posix').getppid())"
    assert.equal(posix.getpid() .. "\n", result.out, tostring(result))
  end)

  it("are killed when they take too long, with much to say", function()
    local code = "io.write(('x'):rep(300000)) io.flush() while true do end"
    local result = support.run_lua { code = code, timeout = 0.2 }
    assert.same({ "timeout", 9, 300000 }, { result.kind, result.code, #result.out })
  end)

  it("can be talked to", function()
    local process = support.start_lua "for l in io.lines() do print(l:upper()) io.flush() end"
    process:write("a\nb\n")
    assert.equal("A", process:read_line())
    assert.equal("B", process:read_line())
    assert.is_true(process:alive())
    process:close_stdin()
    assert.same({ "exit", 0 }, { process:wait().kind, process:wait().code })
  end)

  it("end with their whole group", function()
    local scope = require "spec.support.scope"
    scope.open()
    local process = support.start { "sh", "-c", "sleep 60 & echo $!; wait", newgroup = true }
    local grandchild = tonumber(process:read_line())
    support.cleanup()
    support.eventually(function() return not support.running(grandchild) end)
  end)

  it("report that they cannot be started", function()
    assert.has_error(function() support.start { "/no/such/program" } end)
  end)
end)

describe("servers that misbehave", function()
  it("answer as a function says", function()
    local fake = support.fake(function(connection, number)
      local command = connection:read_command()
      connection:send(number, command.name, command.key, command.data)
      connection:write("NONSENSE\r\n")
      connection:read_line()
      connection:reset()
    end)
    local raw = support.raw(fake.address)
    assert.equal("NONSENSE", raw:command("set k 0 0 2", "hi"))
    assert.same({ 1, "set", "k", "hi" }, { fake:receive() })
    local other = support.raw(fake.address)
    assert.equal("NONSENSE", other:command("get k"))
    assert.same({ 2, "get", "k" }, { fake:receive() })
    assert.has_error(function() raw:command("again") end)
  end)

  it("bring the errors of the function back", function()
    local fake = support.fake(function() error("disk full") end)
    support.raw(fake.address)
    local ok, message = pcall(fake.receive, fake)
    assert.is_false(ok)
    assert.truthy(message:find("disk full", 1, true))
  end)

  it("never answer, or hang while connecting, or refuse", function()
    local silent = support.raw(support.silent().address, 0.05)
    assert.has_error(function() silent:version() end)
    local took, ok, message = support.elapsed(pcall, support.raw, support.full().address, 0.1)
    assert.is_false(ok)
    assert.truthy(message:find("timeout", 1, true))
    assert.is_true(took >= 0.09 and took < support.slack(0.12), took)
    took, ok, message = support.elapsed(pcall, support.raw, support.refusing())
    assert.is_false(ok)
    assert.truthy(message:find("refused", 1, true))
    assert.is_true(took < support.slack(0.05))
  end)
end)

it("setup finds what a spec leaves behind", function()
  local path = support.tempdir() .. "/leaky_spec.lua"
  local file = assert(io.open(path, "w"))
  file:write [[
    local support = require "spec.support"
    support.setup()
    it("leaks", function()
      support.posix.pipe()
      support.posix.spawn { "sleep", "60" }
    end)
  ]]
  file:close()
  local result = support.run_lua { code = "require 'busted.runner' { standalone = false }",
    "--output=plainTerminal", path }
  assert.equal(1, result.code, tostring(result))
  assert.truthy(result.out:find("left behind", 1, true), tostring(result))
  assert.truthy(result.out:find("sleep 60", 1, true), tostring(result))
  assert.truthy(result.out:find("pipe:", 1, true), tostring(result))
end)
