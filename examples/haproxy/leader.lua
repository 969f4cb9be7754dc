-- Of several HAProxys one leads: it does what should be done once. The service tells who it is.
-- haproxy.cfg tells how to try it.

local host = require "host"
local memlock = require "memlock"

local client = memlock.client(os.getenv "MEMCACHED" or "127.0.0.1:11211", {
  timeout = tonumber(os.getenv "TIMEOUT") or 0.2, -- how long the thread may stand still
  sleep = function(seconds)
    if host.is_stopping() then return false end -- ends the wait: others shall lead
    host.sleep(seconds)
  end,
})

-- No auto_refresh: HAProxy allows itself no new threads. The task renews the lock.
local lock = client:lock("haproxy-leader", { ttl = 5 })

local function lead()
  core.log(core.notice, ("leading, under token %d"):format(lock:token()))
  while lock:held() and not host.is_stopping() do
    -- What the leader does, in short steps.
    host.sleep(0.5)
    lock:refresh() -- should it fail, there is time for more tries while the lock is held
  end
  lock:release() -- or it is lost, and there is nothing to release
end

local function run()
  repeat
    local ok, message, code = lock:acquire(60)
    if ok then
      lead()
    elseif code ~= "held" and code ~= "cancelled" then
      core.log(core.err, message)
    end
  until host.is_stopping()
end

-- core.thread is 0 with lua-load; with lua-load-per-thread one thread is enough.
if core.thread <= 1 then core.register_task(run) end

core.register_service("leader", "http", function(applet)
  if lock:held() then
    host.answer(applet, 200, ("leading, under token %d\n"):format(lock:token()))
    return
  end
  local holder, message = client:holder(lock:name())
  if holder then
    host.answer(applet, 200, ("following %s\n"):format(holder.label or "a stranger"))
  elseif holder == false then
    host.answer(applet, 200, "nobody leads\n")
  else
    host.answer(applet, 503, message .. "\n")
  end
end)
