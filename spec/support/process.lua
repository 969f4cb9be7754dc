--- Programs that a spec starts: stock Lua, the command, whatever.

local posix = require "memlock_posix"
local build = require "spec.support.build"
local files = require "spec.support.files"
local scope = require "spec.support.scope"

local process = {}

local Process = {}
Process.__index = Process

local Result = {}
Result.__index = Result

function Result:__tostring()
  return ("%s %d after %.3f s\nstdout: %s\nstderr: %s"):format(
    self.kind, self.code, self.elapsed, self.out, self.err)
end

--- Starts a program with pipes on its standard descriptors.
-- @param options the program and its arguments; `env` (changes: a string sets, false removes),
--   `cwd`, `newgroup`, `inherit` (descriptors) as in posix.spawn; `stdin`: a string, all it will
--   read (default: open until close_stdin)
-- @return a process: `pid`, `start`, and the methods below. It is killed at the end of its scope,
--   with its group if it has its own.
function process.start(options)
  local in_read, in_write = assert(posix.pipe())
  local out_read, out_write = assert(posix.pipe())
  local err_read, err_write = assert(posix.pipe())
  local spawn = { stdin = in_read, stdout = out_write, stderr = err_write, pdeathsig = "KILL",
    env = options.env, cwd = options.cwd, newgroup = options.newgroup, inherit = options.inherit }
  table.move(options, 1, #options, 1, spawn)
  local start = posix.now()
  local ok, pid, message = pcall(posix.spawn, spawn)
  posix.close(in_read)
  posix.close(out_write)
  posix.close(err_write)
  if not ok or not pid then
    for _, fd in ipairs { in_write, out_read, err_read } do posix.close(fd) end
    error(ok and message or pid, 2)
  end
  local self = setmetatable({ pid = pid, start = start, group = options.newgroup, stdin = in_write,
    fds = { out = out_read, err = err_read }, text = { out = "", err = "" } }, Process)
  scope.add(self)
  if options.stdin then
    posix.write(in_write, options.stdin)
    self:close_stdin()
  end
  return self
end

--- Writes to its standard input.
function Process:write(text)
  if not self.stdin then
    error("its standard input is closed, or belongs to another process", 2)
  end
  assert(posix.write(self.stdin, text))
end

--- Ends its standard input.
function Process:close_stdin()
  if self.stdin then posix.close(self.stdin) end
  self.stdin = nil
end

--- Sends a signal ("TERM") to it; `to_group`: to its whole group.
function Process:kill(signal, to_group)
  self.expected = true
  if self.kind and not to_group then return end
  assert(posix.kill(to_group and -self.pid or self.pid, signal or "TERM"))
end

-- Takes what is there of its output, waiting up to `seconds` for some.
function Process:pump(seconds)
  local open = {}
  for _, fd in pairs(self.fds) do open[#open + 1] = fd end
  if #open == 0 then return posix.sleep(seconds) end
  local ready = {}
  for _, fd in ipairs(assert(posix.poll(open, seconds))) do ready[fd] = true end
  for name, fd in pairs { out = self.fds.out, err = self.fds.err } do
    if ready[fd] then
      local text = assert(posix.read(fd, 65536))
      self.text[name] = self.text[name] .. text
      if text == "" then
        posix.close(fd)
        self.fds[name] = nil
      end
    end
  end
  return next(ready) ~= nil
end

--- The next line of its standard output, which wait() leaves out afterwards.
-- @param seconds how long to wait (10)
-- @return the line; raises when the time is over or the output ends
function Process:read_line(seconds)
  local deadline = posix.now() + (seconds or 10)
  while true do
    local line, rest = self.text.out:match("^([^\n]*)\n(.*)$")
    if line then
      self.text.out = rest
      return line
    end
    if not self.fds.out or posix.now() > deadline then
      local text = self.text
      error(("no line from the program; stdout: %q, stderr: %q"):format(text.out, text.err), 2)
    end
    self:pump(math.max(0, deadline - posix.now()))
  end
end

function Process:reap()
  if not self.kind then
    local kind, code = posix.waitpid(self.pid, 0)
    if kind then self.kind, self.code, self.ended = kind, code, posix.now() end
  end
  return self.kind
end

--- Whether it still runs.
function Process:alive()
  return not self:reap()
end

--- Waits for its end; kills it when the time is over.
-- @param seconds how long (10)
-- @return a result: `kind` ("exit", "signal" or "timeout"), `code`, `out`, `err`, `elapsed` since
--   the start. tostring(result) is fit for a failure message.
function Process:wait(seconds)
  self.expected = true
  local deadline = posix.now() + (seconds or 10)
  local late = false
  while not self:reap() do
    if posix.now() > deadline then
      late = true
      self:kill("KILL", self.group)
      local kind, code = posix.waitpid(self.pid, 10)
      self.kind, self.code, self.ended = assert(kind, code), code, posix.now()
      break
    end
    self:pump(0.002)
  end
  while next(self.fds) and self:pump(0) do end -- not to the end: a grandchild may keep it open
  return setmetatable({ kind = late and "timeout" or self.kind, code = self.code,
    out = self.text.out, err = self.text.err, elapsed = self.ended - self.start }, Result)
end

function Process:close()
  if self.closed then return end
  self.closed = true
  local died = self:reap() == "signal" and not self.expected
  if self.group then
    posix.kill(-self.pid, "KILL") -- the group may outlive its leader
  else
    self:kill("KILL")
  end
  if not self.kind then assert(posix.waitpid(self.pid, 10)) end
  self.kind = self.kind or "signal"
  while next(self.fds) and self:pump(0) do end
  self:forget()
  if died then
    error(("a program died of signal %d; stderr: %s"):format(self.code, self.text.err), 0)
  end
end

function Process:forget()
  self.closed = true
  self:close_stdin()
  for name, fd in pairs(self.fds) do
    posix.close(fd)
    self.fds[name] = nil
  end
end

--- Runs a program to its end: process.start, then wait.
-- @param options as for start, and `timeout` (10); stdin is empty by default
-- @return a result
function process.run(options)
  local running = process.start(options)
  running:close_stdin()
  return running:wait(options.timeout)
end

-- What /proc has of a process under this name; "" when it has ended, also just now.
local function proc(pid, what)
  local ok, text = pcall(files.read, ("/proc/%d/%s"):format(pid, what))
  return ok and text or ""
end

--- The state of any process `pid`: "T" is stopped, "Z" waits to be reaped; nil for none.
function process.state(pid)
  return proc(pid, "stat"):match("%) (%a)")
end

--- Whether any process `pid` still runs; one that has ended and waits to be reaped does not.
function process.running(pid)
  local state = process.state(pid)
  return state ~= nil and state ~= "Z" and state ~= "X"
end

--- The name of any process `pid`, as ps has it; nil for none.
function process.name(pid)
  return proc(pid, "comm"):match("[^\n]+")
end

--- The command line of any process `pid`; "" for none.
function process.command_line(pid)
  return (proc(pid, "cmdline"):gsub("%z", " "))
end

--- The children of any process `pid`: a list of process ids.
function process.children(pid)
  local list = {}
  for child in proc(pid, ("task/%d/children"):format(pid)):gmatch("%d+") do
    list[#list + 1] = math.tointeger(tonumber(child))
  end
  return list
end

local function lua_command(what)
  local options = type(what) == "string" and { code = what } or what
  local command = { env = build.environment(options.env) }
  for _, key in ipairs { "cwd", "newgroup", "inherit", "stdin", "timeout" } do
    command[key] = options[key]
  end
  local prefix = options.prefix or os.getenv("TEST_PREFIX") or ""
  for word in prefix:gmatch("%S+") do command[#command + 1] = word end
  command[#command + 1] = os.getenv("LUA") or "lua5.4"
  if options.code then
    command[#command + 1] = "-e"
    command[#command + 1] = options.code
    command[#command + 1] = "/dev/null" -- a script, so that arguments may follow
  else
    command[#command + 1] = assert(options.file, "code or file expected")
  end
  for _, argument in ipairs(options) do command[#command + 1] = tostring(argument) end
  return command
end

--- Starts the stock interpreter (LUA in the environment, or lua5.4) with the modules of the build
-- directory.
-- @param what code; or a table: `code` or `file`, arguments by position (a file sees them as `...`,
--   both as `arg`), `env`, `cwd`, `newgroup`, `inherit`, `stdin`, `prefix` (words before the
--   interpreter; default TEST_PREFIX of the environment)
-- @return a process, as of process.start
function process.start_lua(what)
  return process.start(lua_command(what))
end

--- Runs the stock interpreter to its end.
-- @param what as for start_lua, and `timeout` (10)
-- @return a result, as of wait
function process.run_lua(what)
  return process.run(lua_command(what))
end

return process
