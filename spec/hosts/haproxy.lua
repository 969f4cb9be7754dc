--- HAProxys as examples/haproxy configures them.

local assert = require "luassert"
local lfs = require "lfs"
local crowd = require "spec.hosts.crowd"
local support = require "spec.support"

local haproxy = {}

-- As installations have it, whose HAProxy is started by root: an empty root directory and no
-- privileges, among them new threads. Others have no privileges anyway.
local function without_privileges()
  if lfs.attributes("/proc/self", "uid") ~= 0 then return "" end
  return ("    chroot %s\n    uid 65534\n    gid 65534\n"):format(support.tempdir())
end

-- The configuration of the example, with all Lua files loaded in one way, and more in its global
-- section.
local function configuration(load, more)
  local text, count = support.read_file("examples/haproxy/haproxy.cfg"):gsub(
    "(\n%s+)lua%-load[%l-]* ", "%1" .. load .. " ")
  assert.equal(2, count)
  text = text:gsub("(\nglobal\n)", "%1" .. without_privileges() .. (more or "") .. "\n")
  local path = support.tempdir() .. "/haproxy.cfg"
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  return path
end

--- Starts one that answers.
-- @param options `load` ("lua-load", "lua-load-per-thread"), `memcached` (its address),
--   `upstream`, `fresh`, `more` (lines for the global section), `arguments` (a list)
-- @return its process, with its `port`
function haproxy.start(options)
  local path = configuration(options.load, options.more)
  for _ = 1, 10 do
    local port = support.free_port()
    local command = { "haproxy", "-f", path, newgroup = true, env = {
      PATH = os.getenv "PATH" .. ":/usr/sbin",
      LUA_PATH = false, LUA_CPATH = false, LUA_PATH_5_3 = false, LUA_CPATH_5_3 = false,
      MEMLOCK = support.build .. "/haproxy",
      MEMCACHED = options.memcached,
      UPSTREAM = options.upstream or "none",
      TIMEOUT = "5", -- a busy machine may stop memcached for some time
      FRESH = tostring(options.fresh or 5),
      PORT = tostring(port),
    } }
    for _, argument in ipairs(options.arguments or {}) do command[#command + 1] = argument end
    local program = support.start(command)
    local is_up = support.eventually(function()
      local is_refused = not program:alive() and program:wait().code ~= 0 -- 0: it is a daemon
      return is_refused and "ended" or pcall(crowd.get, port, "/leader") and "up"
    end, support.slack(5))
    if is_up == "up" then
      program.port = port
      return program
    end
    local result = program:wait()
    assert.truthy(result.err:find "cannot bind socket", tostring(result))
  end
  error "no free port for HAProxy"
end

return haproxy
