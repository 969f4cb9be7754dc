/*
 * The lock: a lease on a name, as a state machine over the store. No thread, no Lua.
 *
 * A `struct ml_lock` is memory of its owner's (client.c sets it up and knows when it goes); this
 * file allocates nothing. Except for ml_lock_held, which any thread may call and which never
 * blocks, its functions belong to the thread that has the client, and block for one operation at
 * most: their caller has called ml_store_begin.
 *
 * What an operation may conclude. Only a record with the seq of this very write proves that this
 * write is in place; only somebody else's record, or the server's own NOT_FOUND, proves that ours
 * is not. Anything else is unknown, and then the lock keeps its id: what may still be in place, or
 * may still arrive, is found by that id and taken over or removed, by compare-and-swap.
 */
#ifndef ML_LOCK_H
#define ML_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backoff.h"
#include "record.h"
#include "status.h"
#include "store.h"

#define ML_TTL_MAX 2419200 /* seconds: 28 days, so that the expiry stays below memcached's 30 */

struct ml_client;
struct ml_kept;

/* The writes `first` to `last` of one id (sequence numbers, which may wrap). */
struct ml_writes {
  uint64_t first;
  uint64_t last;
};

struct ml_lock {
  struct ml_key key;
  const char *name;  /* within key.text, behind the prefix */
  const char *label; /* the client's */
  int64_t ttl;       /* nanoseconds that acquire and refresh ask for by default */

  uint64_t seq;              /* of the last write; each write has its own */
  uint64_t first;            /* seq of the first write with this id */
  uint64_t proven;           /* seq of the last write that was proven to be in place */
  uint64_t losses;           /* acquisitions that ended by loss */
  uint64_t tenure;           /* counts acquisitions, to tell a late answer's from this one */
  _Atomic int64_t deadline;  /* the lease ends here; 0: none. held() reads nothing else. */
  int64_t lasting;           /* how long the record is to last for others of our identity */
  struct ml_version sent;    /* when in doubt: the connection that carries a removal; or no epoch */
  struct ml_version version; /* of our record; of no use in another epoch */
  uint64_t token;            /* of the current or last acquisition; 0: never acquired */
  int64_t since;             /* unix seconds of the acquisition */

  struct ml_sight sight; /* what the last attempt saw, if it failed */
  struct ml_courtesy courtesy;

  /* A hundred thousand locks are not unheard of: what is small stands together, without gaps. */
  char id[ML_ID_MAX + 1];
  bool named;     /* the id is an identity, shared with whoever else has it */
  bool owned;     /* acquired, and neither given up nor said to be lost */
  bool inherited; /* it was the parent's when this process was forked */
  bool floating;  /* a renewal went out and was not proven: it may still land */
  bool giving_up; /* a release went out in time and its outcome is unknown */
  bool unsettled; /* a record with this id may be in place or under way: keep the id */
  bool in_doubt;  /* a write of this id may still arrive: the client takes note and resets this */
  bool counted;   /* the last answer showed the fence: it needs no seed */
  bool auto_refresh; /* this and what follows are client.c's */
  int64_t max_hold;  /* nanoseconds */
  struct ml_client *client;
  struct ml_lock *previous;
  struct ml_lock *next;
  struct ml_kept *kept; /* what the keeper has of it; NULL: it renews nothing */
};

/* Readies a lock whose key, name, label, ttl and (with `named`) id are set. */
void ml_lock_ready(struct ml_lock *lock);

/* Makes it as if it had never been acquired, keeping what was given. For a forked child's copies.
 */
void ml_lock_disown(struct ml_lock *lock);

/* Is the lease good now? Local, never blocks. `left` (may be NULL): nanoseconds until it ends. */
bool ml_lock_held(const struct ml_lock *lock, int64_t *left);

/* All that this object wrote with its present id. */
struct ml_writes ml_lock_writes(const struct ml_lock *lock);

/* One attempt. ML_OK; ML_HELD (also when this object holds it); ML_TIMEOUT, ML_UNREACHABLE,
 * ML_REFUSED, ML_UNSUPPORTED: not acquired, and `in_doubt` tells whether a record may be left, or
 * come later. */
enum ml_status ml_lock_acquire(struct ml_lock *lock, struct ml_store *store,
                               struct ml_error *error);

