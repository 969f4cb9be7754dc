/* memlock run: acquires, runs the command under the lock (job.h), gives the lock up. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "client.h"
#include "clock.h"
#include "commands.h"
#include "exits.h"
#include "guard.h"
#include "help.h"
#include "job.h"
#include "options.h"
#include "record.h"
#include "say.h"
#include "signals.h"

#define RUN "run"

struct settings {
  struct options common;
  struct job_limits limits;
  int64_t wait;
  int64_t at_least;
  int busy; /* exit code */
  bool help;
  const char *name;
  char **command;
};

/* Reading the arguments. */

enum {
  OPTION_AT_LEAST = OPTION_OF_COMMAND,
  OPTION_LOSS_GRACE,
  OPTION_MAX_HOLD,
  OPTION_LABEL,
  OPTION_IDENTITY,
};

static const struct option long_options[] = {
    COMMON_OPTIONS,
    {"ttl", required_argument, NULL, 't'},
    {"wait", required_argument, NULL, 'w'},
    {"nonblock", no_argument, NULL, 'n'},
    {"conflict-exit-code", required_argument, NULL, 'E'},
    {"grace", required_argument, NULL, 'g'},
    {"loss-grace", required_argument, NULL, OPTION_LOSS_GRACE},
    {"at-least", required_argument, NULL, OPTION_AT_LEAST},
    {"max-hold", required_argument, NULL, OPTION_MAX_HOLD},
    {"label", required_argument, NULL, OPTION_LABEL},
    {"identity", required_argument, NULL, OPTION_IDENTITY},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {NULL, 0, NULL, 0},
};

static bool take_ttl(struct settings *settings, const char *text) {
  struct ml_error error;
  int64_t span;
  if (!options_span(RUN, "ttl", text, SPAN_POSITIVE, &span)) return false;
  if (ml_client_check_ttl(ml_clock_seconds(span), &span, &error) == ML_OK) {
    settings->common.client.ttl = span;
    return true;
  }
  (void)options_wrong(RUN, "--ttl: %s", error.message);
  return false;
}

/* What it may come to is a ttl; see linger(). */
static bool take_at_least(struct settings *settings, const char *text) {
  struct ml_error error;
  int64_t ttl;
  if (!options_span(RUN, "at-least", text, SPAN_ANY, &settings->at_least)) return false;
  if (settings->at_least == 0) return true;
  if (ml_client_check_ttl(ml_clock_seconds(settings->at_least), &ttl, &error) == ML_OK) return true;
  (void)options_wrong(RUN, "--at-least is longer than a lock can last, which is 28 days");
  return false;
}

static bool take_exit_code(struct settings *settings, const char *text) {
  char *end;
  long code = strtol(text, &end, 10);
  bool is_number = *text >= '0' && *text <= '9' && *end == '\0';
  if (is_number && code >= 0 && code <= 255) {
    settings->busy = (int)code;
    return true;
  }
  (void)options_wrong(RUN, "--conflict-exit-code wants a number from 0 to 255, not '%s'", text);
  return false;
}

static bool take_text(const char **place, const char *text,
                      bool (*is_good)(const char *text, size_t length), const char *rule) {
  *place = text;
  if (is_good(text, strlen(text))) return true;
  (void)options_wrong(RUN, "%s", rule);
  return false;
}

static bool take(struct settings *settings, int code, const char *value) {
  struct ml_client_options *client = &settings->common.client;
  switch (code) {
  case 't':
    return take_ttl(settings, value);
  case 'w':
    return options_span(RUN, "wait", value, SPAN_ENDLESS, &settings->wait);
  case 'n':
    settings->wait = 0;
    return true;
  case 'E':
    return take_exit_code(settings, value);
  case 'g':
    return options_span(RUN, "grace", value, SPAN_ANY, &settings->limits.grace);
  case OPTION_LOSS_GRACE:
    return options_span(RUN, "loss-grace", value, SPAN_ANY, &settings->limits.loss_grace);
  case OPTION_AT_LEAST:
    return take_at_least(settings, value);
  case OPTION_MAX_HOLD:
    return options_span(RUN, "max-hold", value, SPAN_POSITIVE, &settings->limits.max_hold);
  case OPTION_LABEL:
    return take_text(&client->label, value, ml_record_label_ok,
                     "--label: up to 128 bytes and no control characters");
  case OPTION_IDENTITY:
    return take_text(&client->identity, value, ml_record_id_ok,
                     "--identity: 1 to 64 bytes, and neither spaces nor control characters");
  case 'q':
    say_loudness(QUIET);
    return true;
  case 'v':
    say_loudness(VERBOSE);
    return true;
  case 'h':
    settings->help = true;
    return true;
  default:
    return options_take(&settings->common, RUN, code, value);
  }
}

