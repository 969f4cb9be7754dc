/*
** relay: a TCP relay in front of a memcached, which a spec drives to make networks go wrong.
**
**   relay --target HOST:PORT | /PATH [--listen PORT | /PATH]
**
** It listens on 127.0.0.1 (or a unix socket), prints `port N` (or `path P`), reads one command a
** line from stdin and answers each with one line: `ok`, a result, `timeout` or `error TEXT`. It
** ends when stdin ends, so it never outlives its test. The commands are in the table near the end;
** relay.lua has a method for each, which says what it does.
**
** Design. One thread, one ppoll loop. A `Link` is a client's connection with its own connection to
** the target. It has two `Flow`s, UP (client to server) and DOWN. A flow is a queue of `Chunk`s,
** each with the time from which it may leave; the end of the stream is the last chunk, of no bytes.
** What a command changes acts at one of two places:
**
**   arrival (`arrive`)    counting, log, drop, triggers; delay and dribble (the times of chunks)
**   departure (`depart`)  holds: nothing leaves a flow that is paused or held; it queues up
**
** A burst is what one side sends without the other one saying something in between: a request or a
** reply, as far as a relay that does not parse can tell. It may arrive in several pieces. A trigger
** is armed by a command, acts on the first link that meets it, and is then gone.
**
** A link is over when both flows are. A client that hangs up does not take back what it sent: it is
** still delivered, as a network would, unless the link is cut.
*/

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000
#define NEVER INT64_MAX
#define READ_SIZE 65536
#define QUEUE_LIMIT ((size_t)64 << 20) /* a flow with more than this waiting reads no more */
#define BURST_LIMIT ((size_t)1 << 20)  /* how much of a request a MATCH can see */
#define TEXT_LIMIT 4096
#define COMMAND_LIMIT 16384
#define BACKLOG 1024
#define FIRST_PORT                                                                                 \
  20000 /* below the ports that the kernel gives to clients: no client can sit on ours meanwhile   \
         */
#define LAST_PORT 32000

typedef int64_t Nanos;

typedef enum { UP, DOWN } Direction;

typedef struct Chunk {
  struct Chunk *next;
  Nanos due;
  size_t size, sent; /* size 0: the end of the stream */
  char bytes[];
} Chunk;

typedef struct {
  Chunk *first, *last;
  size_t queued;   /* bytes */
  Nanos last_due;  /* of the newest chunk ever queued; order is kept */
  bool held;       /* by a trigger */
  bool read_over;  /* nothing more comes in */
  bool write_over; /* nothing more can go out */
} Flow;

typedef struct Link {
  struct Link *next;
  unsigned number;
  int fd[2]; /* where flow UP or DOWN reads: the client, the server; -1: none */
  Flow flow[2];
  Direction
      speaker; /* who sent last; DOWN at the beginning, so that the first request begins a burst */
  char *burst; /* the present request, so that MATCH sees it whole */
  size_t burst_size;
  bool blackholed;
  bool swallow_reply; /* a drop-reply MATCH has met its request */
  bool dying;         /* cut as soon as what is queued for the client has left */
} Link;

typedef struct {
  Nanos delay, dribble;
  bool paused, dropping;
} Policy;

typedef struct {
  char bytes[TEXT_LIMIT];
  size_t size;
} Text;

static struct {
  bool after_reply, up, cut, drop, drop_match, inject;
  uint64_t after_replies; /* still to come */
  size_t cut_after;
  Text up_text, drop_text, inject_text;
} armed;

static struct { uint64_t connections, asked, answered, bytes[2]; } counts;

typedef struct Entry {
  struct Entry *next;
  Nanos at;
  unsigned link;
  size_t size;
  char bytes[];
} Entry;

static struct {
  bool on;
  Entry *first, **end;
} journal = {false, NULL, &journal.first};

typedef struct {
  bool is_path;
  union {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_un un;
  } at;
  socklen_t size;
} Address;

static Policy policy[2];
static Address target, here;
static int listener = -1;
static bool blackhole;
static Link *links;
static unsigned last_number;
static Nanos wait_held_until; /* 0: nobody waits */

