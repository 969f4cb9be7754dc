--- The examples that show how data is shared, each run by several processes at a time.

local support = require "spec.support"
support.setup()

local example = require "spec.support.example"
local lfs = require "lfs"

local server, truth

before_each(function()
  server = support.memcached()
  truth = server:raw()
end)

local function start(name, ...)
  return example.start(name, server.address, ...)
end

local function holder(name)
  return example.holder(truth, name)
end

describe("stampede", function()
  -- Starts `n` at once; each value is good for `fresh` seconds, and takes `seconds` to make.
  local function crowd(n, fresh, seconds)
    local programs = {}
    for i = 1, n do programs[i] = start("stampede", fresh, seconds) end
    return programs
  end

  -- How many made the value, and the values that were printed, each once.
  local function answers(programs)
    local made, values = 0, {}
    for _, program in ipairs(programs) do
      local by_itself, value = example.output(program):match "^(.-)(made at %S+)\n$"
      if by_itself ~= "" then made = made + 1 end
      values[value] = (values[value] or 0) + 1
    end
    return made, values
  end

  -- Makes the value old, as time does.
  local function age()
    local value = truth:get "stampede"
    assert.is_true(truth:replace("stampede", (value:gsub("^(%d+) %d+ ", "%1 1 "))))
  end

  it("has one of many make what is not there, and all others wait for it", function()
    local made, values = answers(crowd(6, 1000, 0.5))
    assert.equal(1, made)
    local value, count = next(values)
    assert.equal(6, count)
    assert.truthy(truth:get("stampede"):find(value .. "$"))
    assert.equal(0, (answers(crowd(3, 1000, 0.5))))
    assert.is_nil(holder "make:stampede")
  end)

  it("has one of many make what is old, and nobody waits for it", function()
    for _ = 1, 3 do
      truth:set("stampede", "7 1 made at some-time")
      local first = start("stampede", 1000, 60)
      support.eventually(function() return holder "make:stampede" == first.pid end)
      local made, values = answers(crowd(4, 1000, 60))
      assert.equal(0, made)
      assert.same({ ["made at some-time"] = 4 }, values)
      first:kill "KILL"
      first:wait()
      truth:delete "memlock:make:stampede"
    end
  end)

  it("makes it once each time it gets old", function()
    answers(crowd(1, 1000, 0))
    for _ = 1, 3 do
      age()
      assert.equal(1, (answers(crowd(5, 1000, 0.3))))
    end
  end)

  it("gets old by itself", function()
    assert.equal(1, (answers(crowd(1, 1, 0))))
    support.sleep(2)
    assert.equal(1, (answers(crowd(1, 1, 0))))
  end)

  it("has another make it when the first dies", function()
    local first = start("stampede", 1000, 60)
    support.eventually(function() return holder "make:stampede" == first.pid end)
    local others = crowd(2, 1000, 0)
    first:kill "KILL"
    first:wait()
    assert.equal(1, (answers(others)))
  end)

  it("keeps what a later holder made from one who took too long", function()
    local slow = start("stampede", 1000, 1)
    assert.equal("making it", slow:read_line())
    slow:kill "STOP"
    truth:delete "memlock:make:stampede" -- as if its lease had run out
    assert.equal(1, (answers(crowd(1, 1000, 0))))
    local value = truth:get "stampede"
    slow:kill "CONT"
    assert.truthy(example.output(slow):find "^made at ")
    assert.equal(value, truth:get "stampede")
  end)
end)

