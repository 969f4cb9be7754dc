/*
 * The keeper: one thread per client that renews leases in the background. The only room that knows
 * threads.
 *
 * Who writes. A lock that is handed over (ml_keeper_add) stays the program's until the keeper first
 * renews it; from then on the keeper is its only writer, on a connection of its own, and the
 * program asks it to refresh, verify and release (ml_keeper_ask). The keeper works on a copy of the
 * lock, the `struct ml_kept`, one for each acquisition, so that nothing it hears late can touch
 * another one.
 *
 * Who owns. The program holds an ml_kept until ml_keeper_take_back or ml_keeper_end has freed it,
 * or ml_keeper_drop has left it to the keeper. A keeper frees what it still has when it stops.
 *
 * Who waits. The thread sleeps until a lock is due or something is asked; it never holds the mutex
 * while it is on the network, so the program waits for the network only in ml_keeper_ask and
 * ml_keeper_settle (one timeout at most) and ml_keeper_join. ml_kept_held takes no lock at all.
 *
 * The thread never sees a lua_State, takes no signals, and its code stays mapped until
 * it has ended, even if the module is unloaded.
 */
#ifndef ML_KEEPER_H
#define ML_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "status.h"
#include "store.h"

struct ml_keeper;
struct ml_kept;

struct ml_keeper_stats {
  uint64_t passes;   /* flights of due locks, one for each server that had some */
  uint64_t renewals; /* that succeeded */
  uint64_t failures; /* that did not, and were tried again while lease was left */
  uint64_t losses;
  int64_t longest_delay; /* nanoseconds that a renewal began behind its due time */
  uint64_t round_trips;
};

enum ml_wish { ML_WISH_REFRESH, ML_WISH_VERIFY, ML_WISH_RELEASE };

/* Starts the thread. `notify` is a descriptor that gets a byte when a lock is lost, or -1. NULL
 * with an error when there is no memory or no thread to be had. */
struct ml_keeper *ml_keeper_start(const struct ml_store_options *options, int notify,
                                  struct ml_error *error);
void ml_keeper_notify(struct ml_keeper *keeper, int notify);

/* Asks the thread to give up all that it has by `deadline` and to end; returns at once. */
void ml_keeper_stop(struct ml_keeper *keeper, int64_t deadline);

/* Waits for the end of a keeper that was asked to stop, and frees it. True: all was given up. */
bool ml_keeper_join(struct ml_keeper *keeper, struct ml_keeper_stats *last);

/* In a forked child, which has no such thread: the keeper is left as it is, and stays reachable. */
void ml_keeper_abandon(struct ml_keeper *keeper);

/* Hands over a lock that was just acquired, to be renewed at a third of its ttl until `max_hold`
 * nanoseconds (ML_FOREVER) from its acquisition. NULL when there is no memory. */
struct ml_kept *ml_keeper_add(struct ml_keeper *keeper, struct ml_lock *lock, int64_t max_hold);

/* Is the lease good now? Any thread, never blocks. */
bool ml_kept_held(const struct ml_kept *kept, int64_t *left);

/* Takes a lock back that the keeper has not begun to write: true, and *lock has its lease again. */
bool ml_keeper_take_back(struct ml_keeper *keeper, struct ml_kept *kept, struct ml_lock *lock);

/* Has the keeper do something at once, ahead of what is merely due. Outcomes as the operation's in
 * lock.h; ML_TIMEOUT also when the keeper was not done by `until`: a release then still happens.
 * `ttl` is for a refresh, and for all later renewals. */
enum ml_status ml_keeper_ask(struct ml_keeper *keeper, struct ml_kept *kept, enum ml_wish wish,
                             int64_t ttl, int64_t until, struct ml_error *error);

/* Waits until nothing of this acquisition is under way or asked for. False: not until `until`.
 */
bool ml_keeper_settle(struct ml_keeper *keeper, struct ml_kept *kept, int64_t until);

/* Ends an acquisition of which nothing is under way (after an answer, a loss, ml_keeper_settle).
 * True: its record may still be there. */
bool ml_keeper_end(struct ml_keeper *keeper, struct ml_kept *kept);

/* Leaves an acquisition to the keeper, which gives it up and frees it. Never waits. */
void ml_keeper_drop(struct ml_keeper *keeper, struct ml_kept *kept);

/* The next lock that was lost in the background and not yet told so here; NULL: none (then `drain`,
 * a non-blocking descriptor or -1, has been read empty). Fills `message`. */
const struct ml_lock *ml_keeper_next_lost(struct ml_keeper *keeper, int drain, char *message,
                                          size_t size);

/* Forgets what next_lost would tell of a lock that is going away. */
void ml_keeper_forget(struct ml_keeper *keeper, const struct ml_lock *lock);

void ml_keeper_stats(struct ml_keeper *keeper, struct ml_keeper_stats *stats);

#endif
