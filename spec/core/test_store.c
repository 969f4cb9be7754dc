/* The store: what it says to a real memcached, and what it makes of the answers. */
#include "check.h"
#include "server.h"
#include "store.h"
#include "tap.h"

#define TIMEOUT (2 * ML_SECOND)

static struct server server;

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

static struct ml_store *open_at(const char *addresses, int64_t timeout, bool proxy) {
  struct ml_servers servers = {.count = 0};
  struct ml_error error;
  assert_int_equal(ml_servers_add(&servers, addresses, strlen(addresses), &error), ML_OK);
  const struct ml_store_options options = {.servers = &servers, .timeout = timeout, .proxy = proxy};
  struct ml_store *store = ml_store_open(&options, &error);
  if (store == NULL) fail_msg("%s", error.message);
  ml_store_begin(store);
  return store;
}

static struct ml_key key_of(struct ml_store *store, const char *name) {
  struct ml_key key;
  ml_store_place(store, &key, key_text(), "memlock:", name, strlen(name));
  return key;
}

static struct ml_write write_of(const char *value) {
  return (struct ml_write){
      .value = value, .length = strlen(value), .expiry = 60, .flags = ML_FLAGS};
}

/* Takes the lock with this value and returns the view that shows it. */
static struct ml_view taken(struct ml_store *store, const struct ml_key *key, const char *value) {
  struct ml_write write = write_of(value);
  struct ml_view view;
  struct ml_error error;
  if (ml_store_take(store, key, &write, NULL, true, false, &view, &error) != ML_OK)
    fail_msg("%s", error.message);
  assert_true(view.sent && view.present);
  assert_int_equal(view.length, strlen(value));
  assert_memory_equal(view.value, value, view.length);
  return view;
}

static void test_store_take_adds_counts_and_reads_in_one_flight(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "flight");
  struct ml_view view = taken(store, &key, "first");
  assert_int_equal(ml_store_round_trips(store), 1);

  char expected[512], seed[32];
  const char *add = strstr(tap.shared->log, "add #memlock:flight");
  assert_non_null(add);
  assert_int_equal(sscanf(add, "%*[^\r]\r\n%31[0-9]", seed), 1);
  (void)snprintf(expected, sizeof expected,
                 "add memlock:flight %u 60 5 noreply\r\nfirst\r\n"
                 "add #memlock:flight 0 86400 %zu noreply\r\n%s\r\n"
                 "incr #memlock:flight 1 noreply\r\n"
                 "gets #memlock:flight memlock:flight",
                 ML_FLAGS, strlen(seed), seed);
  tap.shared->log[strlen(expected)] = '\0'; /* libmemcached ends the line in its own way */
  assert_string_equal(tap.shared->log, expected);

  struct item item = server_get(&server, "memlock:flight");
  assert_int_equal(item.flags, ML_FLAGS);
  assert_int_equal(item.cas, view.version.cas);
  assert_int_equal(view.flags, ML_FLAGS);
  assert_int_equal(view.fence, server_number(&server, "#memlock:flight"));
  assert_int_equal(view.fence, strtoull(seed, NULL, 10) + 1);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_take_shows_who_was_first(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "first");
  struct ml_view first = taken(store, &key, "somebody");
  struct ml_write write = write_of("another");
  struct ml_view view;
  struct ml_error error;
  for (int replies = 0; replies <= 1; replies++) {
    assert_int_equal(ml_store_take(store, &key, &write, NULL, true, replies, &view, &error), ML_OK);
    assert_true(view.present);
    assert_int_equal(view.length, 8);
    assert_memory_equal(view.value, "somebody", 8);
    assert_int_equal(view.version.cas, first.version.cas);
    assert_int_equal(view.fence, first.fence + 1 + (uint64_t)replies);
  }
  ml_store_close(store);
}

