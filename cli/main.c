/* memlock: locks on memcached, for the shell. Chooses the subcommand. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "exits.h"
#include "help.h"
#include "options.h"
#include "say.h"
#include "version.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} commands[] = {
    {"run", command_run},     {"status", command_status}, {"list", command_list},
    {"watch", command_watch}, {"break", command_break},   {"check", command_check},
};

static int print_help(const char *command) {
  if (help_print(stdout, command)) return EXIT_FINE;
  return options_wrong(NULL, "there is no command '%s'", command);
}

/* What was printed and could not be written is a failure. */
static int flush(int code) {
  bool failed = fflush(stdout) != 0 || ferror(stdout);
  if (!failed) return code;
  say_error("standard output cannot be written");
  return code == EXIT_FINE ? EXIT_SYSTEM : code;
}

static int choose(int argc, char **argv) {
  if (argc < 2) {
    (void)help_print(stderr, NULL);
    return EXIT_USAGE;
  }
  const char *name = argv[1];
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
    (void)printf("memlock %s\n", ML_VERSION);
    return EXIT_FINE;
  }
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return print_help(NULL);
  if (strcmp(name, "help") == 0) return print_help(argv[2]);
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
  if (name[0] == '-')
    return options_wrong(NULL,
                         "'%s' is no option here: options come behind the command, as in "
                         "'memlock run --ttl 60 NAME -- COMMAND'",
                         name);
  return options_wrong(NULL, "there is no command '%s'", name);
}

/* Where we were started with a closed standard descriptor, a pipe or socket of ours must not take
 * its number. What is there instead is open the wrong way round, so that its use fails as it would
 * have. The command finds it closed, as we did. */
static void occupy_standard_descriptors(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    (void)open("/dev/null", O_CLOEXEC | (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

int main(int argc, char **argv) {
  occupy_standard_descriptors();
  return flush(choose(argc, argv));
}
