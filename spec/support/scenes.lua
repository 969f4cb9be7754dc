--- What a client does, one call at a time, and what must be true of it whatever the server did:
-- for specs in which servers answer wrongly.

local assert = require "luassert"
local keeping = require "spec.support.keeping"
local memlock = require "memlock"
local support = require "spec.support"

local scenes = {}

local server = support.server()
local truth = server:raw() -- what the server really has

local failures = { refused = true, timeout = true, unreachable = true }

--- The results of a call (as of table.pack), for people.
function scenes.shown(results)
  local list = {}
  for i = 1, results.n do list[i] = tostring(results[i]) end
  return table.concat(list, ", ")
end

--- Did the call fail? Then it has said so as it should.
function scenes.failed(results, context)
  if results[1] ~= nil then return false end
  local message, code = results[2], results[3]
  assert.is_true(failures[code] ~= nil, context .. ": " .. scenes.shown(results))
  assert.equal("string", type(message), context)
  assert.is_nil(message:find("%c"), context .. ": " .. message)
  assert.truthy(message:find("127.0.0.1:", 1, true), context .. ": " .. message)
  return true
end

--- The operations, by what they are called. Each works on a scene: `client`, `name`, `key`, and a
-- `lock` that is held where `held`. `honest` gets what `run` returned, and whether it failed.
local operations = {
  ["acquire"] = {
    run = function(scene) return scene.lock:acquire() end,
    honest = function(scene, results, is_failure)
      local lock = scene.lock
      assert.equal(not is_failure, (lock:held()))
      if is_failure then return assert.is_nil(lock:token()) end
      assert.equal(lock, results[1])
      assert.equal("integer", math.type(lock:token()))
      assert.truthy(keeping.id(truth:get(scene.key)))
    end,
  },
  ["refresh"] = {
    held = true,
    run = function(scene) return scene.lock:refresh(900) end,
    honest = function(scene, results, is_failure)
      assert.is_true((scene.lock:held()))
      if is_failure then return end
      assert.is_true(results[1])
      assert.is_true(truth:ttl(scene.key) > 800)
    end,
  },
  ["verify"] = {
    held = true,
    run = function(scene) return scene.lock:verify() end,
    honest = function(scene, results, is_failure)
      assert.is_true((scene.lock:held()))
      assert.is_true(is_failure or results[1])
    end,
  },
  ["verify of what is gone"] = {
    held = true,
    prepare = function(scene) truth:delete(scene.key) end,
    run = function(scene)
      local results = table.pack(scene.lock:verify())
      scene.lost = results[3] == "lost"
      if scene.lost then return false end
      return table.unpack(results, 1, results.n)
    end,
    honest = function(scene, _, is_failure)
      assert.is_true(is_failure or scene.lost)
      assert.equal(is_failure, (scene.lock:held()))
    end,
  },
  ["holder"] = {
    held = true,
    run = function(scene) return scene.client:holder(scene.name) end,
    honest = function(_, results, is_failure)
      assert.is_true(is_failure or results[1].mine)
    end,
  },
  ["holder of a free name"] = {
    run = function(scene) return scene.client:holder(scene.name) end,
    honest = function(_, results, is_failure)
      assert.is_true(is_failure or results[1] == false)
    end,
  },
  ["release"] = {
    held = true,
    run = function(scene) return scene.lock:release() end,
    honest = function(scene, results, is_failure)
      assert.is_false((scene.lock:held()))
      if is_failure then return end
      assert.is_true(results[1])
      assert.is_nil(truth:get(scene.key))
    end,
  },
  ["break_lock"] = {
    held = true,
    prepare = function(scene) scene.holder = { value = truth:get(scene.key) } end,
    run = function(scene) return scene.client:break_lock(scene.name, scene.holder) end,
    honest = function(scene, results, is_failure)
      if is_failure then return end
      assert.is_true(results[1])
      assert.is_nil(truth:get(scene.key))
    end,
  },
  ["update of a new key"] = {
    run = function(scene)
      return scene.client:update(scene.name, function(old) return (old or "") .. "x" end)
    end,
    honest = function(scene, results, is_failure)
      if is_failure then return end
      assert.same({ true, "x" }, { results[1], results[2] })
      assert.equal("x", truth:get(scene.name))
    end,
  },
  ["update of a key"] = {
    prepare = function(scene) truth:set(scene.name, "a") end,
    run = function(scene)
      return scene.client:update(scene.name, function(old) return (old or "") .. "x" end)
    end,
    honest = function(scene, results, is_failure)
      if is_failure then return end
      assert.same({ true, "ax" }, { results[1], results[2] })
      assert.equal("ax", truth:get(scene.name))
    end,
  },
}

