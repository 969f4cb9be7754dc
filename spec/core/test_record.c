/* The lock record: what is written is read back, and nothing else is. */
#include <locale.h>

#include "check.h"
#include "record.h"

static struct ml_record sample(void) {
  return (struct ml_record){.id = "0123456789abcdef0123456789abcdef",
                            .seq = 7,
                            .since = 1700000000,
                            .ttl_ms = 16000,
                            .label = "host:123"};
}

static void assert_round_trip(const struct ml_record *record) {
  char text[ML_RECORD_MAX];
  size_t length = ml_record_encode(record, text);
  assert_true(length < ML_RECORD_MAX);
  assert_int_equal(strlen(text), length);
  struct ml_record read;
  if (!ml_record_decode(text, length, &read)) fail_msg("cannot be read: %s", text);
  assert_string_equal(read.id, record->id);
  assert_true(read.seq == record->seq);
  assert_true(read.since == record->since);
  assert_true(read.ttl_ms == record->ttl_ms);
  assert_string_equal(read.label, record->label);
}

static void test_record_has_the_documented_form(void **state) {
  (void)state;
  char text[ML_RECORD_MAX];
  struct ml_record record = sample();
  size_t length = ml_record_encode(&record, text);
  assert_string_equal(text, "memlock/1 0123456789abcdef0123456789abcdef 7 1700000000 16 host:123");
  assert_int_equal(length, strlen(text));
}

static void test_record_writes_ttls_without_needless_digits(void **state) {
  (void)state;
  static const struct {
    int64_t ttl_ms;
    const char *text;
  } rows[] = {
      {1, " 0.001 "},    {10, " 0.01 "},   {100, " 0.1 "},      {120, " 0.12 "},
      {1000, " 1 "},     {1050, " 1.05 "}, {1500, " 1.5 "},     {12345, " 12.345 "},
      {100000, " 100 "}, {999, " 0.999 "}, {10001, " 10.001 "}, {INT64_C(2419200000), " 2419200 "},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_record record = sample();
    record.ttl_ms = rows[i].ttl_ms;
    char text[ML_RECORD_MAX];
    (void)ml_record_encode(&record, text);
    assert_contains(text, rows[i].text);
    assert_round_trip(&record);
  }
}

static void test_record_survives_round_trips_at_its_limits(void **state) {
  (void)state;
  struct ml_record record = sample();
  memset(record.id, 'i', ML_ID_MAX);
  record.id[ML_ID_MAX] = '\0';
  memset(record.label, 'l', ML_LABEL_MAX);
  record.label[ML_LABEL_MAX] = '\0';
  record.seq = UINT64_MAX;
  record.since = INT64_MAX;
  record.ttl_ms = INT64_MAX - 3000;
  assert_round_trip(&record);

  record = sample();
  (void)snprintf(record.id, sizeof record.id, "!");
  record.label[0] = '\0';
  record.seq = 0;
  record.since = 0;
  record.ttl_ms = 1;
  assert_round_trip(&record);

  /* All the bytes that an id and a label may have. */
  for (int byte = 0x20; byte <= 0xff; byte++) {
    if (byte == 0x7f) continue;
    record = sample();
    record.label[0] = record.label[3] = (char)byte;
    if (byte > 0x20) record.id[0] = record.id[5] = (char)byte;
    assert_round_trip(&record);
  }
}

static void test_record_keeps_spaces_of_a_label(void **state) {
  (void)state;
  struct ml_record record = sample();
  (void)snprintf(record.label, sizeof record.label, "%s", "  two words  ");
  assert_round_trip(&record);
}

