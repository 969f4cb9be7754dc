--- Processes that fight for one lock: how well they hand it over.
--
-- Each worker writes down when it began to wait, when it had the lock and when it gave it up, on
-- the clock that all of them share; what is read from these journals is the same for all subjects.

local support = require "spec.support"
local lab = require "bench.lab"

local posix = support.posix

local HOLD = 0.005
local ways = {
  { id = "at once", pause = 0 },
  { id = "0-200 ms", pause = 0.2 },
}

--------------------------------------------------------------------------------
-- The contest

local function start_workers(subject, processes)
  local address, name = lab.server(subject.backend).address, support.name "contest"
  local workers = {}
  for i = 1, processes do workers[i] = lab.worker(subject, address, name) end
  for _, worker in ipairs(workers) do worker:wait_ready() end
  return workers
end

-- A list for each worker of `{ asked =, got =, released = }`; the last may lack got and released.
local function read_journal(path)
  local waits = {}
  for line in io.lines(path) do
    local word, a, b = line:match "^(%a+) (%S+) ?(%S*)$"
    if word == "asked" then
      waits[#waits + 1] = { asked = tonumber(a) }
    elseif word == "held" then
      waits[#waits].got, waits[#waits].released = tonumber(a), tonumber(b)
    end
  end
  return waits
end

local function contest(subject, processes, way, seconds)
  local workers = start_workers(subject, processes)
  local directory, server = support.tempdir(), lab.server(subject.backend)
  local start = posix.now() + 0.2
  local stop = start + seconds
  local cpu = 0
  for i, worker in ipairs(workers) do
    worker:tell("compete %s/%d %.6f %.6f %.6f %.6f", directory, i, start, stop, HOLD, way.pause)
    cpu = cpu - worker:cpu()
  end
  local commands = -server.commands()
  support.sleep(stop - posix.now())
  commands = commands + server.commands()
  local journals = {}
  for i, worker in ipairs(workers) do
    -- Who can only wait for ever is cut off.
    if not subject.library then assert(worker:hear() == "ok") end
    cpu = cpu + worker:cpu()
    worker:close()
    journals[i] = read_journal(("%s/%d"):format(directory, i))
  end
  return journals, { start = start, stop = stop, commands = commands, cpu = cpu }
end

--------------------------------------------------------------------------------
-- What the journals say

-- All acquisitions in the order in which they were made.
local function acquisitions(journals, stop)
  local all = {}
  for process, waits in ipairs(journals) do
    for _, wait in ipairs(waits) do
      if wait.got and wait.got <= stop then
        wait.process = process
        all[#all + 1] = wait
      end
    end
  end
  table.sort(all, function(a, b) return a.got < b.got end)
  return all
end

-- The share of the time in which nobody had the lock and somebody wanted it.
local function free_though_wanted(journals, run)
  local events = {}
  local function during(kind, from, to)
    if from >= run.stop then return end
    events[#events + 1] = { at = from, kind = kind, by = 1 }
    events[#events + 1] = { at = math.min(to or run.stop, run.stop), kind = kind, by = -1 }
  end
  for _, waits in ipairs(journals) do
    for _, wait in ipairs(waits) do
      during("waiting", wait.asked, wait.got)
      if wait.got then during("holding", wait.got, wait.released) end
    end
  end
  table.sort(events, function(a, b) return a.at < b.at end)
  local now, free, count = run.start, 0, { waiting = 0, holding = 0 }
  for _, event in ipairs(events) do
    if count.waiting > 0 and count.holding == 0 then free = free + event.at - now end
    now = event.at
    count[event.kind] = count[event.kind] + event.by
  end
  return free / (run.stop - run.start)
end

-- From the release by one to the acquisition by another that had been waiting; how often the
-- releaser took it again although others waited; and overlaps, of which there may be none.
local function hand_overs(all, journals)
  local latencies, again, overlaps = {}, 0, 0
  local function others_wait(process, at)
    for other, waits in ipairs(journals) do
      for _, wait in ipairs(other ~= process and waits or {}) do
        if wait.asked <= at and (not wait.got or wait.got > at) then return true end
      end
    end
    return false
  end
  for i = 2, #all do
    local last, this = all[i - 1], all[i]
    if this.got < last.released then overlaps = overlaps + 1 end
    if this.process == last.process then
      if others_wait(this.process, last.released) then again = again + 1 end
    elseif this.asked <= last.released then
      latencies[#latencies + 1] = this.got - last.released
    end
  end
  return latencies, again, overlaps
end

local function figures(journals, run)
  local all = acquisitions(journals, run.stop)
  local latencies, again, overlaps = hand_overs(all, journals)
  local shares, longest, seconds = {}, 0, run.stop - run.start
  for process, waits in ipairs(journals) do
    shares[process] = 0
    for _, wait in ipairs(waits) do
      longest = math.max(longest, math.min(wait.got or run.stop, run.stop) - wait.asked)
      if wait.process then shares[process] = shares[process] + 1 end
    end
  end
  return {
    rate = #all / seconds,
    free = free_though_wanted(journals, run),
    p50 = 1000 * (lab.quantile(latencies, 0.5) or 0),
    p99 = 1000 * (lab.quantile(latencies, 0.99) or 0),
    again = again / math.max(1, #all),
    longest = longest,
    jain = lab.jain(shares),
    fewest = math.min(table.unpack(shares)),
    most = math.max(table.unpack(shares)),
    commands = run.commands / seconds,
    cpu = run.cpu / seconds,
    overlaps = overlaps,
  }
end

--------------------------------------------------------------------------------

local columns = { "way", "processes", "subject", "rounds", "rate", "free", "p50", "p99", "again",
  "longest", "jain", "fewest", "most", "commands", "cpu", "overlaps" }

-- Medians; of the longest waits and of overlaps the worst.
local function combine(rounds)
  local row = { rounds = #rounds }
  for key in pairs(rounds[1]) do
    local values = {}
    for i, round in ipairs(rounds) do values[i] = round[key] end
    local worst = key == "longest" or key == "overlaps"
    row[key] = worst and math.max(table.unpack(values)) or lab.median(values)
  end
  return row
end

--- @param name of the file of results
-- @param plan a list of `{ processes =, rounds =, seconds =, ids }`
return function(name, plan)
  local rows = {}
  for _, part in ipairs(plan) do
    for _, way in ipairs(ways) do
      lab.say("  hand-off, %d processes, asking again %s: %s", part.processes,
        way.pause == 0 and "at once" or "after 0-200 ms", table.concat(part, ", "))
      local subjects, found = lab.subjects(table.unpack(part)), {}
      for _ = 1, part.rounds do
        for i, subject in ipairs(subjects) do
          found[i] = found[i] or {}
          table.insert(found[i], figures(contest(subject, part.processes, way, part.seconds)))
        end
      end
      for i, subject in ipairs(subjects) do
        local row = combine(found[i])
        row.way, row.processes, row.subject = way.id, part.processes, subject.id
        rows[#rows + 1] = row
      end
    end
  end
  lab.save(name, columns, rows)
end
