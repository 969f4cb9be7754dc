/* The keys that a server has, by `lru_crawler metadump`, which libmemcached does not speak: the one
 * place that talks to a server by itself, only to read. Blocks for `timeout` at most without a byte
 * from the server.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stddef.h>
#include <stdint.h>

#include "address.h"
#include "status.h"

struct dump_login {
  const char *username; /* NULL: none (memcached -Y) */
  const char *password;
};

/* Called for each key, which lasts for the call. False, for want of memory, ends the listing. */
typedef bool dump_key(void *context, const char *key, size_t length);

/* ML_OK; ML_UNREACHABLE; ML_TIMEOUT: no answer, or it was listing for somebody else all the time;
 * ML_REFUSED: it does not list; ML_CANCELLED: `take` ended it. */
enum ml_status dump_keys(const struct ml_address *address, const struct dump_login *login,
                         int64_t timeout, dump_key *take, void *context, struct ml_error *error);

#endif