static void test_store_take_seeds_a_fence_only_where_asked_to(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "seeded");
  struct ml_write write = write_of("next");
  struct ml_view view;
  struct ml_error error;
  uint64_t fence = taken(store, &key, "first").fence;
  server_delete(&server, "memlock:seeded");
  assert_int_equal(ml_store_take(store, &key, &write, NULL, false, false, &view, &error), ML_OK);
  assert_memory_equal(view.value, "next", 4);
  assert_int_equal(view.fence, fence + 1);
  assert_true(view.fence_cas > view.version.cas);
  assert_int_equal(tap_count(&tap, "add #memlock:seeded"), 1);
  assert_int_equal(ml_store_round_trips(store), 2);

  /* It has gone: nobody's counter is no counter of ours, but the answer is an answer. */
  server_delete(&server, "#memlock:seeded");
  for (int present = 1; present >= 0; present--) {
    if (!present) server_delete(&server, "memlock:seeded");
    assert_int_equal(ml_store_take(store, &key, &write, NULL, false, false, &view, &error), ML_OK);
    assert_true(view.present);
    assert_int_equal(view.fence, 0);
    assert_int_equal(view.fence_cas, 0);
    assert_false(server_has(&server, "#memlock:seeded"));
  }
  ml_store_close(store);
  tap_end(&tap);
}

/* A read that shows neither of the two is not believed, whatever was sent before it. */
static void test_store_take_without_a_seed_needs_an_item(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "unseen");
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  atomic_store(&tap.shared->blind, true);
  assert_int_equal(ml_store_take(store, &key, &write, NULL, false, false, &view, &error),
                   ML_REFUSED);
  assert_true(view.sent && view.unsaid);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_take_with_replies_gives_the_same(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, true);
  assert_true(ml_store_is_proxy(store));
  struct ml_key key = key_of(store, "replies");
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, true, &view, &error), ML_OK);
  assert_true(view.present);
  assert_memory_equal(view.value, "value", 5);
  assert_int_equal(view.fence, server_number(&server, "#memlock:replies"));
  assert_int_equal(tap_count(&tap, "noreply"), 0);
  assert_int_equal(ml_store_round_trips(store), 4);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_refresh_and_release_replace_one_version(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "replace");
  struct ml_view view = taken(store, &key, "one");
  struct ml_version old = view.version;
  struct ml_write two = write_of("two"), three = write_of("three");
  const struct ml_write nothing = {.value = "", .expiry = ML_EXPIRED};
  struct ml_error error;
  assert_int_equal(ml_store_refresh(store, &key, &two, old, &view, &error), ML_OK);
  assert_memory_equal(view.value, "two", 3);
  assert_true(view.version.cas != old.cas);
  struct ml_version current = view.version;

  /* The version that was replaced replaces nothing. */
  assert_int_equal(ml_store_refresh(store, &key, &three, old, &view, &error), ML_OK);
  assert_memory_equal(view.value, "two", 3);
  assert_int_equal(view.version.cas, current.cas);
  assert_int_equal(ml_store_write(store, &key, &nothing, &old, &error), ML_ANSWER_EXISTS);
  assert_true(server_has(&server, "memlock:replace"));

  assert_int_equal(ml_store_write(store, &key, &nothing, &current, &error), ML_ANSWER_STORED);
  assert_false(server_has(&server, "memlock:replace"));
  assert_int_equal(ml_store_write(store, &key, &nothing, &current, &error), ML_ANSWER_ABSENT);
  /* An add finds room at once. */
  assert_int_equal(ml_store_write(store, &key, &three, NULL, &error), ML_ANSWER_STORED);
  assert_int_equal(ml_store_write(store, &key, &three, NULL, &error), ML_ANSWER_EXISTS);
  ml_store_close(store);
}

