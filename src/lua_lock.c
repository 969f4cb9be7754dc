/* The lock class. */
#include <string.h>

#include "clock.h"
#include "lua_memlock.h"

struct ml_lua_lock *ml_lua_checklock(lua_State *L, int index) {
  struct ml_lua_lock *self = luaL_checkudata(L, index, ML_LUA_LOCK);
  luaL_argcheck(L, self->lock.client != NULL, index, "the lock was collected");
  return self;
}

/* client:lock(name [, options]) */
int ml_lua_lock_new(lua_State *L) {
  static const char *const names[] = {"ttl", "wait", "identity", NULL};
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

  struct ml_lua_lock *self = lua_newuserdatauv(L, sizeof *self, 1); /* self */
  self->lock.client = NULL;
  self->wait = wait;
  luaL_setmetatable(L, ML_LUA_LOCK);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  if (ml_client_add(parent->client, &self->lock, name, length, ttl, identity, &error) != ML_OK)
    return luaL_error(L, "%s", error.message);
  return 1;
}

/* lock:acquire([wait]) */

enum { ACQUIRE_LOCK = 1, ACQUIRE_WAIT = 2 }; /* the stack of a wait: the lock, and its ml_wait */

/* Pushes the function that sleeps: the client's user value. */
static void push_sleep(lua_State *L) {
  lua_getiuservalue(L, ACQUIRE_LOCK, 1); /* client */
  lua_getiuservalue(L, -1, 1);           /* client, sleep */
  lua_remove(L, -2);
}

static int acquired(lua_State *L, enum ml_status status, const struct ml_error *error) {
  if (status != ML_OK) return ml_lua_fail(L, error);
  lua_settop(L, ACQUIRE_LOCK);
  return 1;
}

static int cancelled(lua_State *L, const struct ml_lua_lock *self) {
  struct ml_error error;
  (void)ml_fail(&error, ML_CANCELLED, "lock \"%s\": the wait was cancelled", self->lock.name);
  return ml_lua_fail(L, &error);
}

/* Goes on after a pause (what sleep returned is on top), or begins. No local outlives a pause: sleep
 * may yield, and the coroutine may never come back. */
static int acquire_step(lua_State *L, int status, lua_KContext context) {
  (void)status;
  for (int slept = (int)context;; slept = 1) {
    struct ml_lua_lock *self = ml_lua_checklock(L, ACQUIRE_LOCK);
    struct ml_wait *wait = lua_touserdata(L, ACQUIRE_WAIT);
    if (slept) {
      if (lua_isboolean(L, -1) && !lua_toboolean(L, -1)) return cancelled(L, self);
      lua_settop(L, ACQUIRE_WAIT);
    }
    struct ml_error error;
    int64_t pause;
    enum ml_status outcome = ml_client_try(&self->lock, wait, &pause, &error);
    if (pause == 0) return acquired(L, outcome, &error);
    push_sleep(L);
    lua_pushnumber(L, ml_clock_seconds(pause));
    lua_callk(L, 1, 1, 1, acquire_step);
  }
}

static int lock_acquire(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  double seconds = lua_isnoneornil(L, 2) ? self->wait : ml_lua_checkwait(L, 2);
  lua_settop(L, ACQUIRE_LOCK);
  struct ml_wait once = {.span = ml_clock_span(seconds)};
  if (once.span == 0) { /* the common case needs no userdata for its state */
    struct ml_error error;
    int64_t pause;
    return acquired(L, ml_client_try(&self->lock, &once, &pause, &error), &error);
  }
  struct ml_wait *wait = lua_newuserdatauv(L, sizeof *wait, 0);
  *wait = once;
  return acquire_step(L, LUA_OK, 0);
}

/* The other operations. */

/* lock:refresh([ttl]) */
static int lock_refresh(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  struct ml_error error;
  int64_t ttl = 0;
  if (!lua_isnoneornil(L, 2)) {
    luaL_checktype(L, 2, LUA_TNUMBER);
    if (ml_client_check_ttl(lua_tonumber(L, 2), &ttl, &error) != ML_OK)
      return ml_lua_argerror(L, 2, &error);
  }
  return ml_lua_result(L, ml_client_refresh(&self->lock, ttl, &error), &error);
}

/* lock:release() */
static int lock_release(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  struct ml_error error;
  return ml_lua_result(L, ml_client_release(&self->lock, &error), &error);
}

/* lock:verify() */
static int lock_verify(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  struct ml_error error;
  return ml_lua_result(L, ml_client_verify(&self->lock, &error), &error);
}

/* lock:held(): boolean, seconds left */
static int lock_held(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  int64_t left;
  lua_pushboolean(L, ml_client_held(&self->lock, &left));
  lua_pushnumber(L, ml_clock_seconds(left));
  return 2;
}

/* lock:token(): integer, or nil before the first acquisition */
static int lock_token(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  if (self->lock.token == 0)
    luaL_pushfail(L);
  else
    lua_pushinteger(L, (lua_Integer)self->lock.token);
  return 1;
}

/* lock:holder() */
static int lock_holder(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
  return ml_lua_holder(L, self->lock.client, self->lock.name, strlen(self->lock.name));
}

/* lock:name() */
static int lock_name(lua_State *L) {
  struct ml_lua_lock *self = ml_lua_checklock(L, 1);
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
    lua_pushfstring(L, "memlock.lock \"%s\" (held, %d ms left)", self->lock.name,
                    (int)(left / ML_MILLISECOND));
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
      {"acquire", lock_acquire}, {"refresh", lock_refresh}, {"release", lock_release},
      {"verify", lock_verify},   {"held", lock_held},       {"token", lock_token},
      {"holder", lock_holder},   {"name", lock_name},       {NULL, NULL},
  };
  ml_lua_class(L, ML_LUA_LOCK, metamethods, methods);
}
