-- A job that all machines start at the same time, and that is done once for each slot of time.
--
--     0 * * * *  lua5.4 once_per_slot.lua 10.0.0.1:11211 report 3600 'make-report --daily'
--
--     lua5.4 examples/once_per_slot.lua [server [name [period [command [slot]]]]]
--
-- The lock alone would not do: it is free again once the job is done, and a machine whose clock is
-- a little late would do it again. So the last slot that was done is remembered next to it, and
-- looked at under the lock.
--
-- The slot counts as done after the job: when the job fails, or its machine does, the next of those
-- that wait does it. So a job may be begun more than once, but never while another one is at it.
-- (To rather miss a slot than begin it twice, remember it before the job.)

local memlock = require "memlock"

local server, name = arg[1] or "127.0.0.1:11211", arg[2] or "report"
local period, command = tonumber(arg[3]) or 60, arg[4] or "echo the report"
local slot = math.tointeger(tonumber(arg[5])) or os.time() // period

local client = memlock.client(server)
local done = "done:" .. name -- the key of the last slot that was done
local lock = client:lock("job:" .. name, {
  ttl = 5,
  auto_refresh = true, -- for as long as the job takes
  max_hold = period, -- but a job that hangs must not keep the next slot from being done
  wait = period / 2,
})

local function last_done()
  local _, value = assert(client:update(done, function() end)) -- changes nothing
  return math.tointeger(tonumber(value)) or -1
end

local ok, outcome, code = lock:with(function()
  if last_done() >= slot then return "done by another" end
  if not os.execute(command) then error("the job failed: " .. command, 0) end
  assert(client:update(done, function(old)
    return ("%d"):format(math.max(slot, tonumber(old) or -1))
  end))
  return "done"
end)

if not ok and code == "held" then
  outcome = "still being done by another"
elseif not ok then
  error(outcome, 0)
end
print(("%s, slot %d: %s"):format(name, slot, outcome))
