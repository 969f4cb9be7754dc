/* memlock list: which locks are held now, as far as memcached lets one list them. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "dump.h"
#include "exits.h"
#include "say.h"
#include "sight.h"
#include "view.h"

/* The names that have been found, each a string of its own. */
struct names {
  const char *prefix;
  char **list;
  size_t count;
  size_t room;
};

static bool add_name(struct names *names, const char *name, size_t length) {
  if (names->count == names->room) {
    size_t room = names->room == 0 ? 64 : 2 * names->room;
    char **list = realloc(names->list, room * sizeof *list);
    if (list == NULL) return false;
    names->list = list;
    names->room = room;
  }
  char *copy = strndup(name, length);
  if (copy == NULL) return false;
  names->list[names->count++] = copy;
  return true;
}

/* Fences begin with '#', and other programs' keys with something else: unless the prefix is empty,
 * for then they may well be locks. */
static bool take_key(void *context, const char *key, size_t length) {
  struct names *names = context;
  size_t prefix = strlen(names->prefix);
  bool is_lock = length > prefix && memcmp(key, names->prefix, prefix) == 0 && key[0] != '#' &&
                 memchr(key, '\0', length) == NULL;
  return !is_lock || add_name(names, key + prefix, length - prefix);
}

static int compare(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Looks at each, and keeps what is held: what has run out may still be listed, and so may what
 * another server than the name's own has. */
static size_t look_at_all(const struct view *view, struct names *names, struct sight *sights) {
  size_t held = 0;
  if (names->count > 0) qsort(names->list, names->count, sizeof *names->list, compare);
  for (size_t i = 0; i < names->count; i++) {
    bool again = i > 0 && strcmp(names->list[i], names->list[i - 1]) == 0;
    if (again) continue;
    (void)sight_look(view->client, names->list[i], &sights[held], NULL);
    if (sights[held].state != SIGHT_FREE) held++;
  }
  return held;
}

static int show(const struct view *view, struct names *names) {
  struct sight *sights = calloc(names->count + 1, sizeof *sights);
  if (sights == NULL) {
    say_error("not enough memory for %zu locks", names->count);
    return EXIT_SYSTEM;
  }
  size_t held = look_at_all(view, names, sights);
  int code = sight_print(sights, held, view->json);
  free(sights);
  return code;
}

static int list(const struct view *view) {
  const struct ml_servers *servers = ml_client_servers(view->client);
  const struct ml_client_options *options = &view->options.client;
  const struct dump_login login = {options->username, options->password};
  struct names names = {.prefix = ml_client_prefix(view->client)};
  int code = EXIT_FINE;
  for (size_t i = 0; i < servers->count; i++) {
    struct ml_error error;
    enum ml_status status =
        dump_keys(&servers->list[i], &login, options->timeout, take_key, &names, &error);
    if (status == ML_OK) continue;
    say_error("%s", error.message);
    code = exit_code_of(status);
  }
  int shown = show(view, &names);
  for (size_t i = 0; i < names.count; i++) free(names.list[i]);
  free(names.list);
  return code != EXIT_FINE ? code : shown;
}

int command_list(int argc, char **argv) {
  static const struct option long_options[] = {
      COMMON_OPTIONS, {"json", no_argument, NULL, OPTION_JSON}, {NULL, 0, NULL, 0}};
  struct view view;
  int code;
  if (!view_open(&view, "list", VIEW_NO_NAME, argc, argv, long_options, &code)) return code;
  code = list(&view);
  ml_client_abandon(view.client);
  return code;
}
