/* The terminal, and which process group may use it. The command is in a group of its own, so the
 * terminal is lent to it: at once where our standard input and output are the terminal, else (some
 * other program of a pipeline may want it, too) when the command is stopped for wanting it. Only
 * what is ours, in the foreground, is lent.
 */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>

struct terminal {
  int fd;    /* -1: there is none, and no job control */
  bool lent; /* to the command, the last time that it was asked for */
};

void terminal_open(struct terminal *terminal);

/* Is it only we who talk with the terminal? */
bool terminal_is_all_ours(const struct terminal *terminal);

/* Lends it to a process group. False: it is not ours to lend. */
bool terminal_lend(struct terminal *terminal, pid_t group);

/* Takes it back, unless somebody else has it by now. SIGTTOU must be ignored. */
void terminal_take_back(const struct terminal *terminal, pid_t group);

#endif
