--- The rock, as a user would build, install and pack it, in fresh trees.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"

local function version()
  return (support.read_file("src/version.h"):match('#define ML_VERSION "([^"]+)"'))
end

it("installs and works in a fresh tree, from a checkout and packed, without a network", function()
  if not lfs.attributes("scripts/test-rock") then
    pending("there is no scripts/test-rock")
    return
  end
  -- A module of the build must not be found instead of the installed one.
  local result = support.run { "scripts/test-rock", timeout = 240,
    env = { BUILD = false, LD_PRELOAD = false } }
  assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
  local at = 1
  for _, step in ipairs {
    "luarocks make",
    "luarocks pack the installed rock, install it elsewhere",
    "luarocks pack the sources, install them elsewhere",
    "a wrong LIBMEMCACHED_DIR: the message names the variable",
    "the rock works",
  } do
    local first, last = result.out:find("-- " .. step .. "\n", at, true)
    assert.truthy(first, ("no step %q in: %s"):format(step, tostring(result)))
    at = last
  end
end)

describe("the rock that luarocks makes", function()
  local lua = _VERSION:match "%d+%.%d+"
  local tree

  -- Runs luarocks on a copy of the sources, so that nobody's build is in the way.
  local function make(...)
    local place = support.tempdir()
    local copied = support.run { "sh", "-c",
      "cp -R Makefile LICENSE src scripts rockspec \"$0\" && " ..
        "for f in README.md CHANGELOG.md cli doc types; do " ..
        "[ ! -e $f ] || cp -R $f \"$0\"; done", place }
    assert.equal(0, copied.code, tostring(copied))
    local command = { "luarocks", "--only-server", place, timeout = 120, cwd = place,
      env = { HOME = place, BUILD = false, LD_PRELOAD = false, MAKEFLAGS = false,
        LUA_PATH = false, LUA_CPATH = false } }
    table.move({ ... }, 1, select("#", ...), 4, command)
    return support.run(command)
  end

  before_each(function() tree = support.tempdir() .. "/tree" end)

  it("locks on a real server, and brings no other module", function()
    local made = make("--lua-version", lua, "make", "--tree", tree,
      "rockspec/memlock-scm-1.rockspec")
    assert.equal(0, made.code, tostring(made))
    local found = support.run { "find", tree, "-name", "*.so" }
    local module = ("%s/lib/lua/%s/memlock.so"):format(tree, lua)
    assert.truthy(found.out:find(module, 1, true), found.out)
    local result = support.run_lua { code = [[
      local memlock = require "memlock"
      print(memlock._VERSION, (package.searchpath("memlock", package.cpath)))
      local client = memlock.client(arg[1])
      local lock = assert(client:lock(arg[2]):acquire())
      assert(math.type(lock:token()) == "integer")
      assert(lock:refresh() and lock:release())
    ]], env = { LUA_CPATH = ("%s/lib/lua/%s/?.so"):format(tree, lua) }, support.server().address,
      support.name() }
    assert.equal(("%s\t%s\n"):format(version(), module), result.out, tostring(result))
    assert.equal(0, result.code, tostring(result))
    local command = support.run { tree .. "/bin/memlock", "run", support.name(), "--", "echo",
      "works", env = { MEMLOCK_SERVERS = support.server().address, LD_PRELOAD = false } }
    assert.same({ 0, "works\n", "" }, { command.code, command.out, command.err },
      tostring(command))
    local rest = support.run { "find", tree, "-path", "*/man/man1/memlock.1", "-o", "-path",
      "*/completions/memlock" }
    assert.equal(2, select(2, rest.out:gsub("\n", "")), tostring(rest))
  end)

  it("is refused for a Lua that is too old, with a line that says so", function()
    local made = make("--lua-version", "5.1", "make", "--tree", tree,
      "rockspec/memlock-scm-1.rockspec")
    assert.are_not.equal(0, made.code, tostring(made))
    local said = made.out .. made.err
    assert.truthy(said:find("lua >= 5.3", 1, true), tostring(made))
  end)
end)
