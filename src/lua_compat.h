/*
 * What differs between the Lua versions that memlock is built for, in one place. The binding is
 * written for 5.4, and 5.5 has all that it uses; for 5.3 this makes up what is missing.
 *
 * Lua 5.3 has no to-be-closed variables: it never calls __close, and a coroutine that nobody goes
 * on with is ended by the collector alone.
 */
#ifndef ML_LUA_COMPAT_H
#define ML_LUA_COMPAT_H

#include <lauxlib.h>
#include <lua.h>

#if !defined(LUA_VERSION_NUM) || LUA_VERSION_NUM < 503 || LUA_VERSION_NUM > 505
#error "memlock needs Lua 5.3, 5.4 or 5.5: set LUA_INCDIR to the folder of its lua.h"
#endif

#if LUA_VERSION_NUM >= 504

/* Calls the function that is below `arguments` values, for all its results, and goes on in
 * next(L, status, 0), as with lua_callk. When the call ends in an error, or its coroutine is
 * closed, the value below the function is closed (by its __close), and the error passes on; the
 * caller's message handler sees the stack of where it happened. */
static inline int ml_lua_callclosing(lua_State *L, int arguments, lua_KFunction next) {
  lua_toclose(L, -arguments - 2);
  lua_callk(L, arguments, LUA_MULTRET, 0, next);
  return next(L, LUA_OK, 0);
}

#else

/* The same by a protected call: the value is closed at once, also when a coroutine dies of the
 * error; the message handler runs after that, and sees the stack of where the error was raised
 * again. */
static inline int ml_lua_callended(lua_State *L, int status, lua_KContext next) {
  if (status == LUA_OK || status == LUA_YIELD) return ((lua_KFunction)next)(L, status, 0);
  if (luaL_callmeta(L, -2, "__close")) lua_pop(L, 1); /* value, error */
  return lua_error(L);
}

static inline int ml_lua_callclosing(lua_State *L, int arguments, lua_KFunction next) {
  lua_KContext context = (lua_KContext)next;
  int status = lua_pcallk(L, arguments, LUA_MULTRET, 0, context, ml_lua_callended);
  return ml_lua_callended(L, status, context);
}

#define luaL_pushfail(L) lua_pushnil(L)

/* A userdata has one user value, of any type. */
#define lua_newuserdatauv(L, size, count) lua_newuserdata(L, size)
#define lua_setiuservalue(L, index, n) lua_setuservalue(L, index)
#define lua_getiuservalue(L, index, n) lua_getuservalue(L, index)

static inline int luaL_typeerror(lua_State *L, int arg, const char *expected) {
  const char *got = luaL_typename(L, arg);
  if (luaL_getmetafield(L, arg, "__name") == LUA_TSTRING)
    got = lua_tostring(L, -1);
  else if (lua_type(L, arg) == LUA_TLIGHTUSERDATA)
    got = "light userdata";
  return luaL_argerror(L, arg, lua_pushfstring(L, "%s expected, got %s", expected, got));
}

#endif

#endif
