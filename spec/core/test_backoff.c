/* When to ask again: the rule, tabulated. */
#include <math.h>

#include "backoff.h"
#include "check.h"
#include "nonce.h"

#define START (1000 * ML_SECOND)
#define TURN (45 * MS / 10)
#define FULL_PAUSE (1 - 0x1p-53) /* the largest random number there is: the pause as computed */

/* Within a microsecond; a pause is computed in floating point at its end. */
#define assert_pause(actual, expected)                                                             \
  do {                                                                                             \
    int64_t a_ = (actual), e_ = (expected);                                                        \
    if (a_ < e_ - 1000 || a_ > e_ + 1000)                                                          \
      fail_msg("paused %lld us, not %lld us", (long long)(a_ / 1000), (long long)(e_ / 1000));     \
  } while (0)

/* One wait that began `waited` ago and saw (fence, holder) `since_last` ago; the pause after it now
 * sees (fence2, holder2). The first sight was also that of its holder. */
static int64_t second_pause(int64_t waited, int64_t since_last, struct ml_sight before,
                            struct ml_sight now, double random) {
  struct ml_backoff backoff = {.started = START};
  (void)ml_backoff_pause(&backoff, before, START + waited - since_last, 0.5, ML_PAUSE_MIN,
                         ML_PAUSE_MAX);
  return ml_backoff_pause(&backoff, now, START + waited, random, ML_PAUSE_MIN, ML_PAUSE_MAX);
}

static void test_backoff_first_pause_is_one_turn(void **state) {
  (void)state;
  for (uint64_t fence = 0; fence < 3; fence++) {
    struct ml_backoff backoff = {.started = START};
    struct ml_sight sight = {fence * 1000000, fence};
    assert_pause(ml_backoff_pause(&backoff, sight, START, FULL_PAUSE, ML_PAUSE_MIN, ML_PAUSE_MAX),
                 TURN);
    backoff = (struct ml_backoff){.started = START};
    assert_pause(ml_backoff_pause(&backoff, sight, START, 0, ML_PAUSE_MIN, ML_PAUSE_MAX), 3 * MS);
    backoff = (struct ml_backoff){.started = START};
    assert_pause(ml_backoff_pause(&backoff, sight, START, 0.5, ML_PAUSE_MIN, ML_PAUSE_MAX),
                 TURN * 5 / 6);
  }
}

static void test_backoff_counts_the_turns_of_others(void **state) {
  (void)state;
  static const struct {
    uint64_t counts; /* of the fence between the two tries, ours included */
    bool same;
    int64_t pause;
  } rows[] = {
      {1, false, TURN},       {1, true, TURN},      {2, false, TURN},       {2, true, 2 * TURN},
      {3, false, 2 * TURN},   {3, true, 3 * TURN},  {11, false, 10 * TURN}, {11, true, 11 * TURN},
      {56, false, 55 * TURN}, {56, true, 250 * MS}, {57, false, 250 * MS},  {200, true, 250 * MS},
      {0, false, TURN}, /* not even our own count: a fence that was set by hand */
      {0, true, TURN},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_sight before = {5000, 1}, now = {5000 + rows[i].counts, rows[i].same ? 1 : 2};
    /* No time has passed, so that nothing but turns counts. */
    assert_pause(second_pause(0, 0, before, now, FULL_PAUSE), rows[i].pause);
    assert_pause(second_pause(0, 0, before, now, 0), rows[i].pause * 2 / 3);
  }
}

static void test_backoff_asks_more_often_with_age(void **state) {
  (void)state;
  static const struct {
    int64_t waited;
    int64_t pause;
  } rows[] = {
      {0, 10 * TURN},
      {50 * MS, 10 * TURN},
      {100 * MS, 10 * TURN},
      {150 * MS, 10 * TURN * 2 / 3},
      {200 * MS, 5 * TURN},
      {300 * MS, 10 * TURN / 3},
      {ML_SECOND, 10 * TURN / 3},
      {3600 * ML_SECOND, 10 * TURN / 3},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_sight before = {5000, 1}, now = {5011, 2}; /* ten others, another holder */
    assert_pause(second_pause(rows[i].waited, 0, before, now, FULL_PAUSE), rows[i].pause);
  }
}

