/* The module: luaopen_memlock and its functions.
 *
 * The comments that begin with two stars, here and at the other functions of the binding, are made
 * into the reference by `make doc`. */

/**
 * Locks on memcached that are leases, with fencing tokens.
 *
 * All times are in seconds, and fractions are allowed. What succeeds returns something true; what
 * fails returns `nil`, a message for people, and one of the @{codes} for programs. Wrong use raises
 * an error: arguments of the wrong type or out of range, options that there are not, bad names and
 * addresses.
 *
 * What is promised, and what is not, stands in `README.md`; how to use it in `doc/guide.md`.
 *
 * @module memlock
 */

/**
 * Why something failed: the third value that it returns. These strings are stable.
 *
 * @table codes
 * @field held somebody else has the lock, or this very object does
 * @field lost it was ours and is gone: said once for each acquisition
 * @field not_held there is nothing to refresh or to give up
 * @field timeout no answer in time, connecting included: the outcome is unknown
 * @field unreachable the server refused or reset the connection, or there is no such host
 * @field refused the server answered with an error, or this machine has no memory, thread or
 *   descriptor to give
 * @field unsupported the server has no compare-and-swap
 * @field conflict an update lost every race within its `wait`
 * @field cancelled the client's `sleep` returned false, which ends a wait
 * @field closed the client was closed
 */

#include "lua_memlock.h"
#include "version.h"

#if defined(__GNUC__)
#define EXPORTED __attribute__((visibility("default")))
#else
#define EXPORTED
#endif

/**
 * What a value is. It takes anything, also nothing, and never raises.
 *
 * @function type
 * @param value anything
 * @treturn ?string `"client"`, `"closed client"`, `"lock"`, or nil for anything else
 */
static int module_type(lua_State *L) {
  const struct ml_lua_client *client = luaL_testudata(L, 1, ML_LUA_CLIENT);
  if (client != NULL)
    lua_pushstring(L, client->client != NULL && !ml_client_closed(client->client)
                          ? "client"
                          : "closed client");
  else if (luaL_testudata(L, 1, ML_LUA_LOCK) != NULL)
    lua_pushliteral(L, "lock");
  else
    luaL_pushfail(L);
  return 1;
}

/**
 * Would this be accepted as the name of a lock? For names that come from data.
 *
 * A name has one byte or more of 0x21-0x7e or 0x80-0xff; with the prefix, and one byte for its
 * counter, it fits into the 250 bytes of a key of memcached.
 *
 * @function check_name
 * @tparam string name
 * @tparam[opt="memlock:"] string prefix of the client that is to use it
 * @treturn[1] boolean `true`
 * @treturn[2] nil
 * @treturn[2] string what is wrong with it
 * @raise where the prefix is wrong
 */
static int module_check_name(lua_State *L) {
  size_t length, prefix_length = 0;
  luaL_checktype(L, 1, LUA_TSTRING); /* as client:lock does: a number is no name */
  const char *name = lua_tolstring(L, 1, &length);
  const char *prefix = luaL_optlstring(L, 2, ML_DEFAULT_PREFIX, &prefix_length);
  struct ml_error error;
  if (ml_client_check_prefix(prefix, prefix_length, &error) != ML_OK)
    return ml_lua_argerror(L, 2, &error);
  if (ml_client_check_name(prefix, name, length, &error) == ML_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  luaL_pushfail(L);
  lua_pushstring(L, error.message);
  return 2;
}

/**
 * The version of memlock, such as `"0.1.0"`.
 *
 * @field _VERSION
 */

static const luaL_Reg functions[] = {
    {"client", ml_lua_client_new},
    {"sleep", ml_lua_sleep},
    {"type", module_type},
    {"check_name", module_check_name},
    {NULL, NULL},
};

EXPORTED int luaopen_memlock(lua_State *L);

int luaopen_memlock(lua_State *L) {
  ml_lua_client_setup(L);
  ml_lua_lock_setup(L);
  luaL_newlib(L, functions);
  lua_pushliteral(L, ML_VERSION);
  lua_setfield(L, -2, "_VERSION");
  return 1;
}
