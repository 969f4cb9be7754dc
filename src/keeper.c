#include "keeper.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "process.h"

#define RENEWALS_PER_TTL 3
#define RETRY_MIN (20 * ML_MILLISECOND)
#define RETRY_MAX ML_SECOND
#define FLIGHT_MIN (50 * ML_MILLISECOND) /* a shorter timeout than this would only lose answers */
#define NOT_DUE SIZE_MAX

/* A number for each write of the keeper's, and no risk that the program allots the same one. */
#define WRITES_OF_KEEPER (UINT64_C(1) << 32)

struct ml_kept {
  struct ml_lock lock;         /* the keeper's copy; its thread's only, but for `deadline` */
  const struct ml_lock *owner; /* the program's; NULL: it has gone, and the keeper frees this */
  struct ml_kept *previous;    /* in the list of all */
  struct ml_kept *next;
  struct ml_kept *next_asked;
  int64_t ttl;
  int64_t wish_ttl;
  int64_t hold_until; /* max_hold; once dropped: until when to try to give it up */
  int64_t due;
  size_t place; /* in a heap of its server, or NOT_DUE */
  char *loss;   /* how it was lost; NULL where there was no memory for it */
  enum ml_wish wish;
  enum ml_status answer;
  bool single;    /* a flight did not prove it: it is, or goes, among the odd ones */
  bool adopted;   /* the keeper is the writer */
  bool busy;      /* on the network, without the mutex */
  bool asked;     /* `wish` waits for its turn, or the giving up of what was dropped */
  bool releasing; /* a release is asked for or under way */
  bool ending;    /* not renewed any more, but watched until its lease ends */
  bool answered;  /* `answer` is that of the last wish */
  bool lost;      /* in the background; the program has not been told by a call of its own */
};

/* A loss that the program has not been told of. */
struct lost {
  struct lost *next;
  const struct ml_lock *owner;
  char message[];
};

/* A binary heap: the first due is at 0. */
struct heap {
  struct ml_kept **list;
  size_t count;
};

/* First in, first out, by next_asked. */
struct fifo {
  struct ml_kept *first;
  struct ml_kept *last;
};

/* What there is to do on one server. */
struct queue {
  struct heap due;     /* goes out in batches */
  struct heap odd;     /* goes out one by one, when nothing else is to be done here */
  struct fifo dropped; /* their owners have gone: they are to be given up */
  size_t room;         /* in each heap */
  size_t entries;      /* that live on this server, due or not: there is room for all of them */
  bool silent;         /* it did not answer the last time */
  int64_t rest_until;  /* nor is it asked before then: the others have their turn, and wishes */
  uint64_t turn;       /* when it was last attended to */
};

/* What one flight needs; the thread's only. */
struct batch {
  size_t count;
  struct ml_kept *kept[ML_BATCH_MAX];
  enum ml_status outcome[ML_BATCH_MAX];
  struct ml_renewal renewals[ML_BATCH_MAX];
  struct ml_item items[ML_BATCH_MAX];
  size_t of_item[ML_BATCH_MAX]; /* which of `kept` an item is */
  char message[ML_BATCH_MAX][160];
};

struct ml_keeper {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t work; /* something is asked, due sooner, or to be ended */
  pthread_cond_t done; /* something was answered */
  struct ml_store *store;
  struct batch *batch;
  int64_t timeout;
  bool stopping;
  int64_t stop_by;
  bool all_given_up;
  int notify;
  struct ml_kept *all;
  struct fifo wishes;
  const struct ml_kept *waiting; /* what the program waits for; its error goes here: */
  struct ml_error error;
  struct lost *lost;
  struct ml_keeper_stats stats;
  struct ml_keeper *next_abandoned;
  uint64_t turns;
  size_t servers;
  struct queue queues[];
};

static _Atomic(struct ml_keeper *) abandoned;

/* The heap. */

static bool sooner(const struct heap *heap, size_t a, size_t b) {
  return heap->list[a]->due < heap->list[b]->due;
}

static void swap(struct heap *heap, size_t a, size_t b) {
  struct ml_kept *kept = heap->list[a];
  heap->list[a] = heap->list[b];
  heap->list[b] = kept;
  heap->list[a]->place = a;
  heap->list[b]->place = b;
}

static void sift(struct heap *heap, size_t at) {
  while (at > 0 && sooner(heap, at, (at - 1) / 2)) {
    swap(heap, at, (at - 1) / 2);
    at = (at - 1) / 2;
  }
  for (;;) {
    size_t least = at;
    for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap->count; child++)
      if (sooner(heap, child, least)) least = child;
    if (least == at) return;
    swap(heap, at, least);
    at = least;
  }
}

