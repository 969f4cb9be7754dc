--- lighttpd as examples/lighttpd configures it, with several workers, over HTTP.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local crowd = require "spec.hosts.crowd"
local example = require "spec.support.example"
local maker = require "spec.hosts.maker"

local server, truth, pages

before_each(function()
  server = support.memcached()
  truth = server:raw()
end)

-- The process that makes the page, by what memcached says; nil when there is none.
local function holder()
  return example.holder(truth, "make:front-page")
end

local function connections()
  return tonumber(truth:stats().curr_connections)
end

-- A lighttpd that answers, with `pages` that get old after a second.
-- @return its process, with its `port`
local function start()
  for _ = 1, 10 do
    local port = support.free_port()
    local lighttpd = support.start { "lighttpd", "-D", "-f", "examples/lighttpd/lighttpd.conf",
      newgroup = true,
      env = support.environment {
        PATH = os.getenv "PATH" .. ":/usr/sbin",
        PWD = lfs.currentdir(),
        LUA_PATH = "examples/lib/?.lua;examples/lighttpd/?.lua;;",
        MEMCACHED = server.address,
        PORT = tostring(port),
        TIMEOUT = "5", -- a busy machine may stop memcached for some time
        FRESH = "1",
        COMMAND = pages:command(),
      } }
    local is_up = support.eventually(function()
      return not lighttpd:alive() and "ended" or pcall(crowd.get, port, "/") and "up"
    end, support.slack(5))
    if is_up == "up" then
      lighttpd.port = port
      return lighttpd
    end
    local result = lighttpd:wait()
    assert.truthy(result.err:find "Address already in use", tostring(result))
  end
end

it("makes the page once each time it gets old, while 200 requests are under way", function()
  local last = support.count(20) + 1
  local connections_before = connections()
  pages = maker.new(0.3)
  local ports, is_worker, holders = {}, {}, {}
  for i = 1, 2 do -- as if on two machines
    local lighttpd = start()
    ports[i] = lighttpd.port
    local workers = support.children(lighttpd.pid)
    assert.equal(3, #workers)
    for _, pid in ipairs(workers) do is_worker[pid] = true end
  end

  local seen, wrong = crowd.ask(ports, "/", 200, last, function()
    holders[holder() or 0] = true
  end)
  assert.same({}, wrong)
  pages:was_asked_once_each(seen, last, 1)
  holders[0] = nil
  assert.is_not_nil(next(holders), "nobody was seen to hold the lock")
  for pid in pairs(holders) do assert.is_true(is_worker[pid]) end
  -- Clients live longer than requests: one for each worker.
  assert.is_true(connections() - connections_before <= 2 * 3)
end)

it("serves the old page while one worker makes it, and another does when that dies", function()
  pages = maker.new(0)
  local port = start().port
  pages:takes(60)
  support.sleep(2)
  local asker = support.child(function() pcall(crowd.get, port, "/") end)
  local worker = support.eventually(holder)
  for _ = 1, 5 do
    local took, status, page = support.elapsed(crowd.get, port, "/")
    assert.same({ 200, "page 1\n" }, { status, page })
    assert.is_true(took < support.slack(0.5))
  end
  assert.equal(worker, holder())

  support.posix.kill(worker, "KILL")
  asker:join()
  pages:takes(0)
  local _, next_page = support.eventually(function()
    local status, page = crowd.get(port, "/")
    assert.equal(200, status)
    return page ~= "page 1\n", page
  end, support.slack(8))
  assert.equal("page 3\n", next_page) -- the second was never finished
end)

it("answers in time when memcached is away, and recovers", function()
  pages = maker.new(0)
  local port = start().port
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
