--- Fencing tokens: each acquisition of a name has a larger one than all before it.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local WORKERS = 4

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

describe("tokens rise strictly", function()
  local server, name, path, workers

  -- Each worker acquires the same lock as often as it is told, and writes its token to a file while
  -- it holds the lock: so the order in the file is the order of the acquisitions. Now and then a
  -- holder does harm to the server, as the last thing that it does with the lock.
  local function work(channel, address, its_name, file_path)
    local client = memlock.client(address, { timeout = 5 })
    local lock = client:lock(its_name, { ttl = 60 })
    local file = assert(io.open(file_path, "a"))
    file:setvbuf("no")
    while true do
      local times, harm = channel:receive(120)
      if not times then return client:close() end
      for i = 1, times do
        assert(lock:acquire(60))
        file:write(("%d\n"):format(lock:token()))
        if harm and i % 5 == 0 then
          local raw = support.raw(address)
          if harm == "flush" then raw:flush_all() else raw:delete("#memlock:" .. its_name) end
          raw:close()
        end
        local released, message, code = lock:release()
        assert(released or harm == "flush" and code == "lost", message)
      end
      channel:send("done")
    end
  end

  before_each(function()
    server = support.memcached()
    name = support.name()
    path = support.tempdir() .. "/tokens"
    workers = {}
    for i = 1, WORKERS do workers[i] = support.child(work, server.address, name, path) end
  end)

  local function run(times, harm)
    for _, worker in ipairs(workers) do worker:send(times, harm) end
    for _, worker in ipairs(workers) do assert.equal("done", worker:receive(120)) end
  end

  -- The tokens in the order of their acquisitions, rising.
  local function assert_rising(expected)
    local last, count = 0, 0
    for line in io.lines(path) do
      local token = math.tointeger(tonumber(line))
      assert.is_true(token > last, ("%d after %d, the %dth"):format(token, last, count + 1))
      last, count = token, count + 1
    end
    assert.equal(expected, count)
  end

  it("over many acquisitions by several processes, whatever happens to the counter", function()
    local times = support.count(1000) // WORKERS // 5 -- in each of five parts
    local raw = server:raw()
    run(times)
    raw:flush_all()
    run(times)
    raw:delete("#memlock:" .. name)
    run(times)
    server:restart()
    run(times)
    server:restart()
    run(times)
    assert_rising(times * WORKERS * 5)
  end)

  for _, harm in ipairs { "flush", "delete" } do
    it("while it is lost again and again: " .. harm, function()
      local times = support.count(1000) // WORKERS
      run(times, harm)
      assert_rising(times * WORKERS)
    end)
  end

  it("when a holder ran out of time, and when records were flushed under holders", function()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local last = 0
    local kept = {}
    for i = 1, 10 do
      kept[i] = assert(client:lock(name, { ttl = 60 }):acquire())
      local token = kept[i]:token()
      assert.is_true(token > last)
      last = token
      if i % 2 == 0 then raw:flush_all() else raw:delete("memlock:" .. name) end
    end
    client:close()
  end)
end)

describe("a token", function()
  local raw, client, name, fence

  before_each(function()
    raw = support.server():raw()
    client = memlock.client(support.server().address)
    name = support.name()
    fence = "#memlock:" .. name
  end)

  after_each(function() client:close() end)

  it("is nil before the first acquisition, and stays after the release", function()
    local lock = client:lock(name)
    assert.is_nil(lock:token())
    assert(lock:acquire())
    local token = lock:token()
    assert.equal("integer", math.type(token))
    assert.is_true(token > 0)
    assert.is_true(lock:refresh())
    assert.equal(token, lock:token())
    assert.is_true(lock:release())
    assert.equal(token, lock:token())
    assert(lock:acquire())
    assert.is_true(lock:token() > token)
  end)

  it("is nil on an object that never got the lock, and stays when it is lost", function()
    local lock = assert(client:lock(name):acquire())
    local other = client:lock(name)
    assert_fails("held", name, other:acquire())
    assert.is_nil(other:token())
    local token = lock:token()
    raw:delete("memlock:" .. name)
    assert_fails("lost", name, lock:refresh())
    assert.equal(token, lock:token())
    assert(other:acquire())
    assert.is_true(other:token() > token)
    assert_fails("held", name, lock:acquire())
    assert.equal(token, lock:token())
  end)

  it("is what the counter says, which lives for a day", function()
    local lock = assert(client:lock(name):acquire())
    assert.equal(lock:token(), math.tointeger(tonumber((raw:get(fence)))))
    local ttl = raw:ttl(fence)
    assert.is_true(ttl >= 86400 - support.slack(1) and ttl <= 86400, ttl)
  end)

  it("counts on from any counter that is there, and starts at the clock where none is", function()
    raw:set(fence, "41", 100)
    local lock = assert(client:lock(name):acquire())
    assert.equal(42, lock:token())
    assert.is_true(lock:release())
    assert(lock:acquire())
    assert.equal(43, lock:token())
    assert.is_true(lock:release())
    raw:delete(fence)
    local before = os.time()
    assert(lock:acquire())
    assert.is_true(lock:token() >= before * 1000000)
    assert.is_true(lock:token() <= (os.time() + 1) * 1000000)
  end)

  it("rises past the largest one seen, when that is ahead of the clock", function()
    local ahead = (os.time() + 1000000) * 1000000
    raw:set(fence, tostring(ahead), 100)
    local lock = assert(client:lock(name):acquire())
    assert.equal(ahead + 1, lock:token())
    assert.is_true(lock:release())
    raw:delete(fence)
    assert(lock:acquire())
    assert.is_true(lock:token() > ahead + 1)
  end)

  it("belongs to its name", function()
    local lock = assert(client:lock(name):acquire())
    local token = lock:token()
    local other = assert(client:lock(support.name()):acquire())
    assert.is_true(other:token() > 0)
    assert.equal(token, lock:token())
  end)

  for _, garbage in ipairs { "abc", "", "-5", "12x", ("9"):rep(20), "9223372036854775807" } do
    it(("is refused where the counter is garbage, and no record is left: %q"):format(garbage),
      function()
        raw:set(fence, garbage, 100)
        local lock = client:lock(name, { ttl = 30 })
        local ok, message, code = lock:acquire()
        assert_fails("refused", name, ok, message, code)
        assert.truthy(message:find("127.0.0.1", 1, true), message) -- the server
        assert.is_nil(lock:token())
        assert.is_false((lock:held()))
        assert.is_nil((raw:get("memlock:" .. name)))
        raw:delete(fence)
        assert.equal(lock, lock:acquire()) -- it heals with the counter
        assert.is_true(lock:token() > 0)
      end)
  end

  it("is not needed to give up what is held", function()
    local lock = assert(client:lock(name):acquire())
    raw:set(fence, "garbage", 100)
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
    assert.is_true(lock:release())
    assert.is_nil(raw:get("memlock:" .. name))
  end)
end)
