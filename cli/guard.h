/* The guard: a process that outlives us for a moment, to take the command along when we can not.
 *
 * It kills the command's process group when we are gone (kill -9 included), and when the lease must
 * not be trusted any longer and we have not said otherwise: then we are stopped, or starved. It is
 * told over a pipe, and the end of the pipe is the end of us. It is in a session of its own, so
 * that neither a terminal nor a signal to our group ends it with us.
 */
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct guard {
  pid_t pid;
  int fd;
};

/* What it is to do: kill `group` (0: nothing) at `until`, or when we are gone. */
struct guard_order {
  pid_t group;
  int64_t until;
};

/* False, with errno, when there is no process or pipe to be had. */
bool guard_start(struct guard *guard);

/* Never blocks. */
void guard_tell(const struct guard *guard, struct guard_order order);

/* Starts another one when it is gone; the next order is for that. */
bool guard_replace(struct guard *guard);

/* Sends it away and waits for its end. */
void guard_end(struct guard *guard);

#endif
