-- Work in a libuv loop that may go on only while a lock is held: the lock is renewed in the
-- background for as long as it takes, and should it be lost all the same, the loop is told and the
-- work stops at once.
--
--     lua5.4 examples/renewal.lua [server [seconds]]
--
-- It needs luv (Debian: lua-luv).

local uv = require "luv"
local memlock = require "memlock"

local server = arg[1] or "127.0.0.1:11211"
local seconds = tonumber(arg[2]) or 10

local client = memlock.client(server)
local worker, watcher, finish = uv.new_timer(), nil, uv.new_timer()
local lost

local function stop()
  worker:close()
  watcher:close()
  finish:close()
end

local lock = client:lock("renewal", {
  ttl = 2,
  auto_refresh = true,
  max_hold = 3600, -- should the work hang, others wait no longer than this
  on_lost = function(_, message)
    lost = message
    stop()
  end,
})

assert(lock:acquire(5))
print "got the lock"

-- The descriptor is readable when something was lost; poll() then calls on_lost, from here.
watcher = uv.new_poll(client:fd())
watcher:start("r", function() client:poll() end)

worker:start(0, 100, function()
  print(("working, under token %d"):format(lock:token()))
  io.flush()
end)
finish:start(math.ceil(seconds * 1000), 0, stop)

uv.run()

if lost then
  print("stopped: " .. lost)
  client:close()
  os.exit(1)
end
lock:release()
client:close()
print "done, and the lock is free"
