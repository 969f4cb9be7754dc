/*
** memlock_posix: the system calls that the specs need and Lua lacks.
**
** Test support only; it is neither installed nor linked into memlock. Linux.
**
** A failure of the environment returns nil, message, errno; wrong use raises.
** Calls that a signal interrupts go on, within the time that they were given.
** Every descriptor made here is close-on-exec.
*/

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lua_compat.h"

#define MAX_READ (1 << 20)
#define MAX_SECONDS 1e9
#define FIRST_SPARE_FD 10

int luaopen_memlock_posix(lua_State *L);

static const struct {
  const char *name;
  int number;
} signals[] = {
    {"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT},   {"ILL", SIGILL},   {"ABRT", SIGABRT},
    {"BUS", SIGBUS},   {"FPE", SIGFPE},   {"KILL", SIGKILL},   {"SEGV", SIGSEGV}, {"PIPE", SIGPIPE},
    {"ALRM", SIGALRM}, {"TERM", SIGTERM}, {"USR1", SIGUSR1},   {"USR2", SIGUSR2}, {"CHLD", SIGCHLD},
    {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"TSTP", SIGTSTP},   {"TTIN", SIGTTIN}, {"TTOU", SIGTTOU},
    {"URG", SIGURG},   {"IO", SIGIO},     {"WINCH", SIGWINCH},
};

#define SIGNAL_COUNT (sizeof(signals) / sizeof(signals[0]))

static volatile sig_atomic_t caught[NSIG];

/*
** {======================================================
** Arguments and results
** =======================================================
*/

/* errno is taken first: Lua may change it. */
static int fail(lua_State *L, const char *what) {
  int error = errno;
  luaL_pushfail(L);
  lua_pushfstring(L, "%s: %s", what, strerror(error));
  lua_pushinteger(L, error);
  return 3;
}

static int done(lua_State *L, int result, const char *what) {
  if (result < 0) return fail(L, what);
  lua_pushboolean(L, 1);
  return 1;
}

static int check_int(lua_State *L, int arg) {
  lua_Integer n = luaL_checkinteger(L, arg);
  luaL_argcheck(L, n >= INT_MIN && n <= INT_MAX, arg, "out of range");
  return (int)n;
}

static int check_fd(lua_State *L, int arg) {
  int fd = check_int(L, arg);
  luaL_argcheck(L, fd >= 0, arg, "not a descriptor");
  return fd;
}

static double check_seconds(lua_State *L, int arg) {
  double seconds = luaL_checknumber(L, arg);
  luaL_argcheck(L, seconds >= 0 && seconds <= MAX_SECONDS, arg, "not a time in seconds");
  return seconds;
}

static int check_signal(lua_State *L, int arg) {
  if (lua_type(L, arg) == LUA_TNUMBER) {
    lua_Integer number = luaL_checkinteger(L, arg);
    luaL_argcheck(L, number >= 0 && number < NSIG, arg, "no such signal");
    return (int)number;
  }
  const char *name = luaL_checkstring(L, arg);
  for (size_t i = 0; i < SIGNAL_COUNT; i++)
    if (strcmp(name, signals[i].name) == 0) return signals[i].number;
  return luaL_argerror(L, arg, lua_pushfstring(L, "unknown signal '%s'", name));
}

static double monotonic(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct timespec to_timespec(double seconds) {
  struct timespec t;
  double whole = floor(seconds);
  t.tv_sec = (time_t)whole;
  t.tv_nsec = (long)((seconds - whole) * 1e9);
  return t;
}

/* }====================================================== */

/*
** {======================================================
** Processes
** =======================================================
*/

/* fork() -> pid, or 0 in the child */
static int l_fork(lua_State *L) {
  pid_t pid = fork();
  if (pid < 0) return fail(L, "fork");
  lua_pushinteger(L, pid);
  return 1;
}

/* _exit(code): ends at once; no finalizer, no flush */
static int l_exit(lua_State *L) {
  _exit(check_int(L, 1));
  return 0;
}

static int l_getpid(lua_State *L) {
  lua_pushinteger(L, getpid());
  return 1;
}

static int l_getppid(lua_State *L) {
  lua_pushinteger(L, getppid());
  return 1;
}

/* setpgid(pid, group) -> true; 0 is this process, or a group of its own */
static int l_setpgid(lua_State *L) {
  if (setpgid(check_int(L, 1), check_int(L, 2)) < 0) return fail(L, "setpgid");
  lua_pushboolean(L, 1);
  return 1;
}

static int push_status(lua_State *L, int status) {
  if (WIFSIGNALED(status)) {
    lua_pushliteral(L, "signal");
    lua_pushinteger(L, WTERMSIG(status));
  } else {
    lua_pushliteral(L, "exit");
    lua_pushinteger(L, WEXITSTATUS(status));
  }
  return 2;
}

/*
** waitpid(pid [, seconds]) -> "exit" | "signal", code, pid
** Without a time it waits for the end; after the time: nil, message, ETIMEDOUT.
*/
static int l_waitpid(lua_State *L) {
  pid_t pid = check_int(L, 1);
  int bounded = !lua_isnoneornil(L, 2);
  double deadline = bounded ? monotonic() + check_seconds(L, 2) : 0;
  const struct timespec nap = {0, 500000};
  for (;;) {
    int status;
    pid_t got = waitpid(pid, &status, bounded ? WNOHANG : 0);
    if (got > 0) {
      push_status(L, status);
      lua_pushinteger(L, got);
      return 3;
    }
    if (got < 0 && errno != EINTR) return fail(L, "waitpid");
    if (got == 0) {
      if (monotonic() >= deadline) {
        errno = ETIMEDOUT;
        return fail(L, "waitpid");
      }
      nanosleep(&nap, NULL);
    }
  }
}

/* kill(pid, signal): a negative pid is a process group */
static int l_kill(lua_State *L) {
  pid_t pid = check_int(L, 1);
  int number = check_signal(L, 2);
  luaL_argcheck(L, pid != 0 && pid != -1, 1, "would hit processes that no spec started");
  return done(L, kill(pid, number), "kill");
}

/* pdeathsig(signal): what this process gets when its parent ends */
static int l_pdeathsig(lua_State *L) {
  int number = check_signal(L, 1);
  return done(L, prctl(PR_SET_PDEATHSIG, (unsigned long)number, 0UL, 0UL, 0UL), "prctl");
}

/* }====================================================== */

/*
** {======================================================
** spawn
** =======================================================
*/

typedef struct {
  char **argv;
  char **envp;
  const char *cwd;
  int fds[3];           /* -1: as ours */
  const char *paths[3]; /* opened in the child, when not NULL */
  int death_signal;
  int new_group;
  int new_session;
  int inherit;
} Spawn;

/* the first three by number of the descriptor */
static const char *const spawn_keys[] = {"stdin",     "stdout",   "stderr",     "env",     "cwd",
                                         "pdeathsig", "newgroup", "newsession", "inherit", NULL};

static void check_spawn_keys(lua_State *L) {
  lua_pushnil(L);
  while (lua_next(L, 1)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TNUMBER) continue;
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, 1, "keys are names or positions");
    const char *key = lua_tostring(L, -1);
    int known = 0;
    for (size_t i = 0; spawn_keys[i] != NULL; i++) known |= strcmp(key, spawn_keys[i]) == 0;
    if (!known) luaL_argerror(L, 1, lua_pushfstring(L, "unknown key '%s'", key));
  }
}

