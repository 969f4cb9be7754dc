--- The code blocks of README.md and doc/guide.md are run: each of them, as a reader would.
--
-- A block of Lua is a program of its own, in which `memlock` is the module and `client` a client,
-- as the guide says. What it prints must be what its comments `--> like this` say, if it has any,
-- where `...` stands for anything. It talks to a real memcached: to the one that a block of shell
-- starts earlier under the same heading, the last before it, if there is one.
--
-- A block that cannot be run says why, in a comment `<!-- not run: why -->` on the line before it;
-- of such a block each command must exist all the same.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local address_of_examples, port_of_examples = "127.0.0.1:11211", "11211"

---- Blocks ----

-- The fenced blocks of a file, also those within a list: `language`, `text`, `line`, `excuse`, and
-- `before`, the blocks of the same section that stand before it.
local function blocks_of(path)
  local blocks, section = {}, {}
  local number, previous, block = 0, "", nil
  for line in io.lines(path) do
    number = number + 1
    local fence = line:match "^ *```(.*)$"
    if block and fence then
      block = nil
    elseif block then
      block.text = block.text .. line .. "\n"
    elseif fence then
      block = { language = fence, text = "", path = path, line = number,
        excuse = previous:match "^<!%-%- not run: (.+) %-%->$",
        before = table.move(section, 1, #section, 1, {}) }
      blocks[#blocks + 1], section[#section + 1] = block, block
    elseif line:find "^#+ " then
      section = {}
    end
    previous = line
  end
  assert(not block, path .. ": a block has no end")
  return blocks
end

local function name_of(block)
  return ("%s:%d"):format(block.path, block.line)
end

---- Lua ----

-- Runs a block that has `client`, and knows no globals but Lua's.
local runner = [[
  local memlock = require "memlock"
  local address, name, text = ...
  local client = memlock.client(address)
  local env = setmetatable({ memlock = memlock, client = client, arg = {} }, { __index = _G })
  local globals = getmetatable(env)
  function globals.__index(_, key) return rawget(_G, key) or error("no variable " .. key, 2) end
  function globals.__newindex(_, key) error("a global is set: " .. key, 2) end
  assert(load(text, "=" .. name, "t", env))()
  client:close()
]]

-- What the comments `--> ...` of a block say, as a pattern for what it prints; nil without any.
local function expected_output(text)
  local lines = {}
  for line in text:gmatch "%-%-> ([^\n]*)" do
    lines[#lines + 1] = line:gsub("%p", "%%%0"):gsub("%%%.%%%.%%%.", ".*") .. "\n"
  end
  return #lines > 0 and "^" .. table.concat(lines) .. "$"
end

-- Runs it; returns what is wrong, or nil.
local function run_lua(block, address)
  local file = support.tempdir() .. "/runner.lua"
  support.write_file(file, runner)
  local text = block.text:gsub(address_of_examples:gsub("%p", "%%%0"), address)
  local result = support.run_lua { file = file, timeout = 30, address, name_of(block), text }
  local expected = expected_output(block.text)
  local wrong = result.kind ~= "exit" or result.code ~= 0 or result.err ~= "" or
    (expected and not result.out:find(expected))
  return wrong and tostring(result) or nil
end

---- Shell ----

-- The commands of a block, without the comments.
local function commands(block)
  local list = {}
  for line in block.text:gmatch "[^\n]+" do
    local command = line:gsub("%s*#.*$", "")
    if command ~= "" then list[#list + 1] = command end
  end
  return list
end

local function starts_server(block)
  return block.language == "sh" and not block.excuse and block.text:find "memcached %-"
end

-- Starts the memcached of a block of shell, on a free port, in a directory of its own.
-- @return its address
local function start_server(block)
  local port = tostring(support.free_port())
  local place = support.tempdir()
  assert(support.run({ "chmod", "711", place }).code == 0) -- for `memcached -u nobody`
  local server = support.start { "sh", "-eu", "-c", (block.text:gsub(port_of_examples, port)),
    cwd = place, newgroup = true, env = { LD_PRELOAD = false } }
  local address = "127.0.0.1:" .. port
  support.eventually(function()
    if not server:alive() then error("it ended: " .. tostring(server:wait())) end
    return pcall(support.raw, address)
  end)
  return address
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- The command `memlock` is the one that was built.
local shell_environment = { LD_PRELOAD = false, PATH = support.build .. ":" .. os.getenv "PATH" }

-- Is this a command of ours, or of the system? Returns what is wrong, or nil.
local function check_command(command)
  local words = {}
  for word in command:gmatch "%S+" do words[#words + 1] = word end
  if words[1] == "make" then
    -- A dry run finds the target, and what it depends on.
    local result = support.run { "make", "-n", words[2], timeout = 30,
      env = { MAKEFLAGS = false, LD_PRELOAD = false } }
    return result.code ~= 0 and tostring(result) or nil
  end
  local found = support.run { "sh", "-c", 'command -v "$0"', words[1], env = shell_environment }
  if found.code ~= 0 then return "there is no command " .. words[1] end
  for _, word in ipairs(words) do
    local is_file = word:find "^[%w-]+/[%w./-]+%.%w+$"
    if is_file and not exists(word) then return "there is no file " .. word end
  end
end

-- What is wrong with a block that cannot be run.
local function check_excused(block)
  if block.language ~= "sh" then return end
  for _, command in ipairs(commands(block)) do
    local wrong = check_command(command)
    if wrong then return wrong end
  end
end

-- What is wrong with a block of shell.
local function run_shell(block)
  if starts_server(block) then
    -- Nothing speaks against locks there, but that it is young. One that wants a password is
    -- asked by the Lua that follows.
    local address = start_server(block)
    if block.text:find "memcached [^\n]*%-Y" then return end
    local found = memlock.client(address):check()[1].findings
    if #found > 1 or not tostring(found[1]):find "^It was started" then
      return table.concat(found, "\n")
    end
    return
  end
  local result = support.run { "sh", "-eu", "-c", block.text, newgroup = true, timeout = 60,
    env = shell_environment }
  return (result.kind ~= "exit" or result.code ~= 0) and tostring(result) or nil
end

---- C ----

-- Builds the program against the static library, and runs it with a server.
local function run_c(block)
  local place = support.tempdir()
  local version = _VERSION:match "%d.%d"
  local made = support.run { "make", "-s", "-j2", "libmemlock.a", "BUILD=" .. place, "CFLAGS=-O0",
    "LUA_VERSION=" .. version, timeout = 120,
    env = { MAKEFLAGS = false, LD_PRELOAD = false, SANITIZE = false } }
  if made.code ~= 0 then return tostring(made) end
  support.write_file(place .. "/host.c",
    (block.text:gsub(address_of_examples:gsub("%p", "%%%0"), support.server().address)))
  local built = support.run { "cc", "-Wall", "-Werror", "-I/usr/include/lua" .. version,
    "-o", place .. "/host", place .. "/host.c", place .. "/libmemlock.a", "-llua" .. version,
    "-lmemcached", "-lpthread", timeout = 60, env = { LD_PRELOAD = false } }
  if built.code ~= 0 then return tostring(built) end
  local result = support.run { place .. "/host", env = { LD_PRELOAD = false } }
  local expected = expected_output(block.text:gsub("/%* (%-%-> .-) %*/", "%1"))
  local wrong = result.kind ~= "exit" or result.code ~= 0 or result.err ~= "" or
    (expected and not result.out:find(expected))
  return wrong and tostring(result) or nil
end

---- All of them ----

-- Runs a block by its kind.
-- @return what is wrong, or nil
local function problem(block)
  if block.excuse then return check_excused(block) end
  if block.language == "sh" then return run_shell(block) end
  if block.language == "c" then return run_c(block) end
  if block.language ~= "lua" then return "it is neither run nor excused" end
  local address
  for _, earlier in ipairs(block.before) do
    if starts_server(earlier) then address = start_server(earlier) end
  end
  return run_lua(block, address or support.server().address)
end

for _, path in ipairs { "README.md", "doc/guide.md" } do
  describe(path, function()
    for _, block in ipairs(blocks_of(path)) do
      it(("line %d: %s"):format(block.line, block.language), function()
        if _VERSION == "Lua 5.3" and block.text:find "<close>" then
          pending "Lua 5.3 has no <close>"
        end
        assert.is_nil(problem(block))
      end)
    end
  end)
end

---- Links ----

-- How a heading is named in a link: "What it promises" -> "what-it-promises".
local function slug(heading)
  return (heading:lower():gsub("[^%w%s_-]", ""):gsub("%s", "-"))
end

local function has_heading(path, wanted)
  for line in io.lines(path) do
    local heading = line:match "^#+ (.*)$"
    if heading and slug(heading) == wanted then return true end
  end
  return false
end

for _, path in ipairs { "README.md", "CHANGELOG.md", "doc/guide.md", "doc/reliability.md" } do
  it(path .. " links to what there is", function()
    local folder = path:match "^.*/" or ""
    local dead = {}
    for line in io.lines(path) do
      for target in line:gmatch "%]%(([^)]+)%)" do
        local file, heading = target:match "^([^#]*)#?(.*)$"
        file = file == "" and path or folder .. file
        if not exists(file) or heading ~= "" and not has_heading(file, heading) then
          dead[#dead + 1] = target
        end
      end
    end
    assert.same({}, dead)
  end)
end

-- What is broken must be seen.
describe("a block", function()
  local function lua(text)
    return problem { language = "lua", text = text, path = "test", line = 1, before = {} }
  end

  it("passes when all is well", function()
    assert.is_nil(lua 'assert(client:lock("name"):acquire())\nprint(1 + 1) --> 2\n')
    assert.is_nil(lua 'print("token " .. 17, "x") --> token ...\n')
  end)

  for what, text in pairs {
    ["does not parse"] = "local x = \n",
    ["raises"] = 'error "no"\n',
    ["calls what there is not"] = 'client:locks("name")\n',
    ["gives an option that there is not"] = 'client:lock("name", { tll = 1 })\n',
    ["reads a variable that there is not"] = "print(clent)\n",
    ["sets a global"] = "x = 1\n",
    ["prints something else"] = "print(1) --> 2\n",
    ["prints more"] = "print(1) --> 1\nprint(2)\n",
    ["complains"] = 'io.stderr:write "no"\n',
  } do
    it("fails that " .. what, function()
      assert.is_string(lua(text))
    end)
  end

  it("of shell fails with its command, run or not", function()
    local function shell(text, excuse)
      return problem { language = "sh", text = text, path = "test", line = 1, before = {},
        excuse = excuse }
    end
    assert.is_nil(shell "true\n")
    assert.is_string(shell "false\n")
    assert.is_nil(shell("make help # a comment\n", "why"))
    assert.is_string(shell("make nonesuch\n", "why"))
    assert.is_string(shell("nonesuch --help\n", "why"))
    assert.is_string(shell("luarocks make rockspec/nonesuch.rockspec\n", "why"))
    assert.is_string(shell "memcached -l 127.0.0.1 -p 11211 -u nobody -C\n")
  end)

  it("of another language needs an excuse", function()
    local block = { language = "ini", text = "x = 1\n", path = "test", line = 1, before = {} }
    assert.is_string(problem(block))
    block.excuse = "why"
    assert.is_nil(problem(block))
  end)
end)
