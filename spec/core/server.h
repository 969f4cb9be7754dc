/*
 * memcached servers of a test program's own, and a look at what they really have.
 *
 * Each server listens on a unix socket in a directory of the program's, so that programs that run
 * at the same time do not meet. All of them end with the program, however it ends. The looks go
 * over a connection of plain text that knows nothing of the code under test; a look at a stopped
 * server fails the test.
 */
#ifndef SERVER_H
#define SERVER_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "check.h"

/* Processes and files that end with the program. */

static struct {
  pid_t owner; /* forked children have a copy of this, and clean nothing up */
  char directory[64];
  int sockets;
  pid_t children[512];
  size_t count;
} scene;

static inline void end_child(pid_t pid) {
  for (size_t i = 0; i < scene.count; i++)
    if (scene.children[i] == pid) scene.children[i] = scene.children[--scene.count];
  (void)kill(pid, SIGKILL);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
}

static inline void end_scene(void) {
  if (getpid() != scene.owner) return;
  while (scene.count > 0) end_child(scene.children[0]);
  DIR *directory = opendir(scene.directory);
  if (directory == NULL) return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    if (entry->d_name[0] != '.') (void)unlinkat(dirfd(directory), entry->d_name, 0);
  (void)closedir(directory);
  (void)rmdir(scene.directory);
}

static inline void open_scene(void) {
  if (scene.owner != 0) return;
  const char *where = getenv("TMPDIR");
  /* A socket's path is short by nature. */
  if (where == NULL || where[0] != '/' || strlen(where) > 40) where = "/tmp";
  (void)snprintf(scene.directory, sizeof scene.directory, "%s/ml-XXXXXX", where);
  assert_non_null(mkdtemp(scene.directory));
  scene.owner = getpid();
  assert_int_equal(atexit(end_scene), 0);
}

static inline void new_socket_path(char *path, size_t size) {
  open_scene();
  (void)snprintf(path, size, "%s/%d", scene.directory, ++scene.sockets);
}

/* Forks a process that dies with this one. Returns like fork(). */
static inline pid_t fork_helper(void) {
  open_scene();
  assert_true(scene.count < sizeof scene.children / sizeof scene.children[0]);
  (void)fflush(NULL);
  pid_t parent = getpid();
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid > 0) {
    scene.children[scene.count++] = pid;
    return pid;
  }
#ifdef __linux__
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != parent) _exit(0);
  return 0;
}

static inline int connect_to(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) return fd;
  (void)close(fd);
  return -1;
}

/* Servers. */

#define SERVER_ARGUMENTS 8

struct server {
  char path[100]; /* its address */
  pid_t pid;      /* 0: not running */
  FILE *in;       /* the connection for looks */
  int out;
  int argument_count;
  char arguments[SERVER_ARGUMENTS][32];
};

static inline void exec_memcached(struct server *server) {
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; fd++) (void)dup2(null, fd);
  char name[] = "memcached", at[] = "-s", threads[] = "-t", two[] = "2", user[] = "-u",
       root[] = "root";
  char *list[8 + SERVER_ARGUMENTS] = {name, at, server->path, threads, two};
  int count = 5;
  if (geteuid() == 0) {
    list[count++] = user;
    list[count++] = root;
  }
  for (int i = 0; i < server->argument_count; i++) list[count++] = server->arguments[i];
  list[count] = NULL;
  (void)execvp(name, list);
  _exit(127);
}

static inline void server_launch(struct server *server) {
  (void)unlink(server->path);
  server->pid = fork_helper();
  if (server->pid == 0) exec_memcached(server);
  int64_t deadline = ml_clock_now() + 10 * ML_SECOND;
  int fd;
  while ((fd = connect_to(server->path)) < 0) {
    if (waitpid(server->pid, NULL, WNOHANG) != 0) fail_msg("memcached does not start");
    if (ml_clock_now() > deadline) fail_msg("memcached does not answer");
    pause_for(2 * MS);
  }
  struct timeval limit = {.tv_sec = 10};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  server->out = fd;
  server->in = fdopen(fd, "r");
  assert_non_null(server->in);
}

/* Starts a server; `arguments` (may be NULL) are more of memcached's, with spaces between. */
static inline void server_start(struct server *server, const char *arguments) {
  *server = (struct server){0};
  new_socket_path(server->path, sizeof server->path);
  char text[128];
  (void)snprintf(text, sizeof text, "%s", arguments != NULL ? arguments : "");
  for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
    assert_true(server->argument_count < SERVER_ARGUMENTS);
    (void)snprintf(server->arguments[server->argument_count++], sizeof server->arguments[0], "%s",
                   word);
  }
  server_launch(server);
}

/* Ends it without warning: its data is gone, its address refuses. */
static inline void server_end(struct server *server) {
  if (server->pid == 0) return;
  end_child(server->pid);
  (void)fclose(server->in);
  (void)unlink(server->path);
  server->pid = 0;
}

/* The same address, no data, and CAS ids from the beginning. */
static inline void server_restart(struct server *server) {
  server_end(server);
  server_launch(server);
}

