/*
 * When to ask again. memcached wakes nobody up, so waiters poll; this file decides when.
 *
 * Each attempt counts the fence up and reads it, so a waiter learns for nothing how many attempts
 * all the others made since its own last one. From that it keeps the rate of attempts of all of
 * them together constant, without knowing them. A holder's id that changed tells that the lock
 * moves on; one that stays tells to ask less often.
 *
 * Courtesy is the other half: who releases and asks again at once would nearly always win against
 * waiters that sleep. A lock that saw others trying lets them go first.
 *
 * Everything here is pure: time and chance are arguments, so that a test can tabulate it.
 */
#ifndef ML_BACKOFF_H
#define ML_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"

#define ML_PAUSE_MIN 0 /* default bounds of a pause, nanoseconds */
#define ML_PAUSE_MAX (10 * ML_SECOND)

/* More counts of the fence than this between two looks are no tries, but a counter that was lost
 * and started anew. */
#define ML_COUNTS_MAX 10000

/* What one failed attempt saw. All 0 when the server could not be asked. */
struct ml_sight {
  uint64_t fence;
  uint64_t holder; /* any number that differs from holder to holder */
};

/* One wait, from its first attempt on. Start with all 0 but `started`. */
struct ml_backoff {
  int64_t started;
  struct ml_sight last;
  int64_t seen_since; /* when this holder was first seen */
  bool looked;        /* `last` is filled */
};

/* The pause after an attempt that failed at `now`; 0 <= random < 1. It is drawn from 2/3 of a
 * length to all of it, the length being between `least` and `most`. Takes note of `sight`. */
int64_t ml_backoff_pause(struct ml_backoff *backoff, struct ml_sight sight, int64_t now,
                         double random, int64_t least, int64_t most);

/* The pause after an update lost its `races`-th race (from 1 on): doubling, and evenly drawn, so
 * that the losers do not meet again. */
int64_t ml_backoff_race(unsigned races, double random);

/* One lock object, over its acquisitions. Start with all 0. */
struct ml_courtesy {
  uint64_t token; /* of the last acquisition */
  uint64_t tries; /* our own counts of the fence since then */
  bool others;    /* somebody else counted between the last two acquisitions */
  int64_t acquired;
  int64_t released;
  int64_t span; /* how long it was held */
};

void ml_courtesy_tried(struct ml_courtesy *courtesy, uint64_t counts);
void ml_courtesy_acquired(struct ml_courtesy *courtesy, uint64_t token, int64_t now);
void ml_courtesy_released(struct ml_courtesy *courtesy, int64_t now);

/* How long to let others go first, for a wait that begins at `now`; 0: not at all. */
int64_t ml_courtesy_pause(const struct ml_courtesy *courtesy, int64_t now, double random);

#endif
