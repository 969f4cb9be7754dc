/* What the subcommands that look at locks (all but run) have in common: their arguments, and a
 * client. */
#ifndef VIEW_H
#define VIEW_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "options.h"

/* Each subcommand's array of long options has those of these that it knows. */
enum { OPTION_JSON = OPTION_OF_COMMAND, OPTION_ID };

struct view {
  struct options options;
  const char *command;
  bool json;
  bool yes;
  const char *id;
  int64_t interval;
  char **names; /* the arguments that are no options: checked, at least one, or none */
  size_t count;
  struct ml_client *client;
};

/* How many names a subcommand takes. */
enum view_names { VIEW_NO_NAME, VIEW_ONE_NAME, VIEW_NAMES };

/* Reads the arguments of a subcommand and opens the client, to be let go by ml_client_abandon.
 * False: *code is the exit code, and what there was to say has been said. */
bool view_open(struct view *view, const char *command, enum view_names names, int argc, char **argv,
               const struct option *long_options, int *code);

#endif
