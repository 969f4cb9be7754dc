local memlock = require "memlock"
local client  = memlock.client(arg[1] or "127.0.0.1:11211")
local lock    = client:lock("nightly-report", { ttl = 30 })

local function write_report(token)
  print("report written under token " .. token)
end

local ok, message = lock:acquire(5)  -- waits up to five seconds
if ok then
  write_report(lock:token())         -- fencing token for what you write to
  lock:refresh()                     -- thirty more seconds
  lock:release()
else
  io.stderr:write(message, "\n")     -- who has it, or what is wrong
end
