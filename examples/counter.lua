-- Counts visits. update reads, calls the function, and writes only if nobody else wrote meanwhile;
-- if somebody did, it starts over. So the function may run several times: it only computes.
--
--     lua5.4 examples/counter.lua [server [key]]

local memlock = require "memlock"

local server, key = arg[1] or "127.0.0.1:11211", arg[2] or "visits"

local client = memlock.client(server)

local ok, visits, code = client:update(key, function(old) -- nil when there is no such key
  return ("%d"):format((tonumber(old) or 0) + 1)
end)

if ok then
  print("visit number " .. visits)
else
  io.stderr:write(code, ": ", visits, "\n") -- here the second value is the message
  os.exit(1)
end
