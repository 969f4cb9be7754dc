/* client:update(key, fn [, options]): read-modify-write of any key by compare-and-swap. */

/** @module memlock */

#include <string.h>

#include "backoff.h"
#include "clock.h"
#include "lua_memlock.h"
#include "nonce.h"

#define DEFAULT_WAIT ML_SECOND

/* What must outlive a yield of fn or of the host's sleep; a userdata without a metatable. */
struct update {
  struct ml_value was;
  int64_t deadline;
  uint32_t expiry;
  unsigned races;
};

/* The stack: client, key, function, state, and while fn runs the old value. */
enum { AT_CLIENT = 1, AT_KEY = 2, AT_FUNCTION = 3, AT_STATE = 4, AT_OLD = 5 };

/* Where a step goes on. */
enum { READ, CALLED, SLEPT };

static int cancelled(lua_State *L) {
  struct ml_error error;
  (void)ml_fail(&error, ML_CANCELLED, "key \"%s\": the update was cancelled",
                lua_tostring(L, AT_KEY));
  return ml_lua_fail(L, &error);
}

/* Reads the key and leaves: the old value or nil, fn, the same again, and the flags. */
static enum ml_status push_call(lua_State *L, struct ml_client *client, struct update *update,
                                struct ml_error *error) {
  size_t length;
  const char *key = lua_tolstring(L, AT_KEY, &length);
  enum ml_status status = ml_client_get(client, key, length, &update->was, error);
  if (status != ML_OK) return status;
  if (update->was.present)
    lua_pushlstring(L, update->was.value, update->was.length);
  else
    lua_pushnil(L);
  lua_pushvalue(L, AT_FUNCTION);
  lua_pushvalue(L, AT_OLD);
  lua_pushinteger(L, update->was.flags);
  return ML_OK;
}

static int update_step(lua_State *L, int status, lua_KContext where) {
  (void)status;
  for (;;) {
    struct ml_lua_client *self = ml_lua_checkclient(L, AT_CLIENT);
    struct update *update = lua_touserdata(L, AT_STATE);
    struct ml_error error;
    if (where == SLEPT && ml_lua_said_false(L)) return cancelled(L);
    if (where != CALLED) {
      lua_settop(L, AT_STATE);
      if (push_call(L, self->client, update, &error) != ML_OK) return ml_lua_fail(L, &error);
      lua_callk(L, 2, 1, CALLED, update_step);
      where = CALLED;
      continue; /* fn may have closed the client */
    }
    if (lua_isnil(L, -1)) { /* fn leaves it as it is */
      lua_pushboolean(L, 1);
      lua_pushvalue(L, AT_OLD);
      return 2;
    }
    if (!lua_isstring(L, -1))
      return luaL_error(L, "update of key \"%s\": the function returned a %s, not a string or nil",
                        lua_tostring(L, AT_KEY), luaL_typename(L, -1));
    size_t length;
    const char *value = lua_tolstring(L, -1, &length);
    enum ml_status outcome =
        ml_client_put(self->client, &update->was, value, length, update->expiry, &error);
    if (outcome == ML_OK) {
      lua_pushboolean(L, 1);
      lua_insert(L, -2);
      return 2;
    }
    int64_t left = update->deadline - ml_clock_now();
    if (outcome != ML_CONFLICT || left <= 0) return ml_lua_fail(L, &error);
    int64_t pause = ml_backoff_race(++update->races, ml_nonce_unit());
    lua_settop(L, AT_STATE);
    lua_pushvalue(L, AT_CLIENT);
    ml_lua_pause(L, pause < left ? pause : left, SLEPT, update_step);
    where = SLEPT;
  }
}

/**
 * Options of @{client:update}.
 *
 * @table update_options
 * @within Options and results
 * @tfield[opt=0] number ttl seconds that the new value lasts, rounded up to whole ones: up to 28
 *   days, or 0, for ever. It does not inherit what the old one had left
 * @tfield[opt=1] number wait seconds to go on after a lost race: 0 is one try, `math.huge` for ever
 */

/** @type client */

/**
 * Changes the value of any key by compare-and-swap: read, call `fn`, write if nobody else did
 * meanwhile; else again, after a pause. The key is taken as it is, without the client's prefix,
 * and keeps its flags.
 *
 * @function client:update
 * @tparam string key 1 to 250 bytes of 0x21-0x7e or 0x80-0xff
 * @tparam function fn `fn(old, flags)`: the old value, nil when there is none, and its flags, an
 *   integer. It returns the new value, or nil to leave everything as it is. It may be called
 *   several times, so it only computes; it may yield; an error in it passes through
 * @tparam[opt] update_options options
 * @treturn[1] boolean `true`
 * @treturn[1] ?string the value that now stands there, nil when there is none
 * @fails conflict, timeout (it may have been written), unreachable, refused, unsupported,
 *   cancelled, closed
 */
int ml_lua_update(lua_State *L) {
  static const char *const names[] = {"ttl", "wait", NULL};
  (void)ml_lua_checkclient(L, 1);
  lua_settop(L, 4); /* client, key, function, options */
  luaL_checktype(L, AT_KEY, LUA_TSTRING);
  size_t length;
  const char *key = lua_tolstring(L, AT_KEY, &length);
  struct ml_error error;
  if (ml_client_check_key(key, length, &error) != ML_OK) return ml_lua_argerror(L, AT_KEY, &error);
  luaL_checktype(L, AT_FUNCTION, LUA_TFUNCTION);
  ml_lua_options(L, 4, names);
  double ttl = 0, wait = ml_clock_seconds(DEFAULT_WAIT);
  (void)ml_lua_seconds(L, 4, "ttl", true, false, &ttl);
  if (ttl > ML_TTL_MAX)
    return luaL_argerror(L, 4, "option 'ttl' is at most 2419200 seconds (28 days)");
  (void)ml_lua_seconds(L, 4, "wait", true, true, &wait);
  lua_settop(L, AT_FUNCTION);

  struct update *update = lua_newuserdatauv(L, sizeof *update, 0);
  int64_t span = ml_clock_span(ttl);
  if (span == 0 && ttl > 0) span = 1; /* 0 would be for ever */
  *update = (struct update){
      .deadline = ml_clock_after(ml_clock_now(), ml_clock_span(wait)),
      .expiry = (uint32_t)((span + ML_SECOND - 1) / ML_SECOND),
  };
  return update_step(L, LUA_OK, READ);
}
