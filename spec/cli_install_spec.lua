--- What comes with the command: installation, manual, completion, examples.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()

local function files(place)
  local result = support.run { "find", place, "-type", "f" }
  local list = {}
  for path in result.out:gmatch("[^\n]+") do list[#list + 1] = path:sub(#place + 2) end
  table.sort(list)
  return list
end

-- The long options of a text: `--name`, as a set.
local function options_in(text)
  local set = {}
  for option in text:gmatch("%-%-(%l[%l-]+)") do set[option] = true end
  return set
end

local function help(...)
  local result = support.command(server, { "help", ... })
  assert.equal(0, result.code, tostring(result))
  return result.out
end

local commands = {}
for command in help():gmatch("\n  memlock (%a+)") do commands[#commands + 1] = command end

describe("make", function()
  -- Installs this build as it is: -o keeps make from building it anew with other flags.
  local function make(target, place)
    return support.run { "make", "-s", "-o", "all", target, "BUILD=" .. support.build,
      "DESTDIR=" .. place, "PREFIX=/usr", "LUA_VERSION=5.4", timeout = 120,
      env = { MAKEFLAGS = false, MAKELEVEL = false, LD_PRELOAD = false } }
  end

  it("install puts module, command, manual and completion in place, uninstall takes them away",
    function()
      local place = support.tempdir()
      local result = make("install", place)
      assert.equal(0, result.code, tostring(result))
      assert.same({ "usr/bin/memlock", "usr/lib/lua/5.4/memlock.so",
        "usr/share/bash-completion/completions/memlock", "usr/share/man/man1/memlock.1" },
        files(place))
      local run = support.run { place .. "/usr/bin/memlock", "run", support.name(), "--", "echo",
        "works", env = { MEMLOCK_SERVERS = server.address } }
      assert.equal("works\n", run.out, tostring(run))
      result = make("uninstall", place)
      assert.equal(0, result.code, tostring(result))
      assert.same({}, files(place))
    end)
end)

describe("the manual", function()
  local manual = support.read_file "doc/memlock.1"

  it("tells of every option and every subcommand that the help tells of", function()
    local plain = manual:gsub("Fl %-", "--")
    local told = options_in(plain)
    for _, command in ipairs(commands) do
      assert.truthy(manual:find("\n%.Ss memlock " .. command .. "\n"), command)
      for option in pairs(options_in(help(command))) do
        assert.is_true(told[option], command .. " --" .. option)
      end
    end
  end)

  it("tells of every exit code", function()
    for code in support.read_file("cli/exits.h"):gmatch("= (%d+),") do
      if code ~= "128" then
        assert.truthy(manual:find("\n.It " .. code .. "\n", 1, true), code)
      end
    end
  end)

  it("is good mdoc", function()
    if support.run { "sh", "-c", "command -v mandoc" }.code ~= 0 then
      return pending("there is no mandoc")
    end
    local result = support.run { "mandoc", "-T", "lint", "doc/memlock.1" }
    assert.equal("", result.out .. result.err)
  end)
end)

describe("the completion for bash", function()
  -- What it offers for a line; the last word is being typed.
  local function complete(line)
    local result = support.run { "bash", "--norc", "-c", [=[
      source cli/completion.bash
      read -r -a COMP_WORDS <<<"$1"
      [[ $1 == *" " ]] && COMP_WORDS+=("")
      COMP_WORDS[0]=$0
      COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
      _memlock
      printf '%s\n' "${COMPREPLY[@]}"]=], support.command_path, line,
      env = { MEMLOCK_SERVERS = server.address } }
    assert.same({ 0, "" }, { result.code, result.err }, tostring(result))
    local offers = {}
    for word in result.out:gmatch("%S+") do offers[word] = true end
    return offers
  end

  before_each(function()
    if support.run { "sh", "-c", "command -v bash" }.code ~= 0 then pending("there is no bash") end
  end)

  it("offers the subcommands", function()
    local offers = complete "memlock "
    for _, command in ipairs(commands) do assert.is_true(offers[command], command) end
    assert.same({ status = true }, complete "memlock st")
  end)

  it("offers exactly the options that the help tells of", function()
    for _, command in ipairs(commands) do
      local expected = {}
      for option in pairs(options_in(help(command))) do expected["--" .. option] = true end
      assert.same(expected, complete("memlock " .. command .. " --"), command)
    end
    assert.same({ ["--max-hold"] = true }, complete "memlock run --ttl 5 --max")
  end)

  it("offers the locks that are held", function()
    local client = memlock.client(server.address)
    local name = support.name("held")
    local lock = assert(client:lock(name):acquire())
    -- It gives a slow machine no time, for a person is waiting.
    for _, line in ipairs { "memlock status ",
      "memlock break -s " .. server.address .. " " .. name:sub(1, -3) } do
      support.eventually(function() return complete(line)[name] end, 20)
    end
    assert(lock:release())
    client:close()
  end)

  it("offers commands behind --", function()
    local offers = complete "memlock run name -- sha256s"
    assert.is_true(offers.sha256sum)
    offers = complete "memlock run -t 5 name sha256s"
    assert.is_true(offers.sha256sum)
  end)
end)

describe("the examples", function()
  -- Runs the arguments of `memlock` in a line, with another command in place of theirs.
  local function try(line)
    local words = {}
    for word in line:match("memlock (run .*)"):gmatch("%S+") do
      if word == "--" then break end
      words[#words + 1] = word
    end
    for _, word in ipairs { "--", "echo", "ran" } do words[#words + 1] = word end
    for i, word in ipairs(words) do
      if word == "5m" then words[i] = "0.1" end -- --at-least
    end
    local result = support.command(server, words)
    assert.same({ 0, "ran\n" }, { result.code, result.out }, line .. ": " .. tostring(result))
  end

  it("for cron use what there is", function()
    local lines = 0
    for line in support.read_file("examples/crontab"):gmatch("[^\n]+") do
      if line:find("^[%d*]") then
        lines = lines + 1
        assert.truthy(line:find("^[%d*]+ [%d*]+ %* %* %* root memlock run "), line)
        try(line)
      end
    end
    assert.equal(2, lines)
  end)

  it("for systemd use what there is", function()
    local unit = support.read_file("examples/memlock@.service")
    local line = unit:match("\nExecStart=[%w/]*/(memlock[^\n]*)")
    try((line:gsub("%%i", support.name())))
  end)
end)
