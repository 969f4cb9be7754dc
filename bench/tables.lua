--- The tables that results are shown as, on the terminal and in the documents.

local lab = require "bench.lab"

local tables = {}

local function number(value, decimals)
  if value == nil then return "" end
  local text = ("%." .. (decimals or 0) .. "f"):format(value)
  local sign, whole, rest = text:match "^(%-?)(%d+)(.*)$"
  whole = whole:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return sign .. whole .. rest
end

local function percent(value, decimals)
  return value and number(100 * value, decimals) .. " %" or ""
end

-- Columns are { title, function of a row }.
local function build(name, columns, keep)
  local rows = lab.load(name)
  if not rows then return nil end
  local result = { {} }
  for i, column in ipairs(columns) do result[1][i] = column[1] end
  for _, row in ipairs(rows) do
    if not keep or keep(row) then
      local line = {}
      for i, column in ipairs(columns) do line[i] = column[2](row) end
      result[#result + 1] = line
    end
  end
  return result
end

local function label(row) return lab.label(row.subject) end

local cycles = {
  { "through", function(r) return r.place end },
  { "client", label },
  { "cycles/s", function(r) return number(r.rate) end },
  { "least to most", function(r) return number(r.least) .. " to " .. number(r.most) end },
  { "÷ limit", function(r) return number(r.ratio, 3) end },
  { "CPU, µs/cycle", function(r) return number(r.cpu, 1) end },
  { "CPU over limit, µs", function(r) return number(r.cpu_over_limit, 1) end },
}

local handoff = {
  { "asks again", function(r) return r.way end },
  { "processes", function(r) return number(r.processes) end },
  { "client", label },
  { "acq/s", function(r) return number(r.rate, 1) end },
  { "free though wanted", function(r) return percent(r.free) end },
  { "hand-off p50, ms", function(r) return number(r.p50, 2) end },
  { "p99, ms", function(r) return number(r.p99, 1) end },
  { "by the releaser again", function(r) return percent(r.again) end },
  { "longest wait, s", function(r) return number(r.longest, 2) end },
  { "Jain", function(r) return number(r.jain, 3) end },
  { "least/most each", function(r) return number(r.fewest) .. "/" .. number(r.most) end },
  { "commands/s", function(r) return number(r.commands) end },
  { "CPU of a core", function(r) return percent(r.cpu, 1) end },
}

function tables.cycles() return build("cycles", cycles) end
function tables.peers_cycles() return build("peers_cycles", cycles) end
function tables.handoff() return build("handoff", handoff) end
function tables.peers_handoff() return build("peers_handoff", handoff) end

-- A row for each client, a column for each operation.
local function trips(name)
  local rows = lab.load(name)
  if not rows then return nil end
  local operations = { "acquire", "refresh", "release", "failed try", "refresh (renewed)",
    "release (renewed)" }
  local found, order = {}, {}
  for _, row in ipairs(rows) do
    if not found[row.subject] then
      found[row.subject] = {}
      order[#order + 1] = row.subject
    end
    found[row.subject][row.operation] = ("%d (%d B)"):format(row.trips, row.bytes)
  end
  local result = { { "client", table.unpack(operations) } }
  for _, subject in ipairs(order) do
    local line = { lab.label(subject) }
    for i, operation in ipairs(operations) do line[i + 1] = found[subject][operation] or "" end
    result[#result + 1] = line
  end
  return result
end

function tables.trips() return trips "trips" end
function tables.peers_trips() return trips "peers_trips" end

function tables.cost()
  return build("cost", {
    { "client", label },
    { "instructions/cycle", function(r) return number(r.instructions) end },
    { "system calls/cycle", function(r) return number(r.calls, 1) end },
    { "sends", function(r) return number(r.sends, 1) end },
    { "receives and polls", function(r) return number(r.waits, 1) end },
    { "signal masks", function(r) return number(r.masks, 1) end },
  })
end

function tables.keeper()
  return build("keeper", {
    { "locks", function(r) return number(r.count) end },
    { "ttl, s", function(r) return number(r.ttl) end },
    { "watched, s", function(r) return number(r.seconds) end },
    { "kept", function(r) return number(r.held) end },
    { "CPU of a core", function(r) return percent(r.cpu, 2) end },
    { "bytes/lock", function(r) return r.count >= 1000 and number(r.memory) or "" end },
    { "passes/s", function(r) return number(r.passes, 1) end },
    { "locks/pass", function(r) return number(r.per_pass, 1) end },
    { "round trips/pass", function(r) return number(r.trips_per_pass, 2) end },
    { "CPU/pass, µs", function(r) return number(r.cpu_per_pass) end },
    { "CPU/renewal, µs", function(r) return number(r.cpu_per_renewal, 1) end },
    { "latest renewal, ms", function(r) return number(1000 * r.delay, 1) end },
  })
end

function tables.objects()
  return build("objects", {
    { "lock objects made and collected per second", function(r) return number(r.rate) end },
    { "bytes each", function(r) return number(r.bytes) end },
  })
end

tables.goals = require "bench.goals"

function tables.machine()
  return build("machine", {
    { "measured on", function(r) return tostring(r.what) end },
    { "", function(r) return tostring(r.value) end },
  })
end

--------------------------------------------------------------------------------

local function width(text) return utf8.len(text) or #text end

--- Prints a table for people.
function tables.print(title, rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, width(cell)) end
  end
  print("\n" .. title .. "\n")
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local pad = (" "):rep(widths[i] - width(cell))
      cells[i] = i > 1 and cell:find "^%-?%d" and pad .. cell or cell .. pad
    end
    print("  " .. table.concat(cells, "  "))
  end
end

--- The same as Markdown.
function tables.markdown(rows)
  local lines = {}
  for n, row in ipairs(rows) do
    lines[#lines + 1] = "| " .. table.concat(row, " | ") .. " |"
    if n == 1 then lines[#lines + 1] = "|" .. (" --- |"):rep(#row) end
  end
  return table.concat(lines, "\n") .. "\n"
end

return tables
