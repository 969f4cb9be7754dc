--- Measures memlock, and what it is compared with.
--
--     lua5.4 bench/bench.lua [quick] [SECTION ...]      from the project root; see `make bench`
--
-- Sections: cycles, trips, cost, handoff, keeper, objects; peers, the libraries of others, in which
-- memlock and the limit run again beside them. All by default, peers as far as they are installed.
-- `report` measures nothing, and makes documents and plots of the results that are there.
-- Results go to bench/results/*.csv; tables and plots, here and in the documents, are made of
-- these. `quick` measures as briefly as shows that it works, and leaves all in build/bench/results.

local support = require "spec.support"
local lab = require "bench.lab"
local keeper = require "bench.keeper"
local machine = require "bench.machine"
local report = require "bench.report"

local all = { "keeper", "cycles", "trips", "cost", "handoff", "objects" }

local sections = {}

function sections.cycles()
  require "bench.cycles" ("cycles", { "memlock", "core", "limit", "compare", "swap" })
end

function sections.trips()
  require "bench.trips" ("trips", { "memlock", "core", "limit", "compare", "swap" })
end

function sections.cost()
  require "bench.cost" ("cost", lab.amount({ "memlock", "core", "limit" }, { "memlock" }))
end

-- A part of the plan: how many processes, how often for how long, and who.
local function part(processes, rounds, seconds, ids)
  local list = table.move(ids, 1, #ids, 1, {})
  list.processes, list.rounds, list.seconds = processes, rounds, seconds
  return list
end

function sections.handoff()
  local goals = { "memlock", "limit", "fixed-10" }
  require "bench.handoff" ("handoff", lab.amount({
    part(16, 3, 4, goals),
    part(16, 1, 4, { "doubling-5-50", "fixed-20", "fixed-50", "fixed-100", "turn-2500", "turn-3500",
      "turn-6000", "turn-9000", "compare", "swap" }),
    part(4, 1, 4, goals),
    part(64, 1, 4, goals),
  }, { part(4, 1, 0.5, goals) }))
end

function sections.objects()
  require "bench.objects" "objects"
end

-- Which of the libraries are here.
local function peers()
  local found = {}
  for _, subject in ipairs(lab.subjects("symfony", "tooz", "redis", "flufl")) do
    local worker
    local ok = pcall(function()
      worker = lab.worker(subject, lab.server(subject.backend).address, support.name "probe")
      worker:wait_ready()
    end)
    if worker then worker:close() end
    if ok then found[#found + 1] = subject.id end
  end
  return found
end

function sections.peers()
  local found = peers()
  if #found == 0 then
    lab.say "  no library of others is installed: make bench-peers"
    return
  end
  local ids = { "memlock", "limit", table.unpack(found) }
  require "bench.cycles" ("peers_cycles", ids)
  require "bench.trips" ("peers_trips", ids)
  require "bench.handoff" ("peers_handoff",
    { part(lab.amount(16, 4), 1, lab.amount(6, 0.5), ids) })
end

local failures = 0

-- What fails leaves the others to go on: their results are worth showing.
local function attempt(fn, ...)
  local ok, result = xpcall(fn, debug.traceback, ...)
  if ok then return result end
  if tostring(result):find "interrupted!" then error(result, 0) end
  io.stderr:write(result, "\n")
  failures = failures + 1
end

function sections.report() end

local function run(names)
  local wanted = {}
  for _, name in ipairs(names) do
    assert(name == "keeper" or sections[name], "no such section: " .. name)
    wanted[name] = true
  end
  -- A hundred thousand locks take long, and little of the machine: beside them goes what does not
  -- depend on its load.
  local keeping = wanted.keeper and attempt(keeper.start)
  if wanted.trips then attempt(sections.trips) end
  if wanted.cost then attempt(sections.cost) end
  if keeping then attempt(keeper.finish, keeping, "keeper") end
  for _, name in ipairs { "objects", "cycles", "handoff", "peers" } do
    if wanted[name] then attempt(sections[name]) end
  end
  if next(lab.saved) then machine.save() end
  report.print()
  report.write()
end

local names = {}
for _, word in ipairs(arg) do
  if word == "quick" then
    lab.quick = true
  else
    names[#names + 1] = word
  end
end
if #names == 0 then
  table.move(all, 1, #all, 1, names)
  if not lab.quick then names[#names + 1] = "peers" end
end

local start = support.now()
lab.say("measuring; %s", lab.quick and "only to see that it works" or "this takes some minutes")
attempt(run, names)
support.cleanup()
lab.say("\n%.0f s; results in %s", support.now() - start, lab.directory())
if failures > 0 then
  io.stderr:write(("bench: %d failed, see above\n"):format(failures))
  os.exit(1)
end