static struct queue *queue_of(struct ml_keeper *keeper, const struct ml_kept *kept) {
  return &keeper->queues[kept->lock.key.server];
}

static struct heap *heap_of(struct ml_keeper *keeper, const struct ml_kept *kept) {
  struct queue *queue = queue_of(keeper, kept);
  return kept->single ? &queue->odd : &queue->due;
}

static bool widen(struct heap *heap, size_t room) {
  struct ml_kept **list = realloc(heap->list, room * sizeof(struct ml_kept *));
  if (list == NULL) return false;
  heap->list = list;
  return true;
}

/* Makes room for one more entry, so that scheduling it cannot fail. */
static bool reserve(struct queue *queue) {
  if (queue->entries < queue->room) return true;
  size_t room = queue->room == 0 ? 16 : 2 * queue->room;
  if (!widen(&queue->due, room) || !widen(&queue->odd, room)) return false;
  queue->room = room;
  return true;
}

static void schedule(struct ml_keeper *keeper, struct ml_kept *kept, int64_t due) {
  struct heap *heap = heap_of(keeper, kept);
  kept->due = due;
  if (kept->place == NOT_DUE) {
    kept->place = heap->count++;
    heap->list[kept->place] = kept;
  }
  sift(heap, kept->place);
}

static void unschedule(struct ml_keeper *keeper, struct ml_kept *kept) {
  if (kept->place == NOT_DUE) return;
  struct heap *heap = heap_of(keeper, kept);
  size_t at = kept->place;
  kept->place = NOT_DUE;
  heap->count--;
  if (at == heap->count) return;
  heap->list[at] = heap->list[heap->count];
  heap->list[at]->place = at;
  sift(heap, at);
}

/* Entries. */

static int64_t interval_of(const struct ml_kept *kept) { return kept->ttl / RENEWALS_PER_TTL; }

static int64_t deadline_of(const struct ml_kept *kept) { return atomic_load(&kept->lock.deadline); }

/* Takes an entry out of everything, and frees it. */
static void dispose(struct ml_keeper *keeper, struct ml_kept *kept) {
  unschedule(keeper, kept);
  queue_of(keeper, kept)->entries--;
  if (kept->previous != NULL)
    kept->previous->next = kept->next;
  else
    keeper->all = kept->next;
  if (kept->next != NULL) kept->next->previous = kept->previous;
  free(kept->loss);
  free(kept);
}

static struct fifo *fifo_of(struct ml_keeper *keeper, const struct ml_kept *kept) {
  return kept->owner != NULL ? &keeper->wishes : &queue_of(keeper, kept)->dropped;
}

/* Takes back what was asked and not yet begun. */
static void unask(struct ml_keeper *keeper, struct ml_kept *kept) {
  if (!kept->asked) return;
  struct fifo *fifo = fifo_of(keeper, kept);
  kept->asked = false;
  struct ml_kept *before = NULL;
  struct ml_kept **at = &fifo->first;
  while (*at != kept) {
    before = *at;
    at = &before->next_asked;
  }
  *at = kept->next_asked;
  if (fifo->last == kept) fifo->last = before;
}

/* Makes the descriptor readable. A full pipe is readable already. */
static void tell(const struct ml_keeper *keeper) {
  if (keeper->notify >= 0) (void)!write(keeper->notify, "", 1);
}

/* Lost in the background: held() is false from here on, and the program is told. Without memory for
 * the telling, its next call tells it. */
static void lose(struct ml_keeper *keeper, struct ml_kept *kept, const char *message) {
  bool unsettled = kept->lock.unsettled; /* its record may be there, to be known by its id */
  ml_lock_forget(&kept->lock, true);
  kept->lock.unsettled = unsettled;
  unschedule(keeper, kept);
  if (kept->owner != NULL) unask(keeper, kept); /* the loss is the answer */
  keeper->stats.losses++;
  kept->lost = true;
  kept->loss = strdup(message);
  if (kept->owner == NULL) return;
  size_t size = strlen(message) + 1;
  struct lost *lost = malloc(sizeof *lost + size);
  if (lost == NULL) return;
  lost->owner = kept->owner;
  memcpy(lost->message, message, size);
  lost->next = NULL;
  struct lost **last = &keeper->lost;
  while (*last != NULL) last = &(*last)->next;
  *last = lost;
  tell(keeper);
}

static void lose_by_time(struct ml_keeper *keeper, struct ml_kept *kept, const char *why) {
  char message[512];
  (void)snprintf(message, sizeof message, "lock \"%s\" was lost: its lease ended%s%s",
                 kept->lock.name, why[0] != '\0' ? ", " : "", why);
  lose(keeper, kept, message);
  kept->lock.unsettled = true; /* its record may live a moment longer */
}

