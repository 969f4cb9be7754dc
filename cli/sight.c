#include "sight.h"

#include <inttypes.h>
#include <string.h>

#include "exits.h"
#include "say.h"

/* A cell of the table: what it says of a lock. */
#define CELL 1024

static void copy_record(struct sight *sight, const struct ml_record *record) {
  (void)text_escape(sight->label, sizeof sight->label, record->label, strlen(record->label));
  (void)text_escape(sight->id, sizeof sight->id, record->id, strlen(record->id));
  sight->since = record->since;
  sight->ttl_ms = record->ttl_ms;
}

enum ml_status sight_look(struct ml_client *client, const char *name, struct sight *sight,
                          struct ml_holder *holder) {
  struct ml_holder seen;
  bool mine;
  *sight = (struct sight){.state = SIGHT_FREE};
  (void)text_escape(sight->name, sizeof sight->name, name, strlen(name));
  enum ml_status status = ml_client_holder(client, name, strlen(name), &seen, &mine, &sight->error);
  if (holder != NULL) *holder = seen;
  if (status != ML_OK) {
    sight->state = SIGHT_UNKNOWN;
  } else if (!seen.free && seen.is_record) {
    sight->state = SIGHT_HELD;
    copy_record(sight, &seen.record);
  } else if (!seen.free) {
    size_t length = seen.length < VALUE_SHOWN ? seen.length : VALUE_SHOWN;
    sight->state = SIGHT_FOREIGN;
    (void)text_escape(sight->value, sizeof sight->value, seen.value, length);
    sight->value_length = seen.length;
  }
  return status;
}

bool sight_is_same(const struct sight *a, const struct sight *b) {
  return a->state == b->state && strcmp(a->id, b->id) == 0 && strcmp(a->label, b->label) == 0 &&
         a->since == b->since && a->value_length == b->value_length &&
         strcmp(a->value, b->value) == 0;
}

/* Tables. */

enum column { NAME, HOLDER, SINCE, TTL, ID, COLUMNS };

static void write_foreign(char *out, size_t size, const struct sight *sight) {
  (void)snprintf(out, size, "unknown: \"%s\"%s (%zu bytes)", sight->value,
                 sight->value_length > VALUE_SHOWN ? "..." : "", sight->value_length);
}

static void write_cell(char out[CELL], const struct sight *sight, enum column column) {
  char time[TEXT_TIME];
  char seconds[TEXT_SECONDS];
  bool held = sight->state == SIGHT_HELD;
  (void)snprintf(out, CELL, "-");
  switch (column) {
  case NAME:
    (void)snprintf(out, CELL, "%s", sight->name);
    break;
  case HOLDER:
    if (held)
      (void)snprintf(out, CELL, "%s", sight->label);
    else if (sight->state == SIGHT_FOREIGN)
      write_foreign(out, CELL, sight);
    else
      (void)snprintf(out, CELL, "%s", sight->state == SIGHT_FREE ? "(free)" : "(not known)");
    break;
  case SINCE:
    if (!held) break;
    text_time(time, sight->since);
    (void)snprintf(out, CELL, "%s", time);
    break;
  case TTL:
    if (!held) break;
    text_seconds(seconds, sight->ttl_ms);
    (void)snprintf(out, CELL, "%s", seconds);
    break;
  case ID:
    if (held) (void)snprintf(out, CELL, "%s", sight->id);
    break;
  case COLUMNS:
    break;
  }
}

static void print_cell(const char *text, size_t width, bool last) {
  (void)fputs(text, stdout);
  if (last) {
    (void)putchar('\n');
    return;
  }
  for (size_t i = text_width(text); i < width + 2; i++) (void)putchar(' ');
}

static void print_table(const struct sight *sights, size_t count) {
  static const char *const titles[COLUMNS] = {"NAME", "HOLDER", "SINCE", "TTL", "ID"};
  size_t widths[COLUMNS];
  char cell[CELL];
  for (int column = 0; column < COLUMNS; column++) {
    widths[column] = strlen(titles[column]);
    for (size_t i = 0; i < count; i++) {
      write_cell(cell, &sights[i], (enum column)column);
      size_t width = text_width(cell);
      if (width > widths[column]) widths[column] = width;
    }
  }
  for (int column = 0; column < COLUMNS; column++)
    print_cell(titles[column], widths[column], column == COLUMNS - 1);
  for (size_t i = 0; i < count; i++) {
    for (int column = 0; column < COLUMNS; column++) {
      write_cell(cell, &sights[i], (enum column)column);
      print_cell(cell, widths[column], column == COLUMNS - 1);
    }
  }
}

/* Single ones. */

void sight_print_line(const struct sight *sight) {
  char time[TEXT_TIME];
  char seconds[TEXT_SECONDS];
  char foreign[CELL];
  switch (sight->state) {
  case SIGHT_FREE:
    (void)printf("%s is free\n", sight->name);
    break;
  case SIGHT_HELD:
    text_time(time, sight->since);
    text_seconds(seconds, sight->ttl_ms);
    (void)printf("%s is held by %s since %s, ttl %s, id %s\n", sight->name, sight->label, time,
                 seconds, sight->id);
    break;
  case SIGHT_FOREIGN:
    write_foreign(foreign, sizeof foreign, sight);
    (void)printf("%s is held by %s\n", sight->name, foreign);
    break;
  case SIGHT_UNKNOWN:
    (void)printf("%s is not known: ", sight->name);
    (void)text_escape(foreign, sizeof foreign, sight->error.message, strlen(sight->error.message));
    (void)printf("%s\n", foreign);
    break;
  }
}

static void print_member(const char *key, const char *text) {
  (void)printf(",\"%s\":", key);
  text_json(stdout, text);
}

void sight_print_object(const struct sight *sight) {
  static const char *const states[] = {"free", "held", "foreign", "unknown"};
  char text[CELL];
  (void)printf("{\"name\":");
  text_json(stdout, sight->name);
  print_member("state", states[sight->state]);
  switch (sight->state) {
  case SIGHT_FREE:
    break;
  case SIGHT_HELD:
    text_seconds(text, sight->ttl_ms);
    print_member("label", sight->label);
    (void)printf(",\"since\":%" PRId64 ",\"ttl\":%s", sight->since, text);
    print_member("id", sight->id);
    break;
  case SIGHT_FOREIGN:
    print_member("value", sight->value);
    (void)printf(",\"length\":%zu", sight->value_length);
    break;
  case SIGHT_UNKNOWN:
    (void)text_escape(text, sizeof text, sight->error.message, strlen(sight->error.message));
    print_member("code", ml_status_code(sight->error.status));
    print_member("message", text);
    break;
  }
  (void)putchar('}');
}

static void print_list(const struct sight *sights, size_t count) {
  (void)putchar('[');
  for (size_t i = 0; i < count; i++) {
    if (i > 0) (void)fputs(",\n ", stdout);
    sight_print_object(&sights[i]);
  }
  (void)puts("]");
}

int sight_print(const struct sight *sights, size_t count, bool json) {
  int code = EXIT_FINE;
  (json ? print_list : print_table)(sights, count);
  for (size_t i = 0; i < count; i++) {
    if (sights[i].state != SIGHT_UNKNOWN) continue;
    say_error("%s", sights[i].error.message);
    code = exit_code_of(sights[i].error.status);
  }
  return code;
}
