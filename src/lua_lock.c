/* The lock class. */

/** @module memlock */

#include <string.h>

#include "clock.h"
#include "lua_memlock.h"

#define SCOPE "memlock.scope"

static struct ml_lua_lock *checklock(lua_State *L, int index) {
  struct ml_lua_lock *self = luaL_checkudata(L, index, ML_LUA_LOCK);
  luaL_argcheck(L, self->lock.client != NULL, index, "the lock was collected");
  return self;
}

/* client:lock(name [, options]) */

/* Checks max_hold and on_lost, which say something only with auto_refresh; returns max_hold. */
static int64_t read_background_options(lua_State *L, int arg, bool auto_refresh) {
  double seconds = 0;
  bool bounded = ml_lua_seconds(L, arg, "max_hold", false, true, &seconds);
  bool told = ml_lua_option(L, arg, "on_lost") != LUA_TNIL;
  if (told && !lua_isfunction(L, -1))
    luaL_argerror(
        L, arg,
        lua_pushfstring(L, "option 'on_lost' must be a function, got %s", luaL_typename(L, -1)));
  if ((bounded || told) && !auto_refresh)
    luaL_argerror(L, arg, "options 'max_hold' and 'on_lost' need auto_refresh = true");
  lua_settop(L, 3);
  return bounded ? ml_clock_span(seconds) : ML_FOREVER;
}

/* Lets client:poll() find the lock on top, and its on_lost. The stack is that of ml_lua_lock_new.
 */
static void remember(lua_State *L, const struct ml_lock *lock) {
  lua_getiuservalue(L, 1, 1); /* client, name, options, self, the client's table */
  lua_rawgeti(L, 5, ML_LUA_LOCKS);
  lua_pushvalue(L, 4);
  lua_rawsetp(L, 6, lock);
  lua_rawgeti(L, 5, ML_LUA_ON_LOST);
  lua_pushvalue(L, 4);
  (void)ml_lua_option(L, 3, "on_lost");
  lua_rawset(L, 7);
  lua_settop(L, 4);
}

/**
 * Options of @{client:lock}. What is not given is the client's.
 *
 * @table lock_options
 * @within Options and results
 * @tfield[opt] number ttl seconds that an acquisition lasts unless it is refreshed: above 0, up to
 *   28 days
 * @tfield[opt] number wait seconds that `acquire` goes on trying: 0 is one try, `math.huge` for
 *   ever
 * @tfield[opt] string identity in place of a new id for each acquisition: 1 to 64 bytes, no spaces
 * @tfield[opt=false] boolean auto_refresh a thread renews it at a third of its ttl, while it is
 *   held
 * @tfield[opt=math.huge] number max_hold seconds from an acquisition on, after which the thread
 *   renews it no more; needs `auto_refresh`
 * @tfield[opt] function on_lost `on_lost(lock, message)`: called by @{client:poll} when the thread
 *   has found it lost; may yield; needs `auto_refresh`
 */

/** @type client */

/**
 * Makes a lock object. Nothing is sent.
 *
 * The object keeps its client alive. When it is collected, it gives up what it holds, without
 * waiting.
 *
 * @function client:lock
 * @tparam string name one byte or more of 0x21-0x7e or 0x80-0xff; see @{check_name}
 * @tparam[opt] lock_options options
 * @treturn[1] lock
 * @fails closed, refused
 */
int ml_lua_lock_new(lua_State *L) {
  static const char *const names[] = {"ttl",      "wait",    "identity", "auto_refresh",
                                      "max_hold", "on_lost", NULL};
  struct ml_lua_client *parent = ml_lua_checkclient(L, 1);
  struct ml_error error;
  size_t length, identity_length;
  lua_settop(L, 3); /* client, name, options */
  luaL_checktype(L, 2, LUA_TSTRING);
  const char *name = lua_tolstring(L, 2, &length);
  if (ml_client_check_name(ml_client_prefix(parent->client), name, length, &error) != ML_OK)
    return ml_lua_argerror(L, 2, &error);

  ml_lua_options(L, 3, names);
  int64_t ttl = 0;
  double wait = parent->wait;
  (void)ml_lua_ttl(L, 3, "ttl", &ttl);
  (void)ml_lua_seconds(L, 3, "wait", true, true, &wait);
  const char *identity = ml_lua_string(L, 3, "identity", &identity_length);
  if (identity != NULL && !ml_record_id_ok(identity, identity_length))
    return luaL_argerror(
        L, 3, "option 'identity' has 1 to 64 bytes and neither spaces nor control characters");

  bool auto_refresh = ml_lua_boolean(L, 3, "auto_refresh");
  int64_t max_hold = read_background_options(L, 3, auto_refresh);

  parent = ml_lua_checkclient(L, 1); /* a finalizer may have run meanwhile */
  size_t text = ml_client_key_text(parent->client, length);
  struct ml_lua_lock *self = lua_newuserdatauv(L, sizeof *self + text, 1); /* self */
  self->lock.client = NULL;
  self->wait = wait;
  luaL_setmetatable(L, ML_LUA_LOCK);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  if (ml_client_add(parent->client, &self->lock, self->text, name, length, ttl, identity, &error) !=
      ML_OK)
    return ml_lua_fail(L, &error);
  if (auto_refresh) {
    ml_client_auto_refresh(&self->lock, max_hold);
    remember(L, &self->lock);
  }
  return 1;
}

