--- Shows results: on the terminal, in doc/performance.md and README.md, and as plots.

local lab = require "bench.lab"
local plots = require "bench.plots"
local tables = require "bench.tables"

local report = {}

local titles = {
  { "cycles", "Uncontended cycles" },
  { "trips", "Round trips, and bytes sent" },
  { "cost", "What a cycle costs the client" },
  { "handoff", "Hand-off, held for 5 ms each" },
  { "keeper", "Renewal in the background" },
  { "objects", "Lock objects" },
  { "peers_cycles", "Other libraries: uncontended cycles" },
  { "peers_trips", "Other libraries: round trips, and bytes sent" },
  { "peers_handoff", "Other libraries: hand-off, held for 5 ms each" },
}

--- Prints what this run has measured.
function report.print()
  for _, entry in ipairs(titles) do
    if lab.saved[entry[1]] then tables.print(entry[2], tables[entry[1]]()) end
  end
  if not lab.quick then tables.print("Goals", tables.goals()) end
end

local documents = { "README.md", "doc/performance.md" }

--- A document's text with its tables as the results have them: what stands between
-- `<!-- bench NAME -->` and `<!-- end -->`.
function report.refreshed(text)
  return (text:gsub("(<!%-%- bench ([%w_]+) %-%->\n).-(<!%-%- end %-%->)",
    function(head, name, tail)
      local rows = tables[name]()
      return rows and head .. "\n" .. tables.markdown(rows) .. "\n" .. tail
    end))
end

local function refresh(path)
  local file = assert(io.open(path))
  local text = file:read "a"
  file:close()
  local fresh = report.refreshed(text)
  if fresh == text then return end
  file = assert(io.open(path, "w"))
  file:write(fresh)
  assert(file:close())
end

--- Draws the plots and, unless it was quick, brings the documents up to date.
function report.write()
  local drawn = plots.draw(lab.quick and lab.directory() or "doc/plots")
  if not drawn then lab.say "no gnuplot: no plots" end
  if lab.quick then return end
  for _, path in ipairs(documents) do refresh(path) end
end

return report
