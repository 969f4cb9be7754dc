/* The client: options, many locks, several servers, waits, doubt, forks, and how it all ends. */
#include "check.h"
#include "client.h"
#include "server.h"
#include "tap.h"

#define TIMEOUT (2 * ML_SECOND)
#define SHORT (250 * MS)

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

static struct ml_client *open_with(const char *addresses, struct ml_client_options options) {
  struct ml_error error;
  options.servers.count = 0;
  assert_int_equal(ml_servers_add(&options.servers, addresses, strlen(addresses), &error), ML_OK);
  struct ml_client *client = ml_client_open(&options, &error);
  if (client == NULL) fail_msg("%s", error.message);
  return client;
}

static struct ml_client *open_client(const char *addresses, int64_t timeout) {
  struct ml_client_options options;
  ml_client_defaults(&options);
  options.timeout = timeout;
  return open_with(addresses, options);
}

static void add(struct ml_client *client, struct ml_lock *lock, const char *name) {
  struct ml_error error;
  if (ml_client_add(client, lock, key_text(), name, strlen(name), 0, NULL, &error) != ML_OK)
    fail_msg("%s", error.message);
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

static struct ml_stats stats_of(const struct ml_client *client) {
  struct ml_stats stats;
  ml_client_stats(client, &stats);
  return stats;
}

/* Some operation on another name, which has nothing to do with what is in doubt. */
static void do_something_else(struct ml_client *client) {
  struct ml_holder holder;
  struct ml_error error;
  bool mine;
  assert_int_equal(ml_client_holder(client, "elsewhere", 9, &holder, &mine, &error), ML_OK);
  struct ml_lock lock;
  add(client, &lock, "elsewhere");
  acquire(&lock);
  release(&lock);
  ml_client_remove(&lock);
}

/* Checks of what users give. */

static void test_client_checks_prefixes(void **state) {
  (void)state;
  struct ml_error error;
  char text[ML_KEY_MAX + 1];
  memset(text, 'p', sizeof text);
  assert_int_equal(ml_client_check_prefix("", 0, &error), ML_OK);
  assert_int_equal(ml_client_check_prefix("memlock:", 8, &error), ML_OK);
  assert_int_equal(ml_client_check_prefix(text, 248, &error), ML_OK);
  assert_int_equal(ml_client_check_prefix(text, 249, &error), ML_INVALID);
  assert_int_equal(ml_client_check_prefix("#a", 2, &error), ML_INVALID);
  assert_contains(error.message, "begins with '#'");
  assert_int_equal(ml_client_check_prefix("a#", 2, &error), ML_OK);
  assert_int_equal(ml_client_check_prefix("a b", 3, &error), ML_INVALID);
  assert_contains(error.message, "byte 0x20 at position 2");
}

static void test_client_checks_names(void **state) {
  (void)state;
  struct ml_error error;
  char text[ML_KEY_MAX + 1];
  memset(text, 'n', sizeof text);
  assert_int_equal(ml_client_check_name("memlock:", "", 0, &error), ML_INVALID);
  assert_contains(error.message, "name is empty");
  assert_int_equal(ml_client_check_name("memlock:", text, 1, &error), ML_OK);
  assert_int_equal(ml_client_check_name("memlock:", text, 241, &error), ML_OK);
  assert_int_equal(ml_client_check_name("memlock:", text, 242, &error), ML_INVALID);
  assert_contains(error.message, "at most 241 fit");
  assert_int_equal(ml_client_check_name("", text, 249, &error), ML_OK);
  assert_int_equal(ml_client_check_name("", text, 250, &error), ML_INVALID);
  assert_int_equal(ml_client_check_name("memlock:", text, SIZE_MAX, &error), ML_INVALID);
  assert_int_equal(ml_client_check_name("", "#a", 2, &error), ML_INVALID);
  assert_int_equal(ml_client_check_name("p", "#a", 2, &error), ML_OK);
  for (int byte = 0; byte <= 0xff; byte++) {
    text[1] = (char)byte;
    enum ml_status expected = byte > 0x20 && byte != 0x7f ? ML_OK : ML_INVALID;
    assert_int_equal(ml_client_check_name("memlock:", text, 3, &error), expected);
  }
}

static void test_client_checks_ttls(void **state) {
  (void)state;
  struct ml_error error;
  int64_t ttl;
  assert_int_equal(ml_client_check_ttl(0.5, &ttl, &error), ML_OK);
  assert_true(ttl == 500 * MS);
  assert_int_equal(ml_client_check_ttl(2419200, &ttl, &error), ML_OK);
  assert_true(ttl == 2419200 * ML_SECOND);
  assert_int_equal(ml_client_check_ttl(0.001, &ttl, &error), ML_OK);
  static const double bad[] = {0, -0.0, -1, 2419200.1, 1e300};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(ml_client_check_ttl(bad[i], &ttl, &error), ML_INVALID);
    assert_contains(error.message, "ttl");
  }
  assert_int_equal(ml_client_check_ttl(strtod("nan", NULL), &ttl, &error), ML_INVALID);
  assert_int_equal(ml_client_check_ttl(strtod("inf", NULL), &ttl, &error), ML_INVALID);
  assert_int_equal(ml_client_check_ttl(strtod("-inf", NULL), &ttl, &error), ML_INVALID);
}

/* Options. */

static void test_client_has_the_documented_defaults(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_client_options options;
  ml_client_defaults(&options);
  struct ml_client *client = open_with(tap.path, options);
  assert_string_equal(ml_client_prefix(client), "memlock:");
  assert_int_equal(ml_client_servers(client)->count, 1);
  struct ml_lock lock;
  add(client, &lock, "defaults");
  assert_string_equal(lock.name, "defaults");
  assert_int_equal(atomic_load(&tap.shared->connections), 0); /* no network until it is needed */
  acquire(&lock);
  int64_t left;
  assert_true(ml_client_held(&lock, &left) && left <= 16 * ML_SECOND);
  char pid[16];
  (void)snprintf(pid, sizeof pid, ":%ld", (long)getpid());
  struct item item = server_get(&server, "memlock:defaults");
  assert_contains(item.value, pid);
  ml_client_remove(&lock);
  ml_client_abandon(client);
  tap_end(&tap);
}