static void spawn_stream(lua_State *L, Spawn *s, int i) {
  s->fds[i] = -1;
  s->paths[i] = NULL;
  int type = lua_getfield(L, 1, spawn_keys[i]);
  if (type == LUA_TSTRING)
    s->paths[i] = lua_tostring(L, -1);
  else if (type != LUA_TNIL)
    s->fds[i] = check_fd(L, -1);
  lua_pop(L, 1);
}

/* exec takes pointers to what it could write to, and never writes. */
static char *argument(const char *text) {
  char *same;
  memcpy(&same, &text, sizeof(same));
  return same;
}

/* Leaves one userdata on the stack, which owns the array; the strings stay anchored in the
 * argument. */
static char **spawn_argv(lua_State *L) {
  lua_Integer n = luaL_len(L, 1);
  luaL_argcheck(L, n >= 1 && n < 4096, 1, "the program and its arguments expected");
  char **argv = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof(*argv), 0);
  for (lua_Integer i = 1; i <= n; i++) {
    luaL_argcheck(L, lua_geti(L, 1, i) == LUA_TSTRING, 1, "arguments must be strings");
    argv[i - 1] = argument(lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  argv[n] = NULL;
  return argv;
}

/* Our environment with the changes of table `env` (a string sets, false removes). Leaves two
 * values, its owners. */
static char **spawn_envp(lua_State *L) {
  if (lua_getfield(L, 1, "env") == LUA_TNIL) {
    lua_pushnil(L);
    return environ;
  }
  luaL_argcheck(L, lua_istable(L, -1), 1, "env must be a table");
  int env = lua_gettop(L);
  size_t room = 1;
  for (char **e = environ; *e != NULL; e++) room++;
  lua_pushnil(L);
  while (lua_next(L, env)) {
    luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING, 1, "names in env must be strings");
    luaL_argcheck(L,
                  lua_type(L, -1) == LUA_TSTRING || (lua_isboolean(L, -1) && !lua_toboolean(L, -1)),
                  1, "values in env must be strings or false");
    lua_pop(L, 1);
    room++;
  }
  lua_newtable(L); /* keeps the strings made here */
  int anchor = lua_gettop(L);
  char **envp = lua_newuserdatauv(L, room * sizeof(*envp), 0);
  size_t n = 0;
  for (char **e = environ; *e != NULL; e++) {
    const char *sign = strchr(*e, '=');
    if (sign == NULL) continue;
    lua_pushlstring(L, *e, (size_t)(sign - *e));
    if (lua_rawget(L, env) == LUA_TNIL) envp[n++] = *e;
    lua_pop(L, 1);
  }
  lua_pushnil(L);
  while (lua_next(L, env)) {
    if (lua_type(L, -1) == LUA_TSTRING) {
      lua_pushfstring(L, "%s=%s", lua_tostring(L, -2), lua_tostring(L, -1));
      envp[n++] = argument(lua_tostring(L, -1));
      lua_rawseti(L, anchor, (lua_Integer)n);
    }
    lua_pop(L, 1);
  }
  envp[n] = NULL;
  lua_rotate(L, env, -1);
  lua_pop(L, 1); /* the table env is held by the argument */
  return envp;
}

