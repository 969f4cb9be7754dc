#include "lock.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "nonce.h"

/* An operation flies once, once more on a new connection, once more with replies; beyond that only
 * somebody who keeps changing the record can make it go on. */
#define ODD_MAX 3
#define FLIGHTS_MAX 8

struct tries {
  int odd, flights;
};

/* May an operation fly once more? Counts the flight. */
static bool fly(struct tries *tries, const struct ml_store *store) {
  if (tries->odd == ODD_MAX || tries->flights == FLIGHTS_MAX) return false;
  return tries->flights++ == 0 || ml_store_has_time(store);
}

static const struct ml_version no_version = {0, 0};
static const struct ml_write nothing = {.value = "", .expiry = ML_EXPIRED, .flags = ML_FLAGS};

struct ml_writes ml_lock_writes(const struct ml_lock *lock) {
  return (struct ml_writes){lock->first, lock->seq};
}

static bool among(struct ml_writes writes, uint64_t seq) {
  return seq - writes.first <= writes.last - writes.first;
}

/* "lock "name": what" for people, from what the store said. */
static enum ml_status report(const struct ml_lock *lock, const struct ml_error *inner,
                             struct ml_error *error) {
  return ml_fail(error, inner->status, "lock \"%s\": %s", lock->name, inner->message);
}

static enum ml_status keeps_changing(const struct ml_store *store, const struct ml_key *key,
                                     enum ml_status status, struct ml_error *error) {
  return ml_fail(error, status, "the record on %s keeps changing", ml_store_server(store, key));
}

void ml_lock_disown(struct ml_lock *lock) {
  atomic_store(&lock->deadline, 0);
  lock->owned = lock->giving_up = lock->unsettled = lock->in_doubt = lock->counted = false;
  lock->version = no_version;
}

void ml_lock_ready(struct ml_lock *lock) {
  ml_lock_disown(lock);
  lock->seq = ml_nonce_bits();
  lock->first = lock->seq + 1;
  lock->losses = lock->tenure = 0;
  lock->token = 0;
  lock->since = 0;
  lock->sight = (struct ml_sight){0, 0};
  lock->courtesy = (struct ml_courtesy){0};
  if (!lock->named) lock->id[0] = '\0';
}

bool ml_lock_held(const struct ml_lock *lock, int64_t *left) {
  int64_t rest = atomic_load(&lock->deadline) - ml_clock_now();
  if (left != NULL) *left = rest > 0 ? rest : 0;
  return rest > 0;
}

/* Records. */

enum whose {
  NOBODYS,    /* no item: a hint, until the server says NOT_FOUND */
  FREE,       /* an empty value */
  THIS_WRITE, /* exactly what was just sent */
  OURS,       /* our id, from another write */
  ANOTHERS,
};

/* Whose value did a flight show? `write` (may be NULL) is what it sent. *record is filled for OURS,
 * and for ANOTHERS where it is a memlock record at all; its label is "" else. */
static enum whose whose(const char *id, const struct ml_view *view, const struct ml_write *write,
                        struct ml_record *record) {
  if (!view->present) return NOBODYS;
  if (view->length == 0) return FREE;
  if (write != NULL && view->length == write->length &&
      memcmp(view->value, write->value, write->length) == 0)
    return THIS_WRITE;
  if (!ml_record_decode(view->value, view->length, record)) {
    record->id[0] = record->label[0] = '\0';
    return ANOTHERS;
  }
  return strcmp(record->id, id) == 0 ? OURS : ANOTHERS;
}

/* memcached may drop an item almost two seconds early, and clocks drift: the record outlives the
 * lease that we count. */
static uint32_t expiry_of(int64_t ttl) {
  int64_t longer = ttl + ttl / 1000;
  return (uint32_t)((longer + ML_SECOND - 1) / ML_SECOND) + 2;
}

static int64_t rounded_ms(int64_t ttl) {
  int64_t ms = (ttl + ML_MILLISECOND / 2) / ML_MILLISECOND;
  return ms > 0 ? ms : 1;
}

