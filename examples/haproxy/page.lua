-- A service that answers with the page. When the page gets old, one request makes it anew; all
-- others get the old one, or wait where there is none, which holds up nobody else.
-- haproxy.cfg tells how to try it, and how to load it.

local cached = require "cached"
local host = require "host"
local memlock = require "memlock"

local client = memlock.client(os.getenv "MEMCACHED" or "127.0.0.1:11211", {
  sleep = host.sleep,
  timeout = tonumber(os.getenv "TIMEOUT") or 0.2, -- how long the thread may stand still
})

-- The expensive part: HAProxy must not stand still for it, so it yields, too.
local function make()
  local response = core.httpclient():get { url = os.getenv "UPSTREAM" }
  if response.status ~= 200 then error("the upstream answers " .. response.status) end
  return response.body
end

core.register_service("page", "http", function(applet)
  local page, message = cached(client, "front-page", {
    fresh = tonumber(os.getenv "FRESH") or 5,
    ttl = 5, -- longer than it takes to make the page
  }, make)
  if page then
    host.answer(applet, 200, page)
  else
    host.answer(applet, 503, "Later, please: " .. message .. "\n")
  end
end)