static _Noreturn void die(const char *what) {
  fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void *allocate(size_t size) {
  void *p = calloc(1, size);
  if (p == NULL) die("memory");
  return p;
}

static Nanos now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (Nanos)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static Direction other(Direction d) { return d == UP ? DOWN : UP; }

/*
** {======================================================
** Chunks and flows
** =======================================================
*/

static void queue_chunk(Flow *f, const char *bytes, size_t size, Nanos due) {
  Chunk *c = allocate(sizeof(*c) + size);
  c->size = size;
  c->due = due > f->last_due ? due : f->last_due;
  if (size > 0) memcpy(c->bytes, bytes, size);
  if (f->last == NULL)
    f->first = c;
  else
    f->last->next = c;
  f->last = c;
  f->last_due = c->due;
  f->queued += size;
}

static void queue_bytes(Flow *f, Direction d, const char *bytes, size_t size, Nanos arrival) {
  const Policy *p = &policy[d];
  Nanos due = arrival + p->delay;
  if (p->dribble == 0) {
    queue_chunk(f, bytes, size, due);
    return;
  }
  for (size_t i = 0; i < size; i++) {
    Nanos next = f->last_due + p->dribble;
    queue_chunk(f, bytes + i, 1, due > next ? due : next);
  }
}

static void drop_first(Flow *f) {
  Chunk *c = f->first;
  f->first = c->next;
  if (f->first == NULL) f->last = NULL;
  free(c);
}

static void forget_queue(Flow *f) {
  while (f->first != NULL) drop_first(f);
  f->queued = 0;
}

static bool is_held(const Flow *f, Direction d) { return policy[d].paused || f->held; }

static bool something_held(void) {
  for (const Link *l = links; l != NULL; l = l->next)
    for (Direction d = UP; d <= DOWN; d++)
      if (l->flow[d].first != NULL && is_held(&l->flow[d], d)) return true;
  return false;
}

/* }====================================================== */

/*
** {======================================================
** Links
** =======================================================
*/

static void close_side(Link *l, Direction d, bool reset) {
  if (l->fd[d] < 0) return;
  if (reset) {
    struct linger hard = {1, 0};
    setsockopt(l->fd[d], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  }
  close(l->fd[d]);
  l->fd[d] = -1;
}

static void cut(Link *l, bool reset) {
  for (Direction d = UP; d <= DOWN; d++) {
    close_side(l, d, reset);
    forget_queue(&l->flow[d]);
    l->flow[d].read_over = l->flow[d].write_over = true;
  }
}

static bool is_over(const Link *l) {
  const Flow *up = &l->flow[UP], *down = &l->flow[DOWN];
  if (l->fd[UP] < 0 && l->fd[DOWN] < 0) return true;
  if (l->blackholed) return up->read_over;
  return up->read_over && down->read_over && up->first == NULL && down->first == NULL;
}

static void sweep(void) {
  for (Link **at = &links; *at != NULL;) {
    Link *l = *at;
    if (!is_over(l)) {
      at = &l->next;
      continue;
    }
    cut(l, false);
    *at = l->next;
    free(l->burst);
    free(l);
  }
}

static void make_nodelay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
             sizeof(on)); /* fails on unix sockets, which have no delay */
}

