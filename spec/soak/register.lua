--- The guarded register: what a lock protects. It remembers the largest token of each name and
-- refuses smaller ones.
--
--     lua5.4 spec/soak/register.lua
--
-- Prints `port N`. A request is a line `NAME TOKEN`, its answer `accepted LARGEST` or `refused
-- LARGEST`; the request `counts` is answered with how many it accepted and refused. Ends with its
-- standard input.

local socket = require "socket"
local net = require "spec.support.net"

local listener, port = net.listen(64)
print("port " .. port)
io.stdout:flush()

local largest = {}
local counts = { accepted = 0, refused = 0 }

local function answer(line)
  if line == "counts" then return ("%d %d"):format(counts.accepted, counts.refused) end
  local name, token = line:match("^(%S+) (%d+)$")
  token = math.tointeger(tonumber(token))
  local before = largest[name] or 0
  local verdict = token < before and "refused" or "accepted"
  counts[verdict] = counts[verdict] + 1
  if token > before then largest[name] = token end
  return ("%s %d"):format(verdict, largest[name])
end

local stdin = { getfd = function() return 0 end, dirty = function() return false end }
local sources = { stdin, listener }

local function forget(connection)
  for i = #sources, 1, -1 do
    if sources[i] == connection then table.remove(sources, i) end
  end
  connection:close()
end

-- A request fits into one segment, so that its line is there as soon as anything is.
local function serve(connection)
  local line = connection:receive("*l")
  if line then connection:send(answer(line) .. "\n") else forget(connection) end
end

while true do
  for _, source in ipairs((socket.select(sources))) do
    if source == stdin then
      os.exit(true, true) -- nothing is ever written to it: it has ended
    elseif source == listener then
      local connection = listener:accept()
      if connection then
        connection:setoption("tcp-nodelay", true)
        sources[#sources + 1] = connection
      end
    else
      serve(source)
    end
  end
end
