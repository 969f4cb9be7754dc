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

return { root = root, place = place }
