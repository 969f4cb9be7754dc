/*
 * What the Lua files share. The binding checks arguments, calls client.h, and translates; it knows
 * nothing of the protocol.
 *
 * A userdata is made first, in closed state and with its metatable, and only then takes what it
 * owns, so that an error of Lua's at any point leaves nothing behind. Finalizers never wait, and
 * never raise, not even called on something else (5.3 lets the error of a finalizer hit whatever
 * code runs just then).
 */
#ifndef ML_LUA_MEMLOCK_H
#define ML_LUA_MEMLOCK_H

#include "client.h"
#include "lua_compat.h"
#include "status.h"

#define ML_LUA_CLIENT "memlock.client"
#define ML_LUA_LOCK "memlock.lock"

/* What the user value of a client's userdata, a table, has at its integer keys. */
enum {
  ML_LUA_SLEEP = 1,   /* the function that sleeps */
  ML_LUA_LOCKS = 2,   /* locks that may be lost in the background, by address; weak values */
  ML_LUA_ON_LOST = 3, /* their functions, by lock; weak keys */
};

/* A client as Lua has it. */
struct ml_lua_client {
  struct ml_client *client; /* NULL: not opened */
  double wait;              /* seconds, the default of its locks */
};

/* A lock as Lua has it. Its user value is the client's userdata. */
struct ml_lua_lock {
  struct ml_lock lock; /* lock.client is NULL while it has none */
  double wait;
  char text[]; /* of its keys */
};

struct ml_lua_client *ml_lua_checkclient(lua_State *L, int index);

/* Pauses by calling the sleep function of the client's userdata on top (which this replaces by what
 * the function returned), so that it may yield; goes on in `next`, or returns. */
void ml_lua_pause(lua_State *L, int64_t pause, lua_KContext context, lua_KFunction next);

/* Is the value on top `false`, with which a host's sleep cancels a wait? */
bool ml_lua_said_false(lua_State *L);

/* Makes the metatables; leaves nothing on the stack. */
void ml_lua_client_setup(lua_State *L);
void ml_lua_lock_setup(lua_State *L);

/* memlock.client(...), client:lock(...) and memlock.sleep(...). */
int ml_lua_client_new(lua_State *L);
int ml_lua_lock_new(lua_State *L);
int ml_lua_sleep(lua_State *L);
int ml_lua_update(lua_State *L);

/* Registers a class: methods behind a separate __index, so that no method call reaches __gc. */
void ml_lua_class(lua_State *L, const char *name, const luaL_Reg *metamethods,
                  const luaL_Reg *methods);

/* Pushes nil, message, code. */
int ml_lua_fail(lua_State *L, const struct ml_error *error);

/* Raises the message as an error of argument `arg`. */
int ml_lua_argerror(lua_State *L, int arg, const struct ml_error *error);

/* Pushes true for ML_OK, else nil, message, code. */
int ml_lua_result(lua_State *L, enum ml_status status, const struct ml_error *error);

/* Pushes who holds the lock: a table, false for nobody, or nil, message, code. */
int ml_lua_holder(lua_State *L, struct ml_client *client, const char *name, size_t length);

/* Options tables. `arg` is the argument that the table is; absent (none, nil) is an empty one. The
 * first checks that it is a table whose every key is among `names` (ended by NULL). The others read
 * one option and raise, naming it, when its type or range is wrong. */
void ml_lua_options(lua_State *L, int arg, const char *const *names);
/* Pushes the option as it is and returns its type; nil, LUA_TNIL where there is no table. */
int ml_lua_option(lua_State *L, int arg, const char *name);
const char *ml_lua_string(lua_State *L, int arg, const char *name, size_t *length);
bool ml_lua_boolean(lua_State *L, int arg, const char *name);
/* False: not given. Above 0, unless `zero`; finite, unless `infinite`. */
bool ml_lua_seconds(lua_State *L, int arg, const char *name, bool zero, bool infinite,
                    double *seconds);
bool ml_lua_ttl(lua_State *L, int arg, const char *name, int64_t *ttl);

/* Checks a number of seconds that is an argument itself, >= 0, math.huge allowed. */
double ml_lua_checkwait(lua_State *L, int arg);

#endif
