/* memlock check: are the servers fit for locks? */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "commands.h"
#include "exits.h"
#include "fitness.h"
#include "text.h"
#include "view.h"

struct finding {
  const char *server;
  enum ml_status status; /* not ML_OK: it could not be asked */
  struct ml_error error;
  struct ml_facts facts;
  struct ml_findings findings;
};

static void print_text(const struct finding *finding) {
  char text[TEXT_ROOM(sizeof finding->error.message)];
  const struct ml_facts *facts = &finding->facts;
  (void)printf("%s", finding->server);
  if (finding->status != ML_OK) {
    (void)text_escape(text, sizeof text, finding->error.message, strlen(finding->error.message));
    (void)printf(": not known\n  It could not be asked: %s.\n", text);
    return;
  }
  (void)text_escape(text, sizeof text, facts->version, strlen(facts->version));
  if (text[0] != '\0') (void)printf(", memcached %s", text);
  if (facts->tells) (void)printf(", up %" PRId64 " s", facts->uptime);
  (void)printf(", %" PRId64 " us away: %s\n", facts->round_trip / 1000,
               finding->findings.count == 0 ? "fit" : "not fit");
  for (size_t i = 0; i < finding->findings.count; i++) {
    (void)text_escape(text, sizeof text, finding->findings.text[i],
                      strlen(finding->findings.text[i]));
    (void)printf("  %s\n", text);
  }
}

static const char *word(bool truth) { return truth ? "true" : "false"; }

static void print_string(const char *text) {
  char escaped[TEXT_ROOM(sizeof(struct ml_error))];
  (void)text_escape(escaped, sizeof escaped, text, strlen(text));
  text_json(stdout, escaped);
}

static void print_facts(const struct ml_facts *facts) {
  (void)printf(",\"cas\":%s,\"proxy\":%s,\"round_trip\":%.6f", word(facts->has_cas),
               word(facts->is_proxy), ml_clock_seconds(facts->round_trip));
  if (!facts->tells) return;
  (void)printf(",\"version\":");
  print_string(facts->version);
  (void)printf(",\"uptime\":%" PRId64 ",\"clock_offset\":%" PRId64, facts->uptime,
               facts->clock_offset);
  (void)printf(",\"evicting\":%s,\"evictions\":%" PRIu64, word(facts->evicts), facts->evictions);
  (void)printf(",\"memory_limit\":%" PRIu64 ",\"memory_used\":%" PRIu64, facts->limit, facts->used);
}

static void print_object(const struct finding *finding) {
  bool asked = finding->status == ML_OK;
  (void)printf("{\"server\":");
  print_string(finding->server);
  (void)printf(",\"fit\":%s,\"findings\":[", word(asked && finding->findings.count == 0));
  for (size_t i = 0; asked && i < finding->findings.count; i++) {
    if (i > 0) (void)putchar(',');
    print_string(finding->findings.text[i]);
  }
  (void)putchar(']');
  if (asked) {
    print_facts(&finding->facts);
  } else {
    (void)printf(",\"code\":\"%s\",\"message\":", ml_status_code(finding->status));
    print_string(finding->error.message);
  }
  (void)putchar('}');
}

static int code_of(const struct finding *finding) {
  if (finding->status != ML_OK) return exit_code_of(finding->status);
  return finding->findings.count == 0 ? EXIT_FINE : EXIT_NO;
}

static int check(const struct view *view) {
  const struct ml_servers *servers = ml_client_servers(view->client);
  int worst = EXIT_FINE;
  if (view->json) (void)putchar('[');
  for (size_t i = 0; i < servers->count; i++) {
    struct finding finding = {.server = servers->list[i].text};
    finding.status = ml_client_inspect(view->client, i, &finding.facts, &finding.error);
    if (finding.status == ML_OK) ml_fitness(&finding.facts, &finding.findings);
    if (view->json) {
      if (i > 0) (void)fputs(",\n ", stdout);
      print_object(&finding);
    } else {
      print_text(&finding);
    }
    int code = code_of(&finding);
    if (code > worst) worst = code; /* "not known" weighs more than "not fit" */
  }
  if (view->json) (void)puts("]");
  return worst;
}

int command_check(int argc, char **argv) {
  static const struct option long_options[] = {
      COMMON_OPTIONS, {"json", no_argument, NULL, OPTION_JSON}, {NULL, 0, NULL, 0}};
  struct view view;
  int code;
  if (!view_open(&view, "check", VIEW_NO_NAME, argc, argv, long_options, &code)) return code;
  code = check(&view);
  ml_client_abandon(view.client);
  return code;
}
