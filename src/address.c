#include "address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* All refusals read alike: what was given (shortened, so that it fits), and why it will not do. */
static enum ml_status refuse(struct ml_error *error, const char *text, size_t length,
                             const char *why) {
  int shown = length > 120 ? 120 : (int)length;
  char safe[121];
  for (int i = 0; i < shown; i++) {
    unsigned char byte = (unsigned char)text[i];
    safe[i] = byte < 0x20 || byte == 0x7f ? '?' : text[i];
  }
  safe[shown] = '\0';
  return ml_fail(error, ML_INVALID, "server address \"%s\"%s: %s", safe,
                 length > 120 ? " (shortened)" : "", why);
}

/* NULL when the host is fine, else what is wrong with it. Folds the name to lower case. */
static const char *check_name(char *host) {
  bool numeric = true;
  size_t label = 0;
  for (char *c = host; *c != '\0'; c++) {
    if (*c == '.') {
      if (label == 0) return "the host name has an empty part";
      label = 0;
      continue;
    }
    if (!is_alnum(*c) && *c != '-' && *c != '_')
      return "a host name has letters, digits, '-', '_' and '.' only";
    if (label == 0 && *c == '-') return "no part of a host name begins with '-'";
    if (++label > 63) return "no part of a host name is longer than 63 bytes";
    if (*c < '0' || *c > '9') numeric = false;
    if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
  }
  if (label == 0) return "the host name ends with '.' or is empty";
  struct in_addr ipv4;
  if (numeric && inet_pton(AF_INET, host, &ipv4) != 1)
    return "a host of digits must be an IPv4 address like 127.0.0.1";
  return NULL;
}

/* The same for what stood in brackets; writes an IPv6 address in its shortest form. */
static const char *check_ipv6(char *host) {
  char *zone = strchr(host, '%');
  char number[INET6_ADDRSTRLEN] = "";
  size_t length = zone != NULL ? (size_t)(zone - host) : strlen(host);
  if (length >= sizeof number) return "what stands in brackets is not an IPv6 address";
  memcpy(number, host, length);
  struct in6_addr ipv6;
  if (inet_pton(AF_INET6, number, &ipv6) != 1)
    return "what stands in brackets is not an IPv6 address";
  if (zone != NULL) {
    if (zone[1] == '\0') return "the zone behind '%' is empty";
    for (char *c = zone + 1; *c != '\0'; c++)
      if (!is_alnum(*c) && strchr("-_.", *c) == NULL)
        return "a zone has letters, digits, '-', '_' and '.' only";
  }
  (void)inet_ntop(AF_INET6, &ipv6, number, sizeof number);
  char whole[ML_ADDRESS_MAX + 1];
  int written = snprintf(whole, sizeof whole, "%s%s", number, zone != NULL ? zone : "");
  if (written < 0 || (size_t)written >= sizeof whole) return "it is too long";
  memcpy(host, whole, (size_t)written + 1);
  return NULL;
}

static const char *read_port(const char *text, size_t length, uint16_t *port) {
  static const char wrong[] = "a port is a number from 1 to 65535";
  unsigned value = 0;
  if (length < 1 || length > 5) return wrong;
  for (size_t i = 0; i < length; i++) {
    if (text[i] < '0' || text[i] > '9') return wrong;
    value = value * 10 + (unsigned)(text[i] - '0');
  }
  if (value < 1 || value > 65535) return wrong;
  *port = (uint16_t)value;
  return NULL;
}

static const char *read_path(const char *text, size_t length, struct ml_address *address) {
  if (length >= sizeof((struct sockaddr_un *)NULL)->sun_path)
    return "the path is longer than a unix socket's may be";
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) return "the path has a control character";
  memcpy(address->host, text, length);
  address->host[length] = '\0';
  address->port = 0;
  memcpy(address->text, text, length);
  address->text[length] = '\0';
  return NULL;
}

static const char *read_host(const char *text, size_t length, struct ml_address *address) {
  bool bracketed = text[0] == '[';
  const char *host = text;
  size_t host_length;
  const char *after; /* what follows the host: nothing, or ":port" */
  if (bracketed) {
    const char *close = memchr(text, ']', length);
    if (close == NULL) return "the bracket is not closed";
    host = text + 1;
    host_length = (size_t)(close - host);
    after = close + 1;
  } else {
    const char *colon = memchr(text, ':', length);
    after = colon != NULL ? colon : text + length;
    host_length = (size_t)(after - text);
    size_t behind = (size_t)(text + length - after);
    if (behind > 1 && memchr(after + 1, ':', behind - 1) != NULL)
      return "an IPv6 address stands in brackets, as in [::1]:11211";
  }
  if (host_length == 0) return "the host is empty";
  if (host_length > ML_ADDRESS_MAX) return "the host is longer than 253 bytes";
  if (memchr(host, '\0', host_length) != NULL) return "the host has a zero byte";
  memcpy(address->host, host, host_length);
  address->host[host_length] = '\0';

  const char *wrong = bracketed ? check_ipv6(address->host) : check_name(address->host);
  if (wrong != NULL) return wrong;

  size_t left = (size_t)(text + length - after);
  address->port = ML_DEFAULT_PORT;
  if (left > 0) {
    if (*after != ':') return "behind the bracket only :port may follow";
    wrong = read_port(after + 1, left - 1, &address->port);
    if (wrong != NULL) return wrong;
  }
  (void)snprintf(address->text, sizeof address->text, bracketed ? "[%s]:%u" : "%s:%u",
                 address->host, (unsigned)address->port);
  return NULL;
}

enum ml_status ml_address_parse(const char *text, size_t length, struct ml_address *address,
                                struct ml_error *error) {
  if (length == 0) return refuse(error, text, length, "it is empty");
  const char *wrong =
      text[0] == '/' ? read_path(text, length, address) : read_host(text, length, address);
  return wrong != NULL ? refuse(error, text, length, wrong) : ML_OK;
}

enum ml_status ml_servers_add(struct ml_servers *servers, const char *text, size_t length,
                              struct ml_error *error) {
  const char *end = text + length;
  for (;;) {
    const char *comma = memchr(text, ',', (size_t)(end - text));
    const char *stop = comma != NULL ? comma : end;
    while (text < stop && *text == ' ') text++;
    const char *last = stop;
    while (last > text && last[-1] == ' ') last--;

    struct ml_address address;
    enum ml_status status = ml_address_parse(text, (size_t)(last - text), &address, error);
    if (status != ML_OK) return status;

    size_t place = 0;
    int order = 1;
    while (place < servers->count && (order = strcmp(address.text, servers->list[place].text)) > 0)
      place++;
    if (place == servers->count || order != 0) {
      if (servers->count == ML_SERVERS_MAX)
        return ml_fail(error, ML_INVALID, "more than %d servers", ML_SERVERS_MAX);
      memmove(&servers->list[place + 1], &servers->list[place],
              (servers->count - place) * sizeof servers->list[0]);
      servers->list[place] = address;
      servers->count++;
    }
    if (comma == NULL) return ML_OK;
    text = comma + 1;
  }
}
