--- "Somebody has it" and "could not ask" are different answers, and each comes in time.

local support = require "spec.support"
support.setup()

local net = require "spec.support.net"

local memlock = require "memlock"

local timeout = 0.2 -- of one operation, below

local function key_of(lock) return "memlock:" .. lock:name() end

-- A wait of `wait` that gets no answer ends with the operation that is then under way.
local function in_time(wait, took)
  local least = wait > 0 and wait or timeout
  local most = wait + timeout + support.slack(0.2 * timeout)
  assert.is_true(took >= 0.95 * least and took <= most,
    ("%.3f s, not %.3f to %.3f s"):format(took, least, most))
end

-- Calls lock:method(...) or client:method(...), which must fail with this code and say so.
local function fails(code, part, object, method, ...)
  local took, result, message, found = support.elapsed(object[method], object, ...)
  assert.same({ nil, code }, { result, found }, tostring(message))
  assert.equal("string", type(message))
  assert.truthy(message:find(part, 1, true), ("no %q in: %s"):format(part, message))
  assert.is_nil(message:find("%c"), message)
  return took, message
end

describe("a server without compare-and-swap", function()
  local server, raw, client

  before_each(function()
    server = support.memcached { args = { "-C" } }
    raw = server:raw()
    client = memlock.client(server.address)
  end)

  after_each(function() client:close() end)

  it("is unsupported, each time, and the message says what to do", function()
    local lock = client:lock(support.name())
    for _ = 1, 5 do
      local _, message = fails("unsupported", "compare-and-swap", lock, "acquire")
      assert.truthy(message:find("-C", 1, true), message)
      assert.truthy(message:find(server.address, 1, true), message)
      assert.truthy(message:find(lock:name(), 1, true), message)
      assert.is_false((lock:held()))
      assert.is_nil(lock:token())
    end
    fails("not_held", lock:name(), lock, "refresh")
    fails("not_held", lock:name(), lock, "release")
    fails("not_held", lock:name(), lock, "verify")
  end)

  it("ends a wait at once", function()
    local lock = client:lock(support.name())
    local took = fails("unsupported", "-C", lock, "acquire", 30)
    assert.is_true(took < support.slack(0.2), took)
  end)

  it("keeps what others have there, and nothing of ours for longer than the ttl", function()
    local lock = client:lock(support.name(), { ttl = 7 })
    assert.is_true(raw:set(key_of(lock), "somebody", 0, 5))
    for _ = 1, 3 do fails("unsupported", "-C", lock, "acquire") end
    fails("unsupported", "-C", lock, "holder")
    fails("unsupported", "-C", client, "break_lock", lock:name(), { value = "somebody" })
    fails("unsupported", "-C", client, "update", key_of(lock), function()
      error "it was called"
    end)
    assert.same({ "somebody", 5 }, { raw:get(key_of(lock)) })
    assert.equal(-1, raw:ttl(key_of(lock)))

    local free = client:lock(support.name(), { ttl = 7 })
    fails("unsupported", "-C", free, "acquire")
    local left = raw:ttl(key_of(free))
    assert.is_true(left == nil or left >= 0 and left <= 10, tostring(left))
  end)

  it("gets nothing from closing, collecting or leaving a scope", function()
    local lock = client:lock(support.name())
    fails("unsupported", "-C", lock, "acquire")
    raw:set(key_of(lock), "somebody")
    debug.getmetatable(lock).__close(lock)
    assert.is_true(client:close())
    do
      local dropped = memlock.client(server.address):lock(lock:name())
      fails("unsupported", "-C", dropped, "acquire")
    end
    collectgarbage()
    support.sleep(0.02)
    assert.equal("somebody", raw:get(key_of(lock)))
  end)

  it("is told from one with it by the same process, in both orders", function()
    local good = memlock.client(support.server().address)
    for _ = 1, 3 do
      fails("unsupported", "-C", client:lock(support.name()), "acquire")
      local lock = good:lock(support.name())
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:release())
    end
  end)
end)

