/*
 * A server that lies: a thread of the fuzz target that answers memlock's commands as a script says,
 * which is the fuzzer's input.
 *
 * Behind it stands a small honest memcached of its own, so that the script need only tell where to
 * depart from the truth, and the deep states of memlock are reached. Each command that waits for a
 * reply takes one line of the script; when there are none left, all answers are honest. A line:
 *
 *     =TEXT     the honest reply, then TEXT: more than was asked for
 *     <N        the honest reply, cut after N bytes, and the connection is closed
 *     *NC...    the honest reply with byte N replaced by C, for each pair NC
 *     -LINE     the commands without reply that came before this one never arrived; then LINE
 *     ~         no answer: the client runs into its timeout (once in a script; then it closes)
 *     !         the connection is closed
 *     other     that text is the reply; in it %k is the key that was asked for, %f and %l the fence
 *               and the lock key, %r the last record that was written, %n its length, %c the newest
 *               CAS id, %. a line end, %% a per cent sign
 *
 * What is known to make libmemcached itself fail is taken out of replies before they leave; see
 * tame(). All that memlock says must be well-formed commands, about its own keys, with CAS ids that
 * this very connection has shown: that is claimed here, whatever was answered before.
 */
#ifndef FAKE_H
#define FAKE_H

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fuzz.h"

#define FAKE_LINES 16   /* connections at a time */
#define FAKE_ITEMS 8    /* that the honest server keeps */
#define FAKE_VALUE 1024 /* bytes of an item */
#define FAKE_REPLY 8192 /* bytes of a reply */
#define FAKE_LOG (1 << 18)

struct fake_item {
  char key[256];
  char value[FAKE_VALUE];
  size_t length;
  unsigned long flags;
  uint64_t cas;
};

struct fake_line {
  int fd; /* -1: free */
  bool mute;
  bool authenticated;
  bool shifted; /* more was sent than asked for: each command may get an earlier one's reply */
  size_t length;
  char in[1 << 15];
  size_t shown;      /* bytes of `out` */
  char out[1 << 16]; /* all that was ever sent on this connection */
};

static struct fake {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  char directory[64];
  char path[80];
  int listener;

  /* The script. */
  const uint8_t *script;
  size_t left;
  bool credentials;
  bool stalled;
  bool surplus; /* more was sent than asked for: what came for what is no longer known */

  /* What happened in the operation under way. */
  size_t logged;
  char log[FAKE_LOG]; /* all that was sent */
  bool stored;        /* a cas of the lock key was answered with STORED */
  bool removed;       /* an empty one was */
  bool absent;        /* a write of the lock key was answered with NOT_FOUND */
  bool exists;        /* ... with EXISTS or NOT_STORED */
  bool overflow;

  bool synced;
  uint64_t cas;
  struct fake_item items[FAKE_ITEMS];
  struct fake_line lines[FAKE_LINES];
  char record[FAKE_VALUE]; /* the last one written */
  size_t record_length;
} fake;

#define LOCK_KEY "memlock:x"
#define FENCE_KEY "#" LOCK_KEY

/* ---- The honest server ---------------------------------------------------------------------- */

static struct fake_item *fake_find(const char *key) {
  for (size_t i = 0; i < FAKE_ITEMS; i++)
    if (strcmp(fake.items[i].key, key) == 0) return &fake.items[i];
  return NULL;
}

static void fake_put(struct fake_item *item, const char *key, const char *value, size_t length,
                     unsigned long flags, long expiry) {
  if (expiry > 2592000) { /* in 1970 */
    item->key[0] = '\0';
    return;
  }
  (void)snprintf(item->key, sizeof item->key, "%s", key);
  memcpy(item->value, value, length);
  item->length = length;
  item->flags = flags;
  item->cas = ++fake.cas;
}

/* ---- Commands ------------------------------------------------------------------------------- */

#define FAKE_WORDS 300

struct fake_command {
  size_t count;
  char *words[FAKE_WORDS];
  const char *data;
  size_t length;
  bool noreply;
};

