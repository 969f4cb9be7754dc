-- What memlock needs to know of HAProxy, for page.lua and leader.lua.

local host = {}

--- Waits as HAProxy wants it: others go on. core.msleep takes whole milliseconds.
function host.sleep(seconds)
  core.msleep(math.ceil(seconds * 1000))
end

--- Whether this process only ends its last connections: after a soft stop, or a reload.
function host.is_stopping()
  return tonumber(core.get_info().Stopping) == 1
end

--- Answers a request of a service.
function host.answer(applet, status, text)
  applet:set_status(status)
  applet:add_header("content-type", "text/plain")
  applet:add_header("content-length", tostring(#text))
  applet:start_response()
  applet:send(text)
end

return host
