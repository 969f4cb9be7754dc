/* The client class: options, names, counters. */

/** @module memlock */

#include <string.h>

#include "clock.h"
#include "lua_memlock.h"

struct ml_lua_client *ml_lua_checkclient(lua_State *L, int index) {
  struct ml_lua_client *self = ml_lua_checkself(L, index, ML_LUA_CLIENT);
  /* Only a finalizer that brought it back to life could show it like this. */
  luaL_argcheck(L, self->client != NULL, index, "the client was collected");
  return self;
}

/* memlock.client(...) */

static void add_servers(lua_State *L, int arg, int index, struct ml_servers *servers) {
  struct ml_error error;
  size_t length;
  const char *text = lua_tolstring(L, index, &length);
  if (ml_servers_add(servers, text, length, &error) != ML_OK) ml_lua_argerror(L, arg, &error);
}

/* nil, a string with commas, or a table of strings. */
static void read_servers(lua_State *L, int arg, struct ml_servers *servers) {
  struct ml_error error;
  servers->count = 0;
  switch (lua_type(L, arg)) {
  case LUA_TNONE:
  case LUA_TNIL:
    (void)ml_servers_add(servers, ML_DEFAULT_SERVER, strlen(ML_DEFAULT_SERVER), &error);
    break;
  case LUA_TSTRING:
    add_servers(L, arg, arg, servers);
    break;
  case LUA_TTABLE:
    lua_pushnil(L);
    while (lua_next(L, arg) != 0) { /* key, server */
      if (lua_type(L, -2) != LUA_TNUMBER)
        luaL_argerror(L, arg, "servers are a list of strings; options are the second argument");
      if (lua_type(L, -1) != LUA_TSTRING)
        luaL_argerror(L, arg,
                      lua_pushfstring(L, "a server is a string, not a %s", luaL_typename(L, -1)));
      add_servers(L, arg, -1, servers);
      lua_pop(L, 1);
    }
    if (servers->count == 0) luaL_argerror(L, arg, "the list of servers is empty");
    break;
  default:
    luaL_typeerror(L, arg, "string or table of servers");
  }
}

static void check_text(lua_State *L, int arg, const char *name, bool good, const char *rule) {
  if (!good) luaL_argerror(L, arg, lua_pushfstring(L, "option '%s' %s", name, rule));
}

static void read_identification(lua_State *L, int arg, struct ml_client_options *options) {
  struct ml_error error;
  size_t length;
  options->prefix = ml_lua_string(L, arg, "prefix", &length);
  if (options->prefix != NULL && ml_client_check_prefix(options->prefix, length, &error) != ML_OK)
    ml_lua_argerror(L, arg, &error);
  options->label = ml_lua_string(L, arg, "label", &length);
  check_text(L, arg, "label", options->label == NULL || ml_record_label_ok(options->label, length),
             "has up to 128 bytes and no control characters");
  options->identity = ml_lua_string(L, arg, "identity", &length);
  check_text(L, arg, "identity",
             options->identity == NULL || ml_record_id_ok(options->identity, length),
             "has 1 to 64 bytes and neither spaces nor control characters");
  options->username = ml_lua_string(L, arg, "username", &length);
  check_text(L, arg, "username",
             options->username == NULL || ml_record_id_ok(options->username, length),
             "has 1 to 64 bytes and neither spaces nor control characters");
  options->password = ml_lua_string(L, arg, "password", &length);
  check_text(L, arg, "password",
             options->password == NULL || ml_record_label_ok(options->password, length),
             "has up to 128 bytes and no control characters");
  check_text(L, arg, "username", (options->username == NULL) == (options->password == NULL),
             "and 'password' go together");
}

static void read_times(lua_State *L, int arg, struct ml_client_options *options, double *wait) {
  double seconds;
  (void)ml_lua_ttl(L, arg, "ttl", &options->ttl);
  (void)ml_lua_seconds(L, arg, "wait", true, true, wait);
  if (ml_lua_seconds(L, arg, "timeout", false, false, &seconds))
    options->timeout = ml_clock_span(seconds);
  if (ml_lua_seconds(L, arg, "retry_min", true, false, &seconds))
    options->retry_min = ml_clock_span(seconds);
  if (ml_lua_seconds(L, arg, "retry_max", false, false, &seconds))
    options->retry_max = ml_clock_span(seconds);
  if (options->retry_min > options->retry_max)
    luaL_argerror(L, arg, "option 'retry_min' is larger than 'retry_max'");
}

