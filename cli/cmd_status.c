/* memlock status: who holds these locks? */
#include <stdlib.h>

#include "commands.h"
#include "exits.h"
#include "say.h"
#include "sight.h"
#include "view.h"

static int show(const struct view *view) {
  struct sight *sights = calloc(view->count, sizeof *sights);
  if (sights == NULL) {
    say_error("not enough memory for %zu names", view->count);
    return EXIT_SYSTEM;
  }
  for (size_t i = 0; i < view->count; i++)
    (void)sight_look(view->client, view->names[i], &sights[i], NULL);
  int code = sight_print(sights, view->count, view->json);
  free(sights);
  return code;
}

int command_status(int argc, char **argv) {
  static const struct option long_options[] = {
      COMMON_OPTIONS, {"json", no_argument, NULL, OPTION_JSON}, {NULL, 0, NULL, 0}};
  struct view view;
  int code;
  if (!view_open(&view, "status", VIEW_NAMES, argc, argv, long_options, &code)) return code;
  code = show(&view);
  ml_client_abandon(view.client);
  return code;
}
