#include "job.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "clock.h"
#include "exits.h"
#include "say.h"
#include "signals.h"

/* How long those that were killed may take to be gone before we leave without them. */
#define DYING (2 * ML_SECOND)
#define LOOK_AGAIN (10 * ML_MILLISECOND)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* KILL comes so much before the end of the lease; dying, and a guard that acts in our stead, take
 * some of it. */
static int64_t margin(const struct job *job) { return least(job->lock->ttl / 10, ML_SECOND / 2); }

/* TERM comes so much before the end of the lease. */
static int64_t notice(const struct job *job) {
  int64_t span = least(job->limits.grace, job->lock->ttl / 3);
  return span > margin(job) ? span : margin(job);
}

/* The command is always meant, even where it has joined another group. Until it has ended, its
 * number is nobody else's. */
static void send(const struct job *job, int number) {
  if (!job->ended && getpgid(job->group) != job->group) (void)kill(job->group, number);
  (void)kill(-job->group, number);
}

static bool group_lives(const struct job *job) {
  return kill(-job->group, 0) == 0 || errno == EPERM;
}

/* The guard does what we are about to do, in case that we do not. */
static void instruct_guard(struct job *job, int64_t until) {
  job->guarded_until = until;
  guard_tell(job->guard, (struct guard_order){.group = job->group, .until = until});
}

static void end_in_time(struct job *job) {
  if (job->fate == JOB_GOES_ON || ml_clock_now() < job->kill_at) return;
  send(job, SIGKILL);
  if (!job->killed) say_detail("the command is killed");
  job->killed = true;
}

/* What is to be done is done before it is said: standard error may block. */
static void seal(struct job *job, enum job_fate fate, int64_t kill_at) {
  bool first = job->fate == JOB_GOES_ON;
  job->kill_at = first ? kill_at : least(kill_at, job->kill_at);
  job->fate = fate;
  if (first && kill_at > ml_clock_now()) {
    send(job, SIGTERM);
    send(job, SIGCONT); /* what is stopped cannot hear of it */
  }
  if (fate == JOB_LOST) instruct_guard(job, job->kill_at);
  end_in_time(job);
}

/* The lease. */

static void has_been_lost(struct job *job, const char *message, int64_t grace) {
  job->is_proven = true;
  seal(job, JOB_LOST, ml_clock_after(ml_clock_now(), grace));
  say_error("%s: the command is %s", message, grace > 0 ? "asked to end" : "killed");
}

static void look_after_lease(struct job *job) {
  char message[512];
  if (job->is_proven) return;
  if (ml_client_next_lost(job->client, message, sizeof message) != NULL) {
    has_been_lost(job, message, job->limits.loss_grace);
    return;
  }
  int64_t left;
  bool held = ml_client_held(job->lock, &left);
  int64_t now = ml_clock_now();
  if (!held) { /* we were stopped, or suspended; or it took all the time that there was */
    (void)snprintf(message, sizeof message, "lock \"%s\" was lost: its lease has ended",
                   job->lock->name);
    has_been_lost(job, message, 0);
    return;
  }
  if (job->fate == JOB_LOST) return;
  if (job->fate == JOB_GOES_ON && now >= job->guarded_until) { /* though renewed since */
    seal(job, JOB_LOST, now);
    say_error("lock \"%s\": we were stopped for so long that the guard killed the command",
              job->lock->name);
    return;
  }
  int64_t kill_at = now + left - margin(job);
  if (left <= notice(job)) {
    seal(job, JOB_LOST, kill_at);
    say_error(
        "lock \"%s\" could not be renewed, and its lease ends soon: the command is asked to end",
        job->lock->name);
    return;
  }
  int64_t until = kill_at + margin(job) / 2;
  instruct_guard(job, job->fate == JOB_TOO_LONG ? least(until, job->kill_at) : until);
}

static void look_after_time(struct job *job) {
  int64_t now = ml_clock_now();
  if (job->fate == JOB_GOES_ON && now >= ml_clock_after(job->started, job->limits.max_hold)) {
    seal(job, JOB_TOO_LONG, ml_clock_after(now, job->limits.grace));
    say_error("lock \"%s\" has been held for as long as it may be: the command is asked to end",
              job->lock->name);
  }
  end_in_time(job);
}

/* Stopping and going on. */

static void resume(struct job *job) {
  look_after_lease(job);
  if (job->fate != JOB_GOES_ON || job->ended) return;
  if (job->terminal.lent) (void)terminal_lend(&job->terminal, job->group);
  send(job, SIGCONT);
}

