-- memlock at work: four programs add one to the number in a file, again and again, under one lock.
-- One of them is killed while it holds the lock; in the end not a single addition is missing.
--
--     make demo               with the lock
--     make demo UNLOCKED=1    the same without it, to see what it is good for
--
-- What matters is in demo/worker.lua. The rest starts the workers, watches them and shows them.

local here = arg[0]:match "^.*/" or "./"
package.path = here .. "?.lua;" .. package.path

-- Ends with a sentence for people instead of a traceback.
local function die(...)
  io.stderr:write("demo: ", string.format(...), "\n")
  os.exit(1)
end

if tonumber(_VERSION:match "%d+%.%d+") < 5.3 then
  die("this is %s, but memlock is for Lua 5.3 and later. Run `make demo`.", _VERSION)
end

local found, memlock = pcall(require, "memlock")
if not found and memlock:find "module 'memlock' not found" then
  die("the module memlock is not built yet, or Lua does not find it. Run `make demo`,\n%s",
    "or `make` and then LUA_CPATH='build/?.so;;' lua5.4 examples/demo.lua")
elseif not found then
  die("the module memlock cannot be loaded. `make demo` builds it. Lua says:\n%s", memlock)
end

if arg[1] == "worker" then
  require "demo.worker"(tonumber(arg[2]), arg[3])
  os.exit(true, true)
end

local crew = require "demo.crew"
local journal = require "demo.journal"
local screen = require "demo.screen"
local settings = require "demo.settings"

local TICK = 0.1 -- seconds between two looks at the workers
local PATIENCE = 15 -- seconds without news after which something must be wrong

---- The kill ----

-- Who holds the lock, by what memcached says.
local function holder(client)
  local record, message = client:holder(settings.lock)
  if record == nil then error(message, 0) end
  return record and record.label
end

local function wait_for_death(victim, log)
  for _ = 1, PATIENCE / TICK do
    log:read()
    if victim.state == "killed" then return end
    memlock.sleep(TICK)
  end
  error(("worker %d does not die"):format(victim.number), 0)
end

-- The victim holds the lock and waits for this, before its write: kills it there and then.
local function kill(victim, team, log, client, view)
  local label = settings.label(victim.number)
  view:note("Worker %d holds the lock and has not written yet. It is killed with SIGKILL.",
    victim.number)
  local before = holder(client)
  team:kill(victim)
  wait_for_death(victim, log)
  if before ~= label or holder(client) ~= label then
    error("this machine was so busy that the lock ran out before its holder was killed.\n" ..
      "Please try again.", 0)
  end
  view:note "It is dead, but for memcached it holds the lock: nobody else can have it."
  view:note("A lease ends by itself: its ttl is %g s, and memcached drops it within %d s.",
    settings.ttl, settings.dropped_within)
end

---- Watching ----

-- The worker that got the lock after the victim, as soon as there is one.
local function heir(log)
  local victim = log:worker_in "killed"
  return victim and log.last_holder ~= victim and log.last_holder
end

-- Looks at the workers until all have ended.
local function watch(team, log, client, view)
  local idle, heir_seen = 0, false
  while not log:all_ended() do
    idle = log:read() and 0 or idle + TICK
    if idle > PATIENCE then
      error(("nothing has happened for %d s: some process has died, or hangs.\n%s"):format(
        PATIENCE, team:errors()), 0)
    end

    local victim = log:worker_in "stuck"
    if victim then kill(victim, team, log, client, view) end
    local next_one = heir(log)
    if next_one and not heir_seen then
      view:note("The lease has ended: worker %d, which waited for %.1f s, got the lock.",
        next_one.number, next_one.longest)
      heir_seen = true
    end

    view:draw(log)
    memlock.sleep(TICK)
  end
  view:finish(log)
end

---- The verdict ----

-- With the lock, all must be right.
local function judge(expected, number, log)
  if number ~= expected then
    print "These should be equal. That is a bug: please report it."
  elseif not log.tokens_rise then
    print "A token was not larger than the one before it. That is a bug: please report it."
  else
    print "Nothing was lost, and every token was larger than the one before it."
    return true
  end
  return false
end

-- Without it, the losses are what there is to see.
local function tell_losses(expected, number)
  if number == expected then
    print "By chance, no update was lost this time. Please run it again."
    return
  end
  print(("%d updates were lost: workers read the same number and wrote the same sum."):format(
    expected - number))
  print "`make demo` shows the same work under a lock."
end

-- Compares the number in the file with the rounds that the workers reported. Returns whether all
-- is as it should be.
local function verdict(team, log)
  local expected, rounds = 0, {}
  for i, worker in ipairs(log.workers) do
    expected = expected + worker.rounds
    rounds[i] = worker.rounds
  end
  local number = team:read_number()
  print(("\nExpected: %4d = %s, the rounds that were done"):format(
    expected, table.concat(rounds, " + ")))
  print(("Found:    %4d in the file"):format(number))
  if not settings.unlocked then return judge(expected, number, log) end
  tell_losses(expected, number)
  return true
end

---- The whole story ----

-- Returns whether all went as it should. The caller ends the team.
local function story(team)
  local client = team:start()
  local log = journal.open(team.journal)
  local view = screen.open()
  print(("%d workers add 1 to the number in a file, %d times each, %s.\n"):format(
    settings.workers, settings.rounds, settings.unlocked and "WITHOUT a lock" or "under one lock"))
  watch(team, log, client, view)
  client:close()
  return verdict(team, log)
end

local team = crew.new()
local ok, result = pcall(story, team)
team:finish()
io.stdout:flush()
if not ok and tostring(result):find("interrupted!", 1, true) then -- Lua's word for Ctrl-C
  io.stderr:write "\ndemo: interrupted; everything it started has ended.\n"
  os.exit(130)
elseif not ok then
  die("%s", result)
end
os.exit(result)
