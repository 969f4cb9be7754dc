/* The subcommands. Each gets the arguments behind its name, which stands in argv[0], and returns an
 * exit code. */
#ifndef COMMANDS_H
#define COMMANDS_H

int command_run(int argc, char **argv);
int command_status(int argc, char **argv);
int command_list(int argc, char **argv);
int command_watch(int argc, char **argv);
int command_break(int argc, char **argv);
int command_check(int argc, char **argv);

#endif