static void test_backoff_asks_less_often_while_one_holder_stays(void **state) {
  (void)state;
  static const struct {
    int64_t seen;
    int64_t pause;
  } rows[] = {
      {0, TURN},
      {12 * MS, 6 * MS},
      {20 * MS, 10 * MS},
      {100 * MS, 50 * MS},
      {300 * MS, 150 * MS},
      {500 * MS, 250 * MS},
      {ML_SECOND, 250 * MS},
      {3600 * ML_SECOND, 250 * MS},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_sight before = {5000, 1}, now = {5001, 1};
    assert_pause(second_pause(rows[i].seen, rows[i].seen, before, now, FULL_PAUSE), rows[i].pause);
  }
}

static void test_backoff_begins_anew_with_another_holder(void **state) {
  (void)state;
  struct ml_backoff backoff = {.started = START};
  int64_t now = START;
  (void)ml_backoff_pause(&backoff, (struct ml_sight){5000, 1}, now, 0, ML_PAUSE_MIN, ML_PAUSE_MAX);
  now += ML_SECOND;
  assert_pause(ml_backoff_pause(&backoff, (struct ml_sight){5001, 1}, now, FULL_PAUSE, ML_PAUSE_MIN,
                                ML_PAUSE_MAX),
               250 * MS);
  now += 250 * MS;
  /* Waited for more than 300 ms: a third of a turn. */
  assert_pause(ml_backoff_pause(&backoff, (struct ml_sight){5002, 2}, now, FULL_PAUSE, ML_PAUSE_MIN,
                                ML_PAUSE_MAX),
               TURN / 3);
  now += 20 * MS;
  assert_pause(ml_backoff_pause(&backoff, (struct ml_sight){5003, 2}, now, FULL_PAUSE, ML_PAUSE_MIN,
                                ML_PAUSE_MAX),
               10 * MS);
  now += 20 * MS;
  /* The first holder is back, and is new all the same. */
  assert_pause(ml_backoff_pause(&backoff, (struct ml_sight){5004, 1}, now, FULL_PAUSE, ML_PAUSE_MIN,
                                ML_PAUSE_MAX),
               TURN / 3);
}

static void test_backoff_leaves_everybody_a_share(void **state) {
  (void)state;
  static const struct {
    uint64_t others;
    int64_t pause;
  } rows[] = {
      {100, 250 * MS / 3}, {200, 160 * MS}, {500, 400 * MS}, {1000, 800 * MS}, {10000, 8000 * MS},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_sight before = {5000, 1}, now = {5001 + rows[i].others, 2};
    assert_pause(second_pause(ML_SECOND, 0, before, now, FULL_PAUSE), rows[i].pause);
  }
}

static void test_backoff_takes_no_lost_fence_for_waiters(void **state) {
  (void)state;
  static const struct {
    uint64_t before;
    uint64_t now;
  } rows[] = {
      {5000, 15002},                      /* 10001 others cannot be */
      {5000, UINT64_C(1700000000000000)}, /* seeded anew with the clock */
      {UINT64_C(1700000000000000), 5},    /* gone back */
      {5000, 4999},
      {5000, 0}, /* it could not be read */
      {0, 5000}, /* nor the time before */
      {0, 0},
      {UINT64_MAX, 1},
      {1, UINT64_MAX},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_sight before = {rows[i].before, 1}, now = {rows[i].now, 2};
    assert_pause(second_pause(0, 0, before, now, FULL_PAUSE), TURN);
  }
  /* Ten thousand still are waiters. */
  struct ml_sight before = {5000, 1}, now = {15001, 2};
  assert_pause(second_pause(0, 0, before, now, FULL_PAUSE), 8000 * MS);
}

