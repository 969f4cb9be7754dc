--- Values through a pipe: nil, booleans, numbers, strings, and tables of these without cycles.
-- A message is the source text of its values, after its length. Up to 4 kB it is written in one
-- piece, so several processes may send into one pipe.

local posix = require "memlock_posix"

local codec = {}

local plain = { ["nil"] = true, boolean = true, number = true, string = true }

local encode

local function encode_table(value, seen)
  if seen[value] then error("a table in itself cannot be sent", 0) end
  seen[value] = true
  local parts = {}
  for key, item in pairs(value) do
    parts[#parts + 1] = ("[%s]=%s"):format(encode(key, seen), encode(item, seen))
  end
  seen[value] = nil
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value, seen)
  local kind = type(value)
  if kind == "table" then return encode_table(value, seen) end
  if not plain[kind] then error("a " .. kind .. " cannot be sent", 0) end
  if value == math.huge then return "1e9999" end -- what %q makes of the infinite, 5.3 cannot read
  if value == -math.huge then return "-1e9999" end
  return ("%q"):format(value)
end

--- A value as Lua would read it.
function codec.text(value) return encode(value, {}) end

local Pipe = {}
Pipe.__index = Pipe

--- A pair of descriptors as one line of messages; it owns them.
function codec.pipe(read_fd, write_fd)
  return setmetatable({ read_fd = read_fd, write_fd = write_fd }, Pipe)
end

--- Sends one message of any number of values.
function Pipe:send(...)
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = encode((select(i, ...)), {}) end
  assert(posix.write(self.write_fd, ("s4"):pack("return " .. table.concat(parts, ","))))
end

local function read_all(fd, size, deadline)
  local text = ""
  while #text < size do
    local wait = deadline and math.max(0, deadline - posix.now())
    local more, message = posix.read(fd, math.min(size - #text, 65536), wait)
    if not more then error("nothing came: " .. message, 0) end
    if more == "" then error("the other side has ended", 0) end
    text = text .. more
  end
  return text
end

--- Waits for one message.
-- @param seconds how long; nil: for ever
-- @return its values, as of table.pack; raises when the time is over or the other side has ended
function Pipe:receive(seconds)
  local deadline = seconds and posix.now() + seconds
  local size = ("I4"):unpack(read_all(self.read_fd, 4, deadline))
  return table.pack(assert(load(read_all(self.read_fd, size, deadline), "=message", "t", {}))())
end

function Pipe:close()
  if not self.read_fd then return end
  posix.close(self.read_fd)
  posix.close(self.write_fd)
  self.read_fd, self.write_fd = nil, nil
end

return codec
