#include "store.h"

#include <errno.h>
#include <libmemcached/memcached.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "nonce.h"
#include "process.h"

#if !defined(LIBMEMCACHED_VERSION_HEX) || LIBMEMCACHED_VERSION_HEX < 0x01001004
#error "memlock needs libmemcached 1.1.4 or later: older releases report timeouts as misses"
#endif

#define FENCE_LIFE 86400 /* seconds */
#define NO_ITEM_HAS INT64_MAX

struct link {
  memcached_st *handle;
  memcached_result_st results[2]; /* one holds the view's value while the other is read into */
  const struct ml_address *address;
  uint64_t epoch;
  bool up; /* a command of this epoch went out, so there is a connection (and we are authenticated)
            */
  bool unread; /* commands without reply went out that no answer has covered yet */
};

struct ml_store {
  int64_t timeout;
  int64_t deadline; /* of the operation under way */
  bool proxy;
  uint64_t round_trips;
  uint64_t largest_fence; /* seen by this store, for the seed of a lost counter */
  memcached_st *ring;     /* only to hash with; NULL when there is one server */
  char *credentials;      /* "user password", or NULL */
  struct ml_store *next_abandoned;
  struct ml_servers servers;
  size_t count;
  struct link links[];
};

/* Shared by all stores of the process, because an id must not be taken for that of a connection
 * that another store, or a closed one, had. */
static _Atomic uint64_t epochs = 1;

/* What forked children gave up: kept, so that a leak checker sees that it is not lost. */
static _Atomic(struct ml_store *) abandoned;

static const char *lock_key(const struct ml_key *key) { return key->text + 1; }
static const char *fence_key(const struct ml_key *key) { return key->text; }
static size_t fence_length(const struct ml_key *key) { return key->length + 1; }

/* Opening and closing. */

static bool set_behavior(memcached_st *handle, memcached_behavior_t behavior, uint64_t value) {
  return memcached_success(memcached_behavior_set(handle, behavior, value));
}

static bool add_server(memcached_st *handle, const struct ml_address *address) {
  memcached_return_t rc = address->port == 0
                              ? memcached_server_add_unix_socket(handle, address->host)
                              : memcached_server_add(handle, address->host, address->port);
  return memcached_success(rc);
}

static bool open_link(struct link *link, const struct ml_address *address) {
  link->address = address;
  link->epoch = atomic_fetch_add(&epochs, 1);
  link->handle = memcached_create(NULL);
  if (link->handle == NULL) return false;
  /* A failed connect must not "disable" the server for seconds: every call tries anew. */
  return set_behavior(link->handle, MEMCACHED_BEHAVIOR_SERVER_TIMEOUT_LIMIT, INT32_MAX) &&
         set_behavior(link->handle, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1) &&
         set_behavior(link->handle, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1) &&
         add_server(link->handle, address) &&
         memcached_result_create(link->handle, &link->results[0]) != NULL &&
         memcached_result_create(link->handle, &link->results[1]) != NULL;
}

/* The ring never connects. Weighted ketama with equal weights is the ring that libketama and other
 * clients draw; it does not depend on the order of servers, and no failure ever changes it. */
static bool open_ring(struct ml_store *store) {
  store->ring = memcached_create(NULL);
  if (store->ring == NULL) return false;
  if (!set_behavior(store->ring, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1)) return false;
  for (size_t i = 0; i < store->count; i++)
    if (!add_server(store->ring, &store->servers.list[i])) return false;
  return true;
}

static char *join_credentials(const char *username, const char *password) {
  size_t size = strlen(username) + 1 + strlen(password) + 1;
  char *text = malloc(size);
  if (text != NULL) (void)snprintf(text, size, "%s %s", username, password);
  return text;
}

struct ml_store *ml_store_open(const struct ml_store_options *options, struct ml_error *error) {
  size_t count = options->servers->count;
  struct ml_store *store = calloc(1, sizeof *store + count * sizeof store->links[0]);
  if (store == NULL) goto failed;
  store->timeout = options->timeout;
  store->proxy = options->proxy;
  store->servers = *options->servers;
  store->count = count;
  for (size_t i = 0; i < count; i++)
    if (!open_link(&store->links[i], &store->servers.list[i])) goto failed;
  if (count > 1 && !open_ring(store)) goto failed;
  if (options->username != NULL) {
    store->credentials = join_credentials(options->username, options->password);
    if (store->credentials == NULL) goto failed;
  }
  return store;

failed:
  ml_store_close(store);
  (void)ml_fail(error, ML_REFUSED, "libmemcached could not be set up: not enough memory?");
  return NULL;
}