static void test_store_probe_tells_absent_from_present(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "probe");
  struct ml_error error;
  assert_int_equal(ml_store_probe(store, &key, &error), ML_ANSWER_ABSENT);
  assert_int_equal(tap_count(&tap, " 2592001 0 9223372036854775807\r\n"), 1);
  server_set(&server, "memlock:probe", "");
  struct item before = server_get(&server, "memlock:probe");
  assert_int_equal(ml_store_probe(store, &key, &error), ML_ANSWER_EXISTS);
  struct item after = server_get(&server, "memlock:probe");
  assert_same_item(before, after);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_read_shows_values_of_any_kind(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "read");
  struct ml_view view;
  struct ml_error error;
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_OK);
  assert_false(view.present);
  assert_false(view.sent);
  assert_int_equal(view.fence, 0);

  server_set(&server, "memlock:read", "");
  assert_int_equal(ml_store_read(store, &key, false, &view, &error), ML_OK);
  assert_true(view.present);
  assert_int_equal(view.length, 0);

  server_do(&server, "set memlock:read 77 0 4\r\na\r\nb\r\n", "STORED");
  server_set(&server, "#memlock:read", "41");
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_OK);
  assert_int_equal(view.fence, 41);
  assert_int_equal(view.flags, 77);
  assert_int_equal(view.length, 4);
  assert_memory_equal(view.value, "a\r\nb", 4);
  ml_store_close(store);
}

static void test_store_says_that_a_fence_is_no_counter(void **state) {
  (void)state;
  static const char *const fences[] = {
      "", "x", "12x", "-1", "0", "9223372036854775808", "18446744073709551615"};
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "fence");
  for (size_t i = 0; i < sizeof fences / sizeof fences[0]; i++) {
    server_set(&server, "#memlock:fence", fences[i]);
    struct ml_view view;
    struct ml_error error;
    assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_OK);
    if (!view.fence_is_bad || view.fence != 0) fail_msg("\"%s\" was taken for a fence", fences[i]);
  }
  ml_store_close(store);
}

static void test_store_refuses_to_take_under_a_fence_that_is_no_counter(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "odd-fence");
  server_set(&server, "#memlock:odd-fence", "x");
  struct ml_write write = write_of("value");
  for (int replies = 0; replies <= 1; replies++) {
    struct ml_view view;
    struct ml_error error;
    assert_int_equal(ml_store_take(store, &key, &write, NULL, true, replies, &view, &error),
                     ML_REFUSED);
    assert_true(view.sent);
  }
  ml_store_close(store);
}

static void test_store_seeds_fences_above_all_it_has_seen(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "seed");
  uint64_t before = (uint64_t)ml_clock_unix_us();
  uint64_t fence = taken(store, &key, "a").fence;
  assert_true(fence > before && fence < before + 60 * UINT64_C(1000000));
  /* A counter far in the future of this clock, seen and then lost. */
  server_set(&server, "#memlock:seed", "8000000000000000000");
  server_delete(&server, "memlock:seed");
  assert_true(taken(store, &key, "b").fence == UINT64_C(8000000000000000001));
  server_delete(&server, "#memlock:seed");
  server_delete(&server, "memlock:seed");
  assert_true(taken(store, &key, "c").fence > UINT64_C(8000000000000000001));
  ml_store_close(store);
}

