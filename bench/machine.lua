--- On what it was measured, so that figures are not compared that cannot be.

local lab = require "bench.lab"

local machine = {}

local function first(command)
  local pipe = assert(io.popen(command .. " 2>/dev/null"))
  local line = pipe:read "l"
  pipe:close()
  return line or ""
end

local function of_file(path, pattern)
  local file = io.open(path)
  local text = file and file:read "a" or ""
  if file then file:close() end
  return text:match(pattern) or "unknown"
end

function machine.save()
  local rows = {}
  local function note(what, value) rows[#rows + 1] = { what = what, value = value } end
  note("date", os.date "!%Y-%m-%d")
  note("processor", of_file("/proc/cpuinfo", "model name%s*:%s*([^\n]+)"))
  note("cores", first "nproc")
  note("kernel", first "uname -sr")
  note("memcached", (first "memcached -V":gsub("memcached ", "")))
  note("libmemcached", first "dpkg-query -W -f '${Version}' libmemcached11")
  note("Lua", (first "lua5.4 -v":match "Lua (%S+)"))
  lab.save("machine", { "what", "value" }, rows)
end

return machine
