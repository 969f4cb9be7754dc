/*
 * A program that embeds Lua, such as a game: sixty times a second it calls a function of its
 * script, and each of these frames has to end in time. memlock is linked into it.
 *
 *     host SCRIPT SERVER [SECONDS [PID]]
 *
 * Runs game.lua for SECONDS (6), and says how long the longest frame took: 25 ms are allowed, not
 * counting the time for which other programs had the processor. When PID, the process id of the
 * server, is given, the server is stopped for the middle third of the time; a frame may then take
 * the timeout of one operation more. Exit code 0 if all were in time.
 *
 * Built by `make embed`; after `make install-static`, by
 *     cc host.c -o host $(pkg-config --cflags --libs memlock-lua5.4 lua5.4)
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#define FRAME (1.0 / 60)
#define ALLOWED 0.025 /* seconds that a frame may take */
#define TIMEOUT 0.1   /* and that an operation may take */

/* In libmemlock.a, all of whose other names are its own. */
int luaopen_memlock(lua_State *L);

static double now(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Seconds that this thread has waited for a processor; 0 where the system does not tell. */
static double waited(void) {
  double nanoseconds = 0;
  FILE *file = fopen("/proc/thread-self/schedstat", "re");
  if (file == NULL) return 0;
  if (fscanf(file, "%*s %lf", &nanoseconds) != 1) nanoseconds = 0;
  (void)fclose(file);
  return nanoseconds / 1e9;
}

static void sleep_until(double then) {
  double left = then - now();
  if (left <= 0) return;
  struct timespec pause = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
  (void)nanosleep(&pause, NULL);
}

static void fail(lua_State *L) {
  fprintf(stderr, "host: %s\n", lua_tostring(L, -1));
  exit(2);
}

/* A state that finds memlock by require, and no file for it. */
static lua_State *open_lua(void) {
  lua_State *L = luaL_newstate();
  if (L == NULL) abort();
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_memlock);
  lua_setfield(L, -2, "memlock");
  lua_pop(L, 1);
  return L;
}

/* Runs the script, which leaves the function of a frame, and its counts. */
static void load_script(lua_State *L, const char *script, const char *server) {
  if (luaL_loadfile(L, script) != LUA_OK) fail(L);
  lua_pushstring(L, server);
  lua_pushnumber(L, TIMEOUT);
  if (lua_pcall(L, 2, 2, 0) != LUA_OK) fail(L);
}

/* Runs frames until then; says and returns whether all were in time. */
static bool run(lua_State *L, const char *what, double then, double allowed) {
  int frames = 0;
  double longest = 0, longest_wait = 0;
  for (double next = now(); next < then; next += FRAME, frames++) {
    sleep_until(next);
    double start = now(), waited_before = waited();
    lua_pushvalue(L, -2); /* frame, counts, frame */
    lua_pushnumber(L, start);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) fail(L);
    double wait = waited() - waited_before, end = now();
    if (end - start - wait > longest) longest = end - start - wait;
    if (wait > longest_wait) longest_wait = wait;
    if (next < end - FRAME) next = end - FRAME; /* frames that were missed are left out */
  }
  lua_getfield(L, -1, "saved");
  lua_getfield(L, -2, "failed");
  printf("%s: %d frames, the longest took %.1f ms (allowed: %.0f), and up to %.1f ms without a"
         " processor; %d saves so far, %d failed\n",
         what, frames, longest * 1e3, allowed * 1e3, longest_wait * 1e3, (int)lua_tointeger(L, -2),
         (int)lua_tointeger(L, -1));
  fflush(stdout);
  lua_pop(L, 2);
  return longest <= allowed;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: host SCRIPT SERVER [SECONDS [PID]]\n");
    return 2;
  }
  double seconds = argc > 3 ? strtod(argv[3], NULL) : 6;
  pid_t server = argc > 4 ? (pid_t)strtol(argv[4], NULL, 10) : 0;
  lua_State *L = open_lua();
  load_script(L, argv[1], argv[2]);

  double start = now();
  bool good = run(L, "server up", start + seconds / 3, ALLOWED);
  if (server > 0) {
    (void)kill(server, SIGSTOP);
    good = run(L, "server stopped", start + seconds * 2 / 3, TIMEOUT + ALLOWED) && good;
    (void)kill(server, SIGCONT);
    good = run(L, "server up again", start + seconds, ALLOWED) && good;
  } else {
    good = run(L, "server still up", start + seconds, ALLOWED) && good;
  }
  lua_close(L);
  return good ? 0 : 1;
}
