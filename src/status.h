/*
 * Outcomes: the closed set of answers that an operation can have, and the carrier of an error.
 *
 * Every operation returns an `enum ml_status`. Where it is not ML_OK, the operation has also filled
 * the `struct ml_error` that its caller passed: a sentence for people, in a buffer of fixed size,
 * so that reporting a failure allocates nothing. The caller owns the carrier; on ML_OK its content
 * is undefined. Nothing here blocks, and all of it may be used from any thread.
 */
#ifndef ML_STATUS_H
#define ML_STATUS_H

#include <stddef.h>

enum ml_status {
  ML_OK,
  ML_HELD,        /* somebody else has the lock */
  ML_LOST,        /* it was ours and is gone; said once for each acquisition */
  ML_NOT_HELD,    /* there is nothing to refresh or to give up */
  ML_TIMEOUT,     /* no answer in time, connecting included: the outcome is unknown */
  ML_UNREACHABLE, /* refused, reset, no such host */
  ML_REFUSED,     /* the server answered with an error */
  ML_UNSUPPORTED, /* the server has no compare-and-swap */
  ML_CONFLICT,    /* an update lost every race within its time */
  ML_CANCELLED,   /* the host's sleep function ended the wait */
  ML_CLOSED,      /* the client was closed */
  ML_INVALID,     /* wrong use, found before anything was sent: raised, never returned, in Lua */
};

struct ml_error {
  enum ml_status status;
  char message[768];
};

/* The stable string of an outcome, the third return value in Lua: "held", "lost", ... */
const char *ml_status_code(enum ml_status status);

/* Fills `error` from a printf format (numbers, strings; no %f: its form depends on the locale) and
 * returns `status`, so that a failing function ends with `return ml_fail(...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
enum ml_status
ml_fail(struct ml_error *error, enum ml_status status, const char *format, ...);

/* The system's words for an errno, as strerror gives them, in the caller's buffer; returns it. */
const char *ml_system_error(int code, char *text, size_t size);

#endif