/* How long a flight to this server may take, so that a server that does not answer costs no lease
 * on another one: half of what is left of the other's, or until it is due if the silence is no
 * news. */
static int64_t span_beside_others(const struct ml_keeper *keeper, const struct queue *queue) {
  int64_t now = ml_clock_now();
  int64_t span = keeper->timeout;
  for (size_t i = 0; i < keeper->servers; i++) {
    const struct heap *due = &keeper->queues[i].due;
    if (&keeper->queues[i] == queue || due->count == 0) continue;
    const struct ml_kept *first = due->list[0];
    int64_t room = queue->silent ? first->due - now : (deadline_of(first) - now) / 2;
    if (room < span) span = room;
  }
  return span < FLIGHT_MIN ? FLIGHT_MIN : span;
}

/* Wishes. */

static void ask(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_wish wish, int64_t ttl) {
  kept->wish = wish;
  kept->wish_ttl = ttl;
  kept->answered = false;
  kept->releasing = wish == ML_WISH_RELEASE;
  if (!kept->asked) {
    struct fifo *fifo = fifo_of(keeper, kept);
    kept->asked = true;
    kept->next_asked = NULL;
    if (fifo->last != NULL)
      fifo->last->next_asked = kept;
    else
      fifo->first = kept;
    fifo->last = kept;
  }
  (void)pthread_cond_signal(&keeper->work);
}

static void keep_going(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_status outcome,
                       const char *message);

static enum ml_status fulfil(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_wish wish,
                             int64_t ttl, struct ml_error *error) {
  switch (wish) {
  case ML_WISH_REFRESH:
    return ml_lock_refresh(&kept->lock, keeper->store, ttl, error);
  case ML_WISH_VERIFY:
    return ml_lock_verify(&kept->lock, keeper->store, error);
  case ML_WISH_RELEASE:
    break;
  }
  return ml_lock_release(&kept->lock, keeper->store, error);
}

/* Does the first wish. Called and returns with the mutex. */
static void serve(struct ml_keeper *keeper) {
  struct ml_kept *kept = keeper->wishes.first;
  enum ml_wish wish = kept->wish;
  unask(keeper, kept);
  if (wish != ML_WISH_VERIFY) {
    unschedule(keeper, kept);
    kept->single = false;
  }
  int64_t ttl = kept->wish_ttl;
  if (wish == ML_WISH_REFRESH && ttl < kept->ttl) kept->ttl = ttl; /* a longer one must succeed */
  int64_t span = span_beside_others(keeper, queue_of(keeper, kept));
  kept->busy = kept->adopted = true;
  (void)pthread_mutex_unlock(&keeper->mutex);

  struct ml_error error = {.message = ""};
  ml_store_begin_until(keeper->store, ml_clock_after(ml_clock_now(), span));
  enum ml_status outcome = fulfil(keeper, kept, wish, ttl, &error);

  (void)pthread_mutex_lock(&keeper->mutex);
  kept->busy = false;
  if (wish == ML_WISH_REFRESH && outcome == ML_OK) kept->ttl = ttl;
  keeper->stats.round_trips = ml_store_round_trips(keeper->store);
  bool awaited = keeper->waiting == kept && !kept->asked;
  if (outcome == ML_LOST || outcome == ML_NOT_HELD)
    unschedule(keeper, kept);
  else if (wish == ML_WISH_REFRESH)
    keep_going(keeper, kept, outcome, error.message);
  /* Who asked and waits no more has been told that no answer came. */
  if (outcome == ML_LOST && wish != ML_WISH_RELEASE && !awaited) lose(keeper, kept, error.message);
  if (kept->asked) return; /* something else is wanted meanwhile */
  kept->answered = true;
  kept->answer = outcome;
  kept->releasing = false;
  if (keeper->waiting == kept && outcome != ML_OK) keeper->error = error;
  (void)pthread_cond_broadcast(&keeper->done);
}

/* Giving up many: what nobody waits for leaves without replies, and one answer covers it all. */

