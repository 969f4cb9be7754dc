--- Instructions (callgrind) and system calls (strace) of a cycle in the client: the difference of
-- two runs that differ in their number of cycles. Instructions hardly depend on the machine and its
-- load. Of system calls, those that wait depend on how soon the server answers.

local support = require "spec.support"
local lab = require "bench.lab"

local FEW = lab.amount(200, 20)

local function has(program)
  return os.execute(("command -v %s >/dev/null"):format(program))
end

local function run(subject, prefix, cycles)
  local command = lab.command(subject, lab.server(subject.backend).address, support.name "cost",
    nil, prefix)
  command.stdin = ("cycles %d\n"):format(cycles)
  command.timeout = 120
  local result = (subject.lua and support.run_lua or support.run)(command)
  assert(result.out == "ready\nok\n", tostring(result))
  return result
end

local function instructions(subject, cycles)
  local result = run(subject, "valgrind --tool=callgrind --callgrind-out-file=/dev/null", cycles)
  return tonumber(result.err:match "Collected : (%d+)")
end

-- By name.
local function system_calls(subject, cycles)
  local path = support.tempdir() .. "/calls"
  run(subject, "strace -f -c -o " .. path, cycles)
  local calls = { all = 0 }
  for line in io.lines(path) do
    local number, name = line:match "^%s*[%d.]+%s+[%d.]+%s+%d+%s+(%d+)%s+%d*%s*([%w_]+)$"
    if name and name ~= "total" then
      calls[name] = tonumber(number)
      calls.all = calls.all + calls[name]
    end
  end
  return calls
end

local function per_cycle(few, many, cycles, name)
  return ((many[name] or 0) - (few[name] or 0)) / cycles
end

return function(name, ids)
  local more = lab.amount(1000, 50)
  local rows = {}
  for i, subject in ipairs(lab.subjects(table.unpack(ids))) do
    lab.say("  instructions and system calls: %s", subject.id)
    rows[i] = { subject = subject.id }
    if has "valgrind" then
      local few, many = instructions(subject, FEW), instructions(subject, FEW + more)
      rows[i].instructions = (many - few) / more
    end
    if has "strace" then
      local few, many = system_calls(subject, FEW), system_calls(subject, FEW + more)
      rows[i].calls = per_cycle(few, many, more, "all")
      rows[i].sends = per_cycle(few, many, more, "sendto")
      rows[i].waits = per_cycle(few, many, more, "recvfrom") + per_cycle(few, many, more, "poll")
      rows[i].masks = per_cycle(few, many, more, "rt_sigprocmask")
    end
  end
  lab.save(name, { "subject", "instructions", "calls", "sends", "waits", "masks" }, rows)
end
