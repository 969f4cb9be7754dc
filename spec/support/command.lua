--- The command `memlock` of the build, against a server of the spec.

local build = require "spec.support.build"
local process = require "spec.support.process"

local command = {}

--- Where it is.
command.path = build.place .. "/memlock"

-- What process.start takes, for a subcommand and its arguments.
local function complete(server, options)
  local address = type(server) == "table" and server.address or server
  local all = { command.path, env = { MEMLOCK_SERVERS = address, MEMLOCK_PASSWORD = false } }
  for key, value in pairs(options) do
    if type(key) == "string" and key ~= "env" then all[key] = value end
  end
  for name, value in pairs(options.env or {}) do all.env[name] = value end
  for _, word in ipairs(options) do all[#all + 1] = tostring(word) end
  return all
end

--- Starts it.
-- @param server a server, a relay, or an address: it is told by MEMLOCK_SERVERS
-- @param options its arguments, and what process.start takes
-- @return a process
function command.start(server, options)
  return process.start(complete(server, options))
end

--- Runs it to its end.
-- @param options as for start, and `timeout`
-- @return a result, as of process.run
function command.run(server, options)
  return process.run(complete(server, options))
end

return command