/* Bounds each wait for a connection and each wait for data of what follows, in milliseconds; 0 lets
 * nothing wait. */
static void arm(struct link *link, uint64_t connecting, uint64_t waiting) {
  (void)set_behavior(link->handle, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, connecting);
  (void)set_behavior(link->handle, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, waiting);
}

static void reply(struct link *link, bool wanted) {
  (void)set_behavior(link->handle, MEMCACHED_BEHAVIOR_NOREPLY, !wanted);
}

void ml_store_close(struct ml_store *store) {
  if (store == NULL) return;
  sigset_t saved;
  ml_process_block_signals(&saved);
  for (size_t i = 0; i < store->count; i++) {
    struct link *link = &store->links[i];
    if (link->handle == NULL) continue;
    arm(link, 0, 0); /* a full socket buffer must not make the good-bye wait */
    memcached_quit(link->handle);
    for (size_t r = 0; r < 2; r++)
      if (link->results[r].root != NULL) memcached_result_free(&link->results[r]);
    memcached_free(link->handle);
  }
  if (store->ring != NULL) memcached_free(store->ring);
  if (store->credentials != NULL) {
    /* Through a volatile pointer, or the compiler drops what nobody reads again. */
    for (volatile char *c = store->credentials; *c != '\0'; c++) *c = '\0';
    free(store->credentials);
  }
  free(store);
  ml_process_restore_signals(&saved);
}

void ml_store_abandon(struct ml_store *store) {
  if (store == NULL) return;
  store->next_abandoned = atomic_load(&abandoned);
  while (!atomic_compare_exchange_weak(&abandoned, &store->next_abandoned, store)) continue;
}

/* Keys. */

void ml_store_place(const struct ml_store *store, struct ml_key *key, char *text,
                    const char *prefix, const char *name, size_t length) {
  size_t prefix_length = strlen(prefix);
  text[0] = '#';
  memcpy(text + 1, prefix, prefix_length);
  memcpy(text + 1 + prefix_length, name, length);
  text[1 + prefix_length + length] = '\0';
  key->text = text;
  key->length = (uint32_t)(prefix_length + length);
  key->server =
      store->ring == NULL ? 0 : memcached_generate_hash(store->ring, lock_key(key), key->length);
}

const char *ml_store_server(const struct ml_store *store, const struct ml_key *key) {
  return store->servers.list[key->server].text;
}

bool ml_store_is_proxy(const struct ml_store *store) { return store->proxy; }

uint64_t ml_store_round_trips(const struct ml_store *store) { return store->round_trips; }

void ml_store_begin(struct ml_store *store) { ml_store_begin_until(store, ML_FOREVER); }

void ml_store_begin_until(struct ml_store *store, int64_t deadline) {
  store->deadline = ml_clock_after(ml_clock_now(), store->timeout);
  if (deadline < store->deadline) store->deadline = deadline;
}

int64_t ml_store_deadline(const struct ml_store *store) { return store->deadline; }

bool ml_store_has_time(const struct ml_store *store) { return ml_clock_now() < store->deadline; }

bool ml_store_current(const struct ml_store *store, const struct ml_key *key,
                      struct ml_version version) {
  return version.cas != 0 && ml_store_same_epoch(store, key, version);
}

bool ml_store_is_up(const struct ml_store *store, size_t server) { return store->links[server].up; }

bool ml_store_same_epoch(const struct ml_store *store, const struct ml_key *key,
                         struct ml_version version) {
  return version.epoch == store->links[key->server].epoch;
}

/* Failures. */

/* Ends the epoch: the next command opens a connection of its own. Bytes that are on their way may
 * still reach the server. */
static void drop(struct link *link) {
  arm(link, 0, 0);
  memcached_quit(link->handle);
  link->epoch = atomic_fetch_add(&epochs, 1);
  link->up = link->unread = false;
}

void ml_store_drop(struct ml_store *store, const struct ml_key *key) {
  sigset_t saved;
  ml_process_block_signals(&saved);
  drop(&store->links[key->server]);
  ml_process_restore_signals(&saved);
}

static enum ml_status classify(memcached_return_t rc) {
  switch (rc) {
  case MEMCACHED_TIMEOUT:
    return ML_TIMEOUT;
  case MEMCACHED_ERROR:
  case MEMCACHED_CLIENT_ERROR:
  case MEMCACHED_SERVER_ERROR:
  case MEMCACHED_PROTOCOL_ERROR:
  case MEMCACHED_UNKNOWN_READ_FAILURE:
  case MEMCACHED_PARTIAL_READ: /* of the line that announces a value */
  case MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE:
  case MEMCACHED_E2BIG:
  case MEMCACHED_NOTFOUND: /* what follows is an answer, but not to what was asked */
  case MEMCACHED_NOTSTORED:
  case MEMCACHED_DATA_EXISTS:
  case MEMCACHED_STORED:
  case MEMCACHED_DELETED:
  case MEMCACHED_STAT:
  case MEMCACHED_ITEM:
  case MEMCACHED_BAD_KEY_PROVIDED:
  case MEMCACHED_INVALID_ARGUMENTS:
  case MEMCACHED_MEMORY_ALLOCATION_FAILURE:
    return ML_REFUSED;
  default:
    return ML_UNREACHABLE;
  }
}

