--- A worker: takes locks in every way there is, and keeps a journal of what it was told.
--
--     lua5.4 spec/soak/worker.lua JOURNAL SERVER REGISTER_PORT NUMBER SEED UNTIL NAME...
--
-- Runs until the time UNTIL, or until its standard input ends. The number says what else happens
-- to it: every third one gets SIGALRM all the time, every second one forks.
--
-- What it claims is always less than it could: a time is taken before held() is asked, so that
-- held() was true at that time, however long the process was stopped in between.

local posix = require "memlock_posix"
local memlock = require "memlock"
local net = require "spec.support.net"
local journal = require "spec.soak.journal"

local path, server, register_port, number, seed, finish =
  arg[1], arg[2], arg[3], tonumber(arg[4]), tonumber(arg[5]), tonumber(arg[6])
local names = table.move(arg, 7, #arg, 1, {})

local ALARM = 0.05
local TTLS = { 1, 1, 1, 1.5, 2, 3, 4 }

math.randomseed(seed * 100000 + number)

local write = journal.open(path)
local register

local function chance(probability) return math.random() < probability end
local function between(low, high) return low + (high - low) * math.random() end
local function one_of(list) return list[math.random(#list)] end

-- Ends a block with `lock` in a to-be-closed variable; nil where Lua has none.
local leave_block = load "local _ <close> = ..."

local function wrong(text, ...)
  write("wrong %.6f " .. text, posix.now(), ...)
end

--------------------------------------------------------------------------------
-- Leases

-- The leases that this process has not ended, by the count of acquisitions.
local leases = {}
local lease_count = 0

-- Asks held(), and writes down what it says.
local function sample(lease)
  local now = posix.now()
  local held, left = lease.lock:held()
  if held then
    write("held %d %.6f %.6f %g", lease.number, now, left, lease.ttl)
  elseif not lease.over then
    lease.over = true
    write("not %d %.6f", lease.number, now)
  end
  return held
end

local function sample_all()
  for _, lease in pairs(leases) do sample(lease) end
end

-- To be called before anything is done that may end the lease.
local function ends(lease)
  sample(lease)
  write("ends %d %.6f", lease.number, posix.now())
end

local function begin(lock, begun)
  lease_count = lease_count + 1
  local lease = { number = lease_count, lock = lock.object, ttl = lock.ttl, of = lock }
  leases[lease.number] = lease
  write("acquired %d %s %d %g %s %.6f %.6f", lease.number, lock.name, lease.lock:token(), lock.ttl,
    lock.kept and "kept" or "plain", begun, posix.now())
  sample(lease)
  return lease
end

--------------------------------------------------------------------------------
-- Calls

local known = { held = true, lost = true, not_held = true, timeout = true, unreachable = true,
  refused = true }

-- Makes a call that takes no longer than `bound`, and writes down how long it took.
local function call(what, name, bound, fn, ...)
  local begun = posix.now()
  local function finished(ok, message, code, ...)
    local outcome = ok and "ok" or code
    write("call %s %s %.6f %.6f %.3f %s", what, name, begun, posix.now(), bound, tostring(outcome))
    if not ok and not known[code] then
      wrong("%s said %s, %s", what, tostring(message), tostring(code))
    end
    return ok, message, code, ...
  end
  return finished(fn(...))
end

-- Calls a method that may find out that the lease is lost, which is to be said once.
local function ask(lease, method, ...)
  local begun = posix.now()
  local lock = lease.of
  local ok, _, code = call(method, lock.name, lock.client.bound, lease.lock[method], lease.lock,
    ...)
  if code == "lost" then
    write("lost %d %.6f %.6f %s", lease.number, begun, posix.now(), method)
    if lease.lock:held() then wrong("%s said lost, and held() is true", method) end
    local again, _, second = lease.lock:release()
    if second ~= "not_held" then
      wrong("%s said lost, then release said %s %s", method, tostring(again), tostring(second))
    end
  end
  return ok, code
end

--------------------------------------------------------------------------------
-- Clients

local function new_client()
  local timeout = between(0.3, 1)
  local options = { timeout = timeout }
  if chance(0.3) then
    options.sleep = function(seconds)
      sample_all()
      posix.sleep(seconds)
    end
  end
  -- What a call may take that sends something: its time, and a little for what is not the network.
  return { object = memlock.client(server, options), locks = {}, bound = timeout * 1.2 + 0.3 }
end

local client = new_client()

local function some_wait()
  return chance(0.4) and 0 or between(0.02, 2)
end

local function new_lock(name)
  local kept, ttl, wait = chance(0.4), one_of(TTLS), some_wait()
  local options = { ttl = ttl, wait = wait, auto_refresh = kept }
  if kept and chance(0.2) then options.max_hold = between(0.5, 3) end
  return { name = name, ttl = ttl, wait = wait, kept = kept, client = client,
    object = client.object:lock(name, options) }
end

local function lock_for(name)
  local lock = client.locks[name]
  if not lock or chance(0.2) then
    lock = new_lock(name)
    client.locks[name] = lock
  end
  return lock
end

-- How long the next collection may take, when there is something to be collected. It has to wait
-- until the functions that had it are gone from the stack.
local to_collect

-- Time for the collector to take what was let go, which may give up locks.
local function collect(bound)
  to_collect = nil
  call("collect", "-", bound, function()
    collectgarbage()
    collectgarbage()
    return true
  end)
end

-- Ends the client in one of its ways. All its leases end with it.
local function end_client(old, by_closing)
  local counts = {}
  for key, count in pairs(old.object:stats()) do
    counts[#counts + 1] = ("%s=%s"):format(key, count)
  end
  write("stats %s", table.concat(counts, " "))
  for _, lease in pairs(leases) do
    ends(lease)
    leases[lease.number] = nil
  end
  old.locks = {}
  if by_closing or chance(0.6) then
    call("close", "-", old.bound, old.object.close, old.object)
  end
  old.object = nil
end

local function replace_client()
  local bound = client.bound
  end_client(client)
  client = new_client()
  collect(bound)
end

-- In the middle of the work, when the collector could not have it yet.
local function close_client()
  end_client(client, true)
  client = new_client()
end

--------------------------------------------------------------------------------
-- The register

local function connect_register()
  register = assert(net.connect("127.0.0.1:" .. register_port, 10))
end

-- What a holder does: it changes what the lock protects, and shows its token.
local function write_register(lease)
  local name, token = lease.of.name, lease.lock:token()
  if not sample(lease) then return end
  local begun = posix.now()
  assert(register:send(("%s %d\n"):format(name, token)))
  local verdict, largest = assert(register:receive("*l")):match("^(%a+) (%d+)$")
  local returned = posix.now()
  if sample(lease) then
    write("write %d %s %d %.6f %.6f %s %s", lease.number, name, token, begun, returned, verdict,
      largest)
  end
end

--------------------------------------------------------------------------------
-- Forked children

local child

-- What a child may do with the copies that it has, before it ends.
local uses = {
  function() end, -- nothing
  function(lock) if lock:held() then wrong("a child's copy is held") end end,
  function(lock)
    for _, method in ipairs { "refresh", "verify", "release" } do
      local ok, _, code = lock[method](lock)
      if ok or code ~= "not_held" then
        wrong("%s of a child's copy said %s %s", method, tostring(ok), tostring(code))
      end
    end
  end,
  function(_, object) object:stats() end,
  function(_, object) object:close() end,
  function(lock) if leave_block then pcall(leave_block, lock) end end,
}

local endings = {
  function() posix._exit(0) end,
  function() os.exit(0) end,
  function() os.exit(true, true) end,
  function()
    for _, lease in pairs(leases) do ends(lease) end
    leases = {}
    client = nil
    collectgarbage()
    collectgarbage()
    posix._exit(0)
  end,
  function()
    posix.kill(posix.getpid(), "TERM")
    posix.sleep(10)
  end,
}

local hold

local function run_child(ordinal, parent)
  posix.pdeathsig("KILL")
  if posix.getppid() ~= parent then posix._exit(1) end
  write = journal.open(("%s-child-%d"):format(path, ordinal))
  write("start %d %.6f", posix.getpid(), posix.now())
  math.randomseed(seed * 100000 + number + 1000 * ordinal)
  local inherited = leases
  leases, child = {}, nil
  connect_register() -- the parent's connection is not to be shared
  local _, lease = next(inherited)
  local lock = lease and lease.of or lock_for(one_of(names))
  for _, copy in pairs(inherited) do
    if copy.lock:held() then wrong("a child's copy is held") end
  end
  local object = client.object
  if chance(0.5) then
    -- Its own acquisition with a copy. It may end while it holds.
    local begun = posix.now()
    local ok = call("acquire", lock.name, client.bound + 1, lock.object.acquire, lock.object, 1)
    if ok then
      local own = begin(lock, begun)
      hold(own, between(0, 0.3))
      if chance(0.7) then
        leases = {}
        ends(own)
        ask(own, "release")
      end
    end
  else
    one_of(uses)(lock.object, object)
  end
  if chance(0.3) then posix.sleep(between(0, 1)) end
  local ending = math.random(#endings)
  if ending == 3 then
    for _, own in pairs(leases) do ends(own) end -- finalizers run
  end
  endings[ending]()
end

local function reap(seconds)
  if not child then return true end
  local kind, code = posix.waitpid(child.pid, seconds)
  if not kind then return false end
  if not (kind == "exit" and code == 0 or kind == "signal" and code == posix.signals.TERM) then
    write("child %d %s %d", child.pid, kind, code)
  end
  child = nil
  return true
end

local forks = 0

local function fork()
  if not reap(0) then return end
  forks = forks + 1
  local me = posix.getpid()
  local pid = assert(posix.fork())
  if pid == 0 then
    local ok, message = xpcall(run_child, debug.traceback, forks, me)
    if not ok then wrong("a child failed: %s", message) end
    posix._exit(1)
  end
  child = { pid = pid }
  write("did fork")
end

--------------------------------------------------------------------------------
-- Rounds

local round

local function refresh(lease)
  ends(lease)
  local ttl = chance(0.3) and one_of(TTLS) or nil
  local before = lease.ttl
  lease.ttl = math.max(before, ttl or lease.of.ttl) -- unless it is known which of them it is
  if ask(lease, "refresh", ttl) then lease.ttl = ttl or lease.of.ttl end
  return sample(lease)
end

-- Works under the lease for some time; false when it is over before that.
function hold(lease, seconds, depth)
  local deadline = posix.now() + seconds
  repeat
    if not sample(lease) then return false end
    local dice = math.random()
    if dice < 0.4 then
      write_register(lease)
    elseif dice < 0.6 then
      if not refresh(lease) then return false end
    elseif dice < 0.65 then
      ends(lease)
      ask(lease, "verify")
    elseif dice < 0.67 then
      call("holder", lease.of.name, lease.of.client.bound, function(lock)
        local holder, message, code = lock:holder()
        return holder ~= nil, message, code
      end, lease.lock)
    elseif dice < 0.72 and depth and depth < 2 then
      round(depth + 1)
    elseif dice < 0.78 and depth and number % 2 == 0 then
      fork()
    elseif dice < 0.785 and depth == 1 then
      close_client()
      return false
    end
    posix.sleep(between(0, 0.015))
  until posix.now() > deadline
  return true
end

local function some_time(lease)
  if chance(0.02) then return lease.ttl * between(1, 1.6) end -- until after its end
  return chance(0.1) and between(0.2, 2) or between(0, 0.06)
end

-- Ends the lease in one of the ways there are.
local function end_lease(lease)
  leases[lease.number] = nil
  ends(lease)
  local dice = math.random()
  if dice < 0.85 then
    local ok, code = ask(lease, "release")
    if not ok and code ~= "lost" and chance(0.5) then ask(lease, "release") end
  elseif dice < 0.92 then
    call("leave", lease.of.name, lease.of.client.bound, function()
      if leave_block then leave_block(lease.lock) else lease.lock:release() end
      return true
    end)
  else
    local lock = lease.of
    if lock.client.locks[lock.name] == lock then lock.client.locks[lock.name] = nil end
    to_collect = lock.client.bound
    lease.lock, lease.of, lock.object = nil, nil, nil
  end
end

local function acquire_and_work(lock, depth)
  local wait = some_wait()
  local begun = posix.now()
  if not call("acquire", lock.name, lock.client.bound + wait, lock.object.acquire, lock.object,
    wait)
  then
    return
  end
  local lease = begin(lock, begun)
  hold(lease, some_time(lease), depth)
  if leases[lease.number] == lease then end_lease(lease) end
end

-- The same by with(), of which the two ends are timed, and not the function.
local function work_with(lock, depth)
  local wait = lock.wait
  local begun, left = posix.now(), nil
  local lease
  local fails = chance(0.1)
  local function work()
    write("call with %s %.6f %.6f %.3f ok", lock.name, begun, posix.now(), lock.client.bound + wait)
    lease = begin(lock, begun)
    local as_long = hold(lease, some_time(lease), depth)
    if leases[lease.number] == lease then
      leases[lease.number] = nil
      ends(lease)
    end
    left = posix.now()
    if fails then error("as planned", 0) end
    return as_long, "result"
  end
  local done, ok, message, code = pcall(lock.object.with, lock.object, work)
  local returned = posix.now()
  if not lease then
    write("call with %s %.6f %.6f %.3f %s", lock.name, begun, returned, lock.client.bound + wait,
      tostring(code))
    if not done or not known[code] or code == "lost" then
      wrong("with said %s %s", tostring(ok), tostring(message))
    end
    return
  end
  local outcome = not done and "error" or ok and "ok" or tostring(code)
  write("call end-of-with %s %.6f %.6f %.3f %s", lock.name, left, returned, lock.client.bound,
    outcome)
  if outcome == "lost" then write("lost %d %.6f %.6f with", lease.number, left, returned) end
  if fails and (done or ok ~= "as planned") then
    wrong("an error in with came out as %s", tostring(ok))
  elseif not fails and (not done or not ok and code ~= "lost") then
    wrong("with said %s %s", tostring(ok), tostring(message))
  end
end

function round(depth)
  local taken = {}
  for _, lease in pairs(leases) do taken[lease.of.name] = true end
  local name = one_of(names)
  if taken[name] then return end
  local lock = lock_for(name)
  if depth == 1 and chance(0.3) then
    work_with(lock, depth)
  else
    acquire_and_work(lock, depth)
  end
end

local function run()
  connect_register()
  for _, name in ipairs { "USR1", "USR2", "WINCH", "CHLD", "HUP" } do
    posix.signal(name, "noop", number % 2 == 0)
  end
  local descriptors = posix.open_fds()
  write("start %d %.6f", posix.getpid(), posix.now())
  if number % 3 == 2 then posix.setitimer(ALARM, number % 2 == 0) end
  while posix.now() < finish and #posix.poll({ 0 }, 0) == 0 do
    round(1)
    if to_collect then collect(to_collect) end
    if chance(0.04) then replace_client() end
    reap(0)
    posix.sleep(between(0, 0.03))
  end
  local bound = client.bound
  end_client(client)
  client = nil
  collect(bound)
  if not reap(10) then
    posix.kill(child.pid, "KILL")
    write("child %d timeout 0", child.pid)
    reap()
  end
  write("end %.6f %d %d", posix.now(), descriptors, posix.open_fds())
end

local ok, message = xpcall(run, debug.traceback)
if not ok then
  io.stderr:write(message, "\n")
  os.exit(1)
end
