--- Servers that want a username and a password (memcached -Y): who has them notices nothing, who
-- has not is told, and the password is never shown.

local support = require "spec.support"
support.setup()

local keeping = require "spec.support.keeping"
local scenes = require "spec.support.scenes"
local memlock = require "memlock"

local user, password = "alice", "pass-" .. support.name("word")
local login = { username = user, password = password }

local function guarded()
  local path = support.tempdir() .. "/users"
  local file = assert(io.open(path, "w"))
  file:write("somebody:else\n", user, ":", password, "\n")
  file:close()
  return support.memcached { args = { "-Y", path } }
end

-- A look at what such a server has, by somebody who may.
local function raw_of(server)
  local raw = server:raw()
  assert.is_true(raw:set("auth", user .. " " .. password))
  return raw
end

local function with(options, more)
  local all = {}
  for _, list in ipairs { options, more or {} } do
    for key, value in pairs(list) do all[key] = value end
  end
  return all
end

-- Raises if the password stands anywhere in the values.
local function assert_hidden(...)
  local function look(value, seen)
    if type(value) == "table" and not seen[value] then
      seen[value] = true
      for key, item in pairs(value) do
        look(key, seen)
        look(item, seen)
      end
    else
      assert.is_nil(tostring(value):find(password, 1, true), tostring(value))
    end
  end
  for _, value in pairs(table.pack(...)) do look(value, {}) end
end

describe("the right password", function()
  local server, raw, relay, client

  before_each(function()
    server = guarded()
    raw = raw_of(server)
    relay = support.relay(server)
    client = memlock.client(relay.address, login)
  end)

  after_each(function() client:close() end)

  it("is good for everything", function()
    local lock = client:lock(support.name())
    scenes.usable(client, lock, "on a new connection")
    assert.is_true(lock:with(function() assert.is_true(lock:held()) end))
    assert(lock:acquire())
    assert.truthy(raw:get("memlock:" .. lock:name()))
    assert.is_true(client:break_lock(lock:name(), client:holder(lock:name())))
    assert.equal("lost", select(3, lock:verify()))
    local about = client:check()[1]
    assert.is_nil(about.code, about.message)
    assert.is_true(about.cas)
    assert_hidden(about, client:stats(), tostring(client), tostring(lock))
  end)

  it("costs one round trip for each connection", function()
    local lock = client:lock(support.name())
    assert(lock:acquire())
    assert.equal(2, relay:stats().answered)
    assert.is_true(lock:refresh())
    assert.is_true(lock:release())
    assert.equal(4, relay:stats().answered)
    assert.equal(4, client:stats().round_trips)
    assert.equal(1, relay:stats().connections)
  end)

  it("goes first on every new connection", function()
    local lock = client:lock(support.name(), { ttl = 30 })
    for _, how in ipairs { "cut", "rst" } do
      assert(lock:acquire())
      relay:cut(how == "rst" and "rst" or nil)
      assert.is_true(lock:refresh(), how)
      relay:cut(how == "rst" and "rst" or nil)
      assert.is_true(lock:verify(), how)
      relay:cut(how == "rst" and "rst" or nil)
      assert.is_true(lock:release(), how)
    end
    assert(lock:acquire())
    server:restart()
    assert.equal("lost", select(3, lock:refresh()))
    scenes.usable(client, lock, "after a restart")
    relay:drop("down")
    client = (client:close() and nil) or memlock.client(relay.address, with(login,
      { timeout = 0.2 }))
    local result, _, code = client:lock(lock:name()):acquire()
    assert.same({ nil, "timeout" }, { result, code })
    relay:plain()
    relay:cut()
    support.eventually(function() return client:lock(support.name()):acquire() end)
  end)

  it("is said by the keeper on its connection, too", function()
    local kept = assert(client:lock(support.name(), { ttl = 0.9, auto_refresh = true }):acquire())
    support.eventually(function() return client:stats().renewals >= 2 end)
    relay:cut()
    local before = client:stats().renewals
    support.eventually(function() return client:stats().renewals >= before + 2 end)
    assert.is_true((kept:held()))
    assert.is_true(kept:refresh())
    assert.is_true(kept:verify())
    assert.is_true(kept:release())
    assert.is_nil(raw:get(keeping.key(kept:name())))
    assert.equal(0, client:stats().losses)
  end)

  it("is inherited by the child of a fork", function()
    local mine = assert(client:lock(support.name(), { ttl = 30 }):acquire())
    local child = support.child(function()
      assert(not mine:held())
      local lock = client:lock(support.name())
      scenes.usable(client, lock, "in the child")
      local kept = assert(client:lock(support.name(), { ttl = 0.9, auto_refresh = true }):acquire())
      support.eventually(function() return client:stats().renewals >= 1 end)
      assert(kept:release())
      local taken, _, code = client:lock(mine:name()):acquire()
      client:close()
      return taken, code
    end)
    assert.same({ nil, "held" }, { child:join() })
    assert.is_true(mine:refresh())
    assert.is_true(mine:release())
  end)

  it("is said to each of several servers", function()
    local servers = { server.address, guarded().address, guarded().address }
    local many = memlock.client(servers, login)
    for _ = 1, 20 do scenes.usable(many, many:lock(support.name()), "on one of three") end
    for _, about in ipairs(many:check()) do assert.is_true(about.cas, about.message) end
    many:close()
  end)

  it("works behind `proxy = true` and with a wait", function()
    local careful = memlock.client(server.address, with(login, { proxy = true }))
    local lock = careful:lock(support.name())
    scenes.usable(careful, lock, "proxy = true")
    assert(lock:acquire())
    local waiting = client:lock(lock:name())
    assert.equal("held", select(3, waiting:acquire(0.1)))
    assert.is_true(lock:release())
    assert.equal(waiting, waiting:acquire(1))
    careful:close()
  end)

  it("leaves nothing behind when the client is dropped, and when it is closed", function()
    local names = {}
    for i = 1, 2 do
      local other = memlock.client(server.address, login)
      local lock = assert(other:lock(support.name()):acquire())
      names[i] = lock:name()
      if i == 1 then other:close() end
    end
    collectgarbage()
    collectgarbage()
    for _, name in ipairs(names) do
      support.eventually(function() return not raw:get("memlock:" .. name) end)
    end
  end)
end)

