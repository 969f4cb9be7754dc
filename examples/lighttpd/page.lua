-- Serves the page; runs anew for each request. lighttpd.conf tells how to try it.

local cached = require "cached"
local site = require "site"

-- The expensive part.
local function make()
  local program = assert(io.popen(site.command))
  local page = program:read "a"
  assert(program:close())
  return page
end

local page, message = cached(site.client, "front-page", {
  fresh = site.fresh,
  ttl = 5, -- longer than it takes to make the page
  wait = 1, -- where there is none at all; the whole worker waits, so better say "later" soon
}, make)

local response = lighty.r
if not page then
  response.resp_header["Retry-After"] = "1"
  response.resp_body.set { "Later, please: ", message, "\n" }
  return 503
end
response.resp_header["Content-Type"] = "text/plain"
response.resp_body.set { page }
return 200
