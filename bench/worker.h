/*
 * A worker: a process with one lock, which the bench tells what to do, a line at a time. worker.c
 * is the part that all subjects share; worker.lua and peers/worker.* are the same in other
 * languages.
 *
 *   worker SUBJECT SERVER NAME [PAUSES]      prints `ready` when it is
 *
 *   acquire, refresh, release   once; `acquire` does not wait. Answers `ok` or `no`.
 *   cycles COUNT                acquires and releases that often. Answers `ok`.
 *   run SECONDS                 the same for that long: `CYCLES ELAPSED CPU`, in seconds
 *   compete PATH START STOP HOLD PAUSE
 *                               from START to STOP on the monotonic clock it waits for the lock,
 *                               holds it, gives it up, and pauses for 0 to PAUSE. Answers `ok`.
 *
 * `compete` writes to the file at PATH, at once: `asked TIME` when it begins to wait; `held TIME
 * TIME` for each acquisition when it is about to give it up: when acquire returned, and now.
 */
#ifndef WORKER_H
#define WORKER_H

#include <stdbool.h>

/* There is one lock in a process. What fails although it must not ends the process with a message.
 */
struct subject {
  const char *name;
  void (*open)(const char *server, const char *name);
  bool (*attempt)(void);         /* to acquire, once */
  bool (*acquire)(double until); /* waits; NULL: by attempts, with the pauses of the worker */
  bool (*refresh)(void);
  bool (*release)(void);
};

extern const struct subject core, limit, compare, swap;

double now(void); /* seconds on the monotonic clock */
void sleep_for(double seconds);
_Noreturn void die(const char *what, const char *why);

#endif
