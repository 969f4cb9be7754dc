#include "client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "doubt.h"
#include "keeper.h"
#include "nonce.h"
#include "process.h"

struct ml_client {
  unsigned references;
  bool closed;
  uint64_t generation; /* of the process that uses it */
  struct ml_store *store;
  struct ml_keeper *keeper; /* NULL until a lock is to be renewed in the background */
  int pipe[2];              /* for ml_client_fd: read end, write end; -1 until it is asked for */
  struct ml_lock *locks;
  struct ml_doubts doubts;
  struct ml_stats stats;
  uint64_t trips_before;        /* round trips when the operation began */
  uint64_t earlier_round_trips; /* of stores that were given up */
  char *label;
  bool labelled; /* by the program; else it names this process */
  char *prefix;
  char *identity;
  char *username;
  char *password;
  int64_t ttl;
  int64_t timeout;
  int64_t retry_min;
  int64_t retry_max;
  bool proxy;
  struct ml_servers servers;
};

/* Checks. */

static bool is_key_byte(unsigned char byte) { return byte > 0x20 && byte != 0x7f; }

static enum ml_status check_bytes(const char *what, const char *text, size_t length,
                                  struct ml_error *error) {
  for (size_t i = 0; i < length; i++)
    if (!is_key_byte((unsigned char)text[i]))
      return ml_fail(error, ML_INVALID,
                     "%s has byte 0x%02x at position %zu: allowed are 0x21-0x7e and 0x80-0xff",
                     what, (unsigned)(unsigned char)text[i], i + 1);
  return ML_OK;
}

enum ml_status ml_client_check_prefix(const char *prefix, size_t length, struct ml_error *error) {
  if (length > 0 && prefix[0] == '#')
    return ml_fail(error, ML_INVALID, "prefix begins with '#', which marks fence counters");
  if (length > ML_KEY_MAX - 2)
    return ml_fail(error, ML_INVALID, "prefix has %zu bytes: at most %d", length, ML_KEY_MAX - 2);
  return check_bytes("prefix", prefix, length, error);
}

enum ml_status ml_client_check_name(const char *prefix, const char *name, size_t length,
                                    struct ml_error *error) {
  size_t limit = ML_KEY_MAX - 1 - strlen(prefix);
  if (length == 0) return ml_fail(error, ML_INVALID, "name is empty");
  if (length > limit)
    return ml_fail(error, ML_INVALID,
                   "name has %zu bytes: with the prefix \"%s\" at most %zu fit into a key of "
                   "memcached",
                   length, prefix, limit);
  if (prefix[0] == '\0' && name[0] == '#')
    return ml_fail(error, ML_INVALID, "name begins with '#', which marks fence counters");
  return check_bytes("name", name, length, error);
}

enum ml_status ml_client_check_key(const char *key, size_t length, struct ml_error *error) {
  if (length == 0) return ml_fail(error, ML_INVALID, "key is empty");
  if (length > ML_KEY_MAX)
    return ml_fail(error, ML_INVALID, "key has %zu bytes: at most %d", length, ML_KEY_MAX);
  return check_bytes("key", key, length, error);
}

enum ml_status ml_client_check_ttl(double seconds, int64_t *ttl, struct ml_error *error) {
  if (!(seconds > 0 && seconds <= ML_TTL_MAX))
    return ml_fail(error, ML_INVALID,
                   "ttl must be a number of seconds above 0 and at most %d (28 days)", ML_TTL_MAX);
  *ttl = ml_clock_span(seconds);
  if (*ttl == 0) *ttl = 1; /* nanosecond: what is above 0 stays so */
  return ML_OK;
}

/* Opening and closing. */

void ml_client_defaults(struct ml_client_options *options) {
  *options = (struct ml_client_options){.ttl = ML_DEFAULT_TTL,
                                        .timeout = ML_DEFAULT_TIMEOUT,
                                        .retry_min = ML_PAUSE_MIN,
                                        .retry_max = ML_PAUSE_MAX};
}

static bool copy(char **to, const char *from) {
  if (from == NULL) return true;
  *to = strdup(from);
  return *to != NULL;
}

