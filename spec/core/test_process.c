/* Which process is this? A number that stays, and that a fork changes. */
#include "check.h"
#include "process.h"

/* The generations of a child's ancestors, nearest last. */
struct line {
  uint64_t generations[8];
  int count;
};

static int differs_from_ancestors(void *argument) {
  struct line line = *(struct line *)argument;
  uint64_t own = ml_process_generation();
  CHILD_CHECK(own != 0);
  for (int i = 0; i < line.count; i++) CHILD_CHECK(own != line.generations[i]);
  for (int i = 0; i < 1000; i++) CHILD_CHECK(ml_process_generation() == own);
  if (line.count == 4) return 0;
  line.generations[line.count++] = own;
  pid_t pid = fork();
  CHILD_CHECK(pid >= 0);
  if (pid == 0) _exit(differs_from_ancestors(&line));
  int status;
  CHILD_CHECK(waitpid(pid, &status, 0) == pid);
  CHILD_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHILD_CHECK(ml_process_generation() == own);
  return 0;
}

static void test_process_generation_stays(void **state) {
  (void)state;
  uint64_t generation = ml_process_generation();
  assert_true(generation != 0);
  for (int i = 0; i < 100000; i++) assert_true(ml_process_generation() == generation);
}

static void test_process_generation_differs_in_children_and_theirs(void **state) {
  (void)state;
  struct line line = {{ml_process_generation()}, 1};
  assert_true(in_child(differs_from_ancestors, &line));
  assert_true(in_child(differs_from_ancestors, &line));
  assert_true(ml_process_generation() == line.generations[0]);
}

/* A child that never asks passes nothing on that a grandchild could be mixed up by. */
static int only_its_child_asks(void *argument) {
  pid_t pid = fork();
  CHILD_CHECK(pid >= 0);
  if (pid == 0) _exit(ml_process_generation() == *(uint64_t *)argument);
  int status;
  CHILD_CHECK(waitpid(pid, &status, 0) == pid);
  CHILD_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return 0;
}

static void test_process_generation_differs_across_a_child_that_did_not_ask(void **state) {
  (void)state;
  uint64_t generation = ml_process_generation();
  assert_true(in_child(only_its_child_asks, &generation));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_process_generation_stays),
      cmocka_unit_test(test_process_generation_differs_in_children_and_theirs),
      cmocka_unit_test(test_process_generation_differs_across_a_child_that_did_not_ask),
  };
  return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
