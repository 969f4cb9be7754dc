--- Checks the journals of a soak, in a process of its own that knows nothing else of it.
--
--     lua5.4 spec/soak/check.lua DIRECTORY
--
-- Prints the figures, then each check with the first of its findings, then `N passed, N failed`.

local checker = require "spec.soak.checker"

local SHOWN = 5

local results, figures = checker.check(arg[1])
for _, figure in ipairs(figures) do print(("%-34s %10s"):format(figure[1], figure[2])) end
local passed, failed = 0, 0
for _, result in ipairs(results) do
  local count = #result.findings
  print(("%-5s %-40s %d found"):format(count == 0 and "ok" or "FAIL", result.name, count))
  for i = 1, math.min(count, SHOWN) do print("      " .. result.findings[i]) end
  if count == 0 then passed = passed + 1 else failed = failed + 1 end
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0, true)
