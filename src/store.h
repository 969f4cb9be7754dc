/*
 * The store: what we say to memcached, and what an answer proves. The only room that knows
 * libmemcached.
 *
 * A store owns one connection to each of its servers (a `link`), opened when first needed. It
 * belongs to one thread at a time and every function here may block for what is left of the
 * operation's time (ml_store_begin), except where it says otherwise. Nothing is retried here: a
 * flight is flown once and its answer reported; lock.c decides what follows.
 *
 * Epochs. libmemcached reconnects by itself, and CAS ids start over when memcached restarts, so an
 * id means something only on the connection that read it. Each connection has an epoch, a number
 * that is unique in the process; anything but the expected answer drops the connection and with it
 * the epoch. A `struct ml_version` is a CAS id together with its epoch. The store refuses to send
 * one of another epoch, and never sends the id 0, which libmemcached would leave out of the
 * command.
 *
 * Signals are blocked while a flight is under way: libmemcached 1.1 counts interrupted waits
 * wrongly and can then wait for ever. They are delivered when the flight ends.
 */
#ifndef ML_STORE_H
#define ML_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address.h"
#include "fitness.h"
#include "status.h"

#define ML_KEY_MAX 250 /* memcached's limit, in bytes */
#define ML_EXPIRED                                                                                 \
  2592001u               /* an absolute expiry in 1970: memcached drops the item in the same step */
#define ML_FLAGS 0x6d6cu /* client flags that mark our records; no reader depends on them */

struct ml_store;

/* A lock's two keys in one text: "#memlock:name" is the fence, and from its second byte on stands
 * the lock key. Both live on the server that the lock key hashes to. The text is somebody else's
 * memory. */
struct ml_key {
  const char *text;
  uint32_t length; /* of the lock key */
  uint32_t server;
};

/* Bytes of text for a lock key of `length` bytes; ML_KEY_TEXT for any. */
#define ML_KEY_TEXT_FOR(length) (1 + (length) + 1)
#define ML_KEY_TEXT ML_KEY_TEXT_FOR(ML_KEY_MAX)

struct ml_version {
  uint64_t cas;   /* never 0 in a version that may be used */
  uint64_t epoch; /* 0 in no version */
};

/* What a write puts in place. */
struct ml_write {
  const char *value;
  size_t length;
  uint32_t expiry; /* seconds, or ML_EXPIRED */
  uint32_t flags;
};

/* What a flight showed. The value belongs to the store and lasts until its next call. */
struct ml_view {
  bool sent;    /* the write left us: it may take effect even if no answer came */
  bool beaten;  /* it waited for its reply, and the server said that it did not do it */
  bool unsaid;  /* the answer was whole, but lacks what was sent; replies would say why */
  bool present; /* the lock key has an item; absent is a hint, not a proof (see ml_store_write) */
  const char *value;
  size_t length;
  uint32_t flags;
  struct ml_version version; /* where absent: cas 0 and the epoch of the look */
  uint64_t fence;     /* the counter; 0 when it was not asked for, is not there, or is bad: */
  uint64_t fence_cas; /* its CAS id; 0 as above */
  bool fence_is_bad;  /* something that does not count stands in the fence's place */
};

/* The server's own word on a write that waited for its reply. */
enum ml_answer {
  ML_ANSWER_NONE,    /* no valid answer: the error says why, the outcome is unknown */
  ML_ANSWER_REFUSED, /* the server's own error line: nothing was written, and the error says why */
  ML_ANSWER_STORED,  /* the write is in place */
  ML_ANSWER_EXISTS,  /* there is an item, but not that version (for an add: there is an item) */
  ML_ANSWER_ABSENT,  /* there is no item: the proof of absence */
};

struct ml_store_options {
  const struct ml_servers *servers;
  int64_t timeout;      /* nanoseconds for one operation */
  bool proxy;           /* every command waits for its reply, no version lasts across operations */
  const char *username; /* NULL without authentication; both are copied */
  const char *password;
};

/* Opens a store; no network. NULL with an error when memory or libmemcached fails. */
struct ml_store *ml_store_open(const struct ml_store_options *options, struct ml_error *error);

/* Says good-bye on each connection without waiting, and frees. NULL is allowed. */
void ml_store_close(struct ml_store *store);

/* Gives a store up in a forked child: neither its memory nor its sockets, which the parent goes on
 * using, are touched again. It stays reachable on purpose. */
void ml_store_abandon(struct ml_store *store);

/* Builds the keys of `prefix .. name` (both already checked) in `text`, which the key then points
 * to, and finds their server. */
void ml_store_place(const struct ml_store *store, struct ml_key *key, char *text,
                    const char *prefix, const char *name, size_t length);

const char *ml_store_server(const struct ml_store *store, const struct ml_key *key);
bool ml_store_is_proxy(const struct ml_store *store);
uint64_t ml_store_round_trips(const struct ml_store *store);

