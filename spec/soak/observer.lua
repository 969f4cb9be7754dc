--- The observer: writes down what really stands in the server, as often as it can.
--
--     lua5.4 spec/soak/observer.lua JOURNAL ADDRESS KEY...
--
-- It has a connection of its own, past all relays, and shares no code with memlock. What it saw was
-- so at some moment between the two times of a line. What does not change is written down
-- now and then only. Ends with its standard input.

local posix = require "memlock_posix"
local net = require "spec.support.net"
local journal = require "spec.soak.journal"

local POLL = 0.002 -- seconds between two looks
local REPEAT = 0.05 -- and between two lines about the same

local write = journal.open(arg[1])
local address = arg[2]
local keys = table.move(arg, 3, #arg, 1, {})
local request = "gets " .. table.concat(keys, " ") .. "\r\n"

-- Reads one whole answer; nil when the connection failed.
local function look(connection)
  if not connection:send(request) then return nil end
  local items = {}
  while true do
    local line = connection:receive("*l")
    if line == "END" then return items end
    local key, size, cas = (line or ""):match("^VALUE (%S+) %d+ (%d+) (%d+)$")
    if not key then return nil end
    local block = connection:receive(tonumber(size) + 2)
    if not block then return nil end
    items[key] = { value = block:sub(1, -3), cas = cas }
  end
end

local nothing = { value = "", cas = "0" }
local last = {}

local function note(key, item, begun, ended)
  local before = last[key]
  if before and before.value == item.value and before.cas == item.cas
    and begun < before.written + REPEAT
  then
    return
  end
  write("saw %s %.6f %.6f %s %s", key, begun, ended, item.cas, item.value)
  last[key] = { value = item.value, cas = item.cas, written = begun }
end

local connection
while #posix.poll({ 0 }, POLL) == 0 do
  connection = connection or net.connect(address, 30)
  local begun = posix.now()
  local items = connection and look(connection)
  local ended = posix.now()
  if items then
    for _, key in ipairs(keys) do note(key, items[key] or nothing, begun, ended) end
  elseif connection then
    connection:close()
    connection = nil
  end
end
