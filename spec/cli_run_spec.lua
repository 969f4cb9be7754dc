--- memlock run: the command gets what it was given and nothing else, and the exit code is its own.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local memlock = require "memlock"

local server = support.server()
local raw = server:raw()

local name

before_each(function() name = support.name() end)

local function run(options)
  return support.command(server, options)
end

-- The exit code is this one; returns the result.
local function ends(code, options)
  local result = run(options)
  assert.same({ "exit", code }, { result.kind, result.code }, tostring(result))
  return result
end

local function is_free(which)
  return (raw:get("memlock:" .. (which or name)) or "") == ""
end

-- What /proc/PID/status tells of ignored signals, without the two that the C library has for
-- itself: it can reset them, and they are not ours to inherit.
local function without_internal(text)
  return (text:gsub("(SigIgn:%s*)(%x+)", function(label, mask)
    return ("%s%016x"):format(label, tonumber(mask, 16) & ~(3 << 31))
  end))
end

-- Holds the lock until the end of the test.
local function hold(options)
  local client = memlock.client(server.address, options)
  local lock = assert(client:lock(name):acquire())
  support.defer(function()
    lock:release() -- and it is not collected before
    client:close()
  end)
  return lock
end

describe("the command", function()
  it("gets its arguments as they are, with no shell in between", function()
    local result = ends(0, { "run", name, "--", "printf", "%s|", "a b", "", "*", "$HOME", "-v",
      "--ttl", "5", "--" })
    assert.same({ "a b||*|$HOME|-v|--ttl|5|--|", "" }, { result.out, result.err })
  end)

  it("gets standard input, and its output comes out, whole", function()
    local lines = {}
    for i = 1, 100000 do lines[i] = i .. "\n" end
    local path = support.tempdir() .. "/numbers"
    support.write_file(path, table.concat(lines))
    local without = support.run { "sh", "-c", "sha256sum <" .. path }
    local with = support.run { "sh", "-c", ('"$0" run "$1" -- sha256sum <%s'):format(path),
      support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
    assert.same({ 0, without.out }, { with.code, with.out }, tostring(with))
    local out = support.run { "sh", "-c", ('"$0" run "$1" -- cat %s | sha256sum'):format(path),
      support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
    assert.equal(without.out, out.out)
  end)

  it("reads a pipe to its end", function()
    local result = support.run { "sh", "-c",
      'seq 100000 | "$0" run "$1" -- sha256sum; seq 100000 | sha256sum', support.command_path, name,
      env = { MEMLOCK_SERVERS = server.address } }
    local first, second = result.out:match("^(%x+) +%-\n(%x+) +%-\n$")
    assert.is_string(first, tostring(result))
    assert.equal(second, first)
  end)

  it("knows its lock and its token, which grows", function()
    local script = 'echo "$MEMLOCK_NAME $MEMLOCK_TOKEN"'
    local last = 0
    for _ = 1, 3 do
      local result = ends(0, { "run", name, "--", "sh", "-c", script })
      local its_name, token = result.out:match("^(%S+) (%d+)\n$")
      assert.equal(name, its_name)
      assert.is_true(tonumber(token) > last)
      last = tonumber(token)
    end
    assert.is_true(assert(memlock.client(server.address):lock(name):acquire()):token() > last)
  end)

  it("has the environment, the directory, the mask and the descriptors that we have", function()
    local place = support.tempdir()
    local script = [[
      pwd; echo "$MARK"; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status
      for fd in /proc/self/fd/*; do readlink $fd | sed 's/[0-9]*//g'; done
      echo hidden >&7]]
    local function told(prefix)
      local path = place .. "/seventh"
      local command = { "sh", "-c", ('exec 7>%s; %s sh -c "$0"'):format(path, prefix), script,
        cwd = place, env = { MARK = "a b", MEMLOCK_SERVERS = server.address } }
      local result = support.run(command)
      assert.equal(0, result.code, tostring(result))
      assert.equal("hidden\n", support.read_file(path))
      return without_internal(result.out)
    end
    local without = told("")
    assert.equal(without, told(("%s run %s --"):format(support.command_path, name)))
  end)

  it("finds a standard descriptor closed that we found closed, and none of ours there", function()
    for closed = 0, 2 do
      local place = support.tempdir()
      local result = support.run { "sh", "-c",
        ([[exec %d>&-; "$0" run -v "$1" -- sh -c '[ ! -e /proc/$$/fd/%d ] || exit 6; exit 5'
        echo $? >"$2/code"]]):format(closed, closed), support.command_path, name, place,
        env = { MEMLOCK_SERVERS = server.address } }
      assert.equal("5\n", support.read_file(place .. "/code"), tostring(result))
      assert.is_nil(result.out:find("memlock", 1, true))
    end
  end)

  it("keeps ignoring what we were started to ignore", function()
    local function mask(prefix)
      local result = support.run { "sh", "-c",
        ('trap "" HUP USR1; exec %s grep SigIgn /proc/self/status'):format(prefix),
        env = { MEMLOCK_SERVERS = server.address } }
      return tonumber(without_internal(result.out):match("SigIgn:%s*(%x+)"), 16)
    end
    local posix = support.posix
    local without = mask("")
    for _, signal in ipairs { "HUP", "USR1" } do
      assert.is_true(without & 1 << posix.signals[signal] - 1 ~= 0, signal)
    end
    assert.equal(without, mask(("%s run %s --"):format(support.command_path, name)))
  end)

  it("is in a process group of its own", function()
    local result = ends(0, { "run", name, "--", "sh", "-c", "ps -o pgid= -p $$; echo $$" })
    local group, pid = result.out:match("(%d+)%s+(%d+)")
    assert.equal(pid, group)
  end)

  it("is the holder while it runs, and the lock is free afterwards", function()
    local program = support.start_command(server, { "run", "--ttl", "20", "--label", "the job",
      name, "--", "sh", "-c", "echo ready; read line" })
    assert.equal("ready", program:read_line())
    local holder = memlock.client(server.address):holder(name)
    assert.same({ "the job", 20 }, { holder.label, holder.ttl })
    program:close_stdin()
    assert.equal(1, program:wait().code)
    assert.is_true(is_free())
  end)

  it("is renewed, and stays the same holder", function()
    local program = support.start_command(server, { "run", "-t", "3", name, "--", "sh", "-c",
      "echo ready; read line; exit 2" })
    assert.equal("ready", program:read_line())
    local client = memlock.client(server.address)
    local first = client:holder(name)
    local start, last = support.now(), first
    for _ = 1, 4 do
      last = support.eventually(function()
        local holder = client:holder(name)
        return holder.value ~= last.value and holder
      end)
      assert.same({ first.id, first.since }, { last.id, last.since })
    end
    assert.is_true(support.now() - start > 3)
    program:write("\n")
    local result = program:wait()
    assert.same({ 2, "" }, { result.code, result.err })
  end)
end)

describe("a grandchild that is left behind", function()
  for what, word in pairs { ["in the group"] = "", ["in a session of its own"] = "setsid" } do
    it(what .. " keeps neither memlock nor the lock", function()
      local result = ends(3, { "run", name, "--", "sh", "-c",
        word .. " sleep 300 >/dev/null 2>&1 & echo $!; exit 3" })
      local pid = math.tointeger(tonumber(result.out))
      support.defer(function() support.posix.kill(pid, "KILL") end)
      assert.is_true(result.elapsed < support.slack(2), tostring(result))
      assert.is_true(support.running(pid))
      assert.is_true(is_free())
    end)
  end
end)

describe("the exit code", function()
  it("is the command's own", function()
    for _, code in ipairs { 0, 1, 2, 64, 73, 75, 126, 127, 128, 200, 255 } do
      ends(code, { "run", name, "--", "sh", "-c", "exit " .. code })
    end
    assert.is_true(is_free())
  end)

  it("is 128 and the number of the signal that ended it", function()
    for _, signal in ipairs { "TERM", "KILL", "SEGV", "INT", "ALRM" } do
      ends(128 + support.posix.signals[signal],
        { "run", name, "--", "sh", "-c", ("ulimit -c 0; kill -%s $$"):format(signal) })
    end
    assert.is_true(is_free())
  end)

  it("is 127 for a command that is not there, 126 for one that cannot be run", function()
    local place = support.tempdir()
    support.write_file(place .. "/plain", "")
    for what, code in pairs {
      ["/nonexistent/command"] = 127, ["no-such-command-anywhere"] = 127,
      [place] = 126, [place .. "/plain"] = 126,
    } do
      local result = ends(code, { "run", name, "--", what })
      assert.truthy(result.err:find(what .. ": ", 1, true), tostring(result))
      assert.is_true(is_free())
    end
  end)

  it("is 75 for a lock that somebody has, at once, and nothing runs", function()
    hold { label = "somebody" }
    local best, none = math.huge, math.huge -- what it takes, and what it takes to start at all
    for _ = 1, 5 do
      none = math.min(none, ends(0, { "--version" }).elapsed)
      local result = ends(75, { "run", name, "--", "echo", "ran" })
      assert.equal("", result.out)
      assert.truthy(result.err:find(("memlock: lock %q: somebody"):format(name), 1, true) == 1,
        result.err)
      best = math.min(best, result.elapsed)
    end
    assert.is_true(best < support.slack(0.2) + none, best)
    assert.equal("", ends(75, { "run", "--quiet", name, "--", "true" }).err)
    ends(75, { "run", "-n", name, "--", "true" })
    ends(75, { "run", "-w", "5", "--nonblock", name, "--", "true" })
  end)

  it("is the configured one for a lock that somebody has", function()
    hold()
    for _, code in ipairs { 0, 1, 255 } do
      ends(code, { "run", "-E", code, name, "--", "true" })
      ends(code, { "run", "--conflict-exit-code=" .. code, name, "--", "true" })
    end
  end)

  it("is 69 for a server that cannot be asked, and nothing runs", function()
    local silent = support.silent()
    local unfit = support.memcached { args = { "-C" } }
    for what, address in pairs { refusing = support.refusing(), silent = silent.address,
      ["without CAS"] = unfit.address } do
      local result = support.command(address, { "run", "-q", "--timeout", "0.3", name, "--", "echo",
        "ran" }) -- quiet is about locks, not about errors
      assert.same({ "exit", 69, "" }, { result.kind, result.code, result.out },
        what .. ": " .. tostring(result))
      assert.truthy(result.err:find(("memlock: lock %q: "):format(name), 1, true) == 1,
        result.err)
    end
  end)

  it("is 64 for wrong use, which is said, and nothing runs", function()
    local job = { "--", "echo", "ran" }
    local function wrong(said, ...)
      local result = ends(64, { ... })
      assert.equal("", result.out, tostring(result))
      assert.truthy(result.err:find(said, 1, true), tostring(result))
      assert.truthy(result.err:find("try 'memlock ", 1, true), tostring(result))
    end
    local function wrong_option(said, ...)
      local words = table.pack("run", ...)
      words[#words + 1] = name
      table.move(job, 1, #job, #words + 1, words)
      wrong(said, table.unpack(words))
    end
    for _, value in ipairs { "256", "600", "-1", "abc", "", "1x", "0x10" } do
      wrong_option("conflict-exit-code", "-E", value)
    end
    for _, option in ipairs { "ttl", "wait", "grace", "loss-grace", "at-least", "max-hold",
      "timeout" } do
      wrong_option("--" .. option, "--" .. option, "-1")
    end
    for _, value in ipairs { "abc", "", "1x", "nan", "1e300", "5 s", " 5", "0x10" } do
      wrong_option("--wait", "--wait", value)
    end
    wrong_option("--ttl", "-t", "0")
    wrong_option("--ttl", "-t", "29d")
    wrong_option("--ttl", "-t", "inf")
    wrong_option("--at-least", "--at-least", "29d")
    wrong_option("--timeout", "--timeout", "0")
    wrong_option("--timeout", "--timeout", "1e-10")
    wrong_option("--label", "--label", "a\nb")
    wrong_option("--identity", "--identity", "a b")
    wrong_option("prefix", "--prefix", "#x")
    wrong_option("'--no-such-option'", "--no-such-option")
    wrong_option("99999", "--servers", "host:99999")
    wrong_option("MEMLOCK_PASSWORD", "--user", "alice")
    wrong_option("/dev/null: its first line", "--user", "alice", "--password-file", "/dev/null")
    wrong_option("--user", "--password-file", "/dev/null")
    wrong_option("/nonexistent", "--user", "alice", "--password-file", "/nonexistent")
    wrong("name", "run")
    wrong("name", "run", "--")
    wrong("command", "run", name)
    wrong("command", "run", name, "--")
    wrong("0x20", "run", "a b", "--", "echo", "ran")
    wrong("0x0d", "run", "x\r\nset hacked 0 0 1\r\n1", "--", "echo", "ran")
    wrong("empty", "run", "", "--", "echo", "ran")
    wrong("242", "run", ("x"):rep(242), "--", "echo", "ran")
    wrong("'fly'", "fly")
    wrong("'-t'", "-t", "5", "run", name, "--", "echo", "ran")
    assert.is_nil(raw:get("hacked"))
  end)
end)

describe("arguments", function()
  it("may have the options before and behind the name, and none of the command's", function()
    for _, words in ipairs {
      { "--ttl", "7", name, "--", "echo", "--ttl", "9" },
      { name, "--ttl", "7", "--", "echo", "--ttl", "9" },
      { "-t7", name, "echo", "--ttl", "9" },
      { "-t", "7", "--", name, "echo", "--ttl", "9" },
      { "-t", "7", "--", name, "--", "echo", "--ttl", "9" },
    } do
      table.insert(words, 1, "run")
      assert.equal("--ttl 9\n", ends(0, words).out)
    end
    assert.equal("--\n", ends(0, { "run", name, "--", "echo", "--" }).out)
  end)

  it("have times with units", function()
    for text, ttl in pairs { ["90"] = 90, ["0.5m"] = 30, ["2m"] = 120, ["1h"] = 3600,
      ["1d"] = 86400, ["2.5s"] = 2.5 } do
      local program = support.start_command(server, { "run", "-t", text, name, "--", "sh", "-c",
        "echo ready; read line" })
      program:read_line()
      assert.equal(ttl, memlock.client(server.address):holder(name).ttl)
      program:close_stdin()
      program:wait()
    end
  end)

  it("name the servers: an option before MEMLOCK_SERVERS", function()
    local unix = support.memcached { unix = true }
    for _, option in ipairs { "-s", "--servers" } do
      local result = support.command(support.refusing(), { "run", option, unix.address, name,
        "--", "true" })
      assert.equal(0, result.code, tostring(result))
    end
  end)

  it("give names of any bytes that a lock may have", function()
    for _, odd in ipairs { "a:b/c", "'$(date)'", "caf\xc3\xa9", "\xff\xfe", ("x"):rep(241) } do
      local its_name = odd .. (#odd < 200 and name or "")
      local result = ends(0, { "run", its_name, "--", "sh", "-c", 'printf %s "$MEMLOCK_NAME"' })
      assert.equal(its_name, result.out)
    end
    ends(0, { "run", "--", "-" .. name, "true" })
  end)

  it("set the prefix and the identity", function()
    local program = support.start_command(server, { "run", "--prefix", "jobs.", "--identity",
      "web-1", name, "--", "sh", "-c", "echo ready; read line" })
    program:read_line()
    local value = raw:get("jobs." .. name)
    assert.truthy(value:find("^memlock/1 web%-1 "), value)
    -- Who has the identity takes the lock over.
    local other = ends(0, { "run", "--prefix=jobs.", "--identity=web-1", name, "--", "echo", "hi" })
    assert.equal("hi\n", other.out)
    program:close_stdin()
    program:wait()
  end)

  it("reach a server that wants a password, which no one can see", function()
    local place = support.tempdir()
    for file, text in pairs { users = "alice:secret-word\n", password = "secret-word\n",
      wrong = "secret\n" } do
      support.write_file(place .. "/" .. file, text)
    end
    local guarded = support.memcached { args = { "-Y", place .. "/users" } }
    local function code(options)
      for _, word in ipairs { name, "--", "true" } do options[#options + 1] = word end
      local result = support.command(guarded, options)
      assert.is_nil((result.out .. result.err):find("secret", 1, true), tostring(result))
      return result.code
    end
    assert.equal(69, code { "run" })
    assert.equal(0, code { "run", "--user", "alice", "--password-file", place .. "/password" })
    assert.equal(0, code { "run", "--user", "alice", env = { MEMLOCK_PASSWORD = "secret-word" } })
    assert.equal(69, code { "run", "--user", "alice", "--password-file", place .. "/wrong" })
    assert.equal(69, code { "run", "--user", "bob", env = { MEMLOCK_PASSWORD = "secret-word" } })
  end)
end)

describe("waiting", function()
  it("ends when the first one ends, and the command starts then", function()
    local first = support.start_command(server, { "run", name, "--", "sh", "-c",
      "echo ready; read line; date +%s.%N" })
    assert.equal("ready", first:read_line())
    local second = support.start_command(server, { "run", "-w", "10", name, "--",
      "date", "+%s.%N" })
    support.sleep(1)
    assert.is_true(second:alive())
    first:write("\n")
    local ended = tonumber(first:read_line())
    local result = second:wait()
    assert.equal(0, result.code, tostring(result))
    local started = tonumber(result.out)
    assert.is_true(started >= ended)
    assert.is_true(started - ended < support.slack(0.6), started - ended)
    first:wait()
  end)

  it("ends with the wait, as busy", function()
    hold()
    local result = ends(75, { "run", "--wait", "0.5", name, "--", "true" })
    assert.is_true(result.elapsed >= 0.5 and result.elapsed < 0.5 + support.slack(0.5),
      result.elapsed)
  end)

  it("is for ever with inf, also for a server that is not there yet", function()
    local late = support.memcached()
    late:kill()
    local program = support.start_command(late, { "run", "-w", "inf", name, "--", "echo", "ran" })
    support.eventually(function()
      program:pump(0.01)
      return program.text.err:find("trying again", 1, true)
    end)
    late:restart()
    local result = program:wait(20)
    assert.same({ 0, "ran\n" }, { result.code, result.out }, tostring(result))
  end)

  it("ends by a signal, and leaves nothing behind", function()
    local lock = hold()
    for _, signal in ipairs { "INT", "TERM", "HUP", "QUIT" } do
      local program = support.start_command(server, { "run", "-w", "inf", name, "--", "echo",
        "ran", cwd = support.tempdir() }) -- QUIT may leave a core file
      support.sleep(0.3)
      program:kill(signal)
      local result = program:wait()
      assert.same({ "signal", support.posix.signals[signal], "" },
        { result.kind, result.code, result.out }, tostring(result))
    end
    assert(lock:verify())
    lock:release()
    support.sleep(0.1)
    assert.is_true(is_free())
  end)
end)

describe("--at-least", function()
  it("keeps the lock when the command ends sooner", function()
    local start = support.now()
    local program = support.start_command(server, { "run", "--at-least", "2", name, "--", "sh",
      "-c", "echo ran; exit 3" })
    assert.equal("ran", program:read_line())
    while support.now() - start < 1.5 do
      ends(75, { "run", name, "--", "true" })
      support.sleep(0.1)
    end
    local result = program:wait()
    assert.equal(3, result.code)
    assert.is_true(result.elapsed >= 2, result.elapsed)
    assert.is_true(is_free())
  end)

  it("costs nothing when it takes longer", function()
    local result = ends(0, { "run", "--at-least", "0.1", name, "--", "sleep", "0.5" })
    assert.is_true(result.elapsed < 0.5 + support.slack(0.5))
    assert.is_true(is_free())
  end)

  local function is_left_to_run_out()
    local left = raw:ttl("memlock:" .. name)
    assert.is_true(left >= 20 and left <= 33, left)
  end

  it("leaves the record for the rest of the time when we are asked to end", function()
    local program = support.start_command(server, { "run", "-v", "--at-least", "30", name, "--",
      "true" })
    support.eventually(function()
      program:pump(0.01)
      return program.text.err:find("is kept for a while", 1, true)
    end)
    program:kill("TERM")
    local result = program:wait()
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    is_left_to_run_out()
  end)

  it("also when we were asked while the command ran, or it was ended by a Ctrl-C", function()
    local program = support.start_command(server, { "run", "--at-least", "30", name, "--", "sh",
      "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done" })
    program:read_line()
    program:kill("TERM")
    assert.equal(4, program:wait().code)
    is_left_to_run_out()
    name = support.name()
    local interrupted = 128 + support.posix.signals.INT
    ends(interrupted, { "run", "--at-least", "30", name, "--", "sh", "-c", "kill -INT $$" })
    is_left_to_run_out()
  end)

  it("keeps the lock of a command that --max-hold ended, too", function()
    local program = support.start_command(server, { "run", "-v", "--at-least", "3", "--max-hold",
      "0.3", name, "--", "sleep", "300" })
    support.eventually(function()
      program:pump(0.01)
      return program.text.err:find("is kept for a while", 1, true)
    end)
    assert.is_false(is_free())
    local result = program:wait()
    assert.equal(124, result.code, tostring(result))
    assert.is_true(result.elapsed >= 3, result.elapsed)
    assert.is_true(is_free())
  end)
end)

describe("--max-hold", function()
  it("ends a command that takes longer: TERM, and KILL after the grace", function()
    local result = ends(124, { "run", "--max-hold", "0.5", name, "--", "sh", "-c",
      'trap "echo term; exit 0" TERM; while :; do sleep 0.1; done' })
    assert.equal("term\n", result.out)
    assert.truthy(result.err:find("as long as it may", 1, true), result.err)
    assert.is_true(is_free())
    local stubborn = ends(124, { "run", "--max-hold", "0.5", "-g", "0.5", name, "--", "sh", "-c",
      'trap "" TERM; while :; do sleep 0.1; done' })
    assert.is_true(stubborn.elapsed >= 1 and stubborn.elapsed < 1 + support.slack(1),
      stubborn.elapsed)
    assert.is_true(is_free())
  end)
end)

it("a command that is stopped hears TERM all the same when it has to end", function()
  local result = ends(124, { "run", "--max-hold", "0.5", "-g", "30", name, "--", "sh", "-c",
    [[trap 'echo term; exit 0' TERM; kill -STOP $$; sleep 300]] })
  assert.equal("term\n", result.out)
end)

describe("our messages", function()
  it("are on standard error only, and more or less of them", function()
    local loud = ends(0, { "run", "-v", name, "--", "echo", "out" })
    assert.equal("out\n", loud.out)
    assert.truthy(loud.err:find("is ours, token %d+"), loud.err)
    assert.truthy(loud.err:find("is given up", 1, true), loud.err)
    for line in loud.err:gmatch("[^\n]+") do assert.truthy(line:find("^memlock: ")) end
    assert.equal("", ends(0, { "run", name, "--", "true" }).err)
  end)

  it("show what others wrote escaped", function()
    raw:set("memlock:" .. name, "memlock/1 id 1 1 30 \xc2\x9b31m\xe2\x80\xae", 30)
    local result = ends(75, { "run", name, "--", "true" })
    assert.is_nil(result.err:find("[\x00-\x09\x0b-\x1f\x7f\x80-\xff]"), result.err)
    assert.truthy(result.err:find("\\xc2\\x9b31m\\xe2\\x80\\xae", 1, true), result.err)
  end)

  it("nobody needs to read", function()
    local result = support.run { "sh", "-c",
      [[{ "$0" run -v "$1" -- sh -c "sleep 0.3; exit 7"; echo $? >&3; } 2>&1 3>&1 1>&2 | true
      exit 0]], support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
    assert.equal(0, result.code, tostring(result))
    support.eventually(is_free)
  end)
end)

describe("help", function()
  it("is there in general, and for each command", function()
    local general = ends(0, { "--help" })
    assert.truthy(general.out:find("^Usage: memlock COMMAND"), general.out)
    assert.equal(general.out, ends(0, { "help" }).out)
    assert.equal(general.out, ends(0, { "-h" }).out)
    for command in general.out:gmatch("\n  memlock (%a+)") do
      local text = ends(0, { "help", command }).out
      assert.truthy(text:find("^Usage: memlock " .. command .. " "), text)
      assert.equal(text, ends(0, { command, "--help" }).out)
      assert.equal(text, ends(0, { command, "-h" }).out)
      for line in text:gmatch("[^\n]+") do assert.is_true(#line <= 100, line) end
    end
    assert.truthy(ends(64, {}).err:find("^Usage: "))
    assert.truthy(ends(64, { "help", "fly" }).err:find("'fly'", 1, true))
  end)

  it("and the version", function()
    local version = "memlock " .. memlock._VERSION .. "\n"
    assert.equal(version, ends(0, { "--version" }).out)
    assert.equal(version, ends(0, { "-V" }).out)
  end)

  it("that is written to a closed descriptor is a failure", function()
    for _, words in ipairs { "--help", "--version", "status " .. name, "list" } do
      local result = support.run { "sh", "-c", ('"$0" %s >&-'):format(words),
        support.command_path, env = { MEMLOCK_SERVERS = server.address } }
      assert.same({ 71, "memlock: standard output cannot be written\n" },
        { result.code, result.err }, words)
    end
    -- Of `run` nothing is written there.
    local result = support.run { "sh", "-c", '"$0" run "$1" -- sh -c "exit 3" >&-',
      support.command_path, name, env = { MEMLOCK_SERVERS = server.address } }
    assert.same({ 3, "" }, { result.code, result.err })
  end)

  it("that cannot be written is a failure", function()
    if not lfs.attributes("/dev/full") then return pending("there is no /dev/full") end
    local result = support.run { "sh", "-c", '"$0" --help >/dev/full', support.command_path }
    assert.same({ 71, "memlock: standard output cannot be written\n" }, { result.code, result.err })
  end)
end)
