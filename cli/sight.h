/* What stands at a name, ready to be shown: by status, list, watch and break. */
#ifndef SIGHT_H
#define SIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client.h"
#include "text.h"

#define VALUE_SHOWN 48 /* bytes of a value that is no record of ours */

enum sight_state {
  SIGHT_FREE,
  SIGHT_HELD,
  SIGHT_FOREIGN, /* some other program's value: held, by whom is unknown */
  SIGHT_UNKNOWN, /* the server could not be asked: `error` says why */
};

/* All texts are escaped. */
struct sight {
  enum sight_state state;
  char name[TEXT_ROOM(ML_KEY_MAX)];
  char label[TEXT_ROOM(ML_LABEL_MAX)];
  char id[TEXT_ROOM(ML_ID_MAX)];
  int64_t since;
  int64_t ttl_ms;
  char value[TEXT_ROOM(VALUE_SHOWN)]; /* its beginning, where it is foreign */
  size_t value_length;
  struct ml_error error;
};

/* Looks. ML_OK, or why the server could not be asked. Where `holder` is not NULL, it gets what the
 * core saw, whose value lasts until the client's next operation. */
enum ml_status sight_look(struct ml_client *client, const char *name, struct sight *sight,
                          struct ml_holder *holder);

/* Is it the same holder, in the same acquisition? Renewals change nothing here. */
bool sight_is_same(const struct sight *a, const struct sight *b);

/* Prints them as a table or as one JSON list, and says of which it is not known who holds them.
 * Returns the exit code. */
int sight_print(const struct sight *sights, size_t count, bool json);

/* Prints one in a line: a sentence, or a JSON object. */
void sight_print_line(const struct sight *sight);
void sight_print_object(const struct sight *sight);

#endif
