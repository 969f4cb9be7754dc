/* Server addresses: what is taken, in which form, and what is refused with which words. */
#include "address.h"
#include "check.h"

static void test_address_takes_what_is_well_formed(void **state) {
  (void)state;
  static const struct {
    const char *given;
    const char *host;
    unsigned port;
    const char *text;
  } rows[] = {
      {"127.0.0.1", "127.0.0.1", 11211, "127.0.0.1:11211"},
      {"127.0.0.1:1", "127.0.0.1", 1, "127.0.0.1:1"},
      {"127.0.0.1:65535", "127.0.0.1", 65535, "127.0.0.1:65535"},
      {"0.0.0.0:80", "0.0.0.0", 80, "0.0.0.0:80"},
      {"localhost", "localhost", 11211, "localhost:11211"},
      {"LocalHost:11211", "localhost", 11211, "localhost:11211"},
      {"a", "a", 11211, "a:11211"},
      {"a.b", "a.b", 11211, "a.b:11211"},
      {"cache-1.example.com:22122", "cache-1.example.com", 22122, "cache-1.example.com:22122"},
      {"under_score:1", "under_score", 1, "under_score:1"},
      {"10.example:1", "10.example", 1, "10.example:1"},
      {"1a:00080", "1a", 80, "1a:80"},
      {"[::1]", "::1", 11211, "[::1]:11211"},
      {"[::1]:11212", "::1", 11212, "[::1]:11212"},
      {"[0:0:0:0:0:0:0:1]:11212", "::1", 11212, "[::1]:11212"},
      {"[2001:DB8::0001]", "2001:db8::1", 11211, "[2001:db8::1]:11211"},
      {"[::]", "::", 11211, "[::]:11211"},
      {"[::ffff:10.0.0.1]:5", "::ffff:10.0.0.1", 5, "[::ffff:10.0.0.1]:5"},
      {"[fe80::1%eth0]:7", "fe80::1%eth0", 7, "[fe80::1%eth0]:7"},
      {"[FE80::1%Eth0.1-a_b]", "fe80::1%Eth0.1-a_b", 11211, "[fe80::1%Eth0.1-a_b]:11211"},
      {"[fe80::1%2]", "fe80::1%2", 11211, "[fe80::1%2]:11211"},
      {"/tmp/memcached.sock", "/tmp/memcached.sock", 0, "/tmp/memcached.sock"},
      {"/a b:c", "/a b:c", 0, "/a b:c"},
      {"/[x]", "/[x]", 0, "/[x]"},
      {"/\xc3\xa4", "/\xc3\xa4", 0, "/\xc3\xa4"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_address address;
    struct ml_error error = {ML_OK, ""};
    if (ml_address_parse(rows[i].given, strlen(rows[i].given), &address, &error) != ML_OK)
      fail_msg("%s: %s", rows[i].given, error.message);
    assert_string_equal(address.host, rows[i].host);
    assert_int_equal(address.port, rows[i].port);
    assert_string_equal(address.text, rows[i].text);
  }
}

static void test_address_refuses_the_rest_and_says_why(void **state) {
  (void)state;
  static const struct {
    const char *given;
    const char *why;
  } rows[] = {
      {"", "it is empty"},
      {" ", "a host name has"},
      {":", "the host is empty"},
      {":11211", "the host is empty"},
      {"a b", "a host name has"},
      {"a:", "a port is a number from 1 to 65535"},
      {"a:0", "a port is"},
      {"a:00000", "a port is"},
      {"a:65536", "a port is"},
      {"a:99999", "a port is"},
      {"a:111211", "a port is"},
      {"a:-1", "a port is"},
      {"a:+1", "a port is"},
      {"a: 1", "a port is"},
      {"a:1 ", "a port is"},
      {"a:1x", "a port is"},
      {"a:0x50", "a port is"},
      {"a:http", "a port is"},
      {"::1", "an IPv6 address stands in brackets"},
      {"fe80::1:11211", "an IPv6 address stands in brackets"},
      {"a:1:2", "an IPv6 address stands in brackets"},
      {"::", "an IPv6 address stands in brackets"},
      {"[", "the bracket is not closed"},
      {"[::1", "the bracket is not closed"},
      {"[::1:11211", "the bracket is not closed"},
      {"[]", "the host is empty"},
      {"[]:1", "the host is empty"},
      {"[localhost]", "not an IPv6 address"},
      {"[127.0.0.1]", "not an IPv6 address"},
      {"[::1::1]", "not an IPv6 address"},
      {"[12345::1]", "not an IPv6 address"},
      {"[ ::1]", "not an IPv6 address"},
      {"[[::1]]", "not an IPv6 address"},
      {"[%eth0]", "not an IPv6 address"},
      {"[fe80::1%]", "the zone behind '%' is empty"},
      {"[fe80::1%a b]", "a zone has"},
      {"[fe80::1%a%b]", "a zone has"},
      {"[fe80::1%a/b]", "a zone has"},
      {"[::1]11211", "behind the bracket only :port may follow"},
      {"[::1] :11211", "behind the bracket only"},
      {"[::1]x", "behind the bracket only"},
      {"[::1]:", "a port is"},
      {"[::1]:0", "a port is"},
      {"[::1]:1:2", "a port is"},
      {"a..b", "the host name has an empty part"},
      {".a", "the host name has an empty part"},
      {"..", "the host name has an empty part"},
      {".", "the host name has an empty part"},
      {"a.", "the host name ends with '.'"},
      {"-a", "no part of a host name begins with '-'"},
      {"a.-b:1", "no part of a host name begins with '-'"},
      {"--SERVER=x", "no part of a host name begins with '-'"},
      {"10.0.0.256", "must be an IPv4 address"},
      {"10.0.0", "must be an IPv4 address"},
      {"10.0.0.0.1", "must be an IPv4 address"},
      {"11211", "must be an IPv4 address"},
      {"1.2.3.04", "must be an IPv4 address"},
      {"a/b", "a host name has"},
      {"tcp://a:1", "an IPv6 address stands in brackets"},
      {"user@host", "a host name has"},
      {"host,", "a host name has"},
      {"h\xc3\xb6st", "a host name has"},
      {"host\n", "a host name has"},
      {"host\r\nset x 0 0 1", "a host name has"},
      {"host%eth0", "a host name has"},
      {"*", "a host name has"},
      {"/tmp/a\nb", "the path has a control character"},
      {"/tmp/a\x7f", "the path has a control character"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ml_address address;
    struct ml_error error = {ML_OK, ""};
    enum ml_status status =
        ml_address_parse(rows[i].given, strlen(rows[i].given), &address, &error);
    if (status != ML_INVALID) fail_msg("\"%s\" was taken", rows[i].given);
    assert_int_equal(error.status, ML_INVALID);
    assert_contains(error.message, rows[i].why);
    assert_contains(error.message, "server address \"");
    /* Nothing of what was given can break the line that it is shown in. */
    for (const char *c = error.message; *c != '\0'; c++)
      assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
  }
}

static enum ml_status parse(const char *text, size_t length, struct ml_error *error) {
  struct ml_address address;
  return ml_address_parse(text, length, &address, error);
}

static void test_address_with_a_zero_byte_is_refused_anywhere(void **state) {
  (void)state;
  static const char *const good[] = {"host.name:11211", "[fe80::1%eth0]:11211", "/tmp/socket",
                                     "127.0.0.1"};
  for (size_t g = 0; g < sizeof good / sizeof good[0]; g++) {
    size_t length = strlen(good[g]);
    char text[64];
    for (size_t i = 0; i < length; i++) {
      (void)snprintf(text, sizeof text, "%s", good[g]);
      text[i] = '\0';
      struct ml_error error = {ML_OK, ""};
      if (parse(text, length, &error) != ML_INVALID)
        fail_msg("\"%s\" with a zero byte at %zu was taken", good[g], i);
      assert_string_not_equal(error.message, "");
    }
    struct ml_error error = {ML_OK, ""};
    assert_int_equal(parse(good[g], length + 1, &error), ML_INVALID);
  }
}

static void test_address_lengths_have_limits(void **state) {
  (void)state;
  char text[400];
  struct ml_error error;
  /* Labels of 63 bytes, 253 in all. */
  memset(text, 'a', sizeof text);
  text[63] = text[127] = text[191] = '.';
  assert_int_equal(parse(text, 63, &error), ML_OK);
  assert_int_equal(parse(text, 253, &error), ML_OK);
  memcpy(text + 253, ":65535", 6);
  assert_int_equal(parse(text, 259, &error), ML_OK);
  text[253] = 'a';
  assert_int_equal(parse(text, 254, &error), ML_INVALID);
  assert_contains(error.message, "longer than 253 bytes");

  memset(text, 'a', sizeof text);
  assert_int_equal(parse(text, 64, &error), ML_INVALID);
  assert_contains(error.message, "longer than 63 bytes");

  /* The path of a unix socket, with its final zero byte, has to fit where the system keeps it. */
  text[0] = '/';
  assert_int_equal(parse(text, 103, &error), ML_OK);
  assert_int_equal(parse(text, 108, &error), ML_INVALID);
  assert_contains(error.message, "longer than a unix socket's may be");

  /* A zone as long as the host may be, where the shortest form of the address is longer. */
  (void)snprintf(text, sizeof text, "[0:0:1:1:1:1:1:1%%%0237d]", 0);
  assert_int_equal(strlen(text), 255);
  assert_int_equal(parse(text, 255, &error), ML_OK);
}

static void test_address_of_any_length_gives_a_bounded_message(void **state) {
  (void)state;
  size_t huge = 4 << 20;
  char *text = malloc(huge);
  assert_non_null(text);
  static const char firsts[] = {'a', '/', '[', ':', '1', '.', ',', '\0', '\n', '\xff'};
  for (size_t i = 0; i < sizeof firsts; i++) {
    memset(text, firsts[i], huge);
    struct ml_error error = {ML_OK, ""};
    assert_int_equal(parse(text, huge, &error), ML_INVALID);
    assert_contains(error.message, "(shortened)");
    assert_true(strlen(error.message) < 300);
    struct ml_servers servers = {.count = 0};
    assert_int_equal(ml_servers_add(&servers, text, huge, &error), ML_INVALID);
  }
  free(text);
}

static void add(struct ml_servers *servers, const char *text) {
  struct ml_error error;
  if (ml_servers_add(servers, text, strlen(text), &error) != ML_OK)
    fail_msg("%s: %s", text, error.message);
}

static void assert_list(const struct ml_servers *servers, const char *expected) {
  char text[512] = "";
  for (size_t i = 0; i < servers->count; i++) {
    size_t used = strlen(text);
    (void)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "," : "",
                   servers->list[i].text);
  }
  assert_string_equal(text, expected);
}

static void test_servers_do_not_depend_on_their_order(void **state) {
  (void)state;
  static const char *const orders[] = {
      "a:1,b:2,[::1]:3,/s", "/s,[::1]:3,b:2,a:1",        "b:2,/s,a:1,[::1]:3",
      "[::1]:3,a:1,/s,b:2", " B:2 ,  /s,A:1,[0::1]:3  ",
  };
  for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
    struct ml_servers servers = {.count = 0};
    add(&servers, orders[i]);
    assert_list(&servers, "/s,[::1]:3,a:1,b:2");
  }
  /* One text or several: the same. */
  struct ml_servers servers = {.count = 0};
  add(&servers, "b:2");
  add(&servers, "/s,a:1");
  add(&servers, "[::1]:3");
  assert_list(&servers, "/s,[::1]:3,a:1,b:2");
}

