/* The command as a process: in a process group of its own, with our descriptors 0 to 2, the
 * environment that names its lock, and nothing else of ours.
 */
#ifndef CHILD_H
#define CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct child {
  pid_t pid;  /* also of its process group */
  int socket; /* to it, until it is let go */
};

/* Puts MEMLOCK_NAME, and a place for MEMLOCK_TOKEN, into our environment. Before there is a thread.
 * False when there is no memory. */
bool child_prepare(const char *name);

/* Forks. The new process waits until child_go; if we die instead, so does it. False with errno. */
bool child_fork(struct child *child, char **argv, uint64_t token);

/* Has it run the command. 0, or the errno of exec: then it has ended, and been waited for. */
int child_go(struct child *child);

#endif
