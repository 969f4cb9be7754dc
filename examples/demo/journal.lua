-- What the workers have reported, as a table of workers.
--
-- All write to the end of one file, a line at a time. A worker says "holds" after it got the lock
-- and "wrote" before it gives it up, so the order of the lines is the order of things.

local settings = require "demo.settings"

local Journal = {}
Journal.__index = Journal

function Journal.open(path)
  local self = { file = assert(io.open(path)), rest = "", workers = {}, tokens_rise = true }
  for number = 1, settings.workers do
    self.workers[number] =
      { number = number, state = "starts", rounds = 0, waited = 0, longest = 0 }
  end
  return setmetatable(self, Journal)
end

-- What a report means, beyond the new state of the worker.
local effects = {}

function effects.holds(self, worker, values)
  local token, waited = values:match "^(%d+) (%S+)$"
  token, waited = math.tointeger(tonumber(token)), tonumber(waited)
  if self.last_token and token <= self.last_token then self.tokens_rise = false end
  self.last_token, self.last_holder = token, worker
  worker.token = token
  worker.waited = worker.waited + waited
  worker.longest = math.max(worker.longest, waited)
end

function effects.wrote(_, worker)
  worker.rounds = worker.rounds + 1
end

function effects.failed(_, worker, message)
  error(("worker %d failed: %s"):format(worker.number, message), 0)
end

local function take(self, line)
  local number, event, values = line:match "^(%d+) (%a+) ?(.*)$"
  local worker = self.workers[tonumber(number)]
  if event == "pid" then -- from the shell that started it
    worker.pid = math.tointeger(tonumber(values))
    return
  end
  worker.state = event
  if effects[event] then effects[event](self, worker, values) end
end

-- Takes what is new. Returns whether there was something.
function Journal:read()
  local text = self.rest .. self.file:read "a"
  local complete = text:match "^.*\n" or ""
  self.rest = text:sub(#complete + 1)
  for line in complete:gmatch "[^\n]+" do take(self, line) end
  return complete ~= ""
end

-- The first worker in the given state, if any.
function Journal:worker_in(state)
  for _, worker in ipairs(self.workers) do
    if worker.state == state then return worker end
  end
end

function Journal:all_ended()
  for _, worker in ipairs(self.workers) do
    if worker.state ~= "ended" and worker.state ~= "killed" then return false end
  end
  return true
end

return Journal