static unsigned long long fake_number(const char *digits) {
  char *end;
  errno = 0;
  unsigned long long number = strtoull(digits, &end, 10);
  CLAIM(digits[0] >= '0' && digits[0] <= '9' && *end == '\0' && errno == 0);
  return number;
}

static bool fake_is_write(const char *verb) {
  return strcmp(verb, "add") == 0 || strcmp(verb, "set") == 0 || strcmp(verb, "cas") == 0;
}

static bool fake_is_ours(const char *key) {
  if (key[0] == '#') key++;
  return strncmp(key, "memlock", strlen("memlock")) == 0;
}

/* A CAS id may only come from what this connection has shown. libmemcached reads numbers in many
 * forms, so any run of digits will do. */
static bool fake_has_shown(const struct fake_line *line, uint64_t id) {
  for (size_t i = 0; i < line->shown; i++) {
    if (line->out[i] < '0' || line->out[i] > '9') continue;
    char digits[32];
    size_t length = 0;
    while (i < line->shown && line->out[i] >= '0' && line->out[i] <= '9') {
      if (length < sizeof digits - 1) digits[length++] = line->out[i];
      i++;
    }
    digits[length] = '\0';
    if (strtoull(digits, NULL, 10) == id) return true;
  }
  return false;
}

static const char *fake_store(struct fake_line *line, struct fake_command *command) {
  const char *verb = command->words[0], *key = command->words[1];
  CLAIM(command->count == (strcmp(verb, "cas") == 0 ? 6u : 5u));
  bool is_lock = strcmp(key, LOCK_KEY) == 0;
  struct fake_item *item = fake_find(key);
  struct fake_item *place = item != NULL ? item : fake_find("");
  CLAIM(place != NULL);
  unsigned long flags = (unsigned long)fake_number(command->words[2]);
  long expiry = (long)fake_number(command->words[3]);
  if (is_lock && command->length > 0) {
    fake.record_length = command->length;
    memcpy(fake.record, command->data, command->length);
  }
  if (strcmp(verb, "set") == 0) {
    /* The one thing that we ever set. */
    CLAIM(fake.credentials && strcmp(key, "memlock-auth") == 0 && !command->noreply);
    line->authenticated = true;
    return "STORED\r\n";
  }
  if (strcmp(verb, "add") == 0) {
    if (item != NULL) return "NOT_STORED\r\n";
    fake_put(place, key, command->data, command->length, flags, expiry);
    return "STORED\r\n";
  }
  uint64_t id = fake_number(command->words[5]);
  CLAIM(id != 0);
  if (id != INT64_MAX) /* the id that no item has, by which absence is asked */
    CLAIM(fake_has_shown(line, id));
  if (item == NULL) return "NOT_FOUND\r\n";
  if (item->cas != id) return "EXISTS\r\n";
  fake_put(item, key, command->data, command->length, flags, expiry);
  return "STORED\r\n";
}

