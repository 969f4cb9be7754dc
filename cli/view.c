#include "view.h"

#include <stdio.h>

#include "clock.h"
#include "exits.h"
#include "help.h"

/* Letters are known to all; a subcommand that has no such option refuses it. */
#define LETTERS COMMON_LETTERS "i:y"

static bool has(const struct option *long_options, int code) {
  while (long_options->name != NULL && long_options->val != code) long_options++;
  return long_options->name != NULL;
}

static bool take(struct view *view, int code, const char *value) {
  switch (code) {
  case OPTION_JSON:
    view->json = true;
    return true;
  case OPTION_ID:
    view->id = value;
    return true;
  case 'y':
    view->yes = true;
    return true;
  case 'i':
    return options_span(view->command, "interval", value, SPAN_POSITIVE, &view->interval);
  default:
    return options_take(&view->options, view->command, code, value);
  }
}

static bool check_names(const struct view *view, enum view_names names) {
  if (names == VIEW_NO_NAME && view->count > 0) {
    (void)options_wrong(view->command, "'%s' is one argument too many", view->names[0]);
    return false;
  }
  if (names != VIEW_NO_NAME && view->count == 0) {
    (void)options_wrong(view->command, "the name of a lock is missing");
    return false;
  }
  if (names == VIEW_ONE_NAME && view->count > 1) {
    (void)options_wrong(view->command, "'%s' is one name too many", view->names[1]);
    return false;
  }
  for (size_t i = 0; i < view->count; i++)
    if (!options_name(&view->options, view->command, view->names[i])) return false;
  return true;
}

bool view_open(struct view *view, const char *command, enum view_names names, int argc, char **argv,
               const struct option *long_options, int *code) {
  static char title[32]; /* as argv does, it outlives the call */
  int option;
  *view = (struct view){.command = command, .interval = ML_SECOND / 2};
  options_init(&view->options);
  (void)snprintf(title, sizeof title, "memlock %s", command);
  argv[0] = title; /* for getopt's messages */
  *code = EXIT_USAGE;
  while ((option = options_next(argc, argv, LETTERS, long_options)) != -1) {
    if (option == 'h') {
      *code = help_print(stdout, command) ? EXIT_FINE : EXIT_SYSTEM;
      return false;
    }
    if (option != '?' && !has(long_options, option)) {
      (void)options_wrong(command, "there is no option -%c here", option);
      return false;
    }
    if (!take(view, option, optarg)) return false;
  }
  view->names = argv + optind;
  view->count = (size_t)(argc - optind);
  if (!options_finish(&view->options, command) || !check_names(view, names)) return false;
  *code = EXIT_SYSTEM;
  view->client = options_open(&view->options);
  return view->client != NULL;
}