static void test_store_sends_no_version_of_an_earlier_connection(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "epoch");
  struct ml_version old = taken(store, &key, "value").version;
  assert_true(ml_store_current(store, &key, old));
  struct item before = server_get(&server, "memlock:epoch");
  ml_store_drop(store, &key);
  assert_false(ml_store_current(store, &key, old));
  tap_forget(&tap);

  struct ml_write write = write_of("other");
  for (int round = 0; round < 2; round++) {
    struct ml_view view;
    struct ml_error error;
    assert_int_equal(ml_store_refresh(store, &key, &write, old, &view, &error), ML_REFUSED);
    assert_false(view.sent);
    assert_int_equal(ml_store_take(store, &key, &write, &old, true, false, &view, &error),
                     ML_REFUSED);
    assert_false(view.sent);
    assert_int_equal(ml_store_take(store, &key, &write, &old, true, true, &view, &error),
                     ML_REFUSED);
    assert_false(view.sent);
    assert_int_equal(ml_store_write(store, &key, &write, &old, &error), ML_ANSWER_NONE);
    assert_int_equal(error.status, ML_REFUSED);
    assert_false(ml_store_send(store, &key, &write, old, false));
    /* And once more with the new connection open. */
    assert_int_equal(ml_store_read(store, &key, false, &view, &error), ML_OK);
  }
  assert_int_equal(tap_count(&tap, "cas "), 0);
  assert_int_equal(tap_count(&tap, "add "), 0);
  struct item after = server_get(&server, "memlock:epoch");
  assert_same_item(before, after);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_epochs_are_unique_in_the_process(void **state) {
  (void)state;
  struct ml_store *a = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(a, "unique");
  struct ml_version version = taken(a, &key, "value").version;
  /* The same connection for all that another store can tell, but not its own. */
  struct ml_store *b = open_at(server.path, TIMEOUT, false);
  assert_false(ml_store_current(b, &key, version));
  struct ml_view view;
  struct ml_error error;
  assert_int_equal(ml_store_read(b, &key, false, &view, &error), ML_OK);
  assert_true(view.version.cas == version.cas && view.version.epoch != version.epoch);
  ml_store_close(a);
  struct ml_store *c = open_at(server.path, TIMEOUT, false);
  assert_false(ml_store_current(c, &key, version));
  ml_store_close(b);
  ml_store_close(c);
}

static void test_store_sends_no_cas_id_of_zero(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "zero");
  struct ml_version version = taken(store, &key, "value").version;
  tap_forget(&tap);
  version.cas = 0;
  struct ml_write write = write_of("other");
  struct ml_view view;
  struct ml_error error;
  assert_false(ml_store_current(store, &key, version));
  assert_int_equal(ml_store_refresh(store, &key, &write, version, &view, &error), ML_REFUSED);
  assert_int_equal(ml_store_take(store, &key, &write, &version, true, false, &view, &error),
                   ML_REFUSED);
  assert_int_equal(ml_store_write(store, &key, &write, &version, &error), ML_ANSWER_NONE);
  assert_false(ml_store_send(store, &key, &write, version, false));
  assert_int_equal(ml_store_read(store, &key, false, &view, &error), ML_OK);
  assert_memory_equal(view.value, "value", 5);
  assert_int_equal(tap_count(&tap, "cas "), 0);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_drops_the_epoch_on_any_odd_answer(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "odd");
  struct ml_version version = taken(store, &key, "value").version;
  server_set(&server, "#memlock:odd", "no counter");
  struct ml_view view;
  struct ml_error error;
  struct ml_write write = write_of("other");
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, false, &view, &error),
                   ML_REFUSED);
  assert_contains(error.message, "no counter");
  assert_contains(error.message, server.path);
  assert_false(ml_store_current(store, &key, version));
  ml_store_close(store);
}

static void test_store_without_cas_is_unsupported(void **state) {
  (void)state;
  struct server plain;
  struct tap tap;
  server_start(&plain, "-C");
  tap_open(&tap, &plain);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "plain");
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, false, &view, &error),
                   ML_UNSUPPORTED);
  assert_contains(error.message, "compare-and-swap");
  assert_contains(error.message, tap.path);
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, true, &view, &error),
                   ML_UNSUPPORTED);
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_UNSUPPORTED);
  assert_int_equal(ml_store_read(store, &key, false, &view, &error), ML_UNSUPPORTED);
  assert_int_equal(tap_count(&tap, "cas "), 0);
  assert_int_equal(tap_count(&tap, "delete "), 0);
  ml_store_close(store);
  tap_end(&tap);
  server_end(&plain);
}

static void test_store_that_is_full_refuses(void **state) {
  (void)state;
  struct server small;
  server_start(&small, "-M -m 2");
  server_fill(&small);
  struct ml_store *store = open_at(small.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "full");
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  /* Errors of commands without reply are not heard: the answer lacks the fence. */
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, false, &view, &error),
                   ML_REFUSED);
  assert_int_equal(ml_store_take(store, &key, &write, NULL, true, true, &view, &error), ML_REFUSED);
  assert_contains(error.message, "ALLOCATE");
  assert_int_equal(ml_store_write(store, &key, &write, NULL, &error), ML_ANSWER_REFUSED);
  assert_int_equal(error.status, ML_REFUSED);
  assert_false(server_has(&small, "memlock:full"));
  ml_store_close(store);
  server_end(&small);
}