/* NAME may have options behind it. What follows "--", or the first word behind NAME that is no
 * option, is the command's. */
static bool read_arguments(struct settings *settings, int argc, char **argv) {
  static char title[] = "memlock run";
  int code;
  argv[0] = title; /* for getopt's messages */
  while ((code = options_next(argc, argv, "-t:w:nE:g:qv" COMMON_LETTERS, long_options)) != -1) {
    if (code == 1 && settings->name == NULL) {
      settings->name = optarg;
    } else if (code == 1) {
      optind--;
      break;
    } else if (!take(settings, code, optarg)) {
      return false;
    }
  }
  if (settings->name == NULL && optind < argc) {
    settings->name = argv[optind++];
    if (optind < argc && strcmp(argv[optind], "--") == 0) optind++;
  }
  settings->command = argv + optind;
  return true;
}

/* 0, or an exit code: it has been said what is wrong. */
static int read_settings(struct settings *settings, int argc, char **argv) {
  *settings = (struct settings){
      .limits = {.grace = 5 * ML_SECOND, .max_hold = ML_FOREVER},
      .busy = EXIT_BUSY,
  };
  options_init(&settings->common);
  settings->common.client.ttl = 30 * ML_SECOND;
  if (!read_arguments(settings, argc, argv)) return EXIT_USAGE;
  if (settings->help) return EXIT_FINE;
  if (!options_finish(&settings->common, RUN)) return EXIT_USAGE;
  if (settings->name == NULL) return options_wrong(RUN, "the name of a lock is missing");
  if (!options_name(&settings->common, RUN, settings->name)) return EXIT_USAGE;
  if (settings->command[0] == NULL)
    return options_wrong(RUN, "the command is missing: memlock run %s -- COMMAND", settings->name);
  return EXIT_FINE;
}

/* Waiting. */

/* The first signal that asks us to end; 0: none has come. */
static int asked_to_end(void) {
  int number;
  while ((number = signals_next()) != 0) {
    if (signals_is_end(number)) return number;
    if (number == SIGTSTP || number == SIGTTIN) (void)signals_stop(number, false);
  }
  return 0;
}

/* Says once for each kind of trouble why it takes so long. */
static void say_why(const struct settings *settings, const struct ml_error *error,
                    enum ml_status *said) {
  if (settings->wait == 0 || error->status == *said) return;
  *said = error->status;
  if (error->status == ML_HELD)
    say_detail("%s: waiting", error->message);
  else
    say("%s: trying again", error->message);
}

/* Acquires, waiting as long as it may. ML_CANCELLED: *number is the signal that ended the wait. */
static enum ml_status acquire(const struct settings *settings, struct ml_lock *lock, int *number,
                              struct ml_error *error) {
  struct ml_wait wait = {.span = settings->wait};
  enum ml_status said = ML_OK;
  for (;;) {
    int64_t pause;
    enum ml_status status = ml_client_try(lock, &wait, &pause, error);
    int64_t until = ml_clock_after(ml_clock_now(), pause);
    if (status != ML_OK) say_why(settings, error, &said);
    do {
      *number = asked_to_end();
      if (*number != 0) return ML_CANCELLED;
      if (pause > 0) signals_await(-1, until);
    } while (ml_clock_now() < until && pause > 0);
    if (pause == 0) return status;
  }
}

/* Giving up. */

/* Keeps the lock until `until`, as a promise to others: so when we are to end before, as somebody
 * has asked or asks meanwhile, the record is left to run out. True: it is still to be given up. */
static bool linger(struct ml_lock *lock, int64_t until, bool asked) {
  int64_t left = until - ml_clock_now();
  if (left > 0) say_detail("lock \"%s\" is kept for a while (--at-least)", lock->name);
  while (left > 0 && ml_client_held(lock, NULL)) {
    if (asked || asked_to_end() != 0) {
      struct ml_error ignored;
      (void)ml_client_refresh(lock, left, &ignored);
      return false;
    }
    signals_await(-1, until);
    left = until - ml_clock_now();
  }
  return true;
}

