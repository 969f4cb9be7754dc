-- A job that every machine starts at the same time, and only one of them does: who finds it taken
-- skips it. That is not an error; a server that cannot be asked is one.
--
--     lua5.4 examples/try_lock.lua [server [seconds]]     run it twice at the same time

local memlock = require "memlock"

local server, seconds = arg[1] or "127.0.0.1:11211", tonumber(arg[2]) or 1

local lock = memlock.client(server):lock("clean-up", { ttl = 60 })
local ok, message, code = lock:acquire() -- one try, no wait

if ok then
  print "cleaning up"
  memlock.sleep(seconds) -- the work
  lock:release()
  print "done"
elseif code == "held" then
  print("skipped: " .. message)
else
  io.stderr:write("cannot tell whether to clean up: ", message, "\n")
  os.exit(1)
end
