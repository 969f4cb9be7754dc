--- Files, as a whole.

local files = {}

--- What is in a file; raises where there is none.
function files.read(path)
  local file = assert(io.open(path, "rb"))
  local text = assert(file:read("a"))
  file:close()
  return text
end

--- Makes a file of this text, in place of one that was there.
function files.write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
end

return files