/* In the child: only calls that are safe after fork. Returns only on failure, with errno. */
static void spawn_exec(const Spawn *s, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  if (s->new_group && setpgid(0, 0) < 0) return;
  if (s->new_session && setsid() < 0) return;
  if (s->death_signal != 0) {
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)s->death_signal, 0UL, 0UL, 0UL) < 0) return;
    if (getppid() != parent) _exit(127);
  }
  if (s->cwd != NULL && chdir(s->cwd) < 0) return;
  int spare[3];
  for (int i = 0; i < 3; i++) {
    int fd = s->paths[i] == NULL ? s->fds[i] : open(s->paths[i], O_RDWR | O_CLOEXEC);
    spare[i] = fd;
    if (fd < 0 && s->paths[i] != NULL) return;
    /* first out of the way: a given descriptor may be 0, 1 or 2 itself */
    if (fd >= 0 && (spare[i] = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_SPARE_FD)) < 0) return;
  }
  for (int i = 0; i < 3; i++)
    if (spare[i] >= 0 && dup2(spare[i], i) < 0) return;
  if (!s->inherit) (void)close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
  execvpe(s->argv[0], s->argv, s->envp);
}

/*
** spawn{program, argument..., stdin=, stdout=, stderr=, env=, cwd=, pdeathsig=, newgroup=,
** newsession=, inherit=} -> pid
** stdin, stdout, stderr: a descriptor, or the path of a file that is there, opened to read and
** write; default: as ours. env: what is different from our environment, a string sets a variable
** and false removes it. pdeathsig: the signal it gets when we end. newgroup: its process group is
** its own. newsession: so is its session, and a terminal among its files is the session's. Only the
*three descriptors reach the program, unless `inherit` is true (then those do
** that are not close-on-exec). A program that cannot be run is a failure of spawn.
*/
static int l_spawn(lua_State *L) {
  Spawn s;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  check_spawn_keys(L);
  for (int i = 0; i < 3; i++) spawn_stream(L, &s, i);
  lua_getfield(L, 1, "newgroup");
  s.new_group = lua_toboolean(L, -1);
  lua_getfield(L, 1, "newsession");
  s.new_session = lua_toboolean(L, -1);
  lua_getfield(L, 1, "inherit");
  s.inherit = lua_toboolean(L, -1);
  lua_getfield(L, 1, "pdeathsig");
  s.death_signal = lua_isnil(L, -1) ? 0 : check_signal(L, -1);
  lua_getfield(L, 1, "cwd");
  s.cwd = lua_isnil(L, -1) ? NULL : luaL_checkstring(L, -1);
  s.argv = spawn_argv(L);
  s.envp = spawn_envp(L);

  int report[2];
  if (pipe2(report, O_CLOEXEC) < 0) return fail(L, "pipe");
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid == 0) {
    spawn_exec(&s, parent);
    int error = errno;
    ssize_t written = write(report[1], &error, sizeof(error));
    _exit(written < 0 ? 126 : 127);
  }
  int error = pid < 0 ? errno : 0;
  close(report[1]);
  if (pid > 0) {
    ssize_t got;
    do got = read(report[0], &error, sizeof(error));
    while (got < 0 && errno == EINTR);
    if (got > 0)
      while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    else
      error = 0;
  }
  close(report[0]);
  if (error != 0) {
    errno = error;
    return fail(L, s.argv[0]);
  }
  lua_pushinteger(L, pid);
  return 1;
}