/* Writes "host:pid". What a host name may have that a label may not is replaced. */
static void write_default_label(char label[ML_LABEL_MAX + 1]) {
  char host[ML_LABEL_MAX - 16] = "";
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
    (void)snprintf(host, sizeof host, "localhost");
  (void)snprintf(label, ML_LABEL_MAX + 1, "%s:%ld", host, (long)getpid());
  for (char *c = label; *c != '\0'; c++)
    if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

static struct ml_store_options store_options(const struct ml_client *client) {
  return (struct ml_store_options){.servers = &client->servers,
                                   .timeout = client->timeout,
                                   .proxy = client->proxy,
                                   .username = client->username,
                                   .password = client->password};
}

static struct ml_store *open_store(const struct ml_client *client, struct ml_error *error) {
  const struct ml_store_options options = store_options(client);
  return ml_store_open(&options, error);
}

static void close_pipe(struct ml_client *client) {
  for (int i = 0; i < 2; i++) {
    if (client->pipe[i] >= 0) (void)close(client->pipe[i]);
    client->pipe[i] = -1;
  }
}

static void unref(struct ml_client *client) {
  if (--client->references > 0) return;
  ml_doubts_clear(&client->doubts);
  ml_store_close(client->store);
  close_pipe(client);
  free(client->label);
  free(client->prefix);
  free(client->identity);
  free(client->username);
  if (client->password != NULL) {
    for (volatile char *c = client->password; *c != '\0'; c++) *c = '\0';
    free(client->password);
  }
  free(client);
}

struct ml_client *ml_client_open(const struct ml_client_options *options, struct ml_error *error) {
  struct ml_client *client = calloc(1, sizeof *client);
  if (client == NULL) {
    (void)ml_fail(error, ML_REFUSED, "not enough memory for a client");
    return NULL;
  }
  client->references = 1;
  client->pipe[0] = client->pipe[1] = -1;
  client->generation = ml_process_generation();
  client->servers = options->servers;
  client->ttl = options->ttl;
  client->timeout = options->timeout;
  client->retry_min = options->retry_min;
  client->retry_max = options->retry_max;
  client->proxy = options->proxy;
  client->labelled = options->label != NULL;
  client->label = client->labelled ? strdup(options->label) : malloc(ML_LABEL_MAX + 1);
  const char *prefix = options->prefix != NULL ? options->prefix : ML_DEFAULT_PREFIX;
  if (client->label == NULL || !copy(&client->prefix, prefix) ||
      !copy(&client->identity, options->identity) || !copy(&client->username, options->username) ||
      !copy(&client->password, options->password)) {
    (void)ml_fail(error, ML_REFUSED, "not enough memory for a client");
    unref(client);
    return NULL;
  }
  if (!client->labelled) write_default_label(client->label);
  client->store = open_store(client, error);
  if (client->store == NULL) {
    unref(client);
    return NULL;
  }
  return client;
}

const char *ml_client_prefix(const struct ml_client *client) { return client->prefix; }
const struct ml_servers *ml_client_servers(const struct ml_client *client) {
  return &client->servers;
}
bool ml_client_closed(const struct ml_client *client) { return client->closed; }

size_t ml_client_held_count(const struct ml_client *client) {
  size_t count = 0;
  for (const struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next)
    if (ml_client_held(lock, NULL)) count++;
  return count;
}

/* What every operation begins and ends with. */

/* The child of a fork starts anew; see client.h. */
static void become_child(struct ml_client *client) {
  client->generation = ml_process_generation();
  if (client->store != NULL) client->earlier_round_trips += ml_store_round_trips(client->store);
  ml_store_abandon(client->store);
  client->store = NULL;
  if (client->keeper != NULL) ml_keeper_abandon(client->keeper);
  client->keeper = NULL;
  close_pipe(client);
  if (!client->labelled) write_default_label(client->label);
  for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next) {
    bool inherited = lock->owned || lock->inherited;
    lock->kept = NULL;
    ml_lock_disown(lock);
    lock->inherited = inherited;
  }
  ml_doubts_clear(&client->doubts);
}

static bool is_child(const struct ml_client *client) {
  return client->generation != ml_process_generation();
}

/* Makes sure that there is a store of this process. */
static enum ml_status attend(struct ml_client *client, struct ml_error *error) {
  if (client->closed) return ml_fail(error, ML_CLOSED, "the client is closed");
  if (is_child(client)) become_child(client);
  if (client->store == NULL) client->store = open_store(client, error);
  return client->store != NULL ? ML_OK : error->status;
}

