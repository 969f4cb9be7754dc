/* The lease: what it takes, keeps and gives back on a real memcached, and what it never touches. */
#include "check.h"
#include "lock.h"
#include "server.h"
#include "store.h"
#include "tap.h"

#define TIMEOUT (2 * ML_SECOND)
#define SHORT (400 * MS) /* a timeout to run into */
#define TTL (30 * ML_SECOND)

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

/* A lock with a store of its own, as if in a program of its own. */
struct party {
  struct ml_store *store;
  struct ml_lock *lock; /* `own`, or one that the test looks after */
  struct ml_lock own;
  struct ml_error error;
};

static struct ml_store *open_at(const char *address, int64_t timeout, bool proxy) {
  struct ml_servers servers = {.count = 0};
  struct ml_error error;
  assert_int_equal(ml_servers_add(&servers, address, strlen(address), &error), ML_OK);
  const struct ml_store_options options = {.servers = &servers, .timeout = timeout, .proxy = proxy};
  struct ml_store *store = ml_store_open(&options, &error);
  if (store == NULL) fail_msg("%s", error.message);
  ml_store_begin(store);
  return store;
}

static void set_up(struct party *party, struct ml_lock *lock, const char *name,
                   const char *identity, int64_t ttl) {
  party->lock = lock;
  *lock = (struct ml_lock){.label = "tester:1", .ttl = ttl, .named = identity != NULL};
  ml_store_place(party->store, &lock->key, key_text(), "memlock:", name, strlen(name));
  lock->name = lock->key.text + strlen("#memlock:");
  if (identity != NULL) (void)snprintf(lock->id, sizeof lock->id, "%s", identity);
  ml_lock_ready(lock);
}

static void open_party(struct party *party, const char *address, const char *name) {
  party->store = open_at(address, TIMEOUT, false);
  set_up(party, &party->own, name, NULL, TTL);
}

static void open_named(struct party *party, const char *address, const char *name,
                       const char *identity) {
  party->store = open_at(address, TIMEOUT, false);
  set_up(party, &party->own, name, identity, TTL);
}

static void close_party(struct party *party) {
  ml_store_close(party->store);
  party->store = NULL;
}

static enum ml_status acquire(struct party *party) {
  ml_store_begin(party->store);
  return ml_lock_acquire(party->lock, party->store, &party->error);
}

static enum ml_status refresh_for(struct party *party, int64_t ttl) {
  ml_store_begin(party->store);
  return ml_lock_refresh(party->lock, party->store, ttl, &party->error);
}

static enum ml_status refresh(struct party *party) { return refresh_for(party, TTL); }

static enum ml_status release(struct party *party) {
  ml_store_begin(party->store);
  return ml_lock_release(party->lock, party->store, &party->error);
}

static enum ml_status verify(struct party *party) {
  ml_store_begin(party->store);
  return ml_lock_verify(party->lock, party->store, &party->error);
}

static bool held(const struct party *party) { return ml_lock_held(party->lock, NULL); }

#define assert_ok(party, call)                                                                     \
  do {                                                                                             \
    if ((call) != ML_OK) fail_msg("%s: %s", #call, (party)->error.message);                        \
  } while (0)

static struct ml_record record_at(struct server *at, const char *key) {
  struct item item = server_get(at, key);
  struct ml_record record;
  assert_true(item.there);
  assert_true(ml_record_decode(item.value, item.length, &record));
  return record;
}

/* Taking, keeping, giving back. */

static void test_lock_goes_through_its_life_in_single_round_trips(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "life");
  assert_false(held(&a));
  assert_int_equal(a.lock->token, 0);

  assert_ok(&a, acquire(&a));
  assert_int_equal(ml_store_round_trips(a.store), 1);
  int64_t left;
  assert_true(ml_lock_held(a.lock, &left));
  assert_true(left > TTL - AT_ONCE && left <= TTL);
  struct ml_record record = record_at(&server, "memlock:life");
  assert_string_equal(record.id, a.lock->id);
  assert_int_equal(strlen(record.id), 32);
  assert_int_equal(record.ttl_ms, TTL / MS);
  assert_string_equal(record.label, "tester:1");
  assert_true(llabs(record.since - ml_clock_unix_us() / 1000000) <= 1);
  assert_int_equal(a.lock->token, server_number(&server, "#memlock:life"));
  assert_int_equal(server_get(&server, "memlock:life").flags, ML_FLAGS);

  assert_ok(&a, refresh(&a));
  assert_ok(&a, refresh(&a));
  assert_int_equal(ml_store_round_trips(a.store), 3);
  assert_true(held(&a));
  assert_ok(&a, verify(&a));
  assert_int_equal(ml_store_round_trips(a.store), 4);

  assert_ok(&a, release(&a));
  assert_int_equal(ml_store_round_trips(a.store), 5);
  assert_false(held(&a));
  assert_false(server_has(&server, "memlock:life"));
  assert_false(a.lock->in_doubt || a.lock->unsettled);
  close_party(&a);
}

static void test_lock_that_is_not_held_says_so_and_asks_nobody(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "not-held");
  assert_int_equal(refresh(&a), ML_NOT_HELD);
  assert_contains(a.error.message, "\"not-held\"");
  assert_int_equal(release(&a), ML_NOT_HELD);
  assert_int_equal(verify(&a), ML_NOT_HELD);
  assert_int_equal(ml_store_round_trips(a.store), 0);
  assert_ok(&a, acquire(&a));
  assert_ok(&a, release(&a));
  assert_int_equal(refresh(&a), ML_NOT_HELD);
  assert_int_equal(release(&a), ML_NOT_HELD);
  assert_int_equal(ml_store_round_trips(a.store), 2);
  close_party(&a);
}

static void test_lock_held_by_another_is_held(void **state) {
  (void)state;
  struct party a, b;
  open_party(&a, server.path, "contended");
  open_party(&b, server.path, "contended");
  assert_ok(&a, acquire(&a));
  struct item before = server_get(&server, "memlock:contended");
  for (int i = 0; i < 3; i++) {
    assert_int_equal(acquire(&b), ML_HELD);
    assert_contains(b.error.message, "\"contended\"");
    assert_contains(b.error.message, "tester:1");
    assert_contains(b.error.message, server.path);
    assert_false(held(&b));
    assert_false(b.lock->in_doubt || b.lock->unsettled);
  }
  assert_int_equal(ml_store_round_trips(b.store), 3);
  struct item after = server_get(&server, "memlock:contended");
  assert_same_item(before, after);
  assert_true(b.lock->sight.fence == a.lock->token + 3);
  assert_true(b.lock->sight.holder != 0);
  assert_ok(&a, release(&a));
  assert_ok(&b, acquire(&b));
  assert_true(b.lock->token == a.lock->token + 4);
  assert_int_equal(refresh(&a), ML_NOT_HELD);
  assert_int_equal(release(&a), ML_NOT_HELD);
  assert_ok(&b, release(&b));
  close_party(&a);
  close_party(&b);
}

static void test_lock_of_this_object_is_held_without_asking(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "twice");
  assert_ok(&a, acquire(&a));
  struct item before = server_get(&server, "memlock:twice");
  assert_int_equal(acquire(&a), ML_HELD);
  assert_contains(a.error.message, "this very object");
  assert_int_equal(ml_store_round_trips(a.store), 1);
  struct item after = server_get(&server, "memlock:twice");
  assert_same_item(before, after);
  assert_true(held(&a));
  assert_ok(&a, release(&a));
  close_party(&a);
}

