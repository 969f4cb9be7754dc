--- The soak: processes that fight for a few locks while all sorts of things go wrong, and a checker
-- that reads what they wrote down.
--
--     lua5.4 spec/soak/soak.lua [SECONDS [SEED]]      from the project root; see `make soak`
--
-- The seed settles what is drawn, not how processes and the network interleave: another run with it
-- has much the same faults, in an order of its own. KEEP=1 in the environment keeps the journals.

local support = require "spec.support"
local faults = require "spec.soak.faults"
local journal = require "spec.soak.journal"

local posix = support.posix

local WORKERS = 8
local NAMES = { "anvil", "bellows", "crucible" }
local PREFIX = "memlock:"
local LONGEST = 8 -- seconds that a record may stay that nobody holds: the longest ttl, and four

local function random_seed()
  local source = assert(io.open("/dev/urandom", "rb"))
  local seed = ("I4"):unpack(source:read(4))
  source:close()
  return seed
end

local seconds = tonumber(arg[1]) or 60
local seed = math.tointeger(tonumber(arg[2])) or random_seed()

local function interrupted()
  return posix.signal_count("INT") + posix.signal_count("TERM") > 0
end

--- Starts a helper, which ends with its standard input.
local function helper(name, ...)
  return support.start_lua { file = ("spec/soak/%s.lua"):format(name), newgroup = true, ... }
end

local function start_workers(directory, addresses, port, finish)
  local workers = {}
  for number = 1, WORKERS do
    local name = "worker-" .. number
    local address = addresses[(number - 1) % #addresses + 1]
    local worker = helper("worker", directory .. "/" .. name, address, port, number, seed,
      ("%.6f"):format(finish), table.unpack(NAMES))
    worker.name = name
    workers[number] = worker
  end
  return workers
end

local function ask_register(register)
  assert(register:send("counts\n"))
  return assert(register:receive("*l")):match("^(%d+) (%d+)$")
end

local function show_progress(start, driver, register)
  local sum = 0
  for _, count in pairs(driver.counts) do sum = sum + count end
  local accepted, refused = ask_register(register)
  print(("%5.0f s  %6d writes under a lock, %d refused, %d faults"):format(
    posix.now() - start, accepted, refused, sum))
  io.stdout:flush()
end

-- Everything goes wrong until `finish`.
local function drive(driver, workers, finish, register)
  local start = posix.now()
  local next_line = start + 5
  while posix.now() < finish and not interrupted() do
    for _, worker in ipairs(workers) do
      if not worker:alive() then return end -- nothing is to be learned from the rest
    end
    driver:step()
    if posix.now() >= next_line then
      show_progress(start, driver, register)
      next_line = next_line + 5
    end
    posix.sleep(0.005)
  end
end

local function end_workers(workers, write)
  for _, worker in ipairs(workers) do worker:close_stdin() end
  for _, worker in ipairs(workers) do
    local result = worker:wait(30)
    if result.kind ~= "exit" or result.code ~= 0 then
      write("exit %s %s %d %s", worker.name, result.kind, result.code,
        (result.err:gsub("%c", " ")))
    end
    if posix.kill(-worker.pid, 0) then write("left processes of %s", worker.name) end
  end
end

-- With everybody gone, every lock has to get free.
local function await_free(server, write)
  local raw = server:raw()
  local deadline = posix.now() + LONGEST
  for _, name in ipairs(NAMES) do
    local value
    repeat
      value = raw:get(PREFIX .. name)
      if value then posix.sleep(0.05) end
    until not value or posix.now() > deadline
    if value then write("left %s taken: %s", name, value) end
  end
  raw:close()
end

local function soak(directory)
  local write = journal.open(directory .. "/driver")
  local server = support.memcached()
  local relays = { support.relay(server), support.relay(server) }
  local keys = {}
  for i, name in ipairs(NAMES) do keys[i] = PREFIX .. name end
  local helpers = { helper("lag", directory .. "/lag"),
    helper("observer", directory .. "/observer", server.address, table.unpack(keys)) }
  local register = helper("register")
  local port = register:read_line():match("%d+$")
  local connection = require("spec.support.net").connect("127.0.0.1:" .. port, 5)
  local finish = posix.now() + seconds
  local workers = start_workers(directory,
    { server.address, relays[1].address, relays[2].address, relays[1].address }, port, finish)
  local pids = {}
  for i, worker in ipairs(workers) do pids[i] = worker.pid end
  local driver = faults.new { server = server, relays = relays, keys = keys, workers = pids,
    write = write, raw = function() return server:raw() end }

  drive(driver, workers, finish, connection)
  driver:finish()
  end_workers(workers, write)
  await_free(server, write)
  connection:close()
  helpers[#helpers + 1] = register
  for _, process in ipairs(helpers) do
    process:close_stdin()
    local result = process:wait()
    assert(result.kind == "exit" and result.code == 0, tostring(result))
  end
  write("over %.6f", posix.now())
end

local function check(directory)
  local result = support.run_lua { file = "spec/soak/check.lua", directory, timeout = 600 }
  io.stdout:write(result.out)
  io.stderr:write(result.err)
  return result.kind == "exit" and result.code == 0
end

local function main()
  print(("soak: %g seconds, seed %d"):format(seconds, seed))
  io.stdout:flush()
  math.randomseed(seed)
  for _, name in ipairs { "INT", "TERM" } do posix.signal(name, "count") end
  local directory = support.tempdir()
  soak(directory)
  if os.getenv("KEEP") == "1" then
    os.execute(("cp -r '%s' '%s.kept'"):format(directory, directory))
    print("journals: " .. directory .. ".kept")
  end
  local good = check(directory)
  if not good then print(("again with: make soak SECONDS=%g SEED=%d"):format(seconds, seed)) end
  return good
end

local ok, good = xpcall(main, debug.traceback)
local closed, trouble = pcall(support.cleanup)
if interrupted() then
  -- Whatever failed meanwhile: the terminal's signal went to the relays and the server, too.
  io.stderr:write("soak: interrupted\n")
  os.exit(130, true)
end
if not ok then io.stderr:write("soak: ", good, "\n") end
if not closed then io.stderr:write("soak: ", trouble, "\n") end
os.exit(ok and closed and good, true)