static void test_backoff_while_the_server_is_silent_slows_down(void **state) {
  (void)state;
  struct ml_backoff backoff = {.started = START};
  const struct ml_sight nothing = {0, 0};
  assert_pause(ml_backoff_pause(&backoff, nothing, START, FULL_PAUSE, ML_PAUSE_MIN, ML_PAUSE_MAX),
               TURN);
  assert_pause(
      ml_backoff_pause(&backoff, nothing, START + 200 * MS, FULL_PAUSE, ML_PAUSE_MIN, ML_PAUSE_MAX),
      100 * MS);
  assert_pause(ml_backoff_pause(&backoff, nothing, START + ML_SECOND, FULL_PAUSE, ML_PAUSE_MIN,
                                ML_PAUSE_MAX),
               250 * MS);
  /* And is quick again at the first sight of a holder. */
  assert_pause(ml_backoff_pause(&backoff, (struct ml_sight){9, 9}, START + 2 * ML_SECOND,
                                FULL_PAUSE, ML_PAUSE_MIN, ML_PAUSE_MAX),
               TURN / 3);
}

static void test_backoff_pauses_stay_within_bounds(void **state) {
  (void)state;
  for (int run = 0; run < 200; run++) {
    struct ml_backoff backoff = {.started = START};
    int64_t now = START;
    struct ml_sight sight = {1000000, 1};
    for (int i = 0; i < 100; i++) {
      int64_t pause =
          ml_backoff_pause(&backoff, sight, now, ml_nonce_unit(), ML_PAUSE_MIN, ML_PAUSE_MAX);
      assert_true(pause >= TURN / 3 * 2 / 3 - 1);
      assert_true(pause <= 8000 * MS);
      now += pause;
      uint64_t bits = ml_nonce_bits();
      sight.fence += 1 + (bits & 15) + ((bits >> 4 & 63) == 0 ? 3000 : 0);
      if ((bits >> 10 & 255) == 0) sight.fence = 1;
      if ((bits >> 18 & 1) == 0) sight.holder = bits >> 20;
    }
  }
}

static void test_backoff_jitter_averages_five_sixths(void **state) {
  (void)state;
  double sum = 0;
  const int count = 20000;
  for (int i = 0; i < count; i++) {
    struct ml_sight before = {5000, 1}, now = {5011, 2};
    int64_t pause = second_pause(0, 0, before, now, ml_nonce_unit());
    assert_true(pause >= 10 * TURN * 2 / 3 && pause < 10 * TURN);
    sum += (double)pause;
  }
  /* Its standard deviation is 31 us. */
  assert_true(fabs(sum / count - 10.0 * (double)TURN * 5 / 6) < 0.4 * (double)MS);
}

/* A lock that was acquired with token 100, and again with `token` after `tries` of its own; it was
 * held for `span` and released at START. */
static struct ml_courtesy courtesy_after(uint64_t token, uint64_t tries, int64_t span) {
  struct ml_courtesy courtesy = {0};
  ml_courtesy_tried(&courtesy, 1);
  ml_courtesy_acquired(&courtesy, 100, START - span - ML_SECOND);
  ml_courtesy_released(&courtesy, START - span - ML_SECOND / 2);
  ml_courtesy_tried(&courtesy, tries);
  ml_courtesy_acquired(&courtesy, token, START - span);
  ml_courtesy_released(&courtesy, START);
  return courtesy;
}

