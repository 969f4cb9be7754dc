#include "process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef MADV_WIPEONFORK

#define PAGE 4096

/* A page of its own: the kernel empties it in a child, so 0 says "nobody has been here yet". */
static _Alignas(PAGE) struct {
  _Atomic uint64_t generation;
  char rest[PAGE - sizeof(_Atomic uint64_t)];
} wiped;

/* Not wiped: a child continues to count from its parent's value. */
static _Atomic uint64_t last;

/* 0: not tried yet, 1: the page is wiped at fork, -1: it cannot be. */
static _Atomic int wiping;

static bool wipes_on_fork(void) {
  int state = atomic_load(&wiping);
  if (state == 0) {
    bool works = sysconf(_SC_PAGESIZE) == PAGE && madvise(&wiped, PAGE, MADV_WIPEONFORK) == 0;
    state = works ? 1 : -1;
    atomic_store(&wiping, state);
  }
  return state > 0;
}

uint64_t ml_process_generation(void) {
  uint64_t generation = atomic_load(&wiped.generation);
  if (generation != 0) return generation;
  if (!wipes_on_fork()) return (uint64_t)getpid();
  /* Two threads may come here at once: the first value stored is the one that both return. */
  uint64_t fresh = atomic_fetch_add(&last, 1) + 1;
  return atomic_compare_exchange_strong(&wiped.generation, &generation, fresh) ? fresh : generation;
}

#else

uint64_t ml_process_generation(void) { return (uint64_t)getpid(); }

#endif

void ml_process_block_signals(sigset_t *saved) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  sigset_t all;
  sigfillset(&all);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&all, faults[i]);
  (void)pthread_sigmask(SIG_BLOCK, &all, saved);
}

void ml_process_restore_signals(const sigset_t *saved) {
  (void)pthread_sigmask(SIG_SETMASK, saved, NULL);
}
