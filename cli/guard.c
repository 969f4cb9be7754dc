#include "guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "clock.h"
#include "pipe.h"
#include "process.h"

/* As in signals.c: poll's clock stands still while the machine is suspended, the lease does not. */
#define NAP (ML_SECOND / 2)

/* Its leader, too, which may have joined another group. */
static void strike(pid_t group) {
  if (group <= 0) return;
  (void)kill(-group, SIGKILL);
  (void)kill(group, SIGKILL);
}

/* Reads all orders that have come; false at the end of the pipe. */
static bool read_orders(int fd, struct guard_order *order) {
  for (;;) {
    struct guard_order next;
    ssize_t got = read(fd, &next, sizeof next); /* written whole, so read whole */
    if (got == (ssize_t)sizeof next)
      *order = next;
    else if (got == 0)
      return false;
    else if (errno != EINTR)
      return true;
  }
}

/* Only calls that are safe in the child of a process with threads. */
static void watch(int fd) {
  struct guard_order order = {.group = 0, .until = ML_FOREVER};
  struct pollfd set = {.fd = fd, .events = POLLIN};
  for (;;) {
    int64_t left = order.until - ml_clock_now();
    if (left <= 0) {
      strike(order.group);
      left = NAP; /* and again, for what was forked meanwhile */
    }
    if (left > NAP) left = NAP;
    int wait = order.group == 0 ? -1 : (int)(left / ML_MILLISECOND) + 1;
    (void)poll(&set, 1, wait);
    if (!read_orders(fd, &order)) break;
  }
  strike(order.group);
}

bool guard_start(struct guard *guard) {
  int ends[2];
  if (!pipe_open(ends)) return false;
  pid_t pid = fork();
  if (pid == 0) {
    sigset_t before;
    ml_process_block_signals(&before);
    (void)setsid();
#ifdef __linux__
    (void)prctl(PR_SET_NAME, "memlock-guard");
#endif
    /* Whoever reads what the command writes waits for the command, not for us. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) (void)close(fd);
    (void)close(ends[1]);
    watch(ends[0]);
    _exit(0);
  }
  int saved = errno;
  (void)close(ends[0]);
  if (pid < 0) (void)close(ends[1]);
  errno = saved;
  *guard = (struct guard){.pid = pid, .fd = ends[1]};
  return pid > 0;
}

void guard_tell(const struct guard *guard, struct guard_order order) {
  ssize_t written = write(guard->fd, &order, sizeof order);
  (void)written; /* a pipe that is full has an earlier deadline in it, which is safe */
}

bool guard_replace(struct guard *guard) {
  (void)close(guard->fd);
  if (guard_start(guard)) return true;
  *guard = (struct guard){.pid = -1, .fd = -1};
  return false;
}

void guard_end(struct guard *guard) {
  if (guard->pid < 0) return;
  (void)close(guard->fd);
  (void)kill(guard->pid, SIGKILL); /* it may be stopped */
  while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) continue;
}
