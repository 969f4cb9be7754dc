---@meta memlock

-- What `require "memlock"` returns, in the notation that the Lua language server reads (LuaCATS),
-- for completion and type checks. Not to be loaded: name its folder in `workspace.library`.
-- The reference, made by `make doc`, says more.

---Why something failed: the third value that it returns.
---@alias memlock.Code
---| "held"        # somebody else has the lock, or this very object does
---| "lost"        # it was ours and is gone: said once for each acquisition
---| "not_held"    # there is nothing to refresh or to give up
---| "timeout"     # no answer in time, connecting included: the outcome is unknown
---| "unreachable" # the server refused or reset the connection, or there is no such host
---| "refused"     # the server answered with an error, or this machine has nothing to give
---| "unsupported" # the server has no compare-and-swap
---| "conflict"    # an update lost every race within its `wait`
---| "cancelled"   # the client's `sleep` returned false, which ends a wait
---| "closed"      # the client was closed

---What makes all pauses; it may yield, and ends the wait by returning false.
---@alias memlock.Sleep fun(seconds: number): boolean?

---@class (exact) memlock.ClientOptions
---@field prefix? string before each name of a lock ("memlock:")
---@field ttl? number seconds that an acquisition lasts unless it is refreshed (16)
---@field wait? number seconds that `acquire` goes on trying (0: one try)
---@field timeout? number seconds that one operation may take (1)
---@field retry_min? number seconds: no pause between two tries is shorter (0)
---@field retry_max? number seconds: none is longer (10)
---@field sleep? memlock.Sleep makes all pauses (memlock.sleep)
---@field label? string for people who ask for the holder ("host:pid")
---@field identity? string in place of a new id for each acquisition
---@field proxy? boolean the servers are proxies (false)
---@field username? string for a memcached with -Y; goes together with `password`
---@field password? string

