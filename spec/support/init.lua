--- What all specs lean on: servers, relays, children and programs that end with their test.
--
-- A spec file begins with
--
--     local support = require "spec.support"
--     support.setup()
--
-- outside of any describe. From then on everything that is started in a test ends with the test,
-- everything that is started outside of one (support.server() always) ends with the file, and the
-- file fails if it leaves a child process or a descriptor behind. Run from the project root.
--
-- Everything in here raises when it cannot do what it says; a spec needs no asserts around it.
-- A resource has close(), which ends it, and forget(), which a forked child uses to drop its copy
-- without a trace.

local build = require "spec.support.build"

local lfs = require "lfs"
local posix = require "memlock_posix"
local child = require "spec.support.child"
local command = require "spec.support.command"
local fake = require "spec.support.fake"
local files = require "spec.support.files"
local memcached = require "spec.support.memcached"
local net = require "spec.support.net"
local nutcracker = require "spec.support.nutcracker"
local process = require "spec.support.process"
local raw = require "spec.support.raw"
local relay = require "spec.support.relay"
local scope = require "spec.support.scope"
local spoiler = require "spec.support.spoiler"
local terminal = require "spec.support.terminal"

local support = {}

--- The system calls that Lua lacks; see posix.c.
support.posix = posix

--- The build directory, where the module and the command are.
support.build = build.place

--- The environment for a program that has Lua in it; see build.lua.
support.environment = build.environment

--------------------------------------------------------------------------------
-- Time, names and sizes

--- Seconds on a monotonic clock.
support.now = posix.now

--- Sleeps for all of `seconds`, whatever signals come.
support.sleep = posix.sleep

--- Calls `fn(...)`.
-- @return the seconds it took, then its results
function support.elapsed(fn, ...)
  local start = posix.now()
  local function finish(...)
    return posix.now() - start, ...
  end
  return finish(fn(...))
end

--- Calls `fn` every few milliseconds until it returns something true.
-- @param seconds for how long (5)
-- @return what `fn` returned; raises when the time is over
function support.eventually(fn, seconds)
  local deadline = posix.now() + (seconds or 5)
  local result
  repeat
    result = table.pack(fn())
    if result[1] then return table.unpack(result, 1, result.n) end
    posix.sleep(0.005)
  until posix.now() > deadline
  error(("it did not happen within %g s"):format(seconds or 5), 2)
end

local names = 0

--- A lock name that nobody else uses, in this or any other run.
-- @param hint a word for people who read the failure ("lock")
function support.name(hint)
  names = names + 1
  return ("%s-%d-%d-%s"):format(hint or "lock", posix.getpid(), names, net.random_hex(4))
end