/**
 * A lock: a lease on a name. The same object serves any number of acquisitions, one after another.
 *
 * As a `<close>` variable it is given up at the end of its block, in whatever way that is left;
 * this says nothing, also when it was lost. `tostring` gives its name and state.
 *
 * @type lock
 */

/* lock:acquire([wait]) and lock:with(fn, ...) */

/* A wait that may pause, and for `with` the acquisition that it is to end. A userdata, because it
 * must outlive the C frame when the host's sleep yields. */
struct scope {
  struct ml_wait wait;
  struct ml_lock *lock; /* NULL: nothing to end */
  uint64_t tenure;
  uint64_t losses; /* of the lock, when fn began */
};

/* The stack of both: the lock, the scope, and for `with` the function and its arguments. */
enum { AT_LOCK = 1, AT_SCOPE = 2, AT_FUNCTION = 3 };

/* What goes on after a pause: flags of the continuation's context. */
enum { SLEPT = 1, WITH = 2 };

static struct scope *push_scope(lua_State *L, double seconds) {
  struct scope *scope = lua_newuserdatauv(L, sizeof *scope, 1);
  *scope = (struct scope){.wait = {.span = ml_clock_span(seconds)}};
  luaL_setmetatable(L, SCOPE);
  return scope;
}

/* Takes the acquisition out of the scope, so that it is ended once; NULL when there is none, or
 * when the lock has been given up and acquired again meanwhile. */
static struct ml_lock *leave_scope(struct scope *scope) {
  struct ml_lock *lock = scope->lock;
  scope->lock = NULL;
  bool ours = lock != NULL && lock->client != NULL && lock->tenure == scope->tenure;
  return ours ? lock : NULL;
}

/* fn raised an error, or its coroutine was closed. */
static int scope_close(lua_State *L) {
  struct ml_lock *lock = leave_scope(luaL_checkudata(L, 1, SCOPE));
  struct ml_error ignored;
  if (lock != NULL) (void)ml_client_release(lock, &ignored);
  return 0;
}

/* A coroutine that waited in fn was dropped, and nobody will ever go on with it. */
static int scope_gc(lua_State *L) {
  struct scope *scope = luaL_checkudata(L, 1, SCOPE);
  struct ml_lock *lock = leave_scope(scope);
  if (lock != NULL) ml_client_drop(lock, scope->tenure);
  return 0;
}

static int cancelled(lua_State *L, const struct ml_lua_lock *self) {
  struct ml_error error;
  (void)ml_fail(&error, ML_CANCELLED, "lock \"%s\": the wait was cancelled", self->lock.name);
  return ml_lua_fail(L, &error);
}

static int after_function(lua_State *L, int status, lua_KContext context);

/* Calls fn(lock, ...) so that whatever ends it ends the acquisition: the scope is a to-be-closed
 * value, and not a protected call, because an error must reach the caller's message handler where
 * it happened. */
static int call_function(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, AT_LOCK);
  struct scope *scope = lua_touserdata(L, AT_SCOPE);
  scope->lock = &self->lock;
  scope->tenure = self->lock.tenure;
  scope->losses = self->lock.losses;
  lua_pushvalue(L, AT_LOCK);
  lua_setiuservalue(L, AT_SCOPE, 1); /* the scope keeps its lock */
  lua_toclose(L, AT_SCOPE);
  luaL_checkstack(L, 2, "too many arguments");
  lua_pushvalue(L, AT_LOCK);
  lua_insert(L, AT_FUNCTION + 1);
  lua_callk(L, lua_gettop(L) - AT_FUNCTION, LUA_MULTRET, 0, after_function);
  return after_function(L, LUA_OK, 0);
}

