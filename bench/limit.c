/*
 * What memlock is compared with, all by the barest calls of libmemcached:
 *
 *   limit     the bytes that memlock sends and reads, and none of its care: about the least that
 *             this library can do
 *   compare   a recipe that many use: add; gets, compare, cas, delete
 *   swap      another one: add; gets, and cas to an empty value
 */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "record.h"
#include "worker.h"

#define EXPIRED 2592001 /* an absolute time of 1970 */
#define TTL 16          /* seconds, as memlock's default */
#define EXPIRY (TTL + 3)

static memcached_st *handle;
static memcached_result_st result;
static memcached_result_st none; /* what the end of an answer is read into */
static char fence_key[260];      /* "#memlock:name": what stands behind the # is the lock's key */
static size_t length;            /* of the lock's key */
static char value[ML_RECORD_MAX];
static size_t value_length;
static uint64_t cas_id;

static const char *lock_key(void) { return fence_key + 1; }

static void connect_to(const char *server, const char *name) {
  struct ml_servers servers = {.count = 0};
  struct ml_error error;
  if (ml_servers_add(&servers, server, strlen(server), &error) != ML_OK) die(server, error.message);
  const struct ml_address *address = &servers.list[0];
  handle = memcached_create(NULL);
  (void)memcached_behavior_set(handle, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
  (void)memcached_behavior_set(handle, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  if (address->port == 0)
    (void)memcached_server_add_unix_socket(handle, address->host);
  else
    (void)memcached_server_add(handle, address->host, address->port);
  (void)memcached_result_create(handle, &result);
  (void)memcached_result_create(handle, &none);
  int written = snprintf(fence_key, sizeof fence_key, "#memlock:%s", name);
  if (written >= (int)sizeof fence_key) die(name, "is too long");
  length = (size_t)written - 1;
}

static void replies(bool wanted) {
  (void)memcached_behavior_set(handle, MEMCACHED_BEHAVIOR_NOREPLY, !wanted);
}

static void succeed(memcached_return_t rc) {
  if (rc != MEMCACHED_SUCCESS) die("memcached", memcached_strerror(handle, rc));
}

/* The item that the last read brought next; false: no more. */
static bool next_item(memcached_result_st *into) {
  memcached_return_t rc;
  return memcached_fetch_result(handle, into, &rc) != NULL;
}

static bool shows_ours(void) {
  return memcached_result_length(&result) == value_length &&
         memcmp(memcached_result_value(&result), value, value_length) == 0;
}

/* Reads the lock alone. False: there is nothing. */
static bool look(void) {
  const char *keys[] = {lock_key()};
  succeed(memcached_mget(handle, keys, &length, 1));
  return next_item(&result) && !next_item(&none);
}

/* The limit. */

static void open_limit(const char *server, const char *name) {
  connect_to(server, name);
  struct ml_record record = {.seq = UINT64_C(17000000000000000000) + (uint64_t)getpid(),
                             .since = 1700000000,
                             .ttl_ms = TTL * 1000};
  (void)snprintf(record.id, sizeof record.id, "%032x", (unsigned)getpid());
  (void)gethostname(record.label, 64);
  size_t end = strlen(record.label);
  (void)snprintf(record.label + end, sizeof record.label - end, ":%d", (int)getpid());
  value_length = ml_record_encode(&record, value);
}

static bool attempt_limit(void) {
  static const char seed[] = "1700000000000000";
  const char *keys[] = {fence_key, lock_key()};
  const size_t lengths[] = {length + 1, length};
  uint64_t ignored;
  replies(false);
  succeed(memcached_add(handle, lock_key(), length, value, value_length, EXPIRY, 0x6d6c));
  succeed(memcached_add(handle, fence_key, length + 1, seed, sizeof seed - 1, 86400, 0));
  succeed(memcached_increment(handle, fence_key, length + 1, 1, &ignored));
  replies(true);
  succeed(memcached_mget(handle, keys, lengths, 2));
  bool ours = false;
  uint64_t token = 0;
  while (next_item(&result)) {
    if (memcached_result_key_length(&result) != length) {
      token = strtoull(memcached_result_value(&result), NULL, 10);
    } else if (shows_ours()) {
      ours = true;
      cas_id = memcached_result_cas(&result);
    }
  }
  return ours && token > 0;
}

static bool refresh_limit(void) {
  replies(false);
  succeed(memcached_cas(handle, lock_key(), length, value, value_length, EXPIRY, 0x6d6c, cas_id));
  replies(true);
  if (!look() || !shows_ours()) return false;
  cas_id = memcached_result_cas(&result);
  return true;
}

static bool release_limit(void) {
  return memcached_cas(handle, lock_key(), length, "", 0, EXPIRED, 0x6d6c, cas_id) ==
         MEMCACHED_SUCCESS;
}

const struct subject limit = {"limit", open_limit,    attempt_limit,
                              NULL,    refresh_limit, release_limit};

/* The recipes. Their value is a word that nobody else writes. */

static void open_recipe(const char *server, const char *name) {
  connect_to(server, name);
  value_length =
      (size_t)snprintf(value, sizeof value, "%08x:%d", (unsigned)random(), (int)getpid());
}

static bool add(void) {
  memcached_return_t rc = memcached_add(handle, lock_key(), length, value, value_length, EXPIRY, 0);
  if (rc != MEMCACHED_NOTSTORED && rc != MEMCACHED_DATA_EXISTS) succeed(rc);
  return rc == MEMCACHED_SUCCESS;
}

static bool replace_own(const char *text, size_t size, time_t expiry) {
  return look() && shows_ours() &&
         memcached_cas(handle, lock_key(), length, text, size, expiry, 0,
                       memcached_result_cas(&result)) == MEMCACHED_SUCCESS;
}

static bool refresh_recipe(void) { return replace_own(value, value_length, EXPIRY); }

static bool release_by_compare(void) {
  return replace_own(value, value_length, EXPIRY) &&
         memcached_delete(handle, lock_key(), length, 0) == MEMCACHED_SUCCESS;
}

static bool attempt_swap(void) {
  if (add()) return true;
  return look() && memcached_result_length(&result) == 0 &&
         memcached_cas(handle, lock_key(), length, value, value_length, EXPIRY, 0,
                       memcached_result_cas(&result)) == MEMCACHED_SUCCESS;
}

static bool release_by_swap(void) { return replace_own("", 0, EXPIRY); }

const struct subject compare = {"compare", open_recipe,    add,
                                NULL,      refresh_recipe, release_by_compare};
const struct subject swap = {"swap", open_recipe,    attempt_swap,
                             NULL,   refresh_recipe, release_by_swap};