static void test_client_uses_its_options(void **state) {
  (void)state;
  struct ml_client_options options;
  ml_client_defaults(&options);
  char prefix[] = "app/", label[] = "a label", identity[] = "web-1";
  options.prefix = prefix;
  options.label = label;
  options.identity = identity;
  options.ttl = 1500 * MS;
  struct ml_client *client = open_with(server.path, options);
  memset(prefix, 'x', sizeof prefix - 1); /* all of them are copied */
  memset(label, 'x', sizeof label - 1);
  memset(identity, 'x', sizeof identity - 1);
  struct ml_lock lock, other;
  struct ml_error error;
  add(client, &lock, "options");
  acquire(&lock);
  struct item item = server_get(&server, "app/options");
  struct ml_record record;
  assert_true(ml_record_decode(item.value, item.length, &record));
  assert_string_equal(record.id, "web-1");
  assert_string_equal(record.label, "a label");
  assert_int_equal(record.ttl_ms, 1500);
  assert_true(server_has(&server, "#app/options"));

  /* A lock's own go first. */
  assert_int_equal(
      ml_client_add(client, &other, key_text(), "options2", 8, 5 * ML_SECOND, "me", &error), ML_OK);
  acquire(&other);
  item = server_get(&server, "app/options2");
  assert_true(ml_record_decode(item.value, item.length, &record));
  assert_string_equal(record.id, "me");
  assert_int_equal(record.ttl_ms, 5000);
  release(&lock);
  release(&other);
  ml_client_remove(&lock);
  ml_client_remove(&other);
  ml_client_abandon(client);
}

static void test_client_counts_what_it_did(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lock, rival;
  struct ml_error error;
  add(a, &lock, "counts");
  add(b, &rival, "counts");
  acquire(&lock);
  assert_int_equal(ml_client_held_count(a), 1);
  assert_int_equal(ml_client_acquire(&rival, &error), ML_HELD);
  assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_OK);
  assert_int_equal(ml_client_verify(&lock, &error), ML_OK);
  release(&lock);
  assert_int_equal(ml_client_release(&lock, &error), ML_NOT_HELD);
  acquire(&lock);
  server_delete(&server, "memlock:counts");
  assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_LOST);
  struct ml_stats stats = stats_of(a);
  assert_int_equal(stats.attempts, 2);
  assert_int_equal(stats.acquired, 2);
  assert_int_equal(stats.contended, 0);
  assert_int_equal(stats.refreshed, 1);
  assert_int_equal(stats.released, 1);
  assert_int_equal(stats.lost, 1);
  assert_int_equal(stats.errors, 0);
  assert_int_equal(stats.round_trips, 7); /* the last one asked twice: absence is proven */
  stats = stats_of(b);
  assert_int_equal(stats.attempts, 1);
  assert_int_equal(stats.contended, 1);
  assert_int_equal(stats.acquired, 0);
  assert_int_equal(ml_client_held_count(a), 0);
  ml_client_remove(&lock);
  ml_client_remove(&rival);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

static void test_client_tells_who_holds_a_name(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lock;
  struct ml_holder holder;
  struct ml_error error;
  bool mine;
  add(a, &lock, "who");
  assert_int_equal(ml_client_holder(a, "who", 3, &holder, &mine, &error), ML_OK);
  assert_true(holder.free && !mine);
  acquire(&lock);
  assert_int_equal(ml_client_holder(a, "who", 3, &holder, &mine, &error), ML_OK);
  assert_true(!holder.free && holder.is_record && mine);
  assert_int_equal(ml_client_holder(b, "who", 3, &holder, &mine, &error), ML_OK);
  assert_true(!holder.free && holder.is_record && !mine);
  assert_string_equal(holder.record.id, lock.id);

  char value[ML_RECORD_MAX];
  size_t length = holder.length;
  memcpy(value, holder.value, length);
  assert_int_equal(ml_client_break(b, "who", 3, value, length - 1, &error), ML_HELD);
  assert_int_equal(ml_client_break(b, "who", 3, value, length, &error), ML_OK);
  assert_int_equal(ml_client_break(b, "who", 3, value, length, &error), ML_NOT_HELD);
  assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_LOST);
  ml_client_remove(&lock);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

/* Doubt. */

static void test_client_removes_a_record_in_doubt_with_its_next_operations(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "doubt");
  server_stop(&server);
  int64_t started = ml_clock_now();
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  assert_took_less(started, BY_TIMEOUT(SHORT));
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:doubt", true));
  do_something_else(client);
  assert_false(server_has(&server, "memlock:doubt"));
  assert_int_equal(stats_of(client).errors, 1);
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

static void test_client_remembers_doubt_of_a_lock_that_is_gone(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "gone");
  server_stop(&server);
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  ml_client_remove(&lock);
  memset(&lock, 0xff, sizeof lock);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:gone", true));
  do_something_else(client);
  assert_false(server_has(&server, "memlock:gone"));
  ml_client_abandon(client);
}

static void test_client_is_not_fooled_by_absence_of_a_record_under_way(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_client *client = open_client(tap.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "under-way");
  tap_hold(&tap, 1);
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  /* Taken and given back over a newer connection, while the first add is still on its way. */
  acquire(&lock);
  release(&lock);
  assert_false(server_has(&server, "memlock:under-way"));
  tap_let_go(&tap);
  assert_true(server_comes_to(&server, "memlock:under-way", true));
  int64_t deadline = ml_clock_now() + 5 * ML_SECOND;
  while (server_has(&server, "memlock:under-way")) { /* it looks now and then */
    assert_true(ml_clock_now() < deadline);
    do_something_else(client);
    pause_for(20 * MS);
  }
  ml_client_remove(&lock);
  ml_client_abandon(client);
  tap_end(&tap);
}