/* Gives up what was dropped on one server, many at a time. Called and returns with the mutex. */
static void serve_dropped(struct ml_keeper *keeper, struct queue *queue) {
  struct batch *batch = keeper->batch;
  batch->count = 0;
  while (batch->count < ML_BATCH_MAX && queue->dropped.first != NULL) {
    struct ml_kept *kept = queue->dropped.first;
    unask(keeper, kept);
    unschedule(keeper, kept);
    kept->busy = true;
    batch->kept[batch->count++] = kept;
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
  struct ml_error ignored;
  struct ml_finish finish = {.end = 0};
  bool all = true;
  ml_store_begin(keeper->store);
  for (size_t i = 0; i < batch->count; i++)
    ml_lock_drop(&batch->kept[i]->lock, keeper->store, true);
  (void)ml_store_flush(keeper->store, &ignored);
  for (size_t i = 0; i < batch->count; i++)
    all = ml_lock_finish(&batch->kept[i]->lock, keeper->store, &finish) && all;
  (void)pthread_mutex_lock(&keeper->mutex);
  keeper->stats.round_trips = ml_store_round_trips(keeper->store);
  int64_t now = ml_clock_now();
  if (!all) queue->rest_until = ml_clock_after(now, RETRY_MAX);
  for (size_t i = 0; i < batch->count; i++) {
    struct ml_kept *kept = batch->kept[i];
    kept->busy = false;
    /* What is not known to be gone is tried again, for as long as its record can live. */
    if (kept->lock.in_doubt && now < kept->hold_until)
      ask(keeper, kept, ML_WISH_RELEASE, 0);
    else
      dispose(keeper, kept);
  }
}

/* Renewing. */

static void found(void *context, size_t index, const struct ml_view *view) {
  struct batch *batch = context;
  (void)ml_lock_found(&batch->kept[batch->of_item[index]]->lock, view);
}

static void renewed(void *context, size_t index, const struct ml_view *view) {
  struct batch *batch = context;
  size_t i = batch->of_item[index];
  /* A loss is final: a proof that comes after the end of the lease does not bring it back. */
  if (ml_clock_now() >= deadline_of(batch->kept[i])) return;
  if (ml_lock_proven(&batch->kept[i]->lock, &batch->renewals[i], view)) batch->outcome[i] = ML_OK;
}

static void add_item(struct batch *batch, size_t *count, size_t i, const struct ml_write *write) {
  const struct ml_lock *lock = &batch->kept[i]->lock;
  batch->items[*count] = (struct ml_item){&lock->key, write, lock->version};
  batch->of_item[(*count)++] = i;
}

static bool current(const struct ml_keeper *keeper, const struct ml_kept *kept) {
  return ml_store_current(keeper->store, &kept->lock.key, kept->lock.version);
}

/* Learns the versions of records that this connection has not read yet. */
static enum ml_status read_batch(struct ml_keeper *keeper, struct ml_error *error) {
  struct batch *batch = keeper->batch;
  size_t count = 0;
  for (size_t i = 0; i < batch->count; i++)
    if (!current(keeper, batch->kept[i])) add_item(batch, &count, i, NULL);
  if (count == 0) return ML_OK;
  return ml_store_batch(keeper->store, batch->items, count, found, batch, error);
}

static enum ml_status renew_batch(struct ml_keeper *keeper, struct ml_error *error) {
  struct batch *batch = keeper->batch;
  size_t count = 0;
  for (size_t i = 0; i < batch->count; i++) {
    struct ml_kept *kept = batch->kept[i];
    if (!current(keeper, kept)) continue;
    ml_lock_prepare(&kept->lock, kept->ttl, &batch->renewals[i]);
    add_item(batch, &count, i, &batch->renewals[i].write);
  }
  if (count == 0) return ML_OK;
  return ml_store_batch(keeper->store, batch->items, count, renewed, batch, error);
}

static bool is_silence(enum ml_status status) {
  return status == ML_TIMEOUT || status == ML_UNREACHABLE;
}

/* Renews the one, with all the care that it needs. */
static enum ml_status renew_singly(struct ml_keeper *keeper, struct ml_error *error) {
  struct ml_kept *kept = keeper->batch->kept[0];
  return ml_lock_refresh(&kept->lock, keeper->store, kept->ttl, error);
}

/* Flies the batch, without the mutex. No flight takes longer than the shortest of the intervals, or
 * than the last of the leases, after which it could prove nothing. What it does not prove ends with
 * its failure, or as ML_CONFLICT: to be asked singly. */
static void fly(struct ml_keeper *keeper, int64_t span) {
  struct batch *batch = keeper->batch;
  int64_t now = ml_clock_now();
  int64_t longest = 0;
  for (size_t i = 0; i < batch->count; i++) {
    int64_t left = deadline_of(batch->kept[i]) - now;
    if (left > longest) longest = left;
    if (interval_of(batch->kept[i]) < span) span = interval_of(batch->kept[i]);
    batch->outcome[i] = ML_CONFLICT;
  }
  if (longest < span) span = longest;
  if (span < FLIGHT_MIN) span = FLIGHT_MIN;
  ml_store_begin_until(keeper->store, ml_clock_after(ml_clock_now(), span));

  struct ml_error error = {.message = ""};
  enum ml_status status = ML_OK;
  if (batch->kept[0]->single) {
    status = batch->outcome[0] = renew_singly(keeper, &error);
  } else if (!ml_store_is_proxy(keeper->store)) {
    status = read_batch(keeper, &error);
    if (status == ML_OK) status = renew_batch(keeper, &error);
  }
  for (size_t i = 0; i < batch->count; i++) {
    if (batch->outcome[i] == ML_OK) continue;
    if (is_silence(status)) batch->outcome[i] = status;
    (void)snprintf(batch->message[i], sizeof batch->message[i], "%.159s", error.message);
  }
}

/* How long after a failure to try again: soon, and several times before the lease ends. */
static int64_t retry_pause(int64_t interval, int64_t left) {
  int64_t pause = interval < left ? interval / 4 : left / 4;
  if (pause > RETRY_MAX) pause = RETRY_MAX;
  return pause < RETRY_MIN ? RETRY_MIN : pause;
}

/* After a flight, with the mutex: when is it due again? */
static void keep_going(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_status outcome,
                       const char *message) {
  int64_t now = ml_clock_now();
  int64_t interval = interval_of(kept);
  int64_t due;
  switch (outcome) {
  case ML_OK:
    keeper->stats.renewals++;
    due = deadline_of(kept) - kept->ttl + interval;
    break;
  case ML_LOST:
    lose(keeper, kept, message);
    return;
  default:
    keeper->stats.failures++;
    due = now + retry_pause(interval, deadline_of(kept) - now);
    if (due > deadline_of(kept)) due = deadline_of(kept);
    if (now >= deadline_of(kept)) {
      lose_by_time(keeper, kept, message);
      return;
    }
  }
  schedule(keeper, kept, due);
}

/* Locks that are nearly due go along, so that many of them end up in few flights. */
static bool goes_along(const struct ml_kept *kept, int64_t now) {
  int64_t slack = kept->ending ? 0 : interval_of(kept) / 8;
  return kept->due - slack <= now;
}

/* Takes an entry into the batch. */
static void enlist(struct ml_keeper *keeper, struct ml_kept *kept) {
  struct batch *batch = keeper->batch;
  unschedule(keeper, kept);
  kept->busy = kept->adopted = true;
  batch->kept[batch->count++] = kept;
}

/* Fills the batch with what is due on one server. Ends those whose time is over. */
static void gather(struct ml_keeper *keeper, struct heap *heap) {
  struct batch *batch = keeper->batch;
  int64_t now = ml_clock_now();
  while (batch->count < ML_BATCH_MAX && heap->count > 0 && goes_along(heap->list[0], now)) {
    struct ml_kept *kept = heap->list[0];
    if (now >= deadline_of(kept)) {
      lose_by_time(keeper, kept,
                   kept->ending ? "which max_hold did not let be renewed" : "not renewed in time");
    } else if (now >= kept->hold_until) {
      kept->ending = true;
      schedule(keeper, kept, deadline_of(kept));
    } else {
      if (now - kept->due > keeper->stats.longest_delay)
        keeper->stats.longest_delay = now - kept->due;
      enlist(keeper, kept);
    }
  }
}

static bool is_due(const struct queue *queue, int64_t now) {
  return queue->due.count > 0 && queue->due.list[0]->due <= now;
}

/* One flight for one server; called and returns with the mutex. */
static void pass(struct ml_keeper *keeper, struct queue *queue) {
  struct batch *batch = keeper->batch;
  batch->count = 0;
  if (is_due(queue, ml_clock_now()))
    gather(keeper, &queue->due);
  else
    enlist(keeper, queue->odd.list[0]);
  if (batch->count == 0) return;
  keeper->stats.passes++;
  int64_t span = span_beside_others(keeper, queue);
  (void)pthread_mutex_unlock(&keeper->mutex);
  fly(keeper, span);
  (void)pthread_mutex_lock(&keeper->mutex);
  queue->silent = false;
  int64_t rest_until = ML_FOREVER;
  for (size_t i = 0; i < batch->count; i++) {
    struct ml_kept *kept = batch->kept[i];
    kept->busy = false;
    kept->single = !kept->single && batch->outcome[i] == ML_CONFLICT;
    if (kept->single)
      schedule(keeper, kept, kept->due);
    else
      keep_going(keeper, kept, batch->outcome[i], batch->message[i]);
    bool silent = is_silence(batch->outcome[i]) && kept->place != NOT_DUE;
    if (silent) queue->silent = true;
    if (silent && kept->due < rest_until) rest_until = kept->due;
  }
  if (rest_until != ML_FOREVER) queue->rest_until = rest_until;
  keeper->stats.round_trips = ml_store_round_trips(keeper->store);
  (void)pthread_cond_broadcast(&keeper->done);
}

/* The thread. */

/* When there is something to do on this server. */
static int64_t ready_at(const struct queue *queue) {
  int64_t at = ML_FOREVER;
  if (queue->due.count > 0) at = queue->due.list[0]->due;
  if (queue->odd.count > 0 || queue->dropped.first != NULL) at = 0;
  return at < queue->rest_until ? queue->rest_until : at;
}

/* The server to attend to now: of those that have something to do the one that waits longest. NULL:
 * there is nothing to do until *wake. */
static struct queue *next_queue(struct ml_keeper *keeper, int64_t *wake) {
  struct queue *next = NULL;
  int64_t now = ml_clock_now();
  *wake = ML_FOREVER;
  for (size_t i = 0; i < keeper->servers; i++) {
    struct queue *queue = &keeper->queues[i];
    int64_t at = ready_at(queue);
    if (at < *wake) *wake = at;
    if (at <= now && (next == NULL || queue->turn < next->turn)) next = queue;
  }
  if (next != NULL) next->turn = ++keeper->turns;
  return next;
}

/* Waits on a condition until a time of our clock, which may differ from the condition's. */
static void wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline) {
  if (deadline == ML_FOREVER) {
    (void)pthread_cond_wait(condition, mutex);
    return;
  }
  int64_t left = deadline - ml_clock_now();
  if (left <= 0) return;
#ifdef __APPLE__
  struct timespec span = {.tv_sec = (time_t)(left / ML_SECOND),
                          .tv_nsec = (long)(left % ML_SECOND)};
  (void)pthread_cond_timedwait_relative_np(condition, mutex, &span);
#else
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)(left / ML_SECOND);
  until.tv_nsec += (long)(left % ML_SECOND);
  if (until.tv_nsec >= ML_SECOND) {
    until.tv_nsec -= (long)ML_SECOND;
    until.tv_sec++;
  }
  (void)pthread_cond_timedwait(condition, mutex, &until);
