/*
 * Is a server fit for locks? Facts that the store gathers, and what they mean, in sentences.
 *
 * Pure: no network, no memory of its own, any thread.
 */
#ifndef ML_FITNESS_H
#define ML_FITNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a server says of itself, and what was seen of it. */
struct ml_facts {
  char version[32]; /* "1.6.18"; "" where it does not say */
  bool tells;       /* it answered `stats` like a memcached; what follows down to `used` is known */
  int64_t uptime;   /* seconds */
  int64_t clock_offset; /* its wall clock minus ours, seconds (it tells whole ones) */
  bool evicts;          /* drops items when memory is short: no -M */
  uint64_t evictions;   /* so far */
  uint64_t limit;       /* of memory, bytes */
  uint64_t used;        /* bytes */
  bool has_cas;         /* a compare-and-swap was tried, and worked */
  bool is_proxy;        /* it does not tell what a memcached tells */
  int64_t round_trip;   /* nanoseconds of one read */
};

#define ML_FINDINGS_MAX 8

struct ml_findings {
  size_t count;
  char text[ML_FINDINGS_MAX][200]; /* a sentence each, of what makes the server unfit */
};

void ml_fitness(const struct ml_facts *facts, struct ml_findings *findings);

#endif
