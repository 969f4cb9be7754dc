/* memlock watch: a line each time that the holder changes. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "clock.h"
#include "commands.h"
#include "exits.h"
#include "sight.h"
#include "view.h"

static void tell(const struct sight *sight, bool json) {
  int64_t now = ml_clock_unix_us() / 1000000;
  if (json) {
    (void)printf("{\"at\":%" PRId64 ",\"seen\":", now);
    sight_print_object(sight);
    (void)puts("}");
  } else {
    char time[TEXT_TIME];
    text_time(time, now);
    (void)printf("%s  ", time);
    sight_print_line(sight);
  }
}

/* Until a signal ends it, or nobody reads any more. */
static int watch(const struct view *view) {
  struct sight last;
  bool first = true;
  for (;;) {
    struct sight sight;
    (void)sight_look(view->client, view->names[0], &sight, NULL);
    if (first || !sight_is_same(&last, &sight)) {
      tell(&sight, view->json);
      if (fflush(stdout) != 0) return EXIT_SYSTEM;
    }
    first = false;
    last = sight;
    (void)ml_clock_sleep(view->interval);
  }
}

int command_watch(int argc, char **argv) {
  static const struct option long_options[] = {COMMON_OPTIONS,
                                               {"json", no_argument, NULL, OPTION_JSON},
                                               {"interval", required_argument, NULL, 'i'},
                                               {NULL, 0, NULL, 0}};
  struct view view;
  int code;
  if (!view_open(&view, "watch", VIEW_ONE_NAME, argc, argv, long_options, &code)) return code;
  code = watch(&view);
  ml_client_abandon(view.client);
  return code;
}
