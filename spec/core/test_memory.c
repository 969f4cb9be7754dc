/*
 * Every allocation of ours fails once: nothing crashes, leaks, or stays locked, and each failure is
 * told as what it is. The linker leads the calls of our own objects here (-Wl,--wrap); what
 * libmemcached allocates does not fail. Leaks are for AddressSanitizer and valgrind to find.
 */
#include <stdatomic.h>

#include "check.h"
#include "client.h"
#include "server.h"

#define TIMEOUT (2 * ML_SECOND)
#define SHORT (150 * MS)

static struct server server;

/* The allocator. */

static _Atomic long fail_at; /* 0: none does */
static _Atomic long made;    /* since armed */

static bool fails(void) { return atomic_fetch_add(&made, 1) + 1 == atomic_load(&fail_at); }

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) {
  return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *memory, size_t size) {
  return fails() ? NULL : __real_realloc(memory, size);
}
char *__wrap_strdup(const char *text) { return fails() ? NULL : __real_strdup(text); }

/* The n-th allocation from now on fails; 0: none. */
static void arm(long n) {
  atomic_store(&made, 0);
  atomic_store(&fail_at, n);
}

/* Ends that. True: one has failed. */
static bool disarm(void) {
  long n = atomic_exchange(&fail_at, 0);
  return n != 0 && atomic_load(&made) >= n;
}

/* Clients and locks. */

static int start_server(void **state) {
  (void)state;
  server_start(&server, NULL);
  return 0;
}

static int end_server(void **state) {
  (void)state;
  server_end(&server);
  return 0;
}

static struct ml_client *open_with(int64_t timeout, bool everything, struct ml_error *error) {
  struct ml_client_options options;
  ml_client_defaults(&options);
  options.timeout = timeout;
  assert_int_equal(ml_servers_add(&options.servers, server.path, strlen(server.path), error),
                   ML_OK);
  if (everything) {
    static const char more[] = "127.0.0.1:1,127.0.0.1:2";
    assert_int_equal(ml_servers_add(&options.servers, more, strlen(more), error), ML_OK);
    options.label = "label";
    options.prefix = "prefix:";
    options.identity = "identity";
    options.username = "username";
    options.password = "password";
  }
  return ml_client_open(&options, error);
}

static struct ml_client *open_client(int64_t timeout) {
  struct ml_error error;
  struct ml_client *client = open_with(timeout, false, &error);
  if (client == NULL) fail_msg("%s", error.message);
  return client;
}

static void end_client(struct ml_client *client) {
  (void)ml_client_close(client);
  ml_client_abandon(client);
}

static void add(struct ml_client *client, struct ml_lock *lock, const char *name, bool kept) {
  struct ml_error error;
  if (ml_client_add(client, lock, key_text(), name, strlen(name), 0, NULL, &error) != ML_OK)
    fail_msg("%s", error.message);
  if (kept) ml_client_auto_refresh(lock, ML_FOREVER);
}

static void acquire(struct ml_lock *lock) {
  struct ml_error error;
  if (ml_client_acquire(lock, &error) != ML_OK) fail_msg("%s", error.message);
}

static void release(struct ml_lock *lock) {
  struct ml_error error;
  if (ml_client_release(lock, &error) != ML_OK) fail_msg("%s", error.message);
}

static bool held(const struct ml_lock *lock) { return ml_client_held(lock, NULL); }

static bool is_locked(const struct ml_lock *lock) {
  return server_has(&server, lock->key.text + 1);
}

/* Waits until it is not held any more. */
static void await_loss(const struct ml_lock *lock) {
  int64_t end = ml_clock_now() + 5 * ML_SECOND;
  while (held(lock)) {
    if (ml_clock_now() > end) fail_msg("it is not lost");
    pause_for(2 * MS);
  }
}

/* The tests. */

static void test_memory_for_a_client_is_there_or_there_is_none(void **state) {
  (void)state;
  long n = 0;
  for (bool failed = true; failed;) {
    struct ml_error error;
    arm(++n);
    struct ml_client *client = open_with(TIMEOUT, true, &error);
    failed = disarm();
    assert_int_equal(failed, client == NULL);
    if (client != NULL) {
      end_client(client);
      continue;
    }
    assert_int_equal(error.status, ML_REFUSED);
    assert_contains(error.message, "memory");
  }
  assert_true(n > 6); /* label, prefix, identity, username, password, ... */
}