/* }====================================================== */

/*
** {======================================================
** Descriptors
** =======================================================
*/

/* pipe() -> read end, write end */
static int l_pipe(lua_State *L) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) return fail(L, "pipe");
  lua_pushinteger(L, ends[0]);
  lua_pushinteger(L, ends[1]);
  return 2;
}

/* openpty() -> the master's descriptor, the path of the terminal */
static int l_openpty(lua_State *L) {
  int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char path[PATH_MAX];
  if (fd < 0) return fail(L, "posix_openpt");
  if (grantpt(fd) < 0 || unlockpt(fd) < 0 || ptsname_r(fd, path, sizeof(path)) != 0) {
    int results = fail(L, "terminal");
    close(fd);
    return results;
  }
  lua_pushinteger(L, fd);
  lua_pushstring(L, path);
  return 2;
}

/* tcgetpgrp(fd) -> the process group in the foreground of a terminal, by either end */
static int l_tcgetpgrp(lua_State *L) {
  pid_t group = tcgetpgrp(check_fd(L, 1));
  if (group < 0) return fail(L, "tcgetpgrp");
  lua_pushinteger(L, group);
  return 1;
}

/* 1 = something to read (or the end), 0 = the time is over, -1 = errno */
static int await(struct pollfd *set, nfds_t count, double seconds) {
  double deadline = monotonic() + seconds;
  for (;;) {
    double rest = fmax(0, deadline - monotonic());
    struct timespec t = to_timespec(rest);
    int n = ppoll(set, count, &t, NULL);
    if (n >= 0 || errno != EINTR) return n > 0 ? 1 : n;
  }
}

