--- The reference and the stubs for the language server tell of all that there is, and of nothing
-- else.

local support = require "spec.support"
support.setup()

local memlock = require "memlock"
local reference = require "spec.support.reference"

-- The module as it is; read once.
local function module()
  return reference.module(memlock, support.server(), support.refusing())
end

-- The same with `true` for all that the module does not tell: parameters, and types of options.
local function names(interface)
  local copy = { functions = {}, fields = interface.fields, options = {}, codes = interface.codes }
  for name in pairs(interface.functions) do copy.functions[name] = true end
  for kind, options in pairs(interface.options) do
    copy.options[kind] = {}
    for name in pairs(options) do copy.options[kind][name] = true end
  end
  return copy
end

-- Of each result: the fields that are there, each with the type that is documented if it fits.
local function as_documented(found, documented)
  local copy = {}
  for result, fields in pairs(found) do
    copy[result] = {}
    for name, kind in pairs(fields) do
      local said = documented[result][name]
      local fits = said == kind or (said == "number" and (kind == "float" or kind == "integer"))
      copy[result][name] = fits and said or kind
    end
  end
  return copy
end

describe("the stubs", function()
  it("have the functions, fields, options and codes of the module", function()
    assert.same(names(module()), names(reference.stubs()))
  end)

  it("have the fields of its results, with their types", function()
    local stubs = reference.stubs()
    assert.same(stubs.results, as_documented(module().results, stubs.results))
  end)

  it("are Lua, and do nothing", function()
    local seen = {}
    for name in pairs(_G) do seen[name] = true end
    local stubs = assert(loadfile "types/memlock.lua")()
    for name in pairs(_G) do assert.is_true(seen[name], name) end
    assert.is_nil(stubs.client())
  end)
end)

describe("the comments", function()
  local function comments()
    if not reference.has_ldoc() then pending "LDoc is not installed" end
    return reference.comments()
  end

  it("say the same as the stubs", function()
    assert.same(reference.stubs(), (comments()))
  end)

  it("leave nothing out", function()
    local _, gaps = comments()
    assert.same({}, gaps)
  end)
end)

describe("the options", function()
  local sample = { string = "word", number = 1, boolean = true, ["function"] = function() end }
  local make = {
    client = function(options) return memlock.client(nil, options) end,
    lock = function(options) return memlock.client():lock("name", options) end,
    update = function(options)
      return memlock.client(support.server().address):update(support.name(), tostring, options)
    end,
  }

  for kind, options in pairs(reference.stubs().options) do
    it("of a " .. kind .. " are accepted, all at once", function()
      local all = {}
      for name, type_name in pairs(options) do all[name] = sample[type_name] end
      assert.truthy(make[kind](all))
    end)

    it("of a " .. kind .. " are refused with a value of another type, by name", function()
      for name in pairs(options) do
        local ok, message = pcall(make[kind], { [name] = {} })
        assert.is_false(ok)
        assert.truthy(message:find("'" .. name .. "'", 1, true), message)
      end
    end)

    it("of a " .. kind .. " are no others", function()
      local ok, message = pcall(make[kind], { nonesuch = 1 })
      assert.is_false(ok)
      assert.truthy(message:find("unknown option 'nonesuch'", 1, true), message)
    end)
  end
end)

describe("the README", function()
  local text = support.read_file "README.md"

  it("names each function, option, field and code", function()
    local stubs = reference.stubs()
    local missing = {}
    local function expect(name, pattern)
      if not text:find(pattern) then missing[#missing + 1] = name end
    end
    for name in pairs(stubs.functions) do
      expect(name, "`" .. (name:find ":" and name or "memlock%." .. name) .. "%(")
    end
    for name in pairs(stubs.fields) do expect(name, "`memlock%." .. name .. "`") end
    for code in pairs(stubs.codes) do expect(code, "\n| `" .. code .. "` |") end
    for _, options in pairs(stubs.options) do
      for name in pairs(options) do expect(name, "`" .. name .. "`") end
    end
    for _, result in ipairs { "server", "stats" } do
      for name in pairs(stubs.results[result]) do expect(name, "`" .. name .. "`") end
    end
    assert.same({}, missing)
  end)
end)