static void test_lock_draws_an_id_for_each_acquisition(void **state) {
  (void)state;
  struct party a;
  char ids[20][ML_ID_MAX + 1];
  open_party(&a, server.path, "ids");
  for (int i = 0; i < 20; i++) {
    assert_ok(&a, acquire(&a));
    memcpy(ids[i], a.lock->id, sizeof ids[i]);
    for (int j = 0; j < i; j++) assert_string_not_equal(ids[i], ids[j]);
    assert_ok(&a, release(&a));
  }
  close_party(&a);
}

static void test_lock_gives_each_write_a_seq_of_its_own(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "seq");
  for (int round = 0; round < 3; round++) {
    assert_ok(&a, acquire(&a));
    uint64_t last = record_at(&server, "memlock:seq").seq;
    for (int i = 0; i < 5; i++) {
      assert_ok(&a, refresh(&a));
      struct ml_record record = record_at(&server, "memlock:seq");
      assert_true(record.seq == last + 1);
      assert_string_equal(record.id, a.lock->id);
      assert_int_equal(record.since, a.lock->since);
      last = record.seq;
    }
    assert_ok(&a, release(&a));
  }
  /* Another object begins elsewhere. */
  struct party b;
  open_party(&b, server.path, "seq");
  assert_true(b.lock->seq - a.lock->seq > 1000 && a.lock->seq - b.lock->seq > 1000);
  close_party(&a);
  close_party(&b);
}

/* The sequence numbers in all that went over a tap; they must rise. Returns how many there were. */
static int assert_seqs_rise(const struct tap *tap, const char *id) {
  char start[ML_ID_MAX + 16];
  (void)snprintf(start, sizeof start, "memlock/1 %s ", id);
  uint64_t last = 0;
  int count = 0;
  for (const char *at = tap->shared->log; (at = strstr(at, start)) != NULL; count++) {
    at += strlen(start);
    uint64_t seq = strtoull(at, NULL, 10);
    if (count > 0) assert_true(seq - last - 1 < 1000);
    last = seq;
  }
  return count;
}

static void test_lock_gives_reruns_a_seq_of_their_own(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "rerun");
  struct ml_view view;
  assert_int_equal(ml_store_read(a.store, &a.lock->key, false, &view, &a.error), ML_OK);
  tap_cut(&tap);
  assert_ok(&a, acquire(&a));
  tap_forget(&tap);
  tap_cut(&tap);
  assert_ok(&a, refresh(&a));
  tap_cut(&tap);
  assert_ok(&a, refresh(&a));
  assert_true(assert_seqs_rise(&tap, a.lock->id) >= 2);
  assert_int_equal(record_at(&server, "memlock:rerun").seq, a.lock->seq);

  /* With answers that say nothing, every flight of the refresh leaves a write of its own. */
  tap_forget(&tap);
  atomic_store(&tap.shared->blind, true);
  assert_int_not_equal(refresh(&a), ML_OK);
  atomic_store(&tap.shared->blind, false);
  assert_true(assert_seqs_rise(&tap, a.lock->id) >= 1);
  assert_true(held(&a));
  assert_ok(&a, refresh(&a));
  assert_ok(&a, release(&a));
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_sends_the_documented_expiry(void **state) {
  (void)state;
  static const struct {
    int64_t ttl;
    unsigned expiry;
    const char *text;
  } rows[] = {
      {MS, 3, " 0.001 "},
      {500 * MS, 3, " 0.5 "},
      {ML_SECOND, 4, " 1 "},
      {16 * ML_SECOND, 19, " 16 "},
      {1000 * ML_SECOND, 1003, " 1000 "},
      {1001 * ML_SECOND, 1005, " 1001 "},
      {ML_TTL_MAX * ML_SECOND, 2421622, " 2419200 "},
  };
  struct tap tap;
  tap_open(&tap, &server);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct party a;
    char part[64], name[16];
    (void)snprintf(name, sizeof name, "expiry-%zu", i);
    open_party(&a, tap.path, name);
    a.lock->ttl = rows[i].ttl;
    tap_forget(&tap);
    (void)acquire(&a); /* a lease of a millisecond may be over when the answer comes */
    (void)snprintf(part, sizeof part, "add memlock:%s %u %u ", name, ML_FLAGS, rows[i].expiry);
    assert_contains(tap.shared->log, part);
    assert_contains(tap.shared->log, rows[i].text);
    if (held(&a) && rows[i].ttl >= ML_SECOND) {
      assert_ok(&a, refresh_for(&a, 100 * ML_SECOND));
      (void)snprintf(part, sizeof part, "cas memlock:%s %u 103 ", name, ML_FLAGS);
      assert_contains(tap.shared->log, part);
      assert_contains(tap.shared->log, " 100 tester:1");
      assert_ok(&a, release(&a));
      (void)snprintf(part, sizeof part, "cas memlock:%s %u 2592001 0 ", name, ML_FLAGS);
      assert_contains(tap.shared->log, part);
    }
    close_party(&a);
  }
  tap_end(&tap);
}

/* What stands there already. */

static void test_lock_never_overwrites_what_is_no_record(void **state) {
  (void)state;
  static const char *const values[] = {
      "somebody", "1", " ", "memlock/2 id 1 2 3 l", "memlock/1 id 1 2 3", "memlock/1 id 1 2 0 l"};
  struct party a;
  open_party(&a, server.path, "foreign");
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    server_set(&server, "memlock:foreign", values[i]);
    struct item before = server_get(&server, "memlock:foreign");
    assert_int_equal(acquire(&a), ML_HELD);
    assert_contains(a.error.message, "another program");
    assert_int_equal(acquire(&a), ML_HELD);
    struct item after = server_get(&server, "memlock:foreign");
    assert_same_item(before, after);
  }
  close_party(&a);
}

static void test_lock_takes_an_empty_value_by_cas(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "empty");
  server_set(&server, "memlock:empty", "");
  uint64_t cas = server_get(&server, "memlock:empty").cas;
  assert_ok(&a, acquire(&a));
  char part[64];
  (void)snprintf(part, sizeof part, " %" PRIu64 " noreply\r\nmemlock/1 ", cas);
  assert_int_equal(tap_count(&tap, "cas memlock:empty "), 1);
  assert_contains(tap.shared->log, part);
  assert_string_equal(record_at(&server, "memlock:empty").id, a.lock->id);
  assert_int_equal(a.lock->token, server_number(&server, "#memlock:empty"));
  assert_int_equal(ml_store_round_trips(a.store), 2);
  assert_ok(&a, release(&a));
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_that_turned_empty_or_foreign_is_lost(void **state) {
  (void)state;
  static const char *const values[] = {"", "somebody"};
  struct party a;
  open_party(&a, server.path, "turned");
  for (size_t i = 0; i < 2; i++)
    for (int how = 0; how < 3; how++) {
      assert_ok(&a, acquire(&a));
      server_set(&server, "memlock:turned", values[i]);
      struct item before = server_get(&server, "memlock:turned");
      enum ml_status status = how == 0 ? refresh(&a) : how == 1 ? release(&a) : verify(&a);
      assert_int_equal(status, ML_LOST);
      assert_contains(a.error.message, "lost");
      assert_false(held(&a));
      struct item after = server_get(&server, "memlock:turned");
      assert_same_item(before, after);
      server_delete(&server, "memlock:turned");
    }
  close_party(&a);
}