--- How often to repeat: `n` when the environment has FULL=1, else a tenth of it.
function support.count(n)
  if os.getenv("FULL") == "1" then return n end
  return math.max(1, (n + 9) // 10)
end

--- Lets the collector work at nearly every allocation, until the end of the present scope.
function support.collect_often()
  if _VERSION == "Lua 5.3" then
    local pause, multiplier = collectgarbage("setpause", 100), collectgarbage("setstepmul", 1000)
    support.defer(function()
      collectgarbage("setpause", pause)
      collectgarbage("setstepmul", multiplier)
    end)
  else
    local mode = collectgarbage("incremental", 100, 1000, 5)
    support.defer(function()
      collectgarbage("incremental", 200, 100, 13) -- as it was made
      collectgarbage(mode)
    end)
  end
  collectgarbage() -- and so begins a cycle with these settings
end

--- Ends a block that has its argument in a to-be-closed variable. Nil where Lua has none.
support.end_block = load "local _ <close> = ..."

-- What Lua 5.3 lacks, and memlock with it.
local lacking = {
  ["<close>"] = not support.end_block,
  ["coroutine.close"] = not coroutine.close,
  ["tracebacks through with"] = _VERSION == "Lua 5.3",
}

--- Ends the test as pending where this Lua lacks `what`, one of the above.
-- @param pending busted's, of which each test has its own
function support.needs(what, pending)
  local lacks = lacking[what]
  if lacks == nil then error("no Lua is known to lack " .. what, 2) end
  if lacks then pending(("%s has no %s"):format(_VERSION, what)) end
end

--- The bound to assert for a time that is stated for a quiet machine: three times as long, or SLACK
-- times.
function support.slack(seconds)
  return seconds * (tonumber(os.getenv("SLACK")) or 3)
end

--- A free TCP port of 127.0.0.1. Nothing keeps it free: whoever listens on it must be ready to take
-- another.
support.free_port = net.free_port

--------------------------------------------------------------------------------
-- Life time

--- A new empty directory, removed with all it holds at the end of its scope.
-- @return its path, short enough for unix sockets
support.tempdir = net.tempdir

--- Calls `fn` at the end of the present scope, in the reverse order of the calls. For what support
-- did not start.
function support.defer(fn)
  scope.add { close = fn, forget = function() end }
end

--- Ends everything that was started in the present scope (the test, or outside of tests the file).
-- Raises the first error that a child process had and nobody saw.
support.cleanup = scope.close

local function descriptors()
  local open = {}
  for fd in lfs.dir("/proc/self/fd") do
    local target = lfs.symlinkattributes("/proc/self/fd/" .. fd, "target")
    local is_listing = target and target:find("^/proc/%d+/fd$") -- the descriptor that lists them
    if tonumber(fd) and not is_listing then open[fd] = target end
  end
  return open
end

-- Names what was not there before, and ends such processes.
local function leaks(before)
  collectgarbage()
  collectgarbage() -- the second one takes what the finalizers of the first let go
  local found = {}
  for _, pid in ipairs(process.children(posix.getpid())) do
    found[#found + 1] = ("child process %d: %s"):format(pid, process.command_line(pid))
    posix.kill(pid, "KILL")
    posix.waitpid(pid, 10)
  end
  for fd, target in pairs(descriptors()) do
    if before[fd] ~= target then
      found[#found + 1] = ("descriptor %s is open: %s"):format(fd, target)
    end
  end
  return found
end

--- Installs the clean-up in the spec file (or the describe) in which it is called, and the check
-- that nothing is left.
-- Call it first, outside of any describe: busted then runs it after the spec's own after_each and
-- teardown.
function support.setup()
  local busted = require "busted"
  local before = descriptors()
  busted.before_each(function() scope.open() end)
  busted.after_each(function() scope.close() end)
  busted.strict_teardown(function()
    scope.close_all()
    local found = leaks(before)
    if #found > 0 then error("left behind: " .. table.concat(found, "; "), 0) end
  end)
end

--------------------------------------------------------------------------------
-- What the other files offer; each function is described there.

support.memcached = memcached.start -- {args=, unix=, memory=, port=} -> server
support.server = memcached.server -- () -> the server of this file
support.nutcracker = nutcracker.start -- (servers, {connections=, timeout=}) -> proxy
support.has_nutcracker = nutcracker.program -- () -> its path, or nil
support.relay = relay.start -- (server or address, {unix=}) -> relay
support.child = child.fork -- (fn, ...) -> child
support.start = process.start -- {program, arguments...} -> process
support.run = process.run -- {program, arguments...} -> result
support.start_lua = process.start_lua -- (code or table) -> process
support.run_lua = process.run_lua -- (code or table) -> result
support.running = process.running -- (pid) -> boolean
support.state = process.state -- (pid) -> a letter, or nil
support.process_name = process.name -- (pid) -> string, or nil
support.children = process.children -- (pid) -> a list of process ids
support.read_file = files.read -- (path) -> text
support.write_file = files.write -- (path, text)
support.command = command.run -- (server or address, {arguments...}) -> result, of `memlock`
support.start_command = command.start -- (server or address, {arguments...}) -> process
support.command_path = command.path -- where it is
support.terminal = terminal.start -- {program, arguments...} -> terminal
support.fake = fake.start -- (fn(connection, number)) -> fake
support.spoiler = spoiler.start -- (server) -> a server whose answers go wrong on request
support.silent = fake.silent -- () -> a server that never answers
support.full = fake.full -- () -> a server to which connecting hangs
support.refusing = fake.refusing -- () -> an address at which nobody listens

--- A raw client of any address; see raw.lua. Closed at the end of the present scope.
-- @param seconds its timeout (5)
function support.raw(address, seconds)
  return scope.add(raw.connect(address, seconds))
end

return support