/* The next write of this lock, with a seq of its own; its text goes to `text`. */
static struct ml_write next_write(struct ml_lock *lock, int64_t ttl, char text[ML_RECORD_MAX]) {
  if (ttl < lock->lasting) ttl = lock->lasting;
  struct ml_record record = {.seq = ++lock->seq, .since = lock->since, .ttl_ms = rounded_ms(ttl)};
  memcpy(record.id, lock->id, sizeof record.id);
  memcpy(record.label, lock->label, strlen(lock->label) + 1);
  return (struct ml_write){.value = text,
                           .length = ml_record_encode(&record, text),
                           .expiry = expiry_of(ttl),
                           .flags = ML_FLAGS};
}

static uint64_t hash(const char *text, size_t length) {
  uint64_t value = UINT64_C(14695981039346656037); /* FNV-1a */
  for (size_t i = 0; i < length; i++)
    value = (value ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
  return value | 1;
}

/* Who shares an identity may ask for a shorter lease than the other object that has it; the record
 * then lives as long as the longer one, which relies on it. */
static void mind_the_other(struct ml_lock *lock, const struct ml_record *record) {
  if (!lock->named || among(ml_lock_writes(lock), record->seq)) return;
  int64_t ttl = record->ttl_ms * ML_MILLISECOND;
  if (record->ttl_ms <= ML_TTL_MAX * INT64_C(1000) && ttl > lock->lasting) lock->lasting = ttl;
}

static enum ml_status held_by(const struct ml_lock *lock, const struct ml_store *store,
                              const struct ml_record *record, struct ml_error *error) {
  const char *server = ml_store_server(store, &lock->key);
  if (record->id[0] == '\0')
    return ml_fail(error, ML_HELD, "another program holds it, on %s", server);
  int64_t age = ml_clock_unix_us() / 1000000 - record->since;
  return ml_fail(error, ML_HELD, "%s has held it for %lld s, on %s",
                 record->label[0] != '\0' ? record->label : record->id,
                 (long long)(age > 0 ? age : 0), server);
}

/* Removing. */

struct removal {
  enum ml_answer answer;
  bool unanswered; /* a cas of ours went out whose reply did not come: it may have done it */
  uint64_t fence;  /* as last read; 0: not there */
};

/* What to remove: our record (`id` and `writes`), or with id == NULL exactly `value`. */
struct target {
  const char *id;
  struct ml_writes writes;
  const char *value;
  size_t length;
};

static bool is_target(const struct target *target, const struct ml_view *view) {
  if (target->id == NULL)
    return view->length == target->length &&
           memcmp(view->value, target->value, target->length) == 0;
  struct ml_record record;
  return whose(target->id, view, NULL, &record) == OURS && among(target->writes, record.seq);
}

/* Read, compare, compare-and-swap to an expired value; and again while the record changes under us
 * or the first connection turns out to be dead. */
static struct removal remove_item(struct ml_store *store, const struct ml_key *key,
                                  const struct target *target, struct ml_error *error) {
  struct removal removal = {ML_ANSWER_NONE, false, 0};
  struct tries tries = {0};
  while (fly(&tries, store)) {
    struct ml_view view;
    if (ml_store_read(store, key, true, &view, error) != ML_OK) {
      if (error->status == ML_UNSUPPORTED) break;
      tries.odd++;
      continue;
    }
    removal.fence = view.fence;
    if (!view.present) {
      enum ml_answer answer = ml_store_probe(store, key, error);
      if (answer == ML_ANSWER_ABSENT) {
        removal.answer = answer;
        break;
      }
      if (answer == ML_ANSWER_EXISTS)
        (void)keeps_changing(store, key, ML_TIMEOUT, error);
      else
        tries.odd++;
      continue;
    }
    if (!is_target(target, &view)) {
      removal.answer = ML_ANSWER_EXISTS;
      break;
    }
    enum ml_answer answer = ml_store_write(store, key, &nothing, &view.version, error);
    if (answer == ML_ANSWER_STORED) removal.answer = answer;
    if (answer == ML_ANSWER_STORED || answer == ML_ANSWER_REFUSED) break;
    if (answer == ML_ANSWER_NONE) {
      removal.unanswered = true;
      tries.odd++;
    } else {
      (void)keeps_changing(store, key, ML_TIMEOUT, error);
    }
  }
  return removal;
}

enum ml_answer ml_lock_sweep(struct ml_store *store, const struct ml_key *key, const char *id,
                             struct ml_writes writes, struct ml_error *error) {
  const struct target target = {.id = id, .writes = writes};
  return remove_item(store, key, &target, error).answer;
}

/* Acquire. */

static enum ml_status answered_late(const struct ml_lock *lock, const struct ml_store *store,
                                    struct ml_error *error) {
  return ml_fail(error, ML_TIMEOUT, "%s answered when the lease was over",
                 ml_store_server(store, &lock->key));
}

/* The flight that won. A lease that ended before its answer came is none. */
static enum ml_status win(struct ml_lock *lock, struct ml_store *store, const struct ml_view *view,
                          int64_t deadline, struct ml_error *error) {
  if (ml_clock_now() >= deadline) return answered_late(lock, store, error);
  lock->version = ml_store_is_proxy(store) ? no_version : view->version;
  lock->token = view->fence;
  lock->owned = true;
  lock->proven = lock->seq;
  lock->floating = false;
  ml_courtesy_acquired(&lock->courtesy, lock->token, ml_clock_now());
  atomic_store(&lock->deadline, deadline);
  return ML_OK;
}

/* Was the fence counted after our record was written? Errors of commands without reply are not
 * heard, nor that the fence has gone; and one that nobody counted is the token of somebody else.
 * memcached numbers all changes of all items in one sequence of CAS ids. */
static bool is_counted(const struct ml_view *view) { return view->fence_cas > view->version.cas; }

/* A read showed nothing although an add had met an item: has its holder left meanwhile? Behind a
 * proxy, where a round trip lies between the two, another may have followed. */
static bool has_changed_hands(const struct ml_lock *lock, struct ml_store *store,
                              struct ml_error *error) {
  enum ml_answer answer = ml_store_probe(store, &lock->key, error);
  return answer == ML_ANSWER_ABSENT || (answer == ML_ANSWER_EXISTS && ml_store_is_proxy(store));
}

/* Flies until it is known who has the lock. Sets lock->in_doubt when a write of ours may still
 * happen or be in place without our holding the lock. */
static enum ml_status take(struct ml_lock *lock, struct ml_store *store, struct ml_error *error) {
  struct ml_version version;
  const struct ml_version *at = NULL;
  enum ml_status status = ML_TIMEOUT;
  bool uncounted = false; /* our record stands there without a token, for the next to replace */
  struct tries tries = {0};
  while (fly(&tries, store)) {
    char text[ML_RECORD_MAX];
    struct ml_write write = next_write(lock, lock->ttl, text);
    int64_t deadline = ml_clock_after(ml_clock_now(), lock->ttl);
    bool replies = ml_store_is_proxy(store) || tries.odd == ODD_MAX - 1;
    struct ml_view view;
    status = ml_store_take(store, &lock->key, &write, at, !lock->counted, replies, &view, error);
    ml_courtesy_tried(&lock->courtesy, 1);
    lock->counted = status == ML_OK && view.fence != 0;
    at = NULL;
    if (status == ML_UNSUPPORTED) return status;
    if (status != ML_OK) {
      if (view.sent && !view.beaten) lock->in_doubt = true;
      tries.odd++;
      /* What another flight would not change. After an answer that was none of memcached's no reply
       * is waited for: at a number or OK, as other servers greet, libmemcached ends the process. */
      if (view.fence_is_bad || (tries.odd == ODD_MAX - 1 && !view.unsaid)) break;
      continue;
    }
    struct ml_record record;
    switch (whose(lock->id, &view, &write, &record)) {
    case THIS_WRITE:
      if (!replies && !is_counted(&view)) {
        uncounted = true;
        status = ml_fail(error, ML_REFUSED, "%s did not count its fence",
                         ml_store_server(store, &lock->key));
        version = view.version;
        at = &version;
        tries.odd++;
        break;
      }
      status = win(lock, store, &view, deadline, error);
      if (status != ML_OK) lock->in_doubt = true;
      return status;
    case OURS:
      status = ml_fail(error, ML_HELD, "the record of its own holder on %s keeps changing",
                       ml_store_server(store, &lock->key));
      mind_the_other(lock, &record);
      version = view.version;
      at = &version;
      break;
    case FREE:
      status = ml_fail(error, ML_HELD, "others keep taking it on %s",
                       ml_store_server(store, &lock->key));
      version = view.version;
      at = &version;
      break;
    case NOBODYS:
      if (view.beaten && has_changed_hands(lock, store, error)) {
        status = ml_fail(error, ML_HELD, "others keep taking it on %s",
                         ml_store_server(store, &lock->key));
        break;
      }
      lock->in_doubt = true; /* the write may be on its way on a connection that broke */
      status = ml_fail(error, ML_REFUSED, "%s does not keep what it is given",
                       ml_store_server(store, &lock->key));
      ml_store_drop(store, &lock->key);
      tries.odd++;
      break;
    case ANOTHERS:
      lock->sight.fence = view.fence;
      lock->sight.holder =
          record.id[0] != '\0' ? hash(record.id, strlen(record.id)) : hash(view.value, view.length);
      return held_by(lock, store, &record, error);
    }
  }
  if (uncounted) lock->in_doubt = true;
  return status;
}

enum ml_status ml_lock_acquire(struct ml_lock *lock, struct ml_store *store,
                               struct ml_error *error) {
  if (ml_lock_held(lock, NULL))
    return ml_fail(error, ML_HELD, "lock \"%s\": this very object holds it already", lock->name);
  lock->unsettled = lock->unsettled || lock->owned; /* an ended lease left its record behind */
  if (lock->owned) lock->losses++;
  lock->owned = lock->inherited = lock->giving_up = false;
  atomic_store(&lock->deadline, 0);
  if (!lock->named && !lock->unsettled && !ml_nonce(lock->id))
    return ml_fail(error, ML_REFUSED, "lock \"%s\": the system has no random numbers to give",
                   lock->name);
  lock->tenure++;
  lock->since = ml_clock_unix_us() / 1000000;
  lock->in_doubt = false;
  lock->sent = no_version;
  lock->sight = (struct ml_sight){0, 0};
  /* An ended lease left a record behind that another object may rely on, as this one knew. */
  if (!lock->unsettled) {
    lock->lasting = 0;
    lock->first = lock->seq + 1;
  }

  struct ml_error inner;
  enum ml_status status = take(lock, store, &inner);
  if (status == ML_OK) {
    lock->unsettled = lock->in_doubt;
    return ML_OK;
  }
  if (lock->in_doubt) {
    lock->unsettled = true;
    struct ml_error ignored;
    if (ml_store_has_time(store))
      (void)ml_lock_sweep(store, &lock->key, lock->id, ml_lock_writes(lock), &ignored);
  }
  return report(lock, &inner, error);
}

/* Loss. */

void ml_lock_forget(struct ml_lock *lock, bool lost) {
  lock->owned = lock->giving_up = lock->unsettled = lock->floating = false;
  if (lost) lock->losses++;
  lock->version = no_version;
  atomic_store(&lock->deadline, 0);
}

static enum ml_status lost_to(struct ml_lock *lock, const struct ml_store *store,
                              const struct ml_record *record, struct ml_error *error) {
  ml_lock_forget(lock, true);
  const char *holder = record->label[0] != '\0' ? record->label : record->id;
  return ml_fail(error, ML_LOST, "lock \"%s\" was lost: %s has it now, on %s", lock->name,
                 holder[0] != '\0' ? holder : "another program",
                 ml_store_server(store, &lock->key));
}

static enum ml_status lost_record(struct ml_lock *lock, const struct ml_store *store,
                                  struct ml_error *error) {
  ml_lock_forget(lock, true);
  return ml_fail(error, ML_LOST, "lock \"%s\" was lost: its record is gone from %s", lock->name,
                 ml_store_server(store, &lock->key));
}

/* The lease ended by the clock. Its record may live a little longer: it is removed where that can
 * be had, so that nobody waits for it. */
static enum ml_status lost_by_time(struct ml_lock *lock, struct ml_store *store,
                                   struct ml_error *error) {
  int64_t late = ml_clock_now() - atomic_load(&lock->deadline);
  struct ml_error ignored;
  bool removed =
      ml_lock_sweep(store, &lock->key, lock->id, ml_lock_writes(lock), &ignored) != ML_ANSWER_NONE;
  ml_lock_forget(lock, true);
  lock->unsettled = !removed;
  return ml_fail(error, ML_LOST, "lock \"%s\" was lost: its lease ended %lld ms ago", lock->name,
                 (long long)(late / ML_MILLISECOND));
}

static enum ml_status not_held(const struct ml_lock *lock, struct ml_error *error) {
  if (lock->inherited)
    return ml_fail(error, ML_NOT_HELD,
                   "lock \"%s\" was acquired by another process, from which this one was forked",
                   lock->name);
  return ml_fail(error, ML_NOT_HELD, "lock \"%s\" is not held by this object", lock->name);
}

/* Refresh and verify. */

enum standing { STANDS, GONE, TAKEN, UNKNOWN };

/* A write of ours from before the last one that was proven can stand only if that one was lost and
 * this one, which was under way all the time, came after it: somebody else may have had the lock
 * between the two. */
static bool is_outdated(const struct ml_lock *lock, const struct ml_record *record) {
  return among(ml_lock_writes(lock), record->seq) &&
         record->seq - lock->first < lock->proven - lock->first;
}

/* Does our record stand, by this view, or by the server's own word where the view shows nothing? */
static enum standing judge(struct ml_lock *lock, struct ml_store *store, const struct ml_view *view,
                           struct ml_record *record, struct ml_error *error) {
  switch (whose(lock->id, view, NULL, record)) {
  case THIS_WRITE: /* only where a write is named */
  case OURS:
    if (is_outdated(lock, record)) return GONE;
    mind_the_other(lock, record);
    lock->version = ml_store_is_proxy(store) ? no_version : view->version;
    return STANDS;
  case NOBODYS:
    if (ml_store_probe(store, &lock->key, error) == ML_ANSWER_ABSENT) return GONE;
    return UNKNOWN;
  case FREE:
    return GONE;
  case ANOTHERS:
    break;
  }
  return TAKEN;
}

/* Reads the record and says whether it stands. ML_OK: it does, and *at is its version. */
static enum ml_status look_at_own(struct ml_lock *lock, struct ml_store *store,
                                  struct ml_version *at, struct ml_error *error) {
  struct ml_view view;
  enum ml_status status = ml_store_read(store, &lock->key, false, &view, error);
  if (status != ML_OK) return status;
  struct ml_version version = view.version;
  struct ml_record record;
  (void)keeps_changing(store, &lock->key, ML_TIMEOUT, error);
  switch (judge(lock, store, &view, &record, error)) {
  case STANDS:
    *at = version;
    return ML_OK;
  case GONE:
    return lost_record(lock, store, error);
  case TAKEN:
    return lost_to(lock, store, &record, error);
  case UNKNOWN:
    break;
  }
  return error->status;
}

void ml_lock_prepare(struct ml_lock *lock, int64_t ttl, struct ml_renewal *renewal) {
  renewal->write = next_write(lock, ttl, renewal->text);
  lock->floating = true;
  renewal->deadline = ml_clock_after(ml_clock_now(), ttl);
  if (renewal->deadline < atomic_load(&lock->deadline))
    atomic_store(&lock->deadline, renewal->deadline);
}

static void renewed(struct ml_lock *lock, const struct ml_renewal *renewal,
                    struct ml_version version) {
  lock->version = version;
  lock->proven = lock->seq;
  lock->floating = false;
  atomic_store(&lock->deadline, renewal->deadline);
}

bool ml_lock_proven(struct ml_lock *lock, const struct ml_renewal *renewal,
                    const struct ml_view *view) {
  struct ml_record record;
  if (whose(lock->id, view, &renewal->write, &record) != THIS_WRITE) return false;
  renewed(lock, renewal, view->version);
  return true;
}

bool ml_lock_found(struct ml_lock *lock, const struct ml_view *view) {
  struct ml_record record;
  if (whose(lock->id, view, NULL, &record) != OURS || is_outdated(lock, &record)) return false;
  mind_the_other(lock, &record);
  lock->version = view->version;
  return true;
}

/* A renewal that waits for its reply. Outcomes as renew(). */
static enum ml_status renew_with_reply(struct ml_lock *lock, struct ml_store *store,
                                       struct ml_version at, const struct ml_renewal *renewal,
                                       struct ml_error *error) {
  switch (ml_store_write(store, &lock->key, &renewal->write, &at, error)) {
  case ML_ANSWER_STORED:
    renewed(lock, renewal, no_version); /* the reply does not tell the new version */
    return ML_OK;
  case ML_ANSWER_EXISTS:
    lock->version = no_version;
    return keeps_changing(store, &lock->key, ML_CONFLICT, error);
  case ML_ANSWER_ABSENT:
    return lost_record(lock, store, error);
  case ML_ANSWER_REFUSED:
  case ML_ANSWER_NONE:
    break;
  }
  return error->status;
}

/* A renewal in one flight. Outcomes as renew(). */
static enum ml_status renew_in_one_flight(struct ml_lock *lock, struct ml_store *store,
                                          struct ml_version at, const struct ml_renewal *renewal,
                                          struct ml_error *error) {
  struct ml_view view;
  enum ml_status status = ml_store_refresh(store, &lock->key, &renewal->write, at, &view, error);
  if (status != ML_OK || ml_lock_proven(lock, renewal, &view)) return status;
  struct ml_record record;
  (void)keeps_changing(store, &lock->key, ML_CONFLICT, error);
  switch (judge(lock, store, &view, &record, error)) {
  case GONE:
    return lost_record(lock, store, error);
  case TAKEN:
    return lost_to(lock, store, &record, error);
  case STANDS:
  case UNKNOWN:
    break;
  }
  return error->status;
}

/* One renewal at version `at`. ML_OK; ML_LOST; ML_CONFLICT: another write of ours came between; or
 * why it is unknown. */
static enum ml_status renew(struct ml_lock *lock, struct ml_store *store, struct ml_version at,
                            int64_t ttl, bool replies, struct ml_error *error) {
  struct ml_renewal renewal;
  ml_lock_prepare(lock, ttl, &renewal);
  enum ml_status status =
      (replies ? renew_with_reply : renew_in_one_flight)(lock, store, at, &renewal, error);
  if (status == ML_OK && ml_clock_now() >= renewal.deadline)
    return answered_late(lock, store, error);
  return status;
}

enum ml_status ml_lock_refresh(struct ml_lock *lock, struct ml_store *store, int64_t ttl,
                               struct ml_error *error) {
  if (!lock->owned) return not_held(lock, error);
  if (!ml_lock_held(lock, NULL)) return lost_by_time(lock, store, error);
  struct ml_error inner;
  enum ml_status status = ML_TIMEOUT;
  for (int odd = 0; odd < ODD_MAX; odd++) {
    if (odd > 0 && !(ml_lock_held(lock, NULL) && ml_store_has_time(store))) break;
    struct ml_version at = lock->version;
    status =
        ml_store_current(store, &lock->key, at) ? ML_OK : look_at_own(lock, store, &at, &inner);
    if (status == ML_OK) {
      bool replies = ml_store_is_proxy(store) || odd == ODD_MAX - 1;
      status = renew(lock, store, at, ttl, replies, &inner);
    }
    if (status == ML_OK) return ML_OK;
    if (status == ML_LOST) {
      *error = inner;
      return status;
    }
    if (status == ML_UNSUPPORTED || (status == ML_UNREACHABLE && odd == 1)) break;
  }
  if (status == ML_CONFLICT) inner.status = ML_TIMEOUT;
  return report(lock, &inner, error);
}

enum ml_status ml_lock_verify(struct ml_lock *lock, struct ml_store *store,
                              struct ml_error *error) {
  if (!lock->owned) return not_held(lock, error);
  if (!ml_lock_held(lock, NULL)) return lost_by_time(lock, store, error);
  struct ml_error inner;
  enum ml_status status = ML_TIMEOUT;
  for (int odd = 0; odd < ODD_MAX; odd++) {
    if (odd > 0 && !ml_store_has_time(store)) break;
    struct ml_version at;
    status = look_at_own(lock, store, &at, &inner);
    if (status == ML_OK && ml_lock_held(lock, NULL)) return ML_OK;
    if (status == ML_OK) {
      (void)answered_late(lock, store, &inner);
      break;
    }
    if (status == ML_LOST) {
      *error = inner;
      return status;
    }
    if (status == ML_UNSUPPORTED) break;
  }
  return report(lock, &inner, error);
}

/* Release. */

/* Has the fence only been counted up since our token, by no more than tries can do in the time? A
 * counter that was lost and seeded anew from the clock is farther away: it gains a million a
 * second. */
static bool is_same_counter(const struct ml_lock *lock, uint64_t fence) {
  int64_t held = ml_clock_now() - lock->courtesy.acquired;
  uint64_t possible = 100 + (uint64_t)(held / ML_MILLISECOND) * 10; /* ten thousand a second */
  if (possible > ML_COUNTS_MAX) possible = ML_COUNTS_MAX;
  return fence >= lock->token && fence - lock->token <= possible;
}

void ml_lock_begin_release(struct ml_lock *lock) {
  atomic_store(&lock->deadline, 0);
  if (lock->owned) ml_courtesy_released(&lock->courtesy, ml_clock_now());
  lock->owned = false;
  lock->giving_up = true;
}

/* With the connection that read it still up, one compare-and-swap does it. */
static enum ml_answer release_at_once(struct ml_lock *lock, struct ml_store *store,
                                      struct ml_error *error) {
  if (!ml_store_current(store, &lock->key, lock->version)) return ML_ANSWER_EXISTS;
  return ml_store_write(store, &lock->key, &nothing, &lock->version, error);
}

enum ml_status ml_lock_release(struct ml_lock *lock, struct ml_store *store,
                               struct ml_error *error) {
  if (!lock->owned && !lock->giving_up) return not_held(lock, error);
  if (lock->owned && !ml_lock_held(lock, NULL)) return lost_by_time(lock, store, error);
  bool unanswered = lock->giving_up; /* an earlier call's cas may have done it */
  ml_lock_begin_release(lock);

  struct ml_error inner;
  enum ml_answer answer = release_at_once(lock, store, &inner);
  lock->version = no_version;
  if (answer == ML_ANSWER_STORED) {
    ml_lock_forget(lock, false);
    return ML_OK;
  }
  if (answer == ML_ANSWER_ABSENT) return lost_record(lock, store, error);
  if (answer == ML_ANSWER_NONE) unanswered = true;

  struct removal removal = {.answer = ML_ANSWER_NONE};
  if (answer == ML_ANSWER_EXISTS || ml_store_has_time(store)) {
    const struct target own = {.id = lock->id, .writes = ml_lock_writes(lock)};
    removal = remove_item(store, &lock->key, &own, &inner);
  }
  switch (removal.answer) {
  case ML_ANSWER_STORED:
    ml_lock_forget(lock, false);
    return ML_OK;
  case ML_ANSWER_REFUSED:
  case ML_ANSWER_NONE:
    lock->unsettled = true;
    return report(lock, &inner, error);
  case ML_ANSWER_EXISTS:
  case ML_ANSWER_ABSENT:
    break;
  }
  /* Ours is not there. Either a cas of ours removed it whose reply we missed, or the server lost
   * it. A server that lost its data lost the fence as well. */
  if ((unanswered || removal.unanswered) && is_same_counter(lock, removal.fence)) {
    ml_lock_forget(lock, false);
    return ML_OK;
  }
  if (removal.answer == ML_ANSWER_ABSENT) return lost_record(lock, store, error);
  ml_lock_forget(lock, true);
  return ml_fail(error, ML_LOST, "lock \"%s\" was lost: another has it now, on %s", lock->name,
                 ml_store_server(store, &lock->key));
}

void ml_lock_drop(struct ml_lock *lock, struct ml_store *store, bool wait) {
  bool was_owned = lock->owned;
  bool floating = lock->floating;
  atomic_store(&lock->deadline, 0);
  if (!was_owned && !lock->giving_up && !lock->unsettled) return;
  bool sent = was_owned && ml_store_current(store, &lock->key, lock->version) &&
              ml_store_send(store, &lock->key, &nothing, lock->version, wait);
  /* A renewal that is under way may come before the removal, and make it fail without a word. */
  lock->sent = sent && !floating ? lock->version : no_version;
  lock->in_doubt = true;
  ml_lock_forget(lock, false);
}

bool ml_lock_finish(struct ml_lock *lock, struct ml_store *store, struct ml_finish *finish) {
  if (!lock->in_doubt) return true;
  if (ml_store_covered(store, &lock->key, lock->sent)) {
    lock->in_doubt = false;
    return true;
  }
  if (finish->end == 0) finish->end = ml_store_deadline(store);
  int64_t now = ml_clock_now();
  if (now >= finish->end || finish->silent[lock->key.server]) return false;
  struct ml_error ignored;
  ml_store_begin_until(store, now + (finish->end - now) / 2);
  lock->in_doubt =
      ml_lock_sweep(store, &lock->key, lock->id, ml_lock_writes(lock), &ignored) == ML_ANSWER_NONE;
  ml_store_begin_until(store, finish->end);
  finish->silent[lock->key.server] = lock->in_doubt;
  return !lock->in_doubt;
}

/* Names. */

enum ml_status ml_item_read(struct ml_store *store, const struct ml_key *key, struct ml_view *view,
                            struct ml_error *error) {
  enum ml_status status = ML_TIMEOUT;
  struct tries tries = {0};
  while (fly(&tries, store)) {
    status = ml_store_read(store, key, false, view, error);
    if (status == ML_UNSUPPORTED || (status == ML_OK && view->present)) break;
    if (status != ML_OK) {
      tries.odd++;
      continue;
    }
    switch (ml_store_probe(store, key, error)) {
    case ML_ANSWER_ABSENT:
      return ML_OK;
    case ML_ANSWER_EXISTS:
    case ML_ANSWER_STORED:
      status = keeps_changing(store, key, ML_TIMEOUT, error);
      break;
    case ML_ANSWER_REFUSED:
    case ML_ANSWER_NONE:
      status = error->status;
      tries.odd++;
      break;
    }
  }
  return status;
}

enum ml_status ml_lock_look(struct ml_store *store, const struct ml_key *key,
                            struct ml_holder *holder, struct ml_error *error) {
  struct ml_view view;
  enum ml_status status = ml_item_read(store, key, &view, error);
  if (status != ML_OK) return status;
  *holder = (struct ml_holder){.free = !view.present || view.length == 0};
  if (holder->free) return ML_OK;
  holder->value = view.value;
  holder->length = view.length;
  holder->is_record = ml_record_decode(view.value, view.length, &holder->record);
  return ML_OK;
}

enum ml_status ml_lock_break(struct ml_store *store, const struct ml_key *key, const char *value,
                             size_t length, struct ml_error *error) {
  const struct target exactly = {.value = value, .length = length};
  struct removal removal = remove_item(store, key, &exactly, error);
  switch (removal.answer) {
  case ML_ANSWER_STORED:
    return ML_OK;
  case ML_ANSWER_ABSENT:
    if (removal.unanswered) return ML_OK;
    return ml_fail(error, ML_NOT_HELD, "it is free on %s", ml_store_server(store, key));
  case ML_ANSWER_EXISTS:
    return ml_fail(error, ML_HELD, "it was renewed or taken by another meanwhile, on %s%s",
                   ml_store_server(store, key),
                   removal.unanswered ? ", and was not removed" : ": nothing was removed");
  case ML_ANSWER_REFUSED:
  case ML_ANSWER_NONE:
    break;
  }
  return error->status;
}
