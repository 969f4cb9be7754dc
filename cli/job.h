/* The command, under its lease: what `memlock run` does from the command's start to its end.
 *
 * As long as the lease is good the command runs, signals to us go on to its process group, and the
 * terminal is its own. Once the lease is about to end, or has been lost, or was held for too long,
 * the whole group is made to end, and that is final: TERM, and KILL at `kill_at`, which for a lease
 * that ends comes before its end. Processes that left the group are out of reach.
 *
 * We follow the command when the terminal stops it, so that our shell notices; before it goes on,
 * the lease is looked at.
 */
#ifndef JOB_H
#define JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client.h"
#include "guard.h"
#include "terminal.h"

struct job_limits {
  int64_t grace;      /* from TERM to KILL, when the lease is about to end or max_hold is over */
  int64_t loss_grace; /* the same, when it has been lost */
  int64_t max_hold;   /* from `started` on; ML_FOREVER */
};

enum job_fate {
  JOB_GOES_ON, /* after job_run: the command ended by itself, under a good lease */
  JOB_LOST,    /* the lock was lost, or about to be */
  JOB_TOO_LONG,
};

struct job {
  struct ml_client *client;
  struct ml_lock *lock; /* held, and renewed in the background */
  struct guard *guard;
  struct terminal terminal;
  struct job_limits limits;
  int64_t started;

  pid_t group;
  enum job_fate fate;
  int64_t kill_at;       /* once its fate is sealed */
  int64_t guarded_until; /* the guard strikes then, unless it is told otherwise before */
  bool is_proven;        /* JOB_LOST: the record is gone, or the lease is over */
  bool killed;
  bool asked;   /* somebody wants an end of it: TERM, INT or QUIT came, or ended the command */
  bool hung_up; /* it was told that there is no terminal for it */
  bool ended;
  int status; /* of waitpid, once it has ended */
};

/* Starts the command; 0, or an exit code: it has been said why it does not run. */
int job_start(struct job *job, char **argv);

/* Waits for its end: then job->fate and job->status tell. Of the group nothing is left where it was
 * to be ended, as far as that is possible. */
void job_run(struct job *job);

#endif
