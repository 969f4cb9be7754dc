--- Who owns what a spec starts: a stack of scopes, the file at the bottom and the test on top.
-- A resource has close(), safe to call twice, and forget(), which drops the copy that a forked
-- child has.

local scope = {}

local stack = { {} }

--- Registers a resource in the present scope.
-- @return the resource
function scope.add(resource)
  local top = stack[#stack]
  top[#top + 1] = resource
  return resource
end

--- Opens a scope.
function scope.open()
  stack[#stack + 1] = {}
end

--- Closes what is in the present scope, the newest first, and the scope, unless it is the last.
-- Closes all of it even if something fails, then raises the first failure.
function scope.close()
  local list = stack[#stack]
  stack[#stack] = nil
  if #stack == 0 then stack[1] = {} end
  local failure
  for i = #list, 1, -1 do
    local ok, err = pcall(list[i].close, list[i])
    if not ok then failure = failure or err end
  end
  if failure then error(failure, 0) end
end

--- Closes all scopes.
function scope.close_all()
  while #stack > 1 do scope.close() end
  scope.close()
end

--- Calls `fn(...)` with the outermost scope as the present one.
-- @return its result
function scope.outermost(fn, ...)
  local whole = stack
  stack = { whole[1] }
  local ok, result = pcall(fn, ...)
  stack = whole
  if not ok then error(result, 0) end
  return result
end

--- In a forked child: drops everything, ends nothing.
function scope.forget()
  for _, list in ipairs(stack) do
    for _, resource in ipairs(list) do resource:forget() end
  end
  stack = { {} }
end

return scope