static void test_memory_is_not_needed_to_lock(void **state) {
  (void)state;
  struct ml_error error;
  struct ml_client *client = open_client(TIMEOUT);
  struct ml_client *rival = open_client(TIMEOUT);
  struct ml_lock lock, other;
  struct ml_holder holder;
  struct ml_value value;
  struct ml_facts facts;
  bool mine;
  arm(1);
  add(client, &lock, "plain", false);
  add(rival, &other, "plain", false);
  acquire(&lock);
  assert_int_equal(ml_client_acquire(&other, &error), ML_HELD);
  assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_OK);
  assert_int_equal(ml_client_verify(&lock, &error), ML_OK);
  assert_int_equal(ml_client_holder(rival, "plain", 5, &holder, &mine, &error), ML_OK);
  assert_false(holder.free);
  release(&lock);
  assert_int_equal(ml_client_get(client, "value", 5, &value, &error), ML_OK);
  assert_int_equal(ml_client_put(client, &value, "x", 1, 10, &error), ML_OK);
  assert_int_equal(ml_client_inspect(client, 0, &facts, &error), ML_OK);
  acquire(&lock);
  assert_true(ml_client_close(client));
  assert_false(is_locked(&lock));
  assert_false(disarm());
  ml_client_remove(&other);
  ml_client_remove(&lock);
  ml_client_abandon(client);
  end_client(rival);
}

static void test_memory_for_the_keeper_is_there_or_nothing_is_held(void **state) {
  (void)state;
  long n = 0;
  for (bool failed = true; failed;) {
    struct ml_error error;
    struct ml_client *client = open_client(TIMEOUT);
    struct ml_lock lock;
    add(client, &lock, "kept", true);
    arm(++n);
    enum ml_status status = ml_client_acquire(&lock, &error);
    failed = disarm();
    assert_int_equal(held(&lock), !failed);
    assert_int_equal(is_locked(&lock), !failed);
    if (failed) {
      assert_int_equal(status, ML_REFUSED);
      assert_contains(error.message, "memory");
      acquire(&lock); /* now there is enough */
    }
    assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_OK);
    release(&lock);
    assert_false(is_locked(&lock));
    acquire(&lock);
    ml_client_remove(&lock);
    assert_true(server_comes_to(&server, "memlock:kept", false));
    end_client(client);
  }
  assert_true(n > 5); /* keeper, batch, store, entry, two heaps */
}

/* The keeper's lists grow by doubling. */
static void test_memory_for_many_kept_locks_fails_one_by_one(void **state) {
  (void)state;
  enum { COUNT = 40 };
  static struct ml_lock locks[COUNT];
  long n = 0;
  for (bool failed = true; failed;) {
    struct ml_client *client = open_client(TIMEOUT);
    int refused = 0;
    char name[32];
    struct ml_error error;
    for (int i = 0; i < COUNT; i++) {
      (void)snprintf(name, sizeof name, "many-%d", i);
      add(client, &locks[i], name, true);
    }
    acquire(&locks[0]);
    arm(n += full_length() ? 1 : 3);
    for (int i = 1; i < COUNT; i++) {
      enum ml_status status = ml_client_acquire(&locks[i], &error);
      assert_int_equal(held(&locks[i]), status == ML_OK);
      assert_int_equal(is_locked(&locks[i]), status == ML_OK);
      if (status == ML_OK) continue;
      assert_int_equal(status, ML_REFUSED);
      assert_contains(error.message, "memory");
      refused++;
    }
    failed = disarm();
    assert_int_equal(refused, failed ? 1 : 0);
    for (int i = 0; i < COUNT; i++)
      if (held(&locks[i])) assert_int_equal(ml_client_refresh(&locks[i], 0, &error), ML_OK);
    assert_true(ml_client_close(client));
    for (int i = 0; i < COUNT; i++) {
      assert_false(is_locked(&locks[i]));
      ml_client_remove(&locks[i]);
    }
    ml_client_abandon(client);
  }
  assert_true(n >= COUNT);
}

static void test_memory_to_tell_of_a_loss_may_be_missing_and_the_loss_is_told(void **state) {
  (void)state;
  for (long n = 1; n <= 3; n++) {
    struct ml_error error;
    struct ml_client *client = open_client(TIMEOUT);
    struct ml_lock lock;
    add(client, &lock, "to-lose", true);
    lock.ttl = 300 * MS;
    acquire(&lock);
    int descriptor = ml_client_fd(client, &error);
    assert_true(descriptor >= 0);
    arm(n); /* the words of the loss, the note for whoever polls; then none */
    server_delete(&server, "memlock:to-lose");
    await_loss(&lock);
    pause_for(5 * MS);
    assert_int_equal(disarm(), n < 3);
    char message[256];
    const struct ml_lock *lost = ml_client_next_lost(client, message, sizeof message);
    assert_true(lost == (n == 2 ? NULL : &lock));
    assert_int_equal(ml_client_verify(&lock, &error), ML_LOST);
    assert_contains(error.message, "to-lose");
    acquire(&lock);
    release(&lock);
    ml_client_remove(&lock);
    end_client(client);
  }
}

/* Without memory to note it, the lock object itself still knows what it may have left. */
static void test_memory_for_a_record_in_doubt_may_be_missing(void **state) {
  (void)state;
  for (long n = 1; n <= 2; n++) {
    struct ml_error error;
    struct ml_client *client = open_client(SHORT);
    struct ml_lock lock;
    add(client, &lock, "in-doubt", false);
    acquire(&lock); /* the connection is up */
    release(&lock);
    server_stop(&server);
    arm(n);
    assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
    assert_int_equal(disarm(), n == 1);
    assert_false(held(&lock));
    server_continue(&server);
    assert_true(server_comes_to(&server, "memlock:in-doubt", true));
    for (int i = 0; i < 20 && !held(&lock); i++) {
      (void)ml_client_acquire(&lock, &error);
    }
    assert_true(held(&lock));
    release(&lock);
    assert_false(is_locked(&lock));
    ml_client_remove(&lock);
    end_client(client);
  }
}