/* Begins an operation on a server. Where the server answered last time, records in doubt are looked
 * for first: afterwards would eat into a lease that was just acquired, or spoil what was just read.
 */
static enum ml_status enter(struct ml_client *client, size_t server, struct ml_error *error) {
  enum ml_status status = attend(client, error);
  if (status != ML_OK) return status;
  ml_store_begin(client->store);
  if (ml_store_is_up(client->store, server))
    ml_doubts_settle(&client->doubts, client->store, server);
  client->trips_before = ml_store_round_trips(client->store);
  return ML_OK;
}

/* Ends an operation. */
static enum ml_status leave(struct ml_client *client, enum ml_status status) {
  if (status == ML_TIMEOUT || status == ML_UNREACHABLE || status == ML_REFUSED ||
      status == ML_UNSUPPORTED)
    client->stats.errors++;
  return status;
}

/* Ends one after which nothing is held that was not held before: if its server has just answered,
 * for the first time in a while perhaps, records in doubt are looked for there. */
static enum ml_status leave_and_settle(struct ml_client *client, const struct ml_key *key,
                                       enum ml_status status) {
  if (ml_store_round_trips(client->store) != client->trips_before)
    ml_doubts_settle(&client->doubts, client->store, key->server);
  return leave(client, status);
}

/* Counts what an operation found to be lost since `losses`. */
static void count_losses(struct ml_client *client, const struct ml_lock *lock, uint64_t losses) {
  client->stats.lost += lock->losses - losses;
}

/* Locks. */

size_t ml_client_key_text(const struct ml_client *client, size_t length) {
  return ML_KEY_TEXT_FOR(strlen(client->prefix) + length);
}

enum ml_status ml_client_add(struct ml_client *client, struct ml_lock *lock, char *text,
                             const char *name, size_t length, int64_t ttl, const char *identity,
                             struct ml_error *error) {
  enum ml_status status = attend(client, error);
  if (status != ML_OK) return status;
  *lock = (struct ml_lock){.client = client, .label = client->label};
  ml_store_place(client->store, &lock->key, text, client->prefix, name, length);
  lock->name = lock->key.text + 1 + strlen(client->prefix);
  lock->ttl = ttl != 0 ? ttl : client->ttl;
  if (identity == NULL) identity = client->identity;
  if (identity != NULL) {
    lock->named = true;
    (void)snprintf(lock->id, sizeof lock->id, "%s", identity);
  }
  ml_lock_ready(lock);
  lock->next = client->locks;
  if (lock->next != NULL) lock->next->previous = lock;
  client->locks = lock;
  client->references++;
  return ML_OK;
}

/* The keeper. */

void ml_client_auto_refresh(struct ml_lock *lock, int64_t max_hold) {
  lock->auto_refresh = true;
  lock->max_hold = max_hold;
}

/* A release whose outcome is unknown leaves a record in doubt. */
static void note_release(struct ml_client *client, struct ml_lock *lock) {
  if (lock->giving_up) lock->in_doubt = true;
  ml_doubts_note(&client->doubts, lock);
}

/* Before the lock is taken: where there is no thread to be had, it would only be given back, again
 * and again while somebody waits for it. */
static enum ml_status need_keeper(struct ml_client *client, struct ml_error *error) {
  if (client->keeper != NULL) return ML_OK;
  const struct ml_store_options options = store_options(client);
  client->keeper = ml_keeper_start(&options, client->pipe[1], error);
  return client->keeper != NULL ? ML_OK : error->status;
}

/* Hands a lock that was just acquired to the keeper; what it cannot renew is not to be held. */
static enum ml_status keep(struct ml_client *client, struct ml_lock *lock, struct ml_error *error) {
  ml_keeper_forget(client->keeper, lock); /* on_lost would speak of an acquisition that is over */
  lock->kept = ml_keeper_add(client->keeper, lock, lock->max_hold);
  if (lock->kept != NULL) return ML_OK;
  struct ml_error ignored;
  (void)ml_lock_release(lock, client->store, &ignored);
  note_release(client, lock);
  return ml_fail(error, ML_REFUSED, "lock \"%s\": not enough memory to renew it in the background",
                 lock->name);
}

