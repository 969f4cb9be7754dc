#include "record.h"

#include <string.h>

#define MAGIC "memlock/1 "

static bool is_word_byte(unsigned char byte) { return byte > 0x20 && byte != 0x7f; }

static bool is_text_byte(unsigned char byte) { return byte >= 0x20 && byte != 0x7f; }

bool ml_record_id_ok(const char *id, size_t length) {
  if (length < 1 || length > ML_ID_MAX) return false;
  for (size_t i = 0; i < length; i++)
    if (!is_word_byte((unsigned char)id[i])) return false;
  return true;
}

bool ml_record_label_ok(const char *label, size_t length) {
  if (length > ML_LABEL_MAX) return false;
  for (size_t i = 0; i < length; i++)
    if (!is_text_byte((unsigned char)label[i])) return false;
  return true;
}

/* Each of these writes at `at` and returns the end. snprintf would take four times as long, in
 * every flight. */

static char *put_text(char *at, const char *text) {
  size_t length = strlen(text);
  memcpy(at, text, length);
  return at + length;
}

static char *put_number(char *at, uint64_t number) {
  char digits[20];
  size_t count = 0;
  do digits[count++] = (char)('0' + number % 10);
  while ((number /= 10) != 0);
  while (count > 0) *at++ = digits[--count];
  return at;
}

static char *put_seconds(char *at, int64_t ms) {
  at = put_number(at, (uint64_t)(ms / 1000));
  int fraction = (int)(ms % 1000);
  if (fraction != 0) *at++ = '.';
  for (int weight = 100; fraction != 0; fraction %= weight, weight /= 10)
    *at++ = (char)('0' + fraction / weight);
  return at;
}

size_t ml_record_encode(const struct ml_record *record, char out[ML_RECORD_MAX]) {
  char *at = put_text(out, MAGIC);
  at = put_text(at, record->id);
  *at++ = ' ';
  at = put_number(at, record->seq);
  *at++ = ' ';
  at = put_number(at, (uint64_t)record->since);
  *at++ = ' ';
  at = put_seconds(at, record->ttl_ms);
  *at++ = ' ';
  at = put_text(at, record->label);
  *at = '\0';
  return (size_t)(at - out);
}

/* What is still to be read. Each reader takes a part and the space behind it, or returns false. */
struct rest {
  const char *at;
  const char *end;
};

static bool read_space(struct rest *rest) {
  if (rest->at == rest->end || *rest->at != ' ') return false;
  rest->at++;
  return true;
}

static bool read_digits(struct rest *rest, uint64_t *number) {
  const char *start = rest->at;
  uint64_t value = 0;
  for (; rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9'; rest->at++) {
    unsigned digit = (unsigned)(*rest->at - '0');
    if (value > (UINT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *number = value;
  return rest->at > start;
}

static bool read_id(struct rest *rest, char id[ML_ID_MAX + 1]) {
  const char *space = memchr(rest->at, ' ', (size_t)(rest->end - rest->at));
  if (space == NULL) return false;
  size_t length = (size_t)(space - rest->at);
  if (!ml_record_id_ok(rest->at, length)) return false;
  memcpy(id, rest->at, length);
  id[length] = '\0';
  rest->at = space + 1;
  return true;
}

static bool read_seconds_as_ms(struct rest *rest, int64_t *ms) {
  uint64_t whole;
  if (!read_digits(rest, &whole) || whole > INT64_MAX / 1000 - 1) return false;
  int64_t total = (int64_t)whole * 1000;
  if (rest->at < rest->end && *rest->at == '.') {
    const char *first = ++rest->at;
    int64_t weight = 100;
    for (; rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9'; rest->at++) {
      total += weight * (*rest->at - '0');
      weight /= 10;
    }
    if (rest->at == first || rest->at - first > 3) return false;
  }
  *ms = total;
  return total > 0;
}

bool ml_record_decode(const char *value, size_t length, struct ml_record *record) {
  struct rest rest = {value, value + length};
  size_t magic = strlen(MAGIC);
  if (length < magic || memcmp(value, MAGIC, magic) != 0) return false;
  rest.at += magic;

  uint64_t since;
  if (!read_id(&rest, record->id)) return false;
  if (!read_digits(&rest, &record->seq) || !read_space(&rest)) return false;
  if (!read_digits(&rest, &since) || since > INT64_MAX || !read_space(&rest)) return false;
  if (!read_seconds_as_ms(&rest, &record->ttl_ms) || !read_space(&rest)) return false;
  record->since = (int64_t)since;

  size_t left = (size_t)(rest.end - rest.at);
  if (!ml_record_label_ok(rest.at, left)) return false;
  memcpy(record->label, rest.at, left);
  record->label[left] = '\0';
  return true;
}
