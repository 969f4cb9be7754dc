--- Something expensive to make: a page "page N", N counting from 1. Whoever makes one writes down
-- when it began and when it ended, so that a spec can tell how often that was.

local assert = require "luassert"
local cqueues = require "cqueues"
local cqsocket = require "cqueues.socket"
local socket = require "socket"
local support = require "spec.support"

local maker = {}

-- os.time() turns to the next second so much later than finer clocks, at most: it counts ticks.
local tick = 0.02

local Maker = {}
Maker.__index = Maker

local function write(path, mode, text)
  local file = assert(io.open(path, mode))
  assert(file:write(text))
  assert(file:close())
end

--- @param seconds how long it takes to make a page
function maker.new(seconds)
  local self = setmetatable({ directory = support.tempdir() }, Maker)
  write(self.directory .. "/begun", "w", "")
  write(self.directory .. "/ended", "w", "")
  self:takes(seconds)
  return self
end

--- From now on it takes so many seconds.
function Maker:takes(seconds)
  write(self.directory .. "/seconds", "w", ("%g\n"):format(seconds))
end

-- The list of times in one of the files; pages are numbered one by one.
local function times(self, what)
  local list = {}
  for line in io.lines(self.directory .. "/" .. what) do
    local number, at = line:match "^(%d+) (%S+)$"
    assert.equal(#list + 1, tonumber(number))
    list[#list + 1] = tonumber(at)
  end
  return list
end

--- How many pages were begun.
function Maker:count()
  return #times(self, "begun")
end

--- That each page was made when the one before had got old, never two at a time, that none was
-- served before it was made, and that the old one was served meanwhile: for half of them at least,
-- since a busy machine may stop all who ask for as long as it takes.
-- @param seen what crowd.ask saw
-- @param last the last version that was asked for
-- @param fresh whole seconds after which a page is old
function Maker:was_asked_once_each(seen, last, fresh)
  local begun, ended = times(self, "begun"), times(self, "ended")
  assert.is_true(#begun >= last)
  for page = 2, #begun do
    local made = (ended[page - 1] - tick) // 1 -- the second of which it is, by os.time()
    assert.is_true(begun[page] >= made + fresh, ("made twice: page %d, at %.3f, after %.3f"):format(
      page, begun[page], ended[page - 1]))
  end
  local served_meanwhile = 0
  for page = 2, last do
    local old = seen[page - 1]
    if old and old.last > begun[page] then served_meanwhile = served_meanwhile + 1 end
  end
  assert.is_true(served_meanwhile >= (last - 1) / 2, "nobody got the old page")
  for page, answers in pairs(seen) do assert.is_true(answers.first >= ended[page]) end
end

--- A shell command that makes a page and prints it.
function Maker:command()
  write(self.directory .. "/make", "w", [[
    read -r seconds <"$0/seconds"
    n=$(($(wc -l <"$0/begun") + 1))
    echo "$n $(date +%s.%N)" >>"$0/begun"
    sleep "$seconds"
    echo "$n $(date +%s.%N)" >>"$0/ended"
    echo "page $n"
  ]])
  return ("sh -c '. %s/make' %s"):format(self.directory, self.directory)
end

-- Makes a page for one request.
local function answer(directory, number, connection)
  connection:setmode("b", "bf")
  repeat local line = connection:read "*l" until not line or line == "\r"
  local function note(what)
    write(directory .. "/" .. what, "a", ("%d %.6f\n"):format(number, socket.gettime()))
  end
  local file = assert(io.open(directory .. "/seconds"))
  local seconds = file:read "n"
  file:close()
  note "begun"
  cqueues.sleep(seconds)
  note "ended"
  local page = ("page %d\n"):format(number)
  connection:write(("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"):format(
    #page, page))
  connection:flush()
  connection:close()
end

--- An HTTP server that makes pages, as many at a time as it is asked for.
-- @return its address, as a URL
function Maker:serve()
  local child = support.child(function(channel)
    local listener = assert(cqsocket.listen("127.0.0.1", 0))
    listener:listen()
    local _, _, port = listener:localname()
    channel:send(port)
    local loop, number = cqueues.new(), 0
    loop:wrap(function()
      for connection in listener:clients() do
        number = number + 1
        loop:wrap(answer, self.directory, number, connection)
      end
    end)
    assert(loop:loop())
  end)
  return ("http://127.0.0.1:%d/"):format(child:receive())
end

return maker