/* Is the lock the program's to write, if need be again? */
static bool is_ours(struct ml_client *client, struct ml_lock *lock) {
  if (lock->kept == NULL) return true;
  if (!ml_keeper_take_back(client->keeper, lock->kept, lock)) return false;
  lock->kept = NULL;
  return true;
}

/* The keeper's part in this acquisition is over. */
static void end_keeping(struct ml_client *client, struct ml_lock *lock, bool lost) {
  bool left = ml_keeper_end(client->keeper, lock->kept);
  lock->kept = NULL;
  ml_lock_forget(lock, lost);
  lock->unsettled = left;
}

/* Before an object acquires again: whatever the keeper still does for its last acquisition must be
 * over, so that one writer is at work at a time. */
static enum ml_status settle_keeping(struct ml_client *client, struct ml_lock *lock,
                                     struct ml_error *error) {
  if (is_ours(client, lock)) return ML_OK;
  if (!ml_keeper_settle(client->keeper, lock->kept, ml_store_deadline(client->store)))
    return ml_fail(error, ML_TIMEOUT, "lock \"%s\": its last release is still under way",
                   lock->name);
  end_keeping(client, lock, lock->owned);
  return ML_OK;
}

static enum ml_status ask_keeper(struct ml_client *client, struct ml_lock *lock, enum ml_wish wish,
                                 int64_t ttl, struct ml_error *error) {
  enum ml_status status =
      ml_keeper_ask(client->keeper, lock->kept, wish, ttl, ml_store_deadline(client->store), error);
  if (status == ML_LOST) end_keeping(client, lock, true);
  return status;
}

/* Neither end may block, or be inherited by another program. */
static int open_pipe(int ends[2]) {
#ifdef __APPLE__
  if (pipe(ends) != 0) return -1;
  for (int i = 0; i < 2; i++) {
    if (fcntl(ends[i], F_SETFD, FD_CLOEXEC) == -1 || fcntl(ends[i], F_SETFL, O_NONBLOCK) == -1) {
      (void)close(ends[0]);
      (void)close(ends[1]);
      return -1;
    }
  }
  return 0;
#else
  return pipe2(ends, O_CLOEXEC | O_NONBLOCK);
#endif
}

int ml_client_fd(struct ml_client *client, struct ml_error *error) {
  if (attend(client, error) != ML_OK) return -1;
  if (client->pipe[0] >= 0) return client->pipe[0];
  if (open_pipe(client->pipe) != 0) {
    client->pipe[0] = client->pipe[1] = -1;
    (void)ml_fail(error, ML_REFUSED, "no descriptor to be had for notices of loss");
    return -1;
  }
  if (client->keeper != NULL) ml_keeper_notify(client->keeper, client->pipe[1]);
  return client->pipe[0];
}

const struct ml_lock *ml_client_next_lost(struct ml_client *client, char *message, size_t size) {
  if (client->closed || is_child(client) || client->keeper == NULL) return NULL;
  return ml_keeper_next_lost(client->keeper, client->pipe[0], message, size);
}

/* Operations. */

void ml_client_drop(struct ml_lock *lock, uint64_t tenure) {
  struct ml_client *client = lock->client;
  if (lock->tenure != tenure || client->closed || is_child(client)) return;
  if (is_ours(client, lock)) {
    ml_lock_drop(lock, client->store, false);
    ml_doubts_note(&client->doubts, lock);
    return;
  }
  ml_keeper_drop(client->keeper, lock->kept);
  lock->kept = NULL;
  ml_lock_forget(lock, false);
}

void ml_client_remove(struct ml_lock *lock) {
  struct ml_client *client = lock->client;
  ml_client_drop(lock, lock->tenure);
  if (client->keeper != NULL && !is_child(client)) ml_keeper_forget(client->keeper, lock);
  ml_doubts_part(&client->doubts, lock);
  if (lock->previous != NULL)
    lock->previous->next = lock->next;
  else
    client->locks = lock->next;
  if (lock->next != NULL) lock->next->previous = lock->previous;
  lock->client = NULL;
  unref(client);
}