/* Why a server cannot be reached: in the system's words where libmemcached has kept them. */
static const char *reason(const struct link *link, memcached_return_t rc, char *text, size_t size) {
  int system_error = memcached_last_error_errno(link->handle);
  if (system_error != 0) return ml_system_error(system_error, text, size);
  if (rc == MEMCACHED_HOST_LOOKUP_FAILURE) return "no such host";
  return link->up ? "the connection ended" : "no connection could be made";
}

static bool is_no_reply(memcached_return_t rc) {
  return rc == MEMCACHED_UNKNOWN_READ_FAILURE || rc == MEMCACHED_PROTOCOL_ERROR ||
         rc == MEMCACHED_PARTIAL_READ;
}

/* Does the server want to know first who we are? libmemcached keeps its words with its own. */
static bool is_unauthenticated(const struct link *link, memcached_return_t rc) {
  if (rc != MEMCACHED_CLIENT_ERROR) return false;
  const char *words = memcached_last_error_message(link->handle);
  return words != NULL && strstr(words, "unauthenticated") != NULL;
}

/* Drops the link and says what happened. */
static enum ml_status failed(struct link *link, memcached_return_t rc, struct ml_error *error) {
  const char *server = link->address->text;
  enum ml_status status = classify(rc);
  char words[128];
  if (status == ML_TIMEOUT)
    (void)ml_fail(error, status, "%s did not answer in time", server);
  else if (status == ML_UNREACHABLE)
    (void)ml_fail(error, status, "%s cannot be reached: %s", server,
                  reason(link, rc, words, sizeof words));
  else if (is_no_reply(rc))
    (void)ml_fail(error, status, "%s answered with what is no reply of memcached", server);
  else if (is_unauthenticated(link, rc))
    (void)ml_fail(error, status, "%s wants a username and a password (memcached -Y)", server);
  else
    (void)ml_fail(error, status, "%s refused: %s", server, memcached_strerror(link->handle, rc));
  drop(link);
  return status;
}

static enum ml_status odd(struct link *link, struct ml_error *error, const char *what) {
  drop(link);
  return ml_fail(error, ML_REFUSED, "%s %s", link->address->text, what);
}

/* Flights. */

/* With memcached -Y the first command of a connection is a set whose value is "user password". An
 * expired item, because a server without -Y takes it for an item. */
static enum ml_status authenticate(struct ml_store *store, struct link *link,
                                   struct ml_error *error) {
  static const char key[] = "memlock-auth";
  reply(link, true);
  memcached_return_t rc = memcached_set(link->handle, key, strlen(key), store->credentials,
                                        strlen(store->credentials), ML_EXPIRED, 0);
  if (rc == MEMCACHED_SUCCESS) {
    link->up = true;
    store->round_trips++;
    return ML_OK;
  }
  if (rc == MEMCACHED_CLIENT_ERROR) return odd(link, error, "refused the username and password");
  return failed(link, rc, error);
}

/* What is left of the operation, in milliseconds; at least 1. */
static uint64_t rest_of(const struct ml_store *store) {
  int64_t left = (store->deadline - ml_clock_now()) / ML_MILLISECOND + 1;
  return left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (uint64_t)left;
}

/* libmemcached bounds each of its waits, not the sum: before each one it is told what is left of
 * the operation. Never nothing, so that an answer that is already here is read. `connects` shares
 * the time among that many tries to connect. */
static void arm_for_the_rest(const struct ml_store *store, struct link *link, unsigned connects) {
  uint64_t left = rest_of(store);
  arm(link, left / connects + 1, left);
}

/* Gives a link what is left of the operation's time, and a connection that has a name where one is
 * asked for. `connects`: how often the next command may try to connect, and one more if it then
 * waits for its reply, which is to have a good part of the time, too. */
static enum ml_status ready(struct ml_store *store, struct link *link, unsigned connects,
                            struct ml_error *error) {
  if (!ml_store_has_time(store))
    return ml_fail(error, ML_TIMEOUT, "%s did not answer in time", link->address->text);
  if (!link->up && store->credentials != NULL) {
    arm_for_the_rest(store, link, 2);
    enum ml_status status = authenticate(store, link, error);
    if (status != ML_OK) return status;
  }
  arm_for_the_rest(store, link, connects);
  return ML_OK;
}

