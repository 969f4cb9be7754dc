--- A memcached whose answers go wrong on request: one process that passes commands on, one at a
-- time, and answers those that it is told to with something else.

local child = require "spec.support.child"
local codec = require "spec.support.codec"
local net = require "spec.support.net"
local socket = require "socket"

local spoiler = {}

local Spoiler = {}
Spoiler.__index = Spoiler

local stores = { add = true, set = true, replace = true, cas = true }

--------------------------------------------------------------------------------
-- In its process

-- A command as it was sent; nil when the client has hung up.
local function read_command(client)
  local line = client:receive("*l")
  if not line then return nil end
  local command = { line = line, verb = line:match("^%S*"), noreply = line:find(" noreply$") ~= nil,
    bytes = line .. "\n" }
  if stores[command.verb] then
    local size = tonumber(line:match("^%S+ %S+ %d+ %-?%d+ (%d+)"))
    command.bytes = line .. "\n" .. assert(client:receive(size + 2))
  end
  return command
end

-- luasocket takes the carriage return from a line; here nothing may be lost.
local function read_line(upstream)
  local line = {}
  repeat line[#line + 1] = assert(upstream:receive(1)) until line[#line] == "\n"
  return table.concat(line)
end

local function read_answer(upstream, command)
  if command.noreply then return "" end
  local answer = {}
  local many = command.verb == "get" or command.verb == "gets" or command.verb == "stats"
  repeat
    local line = read_line(upstream)
    answer[#answer + 1] = line
    local size = line:match("^VALUE %S+ %d+ (%d+)")
    if size then answer[#answer + 1] = assert(upstream:receive(tonumber(size) + 2)) end
  until not (many and line:find("^[VS][AT]")) -- VALUE, STAT
  return table.concat(answer)
end

local function pass_on(connection, command)
  assert(connection.upstream:send((command.bytes:gsub("^([^\r\n]*)\n", "%1\r\n"))))
  return read_answer(connection.upstream, command)
end

-- What a command is answered with, and whether that is the end of the connection.
local function answer(state, connection, command)
  local plan = state.plan
  state.log[#state.log + 1] = command.line
  local number = #state.log
  if not plan or number < plan.first or number > plan.last then
    return pass_on(connection, command)
  end
  if plan.double then
    local text = pass_on(connection, command)
    return text .. text
  end
  if plan.polite and command.noreply then return "" end
  return plan.text, plan.hang_up
end

local function serve(channel, listener, address)
  local state = { log = {} }
  local sockets, connections = { listener }, {}

  local function hang_up(client)
    connections[client].upstream:close()
    connections[client] = nil
    client:close()
    for i = #sockets, 1, -1 do
      if sockets[i] == client then table.remove(sockets, i) end
    end
  end

  local function step(client)
    local command = read_command(client)
    if not command or command.verb == "quit" then return hang_up(client) end
    if command.verb == "!plan" then
      state.plan = load("return " .. command.line:sub(7), "=plan", "t", {})()
      state.log = {}
      client:send("OK\n")
    elseif command.verb == "!log" then
      client:send(table.concat(state.log, "\t") .. "\n")
    else
      local text, last = answer(state, connections[client], command)
      if text ~= "" then client:send(text) end
      if last then hang_up(client) end
    end
  end

  channel:send("ready")
  while true do
    for _, ready in ipairs((socket.select(sockets))) do
      if ready == listener then
        local client = assert(listener:accept())
        client:setoption("tcp-nodelay", true)
        connections[client] = { upstream = assert(net.connect(address, 60)) }
        sockets[#sockets + 1] = client
      elseif connections[ready] then
        step(ready)
      end
    end
  end
end

--------------------------------------------------------------------------------
-- For the test

--- Starts one in front of a server.
-- @return a spoiler: `address`, `port`, and the methods below; it passes everything on at first
function spoiler.start(server)
  local listener, port = net.listen(64)
  local running = child.fork(serve, listener, server.address)
  listener:close()
  running:receive()
  local self = setmetatable({ child = running, port = port, address = "127.0.0.1:" .. port },
    Spoiler)
  return self
end

-- One line to the process, over a connection of its own; returns the line it answers.
function Spoiler:order(line)
  local control = assert(net.connect(self.address, 10))
  assert(control:send(line .. "\r\n"))
  local reply = control:receive("*l")
  control:close()
  return reply or error("the spoiler does not answer", 2)
end

--- Forgets what was sent, and spoils what `plan` tells (nil: nothing).
-- @param plan `first` and `last` (which commands, counted from now over all connections; last is
--   first by default), and what they are answered with, which does not reach the server: `text`,
--   then with `hang_up` the end of the connection; or, of what reaches the server, `double`: the
--   whole answer twice. Commands without reply are answered too, unless `polite`.
function Spoiler:plan(plan)
  local copy = {}
  for key, value in pairs(plan or {}) do copy[key] = value end
  copy.last = copy.last or copy.first
  local text = plan and codec.text(copy) or "nil"
  assert(self:order("!plan " .. text:gsub("\\\n", "\\n"):gsub("\r", "\\r")) == "OK")
end

--- The command lines that came since the last plan, in a list.
function Spoiler:log()
  local log = {}
  for entry in self:order("!log"):gmatch("[^\t]+") do log[#log + 1] = entry end
  return log
end

return spoiler