/* Freezes it: the kernel still accepts connections and bytes for it, and nothing is answered. */
static inline void server_stop(struct server *server) {
  int status;
  assert_int_equal(kill(server->pid, SIGSTOP), 0);
  assert_int_equal(waitpid(server->pid, &status, WUNTRACED), server->pid);
  assert_true(WIFSTOPPED(status));
}

static inline void server_continue(struct server *server) {
  assert_int_equal(kill(server->pid, SIGCONT), 0);
}

/* Lets a stopped server go on after `span`, while this process does something else. */
static inline pid_t server_continue_after(struct server *server, int64_t span) {
  pid_t helper = fork_helper();
  if (helper == 0) {
    pause_for(span);
    (void)kill(server->pid, SIGCONT);
    _exit(0);
  }
  return helper;
}

/* Looks. */

static inline void server_send(struct server *server, const char *bytes, size_t length) {
  while (length > 0) {
    ssize_t sent = send(server->out, bytes, length, MSG_NOSIGNAL);
    assert_true(sent > 0);
    bytes += sent;
    length -= (size_t)sent;
  }
}

static inline void server_line(struct server *server, char *line, size_t size) {
  if (fgets(line, (int)size, server->in) == NULL) fail_msg("the server does not answer a look");
  line[strcspn(line, "\r\n")] = '\0';
}

/* Sends `command` (its end of line included) and expects one line. */
static inline void server_do(struct server *server, const char *command, const char *expected) {
  char line[256];
  server_send(server, command, strlen(command));
  server_line(server, line, sizeof line);
  assert_string_equal(line, expected);
}

static inline void server_set(struct server *server, const char *key, const char *value) {
  char command[2048];
  (void)snprintf(command, sizeof command, "set %s 0 0 %zu\r\n%s\r\n", key, strlen(value), value);
  server_do(server, command, "STORED");
}

static inline void server_delete(struct server *server, const char *key) {
  char command[512];
  (void)snprintf(command, sizeof command, "delete %s\r\n", key);
  server_do(server, command, "DELETED");
}

struct item {
  bool there;
  unsigned flags;
  size_t length;
  uint64_t cas;
  char value[1024];
};

static inline struct item server_get(struct server *server, const char *key) {
  struct item item = {0};
  char text[512];
  (void)snprintf(text, sizeof text, "gets %s\r\n", key);
  server_send(server, text, strlen(text));
  server_line(server, text, sizeof text);
  if (strcmp(text, "END") == 0) return item;
  item.there = true;
  assert_int_equal(sscanf(text, "VALUE %*s %u %zu %" SCNu64, &item.flags, &item.length, &item.cas),
                   3);
  assert_true(item.length < sizeof item.value);
  assert_int_equal(fread(item.value, 1, item.length, server->in), item.length);
  server_line(server, text, sizeof text); /* what is left of the data's line */
  server_line(server, text, sizeof text);
  assert_string_equal(text, "END");
  return item;
}

static inline bool server_has(struct server *server, const char *key) {
  return server_get(server, key).there;
}

static inline uint64_t server_number(struct server *server, const char *key) {
  struct item item = server_get(server, key);
  assert_true(item.there);
  return strtoull(item.value, NULL, 10);
}

static inline uint64_t server_stat(struct server *server, const char *name) {
  char line[256], found[64];
  uint64_t number, result = 0;
  bool known = false;
  server_send(server, "stats\r\n", 7);
  for (;;) {
    server_line(server, line, sizeof line);
    if (strcmp(line, "END") == 0) break;
    if (sscanf(line, "STAT %63s %" SCNu64, found, &number) == 2 && strcmp(found, name) == 0) {
      result = number;
      known = true;
    }
  }
  assert_true(known);
  return result;
}

/* Waits until the key has an item, or has none; false when that does not come about. */
static inline bool server_comes_to(struct server *server, const char *key, bool there) {
  int64_t deadline = ml_clock_now() + 5 * ML_SECOND;
  while (server_has(server, key) != there) {
    if (ml_clock_now() > deadline) return false;
    pause_for(2 * MS);
  }
  return true;
}

/* Fills a server that was started with -M until small items find no room. */
static inline void server_fill(struct server *server) {
  static const size_t sizes[] = {8, 24, 48, 80, 110, 150, 210, 270, 350};
  char command[512], value[400];
  memset(value, 'x', sizeof value);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    /* One page of memory for each class of sizes is there in any case. */
    size_t rounds = 1200000 / (sizes[s] + 70);
    for (size_t i = 0; i < rounds; i++) {
      int length = snprintf(command, sizeof command, "set fill%zu:%zu 0 0 %zu noreply\r\n%.*s\r\n",
                            s, i, sizes[s], (int)sizes[s], value);
      server_send(server, command, (size_t)length);
    }
  }
  server_do(server, "set filled 0 0 1\r\nx\r\n", "SERVER_ERROR out of memory storing object");
}

#define assert_same_item(a, b)                                                                     \
  do {                                                                                             \
    assert_int_equal((a).there, (b).there);                                                        \
    assert_int_equal((a).length, (b).length);                                                      \
    assert_memory_equal((a).value, (b).value, sizeof(a).value);                                    \
    assert_int_equal((a).cas, (b).cas);                                                            \
  } while (0)

#endif
