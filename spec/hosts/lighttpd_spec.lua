--- lighttpd as examples/lighttpd configures it, with several workers, over HTTP.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local crowd = require "spec.hosts.crowd"
local example = require "spec.support.example"

local server, truth, directory

before_each(function()
  server = support.memcached()
  truth = server:raw()
  directory = support.tempdir()
end)

-- Prints "page N", N counting from 1, after some time; and writes down when it began and ended.
local command = [[
  n=$(($(wc -l <"$0/begun") + 1))
  echo "$n $(date +%%s.%%N)" >>"$0/begun"
  sleep %g
  echo "$n $(date +%%s.%%N)" >>"$0/ended"
  echo "page $n"]]

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

-- When the making of each page began or ended, by number.
local function times(what)
  local list = {}
  for line in io.lines(directory .. "/" .. what) do
    local number, at = line:match "^(%d+) (%S+)$"
    assert.equal(#list + 1, tonumber(number))
    list[#list + 1] = tonumber(at)
  end
  return list
end

local function set_command(seconds)
  write(directory .. "/make", command:format(seconds))
end

-- The process that makes the page, by what memcached says; nil when there is none.
local function holder()
  return example.holder(truth, "make:front-page")
end

local function connections()
  return tonumber(truth:stats().curr_connections)
end

-- A lighttpd that answers.
-- @param fresh seconds until a page gets old
-- @param seconds how long it takes to make
-- @return its process, its port
local function start(fresh, seconds)
  write(directory .. "/begun", "")
  write(directory .. "/ended", "")
  set_command(seconds)
  for _ = 1, 10 do
    local port = support.free_port()
    local lighttpd = support.start { "lighttpd", "-D", "-f", "examples/lighttpd/lighttpd.conf",
      newgroup = true,
      env = {
        PATH = os.getenv "PATH" .. ":/usr/sbin",
        PWD = lfs.currentdir(),
        LUA_PATH = "examples/lib/?.lua;examples/lighttpd/?.lua;;",
        LUA_CPATH = support.build .. "/?.so;;",
        LUA_PATH_5_4 = false,
        LUA_CPATH_5_4 = false,
        MEMCACHED = server.address,
        PORT = tostring(port),
        FRESH = tostring(fresh),
        COMMAND = ("sh -c '. %s/make' %s"):format(directory, directory),
      } }
    local is_up = support.eventually(function()
      return not lighttpd:alive() and "ended" or pcall(crowd.get, port, "/") and "up"
    end)
    if is_up == "up" then return lighttpd, port end
    local result = lighttpd:wait()
    assert.truthy(result.err:find "Address already in use", tostring(result))
  end
end

local function children(pid)
  local list = {}
  local file = assert(io.open(("/proc/%d/task/%d/children"):format(pid, pid)))
  for child in file:read("a"):gmatch "%d+" do list[#list + 1] = math.tointeger(tonumber(child)) end
  file:close()
  return list
end

local function sockets(pid)
  local count = 0
  for fd in lfs.dir(("/proc/%d/fd"):format(pid)) do
    local target = lfs.symlinkattributes(("/proc/%d/fd/%s"):format(pid, fd), "target")
    if target and target:find "^socket:" then count = count + 1 end
  end
  return count
end

it("makes the page once each time it gets old, while 200 requests are under way", function()
  local expiries, fresh = support.count(20), 1
  local connections_before = connections()
  local lighttpd, port = start(fresh, 0.3)
  local workers = children(lighttpd.pid)
  assert.equal(3, #workers)

  local holders, busiest = {}, {}
  local seen, wrong = crowd.ask({ port }, "/", 200, expiries + 1, function()
    holders[holder() or 0] = true
    for _, worker in ipairs(workers) do
      busiest[worker] = math.max(busiest[worker] or 0, sockets(worker))
    end
  end)
  assert.same({}, wrong)

  -- Each page was made when the one before had got old, and never two at a time.
  local begun, ended = times "begun", times "ended"
  assert.is_true(#begun > expiries)
  for page = 2, #begun do
    assert.is_true(begun[page] >= ended[page - 1] // 1 + fresh, "made twice: page " .. page)
  end
  -- The old one was served while the new one was made.
  for page = 2, expiries + 1 do
    assert.is_true(seen[page - 1].last > begun[page], "nobody got the old page")
    assert.is_true(seen[page].first >= ended[page])
  end

  -- Several workers took part, each with one client, and it was they who held the lock.
  local is_worker, busy = {}, 0
  for _, worker in ipairs(workers) do
    is_worker[worker] = true
    if busiest[worker] > 10 then busy = busy + 1 end
  end
  assert.is_true(busy >= 2, "only one worker did it all")
  assert.is_true(connections() - connections_before <= #workers)
  holders[0] = nil
  assert.is_not_nil(next(holders), "nobody was seen to hold the lock")
  for pid in pairs(holders) do assert.is_true(is_worker[pid]) end
end)

it("serves the old page while one worker makes it, and another does when that dies", function()
  local _, port = start(1, 0)
  set_command(60)
  support.sleep(2)
  local asker = support.child(function() pcall(crowd.get, port, "/") end)
  local maker = support.eventually(holder)
  for _ = 1, 5 do
    local took, status, page = support.elapsed(crowd.get, port, "/")
    assert.same({ 200, "page 1\n" }, { status, page })
    assert.is_true(took < support.slack(0.5))
  end
  assert.equal(maker, holder())

  support.posix.kill(maker, "KILL")
  asker:join()
  set_command(0)
  local _, next_page = support.eventually(function()
    local status, page = crowd.get(port, "/")
    assert.equal(200, status)
    return page ~= "page 1\n", page
  end, support.slack(8))
  assert.equal("page 3\n", next_page) -- the second was never finished
end)

it("answers in time when memcached is away, and recovers", function()
  local _, port = start(1, 0)
  server:kill()
  for _ = 1, 3 do
    local took, status, answer = support.elapsed(crowd.get, port, "/")
    assert.equal(503, status)
    assert.truthy(answer:find("cannot be reached", 1, true), answer)
    assert.is_true(took < support.slack(1))
  end
  server:restart()
  assert.equal(200, (crowd.get(port, "/")))
end)