static void test_lock_of_the_same_identity_is_taken_over(void **state) {
  (void)state;
  struct party a, b, other;
  open_named(&a, server.path, "identity", "web-1");
  open_named(&b, server.path, "identity", "web-1");
  open_named(&other, server.path, "identity", "web-2");
  assert_ok(&a, acquire(&a));
  struct ml_record first = record_at(&server, "memlock:identity");
  assert_string_equal(first.id, "web-1");
  assert_int_equal(acquire(&other), ML_HELD);

  assert_ok(&b, acquire(&b));
  struct ml_record second = record_at(&server, "memlock:identity");
  assert_string_equal(second.id, "web-1");
  assert_true(second.seq != first.seq && second.seq == b.lock->seq);
  assert_true(b.lock->token > a.lock->token);
  assert_true(held(&b));

  /* Both share it: either can keep it alive, and neither sees the other as a stranger. */
  assert_ok(&a, refresh(&a));
  assert_ok(&b, refresh(&b));
  assert_ok(&a, verify(&a));
  assert_int_equal(acquire(&other), ML_HELD);
  assert_ok(&b, release(&b));
  assert_false(server_has(&server, "memlock:identity"));
  assert_int_equal(refresh(&a), ML_LOST);
  close_party(&a);
  close_party(&b);
  close_party(&other);
}

static void test_lock_of_a_restarted_identity_is_taken_over(void **state) {
  (void)state;
  struct party a;
  server_set(&server, "memlock:restarted", "memlock/1 web-1 18446744073709551615 5 100 old:1");
  open_named(&a, server.path, "restarted", "web-1");
  assert_ok(&a, acquire(&a));
  struct ml_record record = record_at(&server, "memlock:restarted");
  assert_true(record.seq == a.lock->seq);
  assert_string_equal(record.label, "tester:1");
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:restarted"));
  close_party(&a);
}

static void test_lock_release_leaves_a_younger_record_of_its_identity(void **state) {
  (void)state;
  struct party a, b;
  open_named(&a, server.path, "younger", "web-1");
  open_named(&b, server.path, "younger", "web-1");
  assert_ok(&a, acquire(&a));
  assert_ok(&b, acquire(&b));
  struct item before = server_get(&server, "memlock:younger");
  assert_int_equal(release(&a), ML_LOST);
  struct item after = server_get(&server, "memlock:younger");
  assert_same_item(before, after);
  assert_ok(&b, verify(&b));
  assert_ok(&b, release(&b));
  close_party(&a);
  close_party(&b);
}

/* Loss. */

static void test_lock_that_is_absent_is_lost_once(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "absent");
  for (int how = 0; how < 3; how++) {
    assert_ok(&a, acquire(&a));
    server_delete(&server, "memlock:absent");
    enum ml_status status = how == 0 ? refresh(&a) : how == 1 ? release(&a) : verify(&a);
    assert_int_equal(status, ML_LOST);
    assert_contains(a.error.message, "its record is gone");
    assert_false(held(&a));
    assert_int_equal(refresh(&a), ML_NOT_HELD);
    assert_int_equal(release(&a), ML_NOT_HELD);
    assert_int_equal(verify(&a), ML_NOT_HELD);
    assert_false(server_has(&server, "memlock:absent")); /* and never created again */
  }
  close_party(&a);
}

static void test_lock_that_another_has_now_is_lost_untouched(void **state) {
  (void)state;
  struct party a, b;
  open_party(&a, server.path, "taken");
  open_party(&b, server.path, "taken");
  for (int how = 0; how < 3; how++) {
    assert_ok(&a, acquire(&a));
    server_delete(&server, "memlock:taken");
    assert_ok(&b, acquire(&b));
    struct item before = server_get(&server, "memlock:taken");
    enum ml_status status = how == 0 ? refresh(&a) : how == 1 ? release(&a) : verify(&a);
    assert_int_equal(status, ML_LOST);
    struct item after = server_get(&server, "memlock:taken");
    assert_same_item(before, after);
    assert_int_equal(release(&a), ML_NOT_HELD);
    assert_ok(&b, release(&b));
  }
  close_party(&a);
  close_party(&b);
}

static void test_lock_whose_lease_ended_is_lost_and_its_record_removed(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "ended");
  a.lock->ttl = 150 * MS;
  for (int how = 0; how < 3; how++) {
    assert_ok(&a, acquire(&a));
    assert_true(held(&a));
    pause_for(160 * MS);
    assert_false(held(&a));
    assert_true(server_has(&server, "memlock:ended")); /* it outlives the lease */
    enum ml_status status = how == 0 ? refresh(&a) : how == 1 ? release(&a) : verify(&a);
    assert_int_equal(status, ML_LOST);
    assert_contains(a.error.message, "its lease ended");
    assert_false(server_has(&server, "memlock:ended"));
    assert_int_equal(release(&a), ML_NOT_HELD);
  }
  close_party(&a);
}

static void test_lock_whose_lease_ended_can_be_acquired_again(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "again");
  a.lock->ttl = 100 * MS;
  assert_ok(&a, acquire(&a));
  uint64_t token = a.lock->token;
  pause_for(110 * MS);
  a.lock->ttl = TTL;
  assert_ok(&a, acquire(&a)); /* over its own record, which still stands */
  assert_true(a.lock->token > token);
  assert_true(held(&a));
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:again"));
  close_party(&a);
}

static void test_lock_takes_silence_for_no_loss(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "silence");
  assert_ok(&a, acquire(&a));
  /* Every read comes back empty, as it does where libmemcached hides an error. */
  atomic_store(&tap.shared->blind, true);
  enum ml_status status = refresh(&a);
  assert_true(status != ML_OK && status != ML_LOST && status != ML_NOT_HELD);
  assert_true(held(&a));
  status = verify(&a);
  assert_true(status != ML_OK && status != ML_LOST && status != ML_NOT_HELD);
  assert_true(held(&a));
  atomic_store(&tap.shared->blind, false);
  assert_ok(&a, verify(&a));
  assert_ok(&a, refresh(&a));
  assert_ok(&a, release(&a));
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_does_not_believe_a_take_without_its_fence(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "unseen");
  atomic_store(&tap.shared->blind, true);
  assert_int_equal(acquire(&a), ML_REFUSED);
  assert_false(held(&a));
  assert_true(a.lock->in_doubt); /* it may be there, and it is */
  assert_true(server_has(&server, "memlock:unseen"));
  atomic_store(&tap.shared->blind, false);
  char id[ML_ID_MAX + 1];
  memcpy(id, a.lock->id, sizeof id);
  assert_ok(&a, acquire(&a)); /* the same object takes its own record over */
  assert_string_equal(a.lock->id, id);
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:unseen"));
  close_party(&a);
  tap_end(&tap);
}

/* Connections and servers that go. */

