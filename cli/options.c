#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "exits.h"
#include "record.h"
#include "say.h"

int options_wrong(const char *command, const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  say_error("%s", message);
  if (command == NULL)
    say_error("try 'memlock --help'");
  else
    say_error("try 'memlock help %s'", command);
  return EXIT_USAGE;
}

/* There is no thread yet that these two could disturb. */

static const char *variable(const char *name) {
  return getenv(name); /* NOLINT(concurrency-mt-unsafe) */
}

int options_next(int argc, char **argv, const char *letters, const struct option *long_options) {
  return getopt_long(argc, argv, letters, long_options, NULL); /* NOLINT(concurrency-mt-unsafe) */
}

void options_init(struct options *options) {
  *options = (struct options){.password_file = NULL};
  ml_client_defaults(&options->client);
}

/* The factor of a unit, or 0. */
static double unit(const char *text) {
  static const struct {
    const char *name;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcmp(text, units[i].name) == 0) return units[i].seconds;
  return 0;
}

bool options_span(const char *command, const char *option, const char *text, enum span_kind kind,
                  int64_t *span) {
  char *end;
  double seconds = strtod(text, &end);
  bool endless = kind == SPAN_ENDLESS && strcmp(text, "inf") == 0;
  bool is_decimal = strspn(text, "0123456789.") > 0 && strpbrk(text, "xX") == NULL;
  if (endless) {
    *span = ML_FOREVER;
    return true;
  }
  seconds *= unit(end);
  if (!is_decimal || end == text || unit(end) == 0 || !(seconds >= 0 && seconds < 1e9) ||
      (kind == SPAN_POSITIVE && ml_clock_span(seconds) == 0)) {
    (void)options_wrong(command, "--%s wants a time in seconds%s, or with s, m, h or d%s: not '%s'",
                        option, kind == SPAN_POSITIVE ? " above 0" : "",
                        kind == SPAN_ENDLESS ? ", or 'inf'" : "", text);
    return false;
  }
  *span = ml_clock_span(seconds);
  return true;
}

static bool take_servers(struct options *options, const char *command, const char *what,
                         const char *text) {
  struct ml_error error;
  if (ml_servers_add(&options->client.servers, text, strlen(text), &error) == ML_OK) return true;
  (void)options_wrong(command, "%s: %s", what, error.message);
  return false;
}

bool options_take(struct options *options, const char *command, int code, const char *value) {
  struct ml_error error;
  switch (code) {
  case 's':
    options->named_servers = true;
    return take_servers(options, command, "--servers", value);
  case OPTION_PREFIX:
    options->client.prefix = value;
    if (ml_client_check_prefix(value, strlen(value), &error) == ML_OK) return true;
    (void)options_wrong(command, "--prefix: %s", error.message);
    return false;
  case OPTION_TIMEOUT:
    return options_span(command, "timeout", value, SPAN_POSITIVE, &options->client.timeout);
  case OPTION_PROXY:
    options->client.proxy = true;
    return true;
  case OPTION_USER:
    options->client.username = value;
    if (ml_record_id_ok(value, strlen(value))) return true;
    (void)options_wrong(command,
                        "--user: a name has 1 to %d bytes and neither spaces nor control "
                        "characters",
                        ML_ID_MAX);
    return false;
  case OPTION_PASSWORD_FILE:
    options->password_file = value;
    return true;
  default: /* getopt has said what is wrong */
    say_error("try 'memlock help %s'", command);
    return false;
  }
}

/* The first line of the file, which is the password. */
static bool read_password(struct options *options, const char *command) {
  const char *path = options->password_file;
  char words[128];
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    (void)options_wrong(command, "--password-file: %s: %s", path,
                        ml_system_error(errno, words, sizeof words));
    return false;
  }
  char line[sizeof options->password + 2];
  bool got = fgets(line, sizeof line, file) != NULL;
  (void)fclose(file);
  if (got) line[strcspn(line, "\r\n")] = '\0';
  if (!got || line[0] == '\0' || strlen(line) >= sizeof options->password) {
    (void)options_wrong(command,
                        "--password-file: %s: its first line is no password (1 to %d bytes)", path,
                        ML_LABEL_MAX);
    return false;
  }
  memcpy(options->password, line, strlen(line) + 1);
  return true;
}

/* From where is the password? It never comes by an argument, which everybody can see. */
static bool find_password(struct options *options, const char *command) {
  const char *password = variable("MEMLOCK_PASSWORD");
  if (options->password_file != NULL) {
    if (!read_password(options, command)) return false;
  } else if (password != NULL && password[0] != '\0' &&
             strlen(password) < sizeof options->password) {
    (void)snprintf(options->password, sizeof options->password, "%s", password);
  } else {
    (void)options_wrong(command,
                        "--user needs a password, of at most %d bytes, in MEMLOCK_PASSWORD or in "
                        "the file that --password-file names",
                        ML_LABEL_MAX);
    return false;
  }
  if (!ml_record_label_ok(options->password, strlen(options->password))) {
    (void)options_wrong(command, "the password has control characters in it");
    return false;
  }
  options->client.password = options->password;
  return true;
}

bool options_finish(struct options *options, const char *command) {
  if (!options->named_servers) {
    const char *servers = variable("MEMLOCK_SERVERS");
    bool given = servers != NULL && servers[0] != '\0';
    if (!take_servers(options, command, "MEMLOCK_SERVERS", given ? servers : ML_DEFAULT_SERVER))
      return false;
  }
  if (options->client.username != NULL) return find_password(options, command);
  if (options->password_file == NULL) return true;
  (void)options_wrong(command, "--password-file needs --user");
  return false;
}

struct ml_client *options_open(const struct options *options) {
  struct ml_error error;
  struct ml_client *client = ml_client_open(&options->client, &error);
  if (client == NULL) say_error("%s", error.message);
  return client;
}

bool options_name(const struct options *options, const char *command, const char *name) {
  struct ml_error error;
  const char *prefix = options->client.prefix != NULL ? options->client.prefix : ML_DEFAULT_PREFIX;
  if (ml_client_check_name(prefix, name, strlen(name), &error) == ML_OK) return true;
  (void)options_wrong(command, "%s", error.message);
  return false;
}
