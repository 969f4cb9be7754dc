--- memlock run and signals: they go on to the command, in a terminal too, and as PID 1.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local memlock = require "memlock"

local server = support.server()
local raw = server:raw()
local posix = support.posix

local name

before_each(function() name = support.name() end)

local function start(script, ...)
  local program = support.start_command(server, { "run", "-t", "10", name, "--", "sh", "-c",
    script, ... })
  return program, program:read_line()
end

local function is_held()
  return memlock.client(server.address):holder(name) ~= false
end

describe("a signal to memlock", function()
  local all = { "INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH" }

  it("goes on to the command, which decides", function()
    for _, signal in ipairs(all) do
      local program = start(([[
        trap 'echo got; exit 9' %s
        echo ready; while :; do sleep 0.05; done]]):format(signal))
      program:kill(signal)
      local result = program:wait()
      assert.same({ "exit", 9, "got\n" }, { result.kind, result.code, result.out },
        signal .. ": " .. tostring(result))
      assert.is_false(is_held())
    end
  end)

  it("goes on to all of its group", function()
    for _, signal in ipairs { "INT", "TERM", "HUP", "QUIT", "USR1", "USR2" } do
      -- What a shell starts in the background ignores INT and QUIT: not this.
      local program, pid = start([[
        trap : INT TERM HUP QUIT USR1 USR2
        setsid true
        env --default-signal=INT,QUIT sleep 300 & echo $!
        wait; wait; exit 5]])
      pid = math.tointeger(tonumber(pid))
      support.defer(function() posix.kill(pid, "KILL") end)
      support.eventually(function()
        return support.process_name(pid) == "sleep"
      end)
      program:kill(signal)
      local result = program:wait()
      assert.same({ "exit", 5 }, { result.kind, result.code }, signal .. ": " .. tostring(result))
      assert.is_false(support.running(pid), signal)
    end
  end)

  it("ends the command, and the code is 128 and its number", function()
    for _, signal in ipairs { "INT", "TERM", "HUP", "USR1" } do
      local program = start("echo ready; exec sleep 300")
      program:kill(signal)
      local result = program:wait()
      assert.same({ "exit", 128 + posix.signals[signal] }, { result.kind, result.code },
        tostring(result))
      assert.is_false(is_held())
    end
  end)

  it("does not give the lock up before the command has ended", function()
    local program = start([[
      trap 'sleep 1; date +%s.%N; exit 0' TERM
      echo ready; while :; do sleep 0.05; done]])
    local second = support.start_command(server, { "run", "-w", "10", name, "--",
      "date", "+%s.%N" })
    support.sleep(0.3)
    program:kill("TERM")
    local ended = tonumber(program:read_line())
    local result = second:wait()
    local took = tonumber(result.out) - ended
    assert.is_true(took >= 0 and took < support.slack(0.6), took)
    assert.equal(0, program:wait().code)
  end)

  it("stops the command and has it go on, and the lock is renewed meanwhile", function()
    local program = support.start_command(server, { "run", "-t", "3", name, "--", "sh", "-c",
      "echo $$; read line; exit 8" })
    local pid = math.tointeger(tonumber(program:read_line()))
    program:kill("TSTP")
    support.eventually(function() return support.state(pid) == "T" end)
    local record = raw:get("memlock:" .. name)
    support.eventually(function() return raw:get("memlock:" .. name) ~= record end)
    assert.is_true(is_held())
    program:kill("CONT")
    support.eventually(function() return support.state(pid) ~= "T" end)
    program:write("\n")
    assert.equal(8, program:wait().code)
  end)
end)

