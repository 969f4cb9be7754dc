/* memlock break: takes a lock away from the holder that was shown, and from nobody else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "exits.h"
#include "say.h"
#include "sight.h"
#include "view.h"

/* Tries in a row that a renewal may spoil. It comes a few times per ttl. */
#define TRIES 10

/* A look, with a copy of all that stands there. */
struct look {
  struct sight sight;
  char *value;
  size_t length;
};

/* 0, or an exit code: it has been said why. look->value is to be freed. */
static int look_at(const struct view *view, struct look *look) {
  struct ml_holder holder;
  look->value = NULL;
  enum ml_status status = sight_look(view->client, view->names[0], &look->sight, &holder);
  if (status != ML_OK) {
    say_error("%s", look->sight.error.message);
    return exit_code_of(status);
  }
  if (holder.free) return EXIT_FINE;
  look->length = holder.length;
  look->value = malloc(holder.length);
  if (look->value == NULL) {
    say_error("not enough memory for a value of %zu bytes", holder.length);
    return EXIT_SYSTEM;
  }
  memcpy(look->value, holder.value, holder.length);
  return EXIT_FINE;
}

static int say_result(const char *name, enum ml_status status, const struct ml_error *error) {
  if (status == ML_OK)
    say("lock \"%s\" is free now", name);
  else if (status == ML_NOT_HELD)
    say("lock \"%s\" has become free by itself", name);
  else
    say_error("%s", error->message);
  return exit_code_of(status);
}

/* Removes exactly this value. Where that fails because the holder that was shown has renewed its
 * lease meanwhile, what stands there now is as good; anything else is somebody else's. */
static int remove_shown(const struct view *view, struct look *shown) {
  const char *name = view->names[0];
  struct ml_error error;
  for (int i = 0; i < TRIES; i++) {
    enum ml_status status =
        ml_client_break(view->client, name, strlen(name), shown->value, shown->length, &error);
    if (status != ML_HELD || shown->sight.state != SIGHT_HELD)
      return say_result(name, status, &error);
    struct sight before = shown->sight;
    free(shown->value);
    int code = look_at(view, shown);
    if (code != EXIT_FINE) return code;
    if (shown->sight.state == SIGHT_FREE) return say_result(name, ML_NOT_HELD, &error);
    if (!sight_is_same(&before, &shown->sight)) break;
  }
  return say_result(name, ML_HELD, &error);
}

/* Asks at the terminal. Nobody agrees to what could not be shown. */
static bool is_agreed(void) {
  char answer[16];
  (void)fflush(stdout);
  if (ferror(stdout) || fputs("Remove it? [y/N] ", stderr) < 0) return false;
  if (fgets(answer, sizeof answer, stdin) == NULL) return false;
  return strcmp(answer, "y\n") == 0 || strcmp(answer, "yes\n") == 0;
}

static int break_shown(const struct view *view, struct look *look) {
  const struct sight *sight = &look->sight;
  sight_print_line(sight);
  (void)fflush(stdout);
  if (sight->state == SIGHT_FREE) return EXIT_FINE;
  if (view->id != NULL && (sight->state != SIGHT_HELD || strcmp(view->id, sight->id) != 0)) {
    say_error("the holder's id is not '%s': nothing was removed", view->id);
    return EXIT_BUSY;
  }
  if (view->id != NULL || view->yes) return remove_shown(view, look);
  if (!isatty(STDIN_FILENO))
    return options_wrong(view->command, "there is no terminal to ask at: say --yes, or --id");
  if (is_agreed()) return remove_shown(view, look);
  say("nothing was removed");
  return EXIT_NO;
}

int command_break(int argc, char **argv) {
  static const struct option long_options[] = {COMMON_OPTIONS,
                                               {"id", required_argument, NULL, OPTION_ID},
                                               {"yes", no_argument, NULL, 'y'},
                                               {NULL, 0, NULL, 0}};
  struct view view;
  int code;
  if (!view_open(&view, "break", VIEW_ONE_NAME, argc, argv, long_options, &code)) return code;
  struct look look;
  code = look_at(&view, &look);
  if (code == EXIT_FINE) code = break_shown(&view, &look);
  free(look.value);
  ml_client_abandon(view.client);
  return code;
}