/* read(fd, n [, seconds]) -> up to n bytes, "" at the end; after the time: nil, message, ETIMEDOUT
 */
static int l_read(lua_State *L) {
  int fd = check_fd(L, 1);
  lua_Integer n = luaL_checkinteger(L, 2);
  luaL_argcheck(L, n > 0 && n <= MAX_READ, 2, "out of range");
  if (!lua_isnoneornil(L, 3)) {
    struct pollfd set = {fd, POLLIN, 0};
    int ready = await(&set, 1, check_seconds(L, 3));
    if (ready == 0) errno = ETIMEDOUT;
    if (ready <= 0) return fail(L, "read");
  }
  luaL_Buffer b;
  char *space = luaL_buffinitsize(L, &b, (size_t)n);
  ssize_t got;
  do got = read(fd, space, (size_t)n);
  while (got < 0 && errno == EINTR);
  if (got < 0) return fail(L, "read");
  luaL_pushresultsize(&b, (size_t)got);
  return 1;
}

/* write(fd, s) -> true when all of it is written. A closed pipe is EPIPE, not the end of the
 * process. */
static int l_write(lua_State *L) {
  int fd = check_fd(L, 1);
  size_t left;
  const char *at = luaL_checklstring(L, 2, &left);
  struct sigaction ignore, before;
  memset(&ignore, 0, sizeof(ignore));
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  ssize_t put = 0;
  while (left > 0) {
    put = write(fd, at, left);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) break;
    at += put;
    left -= (size_t)put;
  }
  int error = errno;
  sigaction(SIGPIPE, &before, NULL);
  errno = error;
  return done(L, put < 0 ? -1 : 0, "write");
}

static int l_close(lua_State *L) { return done(L, close(check_fd(L, 1)), "close"); }

/* dup2(from, to) */
static int l_dup2(lua_State *L) { return done(L, dup2(check_fd(L, 1), check_fd(L, 2)), "dup2"); }

/* poll({fd...}, seconds) -> list of those with something to read or at their end */
static int l_poll(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  double seconds = check_seconds(L, 2);
  lua_Integer n = luaL_len(L, 1);
  luaL_argcheck(L, n >= 0 && n <= 1024, 1, "too many descriptors");
  struct pollfd *set = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof(*set), 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_geti(L, 1, i + 1);
    set[i].fd = check_fd(L, -1);
    set[i].events = POLLIN;
    lua_pop(L, 1);
  }
  if (await(set, (nfds_t)n, seconds) < 0) return fail(L, "poll");
  lua_newtable(L);
  lua_Integer ready = 0;
  for (lua_Integer i = 0; i < n; i++) {
    if (set[i].revents != 0) {
      lua_pushinteger(L, set[i].fd);
      lua_rawseti(L, -2, ++ready);
    }
  }
  return 1;
}

/* open_fds() -> how many descriptors this process has */
static int l_open_fds(lua_State *L) {
  DIR *dir = opendir("/proc/self/fd");
  if (dir == NULL) return fail(L, "/proc/self/fd");
  lua_Integer count = -1; /* the one of the directory itself */
  const struct dirent *entry;
  while ((entry = readdir(dir)) != NULL) count += entry->d_name[0] != '.';
  closedir(dir);
  lua_pushinteger(L, count);
  return 1;
}

/* }====================================================== */

/*
** {======================================================
** Signals and time
** =======================================================
*/

static void on_signal(int number) { caught[number] = caught[number] + 1; }

static int set_action(int number, void (*handler)(int), int flags) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  return sigaction(number, &action, NULL);
}

/*
** signal(name, "ignore" | "default" | "noop" | "count" [, restart = true])
** The last two catch it; "count" also sets signal_count to 0. restart: with SA_RESTART.
*/
static int l_signal(lua_State *L) {
  static const char *const ways[] = {"ignore", "default", "noop", "count", NULL};
  int number = check_signal(L, 1);
  int way = luaL_checkoption(L, 2, NULL, ways);
  int flags = lua_isnoneornil(L, 3) || lua_toboolean(L, 3) ? SA_RESTART : 0;
  if (way == 3) caught[number] = 0;
  return done(L,
              set_action(number,
                         way == 0   ? SIG_IGN
                         : way == 1 ? SIG_DFL
                                    : on_signal,
                         flags),
              "sigaction");
}