describe("without the right password", function()
  local cases = {
    ["none"] = { options = {}, words = "wants a username and a password (memcached -Y)" },
    ["a wrong password"] = { words = "refused the username and password",
      options = { username = user, password = password .. "x" } },
    ["a part of the password"] = { words = "refused the username and password",
      options = { username = user, password = password:sub(1, -2) } },
    ["a wrong username"] = { words = "refused the username and password",
      options = { username = "eve", password = password } },
  }

  for what, case in pairs(cases) do
    for _, proxy in ipairs { false, true } do
      it(("every call is refused, with the reason: %s, proxy = %s"):format(what, proxy), function()
        local server = guarded()
        local raw = raw_of(server)
        local client = memlock.client(server.address, with(case.options, { proxy = proxy }))
        local lock = client:lock(support.name())
        local kept = client:lock(support.name(), { auto_refresh = true })
        raw:set("memlock:" .. lock:name() .. "2", "x")
        local calls = {
          function() return lock:acquire() end,
          function() return lock:acquire(0.1) end,
          function() return kept:acquire() end,
          function() return lock:holder() end,
          function() return client:holder(lock:name() .. "2") end,
          function() return client:break_lock(lock:name() .. "2", { value = "x" }) end,
          function() return client:update(lock:name(), function() error "it was called" end) end,
          function() return lock:with(function() error "it was called" end) end,
        }
        for i, call in ipairs(calls) do
          for _ = 1, 2 do
            local results = table.pack(call())
            local context = ("call %d: %s"):format(i, scenes.shown(results))
            assert.same({ nil, "refused" }, { results[1], results[3] }, context)
            assert.truthy(results[2]:find(case.words, 1, true), context)
            assert.truthy(results[2]:find(server.address, 1, true), context)
            assert_hidden(table.unpack(results, 1, results.n))
            assert.is_nil(results[2]:find(case.options.username or "alice", 1, true), context)
          end
        end
        local about = client:check()[1]
        assert.same({ false, "refused" }, { about.fit, about.code })
        assert.truthy(about.findings[1]:find(case.words, 1, true), about.findings[1])
        assert_hidden(about, client:stats(), tostring(client), tostring(lock))
        assert.is_nil(raw:get("memlock:" .. lock:name()))
        assert.equal("x", raw:get("memlock:" .. lock:name() .. "2"))
        client:close()
      end)
    end
  end

  it("a lock that is held when the password changes keeps its lease, and is told", function()
    local server = guarded()
    local relay = support.relay(server)
    local client = memlock.client(relay.address, login)
    local lock = assert(client:lock(support.name(), { ttl = 30 }):acquire())
    server:kill()
    local file = assert(io.open(server.args[2], "w"))
    file:write(user, ":another\n")
    file:close()
    server:restart()
    local result, message, code = lock:refresh()
    assert.same({ nil, "refused" }, { result, code }, message)
    assert_hidden(message)
    assert.is_true((lock:held()))
    client:close()
  end)
end)