static struct link *link_of(struct ml_store *store, const struct ml_key *key) {
  return &store->links[key->server];
}

static memcached_return_t send_write(struct link *link, const struct ml_key *key,
                                     const struct ml_write *write, const struct ml_version *at) {
  if (at == NULL)
    return memcached_add(link->handle, lock_key(key), key->length, write->value, write->length,
                         (time_t)write->expiry, write->flags);
  return memcached_cas(link->handle, lock_key(key), key->length, write->value, write->length,
                       (time_t)write->expiry, write->flags, at->cas);
}

static memcached_return_t seed_fence(struct ml_store *store, struct link *link,
                                     const struct ml_key *key) {
  uint64_t seed = (uint64_t)ml_clock_unix_us();
  if (seed <= store->largest_fence) seed = store->largest_fence + 1;
  char digits[24];
  int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)seed);
  return memcached_add(link->handle, fence_key(key), fence_length(key), digits, (size_t)length,
                       FENCE_LIFE, 0);
}

/* A counter as memcached prints it; false for anything else, and for what a Lua integer cannot
 * hold. */
static bool read_fence(memcached_result_st *result, uint64_t *fence) {
  const char *text = memcached_result_value(result);
  size_t length = memcached_result_length(result);
  uint64_t value = 0;
  while (length > 1 && text[length - 1] == ' ') length--;
  if (length == 0 || length > 19) return false;
  for (size_t i = 0; i < length; i++) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (uint64_t)(text[i] - '0');
  }
  if (value == 0 || value > INT64_MAX) return false;
  *fence = value;
  return true;
}

/* libmemcached believes any length that a server names, up to one that wraps around. */
static bool is_too_long(memcached_result_st *result) {
  return memcached_result_length(result) > INT32_MAX;
}

static bool has_key(memcached_result_st *result, const char *key, size_t length) {
  return memcached_result_key_length(result) == length &&
         memcmp(memcached_result_key_value(result), key, length) == 0;
}

/* An item that was not asked for; one without a key is a line of another kind, such as OK. */
static enum ml_status stray(struct link *link, memcached_result_st *result,
                            struct ml_error *error) {
  return odd(link, error,
             memcached_result_key_length(result) == 0
                 ? "answered with what is no reply of memcached"
                 : "answered with a key that was not asked for");
}

static enum ml_status unsupported(struct link *link, struct ml_error *error) {
  drop(link); /* there may be more of this answer */
  return ml_fail(error, ML_UNSUPPORTED,
                 "%s works without compare-and-swap (memcached -C, or no memcached): "
                 "locks need it",
                 link->address->text);
}

/* Readies what an answer is read into. An item of an earlier answer must not be left there: it
 * would be shown again where a server answers a read with OK or a number. And libmemcached tells
 * how an answer ended only where it believes that it brought an item: END and errors are one
 * NOTFOUND else. */
static void expect_answer(struct link *link) {
  for (size_t i = 0; i < 2; i++) {
    memcached_result_reset(&link->results[i]);
    link->results[i].count = 1;
  }
}

/* Sends `gets` of some keys. Where the link is not up, libmemcached tries to connect once for each.
 */
static enum ml_status ask(struct link *link, const char *const *keys, const size_t *lengths,
                          size_t count, struct ml_error *error) {
  reply(link, true);
  expect_answer(link);
  memcached_return_t rc = memcached_mget(link->handle, keys, lengths, count);
  /* A key whose connect failed is left out silently; only the last error tells. */
  if (rc == MEMCACHED_SUCCESS) rc = memcached_last_error(link->handle);
  if (rc != MEMCACHED_SUCCESS) return failed(link, rc, error);
  link->up = true;
  return ML_OK;
}

/* The next item of the answer to the last ask, in what is left of the operation; NULL at its end.
 */
static memcached_result_st *next_item(const struct ml_store *store, struct link *link,
                                      memcached_result_st *result, memcached_return_t *rc) {
  arm_for_the_rest(store, link, 1);
  return memcached_fetch_result(link->handle, result, rc);
}

/* Was the answer to the last ask complete? It covers all that was sent before. */
static enum ml_status end_of_answer(struct ml_store *store, struct link *link,
                                    memcached_return_t rc, struct ml_error *error) {
  if (rc != MEMCACHED_END) return failed(link, rc, error);
  store->round_trips++;
  link->unread = false;
  return ML_OK;
}

