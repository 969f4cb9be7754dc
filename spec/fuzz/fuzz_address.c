/*
 * The parser of server addresses. What it accepts is within all bounds, names itself, and reads the
 * same again; what it refuses, it explains. A list is sorted, without repeats, and does not depend
 * on the order in which it was given.
 */
#include "address.h"
#include "fuzz.h"

static void check_refusal(enum ml_status status, const struct ml_error *error) {
  CLAIM(status == ML_INVALID && error->status == ML_INVALID);
  size_t length = strnlen(error->message, sizeof error->message);
  CLAIM(length > 0 && length < sizeof error->message);
  for (size_t i = 0; i < length; i++)
    CLAIM((unsigned char)error->message[i] >= 0x20 && error->message[i] != 0x7f);
}

static void check_address(const struct ml_address *address) {
  size_t host = strnlen(address->host, sizeof address->host);
  size_t text = strnlen(address->text, sizeof address->text);
  CLAIM(host > 0 && host < sizeof address->host);
  CLAIM(text > 0 && text < sizeof address->text);
  CLAIM((address->port == 0) == (address->host[0] == '/'));
  for (size_t i = 0; i < text; i++)
    CLAIM((unsigned char)address->text[i] >= 0x20 && address->text[i] != 0x7f);

  struct ml_error error;
  struct ml_address again;
  char *copy = exact_copy(address->text, text);
  CLAIM(ml_address_parse(copy, text, &again, &error) == ML_OK);
  CLAIM(strcmp(again.host, address->host) == 0);
  CLAIM(strcmp(again.text, address->text) == 0);
  CLAIM(again.port == address->port);
  free(copy);
}

static void check_list(const struct ml_servers *servers) {
  CLAIM(servers->count >= 1 && servers->count <= ML_SERVERS_MAX);
  for (size_t i = 0; i < servers->count; i++) {
    check_address(&servers->list[i]);
    if (i > 0) CLAIM(strcmp(servers->list[i - 1].text, servers->list[i].text) < 0);
  }
  static struct ml_servers again;
  struct ml_error error;
  again.count = 0;
  for (size_t i = servers->count; i-- > 0;) {
    const char *text = servers->list[i].text;
    /* Twice, and the last one first. */
    CLAIM(ml_servers_add(&again, text, strlen(text), &error) == ML_OK);
    CLAIM(ml_servers_add(&again, text, strlen(text), &error) == ML_OK);
  }
  CLAIM(again.count == servers->count);
  for (size_t i = 0; i < servers->count; i++)
    CLAIM(strcmp(again.list[i].text, servers->list[i].text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct ml_servers servers;
  struct ml_address address;
  struct ml_error error;
  char *text = exact_copy(data, size);

  enum ml_status status = ml_address_parse(text, size, &address, &error);
  if (status == ML_OK)
    check_address(&address);
  else
    check_refusal(status, &error);

  servers.count = 0;
  status = ml_servers_add(&servers, text, size, &error);
  if (status == ML_OK)
    check_list(&servers);
  else
    check_refusal(status, &error);
  free(text);
  return 0;
}
