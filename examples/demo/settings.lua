-- The numbers of the demo, for the one that watches and for the workers.

local environment = os.getenv "UNLOCKED" or ""

local settings = {
  unlocked = environment ~= "" and environment ~= "0",
  workers = 4,
  rounds = 50, -- of each worker
  moment = 0.03, -- seconds between reading the number and writing it
  lock = "counter",
  ttl = 2, -- seconds; short, because everybody waits for the lease of the one that is killed
  wait = 60, -- seconds that a worker waits for the lock at most
  victim = 3, -- the worker that is killed, ...
  last_round = 25, -- ... and in which of its rounds
}

-- memlock asks memcached, which counts in whole seconds and may drop a record almost two of them
-- early, for this many seconds: a lease is never cut short.
settings.dropped_within = math.ceil(1.001 * settings.ttl) + 2

-- What a worker is called in its lock records, which anybody can read.
function settings.label(number)
  return "worker " .. number
end

return settings
