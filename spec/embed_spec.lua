--- memlock in a program that embeds Lua: examples/embed, and what the archive keeps to itself.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local memlock = require "memlock"

local archive = support.build .. "/libmemlock.a"

-- The names that these files define for others.
local function defined(paths)
  local result = support.run { "nm", "-g", "--defined-only", table.unpack(paths) }
  assert.equal(0, result.code, tostring(result))
  local names = {}
  for name in result.out:gmatch("%x+ [A-Z] (%S+)") do names[#names + 1] = name end
  return names
end

describe("a game of 60 frames a second", function()
  -- The figures of a line of the host's.
  local function phase(out, what)
    local frames, longest, allowed, saved, failed = out:match("\n" .. what ..
      ": (%d+) frames, the longest took (%S+) ms %(allowed: (%d+)%), and up to %S+ ms without a " ..
      "processor; (%d+) saves so far, (%d+) failed\n")
    assert.truthy(frames, out)
    return { frames = tonumber(frames), longest = tonumber(longest) / 1e3,
      allowed = tonumber(allowed) / 1e3, saved = tonumber(saved), failed = tonumber(failed) }
  end

  -- Three times the 25 ms that there are without, and with, the timeout of an operation.
  local function in_time(seen)
    return seen.longest <= seen.allowed - 0.025 + support.slack(0.025)
  end

  it("is never late while tasks wait for a lock, and by one timeout if the server hangs", function()
    local server, out, before, hung, after
    -- On a busy machine the server, too, waits for a processor, and nothing tells for how long.
    for _ = 1, 3 do
      server = support.memcached()
      local result = support.run { support.build .. "/embed", "examples/embed/game.lua",
        server.address, "9", tostring(server.pid), timeout = 30 }
      assert.equal("exit", result.kind, tostring(result))
      out = "\n" .. result.out
      before, hung, after = phase(out, "server up"), phase(out, "server stopped"),
        phase(out, "server up again")
      local quiet = before.longest <= before.allowed and hung.longest <= hung.allowed
        and after.longest <= after.allowed
      if not quiet then assert.equal(1, result.code, tostring(result)) end
      if in_time(before) and in_time(hung) and in_time(after) then break end
    end
    assert.same({ 0.025, 0.125, 0.025 }, { before.allowed, hung.allowed, after.allowed })
    assert.is_true(in_time(before) and in_time(hung) and in_time(after), out)
    assert.is_true(hung.longest > 0.095, out) -- or the server did not hang
    assert.is_true(before.saved > 0 and before.failed == 0, out)
    assert.is_true(after.saved > hung.saved, out)
    -- A lock that was held at the end was given up.
    assert.is_false(memlock.client(server.address):holder("player-7"))
  end)

  it("says what is wrong with its arguments, its script, its server", function()
    local function fails(...)
      local result = support.run { support.build .. "/embed", ... }
      assert.same({ "exit", 2 }, { result.kind, result.code }, tostring(result))
      return result.err
    end
    assert.truthy(fails():find("usage: host SCRIPT SERVER", 1, true))
    assert.truthy(fails("/nowhere", "127.0.0.1"):find("cannot open /nowhere", 1, true))
    local said = fails("examples/embed/game.lua", "a b")
    assert.truthy(said:find("bad argument #1 to 'client'", 1, true), said)
  end)
end)

describe("libmemlock.a", function()
  it("defines luaopen_memlock alone", function()
    assert.same({ "luaopen_memlock" }, defined { archive })
  end)

  it("goes its own ways in a host that has all the same names", function()
    local place = support.tempdir()
    local text = { [[
      #include <lauxlib.h>
      #include <lualib.h>
      #include <stdlib.h>
      int luaopen_memlock(lua_State *L);
      int main(int argc, char **argv) {
        lua_State *L = luaL_newstate();
        luaL_openlibs(L);
        luaL_requiref(L, "memlock", luaopen_memlock, 0);
        lua_pushstring(L, argv[argc - 1]);
        lua_setglobal(L, "server");
        return luaL_dostring(L,
          "local client = require 'memlock'.client(server)"
          "local lock = client:lock('player-8', { auto_refresh = true })"
          "assert(lock:acquire(1)) assert(lock:refresh()) assert(lock:release())"
          "client:close() print 'fine'");
      }
    ]] }
    local objects = {}
    for name in lfs.dir(support.build .. "/src") do
      if name:find("%.o$") then objects[#objects + 1] = support.build .. "/src/" .. name end
    end
    local count = 0
    for _, name in ipairs(defined(objects)) do
      if name ~= "luaopen_memlock" then
        count = count + 1
        text[#text + 1] = ("void %s(void); void %s(void) { abort(); }\n"):format(name, name)
      end
    end
    assert.is_true(count > 50, count)
    support.write_file(place .. "/host.c", table.concat(text))

    local flags = support.read_file(support.build .. "/flags")
    local command = { flags:match("^%S+"), "-isystem", flags:match("%-isystem (%S*lua%S*)"),
      "-o", place .. "/host", place .. "/host.c", archive,
      "-llua" .. _VERSION:match("%d+%.%d+"), "-lmemcached", "-pthread", timeout = 60 }
    command[#command + 1] = flags:match("%-fsanitize=%S+")
    local compiled = support.run(command)
    assert.same({ 0, "" }, { compiled.code, compiled.err }, tostring(compiled))
    local result = support.run { place .. "/host", support.server().address }
    assert.same({ "exit", 0, "fine\n" }, { result.kind, result.code, result.out }, tostring(result))
  end)
end)
