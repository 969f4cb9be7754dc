/*
 * Records in doubt: writes that may still take effect after their answer was missed.
 *
 * After a timeout the bytes of an add wait in the server's socket, and may run when it goes on,
 * even after those of a newer connection. The list keeps the id of such a write, looks for it on
 * its server whenever that server answers, and removes it by compare-and-swap where it is met,
 * until the server has been answering for as long as the record could live. It holds a bounded
 * number of entries; what falls out ends with its ttl, like the lock of a program that was killed.
 *
 * A list belongs to its client, which frees it (ml_doubts_clear). Noting never blocks; settling
 * blocks for what is left of the store's operation at most.
 */
#ifndef ML_DOUBT_H
#define ML_DOUBT_H

#include <stdbool.h>
#include <stddef.h>

#include "lock.h"
#include "store.h"

struct ml_doubt;

struct ml_doubts {
  struct ml_doubt *first; /* the newest */
  size_t count;
};

/* Takes note of the lock's writes if it says that it is in doubt, and resets that. */
void ml_doubts_note(struct ml_doubts *doubts, struct ml_lock *lock);

/* Looks for records in doubt on a server that has just answered. */
void ml_doubts_settle(struct ml_doubts *doubts, struct ml_store *store, size_t server);

/* Looks for all of them, once, in what is left of an operation. True: none is left in place. */
bool ml_doubts_sweep(struct ml_doubts *doubts, struct ml_store *store);

/* The lock is going away: nobody uses its ids any more. */
void ml_doubts_part(struct ml_doubts *doubts, const struct ml_lock *lock);

/* Forgets and frees all. */
void ml_doubts_clear(struct ml_doubts *doubts);

#endif
