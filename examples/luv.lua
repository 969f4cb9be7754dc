-- Waits for a lock in a libuv loop, which goes on: all pauses of memlock are made by the function
-- that the client got as `sleep`, and it may yield. While the lock is held, the loop watches a
-- descriptor that becomes readable when the lock is lost.
--
--     lua5.4 examples/luv.lua [server]
--
-- It needs luv (Debian: lua-luv).

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
  local lock = client:lock("loop-luv", {
    auto_refresh = true, -- a thread renews it, and the loop hears when it is lost
    on_lost = function(_, message) print("stop the work: " .. message) end,
  })
  local watcher = uv.new_poll(client:fd())
  watcher:start("r", function() client:poll() end)

  local begin = uv.hrtime()
  assert(lock:acquire(5))
  print(("got the lock after %.1f s, and the loop ticked %d times meanwhile"):format(
    (uv.hrtime() - begin) / 1e9, ticks))
  lock:release()
  watcher:close()
  ticker:close()
end)

uv.run()
