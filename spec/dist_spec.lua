--- A release, as its makers and its users have it: `make dist`, `make install`, the packed rock.

local support = require "spec.support"
support.setup()

local lua_version = _VERSION:match("%d+%.%d+")

-- Of what surrounds the specs, nothing may help.
local function run(command)
  command.env = command.env or {}
  for _, name in ipairs { "BUILD", "LUA", "LUA_PATH", "LUA_CPATH", "LD_PRELOAD", "MAKEFLAGS",
    "MAKELEVEL", "MFLAGS", "LUA_VERSION" } do
    command.env[name] = command.env[name] or false
  end
  command.timeout = 200
  return support.run(command)
end

local function runs(command)
  local result = run(command)
  assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
  return result.out
end

local function lines(text)
  local list = {}
  for line in text:gmatch("[^\n]+") do list[#list + 1] = line end
  return list
end

local function version()
  return (support.read_file("src/version.h"):match('#define ML_VERSION "([^"]+)"'))
end

local name = "memlock-" .. version()

local author = { GIT_AUTHOR_NAME = "a", GIT_AUTHOR_EMAIL = "a@b", GIT_COMMITTER_NAME = "a",
  GIT_COMMITTER_EMAIL = "a@b" }

-- A repository with what is here, in one commit.
local repository

setup(function()
  repository = support.tempdir()
  runs { "sh", "-c", "tar --exclude=./build --exclude=./.git -cf - . | tar -xf - -C \"$0\"",
    repository }
  runs { "git", "init", "-q", cwd = repository }
  runs { "git", "add", "-A", cwd = repository }
  runs { "git", "commit", "-q", "-m", "all", cwd = repository, env = author }
end)

local function dist(from)
  return lines(runs { "make", "-s", "dist", cwd = from })
end

describe("make dist", function()
  it("makes the same files of the same commit, whatever surrounds it", function()
    local one = dist(repository)
    assert.equal(3, #one)
    local clone = support.tempdir() .. "/clone"
    runs { "git", "clone", "-q", repository, clone }
    support.sleep(1.1)
    local another = lines(runs { "sh", "-c", "umask 077; exec scripts/dist other https://here",
      cwd = clone, env = { TZ = "Asia/Kolkata", LC_ALL = "C" } })
    assert.equal(one[1], another[1]) -- the others have the address in them
    assert.are_not.equal(one[2], another[2])
    assert.same(one, lines(runs { "sh", "-c", "umask 077; exec scripts/dist other",
      cwd = clone, env = { TZ = "Asia/Kolkata" } }))
  end)

  it("names the version of the one header, and where the sources will be", function()
    local made = support.tempdir()
    runs { "scripts/dist", made, "https://here/there", cwd = repository }
    local text, spec = support.read_file(("%s/%s-1.rockspec"):format(made, name)), {}
    assert(load(text, "rockspec", "t", spec))()
    assert.equal(version() .. "-1", spec.version)
    assert.equal(("https://here/there/%s.tar.gz"):format(name), spec.source.url)
    assert.equal(name, spec.source.dir)
    local sum = runs { "md5sum", ("%s/%s.tar.gz"):format(made, name) }
    assert.equal(sum:match("^%x+"), spec.source.md5)
    runs { "luarocks", "--lua-version", lua_version, "lint",
      ("%s/%s-1.rockspec"):format(made, name) }
  end)

  it("is of what is committed, and says so when that is not what is here", function()
    local clone = support.tempdir() .. "/clone"
    runs { "git", "clone", "-q", repository, clone }
    local before = dist(clone)
    runs { "sh", "-c", "echo >>README.md", cwd = clone }
    local result = run { "make", "-s", "dist", cwd = clone }
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    assert.truthy(result.err:find("not committed", 1, true), tostring(result))
    assert.same(before, lines(result.out))
  end)

  it("says what it needs when there is no checkout", function()
    local place = support.tempdir()
    runs { "sh", "-c", "git archive HEAD | tar -xf - -C \"$0\"", place, cwd = repository }
    local result = run { "make", "-s", "dist", cwd = place }
    assert.equal(2, result.code, tostring(result))
    assert.truthy(result.err:find("dist: a release is made in a git checkout", 1, true),
      tostring(result))
  end)
end)

-- Locks by the module, wherever require finds it.
local use = [[
  local memlock = require "memlock"
  local lock = assert(memlock.client(arg[1]):lock(arg[2]):acquire())
  assert(lock:refresh() and lock:release())
  print(memlock._VERSION, (package.searchpath("memlock", package.cpath)))
]]

local function uses(path)
  local result = support.run_lua { code = use, env = { LUA_CPATH = path .. "/?.so" },
    support.server().address, support.name() }
  assert.equal(("%s\t%s/memlock.so\n"):format(version(), path), result.out, tostring(result))
end

describe("the sources", function()
  it("are all that is needed to build, install, use, link, and uninstall", function()
    local place = support.tempdir()
    dist(repository)
    runs { "tar", "-xzf", ("%s/build/dist/%s.tar.gz"):format(repository, name), cwd = place }
    local sources = place .. "/" .. name
    local prefix = place .. "/prefix"
    local libdir = ("%s/lib/lua/%s"):format(prefix, lua_version)
    local function make(...)
      return runs { "make", "-s", "-j2", cwd = sources, "LUA_VERSION=" .. lua_version,
        "PREFIX=" .. prefix, ... }
    end
    make("install", "install-static")
    uses(libdir)

    -- The embedding program, by the line that its author finds in it.
    local package = "memlock-lua" .. lua_version
    local configured = { PKG_CONFIG_PATH = prefix .. "/lib/pkgconfig" }
    local compiled = runs { "sh", "-c", [[cc "$0" -o host $(pkg-config --cflags --libs "$1" "$2")]],
      sources .. "/examples/embed/host.c", package, "lua" .. lua_version, cwd = place,
      env = configured }
    assert.equal("", compiled)
    local game = run { place .. "/host", sources .. "/examples/embed/game.lua",
      support.server().address, "4" } -- on a busy machine a frame is late, and the exit code 1
    assert.truthy(game.out:find("server still up: %d+ frames.* [1-9]%d* saves"), tostring(game))
    assert.equal(version() .. "\n", runs { "pkg-config", "--modversion", package,
      env = configured })

    -- What packagers do: the same, below another root. It is the same build, so nothing is made.
    local root = support.tempdir()
    make("install", "install-static", "DESTDIR=" .. root)
    assert.equal("", runs { "diff", "-r", prefix, root .. prefix })

    make("uninstall", "DESTDIR=" .. root)
    assert.equal("", runs { "find", root, "-type", "f" })
    assert.are_not.equal("", runs { "find", prefix, "-type", "f" })
    make("uninstall")
    assert.equal("", runs { "find", prefix, "-type", "f" })
  end)
end)

describe("the packed rock", function()
  it("installs and works without a network", function()
    dist(repository)
    local place = support.tempdir()
    runs { "cp", ("%s/build/dist/%s-1.src.rock"):format(repository, name), place }
    runs { "luarocks", "--lua-version", lua_version, "--only-server", place, "--tree",
      place .. "/tree", "install", ("%s/%s-1.src.rock"):format(place, name), cwd = place,
      env = { HOME = place, http_proxy = "127.0.0.1:1", https_proxy = "127.0.0.1:1" } }
    uses(("%s/tree/lib/lua/%s"):format(place, lua_version))
  end)
end)
