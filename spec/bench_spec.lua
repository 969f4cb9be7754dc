--- The programs that measure: that they work, and that what they say of memlock can be relied on.

local support = require "spec.support"
support.setup()

local lab = require "bench.lab"
local report = require "bench.report"

local function rows_of(name)
  lab.quick = true
  return assert(lab.load(name), name .. ": no results")
end

-- The one row that has these values.
local function row_of(name, values)
  local found
  for _, row in ipairs(rows_of(name)) do
    local same = true
    for key, value in pairs(values) do same = same and row[key] == value end
    if same then
      assert.is_nil(found, name .. " has two such rows")
      found = row
    end
  end
  return assert(found, name .. " has no such row")
end

describe("a quick run", function()
  local result

  setup(function()
    os.remove(support.build .. "/bench/results/trips.csv")
    result = support.run { os.getenv "LUA" or "lua5.4", "bench/bench.lua", "quick", timeout = 120,
      env = { BUILD = support.build } }
  end)

  it("goes through, and shows what it measured", function()
    assert.equal(0, result.code, tostring(result))
    for _, title in ipairs { "Uncontended cycles", "Round trips", "Hand%-off", "Renewal" } do
      assert.truthy(result.out:find("\n" .. title), title)
    end
  end)

  it("finds one round trip for each operation, of a renewed lock too", function()
    for _, operation in ipairs { "acquire", "refresh", "release", "failed try",
      "refresh (renewed)", "release (renewed)" } do
      assert.equal(1, row_of("trips", { subject = "memlock", operation = operation }).trips)
    end
    for operation, trips in pairs { acquire = 1, refresh = 2, release = 3 } do
      assert.equal(trips, row_of("trips", { subject = "compare", operation = operation }).trips)
    end
  end)

  it("lets every client go through cycles, and the limit be its own measure", function()
    for _, place in ipairs { "unix socket", "loopback TCP", "1 ms round trip" } do
      assert.equal(1, row_of("cycles", { place = place, subject = "limit" }).ratio)
      for _, subject in ipairs { "memlock", "core", "compare", "swap" } do
        assert.is_true(row_of("cycles", { place = place, subject = subject }).rate > 0)
      end
    end
    -- Two trips of a millisecond each are more than one cycle in two milliseconds can be.
    assert.is_true(row_of("cycles", { place = "1 ms round trip", subject = "limit" }).most <= 500)
  end)

  it("never sees two that hold the lock, nor more than there was time for", function()
    for _, row in ipairs(rows_of "handoff") do
      assert.equal(0, row.overlaps, row.subject)
      assert.is_true(row.rate > 0 and row.rate <= 202, row.rate)
      assert.is_true(row.jain > 0 and row.jain <= 1, row.jain)
      assert.is_true(row.free >= 0 and row.free <= 1, row.free)
    end
  end)

  it("keeps all locks that are renewed", function()
    for _, row in ipairs(rows_of "keeper") do
      assert.equal(row.count, row.held)
      assert.equal(0, row.losses)
    end
  end)
end)

describe("statistics", function()
  it("are what their names say", function()
    assert.equal(3, lab.median { 5, 1, 3 })
    assert.equal(2.5, lab.median { 4, 1, 2, 3 })
    assert.equal(1, lab.quantile({ 3, 2, 1 }, 0))
    assert.equal(3, lab.quantile({ 3, 2, 1 }, 1))
    assert.is_nil(lab.median {})
    assert.equal(1, lab.jain { 7, 7, 7 })
    assert.equal(0.25, lab.jain { 9, 0, 0, 0 })
  end)
end)

it("the documents show the results that are there, and nothing else", function()
  lab.quick = false
  for _, path in ipairs { "README.md", "doc/performance.md" } do
    local file = assert(io.open(path))
    local text = file:read "a"
    file:close()
    assert.equal(report.refreshed(text), text, path)
  end
end)