static int exit_code(const struct job *job) {
  if (job->fate == JOB_LOST) return EXIT_LOST;
  if (job->fate == JOB_TOO_LONG) return EXIT_MAX_HOLD;
  return WIFSIGNALED(job->status) ? EXIT_SIGNAL + WTERMSIG(job->status) : WEXITSTATUS(job->status);
}

/* Gives the lock up after the command has ended. Was it ours all the time? */
static int give_up(struct ml_lock *lock, int code) {
  struct ml_error error;
  enum ml_status status = ml_client_release(lock, &error);
  if (status == ML_OK) {
    say_detail("lock \"%s\" is given up", lock->name);
  } else if (status == ML_LOST) {
    say_error("%s", error.message);
    return EXIT_LOST;
  } else {
    say("%s: the lock ends by itself, in %" PRId64 " s at most", error.message,
        lock->ttl / ML_SECOND + 4);
  }
  return code;
}

/* Who shares our terminal hears of the Ctrl-C that only the command has got. */
static void share_interrupt(const struct job *job) {
  if (job->fate != JOB_GOES_ON || !job->terminal.lent || !WIFSIGNALED(job->status)) return;
  int number = WTERMSIG(job->status);
  if (number == SIGINT || number == SIGQUIT) signals_share(number);
}

/* Runs the command under a lock that was just acquired. */
static int run_locked(struct job *job, const struct settings *settings) {
  struct ml_lock *lock = job->lock;
  job->started = ml_clock_now();
  say_detail("lock \"%s\" is ours, token %" PRIu64, lock->name, lock->token);
  int code = job_start(job, settings->command);
  if (code != EXIT_FINE) return give_up(lock, code);
  job_run(job);
  code = exit_code(job);
  share_interrupt(job);
  if (job->fate == JOB_LOST) return code;
  if (!linger(lock, ml_clock_after(job->started, settings->at_least), job->asked))
    _exit(code); /* the end of the client would give the lock up */
  return give_up(lock, code);
}

/* Acquires, with a guard at hand, and runs the command. */
static int run_guarded(struct job *job, const struct settings *settings) {
  struct ml_error error;
  int number = 0;
  enum ml_status status = acquire(settings, job->lock, &number, &error);
  if (status == ML_OK) return run_locked(job, settings);
  if (status == ML_CANCELLED) {
    (void)ml_client_close(job->client); /* the last try may have been good */
    signals_die(number);
    return EXIT_SIGNAL + number;
  }
  if (status == ML_HELD) {
    say("%s", error.message);
    return settings->busy;
  }
  say_error("%s", error.message);
  return exit_code_of(status);
}

static int fail(const char *what) {
  char words[128];
  say_error("%s: %s", what, ml_system_error(errno, words, sizeof words));
  return EXIT_SYSTEM;
}

static int run_as_client(struct job *job, const struct settings *settings) {
  struct ml_error error;
  char text[ML_KEY_TEXT];
  const char *name = settings->name;
  job->client = options_open(&settings->common);
  if (job->client == NULL) return EXIT_SYSTEM;
  int code = EXIT_SYSTEM;
  if (ml_client_add(job->client, job->lock, text, name, strlen(name), 0, NULL, &error) == ML_OK) {
    ml_client_auto_refresh(job->lock, ML_FOREVER);
    code = run_guarded(job, settings);
    (void)ml_client_close(job->client);
    ml_client_remove(job->lock);
  } else {
    say_error("%s", error.message);
  }
  ml_client_abandon(job->client);
  return code;
}

/* The guard is made first, while we have neither threads nor connections that it would inherit. */
static int run(const struct settings *settings) {
  struct guard guard;
  struct ml_lock lock;
  struct job job = {.guard = &guard, .lock = &lock, .limits = settings->limits};
  if (!child_prepare(settings->name)) return fail("no room in the environment");
  if (!signals_open()) return fail("no pipe for signals");
  if (!guard_start(&guard)) return fail("no process to guard the command");
  terminal_open(&job.terminal);
  int code = run_as_client(&job, settings);
  guard_end(&guard);
  return code;
}

int command_run(int argc, char **argv) {
  struct settings settings;
  int code = read_settings(&settings, argc, argv);
  if (code != EXIT_FINE) return code;
  if (settings.help) return help_print(stdout, RUN) ? EXIT_FINE : EXIT_SYSTEM;
  return run(&settings);
}
