#include "terminal.h"

#include <fcntl.h>
#include <unistd.h>

void terminal_open(struct terminal *terminal) {
  terminal->fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  terminal->lent = false;
}

bool terminal_is_all_ours(const struct terminal *terminal) {
  return terminal->fd >= 0 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

bool terminal_lend(struct terminal *terminal, pid_t group) {
  if (terminal->fd < 0 || tcgetpgrp(terminal->fd) != getpgrp()) return false;
  if (tcsetpgrp(terminal->fd, group) != 0) return false;
  terminal->lent = true;
  return true;
}

void terminal_take_back(const struct terminal *terminal, pid_t group) {
  if (terminal->fd >= 0 && tcgetpgrp(terminal->fd) == group)
    (void)tcsetpgrp(terminal->fd, getpgrp());
}