static void test_servers_are_kept_once_each(void **state) {
  (void)state;
  struct ml_servers servers = {.count = 0};
  add(&servers, "a,a:11211,A,a:00080");
  assert_list(&servers, "a:11211,a:80");
  add(&servers, "[::1],[0:0::1]:11211,/s,/s,a");
  assert_list(&servers, "/s,[::1]:11211,a:11211,a:80");
}

static void test_servers_refuse_an_empty_or_bad_part(void **state) {
  (void)state;
  static const char *const lists[] = {"",  ",",   "a,",  ",a",    "a,,b", "a, ,b",
                                      " ", "a;b", "a b", "a,b:0", "a\tb", "a,\tb"};
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    struct ml_servers servers = {.count = 0};
    struct ml_error error = {ML_OK, ""};
    if (ml_servers_add(&servers, lists[i], strlen(lists[i]), &error) != ML_INVALID)
      fail_msg("\"%s\" was taken", lists[i]);
    assert_contains(error.message, "server address");
  }
}

static void test_servers_are_limited(void **state) {
  (void)state;
  struct ml_servers servers = {.count = 0};
  char text[32];
  for (int i = 0; i < ML_SERVERS_MAX; i++) {
    (void)snprintf(text, sizeof text, "host%d", 997 * i % 1000);
    add(&servers, text);
  }
  assert_int_equal(servers.count, ML_SERVERS_MAX);
  for (size_t i = 1; i < servers.count; i++)
    assert_true(strcmp(servers.list[i - 1].text, servers.list[i].text) < 0);
  add(&servers, "host0"); /* a repeat still fits */
  struct ml_error error;
  assert_int_equal(ml_servers_add(&servers, "another", 7, &error), ML_INVALID);
  assert_string_equal(error.message, "more than 64 servers");
  assert_int_equal(servers.count, ML_SERVERS_MAX);
}

static void test_servers_default_is_a_good_address(void **state) {
  (void)state;
  struct ml_servers servers = {.count = 0};
  add(&servers, ML_DEFAULT_SERVER);
  assert_list(&servers, "127.0.0.1:11211");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_address_takes_what_is_well_formed),
      cmocka_unit_test(test_address_refuses_the_rest_and_says_why),
      cmocka_unit_test(test_address_with_a_zero_byte_is_refused_anywhere),
      cmocka_unit_test(test_address_lengths_have_limits),
      cmocka_unit_test(test_address_of_any_length_gives_a_bounded_message),
      cmocka_unit_test(test_servers_do_not_depend_on_their_order),
      cmocka_unit_test(test_servers_are_kept_once_each),
      cmocka_unit_test(test_servers_refuse_an_empty_or_bad_part),
      cmocka_unit_test(test_servers_are_limited),
      cmocka_unit_test(test_servers_default_is_a_good_address),
  };
  return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
