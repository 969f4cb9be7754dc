#include "fitness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define YOUNG 60        /* seconds: what was held before the start has been forgotten */
#define CLOCKS_DIFFER 2 /* seconds; it tells whole ones */
#define NEARLY_FULL 90  /* percent */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
find(struct ml_findings *findings, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(findings->text[findings->count], sizeof findings->text[0], format, arguments);
  va_end(arguments);
  findings->count++;
}

/* Reads a number and the dot behind it; 0 where there is none. */
static long next_number(const char **text) {
  char *end;
  long number = strtol(*text, &end, 10);
  *text = *end == '.' ? end + 1 : end;
  return number;
}

/* Before 1.4.20 there are too many faults to think about. */
static bool is_old(const char *version) {
  long major = next_number(&version);
  long minor = next_number(&version);
  long patch = next_number(&version);
  if (major != 1) return major < 1;
  return minor < 4 || (minor == 4 && patch < 20);
}

void ml_fitness(const struct ml_facts *facts, struct ml_findings *findings) {
  findings->count = 0;
  if (!facts->has_cas)
    find(findings, "It has no compare-and-swap (memcached -C?): no lock can be taken there.");
  if (facts->version[0] != '\0' && is_old(facts->version))
    find(findings, "Version %s is very old: 1.4.20 or later is needed, 1.6 wanted.",
         facts->version);
  if (facts->is_proxy)
    find(findings,
         "It does not tell what a memcached tells, so it may be a proxy: use the option proxy, "
         "and check the servers behind it.");
  if (!facts->tells) return;
  if (facts->evicts)
    find(findings, "It drops items when memory is short, locks among them: start it with -M.");
  if (facts->evictions > 0)
    find(findings, "It has dropped %llu items for want of memory: locks may have been among them.",
         (unsigned long long)facts->evictions);
  if (facts->limit > 0 && facts->used / (facts->limit / 100 + 1) >= NEARLY_FULL)
    find(findings,
         "Its memory is nearly full (%llu of %llu bytes): it will refuse or forget locks.",
         (unsigned long long)facts->used, (unsigned long long)facts->limit);
  if (facts->uptime < YOUNG)
    find(findings, "It was started %lld s ago: who held a lock before that may still be at work.",
         (long long)facts->uptime);
  if (facts->clock_offset > CLOCKS_DIFFER || facts->clock_offset < -CLOCKS_DIFFER)
    find(findings, "Its wall clock and ours differ by %lld s: tokens rely on NTP after a restart.",
         (long long)facts->clock_offset);
}
