/*
** host: a program that embeds Lua, for what the stock interpreter cannot do: many states in one
** process, and memory that runs out.
**
**   host run N SCRIPT ARG...    N states, one after the other, each of which runs SCRIPT
**   host keep N SCRIPT ARG...   the same while another state keeps memlock loaded
**   host once SCRIPT ARG...     a state for each n = 1, 2, ... in which the n-th allocation fails
**   host from SCRIPT ARG...     the same, with all later ones failing too until SCRIPT has ended
**
** SCRIPT gets the number of its state and the ARGs. `once` and `from` count allocations from its
** first line on, print `n status` for each state, and end with the first n that is too large to
** make anything fail. Scripts have a table `host`: heap() (bytes that malloc gave out; 0 under a
** sanitizer), rss() (bytes), fds(), all of this process. heap() is exact only with
** GLIBC_TUNABLES=glibc.malloc.tcache_count=0: malloc counts what a thread keeps as given out.
**
** Prints, of `run` and `keep`, once a tenth of the states are gone and again at the end:
** `heap= rss= fds= loaded=` (whether memlock.so is mapped between two states). Exit code 0 unless
** SCRIPT fails where no allocation did; `failed: message` then says why.
*/

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

/*
** {======================================================
** What this process uses
** =======================================================
*/

static long long heap(void) {
#ifdef __GLIBC__
  struct mallinfo2 info = mallinfo2();
  return (long long)(info.uordblks + info.hblkhd);
#else
  return 0;
#endif
}

static long long rss(void) {
  FILE *statm = fopen("/proc/self/statm", "re");
  char line[128] = "";
  if (statm == NULL || fgets(line, sizeof(line), statm) == NULL) abort();
  fclose(statm);
  char *second;
  (void)strtoll(line, &second, 10);
  return strtoll(second, NULL, 10) * (long long)sysconf(_SC_PAGESIZE);
}

static long long fds(void) {
  DIR *dir = opendir("/proc/self/fd");
  if (dir == NULL) abort();
  long long count = -1; /* the one of the directory itself */
  const struct dirent *entry;
  while ((entry = readdir(dir)) != NULL) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

static bool is_loaded(void) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (maps == NULL) abort();
  char line[8192];
  bool found = false;
  while (fgets(line, sizeof(line), maps) != NULL)
    if (strstr(line, "/memlock.so") != NULL) found = true;
  fclose(maps);
  return found;
}

static void report(void) {
  printf("heap=%lld rss=%lld fds=%lld loaded=%d\n", heap(), rss(), fds(), is_loaded());
}

static int l_heap(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)heap());
  return 1;
}

static int l_rss(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)rss());
  return 1;
}

static int l_fds(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)fds());
  return 1;
}

/* }====================================================== */

/*
** {======================================================
** Memory
** =======================================================
*/

typedef struct {
  bool armed;
  bool all_later; /* not only the n-th fails */
  long long left; /* allocations until one fails */
  long long failures;
} Memory;

static bool fails(Memory *memory) {
  if (!memory->armed) return false;
  if (memory->left > 1) {
    memory->left--;
    return false;
  }
  if (memory->left == 0 && !memory->all_later) return false;
  memory->left = 0;
  memory->failures++;
  return true;
}

/* What only shrinks never fails: Lua relies on that. */
static void *allocate(void *context, void *block, size_t old_size, size_t new_size) {
  if (new_size == 0) {
    free(block);
    return NULL;
  }
  if ((block == NULL || new_size > old_size) && fails(context)) return NULL;
  return realloc(block, new_size);
}

/* }====================================================== */

static lua_State *open_state(Memory *memory) {
  static const luaL_Reg functions[] = {
      {"heap", l_heap}, {"rss", l_rss}, {"fds", l_fds}, {NULL, NULL}};
#if LUA_VERSION_NUM >= 505
  lua_State *L = lua_newstate(allocate, memory, 0);
#else
  lua_State *L = lua_newstate(allocate, memory);
#endif
  if (L == NULL) abort();
  luaL_openlibs(L);
  luaL_newlib(L, functions);
  lua_setglobal(L, "host");
  return L;
}

/* Runs the script with (number, args...); its error message stays on the stack. */
static int run(lua_State *L, Memory *memory, char **words, long long number) {
  int status = luaL_loadfile(L, words[0]);
  if (status != LUA_OK) return status;
  lua_pushinteger(L, (lua_Integer)number);
  int count = 1;
  for (char **word = words + 1; *word != NULL; word++, count++) lua_pushstring(L, *word);
  luaL_checkstack(L, 100, NULL); /* the call below must find room without memory */
  memory->armed = memory->left > 0;
  status = lua_pcall(L, count, 0, 0);
  memory->armed = false;
  return status;
}

static int failed(lua_State *L) {
  const char *message = lua_tostring(L, -1);
  printf("failed: %s\n", message != NULL ? message : "(no message)");
  return 1;
}

static int run_many(long long count, char **words, bool keep) {
  Memory memory = {false, false, 0, 0};
  lua_State *keeper = NULL;
  if (keep) {
    keeper = open_state(&memory);
    if (luaL_dostring(keeper, "require 'memlock'") != LUA_OK) return failed(keeper);
  }
  long long warm = (count + 9) / 10;
  for (long long i = 1; i <= count; i++) {
    lua_State *L = open_state(&memory);
    if (run(L, &memory, words, i) != LUA_OK) return failed(L);
    lua_close(L);
    if (i == warm) report();
  }
  report();
  if (keeper != NULL) lua_close(keeper);
  return 0;
}

static int run_out(char **words, bool all_later) {
  for (long long n = 1;; n++) {
    Memory memory = {false, all_later, n, 0};
    lua_State *L = open_state(&memory);
    int status = run(L, &memory, words, n);
    if (memory.failures == 0) {
      int code = status == LUA_OK ? 0 : failed(L);
      lua_close(L);
      return code;
    }
    const char *message = status == LUA_OK ? "ok" : lua_tostring(L, -1);
    printf("%lld %s\n", n, message != NULL ? message : "(no message)");
    fflush(stdout);
    lua_close(L);
  }
}

int main(int argc, char **argv) {
#ifdef __GLIBC__
  (void)mallopt(M_MXFAST, 0); /* what is free is to be counted as free */
#endif
  static char output[BUFSIZ];
  (void)setvbuf(stdout, output, _IOFBF, sizeof(output)); /* or printf takes memory for one */
  if (argc >= 4 && strcmp(argv[1], "run") == 0)
    return run_many(strtoll(argv[2], NULL, 10), argv + 3, false);
  if (argc >= 4 && strcmp(argv[1], "keep") == 0)
    return run_many(strtoll(argv[2], NULL, 10), argv + 3, true);
  if (argc >= 3 && strcmp(argv[1], "once") == 0) return run_out(argv + 2, false);
  if (argc >= 3 && strcmp(argv[1], "from") == 0) return run_out(argv + 2, true);
  fprintf(stderr, "usage: host run|keep N SCRIPT ARG..., host once|from SCRIPT ARG...\n");
  return 2;
}
