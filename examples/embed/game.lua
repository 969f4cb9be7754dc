-- What host.c runs: gets the server, the time that one operation may take, and returns the function
-- that is a frame. Three tasks save the same player again and again, one at a time by a lock.

local memlock = require "memlock"

local server, timeout = ...

-- A task is a coroutine; it yields the seconds for which it wants to rest. So do memlock's pauses.
local function rest(seconds)
  return coroutine.yield(seconds)
end

local client = memlock.client(server, { timeout = timeout, sleep = rest })
local counts = { saved = 0, failed = 0 }

local function save_again_and_again()
  -- Renewed in the background: the lease needs no frame's time, however long a save takes.
  local lock = client:lock("player-7", { ttl = 2, wait = 5, auto_refresh = true })
  while true do
    local ok = lock:with(function()
      for _ = 1, 10 do -- a save of many frames
        rest(0.1)
        if not lock:held() then return end
      end
    end)
    local key = ok and "saved" or "failed"
    counts[key] = counts[key] + 1
    rest(0.05)
  end
end

local tasks = {}
for i = 1, 3 do tasks[i] = { co = coroutine.create(save_again_and_again), wake = 0 } end

-- One step of one task, the one that has been due for longest. A step asks the server once at most,
-- and for no longer than `timeout`: several of them in one frame could take several timeouts.
local function frame(now)
  local due
  for _, task in ipairs(tasks) do
    if task.wake <= now and not (due and due.wake <= task.wake) then due = task end
  end
  if not due then return end
  local ok, seconds = coroutine.resume(due.co)
  if not ok then error(debug.traceback(due.co, seconds)) end
  due.wake = now + seconds
end

return frame, counts