static void test_courtesy_follows_the_time_held(void **state) {
  (void)state;
  static const struct {
    int64_t span;
    int64_t longest;
  } rows[] = {
      {4 * MS, MS},
      {20 * MS, 5 * MS},
      {400 * MS, 100 * MS},
      {ML_SECOND, 250 * MS},
      {3600 * ML_SECOND, 250 * MS},
      {0, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_courtesy courtesy = courtesy_after(105, 1, rows[i].span);
    assert_pause(ml_courtesy_pause(&courtesy, START, FULL_PAUSE), rows[i].longest);
    assert_pause(ml_courtesy_pause(&courtesy, START, 0.5), rows[i].longest / 2);
    assert_true(ml_courtesy_pause(&courtesy, START, 0) == 0);
  }
}

static void test_courtesy_counts_from_the_release(void **state) {
  (void)state;
  struct ml_courtesy courtesy = courtesy_after(105, 1, 400 * MS);
  assert_pause(ml_courtesy_pause(&courtesy, START + 60 * MS, FULL_PAUSE), 40 * MS);
  assert_true(ml_courtesy_pause(&courtesy, START + 101 * MS, FULL_PAUSE) == 0);
  assert_true(ml_courtesy_pause(&courtesy, START + 3600 * ML_SECOND, FULL_PAUSE) == 0);
}

static void test_courtesy_is_only_for_others(void **state) {
  (void)state;
  static const struct {
    uint64_t token;
    uint64_t tries;
    bool others;
  } rows[] = {
      {101, 1, false},
      {102, 1, true},
      {103, 3, false},
      {104, 3, true},
      {110, 10, false},
      {102, 5, false},                        /* some of ours were never counted */
      {99, 1, false},                         /* the fence went back */
      {UINT64_C(1700000000000000), 1, false}, /* or was seeded anew */
      {10101, 1, true},
      {10102, 1, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_courtesy courtesy = courtesy_after(rows[i].token, rows[i].tries, 400 * MS);
    int64_t pause = ml_courtesy_pause(&courtesy, START, FULL_PAUSE);
    if ((pause > 0) != rows[i].others) fail_msg("row %zu", i);
  }
}

static void test_courtesy_needs_a_release(void **state) {
  (void)state;
  struct ml_courtesy courtesy = {0};
  assert_true(ml_courtesy_pause(&courtesy, START, FULL_PAUSE) == 0);
  /* The very first acquisition knows of nobody. */
  ml_courtesy_tried(&courtesy, 1);
  ml_courtesy_acquired(&courtesy, 1000, START);
  ml_courtesy_released(&courtesy, START + ML_SECOND);
  assert_true(ml_courtesy_pause(&courtesy, START + ML_SECOND, FULL_PAUSE) == 0);
  /* Lost instead of released: nothing to be polite about. */
  ml_courtesy_tried(&courtesy, 1);
  ml_courtesy_acquired(&courtesy, 1005, START + 2 * ML_SECOND);
  assert_true(ml_courtesy_pause(&courtesy, START + 3 * ML_SECOND, FULL_PAUSE) == 0);
}

static void test_courtesy_averages_half_of_its_bound(void **state) {
  (void)state;
  struct ml_courtesy courtesy = courtesy_after(105, 1, ML_SECOND);
  double sum = 0;
  const int count = 20000;
  for (int i = 0; i < count; i++) {
    int64_t pause = ml_courtesy_pause(&courtesy, START, ml_nonce_unit());
    assert_true(pause >= 0 && pause < 250 * MS);
    sum += (double)pause;
  }
  /* Its standard deviation is half a millisecond. */
  assert_true(fabs(sum / count - 125.0 * (double)MS) < 5.0 * (double)MS);
}

static void test_backoff_of_lost_races_doubles_to_a_bound(void **state) {
  (void)state;
  for (unsigned races = 0; races < 100; races++) {
    int64_t longest = MS << (races < 6 ? races : 6);
    assert_true(ml_backoff_race(races, 0) > 0);
    assert_pause(ml_backoff_race(races, 0.5), longest / 2);
    assert_pause(ml_backoff_race(races, FULL_PAUSE), longest);
  }
  assert_pause(ml_backoff_race(UINT32_MAX, FULL_PAUSE), 64 * MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_backoff_first_pause_is_one_turn),
      cmocka_unit_test(test_backoff_counts_the_turns_of_others),
      cmocka_unit_test(test_backoff_asks_more_often_with_age),
      cmocka_unit_test(test_backoff_asks_less_often_while_one_holder_stays),
      cmocka_unit_test(test_backoff_begins_anew_with_another_holder),
      cmocka_unit_test(test_backoff_leaves_everybody_a_share),
      cmocka_unit_test(test_backoff_takes_no_lost_fence_for_waiters),
      cmocka_unit_test(test_backoff_while_the_server_is_silent_slows_down),
      cmocka_unit_test(test_backoff_pauses_stay_within_bounds),
      cmocka_unit_test(test_backoff_jitter_averages_five_sixths),
      cmocka_unit_test(test_backoff_of_lost_races_doubles_to_a_bound),
      cmocka_unit_test(test_courtesy_follows_the_time_held),
      cmocka_unit_test(test_courtesy_counts_from_the_release),
      cmocka_unit_test(test_courtesy_is_only_for_others),
      cmocka_unit_test(test_courtesy_needs_a_release),
      cmocka_unit_test(test_courtesy_averages_half_of_its_bound),
  };
  return cmocka_run_group_tests_name("backoff", tests, NULL, NULL);
}
