--- The programs of examples/ as processes, and who of them holds a lock.

local assert = require "luassert"
local support = require "spec.support"

local example = {}

--- Starts examples/NAME.lua with these arguments.
-- @return a process
function example.start(name, ...)
  return support.start_lua { file = ("examples/%s.lua"):format(name), ... }
end

--- Waits for the end of a program, which must be a good one.
-- @return what it printed
function example.output(program)
  local result = program:wait(60)
  assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
  return result.out
end

--- @param raw a raw client of the server
-- @return the process id of the holder of the lock, by its record; nil when it is free
function example.holder(raw, name)
  local record = raw:get("memlock:" .. name)
  return record and math.tointeger(tonumber(record:match ":(%d+)$"))
end

return example