enum ml_status ml_client_acquire(struct ml_lock *lock, struct ml_error *error) {
  struct ml_client *client = lock->client;
  enum ml_status status = enter(client, lock->key.server, error);
  if (status != ML_OK) return status;
  uint64_t losses = lock->losses;
  client->stats.attempts++;
  if (lock->kept != NULL && !ml_client_held(lock, NULL))
    status = settle_keeping(client, lock, error);
  if (status == ML_OK && lock->auto_refresh) status = need_keeper(client, error);
  if (status == ML_OK) status = ml_lock_acquire(lock, client->store, error);
  ml_doubts_note(&client->doubts, lock);
  count_losses(client, lock, losses);
  if (status == ML_OK && lock->auto_refresh) status = keep(client, lock, error);
  if (status == ML_OK) client->stats.acquired++;
  if (status == ML_HELD) client->stats.contended++;
  return status == ML_HELD ? leave_and_settle(client, &lock->key, status) : leave(client, status);
}

/* What another attempt cannot change. */
static bool is_final(const struct ml_lock *lock, enum ml_status status) {
  return status == ML_OK || status == ML_UNSUPPORTED || status == ML_CLOSED ||
         ml_client_held(lock, NULL);
}

enum ml_status ml_client_try(struct ml_lock *lock, struct ml_wait *wait, int64_t *pause,
                             struct ml_error *error) {
  struct ml_client *client = lock->client;
  int64_t now = ml_clock_now();
  *pause = 0;
  if (wait->deadline == 0) {
    wait->deadline = ml_clock_after(now, wait->span);
    wait->backoff.started = now;
    int64_t yield = wait->span > 0 && !ml_client_held(lock, NULL)
                        ? ml_courtesy_pause(&lock->courtesy, now, ml_nonce_unit())
                        : 0;
    if (yield > 0) {
      *pause = yield < wait->span ? yield : wait->span;
      client->stats.waited += *pause;
      return ml_fail(error, ML_HELD, "lock \"%s\": others go first", lock->name);
    }
  }
  enum ml_status status = ml_client_acquire(lock, error);
  now = ml_clock_now();
  if (is_final(lock, status) || now >= wait->deadline) return status;
  *pause = ml_backoff_pause(&wait->backoff, lock->sight, now, ml_nonce_unit(), client->retry_min,
                            client->retry_max);
  if (*pause > wait->deadline - now) *pause = wait->deadline - now;
  if (*pause < 1) *pause = 1;
  client->stats.waited += *pause;
  return status;
}

enum ml_status ml_client_refresh(struct ml_lock *lock, int64_t ttl, struct ml_error *error) {
  struct ml_client *client = lock->client;
  enum ml_status status = enter(client, lock->key.server, error);
  if (status != ML_OK) return status;
  uint64_t losses = lock->losses;
  if (ttl == 0) ttl = lock->ttl;
  if (lock->kept != NULL && lock->owned)
    status = ask_keeper(client, lock, ML_WISH_REFRESH, ttl, error);
  else
    status = ml_lock_refresh(lock, client->store, ttl, error);
  count_losses(client, lock, losses);
  if (status == ML_OK) client->stats.refreshed++;
  return leave(client, status);
}

/* A lock that the keeper writes is released by it; held() is false before it is asked. */
static enum ml_status release_by_keeper(struct ml_client *client, struct ml_lock *lock,
                                        struct ml_error *error) {
  ml_lock_begin_release(lock);
  enum ml_status status = ask_keeper(client, lock, ML_WISH_RELEASE, 0, error);
  if (status == ML_OK) end_keeping(client, lock, false);
  return status;
}

enum ml_status ml_client_release(struct ml_lock *lock, struct ml_error *error) {
  struct ml_client *client = lock->client;
  enum ml_status status = enter(client, lock->key.server, error);
  if (status != ML_OK) return status;
  uint64_t losses = lock->losses;
  if (is_ours(client, lock))
    status = ml_lock_release(lock, client->store, error);
  else
    status = release_by_keeper(client, lock, error);
  note_release(client, lock);
  count_losses(client, lock, losses);
  if (status == ML_OK) client->stats.released++;
  return leave_and_settle(client, &lock->key, status);
}

