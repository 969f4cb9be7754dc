--- Many HTTP requests at a time, from several processes, and what came of them.

local cqueues = require "cqueues"
local cqsocket = require "cqueues.socket"
local socket = require "socket"
local support = require "spec.support"

local crowd = {}

-- One request on an open connection.
-- @return status, body, and whether the server hangs up now
local function request(connection, path)
  local function read(what)
    local text, problem = connection:read(what)
    if not text then error(("no answer from the server: %s"):format(problem or "it hung up")) end
    return text
  end
  connection:write(("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"):format(path))
  connection:flush()
  local status = read "*l":match "^HTTP/1.1 (%d+)"
  local length, closes
  repeat
    local line = read "*l":lower()
    length = length or line:match "^content%-length: (%d+)"
    closes = closes or line:find "^connection: close" ~= nil
  until line == "\r"
  return tonumber(status), length == "0" and "" or read(tonumber(length)), closes
end

local function connect(port)
  local connection = cqsocket.connect { host = "127.0.0.1", port = port, nodelay = true }
  connection:setmode("b", "bf")
  connection:settimeout(30)
  return connection
end

--- One request on a connection of its own.
-- @return status, body
function crowd.get(port, path)
  local status, body
  local loop = cqueues.new()
  loop:wrap(function()
    local connection = connect(port)
    status, body = request(connection, path or "/")
    connection:close()
  end)
  assert(loop:loop())
  return status, body
end

-- In a process of its own: `connections` that ask for the page again and again until each has seen
-- version `last`, or nothing new has come for a long time. Pages read "page N".
-- @return seen: by version, `first` and `last` (when, by the wall clock) and `count`; and the
--   answers that were not as they should be
local function ask(port, path, connections, last)
  local seen, wrong = {}, {}
  local newest_of_all, since = 0, support.now()
  local loop = cqueues.new()
  for _ = 1, connections do
    loop:wrap(function()
      local connection = connect(port)
      local newest = 0
      while newest < last do
        local status, body, closes = request(connection, path)
        if closes then
          connection:close()
          connection = connect(port)
        end
        local version = tonumber(body:match "^page (%d+)\n$")
        if status ~= 200 or not version or version < newest then
          wrong[#wrong + 1] = ("%d, %q after version %d"):format(status, body, newest)
          break
        end
        newest = version
        if newest > newest_of_all then newest_of_all, since = newest, support.now() end
        if support.now() - since > 45 then
          wrong[#wrong + 1] = ("nothing but version %d for 45 s"):format(newest)
          break
        end
        local now = socket.gettime()
        local entry = seen[version] or { first = now, count = 0 }
        entry.last, entry.count = now, entry.count + 1
        seen[version] = entry
      end
      connection:close()
    end)
  end
  assert(loop:loop())
  return seen, wrong
end

--- Has `total` requests under way at each moment, from four processes, until all connections have
-- seen version `last` of the page.
-- @param ports the servers that are asked, in turn
-- @param watch called again and again meanwhile
-- @return seen, by version: `first`, `last`, `count`; and a list of wrong answers
function crowd.ask(ports, path, total, last, watch)
  local children = {}
  for i = 1, 4 do
    children[i] = support.child(function()
      return ask(ports[(i - 1) % #ports + 1], path, total // 4, last)
    end)
  end
  local seen, wrong = {}, {}
  for _, child in ipairs(children) do
    while child:alive() do
      watch()
      support.sleep(0.02)
    end
    local of_child, wrong_of_child = child:join()
    for version, entry in pairs(of_child) do
      local all = seen[version] or { first = entry.first, last = 0, count = 0 }
      all.first, all.last = math.min(all.first, entry.first), math.max(all.last, entry.last)
      all.count = all.count + entry.count
      seen[version] = all
    end
    table.move(wrong_of_child, 1, #wrong_of_child, #wrong + 1, wrong)
  end
  return seen, wrong
end

return crowd