describe("at a terminal", function()
  -- An interactive shell with job control, in which `memlock` is the command.
  local function shell()
    local place = support.tempdir()
    support.write_file(place .. "/rc",
      ("memlock() { %q \"$@\"; }\nPS1='[$?]> '; PS2=; set -m\n"):format(support.command_path))
    local terminal = support.terminal { "sh", "-i", env = { MEMLOCK_SERVERS = server.address,
      ENV = place .. "/rc", TERM = "dumb", HOME = place }, cwd = place }
    terminal:expect("%[0%]> ")
    return terminal
  end

  local function run(options)
    return ('memlock run %s %s -- '):format(options or "", name)
  end

  it("the command may read it, and is in the foreground", function()
    local terminal = shell()
    terminal:type(run() .. [[sh -c 'ps -o pgid=,tpgid= -p $$; read line; echo "<$line>"; exit 6']]
      .. "\n")
    local group, foreground = terminal:expect("\n *(%d+) +(%d+)")
    assert.equal(group, foreground)
    assert.equal(math.tointeger(tonumber(group)), terminal:foreground())
    terminal:type("hello\n")
    terminal:expect("<hello>")
    terminal:expect("%[6%]> ")
    assert.equal(terminal.pid, terminal:foreground())
    assert.is_false(is_held())
  end)

  it("Ctrl-C ends the command, and memlock with it", function()
    local terminal = shell()
    terminal:type(run() .. "sh -c 'echo re\"\"ady; exec sleep 300'\n")
    terminal:expect("ready")
    terminal:type("\3")
    terminal:expect("%[130%]> ")
    assert.equal(terminal.pid, terminal:foreground())
    assert.is_false(is_held())
  end)

  it("Ctrl-C ends the script that runs it", function()
    local terminal = shell()
    local script = [["$0" run "$1" -- sh -c "echo re\"\"ady; exec sleep 300"; echo went on]]
    terminal:type(("sh -c '%s' %s %s\n"):format(script, support.command_path, name))
    terminal:expect("ready")
    terminal:type("\3")
    terminal:expect("%[130%]> ")
    assert.is_nil(terminal.shown:find("\nwent on", 1, true), terminal.shown)
  end)

  it("Ctrl-Z stops it, fg has it go on in the foreground", function()
    local terminal = shell()
    terminal:type(run("-t 20") .. [[sh -c 'echo re""ady; read line; echo "<$line>"; exit 4']]
      .. "\n")
    terminal:expect("ready")
    terminal:type("\26")
    terminal:expect("[Ss]topped.*%]> ")
    assert.equal(terminal.pid, terminal:foreground())
    assert.is_true(is_held())
    terminal:type("fg\n")
    support.sleep(0.3)
    terminal:type("again\n")
    terminal:expect("<again>")
    terminal:expect("%[4%]> ")
  end)

  it("Ctrl-Z past the lease: it is lost, and does not go on", function()
    local terminal = shell()
    terminal:type(run("-t 2") .. [[sh -c 'echo re""ady; read line; echo "<$line>"; exit 4']]
      .. "\n")
    terminal:expect("ready")
    terminal:type("\26")
    terminal:expect("[Ss]topped.*%]> ")
    local other = memlock.client(server.address):lock(name)
    support.eventually(function() return other:acquire() end, 20)
    terminal:type("fg\n")
    terminal:expect("%[73%]> ")
    assert.is_nil(terminal.shown:find("\n<"))
    assert(other:verify())
    other:release()
  end)

  it("in the background it runs; what wants the terminal is stopped until fg", function()
    local terminal = shell()
    terminal:type(run() .. [[sh -c 'echo re""ady; read line; echo "<$line>"; exit 4' &]] .. "\n")
    terminal:expect("ready")
    support.eventually(function()
      terminal:type("jobs\n")
      terminal:look(0.1)
      return terminal.shown:find("[Ss]topped")
    end)
    terminal:type("fg\n")
    support.sleep(0.3)
    terminal:type("late\n")
    terminal:expect("<late>")
    terminal:expect("%[4%]> ")
  end)

  it("in nobody's background, what wants the terminal is hung up, and keeps no lock", function()
    local terminal = shell()
    terminal:type("(" .. run() .. [[sh -c 'echo pid $$; sleep 0.5; read line </dev/tty' &)]]
      .. "\n")
    local pid = math.tointeger(tonumber(terminal:expect("pid (%d+)\r")))
    support.defer(function() posix.kill(pid, "KILL") end)
    support.eventually(function() return not support.running(pid) end)
    support.eventually(function() return not is_held() end)
    terminal:expect("hang%-up")
  end)

  it("it shares a pipeline with a program that wants the terminal", function()
    local terminal = shell()
    local pager = [[sh -c 'cat >/dev/null; read key </dev/tty; echo "key $key"']]
    terminal:type(run() .. "echo text | " .. pager .. "\n")
    support.sleep(0.5)
    terminal:type("q\n")
    terminal:expect("key q")
    terminal:expect("%[0%]> ")
    assert.is_nil(terminal.shown:find("topped", 1, true), terminal.shown)
  end)

  it("a command in a pipeline may ask at the terminal", function()
    local terminal = shell()
    terminal:type("echo text | " .. run() ..
      [[sh -c 'cat; read key </dev/tty; echo "key $key"' | cat]] .. "\n")
    terminal:expect("\ntext")
    support.sleep(0.3)
    terminal:type("k\n")
    terminal:expect("key k")
    terminal:expect("%[0%]> ")
  end)

  it("memlock in memlock hands it down", function()
    local terminal = shell()
    terminal:type(("memlock run %s-outer -- %s run %s -- "):format(name, support.command_path, name)
      .. [[sh -c 'echo re""ady; read line; echo "<$line>"; exec sleep 300']] .. "\n")
    terminal:expect("ready")
    terminal:type("\26")
    terminal:expect("[Ss]topped.*%]> ")
    terminal:type("fg\n")
    support.sleep(0.5)
    terminal:type("deep\n")
    terminal:expect("<deep>")
    terminal:type("\3")
    terminal:expect("%[130%]> ")
    assert.is_false(is_held())
  end)

  it("a hang-up ends all of it", function()
    local terminal = shell()
    terminal:type(run() .. "sh -c 'echo pid $$; exec sleep 300'\n")
    local pid = math.tointeger(tonumber(terminal:expect("\npid (%d+)")))
    terminal:close()
    support.eventually(function() return not support.running(pid) end)
    support.eventually(function() return not is_held() end)
  end)

  it("as the leader of the session, Ctrl-Z does nothing, as without it", function()
    local terminal = support.terminal { support.command_path, "run", name, "--", "sh", "-c",
      [[echo ready; read line; echo "<$line>"; exit 4]],
      env = { MEMLOCK_SERVERS = server.address } }
    terminal:expect("ready")
    terminal:type("\26")
    support.sleep(0.3)
    terminal:type("on\n")
    terminal:expect("<on>")
    assert.same({ "exit", 4 }, { terminal:wait() })
  end)
