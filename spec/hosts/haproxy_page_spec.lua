--- HAProxy as examples/haproxy configures it, with threads: the page, over HTTP.

local support = require "spec.support"
support.setup()

local lfs = require "lfs"
local crowd = require "spec.hosts.crowd"
local example = require "spec.support.example"
local haproxy = require "spec.hosts.haproxy"
local maker = require "spec.hosts.maker"

local server, truth

before_each(function()
  server = support.memcached()
  truth = server:raw()
end)

local function holder()
  return example.holder(truth, "make:front-page")
end

local cpu_times = "%) %a" .. (" %-?%d+"):rep(10) .. " (%d+) (%d+)" -- in /proc/N/stat, in 1/100 s

-- How many threads of a process have used the processor for a tenth of a second at least.
local function busy_threads(pid)
  local count = 0
  for task in lfs.dir(("/proc/%d/task"):format(pid)) do
    local file = io.open(("/proc/%d/task/%s/stat"):format(pid, task))
    local ticks = file and { file:read("a"):match(cpu_times) }
    if file then file:close() end
    if ticks and ticks[1] and ticks[1] + ticks[2] >= 10 then count = count + 1 end
  end
  return count
end

-- What these programs have written to their standard error so far.
local function told_by(...)
  local text = {}
  for i, program in ipairs { ... } do
    while program:pump(0) do end
    text[i] = program.text.err
  end
  return table.concat(text)
end

for _, load in ipairs { "lua-load", "lua-load-per-thread" } do
  describe(load, function()
    local pages

    local function start(fresh, more, upstream)
      return haproxy.start { load = load, memcached = server.address, more = more,
        upstream = upstream or pages:serve(), fresh = fresh }
    end

    -- Two with one upstream, as if on two machines.
    local function start_two(fresh, more)
      local upstream = pages:serve()
      return start(fresh, more, upstream), start(fresh, more, upstream)
    end

    it("makes the page once each time it gets old, while 200 requests are under way", function()
      pages = maker.new(0.3)
      local one, two = start_two(1)
      local connections = tonumber(truth:stats().curr_connections)
      local last, holders = support.count(20) + 1, {}
      local seen, wrong = crowd.ask({ one.port, two.port }, "/", 200, last, function()
        holders[holder() or 0] = true
      end)
      assert.same({}, wrong, told_by(one, two))
      pages:was_asked_once_each(seen, last, 1)
      holders[0] = nil
      assert.is_not_nil(next(holders), "nobody was seen to hold the lock")
      for pid in pairs(holders) do assert.is_true(pid == one.pid or pid == two.pid) end
      assert.is_true(busy_threads(one.pid) >= 2 and busy_threads(two.pid) >= 2)
      -- Clients live longer than requests: there is at most one for each thread, and a thread that
      -- renews, in each process, for the page and for the leader.
      local more = tonumber(truth:stats().curr_connections) - connections
      assert.is_true(more <= 2 * (4 + 4 + 1), more)
    end)

    it("waits where there is no page, and holds up nobody", function()
      pages = maker.new(2)
      local one = start(1000)
      local askers = {}
      for i = 1, 8 do
        askers[i] = support.child(function() return crowd.get(one.port, "/") end)
      end
      support.eventually(holder)
      assert.equal(one.pid, holder())
      for _ = 1, 20 do
        local took, status = support.elapsed(crowd.get, one.port, "/leader")
        assert.equal(200, status)
        assert.is_true(took < support.slack(0.2))
      end
      assert.is_not_nil(holder(), "it took longer than to make the page")
      for _, asker in ipairs(askers) do
        assert.same({ 200, "page 1\n" }, { asker:join(20) })
      end
      assert.equal(1, pages:count())
    end)

    it("is not troubled by yields that HAProxy forces at any moment", function()
      pages = maker.new(0.1)
      local one, two = start_two(1, "tune.lua.forced-yield 3")
      local seen, wrong = crowd.ask({ one.port, two.port }, "/", 40, 2, function() end)
      assert.same({}, wrong, told_by(one, two))
      pages:was_asked_once_each(seen, 2, 1)
    end)

    it("answers in time when memcached is away, and recovers", function()
      pages = maker.new(0)
      local one = start(1000)
      server:kill()
      for _ = 1, 3 do
        local took, status, answer = support.elapsed(crowd.get, one.port, "/")
        assert.equal(503, status)
        assert.truthy(answer:find("cannot be reached", 1, true), answer)
        assert.is_true(took < support.slack(1))
      end
      server:restart()
      assert.equal(200, (crowd.get(one.port, "/")))
    end)
  end)
end

it("another request makes a page that takes longer than the ttl, and its page counts", function()
  local pages = maker.new(12)
  local one = haproxy.start { load = "lua-load", memcached = server.address,
    upstream = pages:serve(), fresh = 1000 }
  local slow = support.child(function() return crowd.get(one.port, "/") end)
  support.eventually(function() return pages:count() == 1 end)
  assert.equal(one.pid, holder())
  pages:takes(0)
  local took, status, page = support.elapsed(crowd.get, one.port, "/")
  assert.same({ 200, "page 2\n" }, { status, page })
  assert.is_true(took < support.slack(8))
  assert.same({ 200, "page 1\n" }, { slow:join(support.slack(12)) })
  assert.same({ 200, "page 2\n" }, { crowd.get(one.port, "/") })
end)
