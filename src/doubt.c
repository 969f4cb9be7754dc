#include "doubt.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define DOUBTS_MAX 1024
#define LOOK_EVERY (250 * ML_MILLISECOND) /* at one record in doubt */
#define LOOKING (100 * ML_MILLISECOND)    /* in one operation: no look begins after that */
#define LIFE_IN_SOCKET (2 * ML_SECOND)    /* added to a ttl: bytes that wait behind an answer */

/* `until` is set when the server first answers again: while it is stopped, nothing ends. */
struct ml_doubt {
  struct ml_doubt *next;
  struct ml_key key; /* its text stands behind */
  char id[ML_ID_MAX + 1];
  struct ml_writes writes;
  const struct ml_lock *lock; /* that may still use the id; NULL when it is gone */
  struct ml_version sent;     /* a removal that left without reply: any answer after it covers it */
  int64_t life;
  int64_t until; /* 0: not yet known */
  int64_t look_at;
};

static void forget(struct ml_doubts *doubts, struct ml_doubt **at) {
  struct ml_doubt *doubt = *at;
  *at = doubt->next;
  free(doubt);
  doubts->count--;
}

static void forget_oldest(struct ml_doubts *doubts) {
  struct ml_doubt **at = &doubts->first;
  if (*at == NULL) return;
  while ((*at)->next != NULL) at = &(*at)->next;
  forget(doubts, at);
}

static struct ml_doubt *find(const struct ml_doubts *doubts, const struct ml_lock *lock) {
  struct ml_doubt *doubt = doubts->first;
  while (doubt != NULL && (doubt->lock != lock || strcmp(doubt->id, lock->id) != 0))
    doubt = doubt->next;
  return doubt;
}

/* A new entry for the lock's id; NULL without memory. */
static struct ml_doubt *add(struct ml_doubts *doubts, const struct ml_lock *lock) {
  if (doubts->count == DOUBTS_MAX) forget_oldest(doubts);
  size_t text = ML_KEY_TEXT_FOR(lock->key.length);
  struct ml_doubt *doubt = calloc(1, sizeof *doubt + text);
  if (doubt == NULL) return NULL;
  doubt->key = lock->key;
  doubt->key.text = memcpy(doubt + 1, lock->key.text, text);
  memcpy(doubt->id, lock->id, sizeof doubt->id);
  doubt->lock = lock;
  doubt->next = doubts->first;
  doubts->first = doubt;
  doubts->count++;
  return doubt;
}

void ml_doubts_note(struct ml_doubts *doubts, struct ml_lock *lock) {
  if (!lock->in_doubt) return;
  lock->in_doubt = false;
  struct ml_writes writes = ml_lock_writes(lock);
  struct ml_doubt *doubt = find(doubts, lock);
  if (doubt != NULL) { /* older writes are still in doubt, too, which no answer covers */
    doubt->writes.last = writes.last;
    doubt->sent = (struct ml_version){0, 0};
  } else {
    doubt = add(doubts, lock);
    if (doubt == NULL) return;
    doubt->writes = writes;
    doubt->sent = lock->sent;
  }
  if (lock->ttl > doubt->life) doubt->life = lock->ttl;
  doubt->until = 0;
}

/* Is the id in use again, so that its record must stand? */
static bool in_use(const struct ml_doubt *doubt) {
  return doubt->lock != NULL && doubt->lock->owned && strcmp(doubt->lock->id, doubt->id) == 0;
}

/* True: the server has said that none of these writes is in place. */
static bool sweep(const struct ml_doubt *doubt, struct ml_store *store) {
  struct ml_error ignored;
  return ml_store_has_time(store) &&
         ml_lock_sweep(store, &doubt->key, doubt->id, doubt->writes, &ignored) != ML_ANSWER_NONE;
}

void ml_doubts_settle(struct ml_doubts *doubts, struct ml_store *store, size_t server) {
  if (doubts->first == NULL) return;
  int64_t start = ml_clock_now();
  int64_t now = start;
  for (struct ml_doubt **at = &doubts->first; *at != NULL && now - start < LOOKING;) {
    struct ml_doubt *doubt = *at;
    bool here = doubt->key.server == server;
    bool over = doubt->until != 0 && now > doubt->until;
    if (here && (over || ml_store_covered(store, &doubt->key, doubt->sent))) {
      forget(doubts, at);
      continue;
    }
    at = &doubt->next;
    if (!here || in_use(doubt) || now < doubt->look_at) continue;
    doubt->look_at = ml_clock_after(now, LOOK_EVERY);
    if (!sweep(doubt, store)) return;
    if (doubt->until == 0) doubt->until = ml_clock_after(now, doubt->life + LIFE_IN_SOCKET);
    now = ml_clock_now();
  }
}

bool ml_doubts_sweep(struct ml_doubts *doubts, struct ml_store *store) {
  bool all = true;
  for (const struct ml_doubt *doubt = doubts->first; doubt != NULL; doubt = doubt->next)
    all = sweep(doubt, store) && all;
  return all;
}

void ml_doubts_part(struct ml_doubts *doubts, const struct ml_lock *lock) {
  for (struct ml_doubt *doubt = doubts->first; doubt != NULL; doubt = doubt->next)
    if (doubt->lock == lock) doubt->lock = NULL;
}

void ml_doubts_clear(struct ml_doubts *doubts) {
  while (doubts->first != NULL) forget(doubts, &doubts->first);
}
