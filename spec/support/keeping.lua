--- What the keeper specs share: programs that are told what to do, and what a relay saw written.

local support = require "spec.support"

local keeping = {}

--- Whether the build under test has a sanitizer in it: times and processor use then mean little.
function keeping.is_sanitized()
  local file = assert(io.open(support.build .. "/flags"))
  local flags = file:read("a")
  file:close()
  return flags:find("-fsanitize=", 1, true) ~= nil
end

--- The key of a lock of this name.
function keeping.key(name) return "memlock:" .. name end

--- The id in a record; nil for any other value.
function keeping.id(record)
  return record and record:match("^memlock/1 (%S+)")
end

local Program = {}
Program.__index = Program

-- Every line is a chunk of Lua; what it returns is a line of the answer.
local interpreter = [[
  posix = require "memlock_posix"
  memlock = require "memlock"
  for line in io.lines() do
    local results = table.pack(assert(load(line))())
    for i = 1, results.n do results[i] = tostring(results[i]) end
    print(table.concat(results, " "))
    io.flush()
  end
]]

--- Starts a program that has `posix`, `memlock` and these arguments in `arg`, and does as it is
-- told.
function keeping.program(...)
  return setmetatable({ process = support.start_lua { code = interpreter, ... } }, Program)
end

--- Has the program begin with a chunk; answer() then waits for its end.
function Program:tell(code)
  self.process:write(code:gsub("%s*\n%s*", " ") .. "\n")
end

--- The results of the first chunk that was not asked for yet, as text with spaces between them.
function Program:answer(seconds)
  return self.process:read_line(seconds)
end

--- Runs a chunk in the program.
-- @return its results, as text
function Program:eval(code, seconds)
  self:tell(code)
  return self:answer(seconds)
end

--- Sends it a signal.
function Program:kill(signal) self.process:kill(signal) end

--- Lets it come to its end, which must be a good one.
function Program:finish(seconds)
  self.process:close_stdin()
  local result = self.process:wait(seconds)
  assert(result.kind == "exit" and result.code == 0 and result.err == "", tostring(result))
end

--- Everything that was written through a relay while it recorded, in order for each connection.
-- @return a list of `{ connection, at, verb, key, expiry, value, id }`; a release has the value ""
function keeping.writes(relay)
  local streams, order = {}, {}
  for _, piece in ipairs(relay:log()) do
    local stream = streams[piece.connection]
    if not stream then
      stream = { text = {}, marks = {}, size = 0 }
      streams[piece.connection] = stream
      order[#order + 1] = piece.connection
    end
    stream.marks[#stream.marks + 1] = { from = stream.size + 1, at = piece.at }
    stream.text[#stream.text + 1] = piece.data
    stream.size = stream.size + #piece.data
  end
  local writes = {}
  for _, connection in ipairs(order) do
    local stream = streams[connection]
    local mark = 1
    local pattern = "()(%l+) (memlock:%S+) %d+ (%d+) %d+[^\r]*\r\n([^\r]*)\r\n"
    for from, verb, key, expiry, value in table.concat(stream.text):gmatch(pattern) do
      while stream.marks[mark + 1] and stream.marks[mark + 1].from <= from do mark = mark + 1 end
      writes[#writes + 1] = { connection = connection, at = stream.marks[mark].at, verb = verb,
        key = key, expiry = math.tointeger(tonumber(expiry)), value = value,
        id = keeping.id(value) }
    end
  end
  return writes
end

--- Calls `fn` every few milliseconds for `seconds`, with the time that has passed.
function keeping.throughout(seconds, fn)
  local start = support.now()
  repeat
    fn(support.now() - start)
    support.sleep(0.005)
  until support.now() - start > seconds
end

return keeping