---@class (exact) memlock.LockOptions
---@field ttl? number seconds that an acquisition lasts unless it is refreshed (the client's)
---@field wait? number seconds that `acquire` goes on trying (the client's)
---@field identity? string in place of a new id for each acquisition (the client's)
---@field auto_refresh? boolean a thread renews it at a third of its ttl (false)
---@field max_hold? number seconds after which the thread renews it no more (math.huge)
---@field on_lost? fun(lock: memlock.Lock, message: string) called by `client:poll()`

---@class (exact) memlock.UpdateOptions
---@field ttl? number seconds that the new value lasts (0: for ever)
---@field wait? number seconds to go on after a lost race (1)

---Who holds a lock. Only `mine` and `value` where some other program has the key.
---@class memlock.Holder
---@field label? string for people: the holder's option `label`
---@field since? integer Unix seconds
---@field ttl? number seconds
---@field mine boolean this client has it, or its identity
---@field id? string of the acquisition, or the identity
---@field value string all that stands in memcached, for `client:break_lock()`

---What a server is, and whether it is fit for locks.
---@class memlock.Server
---@field server string its address
---@field fit boolean nothing speaks against locks there
---@field findings string[] what does: sentences
---@field cas? boolean a compare-and-swap was tried, and worked
---@field proxy? boolean it does not tell what a memcached tells
---@field round_trip? number seconds of one read
---@field version? string
---@field uptime? integer seconds
---@field clock_offset? integer seconds: its wall clock minus ours
---@field evicting? boolean it drops items when memory is short: no -M
---@field evictions? integer items that it dropped so far
---@field memory_limit? integer bytes
---@field memory_used? integer bytes
---@field message? string why it could not be asked
---@field code? memlock.Code the same for programs

---@class memlock.Stats
---@field attempts integer tries to acquire
---@field acquired integer tries that did
---@field contended integer tries that found another holder
---@field refreshed integer by `refresh`
---@field released integer by `release`, at the end of a scope or of the client
---@field lost integer acquisitions that an operation found to be lost
---@field errors integer operations that could not be done
---@field round_trips integer to any server, those in the background included
---@field waited number seconds of pauses between tries
---@field passes integer flights of the thread that renews
---@field renewals integer that it made
---@field failures integer of renewals, which it then tried again
---@field losses integer that it found
---@field longest_delay number seconds that a renewal began later than it was due

---@class memlock
---@field _VERSION string
local memlock = {}

---@class memlock.Client
local client = {}

---@class memlock.Lock
local lock = {}

---Makes a client. Nothing is sent: the first operation connects. Raises for wrong arguments.
---@param servers? string|string[] "host", "host:port", "[v6]:port", "/path"; a list, or with commas
---@param options? memlock.ClientOptions
---@return memlock.Client
---@nodiscard
function memlock.client(servers, options) end

---Sleeps the thread; a signal wakes it early.
---@param seconds number
---@return true
function memlock.sleep(seconds) end

---What a value is; nil for anything that is none of memlock's.
---@param value any
---@return "client"|"closed client"|"lock"|nil
---@nodiscard
function memlock.type(value) end

---Would this be accepted as the name of a lock? For names that come from data.
---@param name string
---@param prefix? string of the client that is to use it ("memlock:")
---@return true? ok
---@return string? message
function memlock.check_name(name, prefix) end

---Makes a lock object. Nothing is sent. Raises for wrong arguments.
---@param name string
---@param options? memlock.LockOptions
---@return memlock.Lock lock nil where the client was closed
---@return string? message
---@return memlock.Code? code
---@nodiscard
function client:lock(name, options) end

---Asks the server who holds a lock: false when it is free.
---@param name string
---@return memlock.Holder|false|nil holder
---@return string? message
---@return memlock.Code? code
function client:holder(name) end

---Removes exactly what `holder` returned, by compare-and-swap. For operators.
---@param name string
---@param holder memlock.Holder
---@return true? ok
---@return string? message
---@return memlock.Code? code
function client:break_lock(name, holder) end

---Changes the value of any key by compare-and-swap. `fn` may be called several times; it returns
---the new value, or nil to leave everything as it is.
---@param key string
---@param fn fun(old: string?, flags: integer): string?
---@param options? memlock.UpdateOptions
---@return true? ok
---@return string? value the value that now stands there; or the message
---@return memlock.Code? code
function client:update(key, fn, options) end

---Counters.
---@return memlock.Stats
---@nodiscard
function client:stats() end

---A descriptor for event loops: readable when `poll` has something to do.
---@return integer? descriptor
---@return string? message
---@return memlock.Code? code
function client:fd() end

---Calls the `on_lost` of the locks that were lost in the background since the last time.
---@return integer calls number of calls made
function client:poll() end

---Are the servers fit for locks?
---@return memlock.Server[]? servers
---@return string? message
---@return memlock.Code? code
function client:check() end

---Gives up all that it holds, within one `timeout` in all, and ends.
---@return true
function client:close() end

---Acquires it: one try at once, then more after pauses, for up to `wait` seconds.
---@param wait? number 0: one try; math.huge: for ever (the lock's own)
---@return memlock.Lock? lock the same object
---@return string? message
---@return memlock.Code? code
---@nodiscard
function lock:acquire(wait) end

---Acquires it, calls `fn(lock, ...)`, gives it up. Returns true and all results of `fn`; or nil, a
---message and a code: with "lost" followed by the results of `fn`, else it was not called.
---@param fn fun(lock: memlock.Lock, ...: any): ...
---@param ... any
---@return true? ok
---@return any ...
function lock:with(fn, ...) end

---Begins a full ttl from now.
---@param ttl? number seconds (the lock's own)
---@return true? ok
---@return string? message
---@return memlock.Code? code
function lock:refresh(ttl) end

---Gives it up.
---@return true? ok
---@return string? message
---@return memlock.Code? code
function lock:release() end

---Asks the server whether our record stands.
---@return true? ok
---@return string? message
---@return memlock.Code? code
function lock:verify() end

---Is it held now? Answers from the clock, without the network.
---@return boolean held
---@return number left seconds, 0 when it is not held
---@nodiscard
function lock:held() end

---The fencing token of the current or last acquisition; nil before the first.
---@return integer?
---@nodiscard
function lock:token() end

---Asks the server who holds it: false when it is free.
---@return memlock.Holder|false|nil holder
---@return string? message
---@return memlock.Code? code
function lock:holder() end

---Its name.
---@return string
---@nodiscard
function lock:name() end

return memlock
