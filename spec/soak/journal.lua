--- Journals: what each process of a soak writes down, a line at a time.
--
-- A line is a word and its fields, separated by blanks; times are seconds on the monotonic clock.
-- Each line is one write, so that a process that is killed or stopped leaves whole lines, but for
-- the last one.
--
-- A worker, and a child that it forks (files of their own):
--
--     start PID TIME
--     acquired LEASE NAME TOKEN TTL plain|kept BEGUN RETURNED    kept: renewed in the background
--     held LEASE TIME LEFT TTL        held() was true at TIME, and would be for LEFT more seconds
--     not LEASE TIME                  held() was false
--     ends LEASE TIME                 from here on the process may end the lease itself
--     lost LEASE BEGUN RETURNED CALL  a call said "lost"
--     write LEASE NAME TOKEN BEGUN RETURNED accepted|refused LARGEST
--                                     to the register, with held() true before and after
--     call CALL NAME BEGUN RETURNED BOUND OUTCOME
--     child PID KIND CODE             a forked child that did not end as it should
--     wrong TIME TEXT                 an answer that cannot be right
--     stats KEY=NUMBER ...            of a client, at its end
--     end TIME DESCRIPTORS_BEFORE DESCRIPTORS_AFTER
--
-- The driver, the observer, the clockwork:
--
--     fault restart|flush|stop|pause BEGUN ENDED   pause: a stop of up to a second
--     freeze PID BEGUN ENDED
--     did KIND                        another fault, to be counted
--     exit WORKER KIND CODE TEXT      a worker that did not end as it should
--     left TEXT                       a process or a lock that is left at the end
--     over TIME
--     saw NAME BEGUN ENDED CAS VALUE  CAS 0: no item
--     lag TIME SECONDS                a sleep that ended so much too late

local journal = {}

--- Opens a journal.
-- @return a function that writes a line; its arguments are those of string.format
function journal.open(path)
  local file = assert(io.open(path, "a"))
  file:setvbuf("no")
  return function(...)
    assert(file:write((string.format(...):gsub("\n", " ")) .. "\n"))
  end
end

return journal