static void test_record_reads_no_malformed_value(void **state) {
  (void)state;
  static const char *const values[] = {
      "",
      " ",
      "m",
      "memlock/1",
      "memlock/1 ",
      "memlock/2 id 1 2 3 l",
      "Memlock/1 id 1 2 3 l",
      " memlock/1 id 1 2 3 l",
      "memlock/1id 1 2 3 l",
      "memlock/1\tid 1 2 3 l",
      "memlock/1  1 2 3 l", /* no id */
      "memlock/1 id",
      "memlock/1 id ",
      "memlock/1 id 1",
      "memlock/1 id 1 ",
      "memlock/1 id 1 2",
      "memlock/1 id 1 2 ",
      "memlock/1 id 1 2 3", /* the space before the label is part of the form */
      "memlock/1 id  1 2 3 l",
      "memlock/1 id 1  2 3 l",
      "memlock/1 id 1 2  3 l",
      "memlock/1 id x 2 3 l",
      "memlock/1 id 1 x 3 l",
      "memlock/1 id 1 2 x l",
      "memlock/1 id -1 2 3 l",
      "memlock/1 id +1 2 3 l",
      "memlock/1 id 1 -2 3 l",
      "memlock/1 id 1 +2 3 l",
      "memlock/1 id 1 2 -3 l",
      "memlock/1 id 1 2 +3 l",
      "memlock/1 id 0x1 2 3 l",
      "memlock/1 id 1 0x2 3 l",
      "memlock/1 id 1 2 0x3 l",
      "memlock/1 id 1e3 2 3 l",
      "memlock/1 id 1 2 3e3 l",
      "memlock/1 id 1.0 2 3 l",
      "memlock/1 id 1 2.0 3 l",
      "memlock/1 id 1 2 0 l", /* a lease of no time */
      "memlock/1 id 1 2 0.0 l",
      "memlock/1 id 1 2 0.000 l",
      "memlock/1 id 1 2 .5 l",
      "memlock/1 id 1 2 3. l",
      "memlock/1 id 1 2 3.1234 l",
      "memlock/1 id 1 2 3,5 l",
      "memlock/1 id 1 2 3.5.5 l",
      "memlock/1 id 1 2 inf l",
      "memlock/1 id 1 2 nan l",
      "memlock/1 id 18446744073709551616 2 3 l",
      "memlock/1 id 99999999999999999999999 2 3 l",
      "memlock/1 id 1 9223372036854775808 3 l",
      "memlock/1 id 1 99999999999999999999999 3 l",
      "memlock/1 id 1 2 9223372036854775 l",
      "memlock/1 id 1 2 9223372036854775807 l",
      "memlock/1 id 1 2 18446744073709551616 l",
      "memlock/1 i\x7f 1 2 3 l",
      "memlock/1 i\x01 1 2 3 l",
      "memlock/1 i\td 1 2 3 l",
      "memlock/1 id 1 2 3 l\n",
      "memlock/1 id 1 2 3 l\r\n",
      "memlock/1 id 1 2 3 l\x7f",
      "memlock/1 id 1 2 3 \tl",
      "memlock/1 id 1 2 3\nl",
      "memlock/1\nid 1 2 3 l",
      "somebody",
      "1",
  };
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    struct ml_record record;
    if (ml_record_decode(values[i], strlen(values[i]), &record))
      fail_msg("was read: \"%s\"", values[i]);
  }
}

static void test_record_reads_no_prefix_of_a_record_as_another_holder(void **state) {
  (void)state;
  /* Cut anywhere, in memory of exactly that size so that a tool sees what is read beyond it. */
  char text[ML_RECORD_MAX];
  struct ml_record record = sample();
  size_t length = ml_record_encode(&record, text);
  size_t label = length - strlen(record.label);
  for (size_t cut = 0; cut < length; cut++) {
    char *part = malloc(cut + 1);
    assert_non_null(part);
    char *exact = cut > 0 ? malloc(cut) : part;
    assert_non_null(exact);
    memcpy(exact, text, cut);
    struct ml_record read;
    bool is_record = ml_record_decode(exact, cut, &read);
    assert_int_equal(is_record, cut >= label);
    if (exact != part) free(exact);
    free(part);
  }
}

static void test_record_with_zero_bytes_is_none(void **state) {
  (void)state;
  char text[ML_RECORD_MAX];
  struct ml_record record = sample();
  size_t length = ml_record_encode(&record, text);
  struct ml_record read;
  for (size_t i = 0; i < length; i++) {
    char kept = text[i];
    text[i] = '\0';
    assert_false(ml_record_decode(text, length, &read));
    text[i] = kept;
  }
  assert_false(ml_record_decode(text, length + 1, &read));
  assert_true(ml_record_decode(text, length, &read));
}

static void test_record_beyond_its_limits_is_none(void **state) {
  (void)state;
  char value[4096];
  struct ml_record read;
  char longest[ML_ID_MAX + 2];
  memset(longest, 'a', sizeof longest);
  int length = snprintf(value, sizeof value, "memlock/1 %.*s 1 2 3 l", ML_ID_MAX, longest);
  assert_true(ml_record_decode(value, (size_t)length, &read));
  length = snprintf(value, sizeof value, "memlock/1 %.*s 1 2 3 l", ML_ID_MAX + 1, longest);
  assert_false(ml_record_decode(value, (size_t)length, &read));

  char label[2000];
  memset(label, 'b', sizeof label);
  length = snprintf(value, sizeof value, "memlock/1 id 1 2 3 %.*s", ML_LABEL_MAX, label);
  assert_true(ml_record_decode(value, (size_t)length, &read));
  assert_int_equal(strlen(read.label), ML_LABEL_MAX);
  length = snprintf(value, sizeof value, "memlock/1 id 1 2 3 %.*s", ML_LABEL_MAX + 1, label);
  assert_false(ml_record_decode(value, (size_t)length, &read));
  length = snprintf(value, sizeof value, "memlock/1 id 1 2 3 %.*s", (int)sizeof label, label);
  assert_false(ml_record_decode(value, (size_t)length, &read));

  /* As large as memcached's items get. */
  size_t huge = 1 << 20;
  char *item = malloc(huge);
  assert_non_null(item);
  memset(item, '9', huge);
  assert_false(ml_record_decode(item, huge, &read));
  memcpy(item, "memlock/1 ", 10);
  assert_false(ml_record_decode(item, huge, &read));
  memcpy(item, "memlock/1 id ", 13);
  assert_false(ml_record_decode(item, huge, &read));
  memcpy(item, "memlock/1 id 1 2 ", 17);
  assert_false(ml_record_decode(item, huge, &read));
  free(item);
}

