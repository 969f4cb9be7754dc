/* Signals of `memlock run`, as events of its loop: each writes its number to a pipe. What was
 * ignored when we were started stays so, for us and for the command (nohup). One per process, main
 * thread only.
 */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Catches them from now on. False, with errno, when there is no pipe to be had. */
bool signals_open(void);

/* Waits until a signal has come, the descriptor `other` (-1: none) has something to read, or
 * `until` has come. It may return early. */
void signals_await(int other, int64_t until);

/* The next signal that has come; 0: none. */
int signals_next(void);

/* Is it one that asks a program to end? */
bool signals_is_end(int number);

/* Stops this process or, with `group`, all of its process group by `number`, as the terminal would.
 * Returns when it is continued; false: it could not be stopped (nobody would continue it). */
bool signals_stop(int number, bool group);

/* In a forked child that will run another program, with all signals blocked: sets everything back
 * to what it was before signals_open. */
void signals_restore(void);

/* Ends this process by a signal. Returns where that is impossible (as PID 1). */
void signals_die(int number);

/* Lets the others of our process group have a signal that only the command has got. */
void signals_share(int number);

#endif
