/* What differs between the Lua versions that memlock is built for, in one place. */
#ifndef ML_LUA_COMPAT_H
#define ML_LUA_COMPAT_H

#include <lauxlib.h>
#include <lua.h>

#if !defined(LUA_VERSION_NUM) || LUA_VERSION_NUM < 504 || LUA_VERSION_NUM > 505
#error "memlock needs Lua 5.4 or 5.5: set LUA_INCDIR to the folder of its lua.h"
#endif

#endif
