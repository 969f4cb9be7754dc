-- Many programs want the same value at the moment when it gets old: one makes it anew.
--
--     lua5.4 examples/stampede.lua [server [fresh [seconds]]]     start it some times at once
--
-- Prints the value, and before it whether it was this program that made it.

package.path = (arg[0]:match "^.*/" or "./") .. "lib/?.lua;" .. package.path

local cached = require "cached"
local memlock = require "memlock"

local server = arg[1] or "127.0.0.1:11211"
local fresh, seconds = tonumber(arg[2]) or 10, tonumber(arg[3]) or 1

local client = memlock.client(server)

local function make()
  print "making it"
  io.flush()
  memlock.sleep(seconds) -- the expensive part
  return ("made at %s"):format(os.date "%H:%M:%S")
end

print(assert(cached(client, "stampede", { fresh = fresh, ttl = 2 }, make)))
