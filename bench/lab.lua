--- What the measurements share: subjects, workers, statistics, and the files that results go to.

local support = require "spec.support"

local lab = {}

--- True: everything is measured as briefly as shows that it works.
lab.quick = false

--- `full`, or `quick` where little is to be shown.
function lab.amount(full, quick)
  return lab.quick and quick or full
end

function lab.say(...)
  io.stdout:write(string.format(...), "\n")
  io.stdout:flush()
end

--------------------------------------------------------------------------------
-- Numbers

function lab.quantile(values, q)
  if #values == 0 then return nil end
  local sorted = table.move(values, 1, #values, 1, {})
  table.sort(sorted)
  local at = 1 + q * (#sorted - 1)
  local below = math.floor(at)
  local above = math.min(below + 1, #sorted)
  return sorted[below] + (at - below) * (sorted[above] - sorted[below])
end

function lab.median(values)
  return lab.quantile(values, 0.5)
end

--- Jain's index: 1 when all have the same, 1/n when one has it all.
function lab.jain(values)
  local sum, squares = 0, 0
  for _, value in ipairs(values) do
    sum = sum + value
    squares = squares + value * value
  end
  return squares == 0 and 1 or sum * sum / (#values * squares)
end

--------------------------------------------------------------------------------
-- Subjects. `backend` is the kind of server that it locks on, `command` its worker (worker.h).
-- A `library` of others listens to TCP only (or is files), and can only wait for ever.

local python = "/usr/bin/python3" -- Debian's, whose packages these are

local function c_worker(what, pauses)
  return { support.build .. "/bench/worker", what, pauses = pauses }
end

local function waiting(id, label, pauses)
  return { id = id, label = label, backend = "memcached", command = c_worker("limit", pauses) }
end

-- The core with another constant in backoff.c.
local function turn(id, label)
  return { id = id, label = label, backend = "memcached",
    command = { support.build .. "/bench/" .. id, "core" } }
end

local subjects = {
  { id = "memlock", label = "memlock (Lua)", backend = "memcached", lua = true },
  { id = "core", label = "its core (C)", backend = "memcached", command = c_worker "core" },
  waiting("limit", "limit", "10-500"),
  turn("turn-2500", "its core, turns of 2.5 ms"),
  turn("turn-3500", "its core, turns of 3.5 ms"),
  turn("turn-6000", "its core, turns of 6 ms"),
  turn("turn-9000", "its core, turns of 9 ms"),
  { id = "compare", label = "add; gets, compare, cas, delete", backend = "memcached",
    command = c_worker "compare" },
  { id = "swap", label = "add; gets, cas to empty", backend = "memcached",
    command = c_worker "swap" },
  waiting("doubling-5-50", "limit, 5 to 50 ms doubling", "5-50"),
  waiting("fixed-5", "limit, 2.5-5 ms", "5-5"),
  waiting("fixed-10", "limit, 5-10 ms", "10-10"),
  waiting("fixed-20", "limit, 10-20 ms", "20-20"),
  waiting("fixed-50", "limit, 25-50 ms", "50-50"),
  waiting("fixed-100", "limit, 50-100 ms", "100-100"),
  { id = "symfony", label = "Symfony MemcachedStore", backend = "memcached", library = true,
    command = { "php", "bench/peers/symfony_lock.php" } },
  { id = "tooz", label = "tooz, memcached", backend = "memcached", library = true,
    command = { python, "bench/peers/tooz_memcached.py" } },
  { id = "redis", label = "redis-py Lock", backend = "redis", library = true,
    command = { python, "bench/peers/redis_lock.py" } },
  { id = "flufl", label = "flufl.lock", backend = "files", library = true,
    command = { python, "bench/peers/flufl_lock.py" } },
}

for _, subject in ipairs(subjects) do subjects[subject.id] = subject end

function lab.subjects(...)
  local list = {}
  for i, id in ipairs { ... } do list[i] = assert(subjects[id], id) end
  return list
end

function lab.label(id)
  return subjects[id].label
end

--------------------------------------------------------------------------------
-- Servers

-- A redis-server, with what our servers have: address, close, and its commands so far.
local function start_redis()
  local port = support.free_port()
  local running = support.start { "redis-server", "--port", tostring(port), "--bind", "127.0.0.1",
    "--save", "", "--appendonly", "no" }
  local server = { address = "127.0.0.1:" .. port, port = port, process = running }
  local function info()
    return support.run { "redis-cli", "-p", tostring(port), "info", "stats" }.out
  end
  function server.commands()
    return tonumber(info():match "total_commands_processed:(%d+)")
  end
  support.eventually(function() return info():find "total_commands_processed" end)
  return server
end

local function start_memcached(unix)
  -- One thread: connections of one server would else differ in whose turn they are.
  local server = support.memcached { unix = unix, memory = 256, args = { "-t", "1" } }
  --- Each key of a read counts.
  function server.commands()
    local stats, sum = server:raw():stats(), 0
    for _, kind in ipairs { "cmd_get", "cmd_set", "cmd_touch", "incr_hits", "incr_misses",
      "delete_hits", "delete_misses" } do
      sum = sum + math.tointeger(tonumber(stats[kind]))
    end
    return sum
  end
  return server
end

local started = {}

--- A server of its own for each kind, started when first wanted.
-- @param backend "memcached", "redis" or "files"
-- @param unix true: on a unix socket
function lab.server(backend, unix)
  local key = backend .. (unix and "-unix" or "")
  if not started[key] then
    if backend == "memcached" then
      started[key] = start_memcached(unix)
    elseif backend == "redis" then
      started[key] = start_redis()
    else
      started[key] = { address = support.tempdir(), commands = function() return 0 end }
    end
  end
  return started[key]
end

--------------------------------------------------------------------------------
-- Workers

local Worker = {}
Worker.__index = Worker

local function words_of(subject, address, name, options)
  local words = table.move(subject.command, 1, #subject.command, 1, {})
  words[#words + 1] = address
  words[#words + 1] = name
  words[#words + 1] = subject.command.pauses
  for _, option in ipairs(options or {}) do words[#words + 1] = option end
  return words
end

--- How to start a worker: for support.start, or with `lua` for support.start_lua.
-- @param options of the lock, for memlock only: a list of key=value
-- @param prefix words before the command: a tool that watches it
function lab.command(subject, address, name, options, prefix)
  if subject.lua then
    local what = { file = "bench/worker.lua", address, name, prefix = prefix or "" }
    return table.move(options or {}, 1, #(options or {}), 3, what)
  end
  local words = {}
  for word in (prefix or ""):gmatch "%S+" do words[#words + 1] = word end
  local command = words_of(subject, address, name, options)
  return table.move(command, 1, #command, #words + 1, words)
end

--- Starts a worker; wait_ready() before anything is asked of it.
function lab.worker(subject, address, name, options)
  local start = subject.lua and support.start_lua or support.start
  return setmetatable({ subject = subject,
    process = start(lab.command(subject, address, name, options)) }, Worker)
end

--- Raises with what the worker said of it, if it fails.
function Worker:wait_ready()
  assert(self.process:read_line(300) == "ready") -- Python takes its time to load what it needs
  return self
end

function Worker:tell(...)
  self.process:write(string.format(...) .. "\n")
end

--- @return the line with which it answers
function Worker:hear(seconds)
  return self.process:read_line(seconds or 60)
end

function Worker:ask(...)
  self:tell(...)
  return self:hear()
end

--- Seconds of processor time that it used so far.
function Worker:cpu()
  local file = assert(io.open(("/proc/%d/schedstat"):format(self.process.pid)))
  local nanoseconds = file:read "n"
  file:close()
  return nanoseconds / 1e9
end

function Worker:close()
  self.process:kill "KILL"
  self.process:close()
end

--------------------------------------------------------------------------------
-- Results: a file of comma-separated values each

function lab.directory()
  return lab.quick and support.build .. "/bench/results" or "bench/results"
end

local function show(value)
  if value == nil then return "" end
  if math.type(value) == "float" then return ("%.6g"):format(value) end
  return (tostring(value):gsub(",", ";"))
end

--- The names of what this run has saved.
lab.saved = {}

--- Writes rows (tables by column name) to NAME.csv.
function lab.save(name, columns, rows)
  lab.saved[name] = true
  os.execute(("mkdir -p '%s'"):format(lab.directory()))
  local file = assert(io.open(("%s/%s.csv"):format(lab.directory(), name), "w"))
  file:write(table.concat(columns, ","), "\n")
  for _, row in ipairs(rows) do
    local fields = {}
    for i, column in ipairs(columns) do fields[i] = show(row[column]) end
    file:write(table.concat(fields, ","), "\n")
  end
  assert(file:close())
end

--- Reads them again, numbers as numbers; nil where there is no such file.
function lab.load(name)
  local file = io.open(("%s/%s.csv"):format(lab.directory(), name))
  if not file then return nil end
  local function split(line)
    local fields = {}
    for field in (line .. ","):gmatch "([^,]*)," do fields[#fields + 1] = field end
    return fields
  end
  local columns, rows = split(file:read "l"), {}
  for line in file:lines() do
    local fields, row = split(line), {}
    for i, column in ipairs(columns) do
      if fields[i] ~= "" then row[column] = tonumber(fields[i]) or fields[i] end
    end
    rows[#rows + 1] = row
  end
  file:close()
  return rows
end

return lab
