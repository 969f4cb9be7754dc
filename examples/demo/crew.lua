-- What the demo starts: a memcached and the workers, with a directory for their files.
--
-- All of it hangs on one shell, whose standard input is a pipe from the demo. When the pipe ends,
-- because the demo has ended or somebody ended it, the shell ends all the others and cleans up.

local memlock = require "memlock"
local settings = require "demo.settings"

local PATIENCE = 5 -- seconds that memcached may take to start

-- No signal may end the shell before it has cleaned up: Ctrl-C goes to all processes at once.
local SCRIPT = [[
trap '' INT HUP QUIT TERM
mkdir -m 700 "$dir" || exit 1
trap 'kill -KILL $started; wait; rm -rf "$dir"' EXIT
trap 'exit 1' TERM
exec >"$dir/output" 2>"$dir/errors"
echo 0 >"$dir/number"
: >"$dir/journal"

memcached -s "$dir/socket" -M $user </dev/null &
started=$!

while read -r command number pid; do
  case $command in
    start)
      "$lua" "$demo" worker "$number" "$dir" </dev/null >>"$dir/journal" &
      started="$started $!"
      echo "$number pid $!" >>"$dir/journal" ;;
    kill)
      kill -KILL "$pid"
      wait "$pid"
      echo "$number killed" >>"$dir/journal" ;;
  esac
done
]]

local Crew = {}
Crew.__index = Crew

-- The first line that a shell command prints.
local function output_of(command)
  local pipe = assert(io.popen(command))
  local line = pipe:read "l"
  pipe:close()
  return line
end

-- A text as a word for the shell.
local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- The Lua for the workers: what make uses, or else the first word of our own command line.
local function interpreter()
  if os.getenv "LUA" then return os.getenv "LUA" end
  local first = 0
  while arg[first - 1] do first = first - 1 end
  return arg[first]
end

-- A crew of which nothing runs yet.
function Crew.new()
  return setmetatable({}, Crew)
end

-- Only names: it is the shell that makes the directory, since it will remove it in any case.
local function name_files(self)
  self.dir = output_of 'mktemp -u -d "${TMPDIR:-/tmp}/memlock-demo.XXXXXX"'
  if not self.dir then error("mktemp has no name for a temporary directory.", 0) end
  self.socket = self.dir .. "/socket"
  self.journal = self.dir .. "/journal"
end

local function start_shell(self)
  local variables = ("dir=%s lua=%s demo=%s user=%s\n"):format(
    quoted(self.dir), quoted(interpreter()), quoted(arg[0]),
    quoted(output_of "id -u" == "0" and "-u root" or "")) -- root has to say so to memcached
  self.shell = assert(io.popen(variables .. SCRIPT, "w"))
end

local function wait_for_memcached(self, client)
  local pause = 0.05
  local holder, message
  for _ = 1, PATIENCE / pause do
    holder, message = client:holder(settings.lock)
    if holder ~= nil then return end
    memlock.sleep(pause)
  end
  error(("memcached does not start. %s\n%s"):format(message, self:errors()), 0)
end

local function command(self, ...)
  self.shell:write(table.concat({ ... }, " "), "\n")
  self.shell:flush()
end

-- Starts memcached, and the workers as soon as it answers. Returns a client of it.
function Crew:start()
  if not os.execute "command -v memcached >/dev/null" then
    error("memcached is not installed, or not on the PATH.\n" ..
      "Run `make demo`, which installs it, or install the package memcached.", 0)
  end
  name_files(self)
  start_shell(self)
  local client = memlock.client(self.socket)
  wait_for_memcached(self, client)
  for number = 1, settings.workers do command(self, "start", number) end
  return client
end

-- Kills a worker. The journal tells when it is dead.
function Crew:kill(worker)
  command(self, "kill", worker.number, worker.pid)
end

-- The number to which all have been adding.
function Crew:read_number()
  local file = assert(io.open(self.dir .. "/number"))
  local number = file:read "n"
  file:close()
  return assert(number, "there is no number in the file")
end

-- What memcached and the workers complained about.
function Crew:errors()
  local file = io.open(self.dir .. "/errors")
  local text = file and file:read "a" or ""
  if file then file:close() end
  return text
end

-- Ends all that runs, and returns when it is gone.
function Crew:finish()
  if self.shell then self.shell:close() end
end

return Crew
