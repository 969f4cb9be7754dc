--- Uncontended cycles of acquire and release: how many per second, and what they cost the client.
--
-- Subjects take turns of a fraction of a second, there and back again, so that whatever else the
-- machine does hits all of them alike; each round gives each subject a ratio to the limit.

local support = require "spec.support"
local lab = require "bench.lab"

local DELAY = 0.0005 -- seconds each way

local places = {
  { id = "unix", label = "unix socket" },
  { id = "tcp", label = "loopback TCP" },
  { id = "1ms", label = "1 ms round trip" },
}

-- The address of a subject's server at a place; nil where it has none.
local function address_at(place, subject)
  if place.id == "unix" then
    if subject.library then return nil end
    return lab.server("memcached", true).address
  end
  local server = lab.server(subject.backend)
  if place.id == "tcp" then return server.address end
  if subject.backend == "files" then return nil end
  local relay = support.relay(server)
  relay:delay("both", DELAY)
  return relay.address, relay
end

local function start(place, subjects)
  local contestants = {}
  for _, subject in ipairs(subjects) do
    local address, relay = address_at(place, subject)
    if address then
      local worker = lab.worker(subject, address, support.name "cycle"):wait_ready()
      worker:ask("run %.3f", lab.amount(0.1, 0.01)) -- connects, and is warm
      contestants[#contestants + 1] = { subject = subject, worker = worker, relay = relay,
        rates = {}, costs = {} }
    end
  end
  return contestants
end

local function turn(contestant, seconds, sum)
  local cycles, elapsed, cpu = contestant.worker:ask("run %.3f", seconds):match "(%S+) (%S+) (%S+)"
  sum.cycles = sum.cycles + tonumber(cycles)
  sum.elapsed = sum.elapsed + tonumber(elapsed)
  sum.cpu = sum.cpu + tonumber(cpu)
end

-- One turn of each, in an order that differs from round to round, and back.
local function round(contestants, number, seconds)
  local sums, count = {}, #contestants
  for step = 1, 2 * count do
    local at = step <= count and step or 2 * count + 1 - step
    local i = (at + number) % count + 1
    sums[i] = sums[i] or { cycles = 0, elapsed = 0, cpu = 0 }
    turn(contestants[i], seconds, sums[i])
  end
  for i, sum in ipairs(sums) do
    contestants[i].rates[number] = sum.cycles / sum.elapsed
    contestants[i].costs[number] = 1e6 * sum.cpu / sum.cycles
  end
end

local function against(values, others, combine)
  local combined = {}
  for i, value in ipairs(values) do combined[i] = combine(value, others[i]) end
  return lab.median(combined)
end

local function summary(place, contestants)
  local rows, base = {}, nil
  for _, contestant in ipairs(contestants) do
    if contestant.subject.id == "limit" then base = contestant end
  end
  for i, contestant in ipairs(contestants) do
    local rates, costs = contestant.rates, contestant.costs
    rows[i] = { place = place.label, subject = contestant.subject.id, rounds = #rates,
      rate = lab.median(rates), least = lab.quantile(rates, 0), most = lab.quantile(rates, 1),
      ratio = against(rates, base.rates, function(a, b) return a / b end),
      cpu = lab.median(costs),
      cpu_over_limit = against(costs, base.costs, function(a, b) return a - b end) }
  end
  return rows
end

local columns = { "place", "subject", "rounds", "rate", "least", "most", "ratio", "cpu",
  "cpu_over_limit" }

--- @param name of the file of results
-- @param ids of the subjects, "limit" among them
return function(name, ids)
  local rows = {}
  for _, place in ipairs(places) do
    lab.say("  cycles, %s: %s", place.label, table.concat(ids, ", "))
    local contestants = start(place, lab.subjects(table.unpack(ids)))
    for number = 1, lab.amount(15, 2) do
      round(contestants, number, lab.amount(0.12, 0.02))
    end
    local found = summary(place, contestants)
    table.move(found, 1, #found, #rows + 1, rows)
    for _, contestant in ipairs(contestants) do
      contestant.worker:close()
      if contestant.relay then contestant.relay:stop() end
    end
  end
  lab.save(name, columns, rows)
end