static void test_lock_survives_lost_connections(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "cut");
  for (int round = 0; round < 3; round++) {
    tap_cut(&tap);
    assert_ok(&a, acquire(&a));
    tap_cut(&tap);
    assert_ok(&a, refresh(&a));
    tap_cut(&tap);
    assert_ok(&a, verify(&a));
    tap_cut(&tap);
    assert_true(held(&a));
    assert_ok(&a, release(&a));
    assert_false(server_has(&server, "memlock:cut"));
  }
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_reads_before_it_writes_on_a_new_connection(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  open_party(&a, tap.path, "reread");
  assert_ok(&a, acquire(&a));
  ml_store_drop(a.store, &a.lock->key);
  tap_forget(&tap);
  assert_ok(&a, refresh(&a));
  const char *read = strstr(tap.shared->log, "gets ");
  const char *write = strstr(tap.shared->log, "cas ");
  assert_true(read != NULL && write != NULL && read < write);
  ml_store_drop(a.store, &a.lock->key);
  tap_forget(&tap);
  assert_ok(&a, release(&a));
  read = strstr(tap.shared->log, "gets ");
  write = strstr(tap.shared->log, "cas ");
  assert_true(read != NULL && write != NULL && read < write);
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_after_a_restart_leaves_the_new_holder_alone(void **state) {
  (void)state;
  const int rounds = full_length() ? 200 : 20;
  for (int round = 0; round < rounds; round++) {
    struct server fresh;
    struct party olds[3], news[3];
    static const char *const names[] = {"refreshed", "released", "verified"};
    char keys[3][32];
    server_start(&fresh, NULL);
    for (int i = 0; i < 3; i++) {
      (void)snprintf(keys[i], sizeof keys[i], "memlock:%s", names[i]);
      open_party(&olds[i], fresh.path, names[i]);
      open_party(&news[i], fresh.path, names[i]);
      assert_ok(&olds[i], acquire(&olds[i]));
    }
    server_restart(&fresh);
    struct item before[3];
    for (int i = 0; i < 3; i++) assert_ok(&news[i], acquire(&news[i]));
    for (int i = 0; i < 3; i++) {
      before[i] = server_get(&fresh, keys[i]);
      /* The same commands on an empty server: the old holder's id is that of the new record. */
      assert_int_equal(before[i].cas, olds[i].lock->version.cas);
    }
    assert_true(held(&olds[0]) && held(&olds[1]) && held(&olds[2]));
    assert_int_equal(refresh(&olds[0]), ML_LOST);
    (void)release(&olds[1]); /* what it answers is another test's matter */
    assert_int_equal(verify(&olds[2]), ML_LOST);
    assert_int_equal(release(&olds[0]), ML_NOT_HELD);
    assert_int_equal(refresh(&olds[1]), ML_NOT_HELD);
    for (int i = 0; i < 3; i++) {
      ml_lock_drop(olds[i].lock, olds[i].store, false);
      struct item after = server_get(&fresh, keys[i]);
      assert_same_item(before[i], after);
      assert_true(held(&news[i]));
      close_party(&olds[i]);
      close_party(&news[i]);
    }
    server_end(&fresh);
  }
}

static void test_lock_release_of_what_another_has_after_a_restart_is_lost(void **state) {
  (void)state;
  struct server fresh;
  struct party old, new;
  server_start(&fresh, NULL);
  open_party(&old, fresh.path, "restart");
  open_party(&new, fresh.path, "restart");
  assert_ok(&old, acquire(&old));
  server_restart(&fresh);
  assert_ok(&new, acquire(&new));
  /* The first cas meets a dead connection. That its answer is missing does not make it a success:
   * the counter, seeded anew, is far from where a removal by us would have left it. */
  assert_int_equal(release(&old), ML_LOST);
  assert_ok(&new, verify(&new));
  close_party(&old);
  close_party(&new);
  server_end(&fresh);
}

static void test_lock_on_a_restarted_empty_server_is_lost(void **state) {
  (void)state;
  struct server fresh;
  struct party a;
  server_start(&fresh, NULL);
  open_party(&a, fresh.path, "emptied");
  for (int how = 0; how < 3; how++) {
    assert_ok(&a, acquire(&a));
    uint64_t token = a.lock->token;
    server_restart(&fresh);
    enum ml_status status = how == 0 ? refresh(&a) : how == 1 ? release(&a) : verify(&a);
    assert_int_equal(status, ML_LOST);
    assert_false(server_has(&fresh, "memlock:emptied"));
    assert_ok(&a, acquire(&a));
    assert_true(a.lock->token > token);
    assert_ok(&a, release(&a));
  }
  close_party(&a);
  server_end(&fresh);
}

static void test_lock_without_its_server_goes_on_until_its_deadline(void **state) {
  (void)state;
  struct server gone;
  struct party a;
  server_start(&gone, NULL);
  open_party(&a, gone.path, "gone");
  a.lock->ttl = ML_SECOND;
  int64_t acquired = ml_clock_now();
  assert_ok(&a, acquire(&a));
  server_end(&gone);
  int64_t started = ml_clock_now();
  assert_int_equal(refresh_for(&a, ML_SECOND), ML_UNREACHABLE);
  assert_contains(a.error.message, gone.path);
  assert_int_equal(verify(&a), ML_UNREACHABLE);
  assert_took_less(started, AT_ONCE);
  if (ml_clock_now() < acquired + 900 * MS) assert_true(held(&a));
  pause_for(acquired + ML_SECOND + 10 * MS - ml_clock_now());
  assert_false(held(&a));
  assert_int_equal(refresh_for(&a, ML_SECOND), ML_LOST);
  assert_int_equal(acquire(&a), ML_UNREACHABLE);
  close_party(&a);
}

/* Deadlines. */

static void test_lock_is_not_held_before_its_release_goes_out(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  for (int again = 0; again <= 1; again++) {
    a.store = open_at(tap.path, TIMEOUT, false);
    set_up(&a, &tap.shared->lock, "before-release", NULL, TTL);
    assert_ok(&a, acquire(&a));
    if (again) ml_store_drop(a.store, &a.lock->key); /* by reading first */
    assert_true(held(&a));
    atomic_store(&tap.shared->left_at_cas, ML_FOREVER);
    assert_ok(&a, release(&a));
    assert_true(atomic_load(&tap.shared->left_at_cas) < 0);
    close_party(&a);
  }
  /* Nor when it is given up without waiting. */
  a.store = open_at(tap.path, TIMEOUT, false);
  set_up(&a, &tap.shared->lock, "before-drop", NULL, TTL);
  assert_ok(&a, acquire(&a));
  atomic_store(&tap.shared->left_at_cas, ML_FOREVER);
  ml_lock_drop(a.lock, a.store, false);
  assert_false(held(&a));
  assert_true(server_comes_to(&server, "memlock:before-drop", false));
  assert_true(atomic_load(&tap.shared->left_at_cas) < 0);
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_lowers_its_deadline_before_a_shorter_ttl_goes_out(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  a.store = open_at(tap.path, TIMEOUT, false);
  set_up(&a, &tap.shared->lock, "shorter", NULL, TTL);
  assert_ok(&a, acquire(&a));
  assert_ok(&a, refresh_for(&a, 10 * ML_SECOND));
  assert_true(atomic_load(&tap.shared->left_at_cas) <= 10 * ML_SECOND);
  int64_t left;
  assert_true(ml_lock_held(a.lock, &left) && left <= 10 * ML_SECOND && left > 9 * ML_SECOND);

  /* A longer one counts only when its answer is there. */
  assert_ok(&a, refresh_for(&a, 100 * ML_SECOND));
  assert_true(atomic_load(&tap.shared->left_at_cas) <= 10 * ML_SECOND);
  assert_true(ml_lock_held(a.lock, &left) && left > 99 * ML_SECOND);
  assert_ok(&a, release(&a));
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_deadline_is_not_raised_by_a_refresh_in_doubt(void **state) {
  (void)state;
  struct party a;
  a.store = open_at(server.path, SHORT, false);
  set_up(&a, &a.own, "doubtful-refresh", NULL, 10 * ML_SECOND);
  assert_ok(&a, acquire(&a));
  int64_t left;
  server_stop(&server);
  assert_int_equal(refresh_for(&a, 100 * ML_SECOND), ML_TIMEOUT);
  assert_true(ml_lock_held(a.lock, &left) && left <= 10 * ML_SECOND);
  assert_int_equal(refresh_for(&a, 5 * ML_SECOND), ML_TIMEOUT);
  /* No connection had been left to send that one on; where it is sent, the deadline comes down. */
  assert_true(ml_lock_held(a.lock, &left) && left <= 10 * ML_SECOND);
  server_continue(&server);
  assert_ok(&a, refresh_for(&a, 20 * ML_SECOND));
  assert_true(ml_lock_held(a.lock, &left) && left > 15 * ML_SECOND);
  server_stop(&server);
  assert_int_equal(refresh_for(&a, ML_SECOND), ML_TIMEOUT);
  assert_true(ml_clock_now() + ML_SECOND > atomic_load(&a.lock->deadline));
  server_continue(&server);
  a.lock->ttl = TTL;
  ml_store_begin(a.store);
  (void)release(&a);
  close_party(&a);
}

static void test_lock_deadline_counts_from_before_the_write(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "slow");
  struct ml_view view;
  assert_int_equal(ml_store_read(a.store, &a.lock->key, false, &view, &a.error), ML_OK);
  server_stop(&server);
  pid_t helper = server_continue_after(&server, 150 * MS);
  int64_t started = ml_clock_now();
  assert_ok(&a, acquire(&a));
  assert_took_at_least(started, 100 * MS);
  assert_true(atomic_load(&a.lock->deadline) < started + TTL + 100 * MS);
  end_child(helper);
  assert_ok(&a, release(&a));
  close_party(&a);
}

static void test_lock_answer_after_its_lease_is_a_timeout(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "late");
  a.lock->ttl = 100 * MS;
  server_stop(&server);
  pid_t helper = server_continue_after(&server, 250 * MS);
  int64_t started = ml_clock_now();
  assert_int_equal(acquire(&a), ML_TIMEOUT);
  assert_contains(a.error.message, "when the lease was over");
  assert_took_less(started, BY_TIMEOUT(TIMEOUT));
  assert_false(held(&a));
  end_child(helper);
  assert_false(server_has(&server, "memlock:late")); /* it removed its own record */

  a.lock->ttl = 2 * ML_SECOND;
  assert_ok(&a, acquire(&a));
  server_stop(&server);
  helper = server_continue_after(&server, 250 * MS);
  /* By the time it is known, the lease is over, and that may be said at once or by the next call.
   */
  enum ml_status status = refresh_for(&a, 100 * MS);
  assert_false(held(&a));
  end_child(helper);
  if (status == ML_TIMEOUT) status = refresh(&a);
  assert_int_equal(status, ML_LOST);
  assert_int_equal(refresh(&a), ML_NOT_HELD);
  assert_false(server_has(&server, "memlock:late"));
  close_party(&a);
}

static void test_lock_operations_end_by_their_timeout(void **state) {
  (void)state;
  const int64_t timeout = 100 * MS;
  for (int proxy = 0; proxy <= 1; proxy++) {
    struct party a;
    a.store = open_at(server.path, timeout, proxy);
    set_up(&a, &a.own, proxy ? "bounded-proxy" : "bounded", NULL, TTL);
    assert_ok(&a, acquire(&a));
    server_stop(&server);
    for (int how = 0; how < 4; how++) {
      int64_t started = ml_clock_now();
      enum ml_status status = how == 0   ? refresh(&a)
                              : how == 1 ? verify(&a)
                              : how == 2 ? release(&a)
                                         : acquire(&a);
      assert_int_equal(status, ML_TIMEOUT);
      assert_contains(a.error.message, "lock \"bounded");
      assert_took_less(started, BY_TIMEOUT(timeout));
      assert_int_equal(held(&a), how < 2);
    }
    server_continue(&server);
    close_party(&a);
    if (server_has(&server, proxy ? "memlock:bounded-proxy" : "memlock:bounded"))
      server_delete(&server, proxy ? "memlock:bounded-proxy" : "memlock:bounded");
  }
}

/* Doubt. */

static void test_lock_in_doubt_keeps_its_id_and_takes_its_record_over(void **state) {
  (void)state;
  struct party a;
  a.store = open_at(server.path, SHORT, false);
  set_up(&a, &a.own, "doubt", NULL, TTL);
  server_stop(&server);
  assert_int_equal(acquire(&a), ML_TIMEOUT);
  assert_false(held(&a));
  assert_true(a.lock->in_doubt && a.lock->unsettled);
  char id[ML_ID_MAX + 1];
  memcpy(id, a.lock->id, sizeof id);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:doubt", true)); /* the add was done after all */
  struct ml_record left_behind = record_at(&server, "memlock:doubt");
  assert_string_equal(left_behind.id, id);
  uint64_t fence = server_number(&server, "#memlock:doubt");

  assert_ok(&a, acquire(&a));
  assert_string_equal(a.lock->id, id);
  struct ml_record record = record_at(&server, "memlock:doubt");
  assert_string_equal(record.id, id);
  assert_true(record.seq != left_behind.seq && record.seq == a.lock->seq);
  assert_true(a.lock->token > fence);
  assert_false(a.lock->unsettled);
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:doubt"));

  assert_ok(&a, acquire(&a)); /* and now another id */
  assert_string_not_equal(a.lock->id, id);
  assert_ok(&a, release(&a));
  close_party(&a);
}

static void test_lock_add_that_comes_late_meets_the_record_of_its_object(void **state) {
  (void)state;
  struct tap tap;
  struct party a;
  tap_open(&tap, &server);
  a.store = open_at(tap.path, SHORT, false);
  set_up(&a, &a.own, "overtaken", NULL, TTL);
  tap_hold(&tap, 1); /* the first connection's bytes wait while a newer one's pass */
  assert_int_equal(acquire(&a), ML_TIMEOUT);
  assert_false(server_has(&server, "memlock:overtaken"));
  assert_ok(&a, acquire(&a));
  struct item before = server_get(&server, "memlock:overtaken");
  uint64_t fence = server_number(&server, "#memlock:overtaken");
  tap_let_go(&tap);
  int64_t deadline = ml_clock_now() + 5 * ML_SECOND;
  while (server_number(&server, "#memlock:overtaken") == fence) {
    assert_true(ml_clock_now() < deadline);
    pause_for(2 * MS);
  }
  struct item after = server_get(&server, "memlock:overtaken");
  assert_same_item(before, after); /* an add changes nothing that is there */
  assert_ok(&a, refresh(&a));
  assert_ok(&a, release(&a));
  close_party(&a);
  tap_end(&tap);
}

static void test_lock_of_another_is_no_ones_doubt(void **state) {
  (void)state;
  struct party a, b;
  a.store = open_at(server.path, SHORT, false);
  set_up(&a, &a.own, "overlap", NULL, TTL);
  open_party(&b, server.path, "overlap");
  assert_ok(&b, acquire(&b));
  server_stop(&server);
  assert_int_equal(acquire(&a), ML_TIMEOUT);
  server_continue(&server);
  struct item before = server_get(&server, "memlock:overlap");
  assert_int_equal(acquire(&a), ML_HELD);
  ml_store_begin(a.store);
  assert_int_equal(
      ml_lock_sweep(a.store, &a.lock->key, a.lock->id, ml_lock_writes(a.lock), &a.error),
      ML_ANSWER_EXISTS);
  struct item after = server_get(&server, "memlock:overlap");
  assert_same_item(before, after);
  assert_ok(&b, release(&b));
  ml_store_begin(a.store);
  assert_int_equal(
      ml_lock_sweep(a.store, &a.lock->key, a.lock->id, ml_lock_writes(a.lock), &a.error),
      ML_ANSWER_ABSENT);
  close_party(&a);
  close_party(&b);
}

static void test_lock_release_in_doubt_is_finished_by_a_second_one(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  /* The first one's command arrives before the second, after it, or never. */
  for (int arrival = 0; arrival < 3; arrival++) {
    struct party a;
    a.store = open_at(tap.path, SHORT, false);
    set_up(&a, &a.own, "finish", NULL, TTL);
    assert_ok(&a, acquire(&a));
    tap_hold(&tap, 0);
    assert_int_equal(release(&a), ML_TIMEOUT);
    assert_false(held(&a));
    assert_true(a.lock->giving_up);
    assert_true(server_has(&server, "memlock:finish"));
    if (arrival == 0) {
      tap_let_go(&tap);
      assert_true(server_comes_to(&server, "memlock:finish", false));
    } else if (arrival == 2) {
      tap_cut(&tap);
      tap_let_go(&tap);
    }
    assert_ok(&a, release(&a));
    assert_false(server_has(&server, "memlock:finish"));
    assert_int_equal(release(&a), ML_NOT_HELD);
    tap_let_go(&tap);
    /* Whoever comes next is left alone by what is still on its way. */
    struct party b;
    open_party(&b, server.path, "finish");
    assert_ok(&b, acquire(&b));
    pause_for(20 * MS);
    assert_ok(&b, verify(&b));
    assert_ok(&b, release(&b));
    close_party(&a);
    close_party(&b);
  }
  tap_end(&tap);
}

static void test_lock_release_in_doubt_on_a_server_that_lost_it_is_lost(void **state) {
  (void)state;
  struct server fresh;
  struct party a;
  server_start(&fresh, NULL);
  a.store = open_at(fresh.path, SHORT, false);
  set_up(&a, &a.own, "lost-release", NULL, TTL);
  assert_ok(&a, acquire(&a));
  server_stop(&fresh);
  assert_int_equal(release(&a), ML_TIMEOUT);
  server_restart(&fresh);
  assert_int_equal(release(&a), ML_LOST);
  assert_int_equal(release(&a), ML_NOT_HELD);
  close_party(&a);
  server_end(&fresh);
}

/* Servers that are not fit. */

static void test_lock_on_a_server_without_cas_is_unsupported(void **state) {
  (void)state;
  struct server plain;
  struct tap tap;
  struct party a;
  server_start(&plain, "-C");
  tap_open(&tap, &plain);
  open_party(&a, tap.path, "plain");
  for (int i = 0; i < 2; i++) {
    assert_int_equal(acquire(&a), ML_UNSUPPORTED);
    assert_contains(a.error.message, "lock \"plain\"");
    assert_contains(a.error.message, "compare-and-swap");
    assert_false(held(&a));
  }
  assert_int_equal(release(&a), ML_NOT_HELD);
  ml_lock_drop(a.lock, a.store, false);
  assert_int_equal(tap_count(&tap, "cas "), 0);
  assert_int_equal(tap_count(&tap, "delete "), 0);
  assert_true(server_has(&plain, "memlock:plain")); /* it runs out by itself */
  close_party(&a);
  tap_end(&tap);
  server_end(&plain);
}

static void test_lock_on_a_full_server_is_refused(void **state) {
  (void)state;
  struct server small;
  struct party a, b, c;
  server_start(&small, "-M -m 2");
  open_party(&a, small.path, "kept");
  open_party(&c, small.path, "counted");
  assert_ok(&a, acquire(&a));
  assert_ok(&c, acquire(&c));
  assert_ok(&c, release(&c));
  server_fill(&small);
  open_party(&b, small.path, "wanted");
  assert_int_equal(acquire(&b), ML_REFUSED);
  assert_contains(b.error.message, "refused");
  assert_false(held(&b));
  /* With a fence that is there already as well. */
  assert_int_equal(acquire(&c), ML_REFUSED);
  assert_contains(c.error.message, "refused");

  /* Refused is not lost. */
  assert_int_equal(refresh(&a), ML_REFUSED);
  assert_true(held(&a));
  assert_ok(&a, verify(&a));
  close_party(&a);
  close_party(&b);
  close_party(&c);
  server_end(&small);
}

static void test_lock_release_on_a_full_server_says_refused(void **state) {
  (void)state;
  struct server small;
  struct party a;
  server_start(&small, "-M -m 2");
  open_party(&a, small.path, "kept");
  assert_ok(&a, acquire(&a));
  server_fill(&small);
  assert_int_equal(release(&a), ML_REFUSED);
  assert_contains(a.error.message, "refused");
  assert_false(held(&a));
  server_do(&small, "flush_all\r\n", "OK");
  close_party(&a);
  server_end(&small);
}

/* Once seen, the fence is not seeded any more; where it goes, the next flight does. */
static void test_lock_seeds_a_fence_again_when_it_has_gone(void **state) {
  (void)state;
  struct tap tap;
  tap_open(&tap, &server);
  struct party a, b;
  open_party(&a, tap.path, "gone-fence");
  open_party(&b, server.path, "gone-fence");
  uint64_t last = 0;
  for (int i = 0; i < 3; i++) {
    assert_ok(&a, acquire(&a));
    assert_true(a.lock->token > last);
    last = a.lock->token;
    assert_ok(&a, release(&a));
  }
  assert_int_equal(tap_count(&tap, "add #memlock:gone-fence"), 1);
  assert_int_equal(ml_store_round_trips(a.store), 6);

  server_delete(&server, "#memlock:gone-fence");
  assert_ok(&a, acquire(&a));
  assert_true(a.lock->token > last);
  assert_int_equal(a.lock->token, server_number(&server, "#memlock:gone-fence"));
  assert_int_equal(record_at(&server, "memlock:gone-fence").seq, a.lock->seq);
  assert_int_equal(ml_store_round_trips(a.store), 8);
  assert_false(a.lock->in_doubt); /* the record without a token was replaced */
  last = a.lock->token;
  assert_ok(&a, release(&a));

  /* One that waits has no need of it, but sees that it has gone and seeds it with its next try. */
  assert_ok(&b, acquire(&b));
  assert_true(b.lock->token > last);
  last = b.lock->token;
  server_delete(&server, "#memlock:gone-fence");
  assert_int_equal(acquire(&a), ML_HELD);
  assert_int_equal(a.lock->sight.fence, 0);
  assert_false(server_has(&server, "#memlock:gone-fence"));
  assert_int_equal(acquire(&a), ML_HELD);
  assert_true(a.lock->sight.fence > last);
  assert_ok(&b, release(&b));
  assert_ok(&a, acquire(&a));
  assert_true(a.lock->token > last);
  assert_int_equal(tap_count(&tap, "add #memlock:gone-fence"), 3);
  close_party(&a);
  close_party(&b);
  tap_end(&tap);
}

static void test_lock_under_a_broken_fence_leaves_no_record(void **state) {
  (void)state;
  struct party a;
  open_party(&a, server.path, "broken-fence");
  server_set(&server, "#memlock:broken-fence", "no number");
  assert_int_equal(acquire(&a), ML_REFUSED);
  assert_contains(a.error.message, "no counter");
  assert_false(held(&a));
  assert_false(server_has(&server, "memlock:broken-fence"));
  close_party(&a);
}

/* Fencing tokens. */

static void test_lock_tokens_rise_over_whatever_happens(void **state) {
  (void)state;
  struct server fresh;
  struct party parties[2];
  server_start(&fresh, NULL);
  for (int i = 0; i < 2; i++) open_party(&parties[i], fresh.path, "fence");
  uint64_t last = 0;
  for (int i = 0; i < 100; i++) {
    struct party *a = &parties[i % 2];
    if (i % 10 == 3) server_do(&fresh, "flush_all\r\n", "OK");
    if (i % 10 == 6) server_delete(&fresh, "#memlock:fence");
    if (i == 50) server_restart(&fresh);
    assert_ok(a, acquire(a));
    if (a->lock->token <= last) fail_msg("token %" PRIu64 " after %" PRIu64, a->lock->token, last);
    last = a->lock->token;
    assert_true(last == server_number(&fresh, "#memlock:fence"));
    if (i % 3 != 2) assert_ok(a, release(a));
    if (i % 3 == 2) {
      server_delete(&fresh, "memlock:fence");
      assert_int_equal(refresh(a), ML_LOST);
    }
  }
  for (int i = 0; i < 2; i++) close_party(&parties[i]);
  server_end(&fresh);
}

/* Behind a proxy. */

static void test_lock_with_replies_gives_the_same_answers(void **state) {
  (void)state;
  struct tap tap;
  struct party a, b;
  tap_open(&tap, &server);
  a.store = open_at(tap.path, TIMEOUT, true);
  set_up(&a, &a.own, "proxy", NULL, TTL);
  b.store = open_at(tap.path, TIMEOUT, true);
  set_up(&b, &b.own, "proxy", NULL, TTL);
  assert_ok(&a, acquire(&a));
  assert_int_equal(a.lock->token, server_number(&server, "#memlock:proxy"));
  assert_int_equal(a.lock->version.cas, 0); /* no id lasts across calls */
  uint64_t seq = record_at(&server, "memlock:proxy").seq;
  assert_int_equal(acquire(&b), ML_HELD);
  assert_contains(b.error.message, "tester:1");
  assert_ok(&a, refresh(&a));
  assert_true(record_at(&server, "memlock:proxy").seq == seq + 1);
  assert_ok(&a, verify(&a));
  tap_cut(&tap);
  assert_ok(&a, refresh(&a));
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:proxy"));
  assert_int_equal(release(&a), ML_NOT_HELD);

  assert_ok(&b, acquire(&b));
  assert_true(b.lock->token > a.lock->token);
  server_delete(&server, "memlock:proxy");
  assert_int_equal(refresh(&b), ML_LOST);
  server_set(&server, "memlock:proxy", "somebody");
  assert_int_equal(acquire(&b), ML_HELD);
  assert_contains(b.error.message, "another program");
  server_set(&server, "memlock:proxy", "");
  assert_ok(&b, acquire(&b));
  server_set(&server, "memlock:proxy", "somebody");
  struct item before = server_get(&server, "memlock:proxy");
  assert_int_equal(release(&b), ML_LOST);
  struct item after = server_get(&server, "memlock:proxy");
  assert_same_item(before, after);
  assert_int_equal(tap_count(&tap, "noreply"), 0);
  close_party(&a);
  close_party(&b);
  tap_end(&tap);
}

static void test_lock_with_replies_without_cas_or_memory_is_told_so(void **state) {
  (void)state;
  struct server odd;
  struct tap tap;
  struct party a;
  server_start(&odd, "-C");
  tap_open(&tap, &odd);
  a.store = open_at(tap.path, TIMEOUT, true);
  set_up(&a, &a.own, "proxy", NULL, TTL);
  assert_int_equal(acquire(&a), ML_UNSUPPORTED);
  assert_int_equal(tap_count(&tap, "cas "), 0);
  close_party(&a);
  tap_end(&tap);
  server_end(&odd);

  server_start(&odd, "-M -m 2");
  server_fill(&odd);
  a.store = open_at(odd.path, TIMEOUT, true);
  set_up(&a, &a.own, "proxy", NULL, TTL);
  assert_int_equal(acquire(&a), ML_REFUSED);
  assert_contains(a.error.message, "refused");
  close_party(&a);
  server_end(&odd);
}

static void test_lock_with_replies_takes_its_own_record_over(void **state) {
  (void)state;
  struct party a;
  a.store = open_at(server.path, SHORT, true);
  set_up(&a, &a.own, "proxy-doubt", NULL, TTL);
  server_stop(&server);
  assert_int_equal(acquire(&a), ML_TIMEOUT);
  assert_true(a.lock->in_doubt);
  char id[ML_ID_MAX + 1];
  memcpy(id, a.lock->id, sizeof id);
  server_continue(&server);
  assert_true(server_comes_to(&server, "memlock:proxy-doubt", true));
  assert_ok(&a, acquire(&a));
  assert_string_equal(a.lock->id, id);
  assert_ok(&a, release(&a));
  assert_false(server_has(&server, "memlock:proxy-doubt"));
  close_party(&a);
}

/* Names. */

static void test_lock_look_tells_free_from_held(void **state) {
  (void)state;
  struct party a;
  struct ml_holder holder;
  struct ml_error error;
  open_party(&a, server.path, "look");
  assert_int_equal(ml_lock_look(a.store, &a.lock->key, &holder, &error), ML_OK);
  assert_true(holder.free);
  assert_ok(&a, acquire(&a));
  assert_int_equal(ml_lock_look(a.store, &a.lock->key, &holder, &error), ML_OK);
  assert_true(!holder.free && holder.is_record);
  assert_string_equal(holder.record.id, a.lock->id);
  assert_ok(&a, release(&a));
  server_set(&server, "memlock:look", "");
  assert_int_equal(ml_lock_look(a.store, &a.lock->key, &holder, &error), ML_OK);
  assert_true(holder.free);
  server_set(&server, "memlock:look", "somebody");
  assert_int_equal(ml_lock_look(a.store, &a.lock->key, &holder, &error), ML_OK);
  assert_true(!holder.free && !holder.is_record);
  assert_memory_equal(holder.value, "somebody", 8);
  close_party(&a);
}

static void test_lock_break_removes_exactly_that_value(void **state) {
  (void)state;
  struct party a;
  struct ml_error error;
  open_party(&a, server.path, "break");
  assert_int_equal(ml_lock_break(a.store, &a.lock->key, "x", 1, &error), ML_NOT_HELD);
  assert_ok(&a, acquire(&a));
  struct item seen = server_get(&server, "memlock:break");
  assert_ok(&a, refresh(&a)); /* the same holder, another write */
  struct item before = server_get(&server, "memlock:break");
  assert_int_equal(ml_lock_break(a.store, &a.lock->key, seen.value, seen.length, &error), ML_HELD);
  assert_int_equal(ml_lock_break(a.store, &a.lock->key, before.value, before.length - 1, &error),
                   ML_HELD);
  struct item after = server_get(&server, "memlock:break");
  assert_same_item(before, after);
  assert_int_equal(ml_lock_break(a.store, &a.lock->key, before.value, before.length, &error),
                   ML_OK);
  assert_false(server_has(&server, "memlock:break"));
  assert_int_equal(refresh(&a), ML_LOST);
  close_party(&a);
}

static void test_lock_sweep_removes_its_own_writes_only(void **state) {
  (void)state;
  static const struct {
    const char *value;
    enum ml_answer answer;
  } rows[] = {
      {"memlock/1 web-1 9 1 60 l", ML_ANSWER_EXISTS},
      {"memlock/1 web-1 10 1 60 l", ML_ANSWER_STORED},
      {"memlock/1 web-1 12 1 60 l", ML_ANSWER_STORED},
      {"memlock/1 web-1 13 1 60 l", ML_ANSWER_EXISTS},
      {"memlock/1 web-2 11 1 60 l", ML_ANSWER_EXISTS},
      {"memlock/1 web-11 11 1 60 l", ML_ANSWER_EXISTS},
      {"web-1", ML_ANSWER_EXISTS},
      {"", ML_ANSWER_EXISTS},
  };
  struct party a;
  open_party(&a, server.path, "sweep");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    server_set(&server, "memlock:sweep", rows[i].value);
    struct item before = server_get(&server, "memlock:sweep");
    const struct ml_writes writes = {10, 12};
    struct ml_error error;
    assert_int_equal(ml_lock_sweep(a.store, &a.lock->key, "web-1", writes, &error), rows[i].answer);
    struct item after = server_get(&server, "memlock:sweep");
    if (rows[i].answer == ML_ANSWER_STORED)
      assert_false(after.there);
    else
      assert_same_item(before, after);
  }
  /* Sequence numbers may wrap. */
  server_set(&server, "memlock:sweep", "memlock/1 web-1 1 1 60 l");
  const struct ml_writes wrapped = {UINT64_MAX - 1, 2};
  struct ml_error error;
  assert_int_equal(ml_lock_sweep(a.store, &a.lock->key, "web-1", wrapped, &error),
                   ML_ANSWER_STORED);
  close_party(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lock_goes_through_its_life_in_single_round_trips),
      cmocka_unit_test(test_lock_that_is_not_held_says_so_and_asks_nobody),
      cmocka_unit_test(test_lock_held_by_another_is_held),
      cmocka_unit_test(test_lock_of_this_object_is_held_without_asking),
      cmocka_unit_test(test_lock_draws_an_id_for_each_acquisition),
      cmocka_unit_test(test_lock_gives_each_write_a_seq_of_its_own),
      cmocka_unit_test(test_lock_gives_reruns_a_seq_of_their_own),
      cmocka_unit_test(test_lock_sends_the_documented_expiry),
      cmocka_unit_test(test_lock_never_overwrites_what_is_no_record),
      cmocka_unit_test(test_lock_takes_an_empty_value_by_cas),
      cmocka_unit_test(test_lock_that_turned_empty_or_foreign_is_lost),
      cmocka_unit_test(test_lock_of_the_same_identity_is_taken_over),
      cmocka_unit_test(test_lock_of_a_restarted_identity_is_taken_over),
      cmocka_unit_test(test_lock_release_leaves_a_younger_record_of_its_identity),
      cmocka_unit_test(test_lock_that_is_absent_is_lost_once),
      cmocka_unit_test(test_lock_that_another_has_now_is_lost_untouched),
      cmocka_unit_test(test_lock_whose_lease_ended_is_lost_and_its_record_removed),
      cmocka_unit_test(test_lock_whose_lease_ended_can_be_acquired_again),
      cmocka_unit_test(test_lock_takes_silence_for_no_loss),
      cmocka_unit_test(test_lock_does_not_believe_a_take_without_its_fence),
      cmocka_unit_test(test_lock_survives_lost_connections),
      cmocka_unit_test(test_lock_reads_before_it_writes_on_a_new_connection),
      cmocka_unit_test(test_lock_after_a_restart_leaves_the_new_holder_alone),
      cmocka_unit_test(test_lock_release_of_what_another_has_after_a_restart_is_lost),
      cmocka_unit_test(test_lock_on_a_restarted_empty_server_is_lost),
      cmocka_unit_test(test_lock_without_its_server_goes_on_until_its_deadline),
      cmocka_unit_test(test_lock_is_not_held_before_its_release_goes_out),
      cmocka_unit_test(test_lock_lowers_its_deadline_before_a_shorter_ttl_goes_out),
      cmocka_unit_test(test_lock_deadline_is_not_raised_by_a_refresh_in_doubt),
      cmocka_unit_test(test_lock_deadline_counts_from_before_the_write),
      cmocka_unit_test(test_lock_answer_after_its_lease_is_a_timeout),
      cmocka_unit_test(test_lock_operations_end_by_their_timeout),
      cmocka_unit_test(test_lock_in_doubt_keeps_its_id_and_takes_its_record_over),
      cmocka_unit_test(test_lock_add_that_comes_late_meets_the_record_of_its_object),
      cmocka_unit_test(test_lock_of_another_is_no_ones_doubt),
      cmocka_unit_test(test_lock_release_in_doubt_is_finished_by_a_second_one),
      cmocka_unit_test(test_lock_release_in_doubt_on_a_server_that_lost_it_is_lost),
      cmocka_unit_test(test_lock_on_a_server_without_cas_is_unsupported),
      cmocka_unit_test(test_lock_on_a_full_server_is_refused),
      cmocka_unit_test(test_lock_release_on_a_full_server_says_refused),
      cmocka_unit_test(test_lock_seeds_a_fence_again_when_it_has_gone),
      cmocka_unit_test(test_lock_under_a_broken_fence_leaves_no_record),
      cmocka_unit_test(test_lock_tokens_rise_over_whatever_happens),
      cmocka_unit_test(test_lock_with_replies_gives_the_same_answers),
      cmocka_unit_test(test_lock_with_replies_without_cas_or_memory_is_told_so),
      cmocka_unit_test(test_lock_with_replies_takes_its_own_record_over),
      cmocka_unit_test(test_lock_look_tells_free_from_held),
      cmocka_unit_test(test_lock_break_removes_exactly_that_value),
      cmocka_unit_test(test_lock_sweep_removes_its_own_writes_only),
  };
  return cmocka_run_group_tests_name("lock", tests, start_server, end_server);
}