/* `gets` of the fence (where wanted) and the lock key, in this order, and all of the answer. */
static enum ml_status fetch(struct ml_store *store, struct link *link, const struct ml_key *key,
                            bool fence, struct ml_view *view, struct ml_error *error) {
  const char *keys[2] = {fence_key(key), lock_key(key)};
  const size_t lengths[2] = {fence_length(key), key->length};
  size_t first = fence ? 0 : 1;
  view->present = false;
  view->fence = 0;
  view->fence_is_bad = false;
  view->fence_cas = 0;
  view->version = (struct ml_version){0, link->epoch};

  enum ml_status status = ask(link, keys + first, lengths + first, 2 - first, error);
  if (status != ML_OK) return status;

  memcached_return_t rc;
  memcached_result_st *spare = &link->results[0];
  memcached_result_st *item = &link->results[1];
  while (next_item(store, link, spare, &rc) != NULL) {
    if (is_too_long(spare)) return odd(link, error, "answered with an impossible length");
    if (has_key(spare, lock_key(key), key->length) && !view->present) {
      memcached_result_st *filled = spare;
      spare = item;
      item = filled;
      view->present = true;
    } else if (fence && view->fence == 0 && !view->present &&
               has_key(spare, fence_key(key), fence_length(key))) {
      view->fence_is_bad = !read_fence(spare, &view->fence);
      view->fence_cas = memcached_result_cas(spare);
    } else {
      return stray(link, spare, error);
    }
  }
  status = end_of_answer(store, link, rc, error);
  if (status != ML_OK) return status;
  if (view->fence > store->largest_fence) store->largest_fence = view->fence;
  if (view->present) {
    view->value = memcached_result_value(item);
    view->length = memcached_result_length(item);
    view->flags = memcached_result_flags(item);
    view->version.cas = memcached_result_cas(item);
    if (view->version.cas == 0) return unsupported(link, error);
  }
  return ML_OK;
}

static enum ml_status bad_fence(struct link *link, const struct ml_key *key, struct ml_view *view,
                                struct ml_error *error) {
  view->fence_is_bad = true;
  drop(link);
  return ml_fail(error, ML_REFUSED, "\"%s\" on %s is no counter and gives no token: delete it",
                 fence_key(key), link->address->text);
}

static enum ml_status take_in_one_flight(struct ml_store *store, struct link *link,
                                         const struct ml_key *key, const struct ml_write *write,
                                         const struct ml_version *at, struct ml_view *view,
                                         struct ml_error *error) {
  reply(link, false);
  memcached_return_t rc = send_write(link, key, write, at);
  if (rc != MEMCACHED_SUCCESS) return failed(link, rc, error);
  view->sent = true;
  link->up = true;
  rc = seed_fence(store, link, key);
  if (rc != MEMCACHED_SUCCESS) return failed(link, rc, error);
  uint64_t ignored;
  rc = memcached_increment(link->handle, fence_key(key), fence_length(key), 1, &ignored);
  if (rc != MEMCACHED_SUCCESS) return failed(link, rc, error);

  enum ml_status status = fetch(store, link, key, true, view, error);
  if (status == ML_OK && view->fence_is_bad) return bad_fence(link, key, view, error);
  /* The fence was just counted: without it the whole answer is not to be believed. */
  if (status == ML_OK && view->fence == 0) {
    view->unsaid = true;
    return odd(link, error, "answered without the fence counter");
  }
  return status;
}

/* Did the server answer with a line that says that it did not do it? */
static bool is_error_line(memcached_return_t rc) {
  return rc == MEMCACHED_ERROR || rc == MEMCACHED_CLIENT_ERROR || rc == MEMCACHED_SERVER_ERROR ||
         rc == MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE || rc == MEMCACHED_E2BIG;
}

/* What the reply to a waiting write says. Whatever else comes drops the link. */
static enum ml_answer answer_of(struct ml_store *store, struct link *link, memcached_return_t rc,
                                struct ml_error *error) {
  enum ml_answer answer;
  switch (rc) {
  case MEMCACHED_SUCCESS:
    answer = ML_ANSWER_STORED;
    break;
  case MEMCACHED_NOTSTORED:
  case MEMCACHED_DATA_EXISTS:
    answer = ML_ANSWER_EXISTS;
    break;
  case MEMCACHED_NOTFOUND:
    answer = ML_ANSWER_ABSENT;
    break;
  default: {
    /* Behind a proxy an error line may come after the backend has done it. */
    bool certain = is_error_line(rc) && !store->proxy;
    (void)failed(link, rc, error);
    return certain ? ML_ANSWER_REFUSED : ML_ANSWER_NONE;
  }
  }
  link->up = true;
  link->unread = false;
  store->round_trips++;
  return answer;
}

