--- The versions of Lua that memlock is built for, and what is said to all others.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"

local place

before_each(function() place = support.tempdir() end)

-- A folder with headers of Lua that say nothing but their version.
local function headers(number)
  for _, name in ipairs { "lua.h", "lauxlib.h", "lualib.h" } do
    support.write_file(place .. "/" .. name, "#define LUA_VERSION_NUM " .. number .. "\n")
  end
  return place
end

local function make(...)
  return support.run { "make", "BUILD=" .. place .. "/build", timeout = 60,
    env = { BUILD = false, LUA = false, LUA_VERSION = false, MAKEFLAGS = false, MAKELEVEL = false },
    ... }
end

-- The build stopped, with a line that has these parts, and before anything was compiled.
local function stops(result, ...)
  assert.same({ "exit", 2 }, { result.kind, result.code }, tostring(result))
  assert.is_nil(result.out:find("CC ", 1, true), tostring(result))
  local sentence = result.err:match("^[^\n]*")
  for _, part in ipairs { ... } do
    assert.truthy(sentence:find(part, 1, true), tostring(result))
  end
end

local fit = "memlock needs Lua 5.3, 5.4 or 5.5 (not LuaJIT)"

for _, version in ipairs { "5.1", "5.2", "5.6", "jit" } do
  it("LUA_VERSION=" .. version .. " stops the build with a sentence", function()
    stops(make("LUA_VERSION=" .. version), fit, "LUA_VERSION is " .. version)
  end)
end

-- LuaJIT has the number of 5.1.
for number, name in pairs { [501] = "5.1", [502] = "5.2", [506] = "5.6" } do
  it("headers of Lua " .. name .. " stop the build with a sentence", function()
    stops(make("LUA_INCDIR=" .. headers(number)), fit, "found Lua " .. name, place .. "/lua.h")
  end)
end

it("the real headers of Lua 5.1 stop the build with a sentence", function()
  local real = "/usr/include/lua5.1"
  if not lfs.attributes(real .. "/lua.h") then
    pending("Lua 5.1 is not here")
    return
  end
  stops(make("LUA_INCDIR=" .. real), fit, "found Lua 5.1", real .. "/lua.h")
end)

it("headers of another Lua than LUA_VERSION stop the build with a sentence", function()
  local result = make("LUA_VERSION=5.4", "LUA_INCDIR=" .. headers(503))
  stops(result, "LUA_VERSION is 5.4", "found Lua 5.3", "set LUA_VERSION=5.3")
end)

for number, name in pairs { [503] = "5.3", [504] = "5.4", [505] = "5.5" } do
  it("headers of Lua " .. name .. " will do", function()
    for _, wanted in ipairs { name, "any" } do
      local result = support.run { "scripts/check-headers", "cc -isystem " .. headers(number), "cc",
        place, wanted }
      assert.same({ 0, "", "" }, { result.code, result.out, result.err }, tostring(result))
    end
  end)
end

it("the source itself refuses all other versions", function()
  for number = 500, 510 do
    local result = support.run { "cc", "-E", "-P", "-isystem", headers(number), "src/lua_compat.h" }
    if number < 503 or number > 505 then
      assert.are_not.equal(0, result.code, number)
      assert.truthy(result.err:find("memlock needs Lua 5.3, 5.4 or 5.5", 1, true), result.err)
    else
      assert.same({ 0, "" }, { result.code, result.err }, number)
    end
  end
end)

it("each but the first has a build of its own", function()
  local function where(version)
    local result = support.run { "make", "help", "LUA_VERSION=" .. version,
      env = { BUILD = false, MAKEFLAGS = false, MAKELEVEL = false } }
    return result.out:match("build the module, ([^,\n]*)")
  end
  assert.equal("build/memlock.so", where "5.4")
  assert.equal("build/lua5.3/memlock.so", where "5.3")
  assert.equal("build/lua5.5/memlock.so", where "5.5")
end)
