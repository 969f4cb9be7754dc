#include "clock.h"

#include <time.h>

#ifdef CLOCK_BOOTTIME
#define LEASE_CLOCK CLOCK_BOOTTIME
#else
#define LEASE_CLOCK CLOCK_MONOTONIC
#endif

int64_t ml_clock_now(void) {
  struct timespec now;
  (void)clock_gettime(LEASE_CLOCK, &now);
  return (int64_t)now.tv_sec * ML_SECOND + now.tv_nsec;
}

int64_t ml_clock_unix_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t ml_clock_after(int64_t now, int64_t span) {
  return span >= ML_FOREVER - now ? ML_FOREVER : now + span;
}

int64_t ml_clock_span(double seconds) {
  if (!(seconds > 0)) return 0;
  if (seconds >= 9e9) return ML_FOREVER;
  return (int64_t)(seconds * (double)ML_SECOND);
}

double ml_clock_seconds(int64_t span) { return (double)span / (double)ML_SECOND; }

bool ml_clock_sleep(int64_t span) {
  /* A year at a time is as good as for ever to the caller, and fits every time_t. */
  const int64_t longest = INT64_C(365) * 86400 * ML_SECOND;
  if (span <= 0) return true;
  if (span > longest) span = longest;
  struct timespec request = {.tv_sec = (time_t)(span / ML_SECOND),
                             .tv_nsec = (long)(span % ML_SECOND)};
  return nanosleep(&request, NULL) == 0;
}
