--- Where the build is: puts its modules on package.cpath, and tells others where to find them.
-- BUILD in the environment names another build directory than `build`.

local lfs = require "lfs"

local root = lfs.currentdir()
local place = os.getenv("BUILD") or "build"
if place:sub(1, 1) ~= "/" then place = root .. "/" .. place end

for _, pattern in ipairs { place .. "/?.so", place .. "/spec/?.so" } do
  if not (";" .. package.cpath .. ";"):find(";" .. pattern .. ";", 1, true) then
    package.cpath = pattern .. ";" .. package.cpath
  end
end

local version = _VERSION:match("%d+%.%d+"):gsub("%.", "_")

--- Changes of the environment for a program with Lua in it: it finds these modules, and nothing is
-- left of what was set for our own interpreter.
-- @param more changes that are made as well, or instead
local function environment(more)
  local changes = { LUA_INIT = false, ["LUA_INIT_" .. version] = false,
    LUA_PATH = root .. "/?.lua;" .. root .. "/?/init.lua;;", ["LUA_PATH_" .. version] = false,
    LUA_CPATH = place .. "/?.so;" .. place .. "/spec/?.so;;", ["LUA_CPATH_" .. version] = false }
  for name, value in pairs(more or {}) do changes[name] = value end
  return changes
end

return { root = root, place = place, environment = environment }
