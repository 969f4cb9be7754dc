/* What the classes share: results, pauses, options. */

/** @module memlock */

#include <math.h>
#include <string.h>

#include "clock.h"
#include "lua_memlock.h"

/* Results. */

int ml_lua_fail(lua_State *L, const struct ml_error *error) {
  luaL_pushfail(L);
  lua_pushstring(L, error->message);
  lua_pushstring(L, ml_status_code(error->status));
  return 3;
}

int ml_lua_argerror(lua_State *L, int arg, const struct ml_error *error) {
  return luaL_argerror(L, arg, error->message);
}

int ml_lua_result(lua_State *L, enum ml_status status, const struct ml_error *error) {
  if (status != ML_OK) return ml_lua_fail(L, error);
  lua_pushboolean(L, 1);
  return 1;
}

static void set_string(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

/**
 * Who holds a lock, as @{lock:holder} and @{client:holder} tell. Where a value stands that is none
 * of memlock's, so that some other program has the key, there are only `mine` and `value`.
 *
 * @table holder
 * @within Options and results
 * @tfield string label for people: the holder's option `label`
 * @tfield integer since when, in Unix seconds of the holder's clock
 * @tfield number ttl seconds that the last write asked for
 * @tfield boolean mine this client has it, or its identity
 * @tfield string id of the acquisition, or the identity
 * @tfield string value all that stands in memcached, for @{client:break_lock}
 */
int ml_lua_holder(lua_State *L, struct ml_client *client, const char *name, size_t length) {
  struct ml_error error;
  struct ml_holder holder;
  bool mine;
  if (ml_client_holder(client, name, length, &holder, &mine, &error) != ML_OK)
    return ml_lua_fail(L, &error);
  if (holder.free) {
    lua_pushboolean(L, 0);
    return 1;
  }
  /* First of all: what follows may run finalizers, which may use the client. */
  lua_pushlstring(L, holder.value, holder.length);
  lua_createtable(L, 0, 6); /* value, holder */
  lua_insert(L, -2);
  lua_setfield(L, -2, "value");
  lua_pushboolean(L, mine);
  lua_setfield(L, -2, "mine");
  if (holder.is_record) {
    set_string(L, "id", holder.record.id);
    set_string(L, "label", holder.record.label);
    lua_pushinteger(L, holder.record.since);
    lua_setfield(L, -2, "since");
    lua_pushnumber(L, (lua_Number)holder.record.ttl_ms / 1000);
    lua_setfield(L, -2, "ttl");
  }
  return 1;
}

/* Pauses. */

void ml_lua_pause(lua_State *L, int64_t pause, lua_KContext context, lua_KFunction next) {
  lua_getiuservalue(L, -1, 1);      /* client, its table */
  lua_rawgeti(L, -1, ML_LUA_SLEEP); /* client, its table, sleep */
  lua_replace(L, -3);
  lua_pop(L, 1); /* sleep */
  lua_pushnumber(L, ml_clock_seconds(pause));
  lua_callk(L, 1, 1, context, next);
}

bool ml_lua_said_false(lua_State *L) { return lua_isboolean(L, -1) && !lua_toboolean(L, -1); }

/**
 * Sleeps the thread; a signal wakes it early. It is what a client without an option `sleep` does.
 *
 * @function sleep
 * @tparam number seconds 0 or more
 * @treturn boolean `true`
 */
int ml_lua_sleep(lua_State *L) {
  double seconds = ml_lua_checkwait(L, 1);
  (void)ml_clock_sleep(ml_clock_span(seconds));
  lua_pushboolean(L, 1);
  return 1;
}

/* Options. */

void ml_lua_options(lua_State *L, int arg, const char *const *names) {
  if (lua_isnoneornil(L, arg)) return;
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_pushnil(L);
  while (lua_next(L, arg) != 0) { /* key, value */
    if (lua_type(L, -2) != LUA_TSTRING)
      luaL_argerror(L, arg, "options are named: a key is not a string");
    size_t length;
    const char *key = lua_tolstring(L, -2, &length);
    const char *const *known = names;
    while (*known != NULL && (strcmp(*known, key) != 0 || strlen(*known) != length)) known++;
    if (*known == NULL) luaL_argerror(L, arg, lua_pushfstring(L, "unknown option '%s'", key));
    lua_pop(L, 1); /* key */
  }
}

int ml_lua_option(lua_State *L, int arg, const char *name) {
  if (lua_isnoneornil(L, arg)) {
    lua_pushnil(L);
    return LUA_TNIL;
  }
  /* Raw: what is read must be in the table, which keeps it alive. */
  lua_pushstring(L, name);
  return lua_rawget(L, arg);
}

static void wrong_option(lua_State *L, int arg, const char *name, const char *expected) {
  luaL_argerror(
      L, arg,
      lua_pushfstring(L, "option '%s' must be %s, got %s", name, expected, luaL_typename(L, -1)));
}

const char *ml_lua_string(lua_State *L, int arg, const char *name, size_t *length) {
  int type = ml_lua_option(L, arg, name);
  const char *text = NULL;
  if (type == LUA_TSTRING)
    text = lua_tolstring(L, -1, length);
  else if (type != LUA_TNIL)
    wrong_option(L, arg, name, "a string");
  lua_pop(L, 1); /* the options table still has it */
  if (text != NULL && strlen(text) != *length)
    luaL_argerror(L, arg, lua_pushfstring(L, "option '%s' has a zero byte", name));
  return text;
}

bool ml_lua_boolean(lua_State *L, int arg, const char *name) {
  int type = ml_lua_option(L, arg, name);
  if (type != LUA_TBOOLEAN && type != LUA_TNIL) wrong_option(L, arg, name, "a boolean");
  bool value = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return value;
}

bool ml_lua_seconds(lua_State *L, int arg, const char *name, bool zero, bool infinite,
                    double *seconds) {
  int type = ml_lua_option(L, arg, name);
  if (type == LUA_TNIL) {
    lua_pop(L, 1);
    return false;
  }
  if (type != LUA_TNUMBER) wrong_option(L, arg, name, "a number of seconds");
  double value = lua_tonumber(L, -1);
  lua_pop(L, 1);
  if (!(value > 0 || (zero && value == 0)) || (!infinite && isinf(value)))
    luaL_argerror(L, arg,
                  lua_pushfstring(L, "option '%s' must be %s0 seconds%s, got %f", name,
                                  zero ? "at least " : "more than ", infinite ? "" : " and finite",
                                  (lua_Number)value));
  *seconds = value;
  return true;
}

bool ml_lua_ttl(lua_State *L, int arg, const char *name, int64_t *ttl) {
  int type = ml_lua_option(L, arg, name);
  if (type != LUA_TNIL && type != LUA_TNUMBER) wrong_option(L, arg, name, "a number of seconds");
  double seconds = lua_tonumber(L, -1);
  lua_pop(L, 1);
  struct ml_error error;
  if (type == LUA_TNIL) return false;
  if (ml_client_check_ttl(seconds, ttl, &error) != ML_OK) ml_lua_argerror(L, arg, &error);
  return true;
}

double ml_lua_checkwait(lua_State *L, int arg) {
  luaL_checktype(L, arg, LUA_TNUMBER); /* a string of digits is a mistake here, not a time */
  double seconds = lua_tonumber(L, arg);
  luaL_argcheck(L, seconds >= 0, arg, "seconds must be 0 or more");
  return seconds;
}

void ml_lua_class(lua_State *L, const char *name, const luaL_Reg *metamethods,
                  const luaL_Reg *methods) {
  luaL_newmetatable(L, name); /* or the one that is there: loaded twice, it is filled anew */
  luaL_setfuncs(L, metamethods, 0);
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}
