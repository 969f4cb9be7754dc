--- HAProxy as examples/haproxy configures it: who leads, however it forks and ends.

local support = require "spec.support"
support.setup()

local crowd = require "spec.hosts.crowd"
local example = require "spec.support.example"
local haproxy = require "spec.hosts.haproxy"
local posix = support.posix

local server, truth

before_each(function()
  server = support.memcached()
  truth = server:raw()
end)

local function start(options)
  options.memcached = server.address
  options.load = options.load or "lua-load"
  return haproxy.start(options)
end

-- The process that leads, by what memcached says; nil when there is none.
local function leader()
  return example.holder(truth, "haproxy-leader")
end

-- Waits until a process other than `before` leads.
-- @param seconds for how long, on a quiet machine
-- @return its id
local function successor(before, seconds)
  return support.eventually(function()
    local pid = leader()
    return pid ~= before and pid
  end, support.slack(seconds))
end

local function ask(program)
  local status, answer = crowd.get(program.port, "/leader")
  assert.equal(200, status)
  return answer
end

-- What a program says once it leads: its token.
local function token(program)
  return support.eventually(function()
    return tonumber(ask(program):match "^leading, under token (%d+)\n$")
  end)
end

for _, load in ipairs { "lua-load", "lua-load-per-thread" } do
  it("one of three leads, and another one when it is killed: " .. load, function()
    local programs = {}
    for i = 1, 3 do
      local program = start { load = load }
      programs[i], programs[program.pid] = program, program
    end
    local first = successor(nil, 5)
    local first_token = token(programs[first])
    for i = 1, 3 do
      if programs[i].pid ~= first then
        assert.truthy(ask(programs[i]):find("^following .*:" .. first .. "\n$"))
      end
    end
    support.sleep(6) -- longer than the ttl: it is renewed
    assert.equal(first, leader())

    programs[first]:kill "KILL"
    programs[first]:wait()
    local second = successor(first, 8)
    assert.is_not_nil(programs[second])
    assert.is_true(token(programs[second]) > first_token)
  end)
end

it("a soft stop gives the lead up at once, while connections go on", function()
  local one = start {}
  local first = successor(nil, 5)
  assert.equal(one.pid, first)
  local two = start {}
  -- A connection that keeps the old process from ending.
  local connection = support.raw("127.0.0.1:" .. one.port)
  connection:send "GET /leader HTTP/1.1\r\n"
  one:kill "USR1"
  local took = support.elapsed(successor, first, 5)
  assert.is_true(took < support.slack(1), "not before the ttl was over")
  assert.is_true(one:alive())
  token(two)
  connection:send "Host: localhost\r\n\r\n"
  assert.truthy(connection:line():find " 200 ")
  connection:close()
  assert.equal(0, one:wait().code)
  assert.equal(two.pid, leader())
end)

it("a soft stop of an idle one leaves no lock behind", function()
  local one = start {}
  assert.equal(one.pid, successor(nil, 5))
  one:kill "USR1"
  assert.equal(0, one:wait().code)
  support.eventually(function() return leader() == nil end, 2) -- it was sent, without waiting
end)

it("with SIGTERM the lock ends with its ttl", function()
  local one = start {}
  assert.equal(one.pid, successor(nil, 5))
  local two = start {}
  one:kill "TERM"
  one:wait()
  assert.equal(one.pid, leader())
  assert.equal(two.pid, successor(one.pid, 8))
end)

it("a worker leads, not its master; and after a reload the new worker", function()
  local master = start { arguments = { "-W" } }
  local workers = support.children(master.pid)
  assert.equal(1, #workers)
  assert.equal(workers[1], successor(nil, 5))
  local first_token = token(master)

  -- A master that has just started may not hear the first signal.
  local second = support.eventually(function()
    master:kill "USR2"
    local ok, pid = pcall(successor, workers[1], 1)
    return ok and pid
  end, support.slack(10))
  assert.is_not.equal(master.pid, second)
  support.eventually(function()
    local now = support.children(master.pid)
    return #now == 1 and now[1] == leader()
  end, support.slack(5))
  assert.is_true(token(master) > first_token)
end)

it("a daemon leads", function()
  local path = support.tempdir() .. "/pid"
  local parent = start { arguments = { "-D", "-p", path } }
  local daemon = math.tointeger(tonumber(support.read_file(path)))
  support.defer(function() posix.kill(daemon, "KILL") end)
  assert.is_not.equal(parent.pid, daemon)
  assert.equal(0, parent:wait().code)
  assert.equal(daemon, successor(nil, 5))
  token(parent)

  posix.kill(daemon, "USR1")
  support.eventually(function() return not support.running(daemon) end)
  assert.is_nil(leader())
end)
