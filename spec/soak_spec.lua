--- The soak, for a few seconds; and that its checker finds what it is there to find.

local support = require "spec.support"
support.setup()

local ended_well = "(%d+) passed, (%d+) failed"

-- Journals in which all is well: two workers that hold a lock one after the other.
local function good()
  return {
    ["worker-1"] = { "start 101 1.0",
      "acquired 1 anvil 1000 2 plain 1.0 1.1",
      "call acquire anvil 1.0 1.1 1.5 ok",
      "held 1 1.1 1.9 2",
      "write 1 anvil 1000 1.2 1.3 accepted 1000",
      "ends 1 1.5",
      "call release anvil 1.5 1.6 1.5 ok",
      "end 9.0 5 5" },
    ["worker-2"] = { "start 102 1.0",
      "acquired 1 anvil 1003 2 plain 1.7 1.8",
      "call acquire anvil 1.7 1.8 1.5 ok",
      "held 1 1.8 1.9 2",
      "write 1 anvil 1003 1.9 2.0 accepted 1003",
      "ends 1 2.5",
      "call release anvil 2.5 2.6 1.5 ok",
      "end 9.0 5 5" },
    observer = {
      "saw memlock:anvil 1.12 1.13 7 memlock/1 aa 10 1700000000 2 host:101",
      "saw memlock:anvil 1.62 1.63 0 ",
      "saw memlock:anvil 1.82 1.83 11 memlock/1 bb 20 1700000000 2 host:102",
      "saw memlock:anvil 2.62 2.63 0 " },
    driver = { "over 9.5" },
  }
end