describe("a full server", function()
  local server, raw

  before_each(function()
    server = support.memcached { args = { "-M", "-I", "512k" }, memory = 1 }
    raw = server:raw()
  end)

  it("refuses, in its own words, and is believed each time", function()
    server:fill()
    local client = memlock.client(server.address)
    local lock = client:lock(support.name())
    for _ = 1, 3 do
      local _, message = fails("refused", "ALLOCATE", lock, "acquire")
      assert.truthy(message:find(server.address, 1, true), message)
      assert.is_false((lock:held()))
      assert.is_nil(raw:get(key_of(lock)))
    end
    local took = fails("refused", "ALLOCATE", lock, "acquire", 0.2)
    assert.is_true(took >= 0.19 and took < 0.2 + support.slack(0.3), took)
    assert.is_true(raw:flush_all())
    support.eventually(function() return raw:set("room", ("x"):rep(100)) end)
    support.eventually(function() return lock:acquire() end)
    assert.is_true(lock:release())
  end)

  it("never makes a held lock look free or lost", function()
    local client = memlock.client(server.address)
    local lock = client:lock(support.name())
    assert(lock:acquire())
    server:fill()
    assert.is_true(lock:verify())
    local ok, message, code = lock:refresh()
    if not ok then
      assert.equal("refused", code, message)
      assert.truthy(message:find("ALLOCATE", 1, true), message)
    end
    assert.is_true((lock:held()))
    local other = memlock.client(server.address):lock(lock:name())
    local taken, _, why = other:acquire()
    assert.is_nil(taken)
    assert.is_true(why == "held" or why == "refused", why)
    assert.truthy(raw:get(key_of(lock)))
  end)

  it("that has no memory left for a release says so, and can be asked again", function()
    local client = memlock.client(server.address)
    local lock = client:lock(support.name())
    assert(lock:acquire())
    server:fill()
    for _ = 1, 3 do
      local took = fails("refused", "ALLOCATE", lock, "release")
      assert.is_true(took < support.slack(0.2), took)
      assert.is_false((lock:held()))
    end
    assert.truthy(raw:get(key_of(lock)))
    for i = 1, 500 do raw:delete(("fill-25-%d"):format(i)) end
    for i = 1, 500 do raw:delete(("fill-1-%d"):format(i)) end
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key_of(lock)))
  end)
end)

describe("a dead port", function()
  it("is unreachable, quickly", function()
    local address = support.refusing()
    local client = memlock.client(address, { timeout = 5 })
    local lock = client:lock(support.name())
    for _ = 1, 3 do
      local took, message = fails("unreachable", address, lock, "acquire")
      assert.is_true(took < support.slack(0.1), took)
      assert.truthy(message:find("refused", 1, true), message)
      took = fails("unreachable", address, lock, "holder")
      assert.is_true(took < support.slack(0.1), took)
    end
  end)

  it("is waited for as long as the caller says, and not longer", function()
    local lock = memlock.client(support.refusing(), { timeout = 5 }):lock(support.name())
    local took = fails("unreachable", "refused", lock, "acquire", 0.4)
    assert.is_true(took >= 0.39 and took < 0.4 + support.slack(0.1), took)
  end)

  it("may be a socket that is not there, or a file that is none", function()
    local place = support.tempdir()
    local file = assert(io.open(place .. "/file", "w"))
    file:close()
    for _, name in ipairs { "none", "file" } do
      local lock = memlock.client(place .. "/" .. name):lock(support.name())
      local took = fails("unreachable", place .. "/" .. name, lock, "acquire")
      assert.is_true(took < support.slack(0.1), took)
    end
  end)

  it("costs a holder nothing but the answer: the lease goes on", function()
    local server = support.memcached()
    local lock = memlock.client(server.address):lock(support.name())
    assert(lock:acquire())
    server:kill()
    for _, method in ipairs { "refresh", "verify", "holder" } do
      local took = fails("unreachable", server.address, lock, method)
      assert.is_true(took < support.slack(0.1), took)
    end
    assert.is_true((lock:held()))
    fails("unreachable", server.address, lock, "release")
    assert.is_false((lock:held()))
  end)
end)