/* It would be stopped, and have the lock, for ever: the terminal is somebody else's, and nobody
 * could continue us. The system does the same to a group that its shell has left. Once: what
 * ignores it may want the terminal again at once. */
static void hang_up(struct job *job) {
  if (job->hung_up) return;
  job->hung_up = true;
  send(job, SIGHUP);
  send(job, SIGCONT);
  say("the command wants a terminal that it cannot have: it is sent a hang-up");
}

/* The command was stopped: what a shell would want to know, we follow. */
static void follow(struct job *job, int number) {
  bool wants_terminal = number == SIGTTIN || number == SIGTTOU;
  if (job->fate != JOB_GOES_ON) return;
  if (wants_terminal && terminal_lend(&job->terminal, job->group)) {
    send(job, SIGCONT);
    return;
  }
  if (job->terminal.fd < 0 || (number == SIGSTOP && !job->terminal.lent)) return;
  terminal_take_back(&job->terminal, job->group);
  bool stopped = signals_stop(number == SIGSTOP ? SIGTSTP : number, true);
  /* Where nobody could continue us, Ctrl-Z would have been ignored without us. */
  if (stopped || number == SIGTSTP)
    resume(job);
  else if (wants_terminal)
    hang_up(job);
}

static bool wants_end(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGQUIT;
}

static void take_note(struct job *job, int status) {
  if (WIFSTOPPED(status)) {
    follow(job, WSTOPSIG(status));
    return;
  }
  if (job->fate == JOB_GOES_ON && WIFSIGNALED(status) && wants_end(WTERMSIG(status)))
    job->asked = true; /* as with Ctrl-C, which only the command gets */
  job->ended = true;
  job->status = status;
}

/* As PID 1 we also get the children of others. */
static void reap(struct job *job) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
    if (pid == job->group)
      take_note(job, status);
    else if (pid == job->guard->pid && !WIFSTOPPED(status) && !guard_replace(job->guard))
      say("the process that would end the command in our stead is gone, and there is no other");
  }
}

static void forward(struct job *job) {
  int number;
  while ((number = signals_next()) != 0) {
    if (number == SIGCHLD) continue;
    if (number == SIGCONT) {
      resume(job);
    } else if (!job->ended) {
      if (wants_end(number)) job->asked = true;
      send(job, number == SIGTTIN ? SIGTSTP : number);
      say_detail("signal %d went on to the command", number);
    }
  }
}

/* Its life. */

static int64_t next_look(const struct job *job) {
  int64_t now = ml_clock_now();
  if (job->ended) return now + LOOK_AGAIN;
  int64_t left = 0;
  (void)ml_client_held(job->lock, &left);
  int64_t look = now + least(ML_SECOND / 2, job->lock->ttl / 8);
  if (job->fate == JOB_GOES_ON)
    look = least(look, ml_clock_after(job->started, job->limits.max_hold));
  if (job->fate != JOB_GOES_ON && !job->killed) look = least(look, job->kill_at);
  if (job->fate != JOB_LOST) look = least(look, now + left - notice(job));
  return look > now + ML_MILLISECOND ? look : now + ML_MILLISECOND;
}

static bool is_over(const struct job *job) {
  if (!job->ended) return false;
  if (job->fate == JOB_GOES_ON || !group_lives(job)) return true;
  return job->killed && ml_clock_now() >= job->kill_at + DYING;
}

int job_start(struct job *job, char **argv) {
  struct child child;
  char words[128];
  if (!child_fork(&child, argv, job->lock->token)) {
    say_error("the command cannot be started: %s", ml_system_error(errno, words, sizeof words));
    return EXIT_SYSTEM;
  }
  job->group = child.pid;
  job->guarded_until = ML_FOREVER;
  look_after_lease(job); /* from here on, the guard watches over it, too */
  if (terminal_is_all_ours(&job->terminal)) (void)terminal_lend(&job->terminal, job->group);
  int error = child_go(&child);
  if (error == 0) return EXIT_FINE;
  terminal_take_back(&job->terminal, job->group);
  guard_tell(job->guard, (struct guard_order){.group = 0});
  say_error("%s: %s", argv[0], ml_system_error(error, words, sizeof words));
  return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

void job_run(struct job *job) {
  struct ml_error ignored;
  int losses = ml_client_fd(job->client, &ignored); /* without it, we look often enough */
  for (;;) {
    look_after_lease(job);
    look_after_time(job);
    reap(job);
    if (is_over(job)) break;
    forward(job);
    signals_await(job->is_proven ? -1 : losses, next_look(job));
  }
  guard_tell(job->guard, (struct guard_order){.group = 0});
  terminal_take_back(&job->terminal, job->group);
}
