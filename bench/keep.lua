--- Holds many locks that are renewed in the background, and says what that costs.
--
--     lua5.4 bench/keep.lua SERVER COUNT TTL SECONDS      prints name=value, on one line

local memlock = require "memlock"
local posix = require "memlock_posix"

local server = arg[1]
local count, ttl, seconds = tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])
count = math.tointeger(count)

local client = memlock.client(server, { timeout = 10 })

local options = { ttl = ttl, auto_refresh = true }
local function take(name)
  local lock = assert(client:lock(name, options))
  return assert(lock:acquire())
end

local locks = { take "first" } -- the thread runs from now on
collectgarbage()
local memory, start = posix.rss(), posix.now()
for i = 1, count - 1 do locks[#locks + 1] = take("lock-" .. i) end
local taken = posix.now() - start
collectgarbage()
memory = posix.rss() - memory

local before, cpu, began = client:stats(), os.clock(), posix.now()
posix.sleep(seconds)
local after = client:stats()
cpu = os.clock() - cpu
local elapsed = posix.now() - began

local held = 0
for _, lock in ipairs(locks) do
  if lock:held() then held = held + 1 end
end
local function gained(what) return after[what] - before[what] end
local passes = math.max(1, gained "passes")
local renewals = math.max(1, gained "renewals")
local line = { count = count, ttl = ttl, seconds = elapsed, held = held, losses = after.losses,
  failures = after.failures, acquires = (count - 1) / taken, cpu = cpu / elapsed,
  memory = memory / (count - 1), passes = passes / elapsed, per_pass = renewals / passes,
  cpu_per_pass = 1e6 * cpu / passes, cpu_per_renewal = 1e6 * cpu / renewals,
  trips_per_pass = gained "round_trips" / passes, delay = after.longest_delay }
local words = {}
for name, value in pairs(line) do words[#words + 1] = ("%s=%.9g"):format(name, value) end
print(table.concat(words, " "))
client:close()
