/* Options that several subcommands share, and how all of them are read: what is wrong is said, with
 * the option's name, and nothing has been done by then. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "client.h"

/* Options without a letter of their own, from above all letters on. */
enum long_option {
  OPTION_PREFIX = 256,
  OPTION_TIMEOUT,
  OPTION_PROXY,
  OPTION_USER,
  OPTION_PASSWORD_FILE,
  OPTION_OF_COMMAND, /* where a subcommand's own begin */
};

struct options {
  struct ml_client_options client; /* points to the program's arguments, and to `password` */
  const char *password_file;
  char password[ML_LABEL_MAX + 1];
  bool named_servers; /* by an option: then not by the environment */
};

/* For the array of a subcommand's long options. */
#define COMMON_OPTIONS                                                                             \
  {"servers", required_argument, NULL, 's'}, {"prefix", required_argument, NULL, OPTION_PREFIX},   \
      {"timeout", required_argument, NULL, OPTION_TIMEOUT},                                        \
      {"proxy", no_argument, NULL, OPTION_PROXY}, {"user", required_argument, NULL, OPTION_USER},  \
      {"password-file", required_argument, NULL, OPTION_PASSWORD_FILE}, {                          \
    "help", no_argument, NULL, 'h'                                                                 \
  }
#define COMMON_LETTERS "s:h"

void options_init(struct options *options);

/* Takes one of the common options, as getopt_long returned it. True: go on. False: it was wrong,
 * which has been said. `command` is the subcommand. */
bool options_take(struct options *options, const char *command, int code, const char *value);

/* getopt_long, which is not for threads: there are none yet. */
int options_next(int argc, char **argv, const char *letters, const struct option *long_options);

/* When all have been taken: completes them from the environment and from files. */
bool options_finish(struct options *options, const char *command);

/* Opens the client; NULL: it has been said why not. */
struct ml_client *options_open(const struct options *options);

/* A span in seconds, with an optional s, m, h or d behind it. */
enum span_kind {
  SPAN_POSITIVE, /* more than 0 */
  SPAN_ANY,      /* 0 too */
  SPAN_ENDLESS,  /* 0, and "inf" for ML_FOREVER */
};
bool options_span(const char *command, const char *option, const char *text, enum span_kind kind,
                  int64_t *span);

/* A lock name of this prefix; false: it has been said what is wrong with it. */
bool options_name(const struct options *options, const char *command, const char *name);

/* Says what is wrong, and where help is to be had; returns EXIT_USAGE. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int options_wrong(const char *command, const char *format, ...);

#endif
