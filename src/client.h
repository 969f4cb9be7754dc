/*
 * The client: what a program opens. It has the options, the store, the list of its locks, the
 * records that are in doubt, and the counters. For Lua and for the command alike.
 *
 * Ownership. ml_client_open gives one reference to its caller; each lock holds another. The memory
 * goes with the last reference, so that it does not matter in which order a collector finalises
 * clients and locks. A lock's memory is its creator's: between ml_client_add and ml_client_remove
 * it must not move.
 *
 * Threads. A client and its locks belong to one thread at a time. A lock
 * with `auto_refresh` is renewed by a thread of the client's own (keeper.h), which starts with the
 * first one that is acquired.
 *
 * Blocking. Each operation blocks for one `timeout` at most. ml_client_close gives up all locks
 * within one `timeout` in all, and so does ml_client_abandon where there is a keeper; else it and
 * ml_client_remove never block.
 *
 * Forks. In a child, a client works on new connections, and its copies of locks are not held:
 * nothing of what the parent has is touched.
 *
 * Doubt. After a timeout a write may still take effect on the server. The client remembers the id
 * of such a write until the server has been answering again for as long as the record could live,
 * looks for it with its next operations on that server, and removes it when it meets it.
 */
#ifndef ML_CLIENT_H
#define ML_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address.h"
#include "fitness.h"
#include "keeper.h"
#include "lock.h"
#include "status.h"

#define ML_DEFAULT_PREFIX "memlock:"
#define ML_DEFAULT_TTL (16 * ML_SECOND)
#define ML_DEFAULT_TIMEOUT ML_SECOND

struct ml_client;

struct ml_client_options {
  struct ml_servers servers;
  const char *prefix;   /* NULL: ML_DEFAULT_PREFIX; this and all other strings are copied */
  const char *label;    /* NULL: "host:pid" */
  const char *identity; /* NULL: each acquisition draws an id */
  const char *username; /* NULL: no authentication */
  const char *password;
  int64_t ttl; /* nanoseconds, as all times here */
  int64_t timeout;
  int64_t retry_min; /* bounds of the pauses between attempts */
  int64_t retry_max;
  bool proxy;
};

struct ml_stats {
  uint64_t attempts; /* tries to acquire */
  uint64_t acquired;
  uint64_t contended; /* attempts that found somebody else */
  uint64_t refreshed;
  uint64_t lost;
  uint64_t released;
  uint64_t errors; /* operations that ended in timeout, unreachable, refused or unsupported */
  uint64_t round_trips;
  int64_t waited; /* nanoseconds in pauses between attempts */
  struct ml_keeper_stats keeper;
};

/* Defaults for everything but the servers, of which there are none. */
void ml_client_defaults(struct ml_client_options *options);

/* Each says in *error what is wrong (ML_INVALID) with a part that a user gave. */
enum ml_status ml_client_check_prefix(const char *prefix, size_t length, struct ml_error *error);
enum ml_status ml_client_check_name(const char *prefix, const char *name, size_t length,
                                    struct ml_error *error);
enum ml_status ml_client_check_ttl(double seconds, int64_t *ttl, struct ml_error *error);

/* Opens a client; no network. NULL with an error. The options' parts have been checked. */
struct ml_client *ml_client_open(const struct ml_client_options *options, struct ml_error *error);

const char *ml_client_prefix(const struct ml_client *client);
const struct ml_servers *ml_client_servers(const struct ml_client *client);
bool ml_client_closed(const struct ml_client *client);
size_t ml_client_held_count(const struct ml_client *client);

/* Gives up every lock that is held and closes the connections; a second call does nothing. Returns
 * false when the outcome of some release is unknown: those locks end by themselves. */
bool ml_client_close(struct ml_client *client);

/* The same without waiting for anything, and gives back the opener's reference. For finalizers. */
void ml_client_abandon(struct ml_client *client);

/* Makes *lock a lock of this client on a name that was checked; no network. `text` is memory for
 * its keys, ml_client_key_text() bytes that live as long as the lock. `ttl` 0: the client's;
 * `identity` NULL: the client's. ML_OK; else *lock is untouched: ML_CLOSED, or no memory. */