/* signal_count(name) -> how often a caught signal came */
static int l_signal_count(lua_State *L) {
  lua_pushinteger(L, caught[check_signal(L, 1)]);
  return 1;
}

/*
** setitimer(seconds [, restart = true]): SIGALRM, which does nothing, every so often; 0 ends it.
** The handler stays, for one that is still on its way.
*/
static int l_setitimer(lua_State *L) {
  double seconds = check_seconds(L, 1);
  int flags = lua_isnoneornil(L, 2) || lua_toboolean(L, 2) ? SA_RESTART : 0;
  struct itimerval timer;
  timer.it_interval.tv_sec = (time_t)floor(seconds);
  timer.it_interval.tv_usec = (suseconds_t)((seconds - floor(seconds)) * 1e6);
  timer.it_value = timer.it_interval;
  if (set_action(SIGALRM, on_signal, flags) < 0) return fail(L, "sigaction");
  return done(L, setitimer(ITIMER_REAL, &timer, NULL), "setitimer");
}

/* now() -> seconds on the monotonic clock */
static int l_now(lua_State *L) {
  lua_pushnumber(L, monotonic());
  return 1;
}

/* sleep(seconds): all of it, whatever signals come */
static int l_sleep(lua_State *L) {
  struct timespec rest = to_timespec(check_seconds(L, 1));
  while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
    ;
  return 0;
}

/* cpu_time() -> seconds of processor time that this process used, user and system */
static int l_cpu_time(lua_State *L) {
  struct rusage used;
  if (getrusage(RUSAGE_SELF, &used) < 0) return fail(L, "getrusage");
  lua_pushnumber(L, (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                        1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
  return 1;
}

/* rss() -> bytes of memory that are resident now */
static int l_rss(lua_State *L) {
  FILE *statm = fopen("/proc/self/statm", "re");
  if (statm == NULL) return fail(L, "/proc/self/statm");
  char line[128];
  const char *text = fgets(line, sizeof(line), statm);
  fclose(statm);
  if (text == NULL) return luaL_error(L, "/proc/self/statm is empty");
  char *second;
  (void)strtoll(text, &second, 10);
  lua_pushinteger(L, (lua_Integer)strtoll(second, NULL, 10) * (lua_Integer)sysconf(_SC_PAGESIZE));
  return 1;
}

/* }====================================================== */

static const luaL_Reg functions[] = {
    {"fork", l_fork},
    {"_exit", l_exit},
    {"getpid", l_getpid},
    {"getppid", l_getppid},
    {"setpgid", l_setpgid},
    {"waitpid", l_waitpid},
    {"kill", l_kill},
    {"pdeathsig", l_pdeathsig},
    {"spawn", l_spawn},
    {"pipe", l_pipe},
    {"openpty", l_openpty},
    {"tcgetpgrp", l_tcgetpgrp},
    {"read", l_read},
    {"write", l_write},
    {"close", l_close},
    {"dup2", l_dup2},
    {"poll", l_poll},
    {"open_fds", l_open_fds},
    {"signal", l_signal},
    {"signal_count", l_signal_count},
    {"setitimer", l_setitimer},
    {"now", l_now},
    {"sleep", l_sleep},
    {"cpu_time", l_cpu_time},
    {"rss", l_rss},
    {NULL, NULL},
};

int luaopen_memlock_posix(lua_State *L) {
  luaL_newlib(L, functions);
  lua_newtable(L);
  for (size_t i = 0; i < SIGNAL_COUNT; i++) {
    lua_pushinteger(L, signals[i].number);
    lua_setfield(L, -2, signals[i].name);
  }
  lua_setfield(L, -2, "signals");
  return 1;
}