enum ml_status ml_client_verify(struct ml_lock *lock, struct ml_error *error) {
  struct ml_client *client = lock->client;
  enum ml_status status = enter(client, lock->key.server, error);
  if (status != ML_OK) return status;
  uint64_t losses = lock->losses;
  if (lock->kept != NULL && lock->owned)
    status = ask_keeper(client, lock, ML_WISH_VERIFY, 0, error);
  else
    status = ml_lock_verify(lock, client->store, error);
  count_losses(client, lock, losses);
  return leave(client, status);
}

bool ml_client_held(const struct ml_lock *lock, int64_t *left) {
  if (left != NULL) *left = 0;
  if (lock->client == NULL || is_child(lock->client)) return false;
  if (lock->kept == NULL) return ml_lock_held(lock, left);
  return ml_lock_held(lock, NULL) && ml_kept_held(lock->kept, left);
}

/* Closing. */

/* Every release leaves at once, without reply; one read per connection then waits until they are
 * all done. What cannot go that way is released singly in the time that is left. */
static bool release_all(struct ml_client *client) {
  struct ml_error ignored;
  for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next) {
    if (ml_lock_held(lock, NULL)) client->stats.released++;
    ml_lock_drop(lock, client->store, true);
  }
  bool all = ml_store_flush(client->store, &ignored) == ML_OK;
  struct ml_finish finish = {.end = 0};
  for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next)
    all = ml_lock_finish(lock, client->store, &finish) && all;
  return ml_doubts_sweep(&client->doubts, client->store) && all;
}

/* Lets go of the keeper: it gives up, by the deadline, what it writes, and the program takes back
 * the rest. NULL when there is none to wait for. */
static struct ml_keeper *part_with_keeper(struct ml_client *client, int64_t deadline) {
  struct ml_keeper *keeper = client->keeper;
  if (keeper == NULL) return NULL;
  for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next) {
    if (is_ours(client, lock)) continue;
    if (ml_client_held(lock, NULL)) client->stats.released++;
    ml_keeper_forget(keeper, lock);
    lock->kept = NULL;
    ml_lock_forget(lock, false);
  }
  ml_keeper_stop(keeper, deadline);
  client->keeper = NULL;
  return keeper;
}

static bool join(struct ml_client *client, struct ml_keeper *keeper) {
  return keeper == NULL || ml_keeper_join(keeper, &client->stats.keeper);
}

static void shut(struct ml_client *client) {
  if (client->store != NULL) client->earlier_round_trips += ml_store_round_trips(client->store);
  ml_store_close(client->store);
  client->store = NULL;
  client->closed = true;
  close_pipe(client);
  for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next) ml_lock_disown(lock);
}

bool ml_client_close(struct ml_client *client) {
  if (client->closed) return true;
  bool all = true;
  if (is_child(client)) become_child(client);
  if (client->store != NULL) {
    ml_store_begin(client->store);
    struct ml_keeper *keeper =
        part_with_keeper(client, ml_clock_after(ml_clock_now(), client->timeout));
    all = release_all(client);
    all = join(client, keeper) && all;
  }
  shut(client);
  return all;
}

void ml_client_abandon(struct ml_client *client) {
  if (is_child(client)) become_child(client);
  struct ml_keeper *keeper =
      part_with_keeper(client, ml_clock_after(ml_clock_now(), client->timeout));
  if (client->store != NULL)
    for (struct ml_lock *lock = client->locks; lock != NULL; lock = lock->next)
      ml_lock_drop(lock, client->store, false);
  (void)join(client, keeper);
  shut(client);
  unref(client);
}

/* Names. */

/* The key of a name, which needs a store to be placed: begins the operation too. */
static enum ml_status enter_by_name(struct ml_client *client, struct ml_key *key, char *text,
                                    const char *prefix, const char *name, size_t length,
                                    struct ml_error *error) {
  enum ml_status status = attend(client, error);
  if (status != ML_OK) return status;
  ml_store_place(client->store, key, text, prefix, name, length);
  return enter(client, key->server, error);
}