static void test_store_on_a_stopped_server_times_out_once(void **state) {
  (void)state;
  const int64_t timeout = 150 * MS;
  for (int proxy = 0; proxy <= 1; proxy++)
    for (int connected = 0; connected <= 1; connected++) {
      struct ml_store *store = open_at(server.path, timeout, proxy);
      struct ml_key key = key_of(store, "stopped");
      struct ml_write write = write_of("value");
      struct ml_view view;
      struct ml_error error;
      if (connected) assert_int_equal(ml_store_read(store, &key, false, &view, &error), ML_OK);
      server_stop(&server);
      int64_t started = ml_clock_now();
      ml_store_begin(store);
      assert_int_equal(ml_store_take(store, &key, &write, NULL, true, proxy, &view, &error),
                       ML_TIMEOUT);
      assert_true(view.sent);
      assert_contains(error.message, "did not answer in time");
      assert_contains(error.message, server.path);
      assert_took_at_least(started, timeout);
      /* The rest of the operation has no time left, and nothing more is sent. */
      assert_false(ml_store_has_time(store));
      assert_int_equal(ml_store_take(store, &key, &write, NULL, true, proxy, &view, &error),
                       ML_TIMEOUT);
      assert_false(view.sent);
      assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_TIMEOUT);
      assert_int_equal(ml_store_probe(store, &key, &error), ML_ANSWER_NONE);
      assert_int_equal(error.status, ML_TIMEOUT);
      assert_took_less(started, BY_TIMEOUT(timeout));
      server_continue(&server);
      started = ml_clock_now();
      ml_store_close(store);
      assert_took_less(started, AT_ONCE);
    }
}

static void test_store_at_a_dead_address_is_unreachable_at_once(void **state) {
  (void)state;
  struct server gone;
  server_start(&gone, NULL);
  struct ml_store *store = open_at(gone.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "gone");
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  (void)taken(store, &key, "value");
  server_end(&gone);
  int64_t started = ml_clock_now();
  for (int i = 0; i < 5; i++) {
    ml_store_begin(store);
    assert_int_equal(ml_store_take(store, &key, &write, NULL, true, false, &view, &error),
                     ML_UNREACHABLE);
    assert_contains(error.message, gone.path);
    assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_UNREACHABLE);
    assert_int_equal(ml_store_probe(store, &key, &error), ML_ANSWER_NONE);
    assert_int_equal(error.status, ML_UNREACHABLE);
  }
  assert_took_less(started, AT_ONCE);
  /* No grudge: the first call after it is back works. */
  server_launch(&gone);
  ml_store_begin(store);
  (void)taken(store, &key, "value");
  ml_store_close(store);
  server_end(&gone);
}

static void test_store_send_waits_for_nothing_and_flush_for_all(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, 200 * MS, false);
  struct ml_key key = key_of(store, "send");
  struct ml_version version = taken(store, &key, "value").version;
  const struct ml_write nothing = {.value = "", .expiry = ML_EXPIRED};
  struct ml_error error;
  assert_int_equal(ml_store_flush(store, &error), ML_OK); /* nothing to wait for */

  server_stop(&server);
  int64_t started = ml_clock_now();
  assert_true(ml_store_send(store, &key, &nothing, version, false));
  assert_took_less(started, 100 * MS);
  ml_store_begin(store);
  started = ml_clock_now();
  assert_int_equal(ml_store_flush(store, &error), ML_TIMEOUT);
  assert_took_less(started, BY_TIMEOUT(200 * MS));
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:send", false));

  ml_store_begin(store);
  version = taken(store, &key, "again").version;
  assert_true(ml_store_send(store, &key, &nothing, version, false));
  assert_int_equal(ml_store_flush(store, &error), ML_OK);
  assert_false(server_has(&server, "memlock:send"));
  ml_store_close(store);
}