/* fn returned: its results are all that is above the scope. */
static int after_function(lua_State *L, int status, lua_KContext context) {
  (void)status;
  (void)context;
  struct ml_lua_lock *self = checklock(L, AT_LOCK);
  struct scope *scope = lua_touserdata(L, AT_SCOPE);
  struct ml_lock *lock = leave_scope(scope);
  struct ml_error error;
  error.status = ML_OK;
  if (lock != NULL && (lock->owned || lock->giving_up)) (void)ml_client_release(lock, &error);
  bool lost = self->lock.losses != scope->losses;
  if (lost && error.status != ML_LOST) /* the function has been told, but not its caller */
    (void)ml_fail(&error, ML_LOST, "lock \"%s\" was lost while the function ran", self->lock.name);
  luaL_checkstack(L, 3, "too many results");
  int results = lua_gettop(L) - AT_SCOPE;
  int outcomes = 1;
  if (lost)
    outcomes = ml_lua_fail(L, &error);
  else
    lua_pushboolean(L, 1); /* a release in doubt too: fn ran with the lock */
  lua_rotate(L, AT_SCOPE + 1, outcomes);
  return outcomes + results;
}

/* Goes on after a pause (what sleep returned is on top), or begins. No local outlives a pause:
 * sleep may yield, and the coroutine may never come back. */
static int acquire_step(lua_State *L, int status, lua_KContext context) {
  (void)status;
  for (;; context |= SLEPT) {
    struct ml_lua_lock *self = checklock(L, AT_LOCK);
    struct scope *scope = lua_touserdata(L, AT_SCOPE);
    if (context & SLEPT) {
      if (ml_lua_said_false(L)) return cancelled(L, self);
      lua_pop(L, 1);
    }
    struct ml_error error;
    int64_t pause;
    enum ml_status outcome = ml_client_try(&self->lock, &scope->wait, &pause, &error);
    if (pause != 0) {
      lua_getiuservalue(L, AT_LOCK, 1); /* client */
      ml_lua_pause(L, pause, context | SLEPT, acquire_step);
      continue;
    }
    if (outcome != ML_OK) return ml_lua_fail(L, &error);
    if (context & WITH) return call_function(L);
    lua_settop(L, AT_LOCK);
    return 1;
  }
}

/**
 * Acquires it: one try at once, then more after pauses, for up to `wait` seconds, also while the
 * server cannot be reached. An object that saw others waiting, and was the last to have it, begins
 * with a pause.
 *
 * @function lock:acquire
 * @tparam[opt] number wait seconds: 0 is one try, `math.huge` for ever; the lock's own by default
 * @treturn[1] lock the same object, so that `local l <close> = assert(lock:acquire(5))` works
 * @fails held, timeout, unreachable, refused, unsupported, cancelled, closed
 */
static int lock_acquire(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  double seconds = lua_isnoneornil(L, 2) ? self->wait : ml_lua_checkwait(L, 2);
  lua_settop(L, AT_LOCK);
  if (seconds > 0) {
    (void)push_scope(L, seconds);
    return acquire_step(L, LUA_OK, 0);
  }
  /* One try needs no state that outlives this frame. */
  struct ml_error error;
  int64_t pause;
  struct ml_wait once = {.span = 0};
  if (ml_client_try(&self->lock, &once, &pause, &error) != ML_OK) return ml_lua_fail(L, &error);
  return 1;
}

/**
 * Acquires it, as the lock's option `wait` says; calls `fn(lock, ...)`; gives it up.
 *
 * An error in `fn` passes through unchanged, after the release. A release whose outcome is unknown
 * does not count: `fn` ran with the lock.
 *
 * @function lock:with
 * @tparam function fn may yield; anything that can be called will do
 * @param ... its further arguments
 * @treturn[1] boolean `true`
 * @return[1] ... all results of `fn`
 * @treturn[2] nil
 * @treturn[2] string message
 * @treturn[2] string `lost`: it was lost while `fn` ran
 * @return[2] ... all results of `fn`
 * @fails held, timeout, unreachable, refused, unsupported, cancelled, closed: `fn` was not called
 */
static int lock_with(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  if (!lua_isfunction(L, 2) && luaL_getmetafield(L, 2, "__call") == LUA_TNIL)
    return luaL_typeerror(L, 2, "function");
  if (!lua_isfunction(L, 2)) lua_pop(L, 1); /* __call */
  (void)push_scope(L, self->wait);
  lua_insert(L, AT_SCOPE);
  return acquire_step(L, LUA_OK, WITH);
}

/* The other operations. */

/**
 * Begins a full ttl from now. After a failure other than `lost` and `not_held` the lease goes on as
 * it was, or is over at the end of the shorter one of the two.
 *
 * @function lock:refresh
 * @tparam[opt] number ttl seconds: above 0, up to 28 days; the lock's own by default. With
 *   `auto_refresh` the renewals that follow ask for the same
 * @treturn[1] boolean `true`
 * @fails lost, not_held, timeout, unreachable, refused, unsupported, closed
 */
static int lock_refresh(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  struct ml_error error;
  int64_t ttl = 0;
  if (!lua_isnoneornil(L, 2)) {
    luaL_checktype(L, 2, LUA_TNUMBER);
    if (ml_client_check_ttl(lua_tonumber(L, 2), &ttl, &error) != ML_OK)
      return ml_lua_argerror(L, 2, &error);
  }
  return ml_lua_result(L, ml_client_refresh(&self->lock, ttl, &error), &error);
}