static void test_client_remembers_all_doubts_of_an_identity(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_client *client = open_client(tap.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  assert_int_equal(ml_client_add(client, &lock, key_text(), "named", 5, 0, "web-1", &error), ML_OK);
  tap_hold(&tap, 1);
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT); /* waits on connection 1 */
  acquire(&lock);
  release(&lock);
  server_stop(&server); /* a second doubt, of the same id */
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:named", true));
  do_something_else(client);
  int64_t deadline = ml_clock_now() + 2 * ML_SECOND;
  while (server_has(&server, "memlock:named")) {
    assert_true(ml_clock_now() < deadline);
    do_something_else(client);
    pause_for(20 * MS);
  }
  tap_let_go(&tap); /* and now the first one's add comes */
  assert_true(server_comes_to(&server, "memlock:named", true));
  deadline = ml_clock_now() + 2 * ML_SECOND;
  while (server_has(&server, "memlock:named")) {
    assert_true(ml_clock_now() < deadline);
    do_something_else(client);
    pause_for(20 * MS);
  }
  ml_client_remove(&lock);
  ml_client_abandon(client);
  tap_end(&tap);
}

static void test_client_leaves_a_held_lock_alone_whatever_was_in_doubt(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  for (int named = 0; named <= 1; named++) {
    assert_int_equal(
        ml_client_add(client, &lock, key_text(), "settled", 7, 0, named ? "web-1" : NULL, &error),
        ML_OK);
    server_stop(&server);
    assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
    server_continue(&server);
    assert_true(server_comes_to(&server, "memlock:settled", true));
    acquire(&lock);
    struct item before = server_get(&server, "memlock:settled");
    for (int i = 0; i < 3; i++) {
      pause_for(100 * MS);
      do_something_else(client);
    }
    struct item after = server_get(&server, "memlock:settled");
    assert_same_item(before, after);
    assert_int_equal(ml_client_verify(&lock, &error), ML_OK);
    release(&lock);
    ml_client_remove(&lock);
  }
  ml_client_abandon(client);
}

static void test_client_finishes_a_release_in_doubt(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "finish");
  for (int helped = 0; helped <= 1; helped++) {
    acquire(&lock);
    server_stop(&server);
    assert_int_equal(ml_client_release(&lock, &error), ML_TIMEOUT);
    assert_false(held(&lock));
    server_continue(&server);
    if (helped) { /* by what the client does elsewhere: the second release finds it done */
      do_something_else(client);
      assert_false(server_has(&server, "memlock:finish"));
    }
    release(&lock);
    assert_false(server_has(&server, "memlock:finish"));
    assert_int_equal(ml_client_release(&lock, &error), ML_NOT_HELD);
  }
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

/* Waiting. */

