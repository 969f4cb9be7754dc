#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

/* A character of UTF-8 in at most `left` bytes: its length and code, or 0 where there is none. */
static size_t read_utf8(const unsigned char *at, size_t left, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  unsigned char first = at[0];
  size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4 || length > left) return 0;
  uint32_t value = length == 1 ? first : first & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | (at[i] & 0x3fu);
  }
  bool is_surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < least[length] || value > 0x10ffff || is_surrogate) return 0;
  *code = value;
  return length;
}

/* Controls, and what moves or hides the text around it: marks of direction, widthless spaces. */
static bool is_plain(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xad) return false;
  if (code >= 0x200b && code <= 0x200f) return false;
  if (code >= 0x2028 && code <= 0x202e) return false;
  if (code >= 0x2060 && code <= 0x206f) return false;
  return code != 0x61c && code != 0xfeff;
}

size_t text_escape(char *out, size_t size, const char *bytes, size_t length) {
  size_t used = 0;
  size_t step;
  for (size_t i = 0; i < length; i += step) {
    const unsigned char *at = (const unsigned char *)bytes + i;
    char shown[TEXT_ROOM(4)];
    uint32_t code = 0;
    step = read_utf8(at, length - i, &code);
    if (step > 0 && code != '\\' && is_plain(code)) {
      memcpy(shown, at, step);
      shown[step] = '\0';
    } else if (step > 0 && code == '\\') {
      memcpy(shown, "\\\\", 3);
    } else {
      if (step == 0) step = 1;
      for (size_t k = 0; k < step; k++)
        (void)snprintf(shown + 4 * k, 5, "\\x%02x", (unsigned)at[k]);
    }
    size_t more = strlen(shown);
    if (used + more >= size) break;
    memcpy(out + used, shown, more);
    used += more;
  }
  out[used] = '\0';
  return used;
}

size_t text_width(const char *text) {
  size_t width = 0;
  for (; *text != '\0'; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
  return width;
}

void text_json(FILE *file, const char *text) {
  (void)putc('"', file);
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') (void)putc('\\', file);
    (void)putc(*text, file);
  }
  (void)putc('"', file);
}

void text_time(char out[TEXT_TIME], int64_t unix_seconds) {
  time_t time = (time_t)unix_seconds;
  struct tm parts;
  bool fits = unix_seconds < INT64_C(253402300800); /* the year 10000 */
  if (!fits || localtime_r(&time, &parts) == NULL ||
      strftime(out, TEXT_TIME, "%Y-%m-%d %H:%M:%S", &parts) == 0)
    (void)snprintf(out, TEXT_TIME, "@%" PRId64, unix_seconds);
}

void text_seconds(char out[TEXT_SECONDS], int64_t milliseconds) {
  int thousandths = (int)(milliseconds % 1000);
  int length = snprintf(out, TEXT_SECONDS, "%" PRId64 ".%03d", milliseconds / 1000, thousandths);
  while (length > 0 && out[length - 1] == '0') out[--length] = '\0';
  if (length > 0 && out[length - 1] == '.') out[--length] = '\0';
}