static void on_user_signal(int number) { (void)number; }

static void test_store_is_not_disturbed_by_signals(void **state) {
  (void)state;
  struct sigaction action = {.sa_handler = on_user_signal, .sa_flags = SA_RESTART}, before;
  assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
  const int64_t timeout = 400 * MS;
  struct ml_store *store = open_at(server.path, timeout, false);
  struct ml_key key = key_of(store, "signals");
  server_stop(&server);
  pid_t parent = getpid();
  pid_t helper = fork_helper();
  if (helper == 0) {
    for (;;) {
      pause_for(20 * MS);
      (void)kill(parent, SIGUSR1);
    }
  }
  struct ml_write write = write_of("value");
  struct ml_view view;
  struct ml_error error;
  int64_t started = ml_clock_now();
  ml_store_begin(store);
  enum ml_status status = ml_store_take(store, &key, &write, NULL, true, false, &view, &error);
  int64_t took = ml_clock_now() - started;
  end_child(helper);
  server_continue(&server);
  (void)sigaction(SIGUSR1, &before, NULL);
  assert_int_equal(status, ML_TIMEOUT);
  assert_true(took >= timeout && took < BY_TIMEOUT(timeout));
  ml_store_close(store);
}

#define NAMES 200

static void test_store_places_names_alike_in_any_order_of_servers(void **state) {
  (void)state;
  static const char *const orders[] = {"a:1,b:2,c:3,/s", "/s,c:3,b:2,a:1", "c:3,a:1,/s,b:2"};
  struct ml_store *stores[3];
  for (int i = 0; i < 3; i++) stores[i] = open_at(orders[i], TIMEOUT, false);
  int counts[4] = {0};
  for (int n = 0; n < NAMES; n++) {
    char name[32];
    (void)snprintf(name, sizeof name, "name-%d", n);
    struct ml_key key = key_of(stores[0], name);
    counts[key.server]++;
    for (int i = 1; i < 3; i++) {
      struct ml_key other = key_of(stores[i], name);
      assert_string_equal(ml_store_server(stores[0], &key), ml_store_server(stores[i], &other));
    }
  }
  for (int i = 0; i < 4; i++) assert_in_range(counts[i], NAMES / 20, NAMES / 2);
  for (int i = 0; i < 3; i++) ml_store_close(stores[i]);
}

static void test_store_keys_stand_in_one_text(void **state) {
  (void)state;
  struct ml_store *store = open_at(server.path, TIMEOUT, false);
  struct ml_key key;
  ml_store_place(store, &key, key_text(), "p:", "name and more", 4);
  assert_string_equal(key.text, "#p:name");
  assert_int_equal(key.length, 6);
  ml_store_place(store, &key, key_text(), "", "x", 1);
  assert_string_equal(key.text, "#x");
  /* The longest there is, taken and read back. */
  char name[ML_KEY_MAX];
  memset(name, 'n', sizeof name);
  ml_store_place(store, &key, key_text(), "memlock:", name, ML_KEY_MAX - 1 - 8);
  assert_int_equal(key.length, ML_KEY_MAX - 1);
  (void)taken(store, &key, "value");
  ml_store_close(store);
}

static int abandons(void *argument) {
  ml_store_abandon(argument);
  return 0;
}

static void test_store_abandoned_by_a_child_lives_on(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_store *store = open_at(tap.path, TIMEOUT, false);
  struct ml_key key = key_of(store, "abandoned");
  struct ml_version version = taken(store, &key, "value").version;
  size_t said = tap.shared->length;
  assert_true(in_child(abandons, store));
  pause_for(20 * MS);
  assert_int_equal(tap.shared->length, said);
  struct ml_write write = write_of("other");
  struct ml_view view;
  struct ml_error error;
  assert_int_equal(ml_store_refresh(store, &key, &write, version, &view, &error), ML_OK);
  assert_memory_equal(view.value, "other", 5);
  assert_int_equal(tap.shared->connections, 1);
  ml_store_close(store);
  tap_end(&tap);
}

