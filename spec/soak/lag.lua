--- The clockwork: how late this machine lets a process that sleeps wake up. Time bounds are judged
-- with that in mind.
--
--     lua5.4 spec/soak/lag.lua JOURNAL
--
-- Ends with its standard input.

local posix = require "memlock_posix"
local journal = require "spec.soak.journal"

local TICK = 0.005
local NOTEWORTHY = 0.01

local write = journal.open(arg[1])
local before = posix.now()
while #posix.poll({ 0 }, TICK) == 0 do
  local now = posix.now()
  if now - before - TICK > NOTEWORTHY then
    write("lag %.6f %.6f", now, now - before - TICK)
  end
  before = now
end
