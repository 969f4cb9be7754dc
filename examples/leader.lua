-- One of several programs leads. When it ends, hangs or is cut off, another one takes over.
--
--     lua5.4 examples/leader.lua [server [ttl]]     start it a few times; kill the one that leads
--
-- The leader keeps the lock for as long as it lives: a thread renews it. It works in short steps,
-- and asks before each of them whether it still leads, which takes no network. A step that must
-- never come too late goes with the token to a store that refuses old ones: fenced_sqlite.lua.

local memlock = require "memlock"

local server, ttl = arg[1] or "127.0.0.1:11211", tonumber(arg[2]) or 5

local lock = memlock.client(server):lock("leader", { ttl = ttl, auto_refresh = true })

local function step(token)
  print(("leading, under token %d"):format(token))
end

io.stdout:setvbuf "line"
while true do
  local ok, message, code = lock:acquire(60) -- a minute at a time, to say what is wrong meanwhile
  if ok then
    while lock:held() do
      step(lock:token())
      memlock.sleep(ttl / 20)
    end
    print "leading no more"
  elseif code ~= "held" then
    io.stderr:write(message, "\n")
  end
end