static void test_store_with_a_password_says_it_first(void **state) {
  (void)state;
  char path[100];
  new_socket_path(path, sizeof path);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs("user:secret\n", file) >= 0);
  assert_int_equal(fclose(file), 0);
  char arguments[128];
  (void)snprintf(arguments, sizeof arguments, "-Y %s", path);
  struct server guarded;
  server_start(&guarded, arguments);

  struct ml_servers servers = {.count = 0};
  struct ml_error error;
  assert_int_equal(ml_servers_add(&servers, guarded.path, strlen(guarded.path), &error), ML_OK);
  struct ml_store_options options = {
      .servers = &servers, .timeout = TIMEOUT, .username = "user", .password = "secret"};
  struct ml_store *store = ml_store_open(&options, &error);
  assert_non_null(store);
  ml_store_begin(store);
  struct ml_key key = key_of(store, "guarded");
  (void)taken(store, &key, "value");
  ml_store_drop(store, &key); /* each connection anew */
  struct ml_view view;
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_OK);
  assert_true(view.present);
  ml_store_close(store);

  options.password = "wrong";
  store = ml_store_open(&options, &error);
  assert_non_null(store);
  ml_store_begin(store);
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_REFUSED);
  assert_contains(error.message, "username and password");
  assert_null(strstr(error.message, "wrong"));
  ml_store_close(store);

  options.username = options.password = NULL;
  store = ml_store_open(&options, &error);
  assert_non_null(store);
  ml_store_begin(store);
  assert_int_equal(ml_store_read(store, &key, true, &view, &error), ML_REFUSED);
  ml_store_close(store);
  server_end(&guarded);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_store_take_adds_counts_and_reads_in_one_flight),
      cmocka_unit_test(test_store_take_shows_who_was_first),
      cmocka_unit_test(test_store_take_seeds_a_fence_only_where_asked_to),
      cmocka_unit_test(test_store_take_without_a_seed_needs_an_item),
      cmocka_unit_test(test_store_take_with_replies_gives_the_same),
      cmocka_unit_test(test_store_refresh_and_release_replace_one_version),
      cmocka_unit_test(test_store_probe_tells_absent_from_present),
      cmocka_unit_test(test_store_read_shows_values_of_any_kind),
      cmocka_unit_test(test_store_says_that_a_fence_is_no_counter),
      cmocka_unit_test(test_store_refuses_to_take_under_a_fence_that_is_no_counter),
      cmocka_unit_test(test_store_seeds_fences_above_all_it_has_seen),
      cmocka_unit_test(test_store_sends_no_version_of_an_earlier_connection),
      cmocka_unit_test(test_store_epochs_are_unique_in_the_process),
      cmocka_unit_test(test_store_sends_no_cas_id_of_zero),
      cmocka_unit_test(test_store_drops_the_epoch_on_any_odd_answer),
      cmocka_unit_test(test_store_without_cas_is_unsupported),
      cmocka_unit_test(test_store_that_is_full_refuses),
      cmocka_unit_test(test_store_on_a_stopped_server_times_out_once),
      cmocka_unit_test(test_store_at_a_dead_address_is_unreachable_at_once),
      cmocka_unit_test(test_store_send_waits_for_nothing_and_flush_for_all),
      cmocka_unit_test(test_store_is_not_disturbed_by_signals),
      cmocka_unit_test(test_store_places_names_alike_in_any_order_of_servers),
      cmocka_unit_test(test_store_keys_stand_in_one_text),
      cmocka_unit_test(test_store_abandoned_by_a_child_lives_on),
      cmocka_unit_test(test_store_with_a_password_says_it_first),
  };
  return cmocka_run_group_tests_name("store", tests, start_server, end_server);
}
