#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "exits.h"
#include "process.h"
#include "signals.h"

#define TOKEN "MEMLOCK_TOKEN="

/* It stands in the environment. Only a forked child, which is alone with its copy, fills it in:
 * setenv is neither for a process with threads nor for its child. */
static char token_entry[sizeof TOKEN + 20] = TOKEN;

bool child_prepare(const char *name) {
  /* NOLINTNEXTLINE(concurrency-mt-unsafe): there is no thread yet */
  return setenv("MEMLOCK_NAME", name, 1) == 0 && putenv(token_entry) == 0;
}

/* In the child: only calls that are safe after the fork of a process with threads. */
static void run(int socket, char **argv, const char *digits, pid_t parent) {
  char go;
  (void)setpgid(0, 0);
#ifdef __linux__
  /* The guard is there for the whole group; this is for the case that it is killed, too. */
  (void)prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0UL, 0UL, 0UL);
  if (getppid() != parent) _exit(EXIT_SYSTEM);
#else
  (void)parent;
#endif
  if (read(socket, &go, 1) != 1) _exit(EXIT_SYSTEM);
  memcpy(token_entry + sizeof TOKEN - 1, digits, strlen(digits) + 1);
  signals_restore();
  (void)execvp(argv[0], argv);
  int error = errno;
  ssize_t written = write(socket, &error, sizeof error);
  (void)written;
  _exit(EXIT_NOT_FOUND);
}

bool child_fork(struct child *child, char **argv, uint64_t token) {
  int ends[2];
  char digits[21];
  (void)snprintf(digits, sizeof digits, "%" PRIu64, token);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  for (int i = 0; i < 2; i++) (void)fcntl(ends[i], F_SETFD, FD_CLOEXEC);
  sigset_t before;
  pid_t parent = getpid();
  /* A handler of ours that ran in the child would speak to us. */
  ml_process_block_signals(&before);
  pid_t pid = fork();
  if (pid == 0) {
    (void)close(ends[0]); /* so that our end is its end */
    run(ends[1], argv, digits, parent);
  }
  int saved = errno;
  ml_process_restore_signals(&before);
  (void)close(ends[1]);
  if (pid < 0) {
    (void)close(ends[0]);
    errno = saved;
    return false;
  }
  (void)setpgid(pid, pid); /* it does so, too: whoever comes first */
  *child = (struct child){.pid = pid, .socket = ends[0]};
  return true;
}

int child_go(struct child *child) {
  int error = 0;
  ssize_t got = -1;
  char go = 1;
  if (write(child->socket, &go, 1) == 1) do
      got = read(child->socket, &error, sizeof error); /* ends at exec */
    while (got < 0 && errno == EINTR);
  (void)close(child->socket);
  if (got != (ssize_t)sizeof error) return 0;
  while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
  return error;
}
