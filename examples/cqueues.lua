-- Waits for a lock in a cqueues loop, which goes on: all pauses of memlock are made by the function
-- that the client got as `sleep`, and it may yield.
--
--     lua5.4 examples/cqueues.lua [server]
--
-- It needs cqueues (Debian: lua-cqueues).

local cqueues = require "cqueues"
local memlock = require "memlock"

local server = arg[1] or "127.0.0.1:11211"
local loop = cqueues.new()
local ticks, done = 0, false

-- Somebody has the lock, for half a second.
local holder = memlock.client(server):lock("loop-cqueues")
assert(holder:acquire(5))
loop:wrap(function()
  cqueues.sleep(0.5)
  holder:release()
end)

loop:wrap(function()
  local client = memlock.client(server, { sleep = cqueues.sleep })
  local lock = client:lock("loop-cqueues")
  local start = cqueues.monotime()
  assert(lock:acquire(5))
  print(("got the lock after %.1f s, and the loop ticked %d times meanwhile"):format(
    cqueues.monotime() - start, ticks))
  lock:release()
  done = true
end)

loop:wrap(function()
  repeat
    cqueues.sleep(0.01)
    ticks = ticks + 1
  until done
end)

assert(loop:loop())
