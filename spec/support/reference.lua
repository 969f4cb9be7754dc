--- The interface of memlock as three places have it: the module itself, the comments of which LDoc
-- makes the reference, and the stubs in types/memlock.lua. Each is read into a table of one shape:
--
--     functions   name -> its parameters, a list: "client:lock" -> { "name", "options?" };
--                 the module's own are "client", "type" and so on
--     fields      name -> true: what else the module has
--     options     "client", "lock", "update" -> option -> its type
--     results     "holder", "server", "stats" -> field -> its type
--     codes       code -> true
--
-- Types are those of Lua: a type of more detail (a function's signature) is reduced to that. The
-- module does not tell parameters and types: there, `true` stands for them.

local build = require "spec.support.build"
local files = require "spec.support.files"
local process = require "spec.support.process"

local reference = {}

local function new()
  return { functions = {}, fields = {}, options = {}, results = {}, codes = {} }
end

-- How the places call the tables.
local kinds = {
  client_options = { "options", "client" }, ClientOptions = { "options", "client" },
  lock_options = { "options", "lock" }, LockOptions = { "options", "lock" },
  update_options = { "options", "update" }, UpdateOptions = { "options", "update" },
  holder = { "results", "holder" }, Holder = { "results", "holder" },
  server = { "results", "server" }, Server = { "results", "server" },
  stats = { "results", "stats" }, Stats = { "results", "stats" },
}

local function add_table(interface, name, fields)
  local kind = kinds[name] or error("nobody expects a table called " .. name)
  interface[kind[1]][kind[2]] = fields
end

-- "?string", "fun(seconds: number): boolean?", "{string,...}" and so on.
local function plain_type(text)
  text = text:gsub("^%?", "")
  if text:find "^fun%(" or text == "memlock.Sleep" then return "function" end
  if text:find "^{" or text:find "%[%]$" then return "table" end
  if text == "memlock.Code" then return "string" end
  return text
end

---- The comments ----

-- The program, which is Lua: Debian's begins with a line that would take another version.
local ldoc = "/usr/bin/ldoc"

local function ldoc_parameters(item)
  local list = {}
  for i, name in ipairs(item.params) do
    local modifiers = item.modifiers.param and item.modifiers.param[i] or {}
    list[i] = name .. (modifiers.opt and "?" or "")
  end
  return list
end

local function ldoc_fields(item)
  local fields = {}
  for i, name in ipairs(item.params) do
    fields[name] = plain_type(item.modifiers.field[i].type or "string")
  end
  return fields
end

--- Whether there is an LDoc to ask.
function reference.has_ldoc()
  local file = io.open(ldoc)
  if file then file:close() end
  return file ~= nil
end

local function add_item(interface, item)
  if item.type == "function" then
    interface.functions[item.name] = ldoc_parameters(item)
  elseif item.type == "field" then
    interface.fields[item.name] = true
  elseif item.name == "codes" then
    for _, code in ipairs(item.params) do interface.codes[code] = true end
  else
    add_table(interface, item.name, ldoc_fields(item))
  end
end

-- What `@fails` says of the third value: "held, closed (and when): and what that means".
local function add_code_gaps(note, text, codes)
  for code in text:gsub("%b()", ""):gsub(":.*", ""):gmatch "[%w_]+" do
    if not codes[code] then note(code .. " is not a code") end
  end
end

-- What a comment does not say of its item, or says wrongly: sentences, added to `gaps`.
local function add_gaps(gaps, item, codes)
  local function note(what) gaps[#gaps + 1] = item.name .. ": " .. what end
  if not item.summary or item.summary == "" then note "no summary" end
  if item.type ~= "function" then return end
  for i, name in ipairs(item.params) do
    local modifiers = item.modifiers.param[i]
    if not modifiers.type and item.params.map[name] == "" then note("nothing about " .. name) end
  end
  if not item.retgroups then note "no word about what it returns" end
  for _, group in ipairs(item.retgroups or {}) do
    if group.g == 3 then add_code_gaps(note, group[3].text, codes) end
  end
end

--- Called by LDoc with all that it has read: prints it in our shape, as a table of Lua's.
function reference.print(modules)
  local interface, gaps = new(), {}
  for _, item in ipairs(modules[1].items) do add_item(interface, item) end
  for _, item in ipairs(modules[1].items) do add_gaps(gaps, item, interface.codes) end
  print(require "pl.pretty".write { interface = interface, gaps = gaps, modules = #modules })
end

--- What the comments say.
-- @return the interface; a list of what they leave out
function reference.comments()
  local result = process.run_lua { file = ldoc, timeout = 60, "-c", "doc/config.ld",
    "--fatalwarnings", "--filter", "spec.support.reference.print", "." }
  local data = result.code == 0 and result.err == "" and result.out:match "\n({\n.*)$"
  local found = assert(load("return " .. (data or error(tostring(result)))))()
  assert(found.modules == 1, "there are several modules")
  return found.interface, found.gaps
end

---- The stubs ----

local function add_field(interface, class, name, kind)
  if class == "memlock" then
    interface.fields[name] = true
  else
    local fields = kinds[class] and interface[kinds[class][1]][kinds[class][2]]
    if not fields then
      fields = {}
      add_table(interface, class, fields)
    end
    fields[name] = plain_type(kind)
  end
end

-- The parameters of a function, with what the lines before said of them.
local function stub_parameters(name, text, described)
  local list = {}
  for parameter in text:gmatch "[^%s,]+" do
    local optional = described[parameter] or error(name .. ": no @param " .. parameter)
    list[#list + 1] = parameter .. optional
    described[parameter] = nil
  end
  local extra = next(described)
  if extra then error(name .. ": @param " .. extra .. " is none of its parameters") end
  return list
end

--- What the stubs say. Raises where a function lacks the line of a parameter or of its result.
function reference.stubs()
  local interface = new()
  local class, alias, returns
  local described = {}
  for line in io.lines "types/memlock.lua" do
    local name, kind = line:match "^%-%-%-@field ([%w_]+)%??%s+(.+)$"
    if name then
      -- The type ends at a space outside of brackets.
      add_field(interface, class, name, kind:match "^fun%b()" or kind:match "^%S+")
    end
    alias = line:match "^%-%-%-@alias (%S+)" or alias
    class = line:match "^%-%-%-@class memlock%.?(%w*)$" or
      line:match "^%-%-%-@class %(exact%) memlock%.(%w+)$" or class
    if class == "" then class = "memlock" end
    local code = line:match '^%-%-%-| "([%w_]+)"'
    if code and alias == "memlock.Code" then interface.codes[code] = true end
    local parameter, optional = line:match "^%-%-%-@param ([%w_.]+)(%??) "
    if parameter then described[parameter] = optional end
    if line:find "^%-%-%-@return " then returns = true end
    local called, parameters = line:match "^function ([%w_.:]+)%((.-)%) end$"
    if called then
      interface.functions[called:gsub("^memlock%.", "")] =
        stub_parameters(called, parameters, described)
      if not returns then error(called .. ": no @return") end
      described, returns = {}, nil
    end
  end
  return interface
end

---- The module ----

local function add_methods(interface, class, object)
  for name, value in pairs(getmetatable(object).__index) do
    assert(type(value) == "function")
    interface.functions[class .. ":" .. name] = true
  end
end

-- All that may be the name of an option: what the module's text has as strings, and (because the
-- linker keeps one string within the end of another) each of their ends.
local function candidates()
  local found = {}
  local text = files.read(build.place .. "/memlock.so")
  for word in text:gmatch "([%a_][%w_]*)%z" do
    for i = math.max(1, #word - 20), #word do found[word:sub(i)] = true end
  end
  return found
end

-- Which of them `try(options)` does not call unknown. No option takes a table.
local function accepted(names, try)
  local options = {}
  for name in pairs(names) do
    local ok, message = pcall(try, { [name] = {} })
    assert(not ok, "an option took a table: " .. name)
    if not message:find(("unknown option '%s'"):format(name), 1, true) then options[name] = true end
  end
  return options
end

local function keys_into(fields, object)
  for name, value in pairs(object) do fields[name] = math.type(value) or type(value) end
end

--- What the module `memlock` has and does, with the help of a server and of an address where there
-- is none.
function reference.module(memlock, server, nowhere)
  local interface = new()
  for name, value in pairs(memlock) do
    if type(value) == "function" then
      interface.functions[name] = true
    else
      interface.fields[name] = true
    end
  end
  local client = memlock.client(server.address)
  local lock = client:lock "reference"
  add_methods(interface, "client", client)
  add_methods(interface, "lock", lock)

  local names = candidates()
  interface.options.client = accepted(names, function(options) memlock.client(nil, options) end)
  interface.options.lock = accepted(names, function(options) client:lock("name", options) end)
  interface.options.update = accepted(names, function(options)
    client:update("key", print, options)
  end)

  local holder, checked = {}, {}
  assert(lock:acquire())
  keys_into(holder, lock:holder())
  lock:release()
  keys_into(checked, client:check()[1])
  local absent = memlock.client(nowhere)
  keys_into(checked, absent:check()[1])
  interface.results = { holder = holder, server = checked, stats = {} }
  keys_into(interface.results.stats, client:stats())
  absent:close()
  client:close()

  for code in files.read("src/status.c"):gmatch 'return "([%w_]+)"' do
    interface.codes[code] = true
  end
  interface.codes.ok, interface.codes.invalid = nil, nil -- never returned to Lua
  return interface
end

return reference
