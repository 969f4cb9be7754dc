--- A memcached that tells what it is not.

local fake = require "spec.support.fake"
local memcached = require "spec.support.memcached"
local raw_client = require "spec.support.raw"

--- A memcached with -M that has been up for long, and answers `stats` with these changed.
-- @return a fake server
local function disguised(changes)
  local server = memcached.start { args = { "-M" } }
  local truth = server:raw()
  local facts, settings = truth:stats(), truth:stats("settings")
  facts.uptime = "100000"
  for name, value in pairs(changes) do
    if settings[name] and name == "evictions" and not value:find("%d") then
      settings[name] = value
    else
      facts[name] = value
    end
  end
  local function listing(stats)
    local lines = {}
    for name, value in pairs(stats) do
      lines[#lines + 1] = ("STAT %s %s\r\n"):format(name, value)
    end
    return table.concat(lines) .. "END\r\n"
  end
  -- Locks are left to the real one.
  return fake.start(function(connection)
    local raw = raw_client.connect(server.address)
    while true do
      local command = connection:read_command()
      if not command then return end
      if command.line == "version" then
        connection:write(("VERSION %s\r\n"):format(facts.version))
      elseif command.name == "stats" then
        facts.time = changes.time and tostring(os.time() + changes.time) or tostring(os.time())
        connection:write(listing(command.line:find("settings") and settings or facts))
      elseif command.name ~= "quit" then
        connection:write(raw:answer(command))
      end
    end
  end)
end

return disguised