scenes.operations = operations

local names = {} -- of the operations, in an order
for name in pairs(operations) do names[#names + 1] = name end
table.sort(names)

-- The keeper is the writer of its lock from the first thing that it is asked.
local by_keeper = { ["refresh"] = true, ["verify"] = true, ["release"] = true,
  ["verify of what is gone"] = true }

--- A client whose connection is up, with what an operation needs.
-- @param options `proxy`, `kept` (renewed in the background, by a keeper that has begun), `timeout`
function scenes.new(operation, address, options)
  local scene = { name = support.name() }
  scene.key = "memlock:" .. scene.name
  scene.client = memlock.client(address, { timeout = options.timeout or 1,
    proxy = options.proxy })
  scene.lock = scene.client:lock(scene.name, { ttl = 30, auto_refresh = options.kept })
  assert.is_false(scene.client:holder(scene.name))
  if operation.held then assert(scene.lock:acquire()) end
  if options.kept then assert(scene.lock:verify()) end
  if operation.prepare then operation.prepare(scene) end
  return scene
end

--- Everything works: for the lock that met the trouble, and for others.
function scenes.usable(client, lock, context)
  local function is(expected, result, message)
    assert.equal(expected, result, context .. ", afterwards: " .. tostring(message))
  end
  for _, other in ipairs { lock, client:lock(support.name()) } do
    is(other, other:acquire())
    is(true, other:refresh())
    is(true, other:verify())
    is(true, other:holder().mine)
    is(true, other:release())
    is(false, other:holder())
  end
  is(true, client:update(support.name(), function() return "y" end))
end

--- One operation while its server does as `trouble(scene)` makes it do, until `calm(scene)`.
-- @return its results
function scenes.endure(operation, address, options, trouble, calm, context)
  local scene = scenes.new(operation, address, options)
  trouble(scene)
  local results = table.pack(operation.run(scene))
  local ok, err = pcall(operation.honest, scene, results, scenes.failed(results, context))
  if not ok then error(context .. ": " .. scenes.shown(results) .. ": " .. tostring(err), 0) end
  calm(scene)
  scene.lock:release() -- true, or not held, or lost where a test or break_lock removed the record
  scenes.usable(scene.client, scene.lock, context)
  scene.client:close()
  return results
end

local logs = {} -- by `what`

--- The commands that an operation sends when nothing goes wrong, as a spoiler logs them.
function scenes.commands(what, operation, options)
  if logs[what] then return logs[what] end
  local spoiler = support.spoiler(server)
  local scene = scenes.new(operation, spoiler.address, options)
  spoiler:plan()
  operation.run(scene)
  logs[what] = spoiler:log()
  scene.client:close()
  return logs[what]
end

--- Runs `fn(operation, options, what)` for every operation: as it is, through the keeper, and with
-- proxy = true.
function scenes.each(fn)
  for _, name in ipairs(names) do
    local operation = operations[name]
    fn(operation, {}, name)
    fn(operation, { proxy = true }, name .. ", proxy = true")
    if by_keeper[name] then fn(operation, { kept = true }, name .. ", kept") end
  end
end

--- Does it wait for its reply to a write? libmemcached ends the process if that is answered by what
-- is good news for another command.
function scenes.is_waiting_write(command)
  local verb = command:match("^%l+")
  return (verb == "add" or verb == "cas" or verb == "set") and not command:find(" noreply$")
end

return scenes
