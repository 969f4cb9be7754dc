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
#include <stdbool.h>

#if !defined(LUA_VERSION_NUM) || LUA_VERSION_NUM < 503 || LUA_VERSION_NUM > 505
#error "memlock needs Lua 5.3, 5.4 or 5.5: set LUA_INCDIR to the folder of its lua.h"
#endif

/* Did a call end in an error, and not because a coroutine yielded in between? */
static inline bool ml_lua_iserror(int status) { return status != LUA_OK && status != LUA_YIELD; }

#if LUA_VERSION_NUM >= 504

/* Calls the function that is below `arguments` values, for all its results, and goes on in
 * next(L, status, 0), as with lua_callk. When the call ends in an error, or its coroutine is
 * closed, the value below the function is closed by its __close, and the error passes on; the
 * caller's message handler sees the stack of where it happened. */
static inline int ml_lua_callclosing(lua_State *L, int arguments, lua_KFunction next) {
  lua_toclose(L, -arguments - 2);
  lua_callk(L, arguments, LUA_MULTRET, 0, next);
  return next(L, LUA_OK, 0);
}

#else

/* The same by a protected call: after an error, `next` itself has to close the value, and to raise
 * the error that is on top. The message handler runs after that, and sees the stack of there. */
static inline int ml_lua_callclosing(lua_State *L, int arguments, lua_KFunction next) {
  return next(L, lua_pcallk(L, arguments, LUA_MULTRET, 0, 0, next), 0);
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