-- A queue of connections that is full, at a port of ours: the kernel then drops each SYN, so that
-- connecting is never answered.
local function full_at(port)
  local listener = net.tcp()
  listener:setoption("reuseaddr", true)
  assert(listener:bind("127.0.0.1", port))
  assert(listener:listen(0))
  local sockets = { listener }
  support.defer(function()
    for _, socket in ipairs(sockets) do socket:close() end
  end)
  for _ = 1, 64 do
    local socket = net.tcp()
    socket:settimeout(0.05)
    sockets[#sockets + 1] = socket
    if not socket:connect("127.0.0.1", port) then return end
  end
  error("the queue of connections does not fill")
end

-- Ways in which a server stops to answer: each gets the relay in front of it, and its port.
local silences = {
  ["a stopped server"] = function(server) server:stop_process() end,
  ["a listener that accepts and never answers"] = function(_, relay)
    relay:blackhole()
    relay:cut()
  end,
  ["a listener whose queue is full"] = function(_, relay)
    local port = relay.port
    relay:stop()
    full_at(port)
  end,
}

for what, silence in pairs(silences) do
  describe(what, function()
    local server, relay, client, lock, other

    before_each(function()
      server = support.memcached()
      relay = support.relay(server)
      client = memlock.client(relay.address, { timeout = timeout })
      lock = assert(client:lock(support.name()):acquire())
      other = client:lock(support.name())
      silence(server, relay)
    end)

    after_each(function() client:close() end)

    it("is a timeout for every operation, in time", function()
      local address = relay.address
      in_time(0, fails("timeout", address, other, "acquire"))
      in_time(0.3, fails("timeout", address, other, "acquire", 0.3))
      in_time(0, fails("timeout", address, lock, "refresh"))
      in_time(0, fails("timeout", address, lock, "verify"))
      in_time(0, fails("timeout", address, lock, "holder"))
      in_time(0, fails("timeout", address, client, "holder", support.name()))
      in_time(0, fails("timeout", address, client, "break_lock", support.name(), { value = "x" }))
      in_time(0, fails("timeout", address, client, "update", "key", function()
        error "it was called"
      end))
      assert.is_true((lock:held())) -- it asks nobody, and its lease has not ended
      in_time(0, fails("timeout", address, lock, "release"))
      assert.is_false((lock:held()))
      local took = support.elapsed(client.close, client)
      assert.is_true(took <= timeout + support.slack(0.2 * timeout), took)
    end)

    it("is never asked by held, token, name and stats", function()
      local took = support.elapsed(function()
        for _ = 1, 1000 do
          assert(lock:held())
          assert(lock:token())
          assert(not other:held())
          assert(client:stats().attempts == 1)
          assert(#tostring(lock) > 0 and #tostring(client) > 0)
        end
      end)
      assert.is_true(took < support.slack(0.1), took)
    end)
  end)
end

it("a listener that nobody looks after is a timeout from the first call on", function()
  for _, place in ipairs { support.silent(), support.full() } do
    local client = memlock.client(place.address, { timeout = timeout })
    local lock = client:lock(support.name())
    in_time(0, fails("timeout", place.address, lock, "acquire"))
    in_time(0.3, fails("timeout", place.address, lock, "acquire", 0.3))
    in_time(0, fails("timeout", place.address, lock, "holder"))
    fails("not_held", lock:name(), lock, "refresh")
  end
end)

it("the time of one operation is the client's to choose", function()
  local place = support.silent()
  for _, seconds in ipairs { 0.05, 0.1, 0.4 } do
    local lock = memlock.client(place.address, { timeout = seconds }):lock(support.name())
    local took = fails("timeout", place.address, lock, "acquire")
    assert.is_true(took >= seconds * 0.95 and took < seconds * 1.2 + support.slack(0.02), took)
  end
end)

it("the server is never asked by held", function()
  local relay = support.relay(support.server())
  local lock = assert(memlock.client(relay.address):lock(support.name()):acquire())
  relay:reset()
  relay:record()
  for _ = 1, 1000 do assert(lock:held()) end
  assert.same({ 0, "" }, { relay:round_trips(), relay:sent() })
  lock:release()
end)

describe("a server that hides what it has", function()
  -- The first read shows the record that was added; after that `times` reads show nothing, while a
  -- compare-and-swap is told that the record is there, and is not ours. The reads that follow show
  -- another's record.
  local function hide(connection, number, times)
    local record
    local reads = number > 1 and 1 or 0
    while true do
      local command = connection:read_command()
      if not command then return end
      if command.name == "gets" then
        local reply = ""
        for key in command.line:gmatch("%S+", 6) do
          local value = key:sub(1, 1) == "#" and "1796023714502099" or reads == 0 and record
            or reads > times and "memlock/1 other 1 1 1000 other:1"
          if value then
            local cas = key:sub(1, 1) == "#" and 8 or 7 -- the fence was counted last
            reply = reply .. ("VALUE %s 0 %d %d\r\n%s\r\n"):format(key, #value, cas, value)
          end
        end
        reads = reads + 1
        connection:write(reply .. "END\r\n")
      elseif command.name == "add" and not command.key:find("^#") then
        record = command.data
        if not command.noreply then connection:write("STORED\r\n") end
      elseif not command.noreply then
        connection:write(command.name == "cas" and "EXISTS\r\n" or "NOT_STORED\r\n")
      end
    end
  end

  it("is answered with a code and a reason, by release and break_lock as well", function()
    local fake = support.fake(function(connection, number) hide(connection, number, math.huge) end)
    local client = memlock.client(fake.address, { timeout = 1 })
    local lock = client:lock(support.name())
    assert.equal(lock, lock:acquire())
    fails("timeout", "keeps changing", lock, "release")
    assert.is_false((lock:held()))
    fails("timeout", "keeps changing", lock, "release")
    fails("timeout", "keeps changing", client, "break_lock", lock:name(), { value = "x" })
    fails("timeout", "keeps changing", client, "holder", lock:name())
    client:close()
  end)

  it("is asked again while others take the lock and lose it", function()
    for _, operation in ipairs { "release", "holder" } do
      local fake = support.fake(function(connection, number) hide(connection, number, 5) end)
      local client = memlock.client(fake.address, { timeout = 5 })
      local lock = client:lock(support.name())
      assert.equal(lock, lock:acquire())
      if operation == "release" then
        fails("lost", "another has it", lock, "release")
      else
        assert.equal("other", client:holder(lock:name()).id)
        fails("lost", "another has it", lock, "release")
      end
      client:close()
    end
  end)
end)

describe("a length in a reply that cannot be", function()
  -- With two bytes more for the end of the block, the largest one is 1 again.
  local longest = "18446744073709551615"
  local replies = { add = "NOT_STORED", incr = "1796023714502099", cas = "NOT_FOUND" }

  -- Answers a read of the lock, or of its fence, with a value of that length.
  local function lie(about)
    return function(connection)
      while true do
        local command = connection:read_command()
        if not command then return end
        if command.name == "gets" then
          local reply = ""
          for key in command.line:gmatch("%S+", 6) do
            local kind = key:sub(1, 1) == "#" and "fence" or "lock"
            local value = kind == "fence" and "1796023714502099" or "another program"
            if kind == about then
              reply = reply .. ("VALUE %s 0 %s 7\r\nx"):format(key, longest)
            else
              reply = reply .. ("VALUE %s 0 %d 7\r\n%s\r\n"):format(key, #value, value)
            end
          end
          connection:write(reply .. "END\r\n")
        elseif replies[command.name] and not command.noreply then
          connection:write(replies[command.name] .. "\r\n")
        end
      end
    end
  end

  for _, case in ipairs { { "lock", "acquire", "refused", "impossible length" },
    { "lock", "holder", "refused", "impossible length" },
    { "fence", "acquire", "refused", "impossible length" } } do
    local about, method, expected, part = table.unpack(case)
    it(("is not believed, and not fatal: of the %s, in %s"):format(about, method), function()
      local fake = support.fake(lie(about))
      local name = support.name()
      -- In a process of its own, which would be the one to crash.
      local child = support.child(function()
        local lock = memlock.client(fake.address, { timeout = 1 }):lock(name)
        local result, message, code = lock[method](lock)
        return result == nil, message, code, (lock:held())
      end)
      local failed, message, code, held = child:join()
      assert.same({ true, expected, false }, { failed, code, held }, message)
      assert.truthy(message:find(part, 1, true), message)
    end)
  end
end)

describe("five failures", function()
  it("are five answers, none of them true, and fn of with never runs", function()
    local name = support.name()
    local holder = assert(memlock.client(support.server().address):lock(name):acquire())
    local stopped = support.memcached()
    stopped:stop_process()
    local full = support.memcached { args = { "-M", "-I", "512k" }, memory = 1 }
    full:fill()
    local addresses = {
      held = support.server().address,
      timeout = stopped.address,
      unsupported = support.memcached({ args = { "-C" } }).address,
      refused = full.address,
      unreachable = support.refusing(),
    }
    local ran = 0
    local messages = {}
    for code, address in pairs(addresses) do
      local client = memlock.client(address, { timeout = timeout })
      local lock = client:lock(name)
      local results = table.pack(lock:acquire())
      assert.equal(3, results.n)
      assert.same({ nil, code }, { results[1], results[3] }, tostring(results[2]))
      assert.is_true(results[2]:find(name, 1, true) ~= nil, results[2])
      assert.is_nil(messages[results[2]])
      messages[results[2]] = true
      results = table.pack(lock:with(function() ran = ran + 1 end))
      assert.same({ 3, nil, code }, { results.n, results[1], results[3] }, tostring(results[2]))
      assert.is_false((lock:held()))
    end
    assert.has_error(function() -- the sixth: a mistake is no answer at all
      memlock.client(support.server().address):lock("a name"):with(function() ran = ran + 1 end)
    end)
    assert.equal(0, ran)
    holder:release()
  end)
end)

describe("afterwards the client is as good as new:", function()
  it("a server that was dead is met by the first call", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local lock = client:lock(support.name())
    for _ = 1, 3 do
      server:kill()
      for _ = 1, 3 do fails("unreachable", server.address, lock, "acquire") end
      server:restart()
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:refresh())
      assert.is_true(lock:release())
    end
  end)

  it("a server that was stopped is met by the first call", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local lock = client:lock(support.name())
    for _ = 1, 3 do
      server:stop_process()
      fails("timeout", server.address, lock, "acquire")
      server:continue_process()
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:verify())
      assert.is_true(lock:release())
      assert.is_false(lock:holder())
    end
  end)

  it("a relay that refused, cut or swallowed is met by the first call", function()
    local relay = support.relay(support.server())
    local client = memlock.client(relay.address, { timeout = timeout })
    local lock = client:lock(support.name())
    for _, trouble in ipairs {
      { function() relay:refuse() relay:cut() end, "unreachable" },
      { function() relay:refuse() relay:cut("rst") end, "unreachable" },
      { function() relay:blackhole() end, "timeout" },
      { function() relay:drop("down") end, "timeout" },
      { function() relay:drop("up") end, "timeout" },
    } do
      assert(lock:acquire())
      assert.is_true(lock:release())
      trouble[1]()
      fails(trouble[2], relay.address, lock, "acquire")
      relay:accept()
      relay:forward()
      relay:plain()
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:release())
    end
  end)

  it("a held lock outlives a silence that is shorter than its lease", function()
    local server = support.memcached()
    local client = memlock.client(server.address, { timeout = timeout })
    local lock = assert(client:lock(support.name()):acquire())
    server:stop_process()
    fails("timeout", server.address, lock, "refresh")
    server:continue_process()
    assert.is_true(lock:refresh())
    assert.is_true(lock:verify())
    server:stop_process()
    fails("timeout", server.address, lock, "release")
    server:continue_process()
    assert.is_true(lock:release()) -- the second call finishes the job
    assert.is_nil(server:raw():get(key_of(lock)))
  end)

  for _, operation in ipairs { "acquire", "refresh", "verify", "holder", "update" } do
    it("nothing of an acquire that timed out stays when it goes on with " .. operation, function()
      local server = support.memcached()
      local raw = server:raw()
      local client = memlock.client(server.address, { timeout = timeout })
      local busy = assert(client:lock(support.name()):acquire())
      local theirs = client:lock(support.name())
      raw:set(key_of(theirs), "somebody else")
      local lock = client:lock(support.name(), { ttl = 60 })
      server:stop_process()
      fails("timeout", server.address, lock, "acquire")
      server:continue_process()
      local function go_on()
        if operation == "acquire" then
          fails("held", theirs:name(), theirs, "acquire")
        elseif operation == "update" then
          assert(client:update("key", function() return "x" end))
        else
          assert(busy[operation](busy))
        end
      end
      -- What was sent before may be done a moment after the server goes on: what counts is that it
      -- is away in the end, and stays away.
      local away = 0
      support.eventually(function()
        go_on()
        support.sleep(0.02)
        away = raw:get(key_of(lock)) and 0 or away + 1
        return away == 10
      end, 1.5)
      client:close()
    end)
  end
end)
