/* Time: spans that saturate, a clock that does not go back, a sleep that a signal ends. */
#include <math.h>
#include <sys/time.h>
#include <time.h>

#include "check.h"

static void test_clock_span_converts_and_saturates(void **state) {
  (void)state;
  assert_true(ml_clock_span(1) == ML_SECOND);
  assert_true(ml_clock_span(0.5) == ML_SECOND / 2);
  assert_true(ml_clock_span(2419200) == 2419200 * ML_SECOND);
  assert_true(ml_clock_span(1e-9) == 1);
  assert_true(ml_clock_span(1e-12) == 0);
  assert_true(ml_clock_span(0) == 0);
  assert_true(ml_clock_span(-0.0) == 0);
  assert_true(ml_clock_span(-1) == 0);
  assert_true(ml_clock_span((double)-INFINITY) == 0);
  assert_true(ml_clock_span((double)NAN) == 0);
  assert_true(ml_clock_span((double)INFINITY) == ML_FOREVER);
  assert_true(ml_clock_span(1e300) == ML_FOREVER);
  assert_true(ml_clock_span(9e9) == ML_FOREVER);
  int64_t longest = ml_clock_span(8999999999.5);
  assert_true(longest > 8999999999 * ML_SECOND && longest < ML_FOREVER);
}

static void test_clock_seconds_is_the_way_back(void **state) {
  (void)state;
  assert_true(ml_clock_seconds(ML_SECOND) == 1.0);
  assert_true(ml_clock_seconds(1500 * MS) == 1.5);
  assert_true(ml_clock_seconds(0) == 0.0);
  assert_true(ml_clock_seconds(ML_FOREVER) > 9e9);
}

static void test_clock_after_saturates(void **state) {
  (void)state;
  assert_true(ml_clock_after(5, 7) == 12);
  assert_true(ml_clock_after(5, 0) == 5);
  assert_true(ml_clock_after(5, ML_FOREVER) == ML_FOREVER);
  assert_true(ml_clock_after(0, ML_FOREVER) == ML_FOREVER);
  assert_true(ml_clock_after(5, ML_FOREVER - 5) == ML_FOREVER);
  assert_true(ml_clock_after(5, ML_FOREVER - 6) == ML_FOREVER - 1);
  assert_true(ml_clock_after(ML_FOREVER, 0) == ML_FOREVER);
  assert_true(ml_clock_after(ML_FOREVER, ML_FOREVER) == ML_FOREVER);
}

static void test_clock_now_does_not_go_back(void **state) {
  (void)state;
  int64_t last = ml_clock_now();
  assert_true(last > 0);
  for (int i = 0; i < 100000; i++) {
    int64_t now = ml_clock_now();
    assert_true(now >= last);
    last = now;
  }
}

static void test_clock_now_counts_suspended_time(void **state) {
  (void)state;
#ifdef CLOCK_BOOTTIME
  struct timespec boot;
  assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &boot), 0);
  int64_t difference = ml_clock_now() - (boot.tv_sec * ML_SECOND + boot.tv_nsec);
  assert_true(difference >= 0 && difference < ML_SECOND);
#else
  skip();
#endif
}

static void test_clock_unix_is_the_wall_clock(void **state) {
  (void)state;
  int64_t difference = ml_clock_unix_us() - (int64_t)time(NULL) * 1000000;
  assert_true(difference > -1000000 && difference < 3000000);
}

static void test_clock_sleep_takes_its_time(void **state) {
  (void)state;
  int64_t started = ml_clock_now();
  assert_true(ml_clock_sleep(30 * MS));
  assert_took_at_least(started, 30 * MS);
  assert_took_less(started, 30 * MS + AT_ONCE);
}

static void test_clock_sleep_of_no_time_returns_at_once(void **state) {
  (void)state;
  int64_t started = ml_clock_now();
  assert_true(ml_clock_sleep(0));
  assert_true(ml_clock_sleep(-1));
  assert_true(ml_clock_sleep(INT64_MIN));
  assert_took_less(started, AT_ONCE);
}

static void on_alarm(int signal_number) { (void)signal_number; }

static void test_clock_sleep_ends_early_on_a_signal(void **state) {
  (void)state;
  /* Even where the handler asks for calls to be restarted. */
  static const int flags[] = {0, SA_RESTART};
  static const int64_t spans[] = {5 * ML_SECOND, ML_FOREVER};
  for (size_t f = 0; f < 2; f++)
    for (size_t s = 0; s < 2; s++) {
      struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags[f]}, before;
      assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
      /* Again and again, should the first one come before the sleep begins. */
      struct itimerval timer = {{0, 20000}, {0, 20000}}, none = {{0, 0}, {0, 0}};
      int64_t started = ml_clock_now();
      assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
      bool slept = ml_clock_sleep(spans[s]);
      assert_int_equal(setitimer(ITIMER_REAL, &none, NULL), 0);
      assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
      assert_false(slept);
      assert_took_less(started, 20 * MS + AT_ONCE);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_clock_span_converts_and_saturates),
      cmocka_unit_test(test_clock_seconds_is_the_way_back),
      cmocka_unit_test(test_clock_after_saturates),
      cmocka_unit_test(test_clock_now_does_not_go_back),
      cmocka_unit_test(test_clock_now_counts_suspended_time),
      cmocka_unit_test(test_clock_unix_is_the_wall_clock),
      cmocka_unit_test(test_clock_sleep_takes_its_time),
      cmocka_unit_test(test_clock_sleep_of_no_time_returns_at_once),
      cmocka_unit_test(test_clock_sleep_ends_early_on_a_signal),
  };
  return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
