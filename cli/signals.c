#include "signals.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <unistd.h>

#include "clock.h"
#include "pipe.h"

/* A machine's suspension stops poll's clock, but no lease: look at ours this often. */
#define NAP (ML_SECOND / 2)

enum treatment { CATCH, CATCH_ALWAYS, IGNORE };

static struct {
  int number;
  enum treatment treatment;
  struct sigaction before;
} table[] = {
    {.number = SIGINT},
    {.number = SIGTERM},
    {.number = SIGHUP},
    {.number = SIGQUIT},
    {.number = SIGUSR1},
    {.number = SIGUSR2},
    {.number = SIGWINCH},
    {.number = SIGTSTP},
    {.number = SIGTTIN},
    {.number = SIGCONT, .treatment = CATCH_ALWAYS},
    {.number = SIGCHLD, .treatment = CATCH_ALWAYS},
    {.number = SIGTTOU, .treatment = IGNORE}, /* giving the terminal back is done from behind */
    {.number = SIGPIPE, .treatment = IGNORE}, /* a message that nobody reads ends nothing */
};

#define COUNT (sizeof table / sizeof table[0])

static int ends[2] = {-1, -1};
static sigset_t mask_before;
static volatile sig_atomic_t continued;

static void on_signal(int number) {
  int saved = errno;
  unsigned char byte = (unsigned char)number;
  if (number == SIGCONT) continued = 1;
  ssize_t written = write(ends[1], &byte, 1); /* a full pipe has enough to tell */
  (void)written;
  errno = saved;
}

static void set(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_flags = SA_RESTART};
  action.sa_handler = handler;
  (void)sigemptyset(&action.sa_mask);
  (void)sigaction(number, &action, NULL);
}

bool signals_open(void) {
  if (!pipe_open(ends)) return false;
  for (size_t i = 0; i < COUNT; i++) {
    (void)sigaction(table[i].number, NULL, &table[i].before);
    if (table[i].treatment == CATCH && table[i].before.sa_handler == SIG_IGN) continue;
    set(table[i].number, table[i].treatment == IGNORE ? SIG_IGN : on_signal);
  }
  sigset_t ours;
  (void)sigemptyset(&ours);
  for (size_t i = 0; i < COUNT; i++) (void)sigaddset(&ours, table[i].number);
  (void)pthread_sigmask(SIG_UNBLOCK, &ours, &mask_before);
  return true;
}

void signals_await(int other, int64_t until) {
  struct pollfd set[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = other, .events = POLLIN}};
  int64_t span = until - ml_clock_now();
  if (span > NAP) span = NAP;
  if (span < 0) span = 0;
  (void)poll(set, 2, (int)((span + ML_MILLISECOND - 1) / ML_MILLISECOND));
}

int signals_next(void) {
  unsigned char byte;
  return read(ends[0], &byte, 1) == 1 ? byte : 0;
}

bool signals_is_end(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT ||
         number == SIGUSR1 || number == SIGUSR2;
}

static bool is_caught(int number) {
  for (size_t i = 0; i < COUNT; i++)
    if (table[i].number == number)
      return table[i].treatment == CATCH && table[i].before.sa_handler != SIG_IGN;
  return false;
}

bool signals_stop(int number, bool group) {
  continued = 0;
  set(number, SIG_DFL);
  (void)kill(group ? 0 : getpid(), number); /* here we stand until we are continued */
  set(number, is_caught(number) ? on_signal : SIG_IGN);
  return continued != 0;
}

void signals_restore(void) {
  for (size_t i = 0; i < COUNT; i++) (void)sigaction(table[i].number, &table[i].before, NULL);
  (void)pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
}

void signals_die(int number) {
  sigset_t one;
  (void)sigemptyset(&one);
  (void)sigaddset(&one, number);
  set(number, SIG_DFL);
  (void)pthread_sigmask(SIG_UNBLOCK, &one, NULL);
  (void)kill(getpid(), number);
}

void signals_share(int number) {
  set(number, SIG_IGN);
  (void)kill(0, number);
}