/* Leaves the function that sleeps on top: the option, or our own. */
static void push_sleep_option(lua_State *L, int arg) {
  if (ml_lua_option(L, arg, "sleep") == LUA_TNIL)
    lua_pushcfunction(L, ml_lua_sleep);
  else if (!lua_isfunction(L, -1))
    luaL_argerror(
        L, arg,
        lua_pushfstring(L, "option 'sleep' must be a function, got %s", luaL_typename(L, -1)));
}

static void push_weak_table(lua_State *L, const char *mode) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
}

/**
 * Options of @{client}.
 *
 * @table client_options
 * @within Options and results
 * @tfield[opt="memlock:"] string prefix before each name of a lock; up to 248 bytes, and not `#` at
 *   its beginning
 * @tfield[opt=16] number ttl seconds that an acquisition lasts unless it is refreshed: above 0, up
 *   to 28 days
 * @tfield[opt=0] number wait seconds that `acquire` goes on trying: 0 is one try, `math.huge` for
 *   ever
 * @tfield[opt=1] number timeout seconds that one operation may take: above 0
 * @tfield[opt=0] number retry_min seconds: no pause between two tries is shorter
 * @tfield[opt=10] number retry_max seconds: none is longer; above 0
 * @tfield[opt=memlock.sleep] function sleep `sleep(seconds)` makes all pauses, and may yield; when
 *   it returns false, the wait ends: `cancelled`
 * @tfield[opt="host:pid"] string label for people who ask for the holder: up to 128 bytes, no
 *   control characters
 * @tfield[opt] string identity in place of a new id for each acquisition: 1 to 64 bytes, no spaces.
 *   All that have one identity are one holder
 * @tfield[opt=false] boolean proxy the servers are proxies: each command waits for its reply
 * @tfield[opt] string username for a memcached with `-Y`; goes together with `password`
 * @tfield[opt] string password
 */

/**
 * Makes a client. Nothing is sent, and nothing looked up: the first operation connects.
 *
 * A client belongs to one thread at a time. After a `fork` the child's copy works on connections of
 * its own, and its copies of locks are not held. It gives up what it holds when it is closed, when
 * it goes out of scope as a `<close>` variable, and when it is collected.
 *
 * @function client
 * @tparam[opt="127.0.0.1:11211"] string|{string,...} servers `host`, `host:port`, `[v6]`,
 *   `[v6]:port` or `/path/of/a/socket`; a list, or one string with commas. At most 64; their order
 *   is of no account
 * @tparam[opt] client_options options
 * @treturn client
 * @raise for arguments that are wrong, and where there is no memory
 */
int ml_lua_client_new(lua_State *L) {
  static const char *const names[] = {"prefix",    "ttl",      "wait",  "timeout",  "retry_min",
                                      "retry_max", "sleep",    "label", "identity", "proxy",
                                      "username",  "password", NULL};
  struct ml_client_options options;
  lua_settop(L, 2); /* servers, options */
  ml_client_defaults(&options);
  read_servers(L, 1, &options.servers);
  ml_lua_options(L, 2, names);
  read_identification(L, 2, &options);
  double wait = 0;
  read_times(L, 2, &options, &wait);
  options.proxy = ml_lua_boolean(L, 2, "proxy");

  struct ml_lua_client *self = lua_newuserdatauv(L, sizeof *self, 1); /* self */
  *self = (struct ml_lua_client){.wait = wait};
  luaL_setmetatable(L, ML_LUA_CLIENT);
  lua_createtable(L, 3, 0); /* servers, options, self, its table */
  push_sleep_option(L, 2);
  lua_rawseti(L, 4, ML_LUA_SLEEP);
  push_weak_table(L, "v");
  lua_rawseti(L, 4, ML_LUA_LOCKS);
  push_weak_table(L, "k");
  lua_rawseti(L, 4, ML_LUA_ON_LOST);
  lua_settop(L, 4);
  lua_setiuservalue(L, 3, 1); /* servers, options, self */

  struct ml_error error;
  self->client = ml_client_open(&options, &error);
  if (self->client == NULL) return luaL_error(L, "%s", error.message);
  return 1;
}

/**
 * A client: servers, options, and the locks that were made of it. `tostring` gives its first server
 * and how many locks it holds.
 *
 * @type client
 */

