-- Two ways not to forget the release: a variable that is closed at the end of its block, and a
-- function that is called with the lock held. Both also release when an error leaves early.
--
--     lua5.4 examples/scoped.lua [server]

local memlock = require "memlock"

local client = memlock.client(arg[1] or "127.0.0.1:11211", { wait = 5 })
local lock = client:lock("printer")

local function state()
  return lock:held() and "held" or "not held"
end

do
  local printer <close> = assert(lock:acquire())
  print("in the block: " .. state(), "token " .. printer:token())
end
print("after the block: " .. state())

local ok, pages = lock:with(function(_, first, last)
  print("in the function: " .. state())
  return last - first + 1
end, 3, 7)
print("after the function: " .. state(), ok and pages .. " pages")

-- An error comes out as it went in.
local _, problem = pcall(lock.with, lock, function()
  error("out of paper", 0)
end)
print("after the error: " .. state(), problem)
