/*
 * What every test of the core begins with: cmocka, bounds of time, and work in a forked child.
 *
 * Bounds are generous on purpose: the machine may be busy and the program instrumented. They tell
 * "at once" from "after a timeout", and one timeout from several.
 */
#ifndef CHECK_H
#define CHECK_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h> /* wants the above before it */

#include "clock.h"
#include "store.h"

#define MS ML_MILLISECOND

/* Memory for the keys of a lock, which no test needs to free: it is used again after thousands. */
static inline char *key_text(void) {
  static char texts[4096][ML_KEY_TEXT];
  static size_t next;
  return texts[next++ % (sizeof texts / sizeof texts[0])];
}

/* More than any operation takes that waits for nothing but a server that answers. Under valgrind,
 * which shows itself by what it preloads, and under sanitizers everything takes much longer. */
static inline int64_t at_once(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 2 * ML_SECOND;
#else
  const char *preload = getenv("LD_PRELOAD");
  return preload != NULL && strstr(preload, "vgpreload") != NULL ? 3 * ML_SECOND : 400 * MS;
#endif
}
#define AT_ONCE at_once()

/* What an operation that ends by its timeout may take at most. */
#define BY_TIMEOUT(timeout) ((timeout) + AT_ONCE)

#define assert_took_less(started, bound)                                                           \
  do {                                                                                             \
    int64_t took_ = ml_clock_now() - (started);                                                    \
    if (took_ >= (bound)) print_error("took %lld ms\n", (long long)(took_ / MS));                  \
    assert_true(took_ < (bound));                                                                  \
  } while (0)

#define assert_took_at_least(started, bound)                                                       \
  do {                                                                                             \
    int64_t took_ = ml_clock_now() - (started);                                                    \
    if (took_ < (bound)) print_error("took only %lld ms\n", (long long)(took_ / MS));              \
    assert_true(took_ >= (bound));                                                                 \
  } while (0)

/* `part` stands somewhere in `text`; says both when not. */
#define assert_contains(text, part)                                                                \
  do {                                                                                             \
    if (strstr((text), (part)) == NULL) print_error("\"%s\" lacks \"%s\"\n", (text), (part));      \
    assert_non_null(strstr((text), (part)));                                                       \
  } while (0)

static inline bool full_length(void) {
  const char *full = getenv("FULL");
  return full != NULL && strcmp(full, "1") == 0;
}

static inline void pause_for(int64_t span) {
  int64_t end = ml_clock_now() + span;
  while (ml_clock_now() < end) (void)ml_clock_sleep(end - ml_clock_now());
}

/* A child cannot use cmocka's assertions, which jump to where the parent's tests go on. */
#define CHILD_CHECK(condition)                                                                     \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      (void)fprintf(stderr, "%s:%d: in the child: %s\n", __FILE__, __LINE__, #condition);          \
      return 1;                                                                                    \
    }                                                                                              \
  } while (0)

/* Runs `work` in a forked child and waits for it. True: it returned 0. */
static inline bool in_child(int (*work)(void *), void *argument) {
  (void)fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    /* A crash is to end the child, not to be counted there as a failed test. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) (void)signal(faults[i], SIG_DFL);
    _exit(work(argument));
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  if (WIFSIGNALED(status)) print_error("the child died of signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#endif
