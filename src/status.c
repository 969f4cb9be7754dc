#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *ml_status_code(enum ml_status status) {
  switch (status) {
  case ML_OK:
    return "ok";
  case ML_HELD:
    return "held";
  case ML_LOST:
    return "lost";
  case ML_NOT_HELD:
    return "not_held";
  case ML_TIMEOUT:
    return "timeout";
  case ML_UNREACHABLE:
    return "unreachable";
  case ML_REFUSED:
    return "refused";
  case ML_UNSUPPORTED:
    return "unsupported";
  case ML_CONFLICT:
    return "conflict";
  case ML_CANCELLED:
    return "cancelled";
  case ML_CLOSED:
    return "closed";
  case ML_INVALID:
    return "invalid";
  }
  return "invalid";
}

enum ml_status ml_fail(struct ml_error *error, enum ml_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  error->status = status;
  return status;
}

const char *ml_system_error(int code, char *text, size_t size) {
#ifdef __GLIBC__
  const char *words = strerror_r(code, text, size);
  if (words != text) (void)snprintf(text, size, "%s", words);
#else
  if (strerror_r(code, text, size) != 0) (void)snprintf(text, size, "error %d", code);
#endif
  return text;
}
