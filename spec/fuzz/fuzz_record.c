/*
 * The decoder of lock records. Whatever it accepts is within all bounds and is, written again, the
 * same record; whatever we can write, it reads.
 */
#include "fuzz.h"
#include "record.h"

static bool same(const struct ml_record *a, const struct ml_record *b) {
  return strcmp(a->id, b->id) == 0 && a->seq == b->seq && a->since == b->since &&
         a->ttl_ms == b->ttl_ms && strcmp(a->label, b->label) == 0;
}

static void check_fields(const struct ml_record *record) {
  CLAIM(memchr(record->id, '\0', sizeof record->id) != NULL);
  CLAIM(memchr(record->label, '\0', sizeof record->label) != NULL);
  CLAIM(ml_record_id_ok(record->id, strlen(record->id)));
  CLAIM(ml_record_label_ok(record->label, strlen(record->label)));
  CLAIM(record->since >= 0);
  CLAIM(record->ttl_ms > 0);
}

static void check_round_trip(const struct ml_record *record) {
  char text[ML_RECORD_MAX];
  memset(text, 'x', sizeof text);
  size_t length = ml_record_encode(record, text);
  CLAIM(length < sizeof text && strlen(text) == length);

  char *copy = exact_copy(text, length);
  struct ml_record again;
  CLAIM(ml_record_decode(copy, length, &again));
  CLAIM(same(record, &again));
  /* No part of it is a record: only the label may be shorter. */
  size_t label = strlen(record->label);
  for (size_t cut = 0; cut < length; cut++) {
    struct ml_record part;
    CLAIM(ml_record_decode(copy, cut, &part) == (cut >= length - label));
  }
  free(copy);
}

/* Is this number, leading zeros aside, what stands at *at? Passes it and one byte more. */
static void check_number(const char **at, const char *end, uint64_t number) {
  char digits[24];
  int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
  while (*at + 1 < end && **at == '0' && (*at)[1] >= '0' && (*at)[1] <= '9') (*at)++;
  CLAIM(end - *at > length && memcmp(*at, digits, (size_t)length) == 0);
  *at += length;
  CLAIM(**at == ' ' || **at == '.');
  (*at)++;
}

/* No number was misread. */
static void check_numbers(const char *value, size_t size, const struct ml_record *record) {
  const char *at = value + strlen("memlock/1 ") + strlen(record->id) + 1;
  check_number(&at, value + size, record->seq);
  check_number(&at, value + size, (uint64_t)record->since);
  check_number(&at, value + size, (uint64_t)record->ttl_ms / 1000);
}

/* Takes `size` bytes from the front of what is left; zeros where there are none. */
static void draw(const uint8_t **data, size_t *left, void *out, size_t size) {
  size_t there = size < *left ? size : *left;
  memset(out, 0, size);
  if (there > 0) memcpy(out, *data, there);
  *data += there;
  *left -= there;
}

/* A record made of the bytes, wherever its parts are valid. */
static void check_built(const uint8_t *data, size_t left) {
  struct ml_record record = {.id = "x"};
  uint8_t lengths[2];
  char id[ML_ID_MAX], label[ML_LABEL_MAX];
  draw(&data, &left, lengths, sizeof lengths);
  draw(&data, &left, &record.seq, sizeof record.seq);
  draw(&data, &left, &record.since, sizeof record.since);
  draw(&data, &left, &record.ttl_ms, sizeof record.ttl_ms);
  record.since &= INT64_MAX;
  record.ttl_ms &= INT64_MAX;
  if (record.ttl_ms == 0) record.ttl_ms = 1;
  if (record.ttl_ms / 1000 > INT64_MAX / 1000 - 1) record.ttl_ms /= 2;
  size_t id_length = 1 + lengths[0] % ML_ID_MAX;
  size_t label_length = lengths[1] % (ML_LABEL_MAX + 1);
  draw(&data, &left, id, id_length);
  draw(&data, &left, label, label_length);
  if (ml_record_id_ok(id, id_length)) {
    memcpy(record.id, id, id_length);
    record.id[id_length] = '\0';
  }
  if (ml_record_label_ok(label, label_length)) {
    memcpy(record.label, label, label_length);
    record.label[label_length] = '\0';
  }
  check_round_trip(&record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *value = exact_copy(data, size);
  struct ml_record record;
  if (ml_record_decode(value, size, &record)) {
    CLAIM(size >= 10 && memcmp(value, "memlock/1 ", 10) == 0);
    check_fields(&record);
    check_round_trip(&record);
    check_numbers(value, size, &record);
    size_t label = strlen(record.label);
    CLAIM(label <= size && memcmp(value + size - label, record.label, label) == 0);
  }
  free(value);
  check_built(data, size);
  return 0;
}