static void connect_target(Link *l) {
  int fd = socket(target.at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  make_nodelay(fd);
  if (connect(fd, &target.at.any, target.size) < 0 && errno != EINPROGRESS) {
    close(fd);
    cut(l, true);
    return;
  }
  l->fd[DOWN] = fd;
}

static void accept_client(void) {
  int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  make_nodelay(fd);
  Link *l = allocate(sizeof(*l));
  l->number = ++last_number;
  l->fd[UP] = fd;
  l->fd[DOWN] = -1;
  l->speaker = DOWN;
  l->blackholed = blackhole;
  l->next = links;
  links = l;
  counts.connections++;
  if (!blackhole) connect_target(l);
}

/* }====================================================== */

/*
** {======================================================
** Arrival
** =======================================================
*/

static void record(const Link *l, const char *bytes, size_t size, Nanos at) {
  Entry *e = allocate(sizeof(*e) + size);
  e->at = at;
  e->link = l->number;
  e->size = size;
  memcpy(e->bytes, bytes, size);
  *journal.end = e;
  journal.end = &e->next;
}

static void remember_burst(Link *l, const char *bytes, size_t size) {
  if (l->burst_size + size > BURST_LIMIT) size = BURST_LIMIT - l->burst_size;
  if (size == 0) return;
  char *grown = realloc(l->burst, l->burst_size + size);
  if (grown == NULL) die("memory");
  memcpy(grown + l->burst_size, bytes, size);
  l->burst = grown;
  l->burst_size += size;
}

static bool burst_has(const Link *l, const Text *text) {
  return text->size == 0 ||
         (l->burst_size > 0 && memmem(l->burst, l->burst_size, text->bytes, text->size) != NULL);
}

static void arrive_up(Link *l, const char *bytes, size_t size, Nanos at) {
  if (l->speaker == DOWN) {
    l->speaker = UP;
    l->burst_size = 0;
    counts.asked++;
    if (armed.after_reply && armed.after_replies == 0) {
      l->flow[UP].held = true;
      armed.after_reply = false;
    }
  }
  counts.bytes[UP] += size;
  if (journal.on) record(l, bytes, size, at);
  remember_burst(l, bytes, size);
  if (armed.up && burst_has(l, &armed.up_text)) {
    l->flow[UP].held = true;
    armed.up = false;
  }
  if (armed.drop_match && burst_has(l, &armed.drop_text)) {
    l->swallow_reply = true;
    armed.drop_match = false;
  }
  if (!policy[UP].dropping && !l->blackholed && !l->flow[UP].write_over)
    queue_bytes(&l->flow[UP], UP, bytes, size, at);
}

static void arrive_down(Link *l, const char *bytes, size_t size, Nanos at) {
  if (l->speaker == UP) {
    l->speaker = DOWN;
    counts.answered++;
    if (armed.after_reply && armed.after_replies > 0 && --armed.after_replies == 0) {
      l->flow[UP].held = true; /* this client's next request, not just anybody's */
      armed.after_reply = false;
    }
  }
  counts.bytes[DOWN] += size;
  if (l->dying) return;
  if (l->swallow_reply || armed.drop) {
    if (!l->swallow_reply) armed.drop = false;
    cut(l, false);
    return;
  }
  if (armed.inject) {
    queue_bytes(&l->flow[DOWN], DOWN, armed.inject_text.bytes, armed.inject_text.size, at);
    armed.inject = false;
  }
  if (armed.cut) {
    if (size >= armed.cut_after) {
      size = armed.cut_after;
      l->dying = true;
      armed.cut = false;
    } else
      armed.cut_after -= size;
  }
  if (size > 0 && !policy[DOWN].dropping && !l->blackholed && !l->flow[DOWN].write_over)
    queue_bytes(&l->flow[DOWN], DOWN, bytes, size, at);
}

/* One read only, so that all links have their turn. */
static void arrive(Link *l, Direction d) {
  static char space[READ_SIZE];
  Flow *f = &l->flow[d];
  ssize_t got = recv(l->fd[d], space, sizeof(space), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  Nanos at = now();
  if (got > 0) {
    if (d == UP)
      arrive_up(l, space, (size_t)got, at);
    else
      arrive_down(l, space, (size_t)got, at);
    return;
  }
  f->read_over = true;
  if (got < 0) l->flow[other(d)].write_over = true; /* reset: this side takes nothing any more */
  if (l->flow[other(d)].write_over) forget_queue(&l->flow[other(d)]);
  if (!f->write_over && !l->blackholed) queue_chunk(f, NULL, 0, at + policy[d].delay);
}

/* }====================================================== */

/*
** {======================================================
** Departure
** =======================================================
*/

static bool is_due(const Flow *f, Direction d, Nanos at) {
  return f->first != NULL && f->first->due <= at && !is_held(f, d);
}

/* Sends what is due and fits. */
static void depart(Link *l, Direction d, Nanos at) {
  Flow *f = &l->flow[d];
  int to = l->fd[other(d)];
  while (to >= 0 && is_due(f, d, at)) {
    Chunk *c = f->first;
    if (c->size == 0) {
      shutdown(to, SHUT_WR);
      f->write_over = true;
      drop_first(f);
      return;
    }
    ssize_t put = send(to, c->bytes + c->sent, c->size - c->sent, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put < 0) {
      f->write_over = true;
      forget_queue(f);
      return;
    }
    c->sent += (size_t)put;
    f->queued -= (size_t)put;
    if (c->sent < c->size) return;
    drop_first(f);
  }
}

static void depart_all(void) {
  Nanos at = now();
  for (Link *l = links; l != NULL; l = l->next) {
    depart(l, UP, at);
    depart(l, DOWN, at);
    if (l->dying && l->flow[DOWN].first == NULL) cut(l, false);
  }
}

/* }====================================================== */

/*
** {======================================================
** Addresses
** =======================================================
*/

static void parse_address(const char *text, Address *a) {
  memset(a, 0, sizeof(*a));
  if (text[0] == '/') {
    a->is_path = true;
    a->at.un.sun_family = AF_UNIX;
    if (strlen(text) >= sizeof(a->at.un.sun_path)) {
      errno = ENAMETOOLONG;
      die(text);
    }
    memcpy(a->at.un.sun_path, text, strlen(text) + 1);
    a->size = (socklen_t)sizeof(a->at.un);
    return;
  }
  const char *colon = strrchr(text, ':');
  const char *port = colon == NULL ? text : colon + 1;
  char host[64] = "127.0.0.1";
  if (colon != NULL && (size_t)(colon - text) < sizeof(host)) {
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
  }
  long number = strtol(port, NULL, 10);
  a->at.in.sin_family = AF_INET;
  a->at.in.sin_port = htons((uint16_t)number);
  a->size = (socklen_t)sizeof(a->at.in);
  if (number < 0 || number > 65535 || inet_pton(AF_INET, host, &a->at.in.sin_addr) != 1) {
    errno = EINVAL;
    die(text);
  }
}

/* false: errno */
static bool open_listener(void) {
  int on = 1;
  int fd = socket(here.at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  if (here.is_path)
    unlink(here.at.un.sun_path);
  else
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on,
               sizeof(on)); /* to come back while old connections linger */
  if (bind(fd, &here.at.any, here.size) < 0 || listen(fd, BACKLOG) < 0) {
    int error = errno;
    close(fd);
    errno = error;
    return false;
  }
  listener = fd;
  return true;
}

static void open_any_port(void) {
  for (int tries = 0; tries < 1000; tries++) {
    uint16_t dice;
    if (getrandom(&dice, sizeof(dice), 0) != sizeof(dice)) die("getrandom");
    here.at.in.sin_port = htons((uint16_t)(FIRST_PORT + dice % (LAST_PORT - FIRST_PORT)));
    if (open_listener()) return;
  }
  die("no free port");
}

static void close_listener(void) {
  if (listener >= 0) close(listener);
  listener = -1;
  if (here.is_path) unlink(here.at.un.sun_path);
}

/* }====================================================== */

/*
** {======================================================
** Commands
** =======================================================
*/

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void answer(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  putchar('\n');
  fflush(stdout);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/* \r \n \\ and \xhh (small letters) stand for bytes. */
static bool parse_text(const char *in, Text *out) {
  out->size = 0;
  for (; *in != '\0'; in++) {
    char c = *in;
    if (out->size == TEXT_LIMIT) return false;
    if (c == '\\') {
      c = *++in;
      if (c == 'r')
        c = '\r';
      else if (c == 'n')
        c = '\n';
      else if (c == 'x' && hex_digit(in[1]) >= 0 && hex_digit(in[2]) >= 0) {
        c = (char)(hex_digit(in[1]) * 16 + hex_digit(in[2]));
        in += 2;
      } else if (c != '\\')
        return false;
    }
    out->bytes[out->size++] = c;
  }
  return true;
}

static bool parse_seconds(const char *text, Nanos *out) {
  char *end;
  double seconds = strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0 && seconds < 1e6)) return false;
  *out = (Nanos)(seconds * NS_PER_S);
  return true;
}

static bool parse_count(const char *text, uint64_t *out) {
  char *end;
  *out = strtoull(text, &end, 10);
  return end != text && *end == '\0';
}

/* Splits "up REST"; sides is a set of bits. */
static bool parse_sides(char *text, unsigned *sides, char **rest) {
  char *word = strsep(&text, " ");
  *rest = text == NULL ? word + strlen(word) : text;
  *sides = strcmp(word, "up") == 0     ? 1u << UP
           : strcmp(word, "down") == 0 ? 1u << DOWN
           : strcmp(word, "both") == 0 ? 3u
                                       : 0u;
  return *sides != 0;
}

static bool do_delay(char *rest) {
  unsigned sides;
  Nanos time;
  if (!parse_sides(rest, &sides, &rest) || !parse_seconds(rest, &time)) return false;
  for (Direction d = UP; d <= DOWN; d++)
    if (sides & 1u << d) policy[d].delay = time;
  return true;
}

static bool do_dribble(char *rest) {
  unsigned sides;
  Nanos time;
  if (!parse_sides(rest, &sides, &rest) || !parse_seconds(rest, &time)) return false;
  for (Direction d = UP; d <= DOWN; d++)
    if (sides & 1u << d) policy[d].dribble = time;
  return true;
}

static bool set_paused(char *rest, bool paused) {
  unsigned sides;
  if (!parse_sides(rest, &sides, &rest)) return false;
  for (Direction d = UP; d <= DOWN; d++) {
    if (!(sides & 1u << d)) continue;
    policy[d].paused = paused;
    if (!paused)
      for (Link *l = links; l != NULL; l = l->next) l->flow[d].held = false;
  }
  return true;
}

static bool do_pause(char *rest) { return set_paused(rest, true); }

static bool do_resume(char *rest) { return set_paused(rest, false); }

static bool set_dropping(char *rest, bool dropping) {
  unsigned sides;
  if (!parse_sides(rest, &sides, &rest)) return false;
  for (Direction d = UP; d <= DOWN; d++)
    if (sides & 1u << d) policy[d].dropping = dropping;
  return true;
}

static bool do_drop(char *rest) { return set_dropping(rest, true); }

static bool do_undrop(char *rest) { return set_dropping(rest, false); }

static bool do_cut(char *rest) {
  bool reset = strcmp(rest, "rst") == 0;
  if (!reset && *rest != '\0') return false;
  for (Link *l = links; l != NULL; l = l->next) cut(l, reset);
  return true;
}

static bool do_refuse(char *rest) {
  close_listener();
  return *rest == '\0';
}

static bool do_accept(char *rest) { return *rest == '\0' && (listener >= 0 || open_listener()); }

static bool do_blackhole(char *rest) {
  blackhole = true;
  for (Link *l = links; l != NULL; l = l->next) {
    l->blackholed = true;
    forget_queue(&l->flow[UP]);
    forget_queue(&l->flow[DOWN]);
  }
  return *rest == '\0';
}

static bool do_forward(char *rest) {
  blackhole = false;
  return *rest == '\0';
}

static bool do_hold_after_reply(char *rest) {
  return armed.after_reply = parse_count(rest, &armed.after_replies);
}

static bool do_hold_up(char *rest) { return armed.up = parse_text(rest, &armed.up_text); }

static bool do_cut_reply(char *rest) {
  uint64_t count;
  if (!parse_count(rest, &count)) return false;
  armed.cut_after = (size_t)count;
  return armed.cut = true;
}

static bool do_drop_reply(char *rest) {
  if (*rest == '\0') return armed.drop = true;
  return armed.drop_match = parse_text(rest, &armed.drop_text);
}

static bool do_inject_reply(char *rest) {
  return armed.inject = parse_text(rest, &armed.inject_text);
}

static bool do_disarm(char *rest) {
  memset(&armed, 0, sizeof(armed));
  for (Link *l = links; l != NULL; l = l->next) l->swallow_reply = false;
  return *rest == '\0';
}

static void forget_journal(void) {
  while (journal.first != NULL) {
    Entry *e = journal.first;
    journal.first = e->next;
    free(e);
  }
  journal.end = &journal.first;
}

/* Back to a plain relay, for links to come and present ones alike; the counts and the log stay. */
static bool do_plain(char *rest) {
  char both[] = "both";
  memset(policy, 0, sizeof(policy));
  blackhole = false;
  return do_resume(both) && do_disarm(rest) && do_accept(rest);
}

static bool do_reset(char *rest) {
  memset(&counts, 0, sizeof(counts));
  forget_journal();
  return *rest == '\0';
}

static bool do_stats(char *rest) {
  unsigned open = 0;
  if (*rest != '\0') return false;
  for (const Link *l = links; l != NULL; l = l->next) open += !l->flow[UP].read_over;
  answer("connections=%" PRIu64 " open=%u asked=%" PRIu64 " answered=%" PRIu64 " up=%" PRIu64
         " down=%" PRIu64,
         counts.connections, open, counts.asked, counts.answered, counts.bytes[UP],
         counts.bytes[DOWN]);
  return true;
}

static bool do_wait_held(char *rest) {
  Nanos time;
  if (!parse_seconds(rest, &time)) return false;
  wait_held_until = now() + time;
  return true;
}

static void print_entry(const Entry *e) {
  printf("%.6f %u ", (double)e->at / NS_PER_S, e->link);
  for (size_t i = 0; i < e->size; i++) {
    unsigned char c = (unsigned char)e->bytes[i];
    if (c == '\r')
      fputs("\\r", stdout);
    else if (c == '\n')
      fputs("\\n", stdout);
    else if (c == '\\')
      fputs("\\\\", stdout);
    else if (c < 0x20 || c >= 0x7f)
      printf("\\x%02x", c);
    else
      putchar(c);
  }
  putchar('\n');
}

/* "log on" and "log off" answer ok; "log" answers a line for each piece, then a line with a dot. */
static bool do_log(char *rest) {
  bool on = strcmp(rest, "on") == 0;
  if (on || strcmp(rest, "off") == 0) {
    journal.on = on;
    answer("ok");
    return true;
  }
  if (*rest != '\0') return false;
  for (const Entry *e = journal.first; e != NULL; e = e->next) print_entry(e);
  answer(".");
  return true;
}

static const struct {
  const char *name;
  bool (*run)(char *rest);
  bool answers; /* by itself, now or later */
} commands[] = {
    {"stats", do_stats, true},
    {"reset", do_reset, false},
    {"log", do_log, true},
    {"wait-held", do_wait_held, true},
    {"delay", do_delay, false},
    {"dribble", do_dribble, false},
    {"pause", do_pause, false},
    {"resume", do_resume, false},
    {"drop", do_drop, false},
    {"undrop", do_undrop, false},
    {"cut", do_cut, false},
    {"refuse", do_refuse, false},
    {"accept", do_accept, false},
    {"blackhole", do_blackhole, false},
    {"forward", do_forward, false},
    {"hold-after-reply", do_hold_after_reply, false},
    {"hold-up", do_hold_up, false},
    {"cut-reply", do_cut_reply, false},
    {"drop-reply", do_drop_reply, false},
    {"inject-reply", do_inject_reply, false},
    {"disarm", do_disarm, false},
    {"plain", do_plain, false},
};

static void run_command(char *line) {
  char *rest = strchr(line, ' ');
  if (rest == NULL)
    rest = line + strlen(line);
  else
    *rest++ = '\0';
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    if (strcmp(line, commands[i].name) != 0) continue;
    errno = 0;
    if (!commands[i].run(rest))
      answer("error %s: %s", line, errno != 0 ? strerror(errno) : "bad argument");
    else if (!commands[i].answers)
      answer("ok");
    return;
  }
  answer("error no such command: %s", line);
}

