--- A worker in Lua: what worker.h describes, with memlock as Lua programs use it.
--
--     lua5.4 bench/worker.lua SERVER NAME [key=value ...]      options of the lock

local memlock = require "memlock"
local posix = require "memlock_posix"

local server, name = arg[1], arg[2]
local options = {}
for i = 3, #arg do
  local key, value = arg[i]:match "^(%g-)=(%g+)$"
  options[key] = value == "true" or tonumber(value)
end

local client = memlock.client(server)
local lock = client:lock(name, options)

local function cycle()
  assert(lock:acquire())
  assert(lock:release())
end

local function wait_for(deadline)
  local got, message, code = lock:acquire(math.max(0, deadline - posix.now()))
  assert(got or code == "held", message)
  return got
end

local function compete(path, start, stop, hold, pause)
  local journal = assert(io.open(path, "w"))
  journal:setvbuf "no"
  posix.sleep(math.max(0, start - posix.now()))
  while true do
    local asked = posix.now()
    if asked >= stop then break end
    journal:write(("asked %.9f\n"):format(asked))
    if not wait_for(stop) then break end
    local got = posix.now()
    posix.sleep(hold)
    journal:write(("held %.9f %.9f\n"):format(got, posix.now()))
    assert(lock:release())
    posix.sleep(pause * math.random())
  end
  journal:close()
  return "ok"
end

local commands = {}

function commands.acquire() return lock:acquire() and "ok" or "no" end
function commands.refresh() return lock:refresh() and "ok" or "no" end
function commands.release() return lock:release() and "ok" or "no" end
function commands.renewals() return client:stats().renewals end

function commands.cycles(count)
  for _ = 1, tonumber(count) do cycle() end
  return "ok"
end

function commands.run(seconds)
  seconds = tonumber(seconds)
  local cycles, start, cpu = 0, posix.now(), os.clock()
  local stop
  repeat
    cycle()
    cycles = cycles + 1
    stop = posix.now()
  until stop - start >= seconds
  return ("%d %.9f %.9f"):format(cycles, stop - start, os.clock() - cpu)
end

function commands.compete(path, ...)
  local times = table.pack(...)
  for i = 1, times.n do times[i] = tonumber(times[i]) end
  return compete(path, table.unpack(times))
end

io.stdout:setvbuf "line"
print "ready"
for line in io.lines() do
  local words = {}
  for word in line:gmatch "%S+" do words[#words + 1] = word end
  print(commands[words[1]](table.unpack(words, 2)))
end