static void fake_append(char *out, size_t *length, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As printf, at the end of `out`; what does not fit is left out. */
static void fake_append(char *out, size_t *length, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = vsnprintf(out + *length, FAKE_REPLY - *length, format, arguments);
  va_end(arguments);
  if (written > 0 && *length + (size_t)written < FAKE_REPLY) *length += (size_t)written;
}

static void fake_append_bytes(char *out, size_t *length, const char *bytes, size_t count) {
  if (*length + count >= FAKE_REPLY) return;
  memcpy(out + *length, bytes, count);
  *length += count;
}

/* Does what a command asks for, and writes what a memcached answers. Returns the length. */
static size_t fake_obey(struct fake_line *line, struct fake_command *command, char *out) {
  size_t length = 0;
  const char *verb = command->words[0];
  if (fake_is_write(verb)) {
    fake_append(out, &length, "%s", fake_store(line, command));
  } else if (strcmp(verb, "incr") == 0) {
    CLAIM(command->count == 3 && strcmp(command->words[2], "1") == 0);
    struct fake_item *item = fake_find(command->words[1]);
    if (item == NULL) {
      fake_append(out, &length, "NOT_FOUND\r\n");
    } else {
      item->value[item->length] = '\0';
      uint64_t number = strtoull(item->value, NULL, 10) + 1;
      item->length = (size_t)snprintf(item->value, sizeof item->value, "%" PRIu64, number);
      item->cas = ++fake.cas;
      fake_append(out, &length, "%s\r\n", item->value);
    }
  } else if (strcmp(verb, "gets") == 0) {
    CLAIM(command->count >= 2);
    for (size_t i = 1; i < command->count; i++) {
      const struct fake_item *item = fake_find(command->words[i]);
      if (item == NULL) continue;
      fake_append(out, &length, "VALUE %s %lu %zu %" PRIu64 "\r\n", item->key, item->flags,
                  item->length, item->cas);
      fake_append_bytes(out, &length, item->value, item->length);
      fake_append(out, &length, "\r\n");
    }
    fake_append(out, &length, "END\r\n");
  } else if (strcmp(verb, "version") == 0) { /* libmemcached asks for it before it asks for stats */
    fake_append(out, &length, "VERSION 1.6.18\r\n");
  } else {
    CLAIM(strcmp(verb, "stats") == 0);
    fake_append(out, &length,
                "STAT pid 1\r\nSTAT version 1.6.18\r\nSTAT uptime 100\r\n"
                "STAT evictions 0\r\nSTAT limit_maxbytes 67108864\r\nEND\r\n");
  }
  return length;
}

/* ---- The script ----------------------------------------------------------------------------- */

/* The next line of the script; false at its end. */
static bool fake_next(const uint8_t **text, size_t *length) {
  if (fake.left == 0) return false;
  const uint8_t *end = memchr(fake.script, '\n', fake.left);
  *text = fake.script;
  *length = end != NULL ? (size_t)(end - fake.script) : fake.left;
  size_t used = *length + (end != NULL);
  fake.script += used;
  fake.left -= used;
  return true;
}

static void fake_expand(const struct fake_command *command, const uint8_t *text, size_t size,
                        char *out, size_t *length) {
  for (size_t i = 0; i < size; i++) {
    char letter = (char)text[i];
    if (letter != '%' || i + 1 == size) {
      fake_append_bytes(out, length, &letter, 1);
      continue;
    }
    switch (text[++i]) {
    case 'k':
      fake_append(out, length, "%s", command->count > 1 ? command->words[1] : "");
      break;
    case 'l':
      fake_append(out, length, "%s", LOCK_KEY);
      break;
    case 'f':
      fake_append(out, length, "%s", FENCE_KEY);
      break;
    case 'r':
      fake_append_bytes(out, length, fake.record, fake.record_length);
      break;
    case 'n':
      fake_append(out, length, "%zu", fake.record_length);
      break;
    case 'c':
      fake_append(out, length, "%" PRIu64, fake.cas);
      break;
    case '.':
      fake_append(out, length, "\r\n");
      break;
    default:
      letter = (char)text[i];
      fake_append_bytes(out, length, &letter, 1);
    }
  }
}

/* ---- What libmemcached does not survive ----------------------------------------------------- */

static bool fake_begins(const char *text, size_t length, const char *with) {
  return length >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* Lines that are an answer to any command, if not the right one: libmemcached survives them. */
static bool fake_is_harmless(const char *text, size_t length) {
  static const char *const lines[] = {"STORED", "NOT_STORED",   "EXISTS",      "NOT_FOUND",
                                      "ERROR",  "SERVER_ERROR", "CLIENT_ERROR"};
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
    if (fake_begins(text, length, lines[i])) return true;
  return false;
}

/* Replies that libmemcached takes for a success, though not for one of this command, and then an
 * assertion of its own fails: the program ends. */
static bool fake_aborts(const char *verb, const char *text, size_t length) {
  if (fake_is_write(verb)) {
    static const char *const lines[] = {"OK",   "END",     "VALUE",   "ITEM",
                                        "STAT", "VERSION", "DELETED", "TOUCHED"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
      if (fake_begins(text, length, lines[i])) return true;
    return length > 0 && ((text[0] >= '0' && text[0] <= '9') || text[0] == '-');
  }
  return false;
}

/* The header of a VALUE, changed so that libmemcached can bear it: the key not longer than 250
 * bytes (more overflow its buffer), and no length above a megabyte (it allocates all that it is
 * told, and at one that wraps around it writes to a wild address). Returns the length of the value;
 * false where the line is no header. */
static bool fake_header(const char *line, size_t length, char *out, size_t *written,
                        unsigned long long *value) {
  if (!fake_begins(line, length, "VALUE ")) return false;
  char text[1024], key[1024], rest[1024] = "";
  unsigned long long flags = 0;
  if (length >= sizeof text) return false;
  memcpy(text, line, length);
  text[length] = '\0';
  int fields = sscanf(text + 6, "%1023s %llu %llu %1023[^\r\n]", key, &flags, value, rest);
  if (fields < 3) return false;
  if (strlen(key) > 250) key[250] = '\0';
  if (*value > 1u << 20) *value = 1u << 20;
  fake_append(out, written, "VALUE %s %llu %llu%s%s\r\n", key, flags, *value,
              fields == 4 ? " " : "", rest);
  return true;
}

/*
 * Copies a reply without what would make libmemcached fail. What is left out, and so not tried:
 *
 *   - to a write that waits: what libmemcached takes for the success of another command (it ends
 *     the process)
 *   - lines of 900 bytes and more (at a kilobyte without an end, `incr` ends the process)
 *   - keys of more than 250 bytes in VALUE (they overflow a buffer), and lengths above a megabyte
 *   - lines that nobody asked for, other than the harmless ones, since a write may get them as its
 *     reply; once there was one, no other replies than harmless ones are given on this connection
 *
 * Returns whether the reply is whole; after one that is not, the connection is closed, because the
 * client would only wait.
 */
static bool fake_tame(struct fake_line *line, const char *verb, const char *in, size_t size,
                      char *out, size_t *written) {
  bool whole = false, is_first = true;
  *written = 0;
  for (size_t at = 0; at < size;) {
    const char *text = in + at;
    const char *end = memchr(text, '\n', size - at);
    size_t length = end != NULL ? (size_t)(end - text) + 1 : size - at;
    if (whole) { /* more than was asked for */
      if (end == NULL || length > 200 || !fake_is_harmless(text, length)) break;
      fake.surplus = line->shifted = true;
      fake_append_bytes(out, written, text, length);
      at += length;
      continue;
    }
    if (length > 900) { /* the end of it would not be looked for */
      fake_append_bytes(out, written, text, 900);
      return false;
    }
    if (end == NULL) {
      if (is_first && fake_aborts(verb, text, length)) break;
      fake_append_bytes(out, written, text, length);
      return false;
    }
    if (is_first && fake_aborts(verb, text, length)) break;
    is_first = false;
    unsigned long long value;
    if (strcmp(verb, "gets") == 0 && fake_header(text, length, out, written, &value)) {
      at += length;
      size_t there = size - at;
      /* A value and its line end. */
      size_t wanted = value < there ? (size_t)value + 2 : there;
      if (wanted > there) wanted = there;
      fake_append_bytes(out, written, in + at, wanted);
      if (value >= there || wanted < value + 2) return false;
      at += wanted;
      continue;
    }
    if (strcmp(verb, "gets") == 0 && fake_begins(text, length, "VALUE")) return false;
    fake_append_bytes(out, written, text, length);
    at += length;
    /* After one of these libmemcached waits for more, whatever it had asked for. */
    whole = !fake_begins(text, length, "STAT") && !fake_begins(text, length, "ITEM");
    if (!whole && strcmp(verb, "stats") != 0) return false;
  }
  return whole;
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void fake_close(struct fake_line *line) {
  (void)close(line->fd);
  line->fd = -1;
  (void)pthread_cond_broadcast(&fake.changed);
}

static void fake_note(const struct fake_command *command, const char *text, size_t length) {
  const char *key = command->count > 1 ? command->words[1] : "";
  if (fake_is_write(command->words[0]) && key[0] != '#') {
    bool stored = fake_begins(text, length, "STOR"); /* libmemcached looks at no more of it */
    fake.stored = fake.stored || stored;
    fake.removed = fake.removed || (stored && command->length == 0);
    fake.absent = fake.absent || fake_begins(text, length, "NOT_FOUND");
    fake.exists = fake.exists || fake_begins(text, length, "EXISTS") ||
                  fake_begins(text, length, "NOT_STORED");
  }
}

static void fake_say(struct fake_line *line, const char *text, size_t length) {
  if (fake.logged + length < sizeof fake.log) {
    memcpy(fake.log + fake.logged, text, length);
    fake.logged += length;
  } else {
    fake.overflow = true;
  }
  if (line->shown + length < sizeof line->out) {
    memcpy(line->out + line->shown, text, length);
    line->shown += length;
  }
  (void)send(line->fd, text, length, MSG_NOSIGNAL);
}

/* Whether the script says of the next reply that what came before it without reply is lost. */
static bool fake_is_lost(void) { return fake.left > 0 && fake.script[0] == '-'; }

static void fake_answer(struct fake_line *line, struct fake_command *command) {
  char reply[FAKE_REPLY], tamed[FAKE_REPLY];
  const uint8_t *text = NULL;
  size_t size = 0, length = 0, written = 0;
  bool close_after = false;
  if (line->mute) return;
  if (!fake_next(&text, &size)) {
    text = (const uint8_t *)"=";
    size = 1;
  }
  if (size > 0 && *text == '-') text++, size--;
  char kind = size > 0 ? (char)*text : '\0';
  if (kind == '!' || (kind == '~' && fake.stalled)) {
    fake_close(line);
    return;
  }
  if (kind == '~') {
    fake.stalled = line->mute = true;
    return;
  }
  if (kind == '=' || kind == '<' || kind == '*') length = fake_obey(line, command, reply);
  if (kind == '=') {
    fake_expand(command, text + 1, size - 1, reply, &length);
  } else if (kind == '<') {
    size_t most = 0;
    for (size_t i = 1; i < size && text[i] >= '0' && text[i] <= '9' && most < FAKE_REPLY; i++)
      most = most * 10 + (size_t)(text[i] - '0');
    if (most < length) length = most;
    close_after = true;
  } else if (kind == '*') {
    for (size_t i = 1; i + 1 < size; i += 2)
      if (text[i] < length) reply[text[i]] = (char)text[i + 1];
  } else {
    fake_expand(command, text, size, reply, &length);
  }
  const bool was_shifted = line->shifted;
  if (!fake_tame(line, command->words[0], reply, length, tamed, &written)) close_after = true;
  if (was_shifted && !fake_is_harmless(tamed, written)) {
    written = 0;
    fake_append(tamed, &written, "ERROR\r\n");
    close_after = false;
  }
  fake_note(command, tamed, written);
  fake_say(line, tamed, written);
  if (close_after) fake_close(line);
}

/* Takes one command from the front of what came; false when it is not all there. */
static bool fake_take(struct fake_line *line) {
  char *end = memchr(line->in, '\n', line->length);
  if (end == NULL) {
    CLAIM(line->length < sizeof line->in);
    return false;
  }
  size_t used = (size_t)(end - line->in) + 1;
  char head[sizeof line->in];
  CLAIM(used >= 2 && end[-1] == '\r');
  memcpy(head, line->in, used - 2);
  head[used - 2] = '\0';

  struct fake_command command = {0};
  char *rest = NULL;
  CLAIM(strlen(head) == used - 2);
  for (char *word = strtok_r(head, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    CLAIM(command.count < FAKE_WORDS);
    command.words[command.count++] = word;
  }
  CLAIM(command.count > 0);
  if (strcmp(command.words[command.count - 1], "noreply") == 0) {
    command.noreply = true;
    command.count--;
  }
  const char *verb = command.words[0];
  if (fake_is_write(verb)) {
    CLAIM(command.count >= 5);
    command.length = (size_t)fake_number(command.words[4]);
    CLAIM(command.length < FAKE_VALUE);
    if (line->length < used + command.length + 2) return false;
    command.data = line->in + used;
    CLAIM(memcmp(command.data + command.length, "\r\n", 2) == 0);
    used += command.length + 2;
  }
  if (strcmp(verb, "quit") == 0 || strcmp(verb, "sync") == 0) {
    if (verb[0] == 's') fake.synced = true;
    fake_close(line);
    return false;
  }
  for (size_t i = 1; strcmp(verb, "gets") == 0 && i < command.count; i++)
    CLAIM(fake_is_ours(command.words[i]));
  if (strcmp(verb, "stats") != 0 && strcmp(verb, "version") != 0)
    CLAIM(command.count > 1 && fake_is_ours(command.words[1]));
  /* Only for statistics libmemcached may have opened a connection within a call of ours. */
  if (fake.credentials)
    CLAIM(line->authenticated || strcmp(verb, "set") == 0 || strcmp(verb, "stats") == 0 ||
          strcmp(verb, "version") == 0);

  if (command.noreply) {
    char ignored[FAKE_REPLY];
    if (fake_is_lost()) {
      if (fake_is_write(verb) && strcmp(command.words[1], LOCK_KEY) == 0 && command.length > 0) {
        fake.record_length = command.length;
        memcpy(fake.record, command.data, command.length);
      }
    } else {
      (void)fake_obey(line, &command, ignored);
    }
  } else {
    if (strcmp(verb, "set") == 0) line->authenticated = true;
    fake_answer(line, &command);
  }
  memmove(line->in, line->in + used, line->length - used);
  line->length -= used;
  return line->fd >= 0;
}

static void fake_hear(struct fake_line *line) {
  ssize_t got = recv(line->fd, line->in + line->length, sizeof line->in - line->length, 0);
  if (got <= 0) {
    fake_close(line);
    return;
  }
  line->length += (size_t)got;
  while (fake_take(line)) continue;
}

static void fake_accept(void) {
  int fd = accept(fake.listener, NULL, NULL);
  if (fd < 0) return;
  for (size_t i = 0; i < FAKE_LINES; i++) {
    struct fake_line *line = &fake.lines[i];
    if (line->fd >= 0) continue;
    line->fd = fd;
    line->mute = line->authenticated = line->shifted = false;
    line->length = line->shown = 0;
    return;
  }
  (void)close(fd);
}

static void *fake_run(void *nothing) {
  for (;;) {
    struct pollfd polls[1 + FAKE_LINES] = {{.fd = fake.listener, .events = POLLIN}};
    for (size_t i = 0; i < FAKE_LINES; i++)
      polls[1 + i] = (struct pollfd){.fd = fake.lines[i].fd, .events = POLLIN};
    if (poll(polls, 1 + FAKE_LINES, -1) <= 0) continue;
    (void)pthread_mutex_lock(&fake.mutex);
    for (size_t i = 0; i < FAKE_LINES; i++)
      if (polls[1 + i].revents != 0) fake_hear(&fake.lines[i]);
    if (polls[0].revents != 0) fake_accept();
    (void)pthread_mutex_unlock(&fake.mutex);
  }
  return nothing;
}

static void fake_remove(void) {
  (void)unlink(fake.path);
  (void)rmdir(fake.directory);
}

/* Starts the server, once; its address is fake.path. */
static void fake_start(void) {
  const char *where = getenv("TMPDIR");
  if (where == NULL || where[0] != '/' || strlen(where) > 40) where = "/tmp";
  (void)snprintf(fake.directory, sizeof fake.directory, "%s/ml-XXXXXX", where);
  CLAIM(mkdtemp(fake.directory) != NULL);
  (void)snprintf(fake.path, sizeof fake.path, "%s/socket", fake.directory);
  (void)atexit(fake_remove);
  for (size_t i = 0; i < FAKE_LINES; i++) fake.lines[i].fd = -1;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", fake.path);
  fake.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  CLAIM(fake.listener >= 0);
  CLAIM(bind(fake.listener, (const struct sockaddr *)&address, sizeof address) == 0);
  CLAIM(listen(fake.listener, 64) == 0);
  (void)pthread_mutex_init(&fake.mutex, NULL);
  (void)pthread_cond_init(&fake.changed, NULL);
  CLAIM(pthread_create(&fake.thread, NULL, fake_run, NULL) == 0);
}

/* Begins a run: an empty server with this script. */
static void fake_begin(const uint8_t *script, size_t size, bool credentials) {
  (void)pthread_mutex_lock(&fake.mutex);
  fake.script = script;
  fake.left = size;
  fake.credentials = credentials;
  fake.stalled = fake.surplus = fake.overflow = false;
  fake.logged = fake.record_length = 0;
  fake.synced = false;
  fake.cas = 100;
  for (size_t i = 0; i < FAKE_ITEMS; i++) fake.items[i].key[0] = '\0';
  (void)pthread_mutex_unlock(&fake.mutex);
}

/* Begins an operation. With a surplus, what was said earlier may be read only now. */
static void fake_forget(void) {
  (void)pthread_mutex_lock(&fake.mutex);
  if (!fake.surplus) fake.logged = 0;
  fake.stored = fake.removed = fake.absent = fake.exists = false;
  (void)pthread_mutex_unlock(&fake.mutex);
}

/* Ends a run: waits until all of its connections are closed. One that memlock has left may still
 * wait to be accepted; ours comes behind it. */
static void fake_end(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", fake.path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CLAIM(fd >= 0);
  CLAIM(connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
  CLAIM(send(fd, "sync\r\n", 6, MSG_NOSIGNAL) == 6);
  (void)pthread_mutex_lock(&fake.mutex);
  fake.left = 0;
  while (!fake.synced) (void)pthread_cond_wait(&fake.changed, &fake.mutex);
  for (size_t i = 0; i < FAKE_LINES; i++)
    while (fake.lines[i].fd >= 0) (void)pthread_cond_wait(&fake.changed, &fake.mutex);
  (void)pthread_mutex_unlock(&fake.mutex);
  (void)close(fd);
}

/* Was this said since the operation began? */
static bool fake_said(const char *bytes, size_t length) {
  (void)pthread_mutex_lock(&fake.mutex);
  bool found = fake.overflow || length == 0 || memmem(fake.log, fake.logged, bytes, length) != NULL;
  (void)pthread_mutex_unlock(&fake.mutex);
  return found;
}

/* Was an item of this key shown since the operation began? libmemcached takes any byte that is not
 * a visible character for the space after the key. */
static bool fake_showed(const char *key) {
  char header[300];
  size_t length = (size_t)snprintf(header, sizeof header, "VALUE %s", key);
  (void)pthread_mutex_lock(&fake.mutex);
  bool found = fake.overflow;
  const char *at = fake.log, *end = fake.log + fake.logged;
  while (!found && (at = memmem(at, (size_t)(end - at), header, length)) != NULL) {
    at += length;
    found = at == end || !isgraph((unsigned char)*at);
  }
  (void)pthread_mutex_unlock(&fake.mutex);
  return found;
}

/* What the flags above say, with the lock on them; after a surplus anything may have been said. */
static bool fake_told(const bool *flag) {
  (void)pthread_mutex_lock(&fake.mutex);
  bool told = *flag || fake.surplus;
  (void)pthread_mutex_unlock(&fake.mutex);
  return told;
}

#endif