/* Starts an operation: all that follows shares one `timeout` from now, or the time until `deadline`
 * where that is sooner. */
void ml_store_begin(struct ml_store *store);
void ml_store_begin_until(struct ml_store *store, int64_t deadline);

/* When the operation ends, and whether there is time left for another flight. */
int64_t ml_store_deadline(const struct ml_store *store);
bool ml_store_has_time(const struct ml_store *store);

/* Closes the connection to the key's server, and with it the epoch: the next flight opens another.
 */
void ml_store_drop(struct ml_store *store, const struct ml_key *key);

/* May this version be sent now, that is, is the connection that read it still up? */
bool ml_store_current(const struct ml_store *store, const struct ml_key *key,
                      struct ml_version version);

/* Has this server's connection carried the last exchange, as far as is known? */
bool ml_store_is_up(const struct ml_store *store, size_t server);

/* Is that connection still up, whether or not it showed an item? */
bool ml_store_same_epoch(const struct ml_store *store, const struct ml_key *key,
                         struct ml_version version);

/*
 * One attempt to take a lock, in one flight: `add` of the record (`cas` at version *at, where at is
 * not NULL), add and incr of the fence, then the read of both. Without `seed` the fence is not
 * added, since the caller has seen it; where it has gone meanwhile, view->fence is 0. With
 * `replies` each command waits for its answer instead, which costs round trips and brings out the
 * true error. ML_OK: *view shows what stands there now, with the fence that our incr made or
 * passed. ML_UNSUPPORTED, ML_REFUSED, ML_TIMEOUT, ML_UNREACHABLE: view->sent tells whether the
 * write may still happen.
 */
enum ml_status ml_store_take(struct ml_store *store, const struct ml_key *key,
                             const struct ml_write *write, const struct ml_version *at, bool seed,
                             bool replies, struct ml_view *view, struct ml_error *error);

/* Renews in one flight: `cas` at `at` without reply, then the read of the lock key. Outcomes as
 * ml_store_take. */
enum ml_status ml_store_refresh(struct ml_store *store, const struct ml_key *key,
                                const struct ml_write *write, struct ml_version at,
                                struct ml_view *view, struct ml_error *error);

/* Reads the lock key and, with `fence`, the fence before it. */
enum ml_status ml_store_read(struct ml_store *store, const struct ml_key *key, bool fence,
                             struct ml_view *view, struct ml_error *error);

/* One write that waits for its reply: an add where `at` is NULL, else a cas. */
enum ml_answer ml_store_write(struct ml_store *store, const struct ml_key *key,
                              const struct ml_write *write, const struct ml_version *at,
                              struct ml_error *error);

/* Asks whether the lock key has an item, by a cas with an id that no item has (2^63-1: libmemcached
 * sends no more digits). EXISTS or ABSENT is the server's word; a read's silence could also be an
 * error that libmemcached hides. */
enum ml_answer ml_store_probe(struct ml_store *store, const struct ml_key *key,
                              struct ml_error *error);

/* Asks a server, by its place in the list, what it is and tries a compare-and-swap on a key of its
 * own. ML_OK; ML_TIMEOUT, ML_UNREACHABLE, ML_REFUSED: it could not be asked. */
enum ml_status ml_store_inspect(struct ml_store *store, size_t server, struct ml_facts *facts,
                                struct ml_error *error);

/* One key of a batch. */
struct ml_item {
  const struct ml_key *key;
  const struct ml_write *write; /* NULL: it is only read */
  struct ml_version at;         /* of the write */
};

/*
 * Renews, or only reads, many keys of one server in one flight: a cas without reply for each that
 * has a write, then one read of them all. `show` is called for each key whose item came back, in
 * order. ML_OK: the answer was complete, and a key that was not shown may be absent, which this
 * does not prove. Else nothing more than what was shown is known. At most ML_BATCH_MAX items.
 */
#define ML_BATCH_MAX 256
typedef void ml_show(void *context, size_t index, const struct ml_view *view);
enum ml_status ml_store_batch(struct ml_store *store, const struct ml_item *items, size_t count,
                              ml_show *show, void *context, struct ml_error *error);

/* Sends a cas without waiting for its reply, and only where its connection is up. With `wait` it
 * waits for room in the socket, for half of what is left of the operation at most; else for
 * nothing. False: it was not sent. */
bool ml_store_send(struct ml_store *store, const struct ml_key *key, const struct ml_write *write,
                   struct ml_version at, bool wait);

/* Has an answer come, on the connection of this version, to anything that left after all that
 * ml_store_send sent on it? Then all of that is done. */
bool ml_store_covered(const struct ml_store *store, const struct ml_key *key,
                      struct ml_version sent);

/* Waits until the servers have done what ml_store_send sent to them. ML_OK, or the last failure:
 * then some of it may not have been done. */
enum ml_status ml_store_flush(struct ml_store *store, struct ml_error *error);

#endif