static const char *check_name(lua_State *L, struct ml_client *client, int arg, size_t *length) {
  luaL_checktype(L, arg, LUA_TSTRING);
  const char *name = lua_tolstring(L, arg, length);
  struct ml_error error;
  if (ml_client_check_name(ml_client_prefix(client), name, *length, &error) != ML_OK)
    ml_lua_argerror(L, arg, &error);
  return name;
}

/**
 * Asks the server who holds a lock.
 *
 * @function client:holder
 * @tparam string name of the lock
 * @treturn[1] holder
 * @treturn[2] boolean `false`: it is free
 * @fails timeout, unreachable, refused, unsupported, closed
 */
static int client_holder(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  size_t length;
  const char *name = check_name(L, self->client, 2, &length);
  return ml_lua_holder(L, self->client, name, length);
}

/**
 * Removes exactly what `holder` returned, by compare-and-swap: if anybody has written since,
 * nothing happens. For operators who know that the holder is dead. One that lives notices at its
 * next refresh, and is not stopped by this: where that matters, wait for the end of its ttl.
 *
 * @function client:break_lock
 * @tparam string name of the lock
 * @tparam holder holder what @{client:holder} returned (its `value` is what counts)
 * @treturn[1] boolean `true`
 * @fails held (it was renewed or taken by another meanwhile, and is untouched), not_held (it is
 *   free), timeout, unreachable, refused, unsupported, closed
 */
static int client_break_lock(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  size_t length, value_length;
  const char *name = check_name(L, self->client, 2, &length);
  luaL_checktype(L, 3, LUA_TTABLE);
  if (lua_getfield(L, 3, "value") != LUA_TSTRING)
    return luaL_argerror(L, 3, "a table that holder() returned is needed");
  const char *value = lua_tolstring(L, -1, &value_length);
  luaL_argcheck(L, value_length > 0, 3, "its value is empty, which nobody holds");
  struct ml_error error;
  enum ml_status status = ml_client_break(self->client, name, length, value, value_length, &error);
  return ml_lua_result(L, status, &error);
}

/**
 * What @{client:stats} returns. All count from the making of the client.
 *
 * @table stats
 * @within Options and results
 * @tfield integer attempts tries to acquire
 * @tfield integer acquired tries that did
 * @tfield integer contended tries that found another holder
 * @tfield integer refreshed by `refresh`
 * @tfield integer released by `release`, at the end of a scope or of the client
 * @tfield integer lost acquisitions that an operation found to be lost
 * @tfield integer errors operations that ended in `timeout`, `unreachable`, `refused` or
 *   `unsupported`
 * @tfield integer round_trips to any server, those in the background included
 * @tfield number waited seconds of pauses between tries
 * @tfield integer passes of the thread that renews: flights that renew all locks of a server that
 *   are due
 * @tfield integer renewals that it made
 * @tfield integer failures of renewals, which it then tried again
 * @tfield integer losses that it found
 * @tfield number longest_delay seconds that a renewal began later than it was due
 */

/**
 * Counters, for graphs and for the curious.
 *
 * @function client:stats
 * @treturn stats
 */
static int client_stats(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  struct ml_stats stats;
  ml_client_stats(self->client, &stats);
  const struct {
    const char *name;
    uint64_t count;
  } counters[] = {
      {"attempts", stats.attempts},
      {"acquired", stats.acquired},
      {"contended", stats.contended},
      {"refreshed", stats.refreshed},
      {"lost", stats.lost},
      {"released", stats.released},
      {"errors", stats.errors},
      {"round_trips", stats.round_trips},
      {"passes", stats.keeper.passes},
      {"renewals", stats.keeper.renewals},
      {"failures", stats.keeper.failures},
      {"losses", stats.keeper.losses},
  };
  const size_t count = sizeof counters / sizeof counters[0];
  lua_createtable(L, 0, (int)count + 2);
  for (size_t i = 0; i < count; i++) {
    lua_pushinteger(L, (lua_Integer)counters[i].count);
    lua_setfield(L, -2, counters[i].name);
  }
  lua_pushnumber(L, ml_clock_seconds(stats.waited));
  lua_setfield(L, -2, "waited");
  lua_pushnumber(L, ml_clock_seconds(stats.keeper.longest_delay));
  lua_setfield(L, -2, "longest_delay");
  return 1;
}