/**
 * Gives it up. `held` is false before anything is sent. After a failure other than `lost` and
 * `not_held` the outcome is unknown: a second call can finish the job, and else the ttl does.
 *
 * @function lock:release
 * @treturn[1] boolean `true`
 * @fails lost, not_held, timeout, unreachable, refused, unsupported, closed
 */
static int lock_release(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  struct ml_error error;
  return ml_lua_result(L, ml_client_release(&self->lock, &error), &error);
}

/**
 * Asks the server whether our record stands. It changes nothing, and does not prolong the lease.
 *
 * @function lock:verify
 * @treturn[1] boolean `true`
 * @fails lost, not_held, timeout, unreachable, refused, unsupported, closed
 */
static int lock_verify(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  struct ml_error error;
  return ml_lua_result(L, ml_client_verify(&self->lock, &error), &error);
}

/**
 * Is it held now? Answers from the clock, without the network, and is false before the server could
 * have dropped the record.
 *
 * @function lock:held
 * @treturn boolean
 * @treturn number seconds left, 0 when it is not held
 */
static int lock_held(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  int64_t left;
  lua_pushboolean(L, ml_client_held(&self->lock, &left));
  lua_pushnumber(L, ml_clock_seconds(left));
  return 2;
}

/**
 * The fencing token of the current or last acquisition: larger than those of all earlier
 * acquisitions of this name, by anybody.
 *
 * @function lock:token
 * @treturn ?integer nil before the first acquisition
 */
static int lock_token(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  if (self->lock.token == 0)
    luaL_pushfail(L);
  else
    lua_pushinteger(L, (lua_Integer)self->lock.token);
  return 1;
}

/**
 * Asks the server who holds it, whether or not this object does.
 *
 * @function lock:holder
 * @treturn[1] holder
 * @treturn[2] boolean `false`: it is free
 * @fails timeout, unreachable, refused, unsupported, closed
 */
static int lock_holder(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  return ml_lua_holder(L, self->lock.client, self->lock.name, strlen(self->lock.name));
}

/**
 * Its name, as it was given to @{client:lock}.
 *
 * @function lock:name
 * @treturn string
 */
static int lock_name(lua_State *L) {
  struct ml_lua_lock *self = checklock(L, 1);
  lua_pushstring(L, self->lock.name);
  return 1;
}

/* Metamethods. */

static int lock_tostring(lua_State *L) {
  const struct ml_lua_lock *self = luaL_checkudata(L, 1, ML_LUA_LOCK);
  if (self->lock.client == NULL) {
    lua_pushliteral(L, "memlock.lock (collected)");
    return 1;
  }
  int64_t left;
  if (ml_client_held(&self->lock, &left))
    lua_pushfstring(L, "memlock.lock \"%s\" (held, %I ms left)", self->lock.name,
                    (LUAI_UACINT)(left / ML_MILLISECOND));
  else
    lua_pushfstring(L, "memlock.lock \"%s\" (not held)", self->lock.name);
  return 1;
}

/* The end of a `local lock <close>`: gives it up within one timeout, and says nothing. */
static int lock_close(lua_State *L) {
  struct ml_lua_lock *self = luaL_checkudata(L, 1, ML_LUA_LOCK);
  struct ml_error ignored;
  if (self->lock.client != NULL) (void)ml_client_release(&self->lock, &ignored);
  return 0;
}

static int lock_gc(lua_State *L) {
  struct ml_lua_lock *self = luaL_checkudata(L, 1, ML_LUA_LOCK);
  if (self->lock.client != NULL) ml_client_remove(&self->lock);
  return 0;
}

void ml_lua_lock_setup(lua_State *L) {
  static const luaL_Reg metamethods[] = {
      {"__gc", lock_gc},
      {"__close", lock_close},
      {"__tostring", lock_tostring},
      {NULL, NULL},
  };
  static const luaL_Reg methods[] = {
      {"acquire", lock_acquire}, {"refresh", lock_refresh},
      {"release", lock_release}, {"verify", lock_verify},
      {"held", lock_held},       {"token", lock_token},
      {"holder", lock_holder},   {"name", lock_name},
      {"with", lock_with},       {NULL, NULL},
  };
  static const luaL_Reg scope_metamethods[] = {
      {"__gc", scope_gc},
      {"__close", scope_close},
      {NULL, NULL},
  };
  static const luaL_Reg no_methods[] = {{NULL, NULL}};
  ml_lua_class(L, ML_LUA_LOCK, metamethods, methods);
  ml_lua_class(L, SCOPE, scope_metamethods, no_methods);
}