describe("players", function()
  local saves

  before_each(function()
    saves = support.tempdir()
  end)

  local function start_server()
    return start("players", saves)
  end

  local function tell(program, order, seconds)
    program:write(order .. "\n")
    return program:read_line(seconds)
  end

  local function finish(program)
    program:close_stdin()
    return example.output(program)
  end

  local function files()
    local list = {}
    for entry in lfs.dir(saves) do
      if entry:sub(1, 1) ~= "." then list[#list + 1] = entry end
    end
    return list
  end

  it("take what they have from one server to the other", function()
    local one, two = start_server(), start_server()
    assert.equal("bob in, gold 0", tell(one, "login bob"))
    assert.equal("bob gold 5", tell(one, "earn bob 5"))
    two:write "login bob\n" -- waits
    support.sleep(0.3)
    assert.equal(one.pid, holder "player:bob")
    assert.equal("bob out, gold 5", tell(one, "logout bob"))
    assert.equal("bob in, gold 5", two:read_line())
    assert.equal(two.pid, holder "player:bob")
    assert.equal("bob is not here", tell(one, "earn bob 1"))
    finish(one)
    finish(two)
    assert.equal(1, #files())
    assert.is_nil(holder "player:bob")
  end)

  it("are refused while they are elsewhere, others are not", function()
    local one, two = start_server(), start_server()
    tell(one, "login bob")
    assert.equal("eve in, gold 0", tell(two, "login eve"))
    local answer = tell(two, "login bob", 20)
    assert.truthy(answer:find('^bob refused: lock "player:bob"'), answer)
    assert.truthy(answer:find(":" .. one.pid, 1, true), answer)
    assert.equal(one.pid, holder "player:bob")
  end)

  it("lose nothing when servers compete for them", function()
    local rounds, programs = 10, {}
    for i = 1, 3 do
      programs[i] = start_server()
      -- All orders at once. A login that is refused earns nothing, and is counted below.
      for _ = 1, rounds do programs[i]:write "login bob\nearn bob 1\nlogout bob\n" end
      programs[i]:close_stdin()
    end
    local logins = 0
    for _, program in ipairs(programs) do
      for _ in example.output(program):gmatch "bob out, gold %d+" do logins = logins + 1 end
    end
    assert.is_true(logins > rounds, "only one server got them")
    local last = start_server()
    assert.equal("bob in, gold " .. logins, tell(last, "login bob"))
    finish(last)
  end)

  it("are dropped by a server that was frozen, and what it saves late does not count", function()
    local one, two = start_server(), start_server()
    tell(one, "login bob")
    tell(one, "earn bob 100")
    local old_save = files()[1]
    one:kill "STOP"
    support.eventually(function() return holder "player:bob" == nil end, support.slack(8))
    assert.equal("bob in, gold 0", tell(two, "login bob"))
    assert.equal("bob gold 7", tell(two, "earn bob 7"))
    -- As if it had been frozen in the middle of a save.
    support.write_file(saves .. "/" .. old_save, "100\n")
    one:kill "CONT"
    local answer = tell(one, "logout bob")
    assert.truthy(answer:find "^bob dropped: ", answer)
    assert.equal("bob out, gold 7", tell(two, "logout bob"))
    assert.equal("bob in, gold 7", tell(two, "login bob"))
    assert.equal(1, #files())
  end)
end)

describe("fenced_sqlite", function()
  local database

  before_each(function()
    database = support.tempdir() .. "/accounts.db"
  end)

  local function add(amount, seconds)
    return start("fenced_sqlite", database, "al'ice", amount, seconds or 0)
  end

  it("adds up what many write", function()
    local programs = {}
    for i = 1, 8 do programs[i] = add(i) end
    local balances = {}
    for _, program in ipairs(programs) do
      balances[#balances + 1] = tonumber(example.output(program):match "^wrote (%d+)\n$")
    end
    table.sort(balances)
    assert.equal(8, #balances)
    assert.equal(36, balances[8])
    assert.equal("wrote 36\n", example.output(add(0)))
  end)

  it("refuses who was frozen and comes late", function()
    assert.equal("wrote 1\n", example.output(add(1)))
    local late = add(100, 0.5)
    assert.equal("read 1", late:read_line())
    late:kill "STOP"
    assert.equal("wrote 3\n", example.output(add(2))) -- once the lease of the first has run out
    late:kill "CONT"
    local result = late:wait()
    assert.equal(1, result.code)
    assert.truthy(result.err:find("too late: a later holder of the lock has written", 1, true),
      tostring(result))
    assert.equal("wrote 3\n", example.output(add(0)))
  end)
end)
