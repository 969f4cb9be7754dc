/*
 * A tap on the line between a client and a server: a process that passes bytes on and remembers
 * what the client said. It can also do what networks do: cut the line, keep bytes back until after
 * those of a newer connection, or make reads come back empty.
 *
 * What it shares with the test lies in memory of both. A lock that lies there too can be looked at
 * in the very moment in which its command goes by.
 */
#ifndef TAP_H
#define TAP_H

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "lock.h"
#include "server.h"

#define TAP_LINES 32
#define TAP_LOG (1u << 20)

struct tap_shared {
  _Atomic int connections;     /* that were ever accepted */
  _Atomic int hold;            /* bytes of connections up to this number are kept back */
  _Atomic bool blind;          /* every gets is answered "END", as if nothing were there */
  _Atomic bool cut;            /* ends all connections; reset when that is done */
  _Atomic int64_t left_at_cas; /* what the lock below had left when the last cas went by */
  _Atomic size_t length;
  char log[TAP_LOG];
  struct ml_lock lock;
};

struct tap {
  char path[100]; /* its address */
  pid_t pid;
  struct tap_shared *shared;
};

struct tap_line {
  int number; /* 0: this place is free */
  int client; /* -1: it has hung up */
  int server;
  size_t kept;
  char keep[1 << 16];
};

static inline void tap_close(struct tap_line *line) {
  if (line->client >= 0) (void)close(line->client);
  (void)close(line->server);
  line->number = 0;
}

static inline void tap_write(int fd, const char *bytes, size_t length) {
  while (length > 0) {
    ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes += sent;
    length -= (size_t)sent;
  }
}

/* Where in `bytes` (ended by a zero byte) a command begins that starts with `word`; NULL: nowhere.
 */
static inline char *tap_command(char *bytes, const char *word) {
  for (char *at = bytes; (at = strstr(at, word)) != NULL; at++)
    if (at == bytes || at[-1] == '\n') return at;
  return NULL;
}

/* What the client said goes to the log, then to the server or, for now, nowhere. */
static inline void tap_pass(struct tap_shared *shared, struct tap_line *line) {
  char bytes[1 << 14];
  ssize_t got = recv(line->client, bytes, sizeof bytes - 1, 0);
  if (got <= 0) {
    (void)close(line->client);
    line->client = -1;
    return;
  }
  size_t length = (size_t)got;
  bytes[length] = '\0';
  size_t used = atomic_load(&shared->length);
  if (used + length < TAP_LOG) {
    memcpy(shared->log + used, bytes, length + 1);
    atomic_store(&shared->length, used + length);
  }
  if (tap_command(bytes, "cas ") != NULL)
    atomic_store(&shared->left_at_cas, atomic_load(&shared->lock.deadline) - ml_clock_now());
  char *gets = atomic_load(&shared->blind) ? tap_command(bytes, "gets ") : NULL;
  if (gets != NULL) {
    tap_write(line->server, bytes, (size_t)(gets - bytes));
    tap_write(line->client, "END\r\n", 5);
  } else if (line->number <= atomic_load(&shared->hold)) {
    if (line->kept + length <= sizeof line->keep) {
      memcpy(line->keep + line->kept, bytes, length);
      line->kept += length;
    }
  } else {
    tap_write(line->server, bytes, length);
  }
}

static inline void tap_answer(struct tap_line *line) {
  char bytes[1 << 14];
  ssize_t got = recv(line->server, bytes, sizeof bytes, 0);
  if (got <= 0)
    tap_close(line);
  else if (line->client >= 0)
    tap_write(line->client, bytes, (size_t)got);
}

/* After hold was lifted: what was kept goes out, and then the client's good-bye. */
static inline void tap_catch_up(const struct tap_shared *shared, struct tap_line *line) {
  if (line->number <= atomic_load(&shared->hold)) return;
  tap_write(line->server, line->keep, line->kept);
  line->kept = 0;
  if (line->client < 0) (void)shutdown(line->server, SHUT_WR);
}

static inline void tap_accept(struct tap_shared *shared, struct tap_line *lines, int listener,
                              const char *server) {
  int client = accept(listener, NULL, NULL);
  if (client < 0) return;
  int place = 0;
  while (place < TAP_LINES && lines[place].number != 0) place++;
  int upstream = place < TAP_LINES ? connect_to(server) : -1;
  if (upstream < 0) {
    (void)close(client);
    return;
  }
  lines[place].client = client;
  lines[place].server = upstream;
  lines[place].kept = 0;
  lines[place].number = atomic_fetch_add(&shared->connections, 1) + 1;
}

static inline void tap_run(struct tap_shared *shared, int listener, const char *server) {
  static struct tap_line lines[TAP_LINES];
  for (;;) {
    struct pollfd polls[1 + 2 * TAP_LINES] = {{.fd = listener, .events = POLLIN}};
    for (int i = 0; i < TAP_LINES; i++) {
      bool used = lines[i].number != 0;
      polls[1 + 2 * i] = (struct pollfd){.fd = used ? lines[i].client : -1, .events = POLLIN};
      polls[2 + 2 * i] = (struct pollfd){.fd = used ? lines[i].server : -1, .events = POLLIN};
    }
    (void)poll(polls, 1 + 2 * TAP_LINES, 2);
    bool cut = atomic_load(&shared->cut);
    for (int i = 0; i < TAP_LINES; i++) {
      struct tap_line *line = &lines[i];
      if (line->number == 0) continue;
      if (cut) {
        tap_close(line);
        continue;
      }
      tap_catch_up(shared, line);
      if (polls[1 + 2 * i].revents != 0) tap_pass(shared, line);
      if (polls[2 + 2 * i].revents != 0) tap_answer(line);
    }
    if (cut) atomic_store(&shared->cut, false);
    if (polls[0].revents != 0) tap_accept(shared, lines, listener, server);
  }
}

static inline void tap_open(struct tap *tap, const struct server *server) {
  new_socket_path(tap->path, sizeof tap->path);
  void *memory =
      mmap(NULL, sizeof *tap->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  tap->shared = memory;
  atomic_store(&tap->shared->left_at_cas, ML_FOREVER);

  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", tap->path);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(listener >= 0);
  assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(listen(listener, 64), 0);
  tap->pid = fork_helper();
  if (tap->pid == 0) tap_run(tap->shared, listener, server->path);
  (void)close(listener);
}

static inline void tap_end(struct tap *tap) {
  end_child(tap->pid);
  (void)munmap(tap->shared, sizeof *tap->shared);
}

static inline void tap_cut(struct tap *tap) {
  atomic_store(&tap->shared->cut, true);
  while (atomic_load(&tap->shared->cut)) pause_for(MS);
}

/* Keeps back what comes over the connections that there are, and over the next `more`. */
static inline void tap_hold(struct tap *tap, int more) {
  atomic_store(&tap->shared->hold, atomic_load(&tap->shared->connections) + more);
}

static inline void tap_let_go(struct tap *tap) { atomic_store(&tap->shared->hold, 0); }

static inline void tap_forget(struct tap *tap) {
  atomic_store(&tap->shared->length, 0);
  tap->shared->log[0] = '\0';
}

/* How often `text` stands in what the client said since tap_forget. */
static inline size_t tap_count(const struct tap *tap, const char *text) {
  size_t count = 0;
  for (const char *at = tap->shared->log; (at = strstr(at, text)) != NULL; at++) count++;
  return count;
}

#endif
