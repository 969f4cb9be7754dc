--- The fault driver: what goes wrong in a soak, when, and for how long.
--
-- Faults begin at random and end by themselves. Those in which the server loses its data, or stands
-- still for more than a second, break what a lock rests on: they are written down with their times,
-- and kept seconds apart, so that there is much time in which every promise has to hold.

local posix = require "memlock_posix"

local Faults = {}
Faults.__index = Faults

local faults = {}

local function between(low, high) return low + (high - low) * math.random() end
local function one_of(list) return list[math.random(#list)] end

--- @param options `server`, `relays`, `raw` (makes a raw client), `keys` (of the locks), `workers`
--   (process ids), `write` (a journal)
function faults.new(options)
  local self = setmetatable(options, Faults)
  self.events = {} -- {at, fn}: what is to happen later
  self.frozen = {} -- by process id
  self.counts = {}
  self.server_busy = false -- stopped, or down
  self.next_fault = posix.now() + 0.3
  self.next_loss = posix.now() + between(1, 3)
  return self
end

function Faults:later(seconds, fn)
  self.events[#self.events + 1] = { at = posix.now() + seconds, fn = fn }
end

function Faults:count(kind)
  self.counts[kind] = (self.counts[kind] or 0) + 1
end

-- The server ------------------------------------------------------------------

-- Stops it. What the stop may do to leases is told from its true length, when it has ended.
function Faults:stop(seconds)
  if self.server_busy then return end
  self.server_busy = true
  local begun = posix.now()
  self.server:stop_process()
  self:later(seconds, function()
    self.server:continue_process()
    self.server_busy = false
    local ended = posix.now()
    local kind = ended - begun > 0.95 and "stop" or "pause"
    self:count(kind)
    self.write("fault %s %.6f %.6f", kind, begun, ended)
  end)
end

-- What stands in some lock now: its value and CAS id; nil when it is free.
function Faults:look()
  local raw = self.raw()
  local value, _, cas = raw:gets(one_of(self.keys))
  raw:close()
  return value, cas
end

-- Brings the CAS ids of a new server to where those of the old one were: the id that an old holder
-- remembers may then be that of a new holder's record.
function Faults:catch_up(cas)
  local raw = self.raw()
  raw:set("soak", "")
  local _, _, now = raw:gets("soak")
  local more = cas - now - math.random(0, 4)
  if more > 0 and more < 1000000 then
    raw:send(("set soak 0 0 0 noreply\r\n\r\n"):rep(more))
    raw:get("soak") -- when this is answered, all is done
  end
  raw:close()
end

-- Kills it, and starts it after some time, with CAS ids from the beginning. At times a holder is
-- stopped meanwhile, so that it goes on where it was, when others have the lock.
function Faults:restart(seconds)
  if self.server_busy then return end
  local value, cas = self:look()
  if math.random() < 0.6 then
    self:freeze(self:worker_of(value), seconds + between(0.1, 0.6))
  end
  self.server_busy = true
  local begun = posix.now()
  self.server:kill()
  self:later(seconds, function()
    self.server:restart()
    if cas then self:catch_up(cas) end
    self.server_busy = false
    self:count("restart")
    self.write("fault restart %.6f %.6f", begun, posix.now())
  end)
end

function Faults:flush()
  if self.server_busy then return end
  local begun = posix.now()
  local raw = self.raw()
  raw:flush_all()
  raw:close()
  self:count("flush")
  self.write("fault flush %.6f %.6f", begun, posix.now())
end

-- The workers -----------------------------------------------------------------

-- The worker that a record is of; or nil.
function Faults:worker_of(value)
  local pid = math.tointeger(tonumber((value or ""):match(":(%d+)$")))
  for _, worker in ipairs(self.workers) do
    if worker == pid then return pid end
  end
  return nil
end

-- The holder of some lock; or nil.
function Faults:holder()
  if self.server_busy then return nil end
  return self:worker_of((self:look()))
end

-- Stops a worker for some time; false when there is none, or it is stopped already.
function Faults:freeze(pid, seconds)
  if not pid or self.frozen[pid] then return false end
  self.frozen[pid] = true
  local begun = posix.now()
  posix.kill(pid, "STOP")
  self:later(seconds, function()
    posix.kill(pid, "CONT")
    self.frozen[pid] = nil
    self.write("freeze %d %.6f %.6f", pid, begun, posix.now())
  end)
  return true
end

-- The faults, and how often each comes up -------------------------------------

local sides = { "up", "down", "both" }
local words = { "add ", "cas ", "incr ", "gets " }
local signals = { "USR1", "USR2", "WINCH", "CHLD", "HUP" }

local function on_relay(kind, weight, begin, undo, longest)
  return { kind = kind, weight = weight, run = function(self)
    local relay = one_of(self.relays)
    begin(relay)
    if undo then self:later(between(0.05, longest), function() undo(relay) end) end
  end }
end

local all = {
  on_relay("delay", 5, function(relay) relay:delay(one_of(sides), between(0.001, 0.3)) end,
    function(relay) relay:delay("both", 0) end, 2),
  on_relay("hold", 4, function(relay) relay:pause(one_of(sides)) end,
    function(relay) relay:resume("both") end, 1.5),
  on_relay("drop", 4, function(relay) relay:drop(one_of(sides)) end,
    function(relay) relay:undrop("both") end, 1.5),
  on_relay("hold request", 4, function(relay) relay:hold_up(one_of(words)) end,
    function(relay)
      relay:disarm()
      relay:resume("both")
    end, 1.5),
  on_relay("cut", 5, function(relay) relay:cut(one_of { "rst", nil }) end),
  on_relay("cut reply", 9, function(relay) relay:cut_reply(math.random(0, 90)) end),
  on_relay("drop reply", 8, function(relay)
    relay:drop_reply(one_of { false, table.unpack(words) } or nil)
  end),
  on_relay("refuse", 2, function(relay) relay:refuse() end,
    function(relay) relay:accept() end, 1),
  on_relay("blackhole", 2, function(relay) relay:blackhole() end,
    function(relay) relay:forward() end, 1),
  { kind = "signal", weight = 6, run = function(self)
    local pid = one_of(self.workers)
    for _ = 1, math.random(5) do posix.kill(pid, one_of(signals)) end
  end },
  -- Some in a row, as far apart as parts of a timeout: by these, a wait that is wrong about how
  -- long it has waited goes on for ever.
  { kind = "signals", weight = 5, run = function(self)
    for _, pid in ipairs(self.workers) do
      local at = 0
      for _ = 1, math.random(2, 5) do
        at = at + between(0.1, 0.7)
        self:later(at, function() posix.kill(pid, one_of(signals)) end)
      end
    end
  end },
  { kind = "freeze", weight = 1, run = function(self)
    return self:freeze(one_of(self.workers), between(1, 5))
  end },
  -- Until the lease is over, and often its record, too.
  { kind = "freeze holder", weight = 4, run = function(self)
    return self:freeze(self:holder(), between(1, 7))
  end },
  { kind = "stutter", weight = 3, run = function(self)
    return self:freeze(one_of(self.workers), between(0.01, 0.5))
  end },
  { kind = false, weight = 4, run = function(self) self:stop(between(0.05, 0.6)) end },
}

local total = 0
for _, fault in ipairs(all) do total = total + fault.weight end

local function pick()
  local at = math.random() * total
  for _, fault in ipairs(all) do
    at = at - fault.weight
    if at < 0 then return fault end
  end
  return all[#all]
end

function Faults:run_due()
  local now = posix.now()
  local due = {}
  for i = #self.events, 1, -1 do
    if self.events[i].at <= now then table.insert(due, table.remove(self.events, i)) end
  end
  for i = #due, 1, -1 do due[i].fn() end
end

--- Does what is due. To be called often.
function Faults:step()
  self:run_due()
  local now = posix.now()
  if now >= self.next_loss then
    local dice = math.random()
    if dice < 0.4 then
      self:restart(math.random() < 0.5 and 0 or between(0, 1.5))
    elseif dice < 0.7 then
      self:flush()
    else
      self:stop(between(1.2, 2.5))
    end
    self.next_loss = now + between(4, 10)
  end
  if now >= self.next_fault then
    local fault = pick()
    local done = fault.run(self) ~= false -- a freeze finds nobody at times
    if done and fault.kind then
      self:count(fault.kind)
      self.write("did %s", (fault.kind:gsub(" ", "-")))
    end
    self.next_fault = now + between(0.02, 0.4)
  end
end

--- Ends all that is going on: everything works again.
function Faults:finish()
  for _, event in ipairs(self.events) do event.at = 0 end
  self:run_due()
  for _, relay in ipairs(self.relays) do relay:plain() end
end

return faults
