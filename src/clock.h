/*
 * Time: the only place that knows a clock.
 *
 * Leases are measured on a clock that counts suspended time (CLOCK_BOOTTIME on Linux), so that a
 * machine that slept through its lease wakes up without it. A point in time is an int64_t of
 * nanoseconds on that clock; it means nothing outside this boot of this machine. Spans are
 * nanoseconds too, or seconds as double where people gave them. All functions may be called from
 * any thread; only ml_clock_sleep blocks.
 */
#ifndef ML_CLOCK_H
#define ML_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define ML_SECOND INT64_C(1000000000) /* nanoseconds */
#define ML_MILLISECOND INT64_C(1000000)
#define ML_FOREVER INT64_MAX /* a span or a deadline that never ends */

int64_t ml_clock_now(void);

/* Microseconds since 1970: the wall clock, for fence seeds and `since`, never for a lease. */
int64_t ml_clock_unix_us(void);

/* `now` plus `span`, ML_FOREVER where that would overflow. `span` >= 0. */
int64_t ml_clock_after(int64_t now, int64_t span);

/* Seconds as nanoseconds, saturated: NaN and negative give 0, what is too large ML_FOREVER. */
int64_t ml_clock_span(double seconds);

double ml_clock_seconds(int64_t span);

/* Sleeps the calling thread for `span`; returns false at once when a signal handler ran instead. */
bool ml_clock_sleep(int64_t span);

#endif
