--- The checker: reads the journals of a soak (journal.lua says what is in them), and looks for
-- anything that memlock promises not to happen.
--
-- A claim is a stretch of time in which held() was true, or would have been, had it been asked:
-- held() also says for how long the lease is good, and an end that the process brings about itself
-- is written down before it begins. Of a lease that is renewed in the background, a claim that
-- turns out to have ended early is believed only up to the last time when held() was asked.
--
-- What a broken server excuses. A fault in which it lost its data excuses what happens to a lease
-- that rests on a write from before its end, and to no other one. So does a stop of more than a
-- second to a lease that rests on a write from about that time, which was stamped with an old time.

local lfs = require "lfs"

local checker = {}

local TINY = 1e-5 -- seconds: what is lost in writing times down
local SAME = 0.002 -- seconds by which two answers about one deadline may differ
local IN_FLIGHT = 1.5 -- seconds: longer than any timeout
local TICK = 1 -- seconds: memcached reads its clock as often
local GRACE = 4 -- seconds that a record may outlive its ttl
local LATE = 3 -- seconds that a write may spend on its way
local BUSY = 0.03 -- seconds: a machine that wakes a sleeper up so late is busy
local SLACK = tonumber(os.getenv("SLACK")) or 3

--------------------------------------------------------------------------------
-- Reading

local function new_data()
  return { leases = {}, by_key = {}, calls = {}, lost = {}, writes = {}, children = {}, wrong = {},
    stats = {}, faults = {}, freezes = {}, counts = {}, exits = {}, left = {}, saw = {}, lags = {},
    started = {}, ended = {}, over = false, odd = {} }
end