static char input[COMMAND_LIMIT];
static size_t input_size;

/* Runs the whole lines that are there; none while wait-held owes its answer. */
static void run_commands(void) {
  char *end;
  while (wait_held_until == 0 && (end = memchr(input, '\n', input_size)) != NULL) {
    size_t used = (size_t)(end - input) + 1;
    char line[COMMAND_LIMIT];
    memcpy(line, input, used);
    line[used - 1] = '\0';
    input_size -= used;
    memmove(input, input + used, input_size);
    run_command(line);
  }
}

static void read_commands(void) {
  ssize_t got = read(STDIN_FILENO, input + input_size, sizeof(input) - input_size);
  if (got < 0 && errno == EINTR) return;
  if (got <= 0) {
    close_listener();
    exit(0);
  }
  input_size += (size_t)got;
}

static void answer_wait_held(void) {
  if (wait_held_until == 0) return;
  bool held = something_held();
  if (!held && now() < wait_held_until) return;
  wait_held_until = 0;
  answer(held ? "ok" : "timeout");
}

/* }====================================================== */

/*
** {======================================================
** The loop
** =======================================================
*/

enum { COMMANDS, LISTENER, LINKS }; /* places in the set; then two for each link */

static short wanted(const Link *l, Direction d, Nanos at) {
  const Flow *in = &l->flow[d], *out = &l->flow[other(d)];
  unsigned events = 0;
  if (!in->read_over && in->queued < QUEUE_LIMIT) events |= POLLIN;
  if (is_due(out, other(d), at)) events |= POLLOUT;
  return (short)events;
}

