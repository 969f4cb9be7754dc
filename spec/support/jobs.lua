--- Commands under `memlock run`, as several spec files need them.

local assert = require "luassert"
local command = require "spec.support.command"
local posix = require "memlock_posix"
local process = require "spec.support.process"
local scope = require "spec.support.scope"

local jobs = {}

--- Starts `memlock run` with a shell script that says which processes it has, one line each, and
-- then "ready".
-- @param options of `memlock run`, a list
-- @return the program, and the list of those processes, which end with the scope
function jobs.start(address, name, options, script)
  local words = { "run", "--wait", "10" } -- a busy machine may take longer than an operation may
  table.move(options, 1, #options, #words + 1, words)
  for _, word in ipairs { name, "--", "sh", "-c", script } do words[#words + 1] = word end
  local program = command.start(address, words)
  local pids = {}
  local line = program:read_line(20)
  while line ~= "ready" do
    pids[#pids + 1] = math.tointeger(tonumber(line))
    line = program:read_line()
  end
  scope.add { close = function()
    for _, pid in ipairs(pids) do posix.kill(pid, "KILL") end
  end, forget = function() end }
  return program, pids
end

--- A command and a grandchild in its group, neither of which hears TERM.
jobs.stubborn = [[
  trap "" TERM
  sh -c 'trap "" TERM; echo $$; while :; do sleep 0.1; done' &
  sleep 0.2; echo $$; echo ready
  while :; do sleep 0.1; done]]

--- One that ends with TERM and says so, with 0.
jobs.docile = [[
  trap 'echo term; exit 0' TERM
  echo $$; echo ready
  while :; do sleep 0.05; done]]

--- How many of these processes run.
function jobs.living(pids)
  local count = 0
  for _, pid in ipairs(pids) do
    if process.running(pid) then count = count + 1 end
  end
  return count
end

--- The program ends with this exit code; returns its result.
function jobs.assert_ends(program, code, seconds)
  local result = program:wait(seconds or 20)
  assert.same({ "exit", code }, { result.kind, result.code }, tostring(result))
  return result
end

return jobs
