--- How fast lock objects are made, and collected again.

local memlock = require "memlock"
local support = require "spec.support"
local lab = require "bench.lab"

local function rate(count, options)
  local client = memlock.client(lab.server("memcached").address)
  collectgarbage()
  local start = support.now()
  for _ = 1, count do client:lock("an-object", options) end
  collectgarbage()
  local elapsed = support.now() - start
  client:close()
  return count / elapsed
end

local function bytes_of_one()
  local client = memlock.client(lab.server("memcached").address)
  local locks = table.move({}, 1, 1000, 1, {})
  for i = 1, 1000 do locks[i] = false end
  collectgarbage()
  local before = collectgarbage "count"
  for i = 1, 1000 do locks[i] = client:lock "an-object" end
  collectgarbage()
  local bytes = (collectgarbage "count" - before) * 1024 / 1000
  client:close()
  return bytes
end

return function(name)
  lab.say "  lock objects"
  local rates = {}
  for i = 1, lab.amount(9, 3) do rates[i] = rate(lab.amount(100000, 5000)) end
  lab.save(name, { "rate", "bytes" }, { { rate = lab.median(rates), bytes = bytes_of_one() } })
end
