-- One of the workers: takes the lock, adds one to the number in the file, gives up the lock, and
-- so on. What it does it says on its standard output, for journal.lua to read.

local memlock = require "memlock"
local settings = require "demo.settings"

-- A worker is a process of its own, so these are there once.
local me -- its number
local path -- of the file with the number
local client, lock

-- One line in one write, so that the lines of several workers do not mix.
local function report(...)
  io.stdout:write(table.concat({ me, ... }, " "), "\n")
  io.stdout:flush()
end

local function always() return true end

-- Adds one to the number in the file, slowly; `allowed` has the last word before the write.
-- Overwrites it in place: without a lock that loses additions, but the file stays whole.
local function add_one(allowed)
  local file = assert(io.open(path, "r+"))
  local number = assert(file:read "n")
  memlock.sleep(settings.moment)
  local good = allowed()
  if good then
    file:seek "set"
    assert(file:write(number + 1, "\n"))
  end
  assert(file:close())
  if good then report "wrote" end
  return good
end

-- Waits to be killed, with the lock and before the write: an addition that was not made.
local function get_stuck()
  report "stuck"
  memlock.sleep(settings.wait)
  error "nobody killed it"
end

-- Returns whether the addition was made.
local function locked_round(round)
  report "waits"
  local waited = client:stats().waited
  assert(lock:acquire(settings.wait))
  report("holds", lock:token(), client:stats().waited - waited)
  if me == settings.victim and round == settings.last_round then get_stuck() end

  -- Whoever was frozen for longer than the ttl does not hold the lock any more, and must not write.
  local added = add_one(function() return (lock:held()) end)
  lock:release() -- should it fail: the lease ends by itself
  return added
end

local function unlocked_round()
  report "works"
  return add_one(always)
end

local function work()
  local round = 1
  local do_round = settings.unlocked and unlocked_round or locked_round
  while round <= settings.rounds do
    if do_round(round) then round = round + 1 end
  end
end

return function(number, dir)
  me, path = number, dir .. "/number"
  client = memlock.client(dir .. "/socket", { label = settings.label(number) })
  lock = client:lock(settings.lock, { ttl = settings.ttl })
  local ok, message = pcall(work)
  client:close()
  if ok then
    report "ended"
  else
    report("failed", (tostring(message):gsub("\n", " ")))
  end
end