static void test_record_decode_withstands_any_bytes(void **state) {
  (void)state;
  /* A record with bytes changed at random: read or not, never beyond its bounds. */
  char text[ML_RECORD_MAX];
  struct ml_record record = sample();
  record.ttl_ms = 12345;
  size_t length = ml_record_encode(&record, text);
  uint32_t random = 12345;
  for (int round = 0; round < 20000; round++) {
    char *value = malloc(length);
    assert_non_null(value);
    memcpy(value, text, length);
    for (int change = 0; change < 1 + round % 4; change++) {
      random = random * 1664525 + 1013904223;
      value[(random >> 8) % length] = (char)(random >> 24);
    }
    struct ml_record read;
    if (ml_record_decode(value, length, &read)) {
      assert_true(ml_record_id_ok(read.id, strlen(read.id)));
      assert_true(ml_record_label_ok(read.label, strlen(read.label)));
      assert_true(read.ttl_ms > 0);
      assert_true(read.since >= 0);
    }
    free(value);
  }
}

static void test_record_ids_and_labels_have_bounds(void **state) {
  (void)state;
  char text[ML_LABEL_MAX + 2];
  memset(text, 'x', sizeof text);
  assert_false(ml_record_id_ok(text, 0));
  assert_true(ml_record_id_ok(text, 1));
  assert_true(ml_record_id_ok(text, ML_ID_MAX));
  assert_false(ml_record_id_ok(text, ML_ID_MAX + 1));
  assert_true(ml_record_label_ok(text, 0));
  assert_true(ml_record_label_ok(text, ML_LABEL_MAX));
  assert_false(ml_record_label_ok(text, ML_LABEL_MAX + 1));
  for (int byte = 0; byte <= 0xff; byte++) {
    text[1] = (char)byte;
    assert_int_equal(ml_record_id_ok(text, 3), byte > 0x20 && byte != 0x7f);
    assert_int_equal(ml_record_label_ok(text, 3), byte >= 0x20 && byte != 0x7f);
  }
}

/* Makes a locale of its own, of which only the decimal comma matters, where the system has none;
 * false when that cannot be had either. */
static bool set_comma_locale(char *directory) {
  static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "da_DK.UTF-8"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (setlocale(LC_NUMERIC, names[i]) != NULL) return true;
  if (mkdtemp(directory) == NULL) return false;
  char command[512];
  (void)snprintf(command, sizeof command,
                 "{ cd %s && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\n"
                 "grouping -1\\nEND LC_NUMERIC\\n' >source && "
                 "localedef -c --no-archive -i ./source -f ANSI_X3.4-1968 ./comma; } "
                 ">/dev/null 2>&1",
                 directory);
  (void)!system(command); /* it complains of what is missing, and makes the rest */
  (void)setenv("LOCPATH", directory, 1);
  return setlocale(LC_NUMERIC, "comma") != NULL;
}

static void test_record_does_not_depend_on_the_locale(void **state) {
  (void)state;
  char directory[] = "/tmp/ml-XXXXXX";
  bool set = set_comma_locale(directory);
  char comma[16] = "", text[ML_RECORD_MAX];
  struct ml_record record = sample(), read;
  record.ttl_ms = 1500;
  bool is_record = false, comma_is_record = false;
  if (set) {
    (void)snprintf(comma, sizeof comma, "%.1f", 1.5);
    is_record = ml_record_decode(text, ml_record_encode(&record, text), &read);
    static const char other[] = "memlock/1 id 1 2 3,5 l";
    comma_is_record = ml_record_decode(other, sizeof other - 1, &record);
  }
  (void)setlocale(LC_NUMERIC, "C");
  (void)unsetenv("LOCPATH");
  if (strstr(directory, "XXXXXX") == NULL) {
    char command[64];
    (void)snprintf(command, sizeof command, "rm -rf %s", directory);
    (void)!system(command);
  }
  if (!set) skip();
  assert_string_equal(comma, "1,5"); /* or this test tests nothing */
  assert_true(is_record);
  assert_true(read.ttl_ms == 1500);
  assert_contains(text, " 1.5 ");
  assert_false(comma_is_record);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_record_has_the_documented_form),
      cmocka_unit_test(test_record_writes_ttls_without_needless_digits),
      cmocka_unit_test(test_record_survives_round_trips_at_its_limits),
      cmocka_unit_test(test_record_keeps_spaces_of_a_label),
      cmocka_unit_test(test_record_reads_no_malformed_value),
      cmocka_unit_test(test_record_reads_no_prefix_of_a_record_as_another_holder),
      cmocka_unit_test(test_record_with_zero_bytes_is_none),
      cmocka_unit_test(test_record_beyond_its_limits_is_none),
      cmocka_unit_test(test_record_decode_withstands_any_bytes),
      cmocka_unit_test(test_record_ids_and_labels_have_bounds),
      cmocka_unit_test(test_record_does_not_depend_on_the_locale),
  };
  return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
