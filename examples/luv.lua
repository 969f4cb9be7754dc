-- Waits for a lock in a libuv loop, which goes on: all pauses of memlock are made by the function
-- that the client got as `sleep`, and it may yield.
--
--     lua5.4 examples/luv.lua [server]

local uv = require "luv"
local memlock = require "memlock"

local server = arg[1] or "127.0.0.1:11211"

local function start(fn)
  assert(coroutine.resume(coroutine.create(fn)))
end

-- Lets the loop run on until a timer resumes this coroutine.
local function sleep(seconds)
  local waiting = coroutine.running()
  local timer = uv.new_timer()
  uv.update_time()
  timer:start(math.ceil(seconds * 1000), 0, function()
    timer:close()
    assert(coroutine.resume(waiting))
  end)
  coroutine.yield()
end

local ticks = 0
local ticker = uv.new_timer()
ticker:start(10, 10, function() ticks = ticks + 1 end)

-- Somebody has the lock, for half a second.
local holder = memlock.client(server):lock("loop-luv")
assert(holder:acquire(5))
start(function()
  sleep(0.5)
  holder:release()
end)

start(function()
  local client = memlock.client(server, { sleep = sleep })
  local lock = client:lock("loop-luv")
  local begin = uv.hrtime()
  assert(lock:acquire(5))
  print(("got the lock after %.1f s, and the loop ticked %d times meanwhile"):format(
    (uv.hrtime() - begin) / 1e9, ticks))
  lock:release()
  ticker:close()
end)

uv.run()