/**
 * A descriptor for event loops: readable when a lock was lost in the background, and @{client:poll}
 * has something to do. It is the client's, and the same each time: watch it, do not read or close
 * it.
 *
 * @function client:fd
 * @treturn[1] integer
 * @fails refused (no descriptor to be had), closed
 */
static int client_fd(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  struct ml_error error;
  int descriptor = ml_client_fd(self->client, &error);
  if (descriptor < 0) return ml_lua_fail(L, &error);
  lua_pushinteger(L, descriptor);
  return 1;
}

/* Pushes the on_lost of the lock at this address, and the lock; nil for what is not there. */
static void push_lost(lua_State *L, const struct ml_lock *lock) {
  lua_getiuservalue(L, 1, 1); /* client, its table */
  lua_rawgeti(L, 2, ML_LUA_ON_LOST);
  lua_rawgeti(L, 2, ML_LUA_LOCKS);
  lua_rawgetp(L, 4, lock); /* client, table, functions, locks, lock */
  lua_pushvalue(L, 5);
  if (!lua_isnil(L, 5)) lua_rawget(L, 3); /* ..., lock, on_lost */
  lua_insert(L, 5);
}

/* Goes on with the next loss; `calls` have been made. on_lost may yield. */
static int poll_step(lua_State *L, int status, lua_KContext calls) {
  (void)status;
  for (;;) {
    struct ml_lua_client *self = ml_lua_checkclient(L, 1);
    char message[512];
    lua_settop(L, 1);
    const struct ml_lock *lock = ml_client_next_lost(self->client, message, sizeof message);
    if (lock == NULL) break;
    push_lost(L, lock);
    if (lua_isnil(L, -2)) continue; /* nobody wants to know */
    lua_pushstring(L, message);
    lua_callk(L, 2, 0, ++calls, poll_step);
  }
  lua_pushinteger(L, (lua_Integer)calls);
  return 1;
}

/**
 * Calls the `on_lost` of the locks that were lost in the background since the last time, in the
 * order of their loss. It sends nothing. An error in one passes through, and the others are called
 * by the next `poll`.
 *
 * @function client:poll
 * @treturn integer number of calls made
 */
static int client_poll(lua_State *L) {
  (void)ml_lua_checkclient(L, 1);
  return poll_step(L, LUA_OK, 0);
}

static void set_integer(lua_State *L, const char *key, int64_t value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, key);
}

static void set_boolean(lua_State *L, const char *key, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, key);
}