enum ml_status ml_client_holder(struct ml_client *client, const char *name, size_t length,
                                struct ml_holder *holder, bool *mine, struct ml_error *error) {
  struct ml_key key;
  char text[ML_KEY_TEXT];
  enum ml_status status = enter_by_name(client, &key, text, client->prefix, name, length, error);
  if (status != ML_OK) return status;
  struct ml_error inner;
  status = ml_lock_look(client->store, &key, holder, &inner);
  if (status != ML_OK)
    return leave(client, ml_fail(error, status, "lock \"%s\": %s", name, inner.message));
  *mine = false;
  if (!holder->is_record) return ML_OK;
  const char *id = holder->record.id;
  *mine = client->identity != NULL && strcmp(client->identity, id) == 0;
  for (const struct ml_lock *lock = client->locks; lock != NULL && !*mine; lock = lock->next)
    *mine = (lock->owned || lock->named) && strcmp(lock->id, id) == 0;
  return ML_OK;
}

enum ml_status ml_client_break(struct ml_client *client, const char *name, size_t length,
                               const char *value, size_t value_length, struct ml_error *error) {
  struct ml_key key;
  char text[ML_KEY_TEXT];
  enum ml_status status = enter_by_name(client, &key, text, client->prefix, name, length, error);
  if (status != ML_OK) return status;
  struct ml_error inner;
  status = ml_lock_break(client->store, &key, value, value_length, &inner);
  if (status != ML_OK) (void)ml_fail(error, status, "lock \"%s\": %s", name, inner.message);
  return leave_and_settle(client, &key, status);
}

enum ml_status ml_client_inspect(struct ml_client *client, size_t server, struct ml_facts *facts,
                                 struct ml_error *error) {
  enum ml_status status = enter(client, server, error);
  if (status != ML_OK) return status;
  return leave(client, ml_store_inspect(client->store, server, facts, error));
}

/* Values. */

enum ml_status ml_client_get(struct ml_client *client, const char *key, size_t length,
                             struct ml_value *value, struct ml_error *error) {
  struct ml_key place;
  char text[ML_KEY_TEXT];
  enum ml_status status = enter_by_name(client, &place, text, "", key, length, error);
  if (status != ML_OK) return status;
  struct ml_view view;
  struct ml_error inner;
  status = ml_item_read(client->store, &place, &view, &inner);
  if (status != ML_OK)
    return leave(client, ml_fail(error, status, "key \"%s\": %s", key, inner.message));
  memcpy(value->key, key, length);
  value->key[length] = '\0';
  value->key_length = length;
  value->present = view.present;
  value->value = view.value;
  value->length = view.length;
  value->flags = view.flags;
  value->version = view.version;
  return ML_OK;
}

enum ml_status ml_client_put(struct ml_client *client, const struct ml_value *was,
                             const char *value, size_t length, uint32_t expiry,
                             struct ml_error *error) {
  struct ml_key place;
  char text[ML_KEY_TEXT];
  enum ml_status status = enter_by_name(client, &place, text, "", was->key, was->key_length, error);
  if (status != ML_OK) return status;
  enum ml_answer answer = ML_ANSWER_EXISTS;
  struct ml_error inner;
  /* On another connection nothing is known of what was read. */
  if (ml_store_same_epoch(client->store, &place, was->version)) {
    const struct ml_write write = {
        .value = value, .length = length, .expiry = expiry, .flags = was->flags};
    answer =
        ml_store_write(client->store, &place, &write, was->present ? &was->version : NULL, &inner);
  }
  switch (answer) {
  case ML_ANSWER_STORED:
    break;
  case ML_ANSWER_EXISTS:
  case ML_ANSWER_ABSENT:
    status = ml_fail(error, ML_CONFLICT, "key \"%s\": others changed it each time", was->key);
    break;
  case ML_ANSWER_REFUSED:
    status = ml_fail(error, ML_REFUSED, "key \"%s\": %s", was->key, inner.message);
    break;
  case ML_ANSWER_NONE:
    status = ml_fail(error, ML_TIMEOUT, "key \"%s\": it is not known whether it was written: %s",
                     was->key, inner.message);
    break;
  }
  return leave_and_settle(client, &place, status);
}

void ml_client_stats(const struct ml_client *client, struct ml_stats *stats) {
  *stats = client->stats;
  /* A child may have been made while the keeper had its mutex, which then is locked for ever. */
  if (client->keeper != NULL && !is_child(client)) ml_keeper_stats(client->keeper, &stats->keeper);
  stats->round_trips = client->earlier_round_trips + stats->keeper.round_trips;
  if (client->store != NULL) stats->round_trips += ml_store_round_trips(client->store);
}
