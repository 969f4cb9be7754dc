--- A person at a terminal: a pseudo-terminal with a program in it, that is typed to and looked at.

local posix = require "memlock_posix"
local scope = require "spec.support.scope"

local terminal = {}

local Terminal = {}
Terminal.__index = Terminal

--- Starts a program as the leader of a session at a new terminal.
-- @param options the program and its arguments; `env`, `cwd` as for posix.spawn
-- @return a terminal: `pid` (of the program), `shown` (all that was shown), and the methods below
function terminal.start(options)
  local fd, path = assert(posix.openpty())
  local spawn = { stdin = path, stdout = path, stderr = path, newsession = true,
    pdeathsig = "KILL", env = options.env, cwd = options.cwd }
  table.move(options, 1, #options, 1, spawn)
  local pid = assert(posix.spawn(spawn))
  return scope.add(setmetatable({ fd = fd, pid = pid, shown = "", seen = 1 }, Terminal))
end

--- Types text; "\3" is Ctrl-C, "\26" Ctrl-Z, "\4" the end of the input.
function Terminal:type(text)
  assert(posix.write(self.fd, text))
end

-- Takes what is shown within `seconds`.
function Terminal:look(seconds)
  local text = posix.read(self.fd, 65536, seconds)
  if text then self.shown = self.shown .. text end -- an error is the end: all have gone
  return text ~= nil and text ~= ""
end

--- Waits until something new is shown that matches a pattern.
-- @param seconds how long (10)
-- @return the captures, or what matched; raises when the time is over
function Terminal:expect(pattern, seconds)
  local deadline = posix.now() + (seconds or 10)
  while true do
    local found = table.pack(self.shown:find(pattern, self.seen))
    if found[1] then
      self.seen = found[2] + 1
      if found.n > 2 then return table.unpack(found, 3, found.n) end
      return self.shown:sub(found[1], found[2])
    end
    if posix.now() > deadline then
      error(("nothing like %q is shown, but: %q"):format(pattern, self.shown:sub(self.seen)), 2)
    end
    self:look(math.min(0.05, math.max(0, deadline - posix.now())))
  end
end

--- The process group in the foreground.
function Terminal:foreground()
  return assert(posix.tcgetpgrp(self.fd))
end

--- Waits for the end of the program.
-- @return "exit" or "signal", and the code; raises when the time is over
function Terminal:wait(seconds)
  local deadline = posix.now() + (seconds or 10)
  while not self.kind do
    self.kind, self.code = posix.waitpid(self.pid, 0)
    if not self.kind and posix.now() > deadline then
      error(("the program at the terminal does not end; shown: %q"):format(self.shown), 2)
    end
    self:look(0.005)
  end
  return self.kind, self.code
end

--- Hangs up, which ends what is in the foreground, and ends the program.
function Terminal:close()
  if self.closed then return end
  self.closed = true
  posix.close(self.fd)
  if not self.kind then
    posix.kill(self.pid, "KILL")
    assert(posix.waitpid(self.pid, 10))
  end
end

function Terminal:forget()
  self.closed = true
  posix.close(self.fd)
end

return terminal
