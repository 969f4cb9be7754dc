--- Each write is told from every other by its seq, so that an answer proves what it shows and
-- nothing more.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server, raw, name, key

before_each(function()
  server = support.server()
  raw = server:raw()
  name = support.name()
  key = "memlock:" .. name
end)

local function assert_fails(code, part, ok, message, got)
  assert.is_nil(ok)
  assert.equal(code, got, message)
  assert.truthy(message:find(part, 1, true), message)
end

-- The records of the lock in what was sent, in their order: { command =, id =, seq = }.
-- A seq has 64 bits without a sign: it stays a string.
local function writes(sent)
  local list = {}
  local lock_key = key:gsub("%-", "%%-")
  for command, id, seq in sent:gmatch("(%a+) " .. lock_key ..
    " %d+ %d+ %d+[^\r]*\r\nmemlock/1 (%S+) (%d+) %d+ [%d.]+ [^\r]*\r\n") do
    list[#list + 1] = { command = command, id = id, seq = seq }
  end
  return list
end

local function seq_of(value)
  return (value:match("^memlock/1 %S+ (%d+) "))
end

-- A server between the client and the real one that does not do all that it is told: a command for
-- which `swallow(command, number of its connection)` is true is neither done nor answered.
-- It tells the test of each command that it swallows.
local function lossy(swallow)
  local address, lock_key, fence_key = server.address, key, "#" .. key
  return support.fake(function(connection, number)
    local upstream = support.raw(address)
    while true do
      local command = connection:read_command()
      if not command or command.name == "quit" then return end
      command.of_lock, command.of_fence = command.key == lock_key, command.key == fence_key
      if swallow(command, number) then
        connection:send(command.name, command.data)
      else
        upstream:send(command.line .. "\r\n" .. (command.data and command.data .. "\r\n" or ""))
        if not command.noreply then
          local reply = {}
          repeat
            local line = upstream:line()
            reply[#reply + 1] = line .. "\r\n"
            local size = line:match("^VALUE %S+ %d+ (%d+)")
            if size then reply[#reply + 1] = upstream.socket:receive(tonumber(size) + 2) end
          until not size
          connection:write(table.concat(reply))
        end
      end
    end
  end)
end

describe("a fence that was not counted", function()
  -- As by a server that is out of memory: commands without reply fail silently.
  it("gives no token: it is counted again", function()
    local first = memlock.client(server.address):lock(name)
    assert(first:acquire())
    assert(first:release())
    local swallowed = 0
    local fake = lossy(function(command)
      if command.name ~= "incr" or swallowed == 1 then return false end
      swallowed = swallowed + 1
      return true
    end)
    local lock = memlock.client(fake.address):lock(name)
    assert(lock:acquire())
    assert.is_true(lock:token() > first:token(), lock:token())
    assert.is_true(lock:held())
    assert.truthy(lock:verify())
    assert(lock:release())
    assert.is_nil((raw:get(key)))
  end)

  it("and cannot be counted ends the attempt, and leaves no record", function()
    local first = memlock.client(server.address):lock(name)
    assert(first:acquire())
    assert(first:release())
    local fake = lossy(function(command) return command.name == "incr" end)
    local lock = memlock.client(fake.address, { timeout = 0.3 }):lock(name)
    assert_fails("timeout", name, lock:acquire())
    assert.is_false((lock:held()))
    support.eventually(function()
      lock:holder()
      return raw:get(key) == nil
    end)
  end)
end)

describe("every write", function()
  local relay, client

  before_each(function()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 0.3 })
    relay:record()
  end)

  after_each(function() client:close() end)

  -- Asserts that at least `least` writes were sent, each with a seq of its own.
  local function assert_unique(least)
    local seen = {}
    local list = writes(relay:sent())
    assert.is_true(#list >= least, #list)
    for _, write in ipairs(list) do
      assert.is_nil(seen[write.seq])
      seen[write.seq] = true
    end
    return list
  end

  it("has a seq of its own, over acquisitions and refreshes", function()
    local lock = client:lock(name, { ttl = 30 })
    for _ = 1, 5 do
      assert(lock:acquire())
      for _ = 1, 3 do assert.is_true(lock:refresh()) end
      assert.is_true(lock:release())
    end
    local ids = {}
    for _, write in ipairs(assert_unique(20)) do ids[write.id] = (ids[write.id] or 0) + 1 end
    local acquisitions = 0
    for _, count in pairs(ids) do
      acquisitions = acquisitions + 1
      assert.equal(4, count)
    end
    assert.equal(5, acquisitions) -- an id is new for each
  end)

  it("has one when it is sent again: after a cut line, after a timeout, without a reply", function()
    local lock = client:lock(name, { ttl = 30 })
    relay:cut_reply(5)
    assert(lock:acquire())
    local list = assert_unique(3) -- the first one had worked: it is taken over
    assert.same({ "add", "add", "cas" }, { list[1].command, list[2].command, list[3].command })
    relay:cut()
    assert.is_true(lock:refresh())
    relay:drop_reply()
    assert.is_true(lock:refresh())
    relay:cut_reply(12)
    assert.is_true(lock:refresh())
    relay:inject_reply("SERVER_ERROR x\r\n")
    lock:refresh()
    relay:pause("down")
    assert_fails("timeout", name, lock:refresh())
    relay:plain()
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    relay:pause("down")
    assert_fails("timeout", name, lock:acquire())
    assert_fails("timeout", name, lock:acquire())
    relay:plain()
    assert(lock:acquire())
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
    assert_unique(12)
  end)

  it("has one where a record is taken by compare-and-swap", function()
    local one = client:lock(name, { identity = "web-1", ttl = 30 })
    local two = client:lock(name, { identity = "web-1", ttl = 30 })
    assert(one:acquire())
    assert(two:acquire())
    assert.is_true(one:refresh())
    assert.is_true(two:refresh())
    raw:set(key, "", 30)
    assert(client:lock(name):acquire())
    local list = assert_unique(7)
    assert.equal("cas", list[#list].command)
  end)

  it("has one that does not come from a record that was read", function()
    local lock = client:lock(name, { identity = "web-1", ttl = 30 })
    raw:set(key, "memlock/1 web-1 41 1700000000 30 elsewhere", 30)
    assert(lock:acquire())
    for _, write in ipairs(assert_unique(2)) do assert.is_not.equal("42", write.seq) end
  end)

  it("starts at random, for each object", function()
    for _ = 1, 20 do
      local lock = client:lock(name, { identity = "web-1", ttl = 30 })
      assert(lock:acquire())
      assert.is_true(lock:release())
    end
    local previous
    for _, write in ipairs(assert_unique(20)) do
      assert.is_true(#write.seq >= 12, write.seq) -- of up to 20 digits
      assert.is_not.equal(previous, write.seq:sub(1, 6))
      previous = write.seq:sub(1, 6)
    end
  end)

  it("is in the record that stands", function()
    local lock = client:lock(name, { ttl = 30 })
    assert(lock:acquire())
    for _ = 1, 3 do
      local list = writes(relay:sent())
      assert.equal(list[#list].seq, seq_of((raw:get(key))))
      assert.is_true(lock:refresh())
    end
  end)
end)

describe("a command without reply that got lost", function()
  local client

  local function through(fake, options)
    options = options or {}
    options.timeout = options.timeout or 2
    client = memlock.client(fake.address, options)
    return client:lock(name, { ttl = 30 })
  end

  after_each(function() client:close() end)

  local function assert_held(lock)
    assert.is_true((lock:held()))
    assert.is_truthy(raw:get(key))
    local other = memlock.client(server.address)
    assert_fails("held", name, other:lock(name):acquire())
    other:close()
    assert.is_true(lock:release())
    assert.is_nil(raw:get(key))
  end

  it("makes acquire fly again, on a new connection", function()
    local fake = lossy(function(command, number)
      return command.of_lock and command.name == "add" and number == 1
    end)
    local lock = through(fake)
    assert.equal(lock, lock:acquire())
    local command, lost = fake:receive()
    assert.equal("add", command)
    assert.is_not.equal(seq_of(lost), seq_of((raw:get(key)))) -- a write of its own
    assert_held(lock)
  end)

  it("makes acquire ask with replies when it gets lost again", function()
    local fake = lossy(function(command)
      return command.of_lock and command.name == "add" and command.noreply
    end)
    local lock = through(fake)
    assert.equal(lock, lock:acquire())
    fake:receive()
    fake:receive()
    assert_held(lock)
  end)

  it("makes acquire fail where nothing is ever kept", function()
    local fake = lossy(function(command)
      return command.of_lock and command.name == "add"
    end)
    local lock = through(fake, { timeout = 0.3 })
    local ok, message, code = lock:acquire()
    assert_fails("timeout", name, ok, message, code) -- the last one waits for its reply
    assert.is_false((lock:held()))
    assert.is_nil(raw:get(key))
  end)

  it("does not make acquire do without a token", function()
    local fake = lossy(function(command, number)
      return command.of_fence and command.name == "add" and number == 1
    end)
    local lock = through(fake)
    local before = os.time()
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:token() >= before * 1000000)
    assert_held(lock)
  end)

  it("tells the truth when somebody else was faster", function()
    local other = memlock.client(server.address, { label = "second" })
    local fake = lossy(function(command, number)
      return command.of_lock and command.name == "add" and number == 1
    end)
    local taken = assert(other:lock(name):acquire())
    local before = { raw:gets(key) }
    local lock = through(fake)
    assert_fails("held", "second", lock:acquire())
    assert.same(before, { raw:gets(key) })
    assert.is_true(taken:release())
    other:close()
  end)

  it("is no refresh, although the read shows our record", function()
    local fake = lossy(function(command)
      return command.of_lock and command.name == "cas" and command.noreply
    end)
    local lock = through(fake)
    assert(lock:acquire())
    local before = seq_of((raw:get(key)))
    assert.is_true(lock:refresh(100)) -- at last, with a reply
    assert.equal("cas", (fake:receive()))
    local after = seq_of((raw:get(key)))
    assert.is_not.equal(before, after)
    assert.is_true(raw:ttl(key) > 33)
    assert.is_true(select(2, lock:held()) > 33)
    assert_held(lock)
  end)

  it("is no refresh when the server does not do it at all", function()
    local fake = lossy(function(command)
      return command.of_lock and command.name == "cas" and command.line:find(" 103 ", 1, true)
    end)
    local lock = through(fake, { timeout = 0.3 })
    assert(lock:acquire())
    local before = { raw:gets(key) }
    assert_fails("timeout", name, lock:refresh(100))
    assert.equal("cas", (fake:receive()))
    assert.same(before, { raw:gets(key) })
    assert.is_true(select(2, lock:held()) <= 30)
    assert_held(lock)
  end)

  it("shortens the lease of a refresh that was to shorten it, to be safe", function()
    local fake = lossy(function(command)
      return command.of_lock and command.name == "cas" and command.line:find(" 8 ", 1, true)
    end)
    local lock = through(fake, { timeout = 0.3 })
    assert(lock:acquire())
    assert_fails("timeout", name, lock:refresh(5))
    assert.is_true(select(2, lock:held()) <= 5)
    assert_held(lock)
  end)
end)

describe("a flight that is lost as a whole", function()
  local relay, client, lock

  before_each(function()
    relay = support.relay(server)
    client = memlock.client(relay.address, { timeout = 0.3 })
    lock = client:lock(name, { ttl = 30 })
  end)

  after_each(function() client:close() end)

  it("is a timeout, and the next acquire succeeds", function()
    relay:drop("up")
    assert_fails("timeout", name, lock:acquire())
    assert.is_nil(raw:get(key))
    relay:undrop("up")
    assert.equal(lock, lock:acquire())
    assert.is_true(lock:release())
  end)

  it("is flown again when the line breaks, and the first one may have worked", function()
    for bytes = 0, 120, 20 do
      relay:cut_reply(bytes)
      assert.equal(lock, lock:acquire())
      assert.is_true(lock:verify())
      assert.is_true(lock:refresh())
      assert.is_true(lock:release())
      assert.is_nil(raw:get(key))
    end
  end)

  it("is flown again when the line breaks in a refresh", function()
    for bytes = 0, 100, 20 do
      assert(lock:acquire())
      relay:cut_reply(bytes)
      assert.is_true(lock:refresh(60))
      assert.is_true(raw:ttl(key) > 60)
      assert.is_true(lock:release())
      assert.is_nil(raw:get(key))
    end
  end)

  it("is not mistaken for another after a stray line", function()
    local other = memlock.client(server.address, { label = "second" })
    local taken = assert(other:lock(name):acquire())
    assert.is_false(client:holder(support.name())) -- connects
    for _, stray in ipairs { "SERVER_ERROR x\r\n", "STORED\r\n", "END\r\n", "ERROR\r\n",
      "CLIENT_ERROR x\r\n", "NOT_FOUND\r\n" } do
      relay:inject_reply(stray)
      local ok, message, code = lock:acquire()
      assert.is_nil(ok, stray)
      assert.is_true(code == "held" or code == "refused", message)
      assert_fails("held", "second", lock:acquire())
    end
    assert.is_true(taken:verify())
    other:close()
  end)
end)
