--- What memlock is meant to reach, beside what was measured.

local lab = require "bench.lab"

local rows

local function find(name, values)
  for _, row in ipairs(lab.load(name) or {}) do
    local same = true
    for key, value in pairs(values) do same = same and row[key] == value end
    if same then return row end
  end
end

-- A line, where there is a measurement: goals are { "at least" or "at most", number }.
local function goal(what, bound, wanted, value, form)
  if value == nil then return end
  local met = bound == "at least" and value >= wanted or bound == "at most" and value <= wanted
  rows[#rows + 1] = { what, ("%s %s"):format(bound, form:format(wanted)), form:format(value),
    met and "yes" or "no" }
end

local function ratio(a, b, key)
  return a and b and a[key] / b[key]
end

local function cycles()
  for _, place in ipairs { { "1 ms round trip", 0.99 }, { "loopback TCP", 0.92 },
    { "unix socket", 0.92 } } do
    local row = find("cycles", { place = place[1], subject = "memlock" })
    goal("cycles/s ÷ limit, " .. place[1], "at least", place[2], row and row.ratio, "%.3f")
  end
  local row = find("cycles", { place = "loopback TCP", subject = "memlock" })
  goal("CPU over limit, µs/cycle, loopback TCP", "at most", 3, row and row.cpu_over_limit, "%.1f")
  local most
  for _, trip in ipairs(lab.load "trips" or {}) do
    if trip.subject == "memlock" then most = math.max(most or 0, trip.trips) end
  end
  goal("round trips of any operation, renewed in the background or not", "at most", 1, most, "%d")
end

local function handoff()
  local function at(way, subject)
    return find("handoff", { way = way, processes = 16, subject = subject })
  end
  local paused, again = at("0-200 ms", "memlock"), at("at once", "memlock")
  if not paused or not again then return end
  local limit = at("0-200 ms", "limit")
  goal("16 processes, pauses: acq/s ÷ those of a fixed 5-10 ms", "at least", 0.95,
    ratio(paused, at("0-200 ms", "fixed-10"), "rate"), "%.2f")
  goal("commands/s ÷ those of 10 to 500 ms doubling", "at most", 1.3,
    ratio(paused, limit, "commands"), "%.2f")
  goal("longest wait, s", "at most", 0.5, paused.longest, "%.2f")
  goal("Jain", "at least", 0.98, paused.jain, "%.3f")
  goal("16 processes, at once: acq/s ÷ the limit's", "at least", 0.9,
    ratio(again, at("at once", "limit"), "rate"), "%.2f")
  goal("Jain", "at least", 0.9, again.jain, "%.3f")
  goal("longest wait, s", "at most", 3, again.longest, "%.2f")
  goal("commands/s", "at most", 3000, again.commands, "%.0f")
end

-- The best of the others, by a column: the least or the most of it.
local function best(name, values, column, pick)
  local found
  for _, subject in ipairs { "symfony", "tooz" } do
    values.subject = subject
    local row = find(name, values)
    if row then found = found and pick(found, row[column]) or row[column] end
  end
  return found
end

local function peers()
  local place = "loopback TCP"
  local row = find("peers_cycles", { place = place, subject = "memlock" })
  local others = best("peers_cycles", { place = place }, "rate", math.max)
  goal("cycles/s ÷ the best library's on memcached, " .. place, "at least", 1,
    row and others and row.rate / others, "%.2f")
  others = best("peers_cycles", { place = place }, "cpu", math.min)
  goal("CPU/cycle ÷ the best library's", "at most", 1, row and others and row.cpu / others, "%.2f")
  for _, way in ipairs { "0-200 ms", "at once" } do
    row = find("peers_handoff", { way = way, subject = "memlock" })
    if way == "0-200 ms" then
      others = best("peers_handoff", { way = way }, "rate", math.max)
      goal("16 processes, pauses: acq/s ÷ the best library's", "at least", 1,
        row and others and row.rate / others, "%.2f")
      others = best("peers_handoff", { way = way }, "p50", math.min)
      goal("hand-off p50 ÷ the best library's", "at most", 1, row and others and row.p50 / others,
        "%.2f")
    end
    others = best("peers_handoff", { way = way }, "longest", math.min)
    goal(("longest wait ÷ the best library's, %s"):format(way), "at most", 1,
      row and others and row.longest / others, "%.2f")
  end
  local function trips(subject)
    local sum = 0
    for _, operation in ipairs { "acquire", "release" } do
      local trip = find("peers_trips", { subject = subject, operation = operation })
      sum = trip and sum and sum + trip.trips
    end
    return sum
  end
  local redis = trips "redis"
  if redis then goal("round trips/cycle; redis-py's", "at most", redis, trips "memlock", "%d") end
end

local function keeper()
  local row = find("keeper", { count = 100000 })
  if not row then return end
  goal("100,000 renewed locks: kept through three ttls", "at least", row.count, row.held, "%d")
  goal("CPU, % of a core", "at most", 10, 100 * row.cpu, "%.1f")
  goal("bytes/lock", "at most", 1024, row.memory, "%.0f")
end

return function()
  rows = { { "what", "goal", "measured", "met" } }
  cycles()
  handoff()
  keeper()
  peers()
  return #rows > 1 and rows or nil
end