static void test_client_wait_of_nothing_is_one_attempt(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lock, rival;
  struct ml_error error;
  add(a, &lock, "no-wait");
  add(b, &rival, "no-wait");
  acquire(&lock);
  struct ml_wait wait = {.span = 0};
  int64_t pause = -1;
  assert_int_equal(ml_client_try(&rival, &wait, &pause, &error), ML_HELD);
  assert_true(pause == 0);
  assert_int_equal(stats_of(b).attempts, 1);
  ml_client_remove(&lock);
  ml_client_remove(&rival);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

/* Waits as a host does. Returns the outcome; *tries counts the calls. */
static enum ml_status wait_for(struct ml_lock *lock, int64_t span, int *tries) {
  struct ml_wait wait = {.span = span};
  struct ml_error error;
  for (*tries = 1;; (*tries)++) {
    int64_t pause;
    enum ml_status status = ml_client_try(lock, &wait, &pause, &error);
    if (pause == 0) return status;
    assert_int_not_equal(status, ML_OK);
    pause_for(pause);
  }
}

static void test_client_wait_ends_at_its_deadline_with_an_attempt(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lock, rival;
  int tries;
  add(a, &lock, "wait");
  add(b, &rival, "wait");
  acquire(&lock);
  int64_t started = ml_clock_now();
  assert_int_equal(wait_for(&rival, 200 * MS, &tries), ML_HELD);
  assert_took_at_least(started, 200 * MS);
  assert_took_less(started, 200 * MS + AT_ONCE);
  assert_in_range(tries, 2, 60);
  assert_int_equal(stats_of(b).attempts, tries);
  assert_true(stats_of(b).waited > 100 * MS && stats_of(b).waited <= 200 * MS);

  pid_t helper = fork_helper(); /* somebody else ends it in the meantime */
  if (helper == 0) {
    pause_for(150 * MS);
    int fd = connect_to(server.path);
    static const char command[] = "delete memlock:wait\r\n";
    _exit(write(fd, command, sizeof command - 1) < 0);
  }
  started = ml_clock_now();
  assert_int_equal(wait_for(&rival, ML_FOREVER, &tries), ML_OK);
  assert_took_less(started, 150 * MS + 250 * MS + AT_ONCE);
  end_child(helper);
  release(&rival);
  ml_client_remove(&lock);
  ml_client_remove(&rival);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

static void test_client_wait_outlasts_a_server_that_is_away(void **state) {
  (void)state;
  struct server away;
  int tries;
  server_start(&away, NULL);
  struct ml_client *client = open_client(away.path, SHORT);
  struct ml_lock lock;
  add(client, &lock, "away");
  server_end(&away);
  int64_t started = ml_clock_now();
  assert_int_equal(wait_for(&lock, 300 * MS, &tries), ML_UNREACHABLE);
  assert_took_at_least(started, 300 * MS);
  assert_true(tries >= 2);

  server_launch(&away);
  server_stop(&away);
  pid_t helper = server_continue_after(&away, 300 * MS);
  assert_int_equal(wait_for(&lock, 5 * ML_SECOND, &tries), ML_OK);
  end_child(helper);
  assert_true(held(&lock));
  release(&lock);
  ml_client_remove(&lock);
  ml_client_abandon(client);
  server_end(&away);
}

static void test_client_wait_keeps_to_the_bounds_of_pauses(void **state) {
  (void)state;
  struct ml_client_options options;
  ml_client_defaults(&options);
  options.retry_min = 40 * MS;
  options.retry_max = 50 * MS;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_with(server.path, options);
  struct ml_lock lock, rival;
  struct ml_error error;
  add(a, &lock, "bounds");
  add(b, &rival, "bounds");
  acquire(&lock);
  struct ml_wait wait = {.span = 10 * ML_SECOND};
  for (int i = 0; i < 30; i++) {
    int64_t pause;
    assert_int_equal(ml_client_try(&rival, &wait, &pause, &error), ML_HELD);
    assert_true(pause >= 40 * MS && pause <= 50 * MS);
  }
  ml_client_remove(&lock);
  ml_client_remove(&rival);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

static void test_client_wait_lets_others_go_first(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lock, rival;
  struct ml_error error;
  add(a, &lock, "courtesy");
  add(b, &rival, "courtesy");
  acquire(&lock);
  release(&lock);
  assert_int_equal(ml_client_acquire(&rival, &error), ML_OK);
  release(&rival);
  acquire(&lock);
  pause_for(200 * MS);
  release(&lock);
  /* One that does not wait is not held up. */
  struct ml_wait none = {.span = 0};
  int64_t pause;
  assert_int_equal(ml_client_try(&lock, &none, &pause, &error), ML_OK);
  release(&lock);

  /* Of many waits that begin right after such a release, most begin with a pause. */
  int paused = 0;
  for (int i = 0; i < 10; i++) {
    assert_int_equal(ml_client_acquire(&rival, &error), ML_OK);
    release(&rival);
    acquire(&lock);
    pause_for(20 * MS);
    release(&lock);
    struct ml_wait wait = {.span = 10 * ML_SECOND};
    uint64_t attempts = stats_of(a).attempts;
    enum ml_status status = ml_client_try(&lock, &wait, &pause, &error);
    if (pause > 0) {
      paused++;
      assert_true(pause <= 250 * MS);
      assert_int_equal(stats_of(a).attempts, attempts); /* without asking */
      status = ml_client_try(&lock, &wait, &pause, &error);
    }
    assert_int_equal(status, ML_OK);
    release(&lock);
  }
  assert_true(paused >= 2);
  ml_client_remove(&lock);
  ml_client_remove(&rival);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

static void test_client_wait_for_what_it_holds_itself_ends_at_once(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_lock lock;
  int tries;
  add(client, &lock, "itself");
  acquire(&lock);
  int64_t started = ml_clock_now();
  assert_int_equal(wait_for(&lock, ML_FOREVER, &tries), ML_HELD);
  assert_int_equal(tries, 1);
  assert_took_less(started, AT_ONCE);
  assert_true(ml_client_close(client));
  assert_int_equal(wait_for(&lock, ML_FOREVER, &tries), ML_CLOSED);
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

/* Forks. */

struct family {
  struct ml_client *client;
  struct ml_lock *lock;
};

static int child_uses_its_copies(void *argument) {
  const struct family *family = argument;
  struct ml_error error;
  int64_t left = 1;
  CHILD_CHECK(!ml_client_held(family->lock, &left) && left == 0);
  CHILD_CHECK(ml_client_refresh(family->lock, 0, &error) == ML_NOT_HELD);
  CHILD_CHECK(ml_client_release(family->lock, &error) == ML_NOT_HELD);
  CHILD_CHECK(ml_client_verify(family->lock, &error) == ML_NOT_HELD);
  CHILD_CHECK(ml_client_held_count(family->client) == 0);
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static int child_only_removes(void *argument) {
  const struct family *family = argument;
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static int child_abandons_first(void *argument) {
  const struct family *family = argument;
  ml_client_abandon(family->client);
  ml_client_remove(family->lock);
  return 0;
}

static int child_closes(void *argument) {
  const struct family *family = argument;
  CHILD_CHECK(ml_client_close(family->client));
  CHILD_CHECK(!ml_client_held(family->lock, NULL));
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static void test_client_copy_in_a_child_holds_and_sends_nothing(void **state) {
  (void)state;
  static int (*const works[])(void *) = {child_uses_its_copies, child_only_removes,
                                         child_abandons_first, child_closes};
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_client *client = open_client(tap.path, TIMEOUT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "fork");
  acquire(&lock);
  struct family family = {client, &lock};
  for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
    struct item before = server_get(&server, "memlock:fork");
    size_t said = atomic_load(&tap.shared->length);
    assert_true(in_child(works[i], &family));
    pause_for(20 * MS);
    assert_int_equal(atomic_load(&tap.shared->length), said);
    assert_int_equal(atomic_load(&tap.shared->connections), 1);
    struct item after = server_get(&server, "memlock:fork");
    assert_same_item(before, after);
    assert_true(held(&lock));
    assert_int_equal(ml_client_refresh(&lock, 0, &error), ML_OK);
    assert_int_equal(atomic_load(&tap.shared->connections), 1);
  }
  release(&lock);
  ml_client_remove(&lock);
  ml_client_abandon(client);
  tap_end(&tap);
}

static int child_locks_for_itself(void *argument) {
  const struct family *family = argument;
  struct ml_error error;
  struct ml_lock own;
  CHILD_CHECK(ml_client_acquire(family->lock, &error) == ML_HELD); /* the parent has it */
  CHILD_CHECK(ml_client_add(family->client, &own, key_text(), "child", 5, 0, NULL, &error) ==
              ML_OK);
  CHILD_CHECK(ml_client_acquire(&own, &error) == ML_OK);
  CHILD_CHECK(ml_client_held(&own, NULL));
  CHILD_CHECK(ml_client_refresh(&own, 0, &error) == ML_OK);
  CHILD_CHECK(ml_client_release(&own, &error) == ML_OK);
  CHILD_CHECK(ml_client_acquire(&own, &error) == ML_OK);
  CHILD_CHECK(ml_client_close(family->client)); /* gives up its own, not its parent's */
  ml_client_remove(&own);
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static void test_client_in_a_child_works_on_connections_of_its_own(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct ml_client *client = open_client(tap.path, TIMEOUT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "parent");
  acquire(&lock);
  struct item before = server_get(&server, "memlock:parent");
  struct family family = {client, &lock};
  assert_true(in_child(child_locks_for_itself, &family));
  assert_int_equal(atomic_load(&tap.shared->connections), 2);
  struct item after = server_get(&server, "memlock:parent");
  assert_same_item(before, after);
  assert_false(server_has(&server, "memlock:child"));
  assert_int_equal(ml_client_verify(&lock, &error), ML_OK);
  release(&lock);
  assert_int_equal(atomic_load(&tap.shared->connections), 2);
  ml_client_remove(&lock);
  ml_client_abandon(client);
  tap_end(&tap);
}

static int child_abandons_what_was_closed(void *argument) {
  const struct family *family = argument;
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static void test_client_that_was_closed_can_be_abandoned_in_a_child(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_lock lock;
  add(client, &lock, "closed-fork");
  acquire(&lock);
  assert_true(ml_client_close(client));
  struct family family = {client, &lock};
  assert_true(in_child(child_abandons_what_was_closed, &family));
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

static int child_forgets_doubt(void *argument) {
  const struct family *family = argument;
  struct ml_error error;
  struct ml_holder holder;
  bool mine;
  /* What is in doubt is the parent's affair: it may hold it by now. */
  CHILD_CHECK(ml_client_holder(family->client, "x", 1, &holder, &mine, &error) == ML_OK);
  ml_client_remove(family->lock);
  ml_client_abandon(family->client);
  return 0;
}

static void test_client_in_a_child_leaves_what_its_parent_doubts(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock;
  struct ml_error error;
  add(client, &lock, "fork-doubt");
  server_stop(&server);
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:fork-doubt", true));
  struct item before = server_get(&server, "memlock:fork-doubt");
  struct family family = {client, &lock};
  assert_true(in_child(child_forgets_doubt, &family));
  struct item after = server_get(&server, "memlock:fork-doubt");
  assert_same_item(before, after);
  acquire(&lock);
  release(&lock);
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

/* Ends. */

#define MANY 1000

static struct ml_lock many[MANY];

static void hold_some(struct ml_client *client, int count) {
  for (int i = 0; i < count; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "many-%d", i);
    add(client, &many[i], name);
    acquire(&many[i]);
  }
  assert_int_equal(ml_client_held_count(client), count);
}

static int count_many(struct server *at) {
  int count = 0;
  for (int i = 0; i < MANY; i++) {
    char key[32];
    (void)snprintf(key, sizeof key, "memlock:many-%d", i);
    if (server_has(at, key)) count++;
  }
  return count;
}

/* Of those that could not even be sent the server keeps what it has until their ttl. */
static void forget_many(struct server *at) { server_do(at, "flush_all\r\n", "OK"); }

static void assert_many_go(struct server *at) {
  int64_t deadline = ml_clock_now() + 5 * ML_SECOND;
  while (count_many(at) > 0) {
    assert_true(ml_clock_now() < deadline);
    pause_for(10 * MS);
  }
}

static void test_client_close_gives_up_a_thousand_locks(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, 5 * ML_SECOND);
  hold_some(client, MANY);
  assert_int_equal(count_many(&server), MANY);
  int64_t started = ml_clock_now();
  assert_true(ml_client_close(client));
  assert_took_less(started, 2 * AT_ONCE);
  assert_int_equal(count_many(&server), 0); /* done, not just sent */
  assert_int_equal(stats_of(client).released, MANY);
  assert_true(ml_client_closed(client));
  assert_true(ml_client_close(client));
  struct ml_error error;
  assert_false(held(&many[0]));
  assert_int_equal(ml_client_acquire(&many[0], &error), ML_CLOSED);
  assert_int_equal(ml_client_release(&many[0], &error), ML_CLOSED);
  for (int i = 0; i < MANY; i++) ml_client_remove(&many[i]);
  ml_client_abandon(client);
}

static void test_client_close_waits_for_room_in_its_socket(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, 5 * ML_SECOND);
  hold_some(client, MANY);
  uint64_t before = stats_of(client).round_trips;
  server_stop(&server); /* so that what is sent piles up for a while */
  pid_t helper = server_continue_after(&server, 100 * MS);
  assert_true(ml_client_close(client));
  end_child(helper);
  uint64_t after = stats_of(client).round_trips;
  int left = count_many(&server);
  for (int i = 0; i < MANY; i++) ml_client_remove(&many[i]);
  ml_client_abandon(client);
  assert_int_equal(left, 0);
  /* Together all the same: one by one they would not get done in time where the way is long. */
  assert_in_range(after - before, 1, MANY / 20);
}

static void test_client_close_with_replies_gives_up_all_locks(void **state) {
  (void)state;
  struct ml_client_options options;
  ml_client_defaults(&options);
  options.proxy = true;
  options.timeout = 5 * ML_SECOND;
  struct ml_client *client = open_with(server.path, options);
  hold_some(client, MANY);
  assert_true(ml_client_close(client));
  assert_int_equal(count_many(&server), 0);
  for (int i = 0; i < MANY; i++) ml_client_remove(&many[i]);
  ml_client_abandon(client);
}

static void test_client_close_on_a_stopped_server_takes_one_timeout(void **state) {
  (void)state;
  const int64_t timeout = 300 * MS;
  struct ml_client *client = open_client(server.path, timeout);
  hold_some(client, MANY);
  server_stop(&server);
  int64_t started = ml_clock_now();
  assert_false(ml_client_close(client));
  assert_took_less(started, BY_TIMEOUT(timeout));
  for (int i = 0; i < MANY; i++) assert_false(held(&many[i]));
  started = ml_clock_now();
  for (int i = 0; i < MANY; i++) ml_client_remove(&many[i]);
  ml_client_abandon(client);
  assert_took_less(started, AT_ONCE);
  server_continue(&server);
  forget_many(&server);
}

static void test_client_close_on_a_dead_server_is_quick(void **state) {
  (void)state;
  struct server dead;
  server_start(&dead, NULL);
  struct ml_client *client = open_client(dead.path, TIMEOUT);
  hold_some(client, MANY);
  server_end(&dead);
  int64_t started = ml_clock_now();
  assert_false(ml_client_close(client));
  assert_took_less(started, 2 * AT_ONCE);
  for (int i = 0; i < MANY; i++) ml_client_remove(&many[i]);
  ml_client_abandon(client);
}

/* As many as fit into a socket that nobody reads, and many more. */
static const int loads[] = {100, MANY};

static void test_client_remove_waits_for_nothing(void **state) {
  (void)state;
  for (size_t l = 0; l < 2; l++) {
    struct ml_client *client = open_client(server.path, TIMEOUT);
    hold_some(client, loads[l]);
    server_stop(&server);
    int64_t started = ml_clock_now();
    for (int i = 0; i < loads[l]; i++) ml_client_remove(&many[i]);
    ml_client_abandon(client);
    assert_took_less(started, AT_ONCE);
    server_continue(&server);
    if (loads[l] < MANY) assert_many_go(&server); /* what was sent is done all the same */
    forget_many(&server);
  }
}

static void test_client_abandon_waits_for_nothing(void **state) {
  (void)state;
  for (size_t l = 0; l < 2; l++) {
    struct ml_client *client = open_client(server.path, TIMEOUT);
    hold_some(client, loads[l]);
    server_stop(&server);
    int64_t started = ml_clock_now();
    ml_client_abandon(client);
    for (int i = 0; i < loads[l]; i++) {
      assert_false(held(&many[i]));
      ml_client_remove(&many[i]);
    }
    assert_took_less(started, AT_ONCE);
    server_continue(&server);
    if (loads[l] < MANY) assert_many_go(&server);
    forget_many(&server);
  }
}

static void test_client_close_removes_what_is_in_doubt(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, SHORT);
  struct ml_lock lock, gone, kept;
  struct ml_error error;
  add(client, &lock, "close-1");
  add(client, &gone, "close-2");
  add(client, &kept, "close-3");
  acquire(&kept);
  server_stop(&server);
  assert_int_equal(ml_client_acquire(&lock, &error), ML_TIMEOUT);
  assert_int_equal(ml_client_acquire(&gone, &error), ML_TIMEOUT);
  ml_client_remove(&gone);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:close-1", true));
  assert_true(server_comes_to(&server, "memlock:close-2", true));
  assert_true(ml_client_close(client));
  assert_false(server_has(&server, "memlock:close-1"));
  assert_false(server_has(&server, "memlock:close-2"));
  assert_false(server_has(&server, "memlock:close-3"));
  ml_client_remove(&lock);
  ml_client_remove(&kept);
  ml_client_abandon(client);
}

static void test_client_close_touches_nothing_of_others(void **state) {
  (void)state;
  struct ml_client *a = open_client(server.path, TIMEOUT), *b = open_client(server.path, TIMEOUT);
  struct ml_lock lost, theirs;
  add(a, &lost, "others");
  add(b, &theirs, "others");
  acquire(&lost);
  server_delete(&server, "memlock:others");
  acquire(&theirs);
  struct item before = server_get(&server, "memlock:others");
  assert_true(held(&lost)); /* it does not know yet */
  (void)ml_client_close(a);
  struct item after = server_get(&server, "memlock:others");
  assert_same_item(before, after);
  ml_client_remove(&lost);
  ml_client_remove(&theirs);
  ml_client_abandon(a);
  ml_client_abandon(b);
}

static void test_client_lives_as_long_as_its_last_lock(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_lock first, second, third;
  struct ml_error error;
  add(client, &first, "last-1");
  add(client, &second, "last-2");
  add(client, &third, "last-3");
  acquire(&second);
  ml_client_remove(&second); /* from the middle of the list */
  assert_null(second.client);
  assert_false(held(&second));
  assert_true(server_comes_to(&server, "memlock:last-2", false));
  acquire(&first);
  ml_client_abandon(client);
  assert_true(server_comes_to(&server, "memlock:last-1", false));
  assert_int_equal(ml_client_acquire(&third, &error), ML_CLOSED);
  assert_int_equal(ml_client_refresh(&first, 0, &error), ML_CLOSED);
  ml_client_remove(&first);
  ml_client_remove(&third);
}

static void test_client_that_is_closed_makes_no_locks(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_lock lock = {.ttl = 12345};
  struct ml_holder holder;
  struct ml_error error;
  bool mine;
  assert_true(ml_client_close(client));
  assert_int_equal(ml_client_add(client, &lock, key_text(), "x", 1, 0, NULL, &error), ML_CLOSED);
  assert_int_equal(lock.ttl, 12345);
  assert_int_equal(ml_client_holder(client, "x", 1, &holder, &mine, &error), ML_CLOSED);
  assert_int_equal(ml_client_break(client, "x", 1, "v", 1, &error), ML_CLOSED);
  ml_client_abandon(client);
}

/* Several servers. */

#define TRIO 3

static void join(const struct server *servers, const int *order, char *text, size_t size) {
  text[0] = '\0';
  for (int i = 0; i < TRIO; i++) {
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s%s", i > 0 ? "," : "", servers[order[i]].path);
  }
}

static void test_client_finds_names_in_any_order_of_servers(void **state) {
  (void)state;
  static const int orders[][TRIO] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};
  struct server servers[TRIO];
  char addresses[400];
  for (int i = 0; i < TRIO; i++) server_start(&servers[i], NULL);
  join(servers, orders[0], addresses, sizeof addresses);
  struct ml_client *first = open_client(addresses, TIMEOUT);
  struct ml_lock locks[30];
  bool used[TRIO] = {false};
  for (int n = 0; n < 30; n++) {
    char name[32], key[48];
    (void)snprintf(name, sizeof name, "name-%d", n);
    (void)snprintf(key, sizeof key, "memlock:%s", name);
    add(first, &locks[n], name);
    acquire(&locks[n]);
    int there = 0;
    for (int i = 0; i < TRIO; i++)
      if (server_has(&servers[i], key)) {
        there++;
        used[i] = true;
        char fence[64];
        (void)snprintf(fence, sizeof fence, "#%s", key);
        assert_true(server_has(&servers[i], fence)); /* both on one server */
      }
    assert_int_equal(there, 1);
  }
  for (int i = 0; i < TRIO; i++) assert_true(used[i]);
  for (size_t o = 1; o < sizeof orders / sizeof orders[0]; o++) {
    join(servers, orders[o], addresses, sizeof addresses);
    struct ml_client *other = open_client(addresses, TIMEOUT);
    for (int n = 0; n < 30; n++) {
      struct ml_lock lock;
      struct ml_error error;
      add(other, &lock, locks[n].name);
      assert_int_equal(ml_client_acquire(&lock, &error), ML_HELD);
      ml_client_remove(&lock);
    }
    ml_client_abandon(other);
  }
  assert_true(ml_client_close(first));
  for (int n = 0; n < 30; n++) ml_client_remove(&locks[n]);
  ml_client_abandon(first);
  for (int i = 0; i < TRIO; i++) server_end(&servers[i]);
}

static void test_client_never_moves_a_name_away_from_a_dead_server(void **state) {
  (void)state;
  static const int order[TRIO] = {0, 1, 2};
  struct server servers[TRIO];
  char addresses[400];
  for (int i = 0; i < TRIO; i++) server_start(&servers[i], NULL);
  join(servers, order, addresses, sizeof addresses);
  struct ml_client *client = open_client(addresses, TIMEOUT);
  struct ml_lock locks[30];
  struct ml_error error;
  int homes[30];
  for (int n = 0; n < 30; n++) {
    char name[32];
    (void)snprintf(name, sizeof name, "name-%d", n);
    add(client, &locks[n], name);
    acquire(&locks[n]);
    for (int i = 0; i < TRIO; i++) {
      char key[48];
      (void)snprintf(key, sizeof key, "memlock:%s", name);
      if (server_has(&servers[i], key)) homes[n] = i;
    }
    release(&locks[n]);
  }
  server_end(&servers[1]);
  for (int round = 0; round < 3; round++)
    for (int n = 0; n < 30; n++) {
      enum ml_status status = ml_client_acquire(&locks[n], &error);
      assert_int_equal(status, homes[n] == 1 ? ML_UNREACHABLE : ML_OK);
      if (status == ML_OK)
        release(&locks[n]);
      else
        assert_contains(error.message, servers[1].path);
    }
  server_launch(&servers[1]);
  for (int n = 0; n < 30; n++) acquire(&locks[n]);
  assert_true(ml_client_close(client));
  for (int n = 0; n < 30; n++) ml_client_remove(&locks[n]);
  ml_client_abandon(client);
  for (int i = 0; i < TRIO; i++) server_end(&servers[i]);
}

/* Values of any key. */

static void test_client_checks_keys(void **state) {
  (void)state;
  struct ml_error error;
  char text[ML_KEY_MAX + 1];
  memset(text, 'k', sizeof text);
  assert_int_equal(ml_client_check_key(text, 0, &error), ML_INVALID);
  assert_int_equal(ml_client_check_key(text, ML_KEY_MAX, &error), ML_OK);
  assert_int_equal(ml_client_check_key(text, ML_KEY_MAX + 1, &error), ML_INVALID);
  assert_int_equal(ml_client_check_key("a b", 3, &error), ML_INVALID);
  assert_int_equal(ml_client_check_key("#a", 2, &error), ML_OK);
}

static struct ml_value get(struct ml_client *client, const char *key) {
  struct ml_value value;
  struct ml_error error;
  if (ml_client_get(client, key, strlen(key), &value, &error) != ML_OK)
    fail_msg("%s", error.message);
  return value;
}

static void test_client_replaces_exactly_the_value_it_read(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_error error;
  struct ml_value value = get(client, "value");
  assert_false(value.present);
  assert_int_equal(ml_client_put(client, &value, "one", 3, 0, &error), ML_OK);
  assert_int_equal(ml_client_put(client, &value, "two", 3, 0, &error), ML_CONFLICT);
  assert_string_equal(server_get(&server, "value").value, "one");

  server_do(&server, "set value 77 0 3\r\nold\r\n", "STORED");
  value = get(client, "value");
  assert_true(value.present);
  assert_int_equal(value.length, 3);
  assert_memory_equal(value.value, "old", 3);
  assert_int_equal(ml_client_put(client, &value, "new", 3, 0, &error), ML_OK);
  struct item item = server_get(&server, "value");
  assert_string_equal(item.value, "new");
  assert_int_equal(item.flags, 77); /* which are not ours to change */
  assert_int_equal(ml_client_put(client, &value, "newer", 5, 0, &error), ML_CONFLICT);

  value = get(client, "value");
  server_delete(&server, "value");
  assert_int_equal(ml_client_put(client, &value, "newer", 5, 0, &error), ML_CONFLICT);
  assert_false(server_has(&server, "value"));

  /* The longest key there is has no room for a fence beside it, and needs none. */
  char key[ML_KEY_MAX + 1];
  memset(key, 'k', ML_KEY_MAX);
  key[ML_KEY_MAX] = '\0';
  value = get(client, key);
  assert_int_equal(ml_client_put(client, &value, "v", 1, 0, &error), ML_OK);
  assert_true(server_has(&server, key));
  ml_client_abandon(client);
}

static void test_client_puts_nothing_over_a_new_connection(void **state) {
  (void)state;
  struct server fresh;
  server_start(&fresh, NULL);
  struct ml_client *client = open_client(fresh.path, TIMEOUT);
  struct ml_error error;
  server_set(&fresh, "value", "old");
  struct ml_value value = get(client, "value");
  server_restart(&fresh);
  server_set(&fresh, "value", "new"); /* with the id that the old one had */
  struct item before = server_get(&fresh, "value");
  assert_int_equal(before.cas, value.version.cas);
  for (int i = 0; i < 3; i++)
    assert_int_not_equal(ml_client_put(client, &value, "mine", 4, 0, &error), ML_OK);
  struct item after = server_get(&fresh, "value");
  assert_same_item(before, after);
  ml_client_abandon(client);
  server_end(&fresh);
}

static void test_client_drop_is_for_one_acquisition_only(void **state) {
  (void)state;
  struct ml_client *client = open_client(server.path, TIMEOUT);
  struct ml_lock lock;
  add(client, &lock, "tenure");
  acquire(&lock);
  uint64_t tenure = lock.tenure;
  release(&lock);
  acquire(&lock);
  ml_client_drop(&lock, tenure);
  assert_true(held(&lock));
  ml_client_drop(&lock, lock.tenure);
  assert_false(held(&lock));
  assert_true(server_comes_to(&server, "memlock:tenure", false));
  ml_client_remove(&lock);
  ml_client_abandon(client);
}

/* All that one holder promises, with many at once. */

struct contest {
  _Atomic int inside;
  _Atomic int clashes;
  _Atomic int rounds;
  _Atomic uint64_t largest_token;
};

static int contend(struct contest *contest, bool proxy) {
  struct ml_client_options options;
  struct ml_error error;
  ml_client_defaults(&options);
  options.timeout = 5 * ML_SECOND;
  options.proxy = proxy;
  CHILD_CHECK(ml_servers_add(&options.servers, server.path, strlen(server.path), &error) == ML_OK);
  struct ml_client *client = ml_client_open(&options, &error);
  struct ml_lock lock;
  CHILD_CHECK(client != NULL);
  CHILD_CHECK(ml_client_add(client, &lock, key_text(), "contest", 7, 0, NULL, &error) == ML_OK);
  for (int i = 0; i < 15; i++) {
    struct ml_wait wait = {.span = 20 * ML_SECOND};
    int64_t pause;
    enum ml_status status;
    while (status = ml_client_try(&lock, &wait, &pause, &error), pause > 0) pause_for(pause);
    CHILD_CHECK(status == ML_OK);
    if (atomic_fetch_add(&contest->inside, 1) != 0) atomic_fetch_add(&contest->clashes, 1);
    if (atomic_exchange(&contest->largest_token, lock.token) >= lock.token)
      atomic_fetch_add(&contest->clashes, 1);
    pause_for(MS);
    atomic_fetch_add(&contest->rounds, 1);
    atomic_fetch_sub(&contest->inside, 1);
    CHILD_CHECK(ml_client_release(&lock, &error) == ML_OK);
  }
  ml_client_remove(&lock);
  ml_client_abandon(client);
  return 0;
}

static void test_client_lets_one_in_at_a_time_with_rising_tokens(void **state) {
  (void)state;
  void *memory =
      mmap(NULL, sizeof(struct contest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  struct contest *contest = memory;
  pid_t pids[8];
  for (int i = 0; i < 8; i++) {
    pids[i] = fork_helper();
    if (pids[i] == 0) _exit(contend(contest, i % 4 == 3));
  }
  bool good = true;
  for (int i = 0; i < 8; i++) {
    int status;
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  assert_true(good);
  assert_int_equal(atomic_load(&contest->clashes), 0);
  assert_int_equal(atomic_load(&contest->rounds), 8 * 15);
  assert_int_equal(munmap(memory, sizeof *contest), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_client_checks_prefixes),
      cmocka_unit_test(test_client_checks_names),
      cmocka_unit_test(test_client_checks_ttls),
      cmocka_unit_test(test_client_has_the_documented_defaults),
      cmocka_unit_test(test_client_uses_its_options),
      cmocka_unit_test(test_client_counts_what_it_did),
      cmocka_unit_test(test_client_tells_who_holds_a_name),
      cmocka_unit_test(test_client_removes_a_record_in_doubt_with_its_next_operations),
      cmocka_unit_test(test_client_remembers_doubt_of_a_lock_that_is_gone),
      cmocka_unit_test(test_client_is_not_fooled_by_absence_of_a_record_under_way),
      cmocka_unit_test(test_client_remembers_all_doubts_of_an_identity),
      cmocka_unit_test(test_client_leaves_a_held_lock_alone_whatever_was_in_doubt),
      cmocka_unit_test(test_client_finishes_a_release_in_doubt),
      cmocka_unit_test(test_client_wait_of_nothing_is_one_attempt),
      cmocka_unit_test(test_client_wait_ends_at_its_deadline_with_an_attempt),
      cmocka_unit_test(test_client_wait_outlasts_a_server_that_is_away),
      cmocka_unit_test(test_client_wait_keeps_to_the_bounds_of_pauses),
      cmocka_unit_test(test_client_wait_lets_others_go_first),
      cmocka_unit_test(test_client_wait_for_what_it_holds_itself_ends_at_once),
      cmocka_unit_test(test_client_copy_in_a_child_holds_and_sends_nothing),
      cmocka_unit_test(test_client_in_a_child_works_on_connections_of_its_own),
      cmocka_unit_test(test_client_that_was_closed_can_be_abandoned_in_a_child),
      cmocka_unit_test(test_client_in_a_child_leaves_what_its_parent_doubts),
      cmocka_unit_test(test_client_close_gives_up_a_thousand_locks),
      cmocka_unit_test(test_client_close_waits_for_room_in_its_socket),
      cmocka_unit_test(test_client_close_with_replies_gives_up_all_locks),
      cmocka_unit_test(test_client_close_on_a_stopped_server_takes_one_timeout),
      cmocka_unit_test(test_client_close_on_a_dead_server_is_quick),
      cmocka_unit_test(test_client_remove_waits_for_nothing),
      cmocka_unit_test(test_client_abandon_waits_for_nothing),
      cmocka_unit_test(test_client_close_removes_what_is_in_doubt),
      cmocka_unit_test(test_client_close_touches_nothing_of_others),
      cmocka_unit_test(test_client_lives_as_long_as_its_last_lock),
      cmocka_unit_test(test_client_that_is_closed_makes_no_locks),
      cmocka_unit_test(test_client_finds_names_in_any_order_of_servers),
      cmocka_unit_test(test_client_never_moves_a_name_away_from_a_dead_server),
      cmocka_unit_test(test_client_checks_keys),
      cmocka_unit_test(test_client_replaces_exactly_the_value_it_read),
      cmocka_unit_test(test_client_puts_nothing_over_a_new_connection),
      cmocka_unit_test(test_client_drop_is_for_one_acquisition_only),
      cmocka_unit_test(test_client_lets_one_in_at_a_time_with_rising_tokens),
  };
  return cmocka_run_group_tests_name("client", tests, start_server, end_server);
}