/* A full `ttl` (nanoseconds) from now. ML_OK; ML_LOST; ML_NOT_HELD; ML_TIMEOUT, ML_UNREACHABLE,
 * ML_REFUSED: unknown, the lease goes on until its deadline. */
enum ml_status ml_lock_refresh(struct ml_lock *lock, struct ml_store *store, int64_t ttl,
                               struct ml_error *error);

/* Gives the lock up; held() is false before anything is sent. ML_OK; ML_LOST; ML_NOT_HELD; else the
 * outcome is unknown and a second call can finish the job. */
enum ml_status ml_lock_release(struct ml_lock *lock, struct ml_store *store,
                               struct ml_error *error);

/* The first part of a release, without the network: held() is false from here on. */
void ml_lock_begin_release(struct ml_lock *lock);

/* Asks the server whether our record stands. ML_OK; ML_LOST; ML_NOT_HELD; else unknown. */
enum ml_status ml_lock_verify(struct ml_lock *lock, struct ml_store *store, struct ml_error *error);

/* Gives the lock up without waiting for anything: held() is false, and the record's removal is sent
 * where its connection is up. Until an answer covers it, the lock is in doubt. Never blocks, except
 * with `wait` for room in the socket. */
void ml_lock_drop(struct ml_lock *lock, struct ml_store *store, bool wait);

/*
 * Giving up many locks: ml_lock_drop for each, with `wait`; one ml_store_flush, whose answer covers
 * all that could leave; then ml_lock_finish for each, which removes singly what could not, in what
 * is left of the operation. True: it has been done, as far as its server tells; else the lock stays
 * in doubt.
 */
struct ml_finish {
  int64_t end;                 /* of the operation; 0 before the first */
  bool silent[ML_SERVERS_MAX]; /* these would only take the time of the others */
};
bool ml_lock_finish(struct ml_lock *lock, struct ml_store *store, struct ml_finish *finish);

/* Gives the lock up in this object: nothing is held, and nothing remembered but the token. `lost`:
 * it was not given up but lost. Sends nothing. */
void ml_lock_forget(struct ml_lock *lock, bool lost);

/* The pieces of a refresh, for whoever renews many locks in one flight (ml_store_batch). */
struct ml_renewal {
  char text[ML_RECORD_MAX];
  struct ml_write write; /* points into `text`: do not copy the struct */
  int64_t deadline;      /* of the lease, if this write is proven to be in place */
};

/* Prepares the next write. A deadline that is later than the new one is lowered now, because
 * whether or not we hear that this write landed, no more than it promises can be relied on. */
void ml_lock_prepare(struct ml_lock *lock, int64_t ttl, struct ml_renewal *renewal);

/* Does the view prove that the prepared write is in place? If so the lease is renewed. */
bool ml_lock_proven(struct ml_lock *lock, const struct ml_renewal *renewal,
                    const struct ml_view *view);

/* Is what a read showed our record? If so its version is known again. */
bool ml_lock_found(struct ml_lock *lock, const struct ml_view *view);

/* What follows is about a name, not about an object that locks it. */

struct ml_holder {
  bool free;
  bool is_record; /* `record` is filled; else it is some other program's value */
  struct ml_record record;
  const char *value; /* all of it; the store's, until its next call */
  size_t length;
};

/* Reads an item until it is known whether there is one: then ML_OK, and view->present is the truth.
 * Else why the server could not be asked. */
enum ml_status ml_item_read(struct ml_store *store, const struct ml_key *key, struct ml_view *view,
                            struct ml_error *error);

/* Who holds it? ML_OK, or why the server could not be asked. */
enum ml_status ml_lock_look(struct ml_store *store, const struct ml_key *key,
                            struct ml_holder *holder, struct ml_error *error);

/* Removes the item if its value is exactly this one. ML_OK; ML_NOT_HELD: it is free; ML_HELD:
 * another value stands there, untouched; else unknown. */
enum ml_status ml_lock_break(struct ml_store *store, const struct ml_key *key, const char *value,
                             size_t length, struct ml_error *error);

/* Removes the record if its id is this one and its seq among `writes`. The answer is about the
 * removal: STORED removed, ABSENT nothing there, EXISTS another's, NONE unknown. */
enum ml_answer ml_lock_sweep(struct ml_store *store, const struct ml_key *key, const char *id,
                             struct ml_writes writes, struct ml_error *error);

#endif
