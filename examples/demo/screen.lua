-- Shows the workers: in a terminal as a table that is redrawn in place, with notes below it;
-- anywhere else, such as in a log file, as a line each second, without control codes.

local settings = require "demo.settings"

local HEADER = "worker      pid  state   rounds   waited  longest wait  token of its last turn"
local ROW = "%6d  %7s  %-6s  %6s  %7s  %12s  %22s"

local Screen = {}
Screen.__index = Screen

local function is_terminal()
  return os.getenv "TERM" ~= "dumb" and os.execute "test -t 1"
end

function Screen.open()
  io.stdout:setvbuf("full", 8192) -- a frame leaves in one piece, so that it does not flicker
  return setmetatable({
    live = is_terminal(),
    notes = {}, -- the lines below the table
    height = 0, -- of the frame that is on the screen
    started = os.time(),
    told = 0, -- the second of the last line of progress
  }, Screen)
end

---- What there is to see ----

-- The table, as a list of lines.
local function rows(log)
  local lines = { HEADER }
  for i, worker in ipairs(log.workers) do
    local waited = worker.token and ("%.2f s"):format(worker.waited)
    local longest = worker.token and ("%.2f s"):format(worker.longest)
    lines[i + 1] = ROW:format(worker.number, worker.pid or "-", worker.state,
      worker.rounds .. "/" .. settings.rounds, waited or "-", longest or "-", worker.token or "-")
  end
  return lines
end

local function who_holds(log)
  if settings.unlocked then return "there is no lock" end
  if log:all_ended() then return "all workers have ended" end
  local holder = log:worker_in "holds"
  if holder then return ("worker %d holds the lock"):format(holder.number) end
  local victim = log:worker_in "killed"
  if victim and victim == log.last_holder then
    return ("worker %d is dead, and has the lock"):format(victim.number)
  end
  return "the lock changes hands"
end

---- In a terminal ----

-- Puts a frame over the last one. Each line erases what the old one was longer.
local function redraw(self, log)
  local lines = rows(log)
  lines[#lines + 1] = ""
  lines[#lines + 1] = ("%3d s: %s"):format(os.time() - self.started, who_holds(log))
  lines[#lines + 1] = ""
  table.move(self.notes, 1, #self.notes, #lines + 1, lines)
  if self.height > 0 then io.write("\27[", self.height, "A") end
  for _, line in ipairs(lines) do io.write(line, "\27[K\n") end
  io.flush()
  self.height = #lines
end

---- In a log ----

local function progress(self, log)
  local now = os.time() - self.started
  if now == self.told then return end
  self.told = now
  local rounds = {}
  for i, worker in ipairs(log.workers) do rounds[i] = ("%2d"):format(worker.rounds) end
  print(("%3d s: %s rounds done; %s"):format(now, table.concat(rounds, ", "), who_holds(log)))
  io.flush()
end

---- Both ----

-- Shows how things are. To be called often.
function Screen:draw(log)
  if self.live then redraw(self, log) else progress(self, log) end
end

-- Tells what happened, in a line that stays.
function Screen:note(...)
  local line = string.format(...)
  if self.live then
    self.notes[#self.notes + 1] = line
  else
    print(line)
    io.flush()
  end
end

-- Shows how things ended.
function Screen:finish(log)
  if self.live then
    redraw(self, log)
  else
    print("\n" .. table.concat(rows(log), "\n"))
    io.flush()
  end
end

return Screen
