--- Forked children that run a Lua function and talk with their parent.

local posix = require "memlock_posix"
local codec = require "spec.support.codec"
local scope = require "spec.support.scope"

local child = {}

local Child = {}
Child.__index = Child

local Channel = {}
Channel.__index = Channel

--- An error as text, with where it came from; for xpcall.
function child.traced(err)
  if type(err) == "table" and err.message then err = err.message end -- what luassert throws
  return debug.traceback(tostring(err), 2)
end

--- Forks; the child runs `fn(channel, ...)` and ends by _exit, so that it neither runs busted nor
-- closes the Lua state. It has none of our relays, raw clients or children; our servers it may use
-- but cannot end. It may start its own, which end with it. It is killed when its parent ends.
-- Channel, in the child: `channel:send(...)`, `channel:receive([seconds])`.
-- Values that pass: nil, booleans, numbers, strings, and tables of these.
-- @return a child: `pid`, and the methods below
function child.fork(fn, ...)
  local parent = posix.getpid()
  local to_read, to_write = assert(posix.pipe())
  local from_read, from_write = assert(posix.pipe())
  io.stdout:flush()
  io.stderr:flush()
  local pid = assert(posix.fork())
  if pid == 0 then
    local ok = xpcall(function(...)
      assert(posix.pdeathsig("KILL"))
      if posix.getppid() ~= parent then posix._exit(1) end
      posix.close(to_write)
      posix.close(from_read)
      scope.forget()
      local channel = setmetatable({ pipe = codec.pipe(to_read, from_write) }, Channel)
      local result = table.pack(xpcall(fn, child.traced, channel, ...))
      local closed, failure = pcall(scope.close_all)
      if result[1] and closed then
        channel.pipe:send("result", table.unpack(result, 2, result.n))
      else
        channel.pipe:send("error", result[1] and failure or result[2])
        posix._exit(1)
      end
    end, function(err) io.stderr:write("in a child: ", child.traced(err), "\n") end, ...)
    io.stdout:flush()
    io.stderr:flush()
    posix._exit(ok and 0 or 1)
  end
  posix.close(to_read)
  posix.close(from_write)
  return scope.add(setmetatable({ pid = pid, pipe = codec.pipe(from_read, to_write) }, Child))
end

--- In the child: sends values to the parent.
function Channel:send(...)
  self.pipe:send("value", ...)
end

--- In the child: the next values that the parent sent.
-- @param seconds how long to wait (10)
-- @return the values; raises when the time is over
function Channel:receive(seconds)
  local message = self.pipe:receive(seconds or 10)
  return table.unpack(message, 2, message.n)
end

--- Sends values to the child.
function Child:send(...)
  self.pipe:send("value", ...)
end

-- Takes one message; keeps what fn returned, raises what it raised.
function Child:take(seconds)
  local message = self.pipe:receive(seconds)
  if message[1] == "error" then
    self.failed = true -- and the test knows
    error("in the child: " .. message[2], 0)
  elseif message[1] == "result" then
    self.result = message
  end
  return message
end

--- The next values that the child sent.
-- @param seconds how long to wait (10)
-- @return the values; raises when the time is over, when the child has ended, and with its
--   traceback when it failed
function Child:receive(seconds)
  if self.result then error("the child has ended", 2) end
  local message = self:take(seconds or 10)
  if message[1] == "result" then error("the child has ended", 2) end
  return table.unpack(message, 2, message.n)
end

--- Waits for what `fn` returns; values that the child sent before and nobody received are dropped.
-- @param seconds how long to wait (10)
-- @return the results of `fn`; raises as receive does
function Child:join(seconds)
  local deadline = posix.now() + (seconds or 10)
  while not self.result do self:take(math.max(0, deadline - posix.now())) end
  self:wait(math.max(0.1, deadline - posix.now()))
  return table.unpack(self.result, 2, self.result.n)
end

--- Waits for the end of the process.
-- @param seconds how long (10)
-- @return "exit" or "signal", and the code; raises when the time is over
function Child:wait(seconds)
  self.expected = true
  if not self.kind then
    local kind, code = posix.waitpid(self.pid, seconds or 10)
    if not kind then error(("child %d: %s"):format(self.pid, code), 2) end
    self.kind, self.code = kind, code
  end
  return self.kind, self.code
end

--- Whether it still runs.
function Child:alive()
  if self.kind then return false end
  local kind, code = posix.waitpid(self.pid, 0)
  if kind then self.kind, self.code = kind, code end
  return not kind
end

--- Sends a signal ("TERM") to it.
function Child:kill(signal)
  self.expected = true
  if not self.kind then assert(posix.kill(self.pid, signal or "TERM")) end
end

function Child:close()
  if self.closed then return end
  self.closed = true
  local unseen
  if self:alive() then
    self:kill("KILL")
    self:wait()
  elseif self.kind == "signal" and not self.expected then
    unseen = "it died of signal " .. self.code
  end
  while not self.failed and not unseen do
    local ok, message = pcall(self.pipe.receive, self.pipe, 0)
    if not ok then break end
    unseen = message[1] == "error" and message[2]
  end
  self.pipe:close()
  if unseen then error("in a child: " .. unseen, 0) end
end

function Child:forget()
  self.closed = true
  self.pipe:close()
end

return child