describe("a server that asks for no password", function()
  it("gets the credentials, but keeps them in no item", function()
    local server = support.memcached()
    local relay = support.relay(server)
    local raw = server:raw()
    local client = memlock.client(relay.address, login)
    relay:record()
    for _ = 1, 5 do
      scenes.usable(client, client:lock(support.name()), "without -Y")
      relay:cut()
    end
    client:close()
    local sent = relay:sent()
    local key = sent:match("set (%S+) %d+ %d+ %d+\r\n" .. user)
    assert.truthy(key, sent)
    assert.is_nil(raw:get(key))
    assert.is_true(raw:add(key, "free")) -- there is nothing
    assert.is_true(raw:delete(key))
  end)

  it("lets no fork, keeper or reconnect leave them in one either", function()
    local server = support.memcached()
    local raw = server:raw()
    local client = memlock.client(server.address, login)
    local kept = assert(client:lock(support.name(), { ttl = 0.9, auto_refresh = true }):acquire())
    support.eventually(function() return client:stats().renewals >= 1 end)
    support.child(function() scenes.usable(client, client:lock(support.name()), "child") end):join()
    assert.is_true(kept:release())
    client:close()
    -- Every key that the server has, and what it holds.
    raw:send("lru_crawler metadump all\r\n")
    local line = raw:line()
    local found = {}
    while line ~= "END" do
      found[#found + 1] = line:match("key=(%S+)")
      line = raw:line()
    end
    for _, key in ipairs(found) do
      key = key:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
      local value = raw:get(key)
      assert.is_nil(value and value:find(password, 1, true), key)
    end
  end)
end)

describe("the password", function()
  it("is shown by nothing that a client tells", function()
    local answers = {}
    local function note(...)
      for _, value in pairs(table.pack(...)) do answers[#answers + 1] = value end
    end
    for _, place in ipairs { guarded(), support.silent(),
      { address = support.refusing() },
      support.fake(function(connection) connection:write("garbage\r\n") end),
      support.fake(function(connection) -- what it was told comes back
        while true do
          local line = connection:read_line()
          if not line then return end
          connection:write("CLIENT_ERROR " .. line .. "\r\n")
        end
      end) }
    do
      local client = memlock.client(place.address, with(login, { timeout = 0.1 }))
      local lock = client:lock(support.name(), { auto_refresh = true })
      note(lock:acquire())
      note(lock:holder())
      note(lock:refresh())
      note(lock:verify())
      note(client:update(support.name(), function() return "x" end))
      note(tostring(client), tostring(lock), client:stats(), client:check())
      note(lock:release())
      note(pcall(client.lock, client, "a name"))
      note(client:close())
      note(tostring(client), tostring(lock))
    end
    assert.is_true(#answers > 60)
    assert_hidden(table.unpack(answers))
  end)

  it("is not shown by what a holder tells of it", function()
    local server = guarded()
    local client = memlock.client(server.address, login)
    local lock = assert(client:lock(support.name()):acquire())
    local holder = lock:holder()
    assert.is_true(holder.mine)
    assert_hidden(holder)
    for _, text in pairs(holder) do
      assert.is_nil(tostring(text):find(user, 1, true), tostring(text))
    end
    client:close()
  end)

  it("does not go without a username, nor a username without it", function()
    for _, options in ipairs { { username = user }, { password = password } } do
      local ok, message = pcall(memlock.client, "127.0.0.1:1", options)
      assert.is_false(ok)
      assert.truthy(message:find("'username'", 1, true), message)
      assert.truthy(message:find("'password'", 1, true), message)
      assert_hidden(message)
    end
  end)
end)

it("a connection that was made only to ask for statistics is not used for locks", function()
  local server = guarded()
  -- Breaks off when first asked for statistics; libmemcached then asks for more of them on a
  -- connection that it opens by itself, and to which nobody has told a password.
  local fake = support.fake(function(connection, number)
    local raw = server:raw()
    while true do
      local command = connection:read_command()
      if not command then return end
      if command.name == "stats" and number == 1 then return connection:write("%") end
      if command.name == "stats" then
        connection:write("STAT pid 1\r\nSTAT version 1.6.18\r\nEND\r\n")
      elseif command.name == "version" then
        connection:write("VERSION 1.6.18\r\n")
      elseif not command.key then
        return
      else
        connection:write(raw:answer(command))
      end
    end
  end)
  local client = memlock.client(fake.address, login)
  for _ = 1, 2 do
    local about = client:check()[1]
    assert.is_true(about.cas, table.concat(about.findings, " "))
  end
  client:close()
end)