static size_t fill_set(struct pollfd **set, Nanos *wake) {
  static size_t room;
  size_t n = LINKS;
  for (const Link *l = links; l != NULL; l = l->next) n += 2;
  if (n > room) {
    room = 2 * n;
    *set = realloc(*set, room * sizeof(**set));
    if (*set == NULL) die("memory");
  }
  (*set)[COMMANDS] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
  (*set)[LISTENER] = (struct pollfd){listener, POLLIN, 0};
  Nanos at = now();
  *wake = wait_held_until != 0 ? wait_held_until : NEVER;
  n = LINKS;
  for (const Link *l = links; l != NULL; l = l->next) {
    for (Direction d = UP; d <= DOWN; d++) {
      short events = wanted(l, d, at);
      /* a socket that we want nothing of is left out: it would report its hang-up again and again
       */
      (*set)[n++] = (struct pollfd){events != 0 ? l->fd[d] : -1, events, 0};
      const Flow *f = &l->flow[d];
      if (f->first != NULL && f->first->due > at && !is_held(f, d) && f->first->due < *wake)
        *wake = f->first->due;
    }
  }
  return n;
}

static void turn(void) {
  static struct pollfd *set;
  Nanos wake;
  size_t n = fill_set(&set, &wake);
  Nanos rest = wake == NEVER ? 0 : wake - now();
  if (rest < 0) rest = 0;
  struct timespec time = {(time_t)(rest / NS_PER_S), (long)(rest % NS_PER_S)};
  if (ppoll(set, n, wake == NEVER ? NULL : &time, NULL) < 0) {
    if (errno != EINTR) die("ppoll");
    return;
  }
  size_t i = LINKS;
  for (Link *l = links; l != NULL; l = l->next) {
    for (Direction d = UP; d <= DOWN; d++, i++) {
      bool stirs = (set[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
      if (stirs && l->fd[d] >= 0 && !l->flow[d].read_over) arrive(l, d);
    }
  }
  if (set[COMMANDS].revents != 0) read_commands();
  run_commands();
  depart_all();
  sweep();
  if (listener >= 0 && set[LISTENER].revents != 0) accept_client();
  answer_wait_held();
  run_commands();
}

int main(int argc, char **argv) {
  const char *to = NULL, *on = NULL;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--target") == 0)
      to = argv[i + 1];
    else if (strcmp(argv[i], "--listen") == 0)
      on = argv[i + 1];
  }
  if (to == NULL || argc % 2 == 0) {
    fprintf(stderr, "usage: relay --target HOST:PORT|/PATH [--listen PORT|/PATH]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  parse_address(to, &target);
  parse_address(on == NULL ? "0" : on, &here);
  if (on == NULL)
    open_any_port();
  else if (!open_listener())
    die(on);
  if (here.is_path)
    answer("path %s", here.at.un.sun_path);
  else
    answer("port %u", (unsigned)ntohs(here.at.in.sin_port));
  for (;;) turn();
}

/* }====================================================== */
