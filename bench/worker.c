#include "worker.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const struct subject *const subjects[] = {&core, &limit, &compare, &swap};
static const struct subject *subject;

/* The lengths of pauses between attempts: the first, and the bound to which they double. */
static double first_pause = 0.010, last_pause = 0.500;

_Noreturn void die(const char *what, const char *why) {
  (void)fprintf(stderr, "worker: %s: %s\n", what, why);
  exit(1);
}

static double seconds_on(clockid_t clock) {
  struct timespec time;
  (void)clock_gettime(clock, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double now(void) { return seconds_on(CLOCK_MONOTONIC); }

void sleep_for(double seconds) {
  if (seconds <= 0) return;
  double whole = floor(seconds);
  struct timespec time = {.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (seconds - whole))};
  (void)nanosleep(&time, NULL);
}

/* One wait by attempts. A pause lasts from half of its length to all of it. */
static bool acquire_by_attempts(double until) {
  double length = first_pause;
  for (;;) {
    if (subject->attempt()) return true;
    double left = until - now();
    if (left <= 0) return false;
    double pause = length * (0.5 + 0.5 * drand48());
    sleep_for(pause < left ? pause : left);
    length = 2 * length < last_pause ? 2 * length : last_pause;
  }
}

static void cycle(void) {
  if (!subject->attempt()) die(subject->name, "somebody else has the lock");
  if (!subject->release()) die(subject->name, "the lock was lost");
}

static void run(double seconds) {
  long cycles = 0;
  double start = now(), end, cpu = seconds_on(CLOCK_PROCESS_CPUTIME_ID);
  do {
    cycle();
    cycles++;
    end = now();
  } while (end - start < seconds);
  cpu = seconds_on(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  (void)printf("%ld %.9f %.9f\n", cycles, end - start, cpu);
}

static void compete(const char *path, double start, double stop, double hold, double pause) {
  int journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (journal < 0) die(path, "cannot be written");
  sleep_for(start - now());
  for (double asked; (asked = now()) < stop; sleep_for(pause * drand48())) {
    (void)dprintf(journal, "asked %.9f\n", asked);
    if (!(subject->acquire != NULL ? subject->acquire : acquire_by_attempts)(stop)) break;
    double got = now();
    sleep_for(hold);
    (void)dprintf(journal, "held %.9f %.9f\n", got, now());
    if (!subject->release()) die(subject->name, "the lock was lost");
  }
  (void)close(journal);
  (void)puts("ok");
}

static void answer(bool yes) { (void)puts(yes ? "ok" : "no"); }

static void obey(const char *line) {
  char path[256];
  double a, b, c, d;
  long count;
  if (sscanf(line, "run %lf", &a) == 1) {
    run(a);
  } else if (sscanf(line, "compete %255s %lf %lf %lf %lf", path, &a, &b, &c, &d) == 5) {
    compete(path, a, b, c, d);
  } else if (sscanf(line, "cycles %ld", &count) == 1) {
    while (count-- > 0) cycle();
    answer(true);
  } else if (strcmp(line, "acquire\n") == 0) {
    answer(subject->attempt());
  } else if (strcmp(line, "refresh\n") == 0) {
    answer(subject->refresh());
  } else if (strcmp(line, "release\n") == 0) {
    answer(subject->release());
  } else {
    die("no such command", line);
  }
}

int main(int argc, char **argv) {
  if (argc < 4) die("usage", "worker SUBJECT SERVER NAME [FIRST-LAST pauses in ms]");
  for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
    if (strcmp(subjects[i]->name, argv[1]) == 0) subject = subjects[i];
  if (subject == NULL) die("no such subject", argv[1]);
  if (argc > 4) {
    if (sscanf(argv[4], "%lf-%lf", &first_pause, &last_pause) != 2) die("no pauses", argv[4]);
    first_pause /= 1000;
    last_pause /= 1000;
  }
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)setvbuf(stdout, NULL, _IOLBF, 0);
  srand48((long)getpid() * 2654435761L ^ (long)time(NULL));
  subject->open(argv[2], argv[3]);
  (void)puts("ready");
  char line[512];
  while (fgets(line, sizeof line, stdin) != NULL) obey(line);
  return 0;
}
