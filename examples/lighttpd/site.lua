-- What lives longer than a request: one client for each worker. It connects with its first
-- operation.

local memlock = require "memlock"

return {
  client = memlock.client(os.getenv "MEMCACHED" or "127.0.0.1:11211", {
    timeout = tonumber(os.getenv "TIMEOUT") or 0.5, -- how long the worker may stand still
  }),
  command = os.getenv "COMMAND" or "sleep 1; date", -- prints the page
  fresh = tonumber(os.getenv "FRESH") or 5, -- seconds until the page gets old
}