/* Adds what is known of a server, and what makes it unfit, to the table on top. */
static void set_facts(lua_State *L, const struct ml_facts *facts) {
  struct ml_findings findings;
  ml_fitness(facts, &findings);
  set_boolean(L, "fit", findings.count == 0);
  lua_createtable(L, (int)findings.count, 0);
  for (size_t i = 0; i < findings.count; i++) {
    lua_pushstring(L, findings.text[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "findings");
  set_boolean(L, "cas", facts->has_cas);
  set_boolean(L, "proxy", facts->is_proxy);
  lua_pushnumber(L, ml_clock_seconds(facts->round_trip));
  lua_setfield(L, -2, "round_trip");
  if (!facts->tells) return;
  lua_pushstring(L, facts->version);
  lua_setfield(L, -2, "version");
  set_integer(L, "uptime", facts->uptime);
  set_integer(L, "clock_offset", facts->clock_offset);
  set_boolean(L, "evicting", facts->evicts);
  set_integer(L, "evictions", (int64_t)facts->evictions);
  set_integer(L, "memory_limit", (int64_t)facts->limit);
  set_integer(L, "memory_used", (int64_t)facts->used);
}

/* The same for one that could not be asked. */
static void set_failure(lua_State *L, const struct ml_error *error) {
  set_boolean(L, "fit", false);
  lua_createtable(L, 1, 0);
  lua_pushfstring(L, "It could not be asked: %s.", error->message);
  lua_rawseti(L, -2, 1);
  lua_setfield(L, -2, "findings");
  lua_pushstring(L, error->message);
  lua_setfield(L, -2, "message");
  lua_pushstring(L, ml_status_code(error->status));
  lua_setfield(L, -2, "code");
}

/**
 * What @{client:check} tells of a server. Where it could not be asked, there are only `server`,
 * `fit`, `findings`, `message` and `code`; where it does not tell what a memcached tells, as a
 * proxy does not, all that comes from its statistics is missing.
 *
 * @table server
 * @within Options and results
 * @tfield string server its address
 * @tfield boolean fit nothing speaks against locks there
 * @tfield {string,...} findings what does: sentences, none for a fit one
 * @tfield boolean cas a compare-and-swap was tried, and worked
 * @tfield boolean proxy it does not tell what a memcached tells
 * @tfield number round_trip seconds of one read
 * @tfield ?string version by `stats`
 * @tfield ?integer uptime seconds, by `stats`
 * @tfield ?integer clock_offset its wall clock minus ours, in whole seconds, by `stats`
 * @tfield ?boolean evicting it drops items when memory is short (no `-M`), by `stats settings`
 * @tfield ?integer evictions items that it dropped so far, by `stats`
 * @tfield ?integer memory_limit bytes, by `stats`
 * @tfield ?integer memory_used bytes, by `stats`
 * @tfield ?string message why it could not be asked
 * @tfield ?string code the same for programs: one of the @{codes}
 */

/**
 * Are the servers fit for locks? Asks each of them, and tries a compare-and-swap on a key of its
 * own.
 *
 * @function client:check
 * @treturn[1] {server,...} one for each server, in the order of their addresses
 * @fails closed
 */
static int client_check(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  const struct ml_servers *servers = ml_client_servers(self->client);
  lua_createtable(L, (int)servers->count, 0);
  for (size_t i = 0; i < servers->count; i++) {
    struct ml_facts facts;
    struct ml_error error;
    enum ml_status status = ml_client_inspect(self->client, i, &facts, &error);
    if (status == ML_CLOSED) return ml_lua_fail(L, &error);
    lua_createtable(L, 0, 12); /* servers, server */
    lua_pushstring(L, servers->list[i].text);
    lua_setfield(L, -2, "server");
    if (status == ML_OK)
      set_facts(L, &facts);
    else
      set_failure(L, &error);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/**
 * Gives up all that it holds, within one `timeout` in all, and ends. What could not be given up
 * ends with its ttl. A second call does nothing.
 *
 * @function client:close
 * @treturn boolean `true`
 */
static int client_close(lua_State *L) {
  struct ml_lua_client *self = ml_lua_checkclient(L, 1);
  (void)ml_client_close(self->client);
  lua_pushboolean(L, 1);
  return 1;
}

/* Metamethods. */

static int client_tostring(lua_State *L) {
  const struct ml_lua_client *self = luaL_checkudata(L, 1, ML_LUA_CLIENT);
  if (self->client == NULL || ml_client_closed(self->client)) {
    lua_pushliteral(L, "memlock.client (closed)");
    return 1;
  }
  const struct ml_servers *servers = ml_client_servers(self->client);
  size_t others = servers->count - 1;
  lua_pushfstring(L, "memlock.client (%s", servers->list[0].text);
  if (others > 0) lua_pushfstring(L, " and %d more", (int)others);
  lua_pushfstring(L, ", %d held)", (int)ml_client_held_count(self->client));
  lua_concat(L, others > 0 ? 3 : 2);
  return 1;
}

static int client_end(lua_State *L) {
  struct ml_lua_client *self = luaL_checkudata(L, 1, ML_LUA_CLIENT);
  if (self->client != NULL) (void)ml_client_close(self->client);
  return 0;
}

static int client_gc(lua_State *L) {
  struct ml_lua_client *self = luaL_testudata(L, 1, ML_LUA_CLIENT);
  if (self == NULL) return 0;
  struct ml_client *client = self->client;
  self->client = NULL;
  if (client != NULL) ml_client_abandon(client);
  return 0;
}

void ml_lua_client_setup(lua_State *L) {
  static const luaL_Reg metamethods[] = {
      {"__gc", client_gc},
      {"__close", client_end},
      {"__tostring", client_tostring},
      {NULL, NULL},
  };
  static const luaL_Reg methods[] = {
      {"lock", ml_lua_lock_new},
      {"holder", client_holder},
      {"break_lock", client_break_lock},
      {"update", ml_lua_update},
      {"stats", client_stats},
      {"close", client_close},
      {"check", client_check},
      {"fd", client_fd},
      {"poll", client_poll},
      {NULL, NULL},
  };
  ml_lua_class(L, ML_LUA_CLIENT, metamethods, methods);
}
