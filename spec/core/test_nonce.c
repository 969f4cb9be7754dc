/* Randomness: ids that do not repeat, in this process or between it and its children. */
#include "check.h"
#include "nonce.h"

#define COUNT 100000

static int compare(const void *a, const void *b) { return memcmp(a, b, ML_NONCE_LENGTH + 1); }

static void test_nonce_does_not_repeat(void **state) {
  (void)state;
  char(*ids)[ML_NONCE_LENGTH + 1] = malloc(COUNT * sizeof *ids);
  assert_non_null(ids);
  for (size_t i = 0; i < COUNT; i++) assert_true(ml_nonce(ids[i]));
  qsort(ids, COUNT, sizeof *ids, compare);
  for (size_t i = 1; i < COUNT; i++) assert_string_not_equal(ids[i - 1], ids[i]);
  free(ids);
}

static void test_nonce_is_lower_case_hex(void **state) {
  (void)state;
  unsigned seen[16] = {0};
  for (int i = 0; i < 1000; i++) {
    char id[ML_NONCE_LENGTH + 1];
    memset(id, 'x', sizeof id);
    assert_true(ml_nonce(id));
    assert_int_equal(strlen(id), ML_NONCE_LENGTH);
    assert_int_equal(strspn(id, "0123456789abcdef"), ML_NONCE_LENGTH);
    for (size_t c = 0; c < ML_NONCE_LENGTH; c++)
      seen[id[c] <= '9' ? id[c] - '0' : id[c] - 'a' + 10]++;
  }
  /* 2000 of each are to be expected; 400 away would be nine standard deviations. */
  for (int digit = 0; digit < 16; digit++) assert_in_range(seen[digit], 1600, 2400);
}

static void test_nonce_unit_is_even_and_below_one(void **state) {
  (void)state;
  double sum = 0;
  int tenths[10] = {0};
  for (int i = 0; i < COUNT; i++) {
    double x = ml_nonce_unit();
    assert_true(x >= 0 && x < 1);
    sum += x;
    tenths[(int)(x * 10)]++;
  }
  assert_true(sum / COUNT > 0.49 && sum / COUNT < 0.51);
  for (int i = 0; i < 10; i++) assert_in_range(tenths[i], COUNT / 10 - 1000, COUNT / 10 + 1000);
}

static void test_nonce_bits_use_all_of_them(void **state) {
  (void)state;
  uint64_t ones = 0, zeros = 0;
  for (int i = 0; i < 200; i++) {
    uint64_t bits = ml_nonce_bits();
    ones |= bits;
    zeros |= ~bits;
  }
  assert_true(ones == UINT64_MAX);
  assert_true(zeros == UINT64_MAX);
}

struct draws {
  int fd;
};

static int draw_in_child(void *argument) {
  const struct draws *draws = argument;
  for (int i = 0; i < 64; i++) {
    char id[ML_NONCE_LENGTH + 1];
    CHILD_CHECK(ml_nonce(id));
    CHILD_CHECK(write(draws->fd, id, sizeof id) == (ssize_t)sizeof id);
  }
  return 0;
}

static void test_nonce_of_a_child_differs_from_its_parents(void **state) {
  (void)state;
  char ids[3 * 64][ML_NONCE_LENGTH + 1];
  for (int skip = 0; skip < 16; skip++) {
    for (int i = 0; i < skip; i++) (void)ml_nonce_bits(); /* a pool that is partly used */
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    struct draws draws = {fds[1]};
    /* Two children in turn, which begin with the same copy, then the parent. */
    assert_true(in_child(draw_in_child, &draws));
    assert_true(in_child(draw_in_child, &draws));
    assert_int_equal(draw_in_child(&draws), 0);
    char *at = ids[0];
    size_t wanted = 3 * 64 * sizeof ids[0];
    for (size_t got = 0; got < wanted;) {
      ssize_t n = read(fds[0], at + got, wanted - got);
      assert_true(n > 0);
      got += (size_t)n;
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    qsort(ids, 3 * 64, sizeof ids[0], compare);
    for (size_t i = 1; i < 3 * 64; i++) assert_string_not_equal(ids[i - 1], ids[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nonce_does_not_repeat),
      cmocka_unit_test(test_nonce_is_lower_case_hex),
      cmocka_unit_test(test_nonce_unit_is_even_and_below_one),
      cmocka_unit_test(test_nonce_bits_use_all_of_them),
      cmocka_unit_test(test_nonce_of_a_child_differs_from_its_parents),
  };
  return cmocka_run_group_tests_name("nonce", tests, NULL, NULL);
}
