#include "backoff.h"

/* One attempt in this time by all waiters together is what the pauses aim at. Shorter ones give few
 * acquisitions more and cost many commands: the plot in doc/performance.md shows where they stand,
 * and is why this can be set from outside. */
#ifndef ML_TURN
#define ML_TURN (9 * ML_MILLISECOND / 2)
#endif
#define LONG (250 * ML_MILLISECOND)
/* At least this much for each other waiter: what keeps a thousand of them bearable. */
#define SHARE (800 * ML_MILLISECOND / 1000)
#define AGE (100 * ML_MILLISECOND)

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Counts between two readings, `own` of which are ours; 0 where the fence started over. */
static int64_t counts_between(uint64_t before, uint64_t now, uint64_t own) {
  if (before == 0 || now < before || now - before < own) return 0;
  uint64_t counts = now - before - own;
  return counts > ML_COUNTS_MAX ? 0 : (int64_t)counts;
}

int64_t ml_backoff_pause(struct ml_backoff *backoff, struct ml_sight sight, int64_t now,
                         double random, int64_t least, int64_t most) {
  bool same = backoff->looked && sight.holder == backoff->last.holder;
  int64_t others = backoff->looked ? counts_between(backoff->last.fence, sight.fence, 1) : 0;
  if (!same) backoff->seen_since = now;
  backoff->last = sight;
  backoff->looked = true;

  int64_t pause = smaller(ML_TURN * larger(1, others + (same ? 1 : 0)), LONG);
  /* Who has waited for long asks up to three times as often. */
  int64_t waited = now - backoff->started;
  pause = pause * AGE / larger(AGE, smaller(waited, 3 * AGE));
  /* Who has been watching the same holder for long does not expect it to go now. */
  pause = larger(pause, smaller((now - backoff->seen_since) / 2, LONG));
  pause = larger(pause, SHARE * others);
  /* Bounds may not take the chance out of it, or waiters move in step. */
  pause = smaller(larger(pause, least + least / 2), most);
  int64_t shortest = larger(pause - pause / 3, least);
  return shortest + (int64_t)((double)(pause - shortest) * random);
}

int64_t ml_backoff_race(unsigned races, double random) {
  int64_t longest = ML_MILLISECOND << smaller(races, 6);
  return 1 + (int64_t)((double)longest * random);
}

void ml_courtesy_tried(struct ml_courtesy *courtesy, uint64_t counts) { courtesy->tries += counts; }

void ml_courtesy_acquired(struct ml_courtesy *courtesy, uint64_t token, int64_t now) {
  courtesy->others = counts_between(courtesy->token, token, courtesy->tries) > 0;
  courtesy->token = token;
  courtesy->tries = 0;
  courtesy->acquired = now;
  courtesy->released = 0;
}

void ml_courtesy_released(struct ml_courtesy *courtesy, int64_t now) {
  courtesy->released = now;
  courtesy->span = now - courtesy->acquired;
}

int64_t ml_courtesy_pause(const struct ml_courtesy *courtesy, int64_t now, double random) {
  if (!courtesy->others || courtesy->released == 0) return 0;
  int64_t yield = (int64_t)(random * (double)smaller(courtesy->span / 4, LONG));
  return larger(0, courtesy->released + yield - now);
}
