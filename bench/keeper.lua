--- Renewal in the background, from ten locks to a hundred thousand, each number in a process of its
-- own.

local support = require "spec.support"
local lab = require "bench.lab"

local keeper = {}

local columns = { "count", "ttl", "seconds", "held", "losses", "failures", "acquires", "cpu",
  "memory", "passes", "per_pass", "trips_per_pass", "cpu_per_pass", "cpu_per_renewal", "delay" }

local function start(server, count, ttl, seconds)
  return support.start_lua { file = "bench/keep.lua", server.address, count, ttl, seconds }
end

local function finish(running, seconds)
  local result = running:wait(seconds)
  assert(result.kind == "exit" and result.code == 0, tostring(result))
  local row = {}
  for name, value in result.out:gmatch "([%w_]+)=(%S+)" do row[name] = tonumber(value) end
  return row
end

--- Begins with the most locks, which takes more than three ttls and little of the machine.
-- @return what keeper.finish wants
function keeper.start()
  local run = { server = support.memcached { memory = 256 }, rows = {} }
  for _, count in ipairs(lab.amount({ 10, 1000, 10000 }, { 10, 300 })) do
    lab.say("  keeper, %d locks", count)
    run.rows[#run.rows + 1] = finish(start(run.server, count, 3, lab.amount(4, 1.2)), 60)
  end
  if not lab.quick then
    lab.say "  keeper, 100000 locks through three ttls of 30 s, in the background"
    run.last = start(run.server, 100000, 30, 90)
  end
  return run
end

function keeper.finish(run, name)
  if run.last then
    lab.say "  keeper: waiting for the 100000 locks"
    run.rows[#run.rows + 1] = finish(run.last, 300)
  end
  lab.save(name, columns, run.rows)
end

return keeper