static bool is_no_answer(enum ml_answer answer) {
  return answer == ML_ANSWER_NONE || answer == ML_ANSWER_REFUSED;
}

static enum ml_status take_with_replies(struct ml_store *store, struct link *link,
                                        const struct ml_key *key, const struct ml_write *write,
                                        const struct ml_version *at, struct ml_view *view,
                                        struct ml_error *error) {
  reply(link, true);
  view->sent = true;
  enum ml_answer answer = answer_of(store, link, send_write(link, key, write, at), error);
  view->beaten = answer != ML_ANSWER_STORED && answer != ML_ANSWER_NONE;
  if (is_no_answer(answer)) return error->status;
  arm_for_the_rest(store, link, 1);
  if (is_no_answer(answer_of(store, link, seed_fence(store, link, key), error)))
    return error->status;
  arm_for_the_rest(store, link, 1);
  uint64_t fence = 0;
  memcached_return_t rc =
      memcached_increment(link->handle, fence_key(key), fence_length(key), 1, &fence);
  store->round_trips++;
  if (rc == MEMCACHED_CLIENT_ERROR || (rc == MEMCACHED_SUCCESS && fence > INT64_MAX))
    return bad_fence(link, key, view, error);
  if (rc != MEMCACHED_SUCCESS) return failed(link, rc, error);

  enum ml_status status = fetch(store, link, key, false, view, error);
  view->fence = fence;
  if (fence > store->largest_fence) store->largest_fence = fence;
  return status;
}

static enum ml_status stale(struct ml_error *error) {
  return ml_fail(error, ML_REFUSED, "a CAS id of an earlier connection was not sent");
}

enum ml_status ml_store_take(struct ml_store *store, const struct ml_key *key,
                             const struct ml_write *write, const struct ml_version *at,
                             bool replies, struct ml_view *view, struct ml_error *error) {
  struct link *link = link_of(store, key);
  *view = (struct ml_view){0};
  if (at != NULL && !ml_store_current(store, key, *at)) return stale(error);
  sigset_t saved;
  ml_process_block_signals(&saved);
  enum ml_status status = ready(store, link, replies ? 2 : 1, error);
  if (status == ML_OK)
    status = (replies ? take_with_replies : take_in_one_flight)(store, link, key, write, at, view,
                                                                error);
  ml_process_restore_signals(&saved);
  return status;
}

enum ml_status ml_store_refresh(struct ml_store *store, const struct ml_key *key,
                                const struct ml_write *write, struct ml_version at,
                                struct ml_view *view, struct ml_error *error) {
  struct link *link = link_of(store, key);
  *view = (struct ml_view){0};
  if (!ml_store_current(store, key, at)) return stale(error);
  sigset_t saved;
  ml_process_block_signals(&saved);
  enum ml_status status = ready(store, link, 1, error);
  if (status == ML_OK) {
    reply(link, false);
    memcached_return_t rc = send_write(link, key, write, &at);
    if (rc == MEMCACHED_SUCCESS) {
      view->sent = true;
      status = fetch(store, link, key, false, view, error);
    } else {
      status = failed(link, rc, error);
    }
  }
  ml_process_restore_signals(&saved);
  return status;
}

enum ml_status ml_store_read(struct ml_store *store, const struct ml_key *key, bool fence,
                             struct ml_view *view, struct ml_error *error) {
  struct link *link = link_of(store, key);
  *view = (struct ml_view){0};
  sigset_t saved;
  ml_process_block_signals(&saved);
  /* libmemcached tries to connect once for each key of a read. */
  enum ml_status status = ready(store, link, fence ? 2 : 1, error);
  if (status == ML_OK) status = fetch(store, link, key, fence, view, error);
  ml_process_restore_signals(&saved);
  return status;
}

enum ml_answer ml_store_write(struct ml_store *store, const struct ml_key *key,
                              const struct ml_write *write, const struct ml_version *at,
                              struct ml_error *error) {
  struct link *link = link_of(store, key);
  enum ml_answer answer = ML_ANSWER_NONE;
  if (at != NULL && !ml_store_current(store, key, *at)) {
    (void)stale(error);
    return answer;
  }
  sigset_t saved;
  ml_process_block_signals(&saved);
  if (ready(store, link, 2, error) == ML_OK) {
    reply(link, true);
    answer = answer_of(store, link, send_write(link, key, write, at), error);
  }
  ml_process_restore_signals(&saved);
  return answer;
}

