--- Round trips of each operation and the bytes it sends, on an open connection, as a relay between
-- client and server sees them. Neither depends on the load of the machine.

local support = require "spec.support"
local lab = require "bench.lab"

local rows

local function count(relay, worker, command, answer)
  relay:reset()
  local got = worker:ask("%s", command)
  assert(got == answer, command .. " answered " .. got)
  local stats = relay:stats()
  return stats.asked, stats.up
end

local function add(subject, operation, trips, bytes)
  rows[#rows + 1] = { subject = subject.id, operation = operation, trips = trips, bytes = bytes }
end

local function operations(subject)
  local relay, name = support.relay(lab.server(subject.backend)), support.name "trips"
  local worker = lab.worker(subject, relay.address, name):wait_ready()
  local other = lab.worker(subject, relay.address, name):wait_ready()
  for _, one in ipairs { other, worker } do -- connects, and leaves what is left behind
    for _, command in ipairs { "acquire", "refresh", "release" } do
      assert(one:ask(command) == "ok")
    end
  end
  add(subject, "acquire", count(relay, worker, "acquire", "ok"))
  add(subject, "refresh", count(relay, worker, "refresh", "ok"))
  add(subject, "failed try", count(relay, other, "acquire", "no"))
  add(subject, "release", count(relay, worker, "release", "ok"))
  worker:close()
  other:close()
  relay:stop()
end

-- A lock that was renewed in the background is refreshed and released by what renewed it.
local function renewed(subject)
  local relay = support.relay(lab.server(subject.backend))
  local options = { "ttl=3", "auto_refresh=true" }
  local worker = lab.worker(subject, relay.address, support.name "kept", options):wait_ready()
  local function renew(operation, as)
    local before = tonumber(worker:ask "renewals")
    support.eventually(function() return tonumber(worker:ask "renewals") > before end)
    add(subject, as, count(relay, worker, operation, "ok"))
  end
  assert(worker:ask "acquire" == "ok")
  renew("refresh", "refresh (renewed)")
  renew("release", "release (renewed)")
  worker:close()
  relay:stop()
end

return function(name, ids)
  rows = {}
  lab.say("  round trips: %s", table.concat(ids, ", "))
  for _, subject in ipairs(lab.subjects(table.unpack(ids))) do
    if subject.backend ~= "files" then operations(subject) end
    if subject.lua then renewed(subject) end
  end
  lab.save(name, { "subject", "operation", "trips", "bytes" }, rows)
end
