--- Servers that answer wrongly: each call ends with a code and a message or with the truth, never
-- with a success that is none, and the client is as good as before once they answer well again.

local support = require "spec.support"
support.setup()

local scenes = require "spec.support.scenes"
local memlock = require "memlock"

local server = support.server()
local truth = server:raw()

--------------------------------------------------------------------------------
-- Step by step

local function spoil(operation, spoiler, options, plan, context)
  return scenes.endure(operation, spoiler.address, options,
    function() spoiler:plan(plan) end,
    function() spoiler:plan() end, context)
end

describe("an error in place of the answer to any one command", function()
  local errors = {
    "ERROR",
    "CLIENT_ERROR bad data chunk",
    "SERVER_ERROR backend down",
    "SERVER_ERROR out of memory storing object",
  }

  for _, text in ipairs(errors) do
    it("is told or made good: " .. text, function()
      local spoiler = support.spoiler(server)
      scenes.each(function(operation, options, what)
        for _, polite in ipairs { true, false } do
          for n = 1, #scenes.commands(what, operation, options) do
            local context = ("%s, command %d, %s"):format(what, n, polite and "polite" or "rude")
            spoil(operation, spoiler, options,
              { first = n, text = text .. "\r\n", polite = polite }, context)
          end
        end
      end)
    end)

    it("and to all that follow is told: " .. text, function()
      local spoiler = support.spoiler(server)
      scenes.each(function(operation, options, what)
        local n = #scenes.commands(what, operation, options)
        for first = 1, n do
          local context = ("%s, from command %d on"):format(what, first)
          local results = spoil(operation, spoiler, options,
            { first = first, last = math.huge, text = text .. "\r\n" }, context)
          assert.is_true(first > 1 or results[1] == nil, context)
          if first == 1 then assert.equal("refused", results[3], context) end
        end
      end)
    end)
  end
end)

describe("garbage in place of the answer to any one command", function()
  -- To any command, and what only those survive that are no write that waits for its reply.
  local anywhere = {
    ["a word"] = "garbage\r\n",
    ["an empty line"] = "\r\n",
    ["bytes"] = "\0\1\2\255\254\r\n",
    ["a line feed alone"] = "\n",
    ["the answer to another write"] = "NOT_STORED\r\n",
  }
  local reads_only = {
    ["OK"] = "OK\r\n",
    ["a number"] = "7\r\n",
    ["DELETED"] = "DELETED\r\n",
    ["STORED"] = "STORED\r\n",
    ["TOUCHED"] = "TOUCHED\r\n",
    ["VERSION"] = "VERSION 1.6.18\r\n",
    ["STAT"] = "STAT pid 1\r\n",
    ["ITEM"] = "ITEM x [1 b; 0 s]\r\n",
    ["another key"] = "VALUE memlock:nobody 0 1 5\r\nx\r\nEND\r\n",
    ["half a key"] = "VALUE memlock: 0 1 5\r\nx\r\nEND\r\n",
    ["a value with words for numbers"] = "VALUE memlock:nobody a b c\r\nx\r\nEND\r\n",
  }

  local function each_step(text, skips, context_of)
    local spoiler = support.spoiler(server)
    scenes.each(function(operation, options, what)
      for n, command in ipairs(scenes.commands(what, operation, options)) do
        if not (skips and scenes.is_waiting_write(command)) then
          spoil(operation, spoiler, options, { first = n, text = text, polite = true },
            context_of(what, n))
          if not options.proxy then
            spoil(operation, spoiler, options, { first = n, text = text, hang_up = true,
              polite = true }, context_of(what, n) .. ", hung up")
          end
        end
      end
    end)
  end

  local function context_of(what, n) return ("%s, command %d"):format(what, n) end

  for hint, text in pairs(anywhere) do
    -- NOT_STORED is a good answer to an add, and a lie then.
    local lies = text:find("^NOT_STORED") ~= nil
    it("is told or made good: " .. hint, function() each_step(text, lies, context_of) end)
  end

  for hint, text in pairs(reads_only) do
    it("is told or made good by what does not write and wait: " .. hint, function()
      each_step(text, true, context_of)
    end)
  end
end)

it("an answer of another kind shows nothing of what was read before", function()
  for _, text in ipairs { "OK\r\nEND\r\n", "7\r\nEND\r\n", "TOUCHED\r\nEND\r\n" } do
    local spoiler = support.spoiler(server)
    local client = memlock.client(spoiler.address)
    local lock = assert(client:lock(support.name()):acquire())
    assert.is_true(lock:verify())
    truth:delete("memlock:" .. lock:name())
    for _, ask in ipairs {
      function() return client:holder(lock:name()) end,
      function() return lock:verify() end,
    } do
      spoiler:plan { first = 1, last = 3, text = text }
      local results = table.pack(ask())
      assert.same({ nil, "refused" }, { results[1], results[3] }, scenes.shown(results))
      spoiler:plan()
    end
    assert.equal("lost", select(3, lock:verify()))
    client:close()
  end
end)

-- Whether what an answer leaves behind, if it comes twice, is met by a write that waits.
local function leaves_trouble(commands, n)
  if commands[n]:find(" noreply$") then return false end
  local absent = commands[n]:find("^cas %S+ 0 2592001 0 9223372036854775807$") -- NOT_FOUND: see end
  return absent or commands[n + 1] and scenes.is_waiting_write(commands[n + 1])
end

it("an answer that comes twice is not taken for the next one", function()
  local spoiler = support.spoiler(server)
  scenes.each(function(operation, options, what)
    local commands = scenes.commands(what, operation, options)
    for n in ipairs(commands) do
      if not leaves_trouble(commands, n) then
        local context = ("%s, command %d"):format(what, n)
        local scene = scenes.new(operation, spoiler.address, options)
        spoiler:plan { first = n, double = true }
        local results = table.pack(operation.run(scene))
        local ok, err = pcall(operation.honest, scene, results, scenes.failed(results, context))
        assert.is_true(ok, context .. ": " .. scenes.shown(results) .. tostring(err))
        assert.truthy(scene.client:holder(scene.name) ~= nil, context) -- a read finds the rest
        spoiler:plan()
        scenes.usable(scene.client, scene.client:lock(support.name()), context)
        scene.client:close()
      end
    end
  end)
end)
