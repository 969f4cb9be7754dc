/*
 * Server addresses: `host`, `host:port`, `[v6]`, `[v6]:port`, `/path/of/a/unix/socket`.
 *
 * Everything is checked here, because libmemcached checks next to nothing: it turns port 99999 into
 * another one and "::1" into localhost. A list is kept sorted and without repeats, so that the
 * order in which servers are named never changes where a lock lives. No look-up of names happens
 * here; pure, any thread.
 */
#ifndef ML_ADDRESS_H
#define ML_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define ML_ADDRESS_MAX 253 /* longest host name (RFC 1035) or socket path, in bytes */
#define ML_SERVERS_MAX 64
#define ML_DEFAULT_SERVER "127.0.0.1:11211"
#define ML_DEFAULT_PORT 11211

struct ml_address {
  char host[ML_ADDRESS_MAX + 1]; /* name in lower case, numeric address, or path of a unix socket */
  uint16_t port;                 /* 0 for a unix socket */
  char text[ML_ADDRESS_MAX + 16]; /* as people write it: "host:port", "[v6]:port", "/path" */
};

struct ml_servers {
  size_t count;
  struct ml_address list[ML_SERVERS_MAX];
};

/* Reads one address. ML_OK, or ML_INVALID with a message that names the text and what is wrong. */
enum ml_status ml_address_parse(const char *text, size_t length, struct ml_address *address,
                                struct ml_error *error);

/* Adds the addresses of a comma-separated text to the list, in order, each once. ML_OK or
 * ML_INVALID; after an error the list is not to be used. Start with `count` = 0. */
enum ml_status ml_servers_add(struct ml_servers *servers, const char *text, size_t length,
                              struct ml_error *error);

#endif