end)

describe("as PID 1", function()
  local unshare = { "unshare", "--pid", "--fork", "--kill-child", "--mount-proc" }
  if lfs.attributes("/proc/self", "uid") ~= 0 then
    table.insert(unshare, 2, "--user")
    table.insert(unshare, 3, "--map-root-user")
  end

  local function start_as_init(script)
    local words = table.move(unshare, 1, #unshare, 1, {})
    for _, word in ipairs { "true" } do words[#words + 1] = word end
    if support.run(words).code ~= 0 then return nil end
    words[#words] = nil
    for _, word in ipairs { support.command_path, "run", name, "--", "sh", "-c", script } do
      words[#words + 1] = word
    end
    words.env = { MEMLOCK_SERVERS = server.address }
    local program = support.start(words)
    program.expected = true
    return program
  end

  it("TERM ends the command and gives the lock up, orphans are reaped", function()
    local program = start_as_init([[
      trap 'exit 3' TERM
      (setsid sh -c 'echo $$; sleep 0.2' &)
      sleep 1
      grep -l 'State:.Z' /proc/[0-9]*/status
      echo $PPID; while :; do sleep 0.05; done]])
    if not program then return pending("there are no PID namespaces for us") end
    local line = program:read_line()
    assert.is_number(math.tointeger(tonumber(line)), line)
    assert.equal("1", program:read_line())
    assert.is_true(is_held())
    posix.kill(support.children(program.pid)[1], "TERM")
    local result = program:wait()
    assert.equal(3, result.code, tostring(result))
    assert.is_false(is_held())
  end)

  it("its end while it waits gives the code", function()
    local lock = assert(memlock.client(server.address):lock(name):acquire())
    local words = table.move(unshare, 1, #unshare, 1, {})
    for _, word in ipairs { support.command_path, "run", "-w", "inf", name, "--", "true" } do
      words[#words + 1] = word
    end
    words.env = { MEMLOCK_SERVERS = server.address }
    local program = support.start(words)
    program.expected = true
    support.sleep(0.5)
    local pid = support.children(program.pid)[1]
    if not pid then return pending("there are no PID namespaces for us") end
    posix.kill(pid, "TERM")
    assert.equal(143, program:wait().code)
    lock:release()
  end)
end)
