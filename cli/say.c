#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

static enum loudness loud = NORMAL;

void say_loudness(enum loudness loudness) { loud = loudness; }

/* One write, so that lines of several processes do not mix. A message may quote what others wrote:
 * it is shown escaped. Nothing can be done where it cannot be written. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 0)))
#endif
static void
speak(const char *format, va_list arguments) {
  char message[1024];
  char line[2 * sizeof message];
  (void)vsnprintf(message, sizeof message, format, arguments);
  size_t length = (size_t)snprintf(line, sizeof line, "memlock: ");
  length += text_escape(line + length, sizeof line - length - 1, message, strlen(message));
  line[length++] = '\n';
  ssize_t written = write(STDERR_FILENO, line, length);
  (void)written;
}

void say_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  speak(format, arguments);
  va_end(arguments);
}

void say(const char *format, ...) {
  if (loud < NORMAL) return;
  va_list arguments;
  va_start(arguments, format);
  speak(format, arguments);
  va_end(arguments);
}

void say_detail(const char *format, ...) {
  if (loud < VERBOSE) return;
  va_list arguments;
  va_start(arguments, format);
  speak(format, arguments);
  va_end(arguments);
}