local function words(text)
  local list = {}
  for word in text:gmatch("%S+") do list[#list + 1] = tonumber(word) or word end
  return table.unpack(list)
end

local function add(list, item) list[#list + 1] = item end

-- The claims of a lease end here: at `time`, or where it was last known to be good.
local function cut(lease, time)
  local known = lease.kept and lease.last or time
  for i = #lease.claims, 1, -1 do
    local claim = lease.claims[i]
    if claim.to <= known then break end
    claim.to = known
  end
end

local readers = {}

function readers.start(data, source, text)
  source.pid = words(text)
  data.started[source.name] = true
end

function readers.acquired(data, source, text)
  local number, name, token, ttl, kind, begun, returned = words(text)
  local lease = { pid = source.pid, who = source.name, number = number, name = name, token = token,
    ttl = ttl, kept = kind == "kept", begun = begun, returned = returned, claims = {} }
  source.leases[number] = lease
  add(data.leases, lease)
end

function readers.held(_, source, text)
  local number, time, left, ttl = words(text)
  local lease = source.leases[number]
  local deadline = time + left
  local sent = deadline - ttl -- when the write left that the lease rests on
  local claim = lease.claims[#lease.claims]
  lease.last = time
  if claim and not claim.cut and math.abs(claim.deadline - deadline) < SAME then
    claim.to = math.max(claim.to, deadline)
    claim.sent = math.min(claim.sent, sent)
    return
  end
  add(lease.claims, { lease = lease, from = time, to = deadline, deadline = deadline, sent = sent })
end

readers["not"] = function(_, source, text)
  local number, time = words(text)
  cut(source.leases[number], time)
end

function readers.ends(_, source, text)
  local number, time = words(text)
  local lease = source.leases[number]
  cut(lease, time)
  local claim = lease.claims[#lease.claims]
  if claim then claim.cut = true end -- whatever comes is a claim of its own
end

function readers.lost(data, source, text)
  local number, begun, returned, call = words(text)
  add(data.lost, { lease = source.leases[number], begun = begun, returned = returned, call = call })
end

function readers.write(data, source, text)
  local number, name, token, begun, returned, verdict, largest = words(text)
  add(data.writes, { lease = source.leases[number], name = name, token = token, begun = begun,
    returned = returned, refused = verdict == "refused", largest = largest })
end

function readers.call(data, source, text)
  local what, name, begun, returned, bound, outcome = words(text)
  add(data.calls, { pid = source.pid, who = source.name, what = what, name = name, from = begun,
    to = returned, bound = bound, outcome = outcome })
end

function readers.child(data, source, text)
  add(data.children, source.name .. ": child " .. text)
end

function readers.wrong(data, source, text)
  add(data.wrong, source.name .. ": " .. text)
end

function readers.stats(data, _, text)
  for key, count in text:gmatch("(%S+)=(%S+)") do
    data.stats[key] = (data.stats[key] or 0) + tonumber(count)
  end
end

readers["end"] = function(data, source, text)
  local time, before, after = words(text)
  data.ended[source.name] = { time = time, before = before, after = after }
end

function readers.fault(data, _, text)
  local kind, begun, ended = words(text)
  add(data.faults, { kind = kind, begun = begun, ended = ended })
  data.counts[kind] = (data.counts[kind] or 0) + 1
end

function readers.freeze(data, _, text)
  local pid, begun, ended = words(text)
  data.freezes[pid] = data.freezes[pid] or {}
  add(data.freezes[pid], { begun = begun, ended = ended })
end

function readers.did(data, _, text)
  data.counts[text] = (data.counts[text] or 0) + 1
end

function readers.exit(data, _, text) add(data.exits, text) end

function readers.left(data, _, text) add(data.left, text) end

function readers.over(data, _, text) data.over = tonumber(text) end

function readers.saw(data, _, text)
  local key, begun, ended, cas, value = text:match("^(%S+) (%S+) (%S+) (%d+) ?(.*)$")
  local id, seq, ttl, label = value:match("^memlock/1 (%S+) (%d+) %d+ (%S+) ?(.*)$")
  add(data.saw, { name = key:match("^[^:]*:(.*)$"), begun = tonumber(begun),
    ended = tonumber(ended), cas = cas, value = value, id = id, seq = seq, ttl = tonumber(ttl),
    pid = label and tonumber(label:match(":(%d+)$")) })
end

function readers.lag(data, _, text)
  local time, seconds = words(text)
  add(data.lags, { time = time, seconds = seconds })
end

-- A process that was killed may have left half a line; only whole ones count.
local function read_journal(data, path, name)
  local file = assert(io.open(path, "rb"))
  local source = { name = name, leases = {} }
  for line in file:lines("L") do
    local word, text = line:match("^(%S+) ?(.*)\n$")
    if word then
      local ok, trouble = pcall(readers[word], data, source, text)
      if not ok then
        add(data.odd, ("%s: cannot read %q: %s"):format(name, line, tostring(trouble)))
      end
    end
  end
  file:close()
end

local function read(directory)
  local data = new_data()
  for name in lfs.dir(directory) do
    if name:sub(1, 1) ~= "." then read_journal(data, directory .. "/" .. name, name) end
  end
  return data
end

--------------------------------------------------------------------------------
-- Faults

-- Which fault explains that a lease that rests on a write `sent` then came to grief by `time`?
local function excuse(data, sent, time)
  for _, fault in ipairs(data.faults) do
    if time >= fault.begun then
      local kind = fault.kind
      if (kind == "restart" or kind == "flush") and sent <= fault.ended then return fault end
      if kind == "stop" and sent >= fault.begun - IN_FLIGHT and sent <= fault.ended + TICK then
        return fault
      end
    end
  end
  return nil
end

local function overlap(a_from, a_to, b_from, b_to)
  return math.max(0, math.min(a_to, b_to) - math.max(a_from, b_from))
end

-- For how much of a time the server stood still.
local function stopped(data, from, to)
  local sum = 0
  for _, fault in ipairs(data.faults) do
    if fault.kind == "stop" or fault.kind == "pause" then
      sum = sum + overlap(from, to, fault.begun, fault.ended)
    end
  end
  return sum
end

local function frozen(data, pid, from, to)
  local sum = 0
  for _, freeze in ipairs(data.freezes[pid] or {}) do
    sum = sum + overlap(from, to, freeze.begun, freeze.ended)
  end
  return sum
end

-- How late this machine was at most about a time. Lags are in order.
local function lag_about(data, from, to)
  local lags = data.lags
  local low, high = 1, #lags + 1
  while low < high do
    local middle = (low + high) // 2
    if lags[middle].time < from then low = middle + 1 else high = middle end
  end
  local most = 0
  while lags[low] and lags[low].time - lags[low].seconds <= to do
    most = math.max(most, lags[low].seconds)
    low = low + 1
  end
  return most
end

--------------------------------------------------------------------------------
-- The checks. Each calls found(text) for what it finds.

local function describe(lease)
  return ("%s's lease %d of %s (token %d, %s)"):format(lease.who, lease.number, lease.name,
    lease.token, lease.kept and "renewed in the background" or "plain")
end

local function by(field)
  return function(a, b) return a[field] < b[field] end
end

-- The claims on each name, in order of their beginnings.
local function claims_by_name(data)
  local names = {}
  for _, lease in ipairs(data.leases) do
    local list = names[lease.name] or {}
    names[lease.name] = list
    for _, claim in ipairs(lease.claims) do
      if claim.to > claim.from then add(list, claim) end
    end
  end
  for _, list in pairs(names) do table.sort(list, by "from") end
  return names
end

local function drop_over(active, time)
  for i = #active, 1, -1 do
    if active[i].to <= time then
      active[i] = active[#active]
      active[#active] = nil
    end
  end
end

local function check_overlaps(data, found)
  local told = {}
  for _, claims in pairs(claims_by_name(data)) do
    local active = {}
    for _, claim in ipairs(claims) do
      drop_over(active, claim.from + TINY)
      for _, other in ipairs(active) do
        local pair = claim.lease ~= other.lease
          and tostring(claim.lease) .. " " .. tostring(other.lease)
        if pair and not told[pair] and not excuse(data, other.sent, claim.lease.returned)
          and not excuse(data, claim.sent, other.lease.returned)
        then
          told[pair] = true
          found(("from %.6f to %.6f both %s and %s"):format(claim.from,
            math.min(claim.to, other.to), describe(other.lease), describe(claim.lease)))
        end
      end
      add(active, claim)
    end
  end
end

-- What was seen of each name, in order.
local function sights_by_name(data)
  local names = {}
  for _, sight in ipairs(data.saw) do
    names[sight.name] = names[sight.name] or {}
    add(names[sight.name], sight)
  end
  for _, list in pairs(names) do table.sort(list, by "begun") end
  return names
end

-- While somebody claims to hold a lock, its record is theirs.
local function check_records(data, found)
  local claims = claims_by_name(data)
  for name, sights in pairs(sights_by_name(data)) do
    local active, next_claim, told = {}, 1, {}
    local list = claims[name] or {}
    for _, sight in ipairs(sights) do
      while list[next_claim] and list[next_claim].from <= sight.begun do
        add(active, list[next_claim])
        next_claim = next_claim + 1
      end
      drop_over(active, sight.ended + TINY)
      for _, claim in ipairs(active) do
        local lease = claim.lease
        if sight.pid ~= lease.pid and not told[lease]
          and not excuse(data, claim.sent, sight.ended)
        then
          told[lease] = true
          found(("at %.6f %q stood there, under %s"):format(sight.ended, sight.value,
            describe(lease)))
        end
      end
    end
  end
end

-- Two versions with one and the same record: a write that cannot be told from another one.
local function check_numbers(data, found)
  for name, sights in pairs(sights_by_name(data)) do
    local versions = {}
    for _, sight in ipairs(sights) do
      local before = sight.id and versions[sight.value]
      if before and before ~= sight.cas then
        found(("%s at %.6f: %q is there again"):format(name, sight.ended, sight.value))
      end
      if sight.id then versions[sight.value] = sight.cas end
    end
  end
end

local function check_tokens(data, found)
  local names = {}
  for _, lease in ipairs(data.leases) do
    local list = names[lease.name] or {}
    names[lease.name] = list
    add(list, lease)
  end
  for _, begun in pairs(names) do
    local returned = table.move(begun, 1, #begun, 1, {})
    table.sort(begun, by "begun")
    table.sort(returned, by "returned")
    local at, largest = 1, nil
    local tokens = {}
    for _, lease in ipairs(begun) do
      while returned[at].returned < lease.begun do
        if not largest or returned[at].token > largest.token then largest = returned[at] end
        at = at + 1
      end
      local same = tokens[lease.token]
      tokens[lease.token] = lease
      if largest and largest.token >= lease.token then
        found(("%s came after %s"):format(describe(lease), describe(largest)))
      elseif same then
        found(("%s has the token of %s"):format(describe(lease), describe(same)))
      end
    end
  end
end

-- The last claim of a lease that began by then.
local function claim_at(lease, time)
  local found
  for _, claim in ipairs(lease.claims) do
    if claim.from <= time then found = claim end
  end
  return found
end

local function check_register(data, found)
  for _, write in ipairs(data.writes) do
    local claim = claim_at(write.lease, write.begun)
    if write.refused then
      local fault = claim and excuse(data, claim.sent, write.returned)
      if fault then
        data.protected = (data.protected or 0) + 1
      else
        found(("at %.6f, since it has seen %d: %s"):format(write.returned, write.largest,
          describe(write.lease)))
      end
    end
  end
end

local function check_losses(data, found)
  for _, loss in ipairs(data.lost) do
    local lease = loss.lease
    local claim = claim_at(lease, loss.begun)
    if claim and loss.returned < claim.deadline - SAME
      and not excuse(data, claim.sent, loss.returned)
    then
      found(("%s, at %.6f by %s, with %.3f s left"):format(describe(lease), loss.returned,
        loss.call, claim.deadline - loss.returned))
    end
  end
end

local function check_times(data, found)
  data.longest = 0
  for _, call in ipairs(data.calls) do
    local took = call.to - call.from
    if took > call.bound then took = took - frozen(data, call.pid, call.from, call.to) end
    data.longest = math.max(data.longest, took / call.bound)
    if took > call.bound then
      local lag = lag_about(data, call.from, call.to)
      local bound = lag > BUSY and call.bound * SLACK or call.bound
      if lag > BUSY then data.slackened = (data.slackened or 0) + 1 end
      if took > bound then
        found(("%s's %s of %s at %.6f took %.3f s, and not %.3f (%s; machine late by %.3f s)")
          :format(call.who, call.what, call.name, call.from, took, call.bound, call.outcome, lag))
      end
    end
  end
end

local function check_ends(data, found)
  for _, text in ipairs(data.exits) do found(text) end
  for _, text in ipairs(data.children) do found(text) end
end

local function check_answers(data, found)
  for _, text in ipairs(data.wrong) do found(text) end
end

local function check_leaks(data, found)
  for who, counts in pairs(data.ended) do
    if counts.before ~= counts.after then
      found(("%s had %d descriptors, and has %d"):format(who, counts.before, counts.after))
    end
  end
  for _, text in ipairs(data.left) do
    if text:find("^processes") then found(text) end
  end
end

local acquiring = { acquire = true, with = true, refresh = true, release = true,
  ["end-of-with"] = true }

-- Who was doing something about a lock, and when: a claim on it, or a call that may write.
local function doings_by_name(data)
  local names = claims_by_name(data)
  local mixed = {}
  for name, claims in pairs(names) do
    mixed[name] = {}
    for _, claim in ipairs(claims) do
      add(mixed[name], { pid = claim.lease.pid, from = claim.from, to = claim.to })
    end
  end
  for _, call in ipairs(data.calls) do
    if acquiring[call.what] and mixed[call.name] then add(mixed[call.name], call) end
  end
  for _, list in pairs(mixed) do table.sort(list, by "from") end
  return mixed
end

-- A record stays for as long as its ttl after its last write, and is not written by somebody who
-- has long stopped to do anything about it.
local function check_stale(data, found)
  for _, text in ipairs(data.left) do
    if not text:find("^processes") then found(text) end
  end
  local doings = doings_by_name(data)
  for name, sights in pairs(sights_by_name(data)) do
    local list, next_doing = doings[name] or {}, 1
    local until_when = {} -- by process id
    local value, id, told
    for _, sight in ipairs(sights) do
      local now = sight.begun
      while list[next_doing] and list[next_doing].from <= now do
        local doing = list[next_doing]
        until_when[doing.pid] = math.max(until_when[doing.pid] or 0, doing.to)
        next_doing = next_doing + 1
      end
      if sight.id then
        if not value or value.text ~= sight.value then
          value = { text = sight.value, since = sight.ended }
        end
        if not id or id.text ~= sight.id then id = { text = sight.id, since = sight.ended } end
        local active = math.max(id.since, until_when[sight.pid] or 0)
        local bound = sight.ttl + GRACE
        if told ~= sight.id and (
          now - value.since - stopped(data, value.since, now) > bound
          or now - active - stopped(data, active, now) > bound + LATE)
        then
          told = sight.id
          found(("%s at %.6f: %q, written at %.6f, its holder done at %.6f"):format(name, now,
            sight.value, value.since, active))
        end
      else
        value, id = nil, nil
      end
    end
  end
end

local function check_journals(data, found)
  for _, text in ipairs(data.odd) do found(text) end
  if not data.over then found("the driver did not come to its end") end
  local workers = 0
  for who in pairs(data.started) do
    if who:find("^worker%-%d+$") then
      workers = workers + 1
      if not data.ended[who] then found(who .. " did not come to its end") end
    end
  end
  if workers == 0 then found("nobody did anything") end
  if #data.leases == 0 then found("no lock was acquired") end
  if #data.writes == 0 then found("nothing was written to the register") end
  if #data.saw == 0 then found("the observer saw nothing") end
end

local checks = {
  { "one holder at a time", check_overlaps },
  { "a record is its holder's alone", check_records },
  { "each write has a number of its own", check_numbers },
  { "tokens rise", check_tokens },
  { "the register refuses no holder", check_register },
  { "each loss has a cause", check_losses },
  { "calls end in time", check_times },
  { "nobody crashes", check_ends },
  { "answers are right", check_answers },
  { "no descriptor and no process is left", check_leaks },
  { "no lock stays taken", check_stale },
  { "the journals are whole", check_journals },
}

--------------------------------------------------------------------------------
-- The report

-- The share of the time in which some lease rested on what the server may have lost.
local function excused_share(data, total)
  local sum = 0
  for _, fault in ipairs(data.faults) do
    if fault.kind ~= "pause" then
      local last = fault.ended
      for _, lease in ipairs(data.leases) do
        for _, claim in ipairs(lease.claims) do
          if claim.sent <= fault.ended and claim.to > fault.begun then
            last = math.max(last, claim.to)
          end
        end
      end
      sum = sum + last - fault.begun
    end
  end
  return total > 0 and math.min(1, sum / total) or 0
end

local function figures(data)
  local first, last = math.huge, 0
  local kept, losses, most_lag, freezes = 0, #data.lost, 0, 0
  for _, call in ipairs(data.calls) do
    first, last = math.min(first, call.from), math.max(last, call.to)
  end
  for _, lease in ipairs(data.leases) do
    if lease.kept then kept = kept + 1 end
  end
  for _, lag in ipairs(data.lags) do most_lag = math.max(most_lag, lag.seconds) end
  for _, list in pairs(data.freezes) do freezes = freezes + #list end
  local total = math.max(0, last - first)
  local stats = data.stats
  local function stat(key) return math.tointeger(stats[key]) or 0 end
  local list = {
    { "seconds", ("%.0f"):format(total) },
    { "acquisitions", #data.leases },
    { "  renewed in the background", kept },
    { "refreshes", stat "refreshed" },
    { "renewals in the background", stat "renewals" },
    { "releases", stat "released" },
    { "losses noticed", losses },
    { "attempts", stat "attempts" },
    { "  that found a holder", stat "contended" },
    { "operations that failed", stat "errors" },
    { "round trips", stat "round_trips" },
    { "calls timed", #data.calls },
    { "  the longest, by its bound", ("%.2f"):format(data.longest or 0) },
    { "  beyond it on a busy machine", data.slackened or 0 },
    { "latest wake-up of the machine", ("%.3f s"):format(most_lag) },
    { "writes to the register", #data.writes },
    { "  refused after a loss of data", data.protected or 0 },
    { "sights of a record", #data.saw },
    { "time under excuse", ("%.0f %%"):format(100 * excused_share(data, total)) },
    { "clients frozen", freezes },
  }
  local kinds = {}
  for kind in pairs(data.counts) do add(kinds, kind) end
  table.sort(kinds)
  for _, kind in ipairs(kinds) do add(list, { "fault: " .. kind, data.counts[kind] }) end
  return list
end

--- Checks the journals in a directory.
-- @return a list of checks `{name, findings}`, findings a list of texts; and a list of figures
--   `{what, value}`
function checker.check(directory)
  local data = read(directory)
  local results = {}
  for _, check in ipairs(checks) do
    local findings = {}
    check[2](data, function(text) findings[#findings + 1] = text end)
    results[#results + 1] = { name = check[1], findings = findings }
  end
  return results, figures(data)
end

return checker