size_t ml_client_key_text(const struct ml_client *client, size_t length);
enum ml_status ml_client_add(struct ml_client *client, struct ml_lock *lock, char *text,
                             const char *name, size_t length, int64_t ttl, const char *identity,
                             struct ml_error *error);

/* Has the lock renewed in the background, from its next acquisition on, for `max_hold` nanoseconds
 * of each (ML_FOREVER: as long as it is held). */
void ml_client_auto_refresh(struct ml_lock *lock, int64_t max_hold);

/* A descriptor that becomes readable when a lock is lost in the background; the client's, to be
 * watched and not to be read. -1 with an error when there is none to be had. */
int ml_client_fd(struct ml_client *client, struct ml_error *error);

/* The next lock that was lost in the background and not yet told here, with a message; NULL: none,
 * and the descriptor is not readable any more. */
const struct ml_lock *ml_client_next_lost(struct ml_client *client, char *message, size_t size);

/* Ends a lock: gives it up if held, without waiting for anything, and lets go of its client. */
void ml_client_remove(struct ml_lock *lock);

/* The operations of lock.h, with all that a client does around them. Besides those outcomes:
 * ML_CLOSED. `ttl` 0 is the lock's own. */
enum ml_status ml_client_acquire(struct ml_lock *lock, struct ml_error *error);

/* A wait for a lock, one step at a time, so that the host sleeps as it likes. Start with `span` set
 * and the rest 0. While *pause is not 0, the caller is to sleep that long and to call again. Else
 * it is over: the outcome of the last attempt, made at once, after a pause, or at the deadline. */
struct ml_wait {
  int64_t span; /* nanoseconds; 0: one attempt; ML_FOREVER */
  int64_t deadline;
  struct ml_backoff backoff;
};
enum ml_status ml_client_try(struct ml_lock *lock, struct ml_wait *wait, int64_t *pause,
                             struct ml_error *error);

enum ml_status ml_client_refresh(struct ml_lock *lock, int64_t ttl, struct ml_error *error);
enum ml_status ml_client_release(struct ml_lock *lock, struct ml_error *error);
enum ml_status ml_client_verify(struct ml_lock *lock, struct ml_error *error);
bool ml_client_held(const struct ml_lock *lock, int64_t *left);

/* Who holds `name` (checked)? holder->value lasts until the client's next operation. *mine: it is a
 * lock of this client, or of its identity. */
enum ml_status ml_client_holder(struct ml_client *client, const char *name, size_t length,
                                struct ml_holder *holder, bool *mine, struct ml_error *error);

/* Removes `name`'s record if it is exactly this value. */
enum ml_status ml_client_break(struct ml_client *client, const char *name, size_t length,
                               const char *value, size_t value_length, struct ml_error *error);

/* Asks a server, by its place in ml_client_servers(), what it is. ML_OK, or why it could not be
 * asked. */
enum ml_status ml_client_inspect(struct ml_client *client, size_t server, struct ml_facts *facts,
                                 struct ml_error *error);

/* Any key, for read-modify-write: what stood there, at which version. */
struct ml_value {
  char key[ML_KEY_MAX + 1];
  size_t key_length;
  struct ml_version version;
  bool present;
  const char *value; /* lasts until the client's next operation */
  size_t length;
  uint32_t flags;
};

/* ML_INVALID when the key is none that memcached takes. */
enum ml_status ml_client_check_key(const char *key, size_t length, struct ml_error *error);

/* Reads a key (checked). ML_OK, and value->present is the truth; else why it could not be asked. */
enum ml_status ml_client_get(struct ml_client *client, const char *key, size_t length,
                             struct ml_value *value, struct ml_error *error);

/* Replaces what ml_client_get showed, or adds where nothing was; it sends one write at most. ML_OK;
 * ML_CONFLICT: it is not what it was, nothing was written; ML_REFUSED: nothing was written;
 * ML_TIMEOUT: the reply was lost, so it may have been written. `expiry` in seconds, 0 for ever. */
enum ml_status ml_client_put(struct ml_client *client, const struct ml_value *was,
                             const char *value, size_t length, uint32_t expiry,
                             struct ml_error *error);

/* Gives the lock up without waiting for anything if this is still the acquisition of `tenure`. */
void ml_client_drop(struct ml_lock *lock, uint64_t tenure);

void ml_client_stats(const struct ml_client *client, struct ml_stats *stats);

#endif