enum ml_answer ml_store_probe(struct ml_store *store, const struct ml_key *key,
                              struct ml_error *error) {
  const struct ml_write nothing = {.value = "", .expiry = ML_EXPIRED};
  const struct ml_version at = {NO_ITEM_HAS, link_of(store, key)->epoch};
  return ml_store_write(store, key, &nothing, &at, error);
}

/* Inspecting. */

static void copy_text(char *to, size_t size, const char *text, size_t length) {
  (void)snprintf(to, size, "%.*s", (int)length, text);
}

/* One line of `stats` or `stats settings`. */
static memcached_return_t note_stat(const memcached_instance_st *instance, const char *name,
                                    size_t name_length, const char *text, size_t length,
                                    void *context) {
  (void)instance;
  struct ml_facts *facts = context;
  char key[32];
  char value[64];
  copy_text(key, sizeof key, name, name_length);
  copy_text(value, sizeof value, text, length);
  uint64_t number = strtoull(value, NULL, 10);
  if (strcmp(key, "version") == 0)
    (void)snprintf(facts->version, sizeof facts->version, "%.31s", value);
  else if (strcmp(key, "uptime") == 0)
    facts->uptime = (int64_t)number;
  else if (strcmp(key, "time") == 0)
    facts->clock_offset = (int64_t)number - ml_clock_unix_us() / 1000000;
  else if (strcmp(key, "limit_maxbytes") == 0)
    facts->limit = number;
  else if (strcmp(key, "bytes") == 0)
    facts->used = number;
  else if (strcmp(key, "evictions") == 0 && value[0] == 'o') /* of the settings: on, off */
    facts->evicts = strcmp(value, "on") == 0;
  else if (strcmp(key, "evictions") == 0)
    facts->evictions = number;
  else if (strcmp(key, "pid") == 0)
    facts->tells = true;
  return MEMCACHED_SUCCESS;
}

/* What a memcached tells of itself; a proxy answers with an error, or hangs up. Between its
 * question for the version and the one for statistics libmemcached may have connected anew by
 * itself, without a word of who we are: the connection is not used after this. */
static void ask_stats(struct ml_store *store, struct link *link, struct ml_facts *facts) {
  static char settings[] = "settings"; /* libmemcached wants what it could write to */
  char *const kinds[] = {NULL, settings};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    arm_for_the_rest(store, link, 1);
    reply(link, true);
    if (memcached_stat_execute(link->handle, kinds[i], note_stat, facts) != MEMCACHED_SUCCESS)
      break;
    store->round_trips++;
  }
  drop(link);
  facts->is_proxy = !facts->tells;
}

/* Adds an item, reads it, and removes it by its version: what a lock needs. Reads first, since
 * libmemcached ends the process where a write is answered by what is no memcached. */
static enum ml_status try_cas(struct ml_store *store, const struct ml_key *key,
                              struct ml_facts *facts, struct ml_error *error) {
  const struct ml_write item = {.value = "memlock", .length = 7, .expiry = 10, .flags = 0};
  const struct ml_write gone = {.value = "", .expiry = ML_EXPIRED};
  struct ml_view view;
  enum ml_status status = ml_store_read(store, key, false, &view, error);
  if (status != ML_OK) return status;
  if (is_no_answer(ml_store_write(store, key, &item, NULL, error))) return error->status;
  int64_t start = ml_clock_now();
  status = ml_store_read(store, key, false, &view, error);
  facts->round_trip = ml_clock_now() - start;
  if (status == ML_UNSUPPORTED) return ML_OK;
  if (status != ML_OK) return status;
  facts->has_cas =
      view.present && ml_store_write(store, key, &gone, &view.version, error) == ML_ANSWER_STORED;
  return ML_OK;
}

enum ml_status ml_store_inspect(struct ml_store *store, size_t server, struct ml_facts *facts,
                                struct ml_error *error) {
  char text[64];
  *facts = (struct ml_facts){.version = ""};
  (void)snprintf(text, sizeof text, "#memlock-check:%016llx", (unsigned long long)ml_nonce_bits());
  const struct ml_key key = {
      .text = text, .length = (uint32_t)strlen(text) - 1, .server = (uint32_t)server};
  enum ml_status status = try_cas(store, &key, facts, error);
  if (status != ML_OK) return status;
  sigset_t saved;
  ml_process_block_signals(&saved);
  ask_stats(store, &store->links[server], facts);
  ml_process_restore_signals(&saved);
  return ML_OK;
}

/* A server does the commands of a connection in order, so any answer covers all that went before.
 */
