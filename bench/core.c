/* memlock's own core, without Lua. */
#include <string.h>

#include "client.h"
#include "clock.h"
#include "worker.h"

static struct ml_lock lock;
static char text[ML_KEY_TEXT];

static void open_lock(const char *server, const char *name) {
  struct ml_error error;
  struct ml_client_options options;
  ml_client_defaults(&options);
  if (ml_servers_add(&options.servers, server, strlen(server), &error) != ML_OK)
    die(server, error.message);
  struct ml_client *client = ml_client_open(&options, &error);
  if (client == NULL ||
      ml_client_add(client, &lock, text, name, strlen(name), 0, NULL, &error) != ML_OK)
    die(name, error.message);
}

/* False: somebody else has it. */
static bool got_it(enum ml_status status, const struct ml_error *error) {
  if (status != ML_OK && status != ML_HELD) die(ml_status_code(status), error->message);
  return status == ML_OK;
}

static bool attempt(void) {
  struct ml_error error;
  return got_it(ml_client_acquire(&lock, &error), &error);
}

static bool acquire(double until) {
  struct ml_error error;
  struct ml_wait wait = {.span = ml_clock_span(until - now())};
  for (;;) {
    int64_t pause;
    enum ml_status status = ml_client_try(&lock, &wait, &pause, &error);
    if (pause == 0) return got_it(status, &error);
    (void)ml_clock_sleep(pause);
  }
}

static bool refresh(void) {
  struct ml_error error;
  return ml_client_refresh(&lock, 0, &error) == ML_OK;
}

static bool release(void) {
  struct ml_error error;
  return ml_client_release(&lock, &error) == ML_OK;
}

const struct subject core = {"core", open_lock, attempt, acquire, refresh, release};
