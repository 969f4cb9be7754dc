/* What the command says of itself: sentences on standard error, "memlock: ...", a write each. Never
 * blocks for longer than standard error does. */
#ifndef SAY_H
#define SAY_H

enum loudness { QUIET, NORMAL, VERBOSE };

/* What is to be heard from now on. */
void say_loudness(enum loudness loudness);

/* An error, a notice that is left out with --quiet, and a detail that needs --verbose. */
#if defined(__GNUC__)
#define SAY_FORMAT __attribute__((format(printf, 1, 2)))
#else
#define SAY_FORMAT
#endif
SAY_FORMAT void say_error(const char *format, ...);
SAY_FORMAT void say(const char *format, ...);
SAY_FORMAT void say_detail(const char *format, ...);

#endif
