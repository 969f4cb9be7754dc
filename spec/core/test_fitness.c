/* Is a server fit for locks: what each fact means, alone and at its bounds. */
#include "check.h"
#include "fitness.h"

/* A server with nothing against it. */
static struct ml_facts fit(void) {
  return (struct ml_facts){.version = "1.6.18",
                           .tells = true,
                           .uptime = 86400,
                           .clock_offset = 0,
                           .evicts = false,
                           .evictions = 0,
                           .limit = 64 << 20,
                           .used = 1 << 20,
                           .has_cas = true,
                           .is_proxy = false,
                           .round_trip = MS};
}

static size_t count_of(const struct ml_facts *facts) {
  struct ml_findings findings;
  ml_fitness(facts, &findings);
  for (size_t i = 0; i < findings.count; i++) {
    const char *text = findings.text[i];
    size_t length = strlen(text);
    assert_true(length > 20 && length < sizeof findings.text[0] - 1); /* not cut off */
    assert_true(text[0] >= 'A' && text[0] <= 'Z');
    assert_int_equal(text[length - 1], '.');
  }
  return findings.count;
}

/* That there is one finding, and that it has these words. */
static void finds(const struct ml_facts *facts, const char *words) {
  struct ml_findings findings;
  ml_fitness(facts, &findings);
  if (findings.count != 1)
    for (size_t i = 0; i < findings.count; i++) print_error("%s\n", findings.text[i]);
  assert_int_equal(count_of(facts), 1);
  assert_contains(findings.text[0], words);
}

static void test_fitness_finds_nothing_in_a_good_server(void **state) {
  (void)state;
  struct ml_facts facts = fit();
  assert_int_equal(count_of(&facts), 0);
}

static void test_fitness_wants_compare_and_swap(void **state) {
  (void)state;
  struct ml_facts facts = fit();
  facts.has_cas = false;
  finds(&facts, "-C");
}

static void test_fitness_knows_which_versions_are_old(void **state) {
  (void)state;
  static const struct {
    const char *version;
    bool old;
  } cases[] = {
      {"1.2.8", true},
      {"1.3.0", true},
      {"1.4.0", true},
      {"1.4.19", true},
      {"1.4.19-9", true},
      {"1.4.20", false},
      {"1.4.39", false},
      {"1.5.0", false},
      {"1.6.45", false},
      {"1.10.0", false},
      {"2.0.0", false},
      {"0.9.9", true},
      {"1.4", true},
      {"1", true},
      {"1.4.20_beta1", false},
      {"1.6.18-dirty", false},
      {"10.1.1", false},
      {"unknown", true},
      {"", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct ml_facts facts = fit();
    (void)snprintf(facts.version, sizeof facts.version, "%s", cases[i].version);
    if (cases[i].old) {
      finds(&facts, "is very old");
      finds(&facts, cases[i].version);
    } else {
      if (count_of(&facts) != 0) print_error("%s\n", cases[i].version);
      assert_int_equal(count_of(&facts), 0);
    }
  }
}

static void test_fitness_minds_evictions(void **state) {
  (void)state;
  struct ml_facts facts = fit();
  facts.evicts = true;
  finds(&facts, "-M");
  facts = fit();
  facts.evictions = 1;
  finds(&facts, "dropped 1 items");
  facts.evictions = UINT64_MAX;
  finds(&facts, "18446744073709551615");
  facts.evicts = true;
  assert_int_equal(count_of(&facts), 2);
}

static void test_fitness_minds_memory_that_is_nearly_full(void **state) {
  (void)state;
  static const struct {
    uint64_t limit, used;
    bool full;
  } cases[] = {
      {0, 0, false},
      {0, 1000, false}, /* it has no limit, or does not say */
      {64 << 20, 0, false},
      {64 << 20, 60397977, false}, /* one byte below nine tenths, and some */
      {64 << 20, 60800000, true},
      {64 << 20, 64 << 20, true},
      {64 << 20, 65 << 20, true},
      {1 << 20, 500000, false},
      {1 << 20, 1000000, true},
      {UINT64_MAX, UINT64_MAX / 2, false},
      {UINT64_MAX, UINT64_MAX, true},
      {1, 1, false}, /* so small that it cannot be said */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct ml_facts facts = fit();
    facts.limit = cases[i].limit;
    facts.used = cases[i].used;
    if (cases[i].full) {
      finds(&facts, "nearly full");
    } else {
      if (count_of(&facts) != 0) print_error("case %zu\n", i);
      assert_int_equal(count_of(&facts), 0);
    }
  }
}

static void test_fitness_minds_a_server_that_was_just_started(void **state) {
  (void)state;
  static const int64_t young[] = {0, 1, 30, 59};
  static const int64_t grown[] = {60, 61, 86400, INT64_MAX};
  struct ml_facts facts = fit();
  for (size_t i = 0; i < sizeof young / sizeof young[0]; i++) {
    facts.uptime = young[i];
    finds(&facts, "was started");
  }
  for (size_t i = 0; i < sizeof grown / sizeof grown[0]; i++) {
    facts.uptime = grown[i];
    assert_int_equal(count_of(&facts), 0);
  }
}

static void test_fitness_minds_clocks_that_differ(void **state) {
  (void)state;
  static const int64_t alike[] = {-2, -1, 0, 1, 2};
  static const int64_t apart[] = {-3, 3, 3600, -3600, INT64_MAX, INT64_MIN};
  struct ml_facts facts = fit();
  for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
    facts.clock_offset = alike[i];
    assert_int_equal(count_of(&facts), 0);
  }
  for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++) {
    facts.clock_offset = apart[i];
    finds(&facts, "NTP");
  }
}

static void test_fitness_of_one_that_tells_nothing_is_about_what_was_seen(void **state) {
  (void)state;
  struct ml_facts facts = {.version = "",
                           .has_cas = true,
                           .is_proxy = true,
                           .evicts = true,
                           .evictions = 7,
                           .clock_offset = 99};
  finds(&facts, "option proxy");
  facts.has_cas = false;
  assert_int_equal(count_of(&facts), 2);
}

static void test_fitness_has_room_for_all_at_once(void **state) {
  (void)state;
  struct ml_facts facts = {.version = "0.0.0000000000000000000000000",
                           .tells = true,
                           .uptime = INT64_MIN,
                           .clock_offset = INT64_MIN,
                           .evicts = true,
                           .evictions = UINT64_MAX,
                           .limit = UINT64_MAX,
                           .used = UINT64_MAX,
                           .is_proxy = true};
  assert_int_equal(count_of(&facts), ML_FINDINGS_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fitness_finds_nothing_in_a_good_server),
      cmocka_unit_test(test_fitness_wants_compare_and_swap),
      cmocka_unit_test(test_fitness_knows_which_versions_are_old),
      cmocka_unit_test(test_fitness_minds_evictions),
      cmocka_unit_test(test_fitness_minds_memory_that_is_nearly_full),
      cmocka_unit_test(test_fitness_minds_a_server_that_was_just_started),
      cmocka_unit_test(test_fitness_minds_clocks_that_differ),
      cmocka_unit_test(test_fitness_of_one_that_tells_nothing_is_about_what_was_seen),
      cmocka_unit_test(test_fitness_has_room_for_all_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