static enum ml_status await_all(struct ml_store *store, struct link *link, struct ml_error *error) {
  static const char key[] = "memlock-flush";
  const char *keys[] = {key};
  const size_t lengths[] = {sizeof key - 1};
  arm_for_the_rest(store, link, 1);
  enum ml_status status = ask(link, keys, lengths, 1, error);
  if (status != ML_OK) return status;
  memcached_return_t rc;
  memcached_result_st *result = &link->results[0];
  for (size_t found = 0; next_item(store, link, result, &rc) != NULL; found++)
    if (found > 0 || !has_key(result, key, lengths[0]))
      return odd(link, error, "answered with a key that was not asked for");
  return end_of_answer(store, link, rc, error);
}

/* Makes sure of a connection, by a read that tries to connect once. */
static enum ml_status connect_link(struct ml_store *store, struct link *link,
                                   struct ml_error *error) {
  enum ml_status status = ready(store, link, 1, error);
  if (status == ML_OK && !link->up) status = await_all(store, link, error);
  return status;
}

/* The answer to a read of many keys comes in the order of the keys, with some left out. */
static enum ml_status fetch_batch(struct ml_store *store, struct link *link,
                                  const struct ml_item *items, size_t count, ml_show *show,
                                  void *context, struct ml_error *error) {
  const char *keys[ML_BATCH_MAX];
  size_t lengths[ML_BATCH_MAX];
  for (size_t i = 0; i < count; i++) {
    keys[i] = lock_key(items[i].key);
    lengths[i] = items[i].key->length;
  }
  enum ml_status status = ask(link, keys, lengths, count, error);
  if (status != ML_OK) return status;

  memcached_return_t rc;
  memcached_result_st *result = &link->results[0];
  size_t next = 0;
  while (next_item(store, link, result, &rc) != NULL) {
    if (is_too_long(result)) return odd(link, error, "answered with an impossible length");
    while (next < count && !has_key(result, keys[next], lengths[next])) next++;
    if (next == count) return stray(link, result, error);
    struct ml_view view = {.sent = items[next].write != NULL,
                           .present = true,
                           .value = memcached_result_value(result),
                           .length = memcached_result_length(result),
                           .flags = memcached_result_flags(result),
                           .version = {memcached_result_cas(result), link->epoch}};
    if (view.version.cas == 0) return unsupported(link, error);
    show(context, next++, &view);
  }
  return end_of_answer(store, link, rc, error);
}

enum ml_status ml_store_batch(struct ml_store *store, const struct ml_item *items, size_t count,
                              ml_show *show, void *context, struct ml_error *error) {
  struct link *link = link_of(store, items[0].key);
  sigset_t saved;
  ml_process_block_signals(&saved);
  enum ml_status status = connect_link(store, link, error);
  reply(link, false);
  for (size_t i = 0; i < count && status == ML_OK; i++) {
    const struct ml_item *item = &items[i];
    if (item->write == NULL) continue;
    if (!ml_store_current(store, item->key, item->at)) {
      status = stale(error);
      break;
    }
    memcached_return_t rc = send_write(link, item->key, item->write, &item->at);
    if (rc != MEMCACHED_SUCCESS) status = failed(link, rc, error);
  }
  if (status == ML_OK) status = fetch_batch(store, link, items, count, show, context, error);
  ml_process_restore_signals(&saved);
  return status;
}

bool ml_store_send(struct ml_store *store, const struct ml_key *key, const struct ml_write *write,
                   struct ml_version at, bool wait) {
  struct link *link = link_of(store, key);
  if (!link->up || !ml_store_current(store, key, at)) return false;
  sigset_t saved;
  ml_process_block_signals(&saved);
  arm(link, 0, wait ? rest_of(store) / 2 : 0);
  reply(link, false);
  bool sent = send_write(link, key, write, &at) == MEMCACHED_SUCCESS;
  if (sent)
    link->unread = true;
  else
    drop(link);
  ml_process_restore_signals(&saved);
  return sent;
}

bool ml_store_covered(const struct ml_store *store, const struct ml_key *key,
                      struct ml_version sent) {
  return ml_store_same_epoch(store, key, sent) && !store->links[key->server].unread;
}

enum ml_status ml_store_flush(struct ml_store *store, struct ml_error *error) {
  enum ml_status worst = ML_OK;
  sigset_t saved;
  ml_process_block_signals(&saved);
  int64_t end = store->deadline;
  for (size_t i = 0; i < store->count; i++) {
    if (!store->links[i].unread) continue;
    /* A server that does not answer leaves half of the time to the others, and to what has to be
     * asked of them singly afterwards. */
    int64_t now = ml_clock_now();
    if (store->count > 1) store->deadline = now + (end - now) / 2;
    enum ml_status status = await_all(store, &store->links[i], error);
    if (status != ML_OK) worst = status;
    store->deadline = end;
  }
  ml_process_restore_signals(&saved);
  return worst;
}