#endif
}

/* All that is left when the keeper is asked to stop, in flights, by one deadline. */
static void give_up_all(struct ml_keeper *keeper) {
  struct ml_error ignored;
  struct ml_finish finish = {.end = 0};
  ml_store_begin_until(keeper->store, keeper->stop_by);
  for (struct ml_kept *kept = keeper->all; kept != NULL; kept = kept->next)
    if (kept->adopted) ml_lock_drop(&kept->lock, keeper->store, true);
  keeper->all_given_up = ml_store_flush(keeper->store, &ignored) == ML_OK;
  while (keeper->all != NULL) {
    struct ml_kept *kept = keeper->all;
    if (kept->adopted && !ml_lock_finish(&kept->lock, keeper->store, &finish))
      keeper->all_given_up = false;
    keeper->all = kept->next; /* no other list is looked at any more */
    free(kept->loss);
    free(kept);
  }
}

static void *run(void *argument) {
  struct ml_keeper *keeper = argument;
  (void)pthread_mutex_lock(&keeper->mutex);
  while (!keeper->stopping) {
    int64_t wake;
    struct queue *queue = NULL;
    if (keeper->wishes.first != NULL)
      serve(keeper);
    else if ((queue = next_queue(keeper, &wake)) == NULL)
      wait_until(&keeper->work, &keeper->mutex, wake);
    else if (queue->dropped.first != NULL && !is_due(queue, ml_clock_now()))
      serve_dropped(keeper, queue);
    else
      pass(keeper, queue);
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
  give_up_all(keeper); /* the program has let go of everything and only waits for the end */
  return NULL;
}

/* Starting and stopping. */

/* The module must not be unmapped under a running thread, whatever becomes of the state that loaded
 * it. In a static program there is nothing to pin. */
static void pin_module(void) {
  Dl_info info;
  static const char here = 0;
  if (dladdr(&here, &info) != 0 && info.dli_fname != NULL)
    (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

/* Signals are for the program's threads. */
static int start_thread(struct ml_keeper *keeper) {
  sigset_t saved;
  ml_process_block_signals(&saved);
  int failure = pthread_create(&keeper->thread, NULL, run, keeper);
  ml_process_restore_signals(&saved);
  return failure;
}

static void init_condition(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
#ifndef __APPLE__
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
  (void)pthread_cond_init(condition, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

static void free_keeper(struct ml_keeper *keeper) {
  while (keeper->lost != NULL) {
    struct lost *next = keeper->lost->next;
    free(keeper->lost);
    keeper->lost = next;
  }
  for (size_t i = 0; i < keeper->servers; i++) {
    free(keeper->queues[i].due.list);
    free(keeper->queues[i].odd.list);
  }
  ml_store_close(keeper->store);
  (void)pthread_cond_destroy(&keeper->done);
  (void)pthread_cond_destroy(&keeper->work);
  (void)pthread_mutex_destroy(&keeper->mutex);
  free(keeper->batch);
  free(keeper);
}

struct ml_keeper *ml_keeper_start(const struct ml_store_options *options, int notify,
                                  struct ml_error *error) {
  size_t servers = options->servers->count;
  struct ml_keeper *keeper = calloc(1, sizeof *keeper + servers * sizeof keeper->queues[0]);
  if (keeper == NULL) {
    (void)ml_fail(error, ML_REFUSED, "not enough memory to renew in the background");
    return NULL;
  }
  (void)pthread_mutex_init(&keeper->mutex, NULL);
  init_condition(&keeper->work);
  init_condition(&keeper->done);
  keeper->servers = servers;
  keeper->timeout = options->timeout;
  keeper->notify = notify;
  keeper->batch = malloc(sizeof *keeper->batch);
  keeper->store = ml_store_open(options, error);
  if (keeper->store != NULL && keeper->batch != NULL) {
    pin_module();
    char words[128];
    int failure = start_thread(keeper);
    if (failure == 0) return keeper;
    (void)ml_fail(error, ML_REFUSED, "no thread to renew in the background: %s",
                  ml_system_error(failure, words, sizeof words));
  } else if (keeper->store != NULL) {
    (void)ml_fail(error, ML_REFUSED, "not enough memory to renew in the background");
  }
  free_keeper(keeper);
  return NULL;
}

void ml_keeper_notify(struct ml_keeper *keeper, int notify) {
  (void)pthread_mutex_lock(&keeper->mutex);
  keeper->notify = notify;
  if (keeper->lost != NULL) tell(keeper); /* it was lost before anybody watched */
  (void)pthread_mutex_unlock(&keeper->mutex);
}

void ml_keeper_stop(struct ml_keeper *keeper, int64_t deadline) {
  (void)pthread_mutex_lock(&keeper->mutex);
  keeper->stopping = true;
  keeper->stop_by = deadline;
  (void)pthread_cond_signal(&keeper->work);
  (void)pthread_mutex_unlock(&keeper->mutex);
}

bool ml_keeper_join(struct ml_keeper *keeper, struct ml_keeper_stats *last) {
  (void)pthread_join(keeper->thread, NULL);
  *last = keeper->stats;
  last->round_trips = ml_store_round_trips(keeper->store);
  bool all = keeper->all_given_up;
  free_keeper(keeper);
  return all;
}

void ml_keeper_abandon(struct ml_keeper *keeper) {
  keeper->next_abandoned = atomic_load(&abandoned);
  while (!atomic_compare_exchange_weak(&abandoned, &keeper->next_abandoned, keeper)) continue;
}

/* What the program does. */

struct ml_kept *ml_keeper_add(struct ml_keeper *keeper, struct ml_lock *lock, int64_t max_hold) {
  size_t text = ML_KEY_TEXT_FOR(lock->key.length);
  struct ml_kept *kept = calloc(1, sizeof *kept + text);
  if (kept == NULL) return NULL;
  kept->lock = *lock;
  kept->lock.key.text = memcpy(kept + 1, lock->key.text, text);
  kept->lock.name = kept->lock.key.text + (lock->name - lock->key.text);
  kept->lock.version = (struct ml_version){0, 0}; /* it was read on another connection */
  kept->lock.client = NULL;
  kept->owner = lock;
  kept->ttl = lock->ttl;
  kept->place = NOT_DUE;
  int64_t acquired = deadline_of(kept) - kept->ttl;
  kept->hold_until = ml_clock_after(acquired, max_hold);

  (void)pthread_mutex_lock(&keeper->mutex);
  struct queue *queue = queue_of(keeper, kept);
  bool room = reserve(queue);
  if (room) {
    queue->entries++;
    kept->next = keeper->all;
    if (kept->next != NULL) kept->next->previous = kept;
    keeper->all = kept;
    schedule(keeper, kept, acquired + interval_of(kept));
    if (kept->place == 0) (void)pthread_cond_signal(&keeper->work);
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
  if (!room) {
    free(kept);
    return NULL;
  }
  lock->seq += WRITES_OF_KEEPER;
  atomic_store(&lock->deadline, ML_FOREVER); /* until it is given up; the kept one's counts */
  return kept;
}

bool ml_kept_held(const struct ml_kept *kept, int64_t *left) {
  return ml_lock_held(&kept->lock, left);
}

bool ml_keeper_take_back(struct ml_keeper *keeper, struct ml_kept *kept, struct ml_lock *lock) {
  (void)pthread_mutex_lock(&keeper->mutex);
  bool ours = !kept->adopted && !kept->lost;
  if (ours) {
    atomic_store(&lock->deadline, deadline_of(kept));
    dispose(keeper, kept);
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
  return ours;
}

static enum ml_status tell_loss(const struct ml_kept *kept, struct ml_error *error) {
  if (kept->loss != NULL) return ml_fail(error, ML_LOST, "%s", kept->loss);
  return ml_fail(error, ML_LOST, "lock \"%s\" was lost", kept->lock.name);
}

enum ml_status ml_keeper_ask(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_wish wish,
                             int64_t ttl, int64_t until, struct ml_error *error) {
  bool release = wish == ML_WISH_RELEASE;
  (void)pthread_mutex_lock(&keeper->mutex);
  /* The answer to an earlier release that was not waited for may have come meanwhile. */
  bool done = release && kept->answered && kept->wish == ML_WISH_RELEASE &&
              (kept->answer == ML_OK || kept->answer == ML_LOST);
  if (!done && !kept->lost && !kept->releasing) ask(keeper, kept, wish, ttl);
  keeper->waiting = kept;
  while (!kept->lost && !kept->answered && ml_clock_now() < until)
    wait_until(&keeper->done, &keeper->mutex, until);
  keeper->waiting = NULL;

  enum ml_status answer = kept->answered ? kept->answer : ML_TIMEOUT;
  if (kept->lost) {
    unask(keeper, kept);
    answer = tell_loss(kept, error);
  } else if (!kept->answered) {
    if (!release) unask(keeper, kept);
    (void)ml_fail(error, ML_TIMEOUT, "lock \"%s\": %s did not answer in time to what renews it",
                  kept->lock.name, ml_store_server(keeper->store, &kept->lock.key));
  } else if (done && answer == ML_LOST) {
    (void)ml_fail(error, ML_LOST, "lock \"%s\" was lost before it was released", kept->lock.name);
  } else if (answer != ML_OK) {
    *error = keeper->error;
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
  return answer;
}

bool ml_keeper_settle(struct ml_keeper *keeper, struct ml_kept *kept, int64_t until) {
  (void)pthread_mutex_lock(&keeper->mutex);
  while ((kept->busy || kept->asked) && ml_clock_now() < until)
    wait_until(&keeper->done, &keeper->mutex, until);
  bool settled = !kept->busy && !kept->asked;
  if (settled) unschedule(keeper, kept); /* or the thread could begin anew before it is ended */
  (void)pthread_mutex_unlock(&keeper->mutex);
  return settled;
}

bool ml_keeper_end(struct ml_keeper *keeper, struct ml_kept *kept) {
  (void)pthread_mutex_lock(&keeper->mutex);
  bool left = kept->lock.owned || kept->lock.giving_up || kept->lock.unsettled;
  dispose(keeper, kept);
  (void)pthread_mutex_unlock(&keeper->mutex);
  return left;
}

void ml_keeper_drop(struct ml_keeper *keeper, struct ml_kept *kept) {
  (void)pthread_mutex_lock(&keeper->mutex);
  unask(keeper, kept);
  kept->owner = NULL;
  kept->hold_until = ml_clock_after(ml_clock_now(), kept->ttl + 3 * ML_SECOND);
  ask(keeper, kept, ML_WISH_RELEASE, 0);
  (void)pthread_mutex_unlock(&keeper->mutex);
}

const struct ml_lock *ml_keeper_next_lost(struct ml_keeper *keeper, int drain, char *message,
                                          size_t size) {
  const struct ml_lock *owner = NULL;
  (void)pthread_mutex_lock(&keeper->mutex);
  struct lost *lost = keeper->lost;
  if (lost != NULL) {
    keeper->lost = lost->next;
    owner = lost->owner;
    (void)snprintf(message, size, "%s", lost->message);
    free(lost);
  }
  char bytes[64];
  while (keeper->lost == NULL && drain >= 0 && read(drain, bytes, sizeof bytes) > 0) continue;
  (void)pthread_mutex_unlock(&keeper->mutex);
  return owner;
}

void ml_keeper_forget(struct ml_keeper *keeper, const struct ml_lock *lock) {
  (void)pthread_mutex_lock(&keeper->mutex);
  for (struct lost **at = &keeper->lost; *at != NULL;) {
    struct lost *lost = *at;
    if (lost->owner == lock) {
      *at = lost->next;
      free(lost);
    } else {
      at = &lost->next;
    }
  }
  (void)pthread_mutex_unlock(&keeper->mutex);
}

void ml_keeper_stats(struct ml_keeper *keeper, struct ml_keeper_stats *stats) {
  (void)pthread_mutex_lock(&keeper->mutex);
  *stats = keeper->stats;
  (void)pthread_mutex_unlock(&keeper->mutex);
}
