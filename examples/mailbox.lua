-- Several processes put numbered messages into one file. Each looks up the last number and appends
-- the next one, which goes well only one at a time.
--
--     lua5.4 examples/mailbox.lua [server [file]]
--
-- starts the writers and counts what they left; with a third argument it is a writer, of that name.

local memlock = require "memlock"

local server, path, name = arg[1] or "127.0.0.1:11211", arg[2], arg[3]
local writers, messages = 4, 25

local function last_number(file)
  local last = 0
  for line in file:lines() do last = tonumber(line:match("^%d+")) end
  return last
end

local function write_messages()
  local lock = memlock.client(server):lock("mailbox", { ttl = 10, wait = 60 })
  for message = 1, messages do
    assert(lock:with(function()
      local file = assert(io.open(path, "a+"))
      file:write(("%d message %d of %s\n"):format(last_number(file) + 1, message, name))
      assert(file:close())
    end))
  end
end

local function quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

local function run_writers()
  local running = {}
  local lua = os.getenv "LUA" or arg[-1]
  for writer = 1, writers do
    local words = { lua, arg[0], server, path, "writer-" .. writer }
    for i, word in ipairs(words) do words[i] = quoted(word) end
    running[writer] = assert(io.popen(table.concat(words, " "), "w"))
  end
  for _, writer in ipairs(running) do assert(writer:close()) end
end

local function check()
  local count = 0
  for line in io.lines(path) do
    count = count + 1
    assert(tonumber(line:match("^%d+")) == count, "out of order: " .. line)
  end
  return count
end

if name then
  write_messages()
else
  local own = not path
  path = path or os.tmpname()
  run_writers()
  print(("%d messages of %d writers, numbered without a gap"):format(check(), writers))
  if own then os.remove(path) end
end
