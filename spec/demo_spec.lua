--- The demo, as people see it: run to its end, interrupted, killed.

local lfs = require "lfs"
local support = require "spec.support"
support.setup()

local DEMO = "examples/demo.lua"
local LOSSLESS = "Nothing was lost, and every token was larger than the one before it.\n$"
local LOSSES = "\n(%d+) updates were lost: "

-- A demo keeps its files in `place`, and each process that it starts has that in its command line.
local place

before_each(function() place = support.tempdir() end)

local function environment(changes)
  local env = { TMPDIR = place, TERM = "xterm", UNLOCKED = false }
  for name, value in pairs(changes or {}) do env[name] = value end
  return env
end

local function run(changes)
  return support.run_lua { file = DEMO, env = environment(changes), timeout = 90 }
end

-- Starts the demo, and waits until its workers are at work.
local function start()
  local demo = support.start_lua { file = DEMO, env = environment(), newgroup = true }
  repeat until demo:read_line(20):find "rounds done"
  return demo
end

local function processes()
  local found = {}
  for pid in lfs.dir "/proc" do
    local file = pid:find "^%d+$" and io.open("/proc/" .. pid .. "/cmdline", "rb")
    local command = file and file:read "a" or "" -- nil when it ends meanwhile
    if file then file:close() end
    if command:find(place, 1, true) then found[#found + 1] = (command:gsub("%z", " ")) end
  end
  return found
end

local function files()
  local found = {}
  for name in lfs.dir(place) do
    if not name:find "^%.%.?$" then found[#found + 1] = name end
  end
  return found
end

local function assert_nothing_left()
  assert.same({}, processes())
  assert.same({}, files())
end

local function assert_soon_nothing_left()
  support.eventually(function() return #processes() == 0 and #files() == 0 end, 10)
end

-- The two numbers at the end.
local function verdict(text)
  return tonumber(text:match "\nExpected: +(%d+) "), tonumber(text:match "\nFound: +(%d+) ")
end

describe("the demo", function()
  it("loses nothing, though a holder is killed", function()
    local result = run()
    assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
    assert.same({ 174, 174 }, { verdict(result.out) }, tostring(result))
    assert.matches("killed with SIGKILL", result.out)
    assert.matches("The lease has ended: worker %d, which waited for [2-6]%.%d s, got the lock",
      result.out)
    assert.matches("Expected:  174 = 50 %+ 50 %+ 24 %+ 50,", result.out)
    assert.matches(LOSSLESS, result.out)
    assert.not_matches("[%c]", (result.out:gsub("\n", "")))
    assert_nothing_left()
  end)

  it("shows what is lost without the lock", function()
    local result = run { UNLOCKED = "1" }
    assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
    local expected, number = verdict(result.out)
    assert.equal(200, expected)
    assert.equal(expected - number, tonumber(result.out:match(LOSSES)), tostring(result))
    assert.not_matches("[%c]", (result.out:gsub("\n", "")))
    assert_nothing_left()
  end)

  it("redraws its table in a terminal of 80 columns", function()
    if not os.execute "command -v script >/dev/null" then
      return pending "there is no command `script`, which makes a terminal"
    end
    local command = ("%s %s"):format(os.getenv "LUA" or "lua5.4", DEMO)
    local build = require "spec.support.build".place
    local result = support.run { "script", "-qec", command, "/dev/null", timeout = 90,
      env = environment { UNLOCKED = "1", LUA_CPATH = build .. "/?.so;;" } }
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    assert.matches("\27%[%d+A", result.out)
    assert.matches(LOSSES, result.out)
    for line in result.out:gsub("\27%[%d*[AK]", ""):gmatch "[^\r\n]+" do
      assert.not_matches("%c", line)
      assert.is_true(#line <= 80, line)
    end
    assert_nothing_left()
  end)

  it("ends all it started when it is interrupted", function()
    local demo = start()
    assert.equal(6, #processes()) -- memcached, four workers, and the shell that looks after them
    demo:kill("INT", true)
    local result = demo:wait()
    assert.same({ "exit", 130 }, { result.kind, result.code }, tostring(result))
    assert.equal("\ndemo: interrupted; everything it started has ended.\n", result.err)
    assert_nothing_left()
  end)

  for _, signal in ipairs { "TERM", "HUP", "KILL" } do
    it("ends all it started when it dies of SIG" .. signal, function()
      local demo = start()
      demo:kill(signal)
      assert.same("signal", demo:wait().kind)
      assert_soon_nothing_left()
    end)
  end

  it("says what to do when memcached is missing", function()
    local bin = support.tempdir()
    for _, program in ipairs { "sh", "bash", "mktemp", "id", os.getenv "LUA" or "lua5.4" } do
      local pipe = io.popen("command -v " .. program)
      assert(lfs.link(pipe:read "l", bin .. "/" .. program:match "[^/]+$", true))
      pipe:close()
    end
    local result = run { PATH = bin }
    assert.same({ "exit", 1 }, { result.kind, result.code }, tostring(result))
    assert.matches("^demo: memcached is not installed.*`make demo`", result.err)
    assert_nothing_left()
  end)

  it("says what to do when the module is missing", function()
    local result = run { LUA_CPATH = place .. "/?.so" }
    assert.same({ "exit", 1 }, { result.kind, result.code }, tostring(result))
    assert.matches("^demo: the module memlock is not built yet.*`make demo`", result.err)
  end)
end)