-- Puts a line after the last one that begins with `prefix`, in the place of it with `replace`.
local function put(lines, prefix, line, replace)
  for i = #lines, 1, -1 do
    if lines[i]:sub(1, #prefix) == prefix then
      if replace then lines[i] = line else table.insert(lines, i + 1, line) end
      return
    end
  end
  error("no line begins with " .. prefix)
end

-- The observer looked away after the first moments.
local function unseen(journals)
  journals.observer = { journals.observer[1] }
end

-- Runs the checker on such journals, after `change(journals)`.
local function check(change)
  local journals = good()
  if change then change(journals) end
  local directory = support.tempdir()
  for name, lines in pairs(journals) do
    local file = assert(io.open(directory .. "/" .. name, "w"))
    file:write(table.concat(lines, "\n"), "\n")
    file:close()
  end
  return support.run_lua { file = "spec/soak/check.lua", directory }
end

-- The checker complains of exactly this, and says so by its exit code.
local function finds(what, change)
  local result = check(change)
  local complaints = {}
  for name in result.out:gmatch("FAIL  (.-) +%d+ found") do complaints[#complaints + 1] = name end
  assert.same({ what }, complaints, tostring(result))
  assert.same({ "exit", 1 }, { result.kind, result.code })
  assert.equal("1", select(2, result.out:match(ended_well)))
end

local function finds_nothing(change)
  local result = check(change)
  assert.equal("0", select(2, result.out:match(ended_well)), tostring(result))
  assert.same({ "exit", 0 }, { result.kind, result.code })
end

describe("the checker of the soak", function()
  it("finds nothing where nothing is wrong", function()
    finds_nothing()
  end)

  it("finds two holders at a time", function()
    finds("one holder at a time", function(journals)
      unseen(journals)
      put(journals["worker-1"], "ends", "ends 1 1.81", true)
      put(journals["worker-1"], "call release", "call release anvil 1.81 1.9 1.5 ok", true)
    end)
  end)

  it("finds two holders where one of them was frozen and never asked held()", function()
    finds("one holder at a time", function(journals)
      unseen(journals)
      put(journals["worker-1"], "ends", "not 1 5.0", true)
    end)
  end)

  it("believes a lease in the background no further than it was asked", function()
    finds_nothing(function(journals)
      put(journals["worker-1"], "acquired", "acquired 1 anvil 1000 2 kept 1.0 1.1", true)
      put(journals["worker-1"], "ends", "not 1 5.0", true)
    end)
  end)

  it("excuses two holders after a loss of data, and only leases from before it", function()
    local function overlap(journals)
      unseen(journals)
      put(journals["worker-1"], "ends", "ends 1 1.9", true)
      put(journals["worker-1"], "call release", "call release anvil 1.9 2.0 1.5 ok", true)
    end
    finds_nothing(function(journals)
      overlap(journals)
      put(journals.driver, "over", "fault flush 1.55 1.56")
    end)
    finds("one holder at a time", function(journals)
      overlap(journals)
      put(journals.driver, "over", "fault flush 0.8 0.9")
    end)
    finds("one holder at a time", function(journals)
      overlap(journals)
      put(journals.driver, "over", "fault pause 0.8 1.2")
    end)
  end)

  it("finds tokens out of order, and equal ones", function()
    for _, token in ipairs { 999, 1000 } do
      finds("tokens rise", function(journals)
        local lines = journals["worker-2"]
        put(lines, "acquired", ("acquired 1 anvil %d 2 plain 1.7 1.8"):format(token), true)
        put(lines, "write", ("write 1 anvil %d 1.9 2.0 accepted 1003"):format(token), true)
        put(journals.driver, "over", "fault restart 1.6 1.65") -- is no excuse
      end)
    end
  end)

  it("finds a record that somebody else changed", function()
    for _, sight in ipairs { "1.2 1.21 0 ",
      "1.2 1.21 8 memlock/1 cc 30 1700000000 2 host:103", "1.2 1.21 8 thing" } do
      finds("a record is its holder's alone", function(journals)
        put(journals.observer, "saw memlock:anvil 1.12", "saw memlock:anvil " .. sight)
      end)
    end
  end)

  it("excuses a record that went with the server's data", function()
    finds_nothing(function(journals)
      put(journals.observer, "saw memlock:anvil 1.12", "saw memlock:anvil 1.2 1.21 0 ")
      put(journals.driver, "over", "fault restart 1.15 1.19")
    end)
  end)

  it("finds a write whose number was there before", function()
    finds("each write has a number of its own", function(journals)
      put(journals.observer, "saw memlock:anvil 1.12",
        "saw memlock:anvil 1.3 1.31 9 memlock/1 aa 10 1700000000 2 host:101")
    end)
  end)

  it("finds a holder that the register refused, unless data was lost", function()
    local function refuse(journals)
      put(journals["worker-1"], "write", "write 1 anvil 1000 1.2 1.3 refused 1001", true)
    end
    finds("the register refuses no holder", refuse)
    finds_nothing(function(journals)
      refuse(journals)
      put(journals.driver, "over", "fault flush 1.15 1.16")
    end)
  end)

  it("finds a loss without a cause", function()
    local function lose(journals)
      put(journals["worker-1"], "ends", "lost 1 1.5 1.6 release")
    end
    finds("each loss has a cause", lose)
    finds_nothing(function(journals)
      lose(journals)
      put(journals.driver, "over", "fault restart 1.15 1.4")
    end)
  end)

  it("finds calls that take too long, but for the time in which they were stopped", function()
    local function late(journals)
      put(journals["worker-2"], "call release", "call release anvil 2.5 5.5 1.5 timeout", true)
    end
    finds("calls end in time", late)
    finds_nothing(function(journals)
      late(journals)
      put(journals.driver, "over", "freeze 102 2.6 5.0")
    end)
    finds_nothing(function(journals)
      late(journals)
      journals.lag = { "lag 4.0 0.5" }
    end)
    finds("calls end in time", function(journals)
      late(journals)
      put(journals.driver, "over", "freeze 101 2.6 5.0")
    end)
  end)

  it("finds crashes, wrong answers, leaks, and journals that stop", function()
    finds("nobody crashes", function(journals)
      put(journals.driver, "over", "exit worker-1 signal 11 ")
    end)
    finds("nobody crashes", function(journals)
      put(journals["worker-1"], "ends", "child 555 signal 6")
    end)
    finds("answers are right", function(journals)
      put(journals["worker-1"], "ends", "wrong 1.6 a child's copy is held")
    end)
    finds("no descriptor and no process is left", function(journals)
      put(journals["worker-1"], "end ", "end 9.0 5 6", true)
    end)
    finds("no descriptor and no process is left", function(journals)
      put(journals.driver, "over", "left processes of worker-1")
    end)
    finds("the journals are whole", function(journals)
      put(journals["worker-1"], "end ", "nonsense", true)
    end)
  end)

  it("finds a lock that stays taken", function()
    finds("no lock stays taken", function(journals)
      put(journals.observer, "saw memlock:anvil 2.62",
        "saw memlock:anvil 8.9 8.91 11 memlock/1 bb 20 1700000000 2 host:102", true)
    end)
    finds("no lock stays taken", function(journals)
      put(journals.observer, "saw memlock:anvil 2.62",
        "saw memlock:anvil 9.0 9.01 50 memlock/1 bb 21 1700000000 2 host:102")
      put(journals.observer, "saw memlock:anvil 9.0",
        "saw memlock:anvil 18.5 18.51 51 memlock/1 bb 22 1700000000 2 host:102")
    end)
  end)
end)

describe("the soak", function()
  it("finds nothing in a few seconds", function()
    local result = support.run { os.getenv("LUA") or "lua5.4", "spec/soak/soak.lua", "5", "1",
      timeout = 90 }
    assert.same({ "exit", 0 }, { result.kind, result.code }, tostring(result))
    assert.equal("0", select(2, result.out:match(ended_well .. "\n$")), tostring(result))
    assert.truthy(result.out:find("seed 1\n", 1, true), result.out)
  end)
end)
