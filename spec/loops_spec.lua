--- Event loops: everything else goes on while a coroutine waits for a lock.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"

local server = support.server()

-- Both programs tick every 10 ms while one coroutine waits for a lock, gets it, has it for a
-- while, and gives it up. They print: "got it" or a message, how long that took, the number of
-- ticks and the longest gap between two, from the first attempt on until after the release.
local common = [[
  local memlock = require "memlock"
  local server, name = arg[1], arg[2]
  local last, ticks, longest = nil, 0, 0
  local function tick(now)
    if last then longest = math.max(longest, now - last) end
    last, ticks = now, ticks + 1
  end
  local function wait(sleep, now)
    local lock = memlock.client(server, { sleep = sleep, wait = 30 }):lock(name)
    print "waiting"
    io.flush()
    local start = now()
    local ok, message = lock:with(function() -- or what fn returned
      local took = now() - start
      sleep(0.1)
      assert(lock:verify())
      return took
    end)
    sleep(0.05)
    print(ok and "got it" or message, message, ticks, longest)
  end
]]

local loops = {
  luv = common .. [[
    local uv = require "luv"
    local function now() uv.update_time() return uv.hrtime() / 1e9 end
    local function sleep(seconds)
      local waiting = coroutine.running()
      local timer = uv.new_timer()
      uv.update_time()
      timer:start(math.ceil(seconds * 1000), 0, function()
        timer:close()
        assert(coroutine.resume(waiting))
      end)
      coroutine.yield()
    end
    local ticker = uv.new_timer()
    ticker:start(10, 10, function() tick(now()) end)
    assert(coroutine.resume(coroutine.create(function()
      wait(sleep, now)
      ticker:close()
    end)))
    uv.run()
  ]],
  cqueues = common .. [[
    local cqueues = require "cqueues"
    local loop, done = cqueues.new(), false
    loop:wrap(function()
      while not done do
        cqueues.sleep(0.01)
        tick(cqueues.monotime())
      end
    end)
    loop:wrap(function()
      wait(cqueues.sleep, cqueues.monotime)
      done = true
    end)
    assert(loop:loop())
  ]],
}

for name, code in pairs(loops) do
  describe("a loop of " .. name, function()
    -- Runs it against a lock that this process holds for `seconds` once it waits.
    local function run(address, lock, seconds)
      local program = support.start_lua { address, lock:name(), code = code }
      assert.equal("waiting", program:read_line())
      support.sleep(seconds)
      assert.is_true(program:alive())
      assert(lock:release())
      local result = program:wait(20)
      assert.same({ "exit", 0, "" }, { result.kind, result.code, result.err }, tostring(result))
      local said, took, ticks, longest = result.out:match("^([^\t]*)\t(%S+)\t(%d+)\t(%S+)\n$")
      assert.equal("got it", said, tostring(result))
      if os.getenv("FIGURES") then
        io.stderr:write(("%s: got it after %.2f s; %d ticks, longest gap %.0f ms\n"):format(
          name, took, ticks, longest * 1000))
      end
      return tonumber(took), tonumber(ticks), tonumber(longest)
    end

    it("goes on while a coroutine waits two seconds, and when it gets the lock", function()
      local lock = memlock.client(server.address):lock(support.name())
      assert(lock:acquire())
      local took, ticks, longest = run(server.address, lock, 2)
      assert.is_true(took >= 1.95 and took <= 2.25 + support.slack(0.05), took)
      assert.is_true(longest > 0.009 and longest <= support.slack(0.06), longest)
      assert.is_true(ticks >= 200 / support.slack(1), ticks)
      assert.is_false(lock:holder())
    end)

    it("goes on while several of them take turns", function()
      local lock = memlock.client(server.address):lock(support.name())
      assert(lock:acquire())
      local others = {}
      for i = 1, 3 do others[i] = support.start_lua { server.address, lock:name(), code = code } end
      for _, other in ipairs(others) do assert.equal("waiting", other:read_line()) end
      local took, _, longest = run(server.address, lock, 0.5)
      assert.is_true(took >= 0.45, took)
      assert.is_true(longest <= support.slack(0.06), longest)
      for _, other in ipairs(others) do
        local result = other:wait(20)
        assert.equal(0, result.code, tostring(result))
      end
    end)
  end)
end
