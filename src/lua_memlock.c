/* The module: luaopen_memlock and its functions. */
#include "lua_memlock.h"
#include "version.h"

#if defined(__GNUC__)
#define EXPORTED __attribute__((visibility("default")))
#else
#define EXPORTED
#endif

/* memlock.type(x): "client", "closed client", "lock", or nil for anything else. Never raises. */
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

/* memlock.check_name(name [, prefix]): true, or nil and what is wrong, for names that come from
 * data. */
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