/* A release that nobody could wait for: what is in doubt is noted, or ends with its ttl. */
static void test_memory_for_a_drop_may_be_missing(void **state) {
  (void)state;
  for (long n = 1; n <= 2; n++) {
    struct ml_client *client = open_client(TIMEOUT);
    struct ml_lock lock;
    add(client, &lock, "dropped", false);
    acquire(&lock);
    arm(n);
    ml_client_remove(&lock);
    assert_int_equal(disarm(), n == 1);
    assert_true(server_comes_to(&server, "memlock:dropped", false));
    end_client(client);
  }
}

static int use_in_child(void *argument) {
  struct ml_lock *lock = argument;
  struct ml_error error;
  long n = 0;
  for (bool failed = true; failed;) {
    arm(++n);
    enum ml_status status = ml_client_acquire(lock, &error);
    failed = disarm();
    CHILD_CHECK(failed == (status == ML_REFUSED));
    if (failed) CHILD_CHECK(strstr(error.message, "memory") != NULL);
    CHILD_CHECK(!failed == held(lock));
  }
  CHILD_CHECK(n > 1);
  CHILD_CHECK(ml_client_release(lock, &error) == ML_OK);
  CHILD_CHECK(ml_client_close(lock->client));
  return 0;
}

static void test_memory_for_the_child_of_a_fork_is_there_or_it_is_told(void **state) {
  (void)state;
  for (int kept = 0; kept < 2; kept++) {
    struct ml_client *client = open_client(TIMEOUT);
    struct ml_lock lock, mine;
    add(client, &lock, "of-child", kept == 1);
    add(client, &mine, "of-parent", true);
    acquire(&mine);
    assert_true(in_child(use_in_child, &lock));
    assert_true(held(&mine));
    release(&mine);
    assert_false(is_locked(&lock));
    ml_client_remove(&lock);
    ml_client_remove(&mine);
    end_client(client);
  }
}

/* A whole life in which one allocation fails, whatever comes of it: at its end nothing is locked.
 * False: there were fewer. */
static bool live(long n) {
  struct ml_error error;
  struct ml_lock plain, kept;
  arm(n);
  struct ml_client *client = open_with(TIMEOUT, false, &error);
  if (client == NULL) return disarm();
  if (ml_client_add(client, &plain, key_text(), "plain", 5, 0, NULL, &error) != ML_OK)
    fail_msg("%s", error.message);
  add(client, &kept, "kept", true);
  struct ml_lock *locks[] = {&plain, &kept};
  for (size_t i = 0; i < 2; i++) {
    for (int round = 0; round < 2; round++) {
      enum ml_status status = ml_client_acquire(locks[i], &error);
      assert_true(status == ML_OK || status == ML_REFUSED);
      assert_int_equal(held(locks[i]), status == ML_OK);
      status = ml_client_refresh(locks[i], 0, &error);
      assert_int_equal(status, held(locks[i]) ? ML_OK : ML_NOT_HELD);
      if (round > 0) continue;
      status = ml_client_release(locks[i], &error);
      assert_true(status == ML_OK || status == ML_NOT_HELD);
    }
  }
  ml_client_remove(&plain);
  bool closed = ml_client_close(client);
  assert_true(closed);
  ml_client_remove(&kept);
  ml_client_abandon(client);
  assert_true(server_comes_to(&server, "memlock:plain", false));
  assert_true(server_comes_to(&server, "memlock:kept", false));
  return disarm();
}

static void test_memory_fails_at_any_time_of_a_life_and_nothing_stays_locked(void **state) {
  (void)state;
  long n = 0;
  while (live(++n)) continue;
  assert_true(n > 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_for_a_client_is_there_or_there_is_none),
      cmocka_unit_test(test_memory_is_not_needed_to_lock),
      cmocka_unit_test(test_memory_for_the_keeper_is_there_or_nothing_is_held),
      cmocka_unit_test(test_memory_for_many_kept_locks_fails_one_by_one),
      cmocka_unit_test(test_memory_to_tell_of_a_loss_may_be_missing_and_the_loss_is_told),
      cmocka_unit_test(test_memory_for_a_record_in_doubt_may_be_missing),
      cmocka_unit_test(test_memory_for_a_drop_may_be_missing),
      cmocka_unit_test(test_memory_for_the_child_of_a_fork_is_there_or_it_is_told),
      cmocka_unit_test(test_memory_fails_at_any_time_of_a_life_and_nothing_stays_locked),
  };
  return cmocka_run_group_tests(tests, start_server, end_server);
}
