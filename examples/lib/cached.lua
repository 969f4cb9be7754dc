-- A value that is expensive to make, shared by all machines through memcached. When it gets old,
-- one of them makes it anew; the others use the old one meanwhile, and wait only if there is none.
-- Without the lock, all of them would notice at the same moment, and make it at the same time.
--
--     local cached = require "cached"
--     local page, message, code = cached(client, "front-page", { fresh = 60 }, make)
--
-- ../stampede.lua shows it; the pages in ../lighttpd and ../haproxy use it. Fit for Lua 5.3, too.

-- In memcached: the token of who made it, the time when it gets old, and what was made.
local function pack(token, old_at, made)
  return ("%d %d %s"):format(token, old_at, made)
end

local function unpack(value)
  local token, old_at, made = (value or ""):match "^(%d+) (%d+) (.*)$"
  return { token = tonumber(token) or 0, old_at = tonumber(old_at) or 0, made = made }
end

-- What is there, without `made` when there is nothing; or nil, message, code.
local function read(client, key)
  local ok, value, code = client:update(key, function() end) -- changes nothing
  if not ok then return nil, value, code end
  return unpack(value)
end

local function is_fresh(entry)
  return entry.made and os.time() < entry.old_at
end

-- Unless a later holder of the lock has written: then this one took too long, and what it made is
-- from before. Should it fail, the next one who asks makes it again.
local function write(client, key, token, options, made)
  client:update(key, function(value)
    if unpack(value).token > token then return nil end
    return pack(token, os.time() + options.fresh, made)
  end, { ttl = options.usable })
end

--- The value of `key`, made by `make()`, which returns a string, where there is no fresh one.
-- @param options `fresh`: whole seconds until it gets old; `usable`: seconds until it is gone, and
--   all wait for a new one (0: never); `ttl`: longer than making it takes (10); `wait`: for how
--   long to wait where there is none (2 ttl + 5: one maker may die, and the next one makes it)
-- @return the value; or nil, message, code. An error in `make` comes out as it is.
local function cached(client, key, options, make)
  local entry, message, code = read(client, key)
  if not entry then return nil, message, code end
  if is_fresh(entry) then return entry.made end

  local ttl = options.ttl or 10
  local lock = client:lock("make:" .. key, {
    ttl = ttl,
    wait = entry.made and 0 or options.wait or 2 * ttl + 5, -- with an old one at hand nobody waits
  })
  local ok
  ok, message, code = lock:with(function()
    entry = read(client, key) or entry -- another may have made it since
    if is_fresh(entry) then return end
    entry = { made = make() }
    write(client, key, lock:token(), options, entry.made)
  end)
  if entry.made then return entry.made end -- new or old: where the lock is held, or in trouble, old
  return nil, ok and "nothing was made" or message, code
end

return cached
