--- Giving up at the end of a scope: local lock <close>, local client <close>. Needs Lua 5.4.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local timeout = 0.3

local function key_of(lock) return "memlock:" .. lock:name() end

local function about_one_timeout(took)
  assert.is_true(took >= 0.95 * timeout and took <= timeout + support.slack(0.2 * timeout), took)
end

describe("local lock <close>", function()
  it("gives the lock up at the end of its scope, however that is reached", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local key
    do
      local lock <close> = assert(client:lock(support.name()):acquire())
      key = key_of(lock)
      assert.truthy(raw:get(key))
    end
    assert.is_nil(raw:get(key))
    local function early()
      local lock <close> = assert(client:lock(support.name()):acquire())
      key = key_of(lock)
      return raw:get(key)
    end
    assert.truthy(early())
    assert.is_nil(raw:get(key))
    for _ = 1, 2 do
      local lock <close> = assert(client:lock(support.name()):acquire())
      key = key_of(lock)
      if raw:get(key) then break end
    end
    assert.is_nil(raw:get(key))
    client:close()
  end)

  it("passes an error on as it is", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local thrown, key = {}, nil
    local ok, err = pcall(function()
      local lock <close> = assert(client:lock(support.name()):acquire())
      key = key_of(lock)
      error(thrown)
    end)
    assert.is_false(ok)
    assert.equal(thrown, err)
    assert.is_nil(raw:get(key))
    client:close()
  end)

  it("of a coroutine that is closed gives the lock up", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    local lock = client:lock(support.name())
    local co = coroutine.create(function()
      local held <close> = assert(lock:acquire())
      coroutine.yield(held)
    end)
    assert(coroutine.resume(co))
    assert.truthy(raw:get(key_of(lock)))
    assert.is_true(coroutine.close(co))
    assert.is_nil(raw:get(key_of(lock)))
    client:close()
  end)

  it("is quiet about a lock that is not held, was lost, or whose client was closed", function()
    local server = support.server()
    local raw = server:raw()
    local client = memlock.client(server.address)
    do local _ <close> = client:lock(support.name()) end
    do
      local lock <close> = assert(client:lock(support.name()):acquire())
      raw:set(key_of(lock), "somebody else")
      support.defer(function() raw:delete(key_of(lock)) end)
    end
    do
      local lock <close> = assert(client:lock(support.name()):acquire())
      assert.is_true(lock:release())
    end
    do
      local _ <close> = assert(client:lock(support.name()):acquire())
      client:close()
    end
  end)

  it("takes one timeout when the server is stopped, and raises nothing", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local lock = assert(client:lock(support.name()):acquire())
    local thrown = {}
    server:stop_process()
    local took, ok, err = support.elapsed(pcall, function()
      local _ <close> = lock
      error(thrown)
    end)
    assert.same({ false, thrown }, { ok, err })
    about_one_timeout(took)
    assert.is_false((lock:held()))
  end)
end)

describe("local client <close>", function()
  it("gives up all and passes an error on", function()
    local raw = support.server():raw()
    local thrown, locks, made = {}, {}, nil
    local ok, err = pcall(function()
      local client <close> = memlock.client(support.server().address)
      made = client
      for i = 1, 5 do locks[i] = assert(client:lock(support.name()):acquire()) end
      assert.truthy(raw:get(key_of(locks[5])))
      error(thrown)
    end)
    assert.same({ false, thrown }, { ok, err })
    for _, lock in ipairs(locks) do assert.is_nil(raw:get(key_of(lock))) end
    assert.equal("closed client", memlock.type(made))
  end)

  it("takes one timeout when the server is stopped, and raises nothing", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local lock = assert(client:lock(support.name()):acquire())
    server:stop_process()
    about_one_timeout((support.elapsed(function() local _ <close> = client end)))
    assert.is_false((lock:held()))
  end)
end)
