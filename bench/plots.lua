--- The plots, drawn by gnuplot from the results.

local support = require "spec.support"
local lab = require "bench.lab"

local plots = {}

local head = [[
set terminal svg size %d,%d font "sans-serif,12" background rgb "white"
set output "%s"
set style line 1 lc rgb "#c0392b" pt 7 ps 1.4
set style line 2 lc rgb "#2c6fbb" pt 7 ps 1
set border 3 lc rgb "#555555"
set tics nomirror
set grid lc rgb "#dddddd"
]]

local function has_gnuplot()
  return os.execute "command -v gnuplot >/dev/null"
end

local function draw(path, width, height, script)
  local result = support.run { "gnuplot", "-", stdin = head:format(width, height, path) .. script,
    timeout = 60 }
  assert(result.kind == "exit" and result.code == 0, tostring(result))
end

local function quoted(text) return '"' .. text:gsub('"', "'") .. '"' end

local function block(name, lines)
  return ("$%s << EOD\n%s\nEOD\n"):format(name, table.concat(lines, "\n"))
end

local colours = { memlock = "#c0392b", core = "#e59866", limit = "#95a5a6", compare = "#2c6fbb",
  swap = "#7fb3d5", symfony = "#2c6fbb", tooz = "#7fb3d5", redis = "#27ae60" }

-- Bars, one group for each place and one colour for each client.
local function bars(name, path, title)
  local rows = lab.load(name)
  if not rows then return end
  local places, clients, ratios = {}, {}, {}
  for _, row in ipairs(rows) do
    if not ratios[row.place] then
      ratios[row.place] = {}
      places[#places + 1] = row.place
    end
    ratios[row.place][row.subject] = row.ratio
    if not clients[row.subject] and row.subject ~= "flufl" then
      clients[row.subject] = true
      clients[#clients + 1] = row.subject
    end
  end
  local lines = {}
  for i, place in ipairs(places) do
    local cells = { quoted(place) }
    for k, client in ipairs(clients) do cells[k + 1] = ratios[place][client] or "NaN" end
    lines[i] = table.concat(cells, " ")
  end
  local curves = {}
  for k, client in ipairs(clients) do
    curves[k] = ('$data using %d:xtic(1) title %s lc rgb "%s"'):format(k + 1,
      quoted(lab.label(client)), colours[client])
  end
  draw(path, 760, 400, block("data", lines) .. ([[
set title %s
set style data histogram
set style histogram cluster gap 1
set style fill solid 0.9 noborder
set yrange [0:*]
set ylabel "times the limit's cycles per second"
set key outside bottom center horizontal
set xtics scale 0
unset grid
set grid ytics lc rgb "#dddddd"
plot %s
]]):format(quoted(title), table.concat(curves, ", ")))
end

local short = { memlock = "memlock", limit = "10 to 500 ms, doubling", ["doubling-5-50"] =
  "5 to 50 ms, doubling", ["fixed-5"] = "2.5-5 ms", ["fixed-10"] = "5-10 ms", ["fixed-20"] =
  "10-20 ms", ["turn-2500"] = "2.5", ["turn-3500"] = "3.5", ["turn-6000"] = "6",
  ["turn-9000"] = "9", ["fixed-50"] = "25-50 ms", ["fixed-100"] = "50-100 ms" }

-- What a rule of waiting gives for the commands that it costs.
local function frontier(path)
  local rows = lab.load "handoff"
  if not rows then return end
  local processes, blocks = rows[1].processes, {}
  local least, most = math.huge, 0
  for _, way in ipairs { "0-200 ms", "at once" } do
    local ours, others = {}, {}
    for _, row in ipairs(rows) do
      if row.way == way and row.processes == processes and short[row.subject] then
        least, most = math.min(least, row.commands), math.max(most, row.commands)
        local list = (row.subject == "memlock" or row.subject:find "^turn") and ours or others
        list[#list + 1] = ("%g %g %g %s"):format(row.commands, row.rate, row.longest,
          quoted(short[row.subject]))
      end
    end
    local id = way == "at once" and "again" or "paused"
    blocks[#blocks + 1] = block(id, others) .. block(id .. "_ours", ours)
  end
  local title = ("Rules of waiting, and what they cost: %d processes, 5 ms each"):format(processes)
  local settings = ("set multiplot layout 1,2 title %s\nset xrange [%g:%g]\n"):format(quoted(title),
    least / 1.3, most * 2.5)
  draw(path, 900, 420, table.concat(blocks) .. settings .. [[
set key off
set logscale x
set offsets 0, 0, graph 0.2, graph 0.1
set xlabel "commands per second"
set title "a pause of 0-200 ms after each release"
set ylabel "acquisitions per second"
plot $paused using 1:2 with points ls 2, \
  $paused using 1:2:4 with labels left rotate by 25 offset 0.6,0.4 tc rgb "#2c6fbb" font ",10", \
  $paused_ours using 1:2 with points ls 1, \
  $paused_ours using 1:2:4 with labels right offset -0.8,0.4 tc rgb "#c0392b" font ",11"
set title "asking again at once"
set ylabel "longest wait, seconds"
set yrange [0:*]
plot $again using 1:3 with points ls 2, \
  $again using 1:3:4 with labels left rotate by 25 offset 0.6,0.4 tc rgb "#2c6fbb" font ",10", \
  $again_ours using 1:3 with points ls 1, \
  $again_ours using 1:3:4 with labels right offset -0.8,-0.4 tc rgb "#c0392b" font ",11"
unset multiplot
]])
end

local function keeper(path)
  local rows = lab.load "keeper"
  if not rows then return end
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = ("%d %g"):format(row.count, row.cpu_per_renewal) end
  draw(path, 560, 340, block("data", lines) .. [[
set title "Renewal in the background"
set key off
set logscale x
set yrange [0:*]
set xlabel "locks of one client"
set ylabel "CPU of the client per renewal, microseconds"
plot $data using 1:2 with linespoints ls 1
]])
end

--- @param directory where they go
-- @return false when there is no gnuplot
function plots.draw(directory)
  if not has_gnuplot() then return false end
  os.execute(("mkdir -p '%s'"):format(directory))
  bars("cycles", directory .. "/cycles.svg", "Acquire and release, uncontended")
  bars("peers_cycles", directory .. "/peers.svg", "Acquire and release, other libraries")
  frontier(directory .. "/handoff.svg")
  keeper(directory .. "/keeper.svg")
  return true
end

return plots
