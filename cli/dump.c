#include "dump.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

#define LINE 2048

#ifndef MSG_NOSIGNAL /* macOS: the process then has SIGPIPE as it likes */
#define MSG_NOSIGNAL 0
#endif

struct connection {
  int fd;
  int64_t timeout;
  const char *server;
  size_t used; /* of `buffer` */
  char buffer[LINE];
};

static enum ml_status failed(const struct connection *connection, struct ml_error *error) {
  char words[128];
  enum ml_status status = errno == ETIMEDOUT ? ML_TIMEOUT : ML_UNREACHABLE;
  return ml_fail(error, status, "%s cannot be listed: %s", connection->server,
                 ml_system_error(errno, words, sizeof words));
}

/* Waits until something can be read or written; false with errno. */
static bool await(const struct connection *connection, short events) {
  struct pollfd set = {.fd = connection->fd, .events = events};
  int64_t until = ml_clock_after(ml_clock_now(), connection->timeout);
  for (;;) {
    int64_t left = until - ml_clock_now();
    if (left > ML_SECOND) left = ML_SECOND;
    int ready = poll(&set, 1, left < 0 ? 0 : (int)(left / ML_MILLISECOND) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (ml_clock_now() >= until) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

static bool open_socket(struct connection *connection, int family) {
  connection->fd = socket(family, SOCK_STREAM, 0);
  if (connection->fd < 0) return false;
  (void)fcntl(connection->fd, F_SETFD, FD_CLOEXEC);
  return fcntl(connection->fd, F_SETFL, O_NONBLOCK) == 0;
}

static bool connect_to(struct connection *connection, const struct sockaddr *address,
                       socklen_t length) {
  if (!open_socket(connection, address->sa_family)) return false;
  if (connect(connection->fd, address, length) == 0) return true;
  if (errno != EINPROGRESS || !await(connection, POLLOUT)) return false;
  int problem = 0;
  socklen_t size = sizeof problem;
  if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &problem, &size) != 0) return false;
  errno = problem;
  return problem == 0;
}

static void hang_up(struct connection *connection) {
  if (connection->fd >= 0) (void)close(connection->fd);
  connection->fd = -1;
}

static enum ml_status dial_path(struct connection *connection, const char *path,
                                struct ml_error *error) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof name.sun_path)
    return ml_fail(error, ML_UNREACHABLE, "%s is too long for a socket", path);
  memcpy(name.sun_path, path, strlen(path) + 1);
  bool good = connect_to(connection, (const struct sockaddr *)&name, sizeof name);
  return good ? ML_OK : failed(connection, error);
}

static enum ml_status dial(struct connection *connection, const struct ml_address *address,
                           struct ml_error *error) {
  if (address->port == 0) return dial_path(connection, address->host, error);
  const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found;
  char port[8];
  (void)snprintf(port, sizeof port, "%u", (unsigned)address->port);
  int problem = getaddrinfo(address->host, port, &wanted, &found);
  if (problem != 0)
    return ml_fail(error, ML_UNREACHABLE, "%s cannot be listed: %s", address->text,
                   gai_strerror(problem));
  enum ml_status status = ML_UNREACHABLE;
  for (const struct addrinfo *at = found; at != NULL && status != ML_OK; at = at->ai_next) {
    hang_up(connection);
    bool good = connect_to(connection, at->ai_addr, at->ai_addrlen);
    status = good ? ML_OK : failed(connection, error);
  }
  freeaddrinfo(found);
  return status;
}

static enum ml_status write_all(struct connection *connection, const char *text,
                                struct ml_error *error) {
  size_t left = strlen(text);
  while (left > 0) {
    if (!await(connection, POLLOUT)) return failed(connection, error);
    ssize_t put = send(connection->fd, text, left, MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return failed(connection, error);
    if (put > 0) {
      text += put;
      left -= (size_t)put;
    }
  }
  return ML_OK;
}

/* Reads a line, without its end, into `line`. */
static enum ml_status read_line(struct connection *connection, char line[LINE],
                                struct ml_error *error) {
  for (;;) {
    char *end = memchr(connection->buffer, '\n', connection->used);
    if (end != NULL) {
      size_t length = (size_t)(end - connection->buffer);
      memcpy(line, connection->buffer, length);
      while (length > 0 && line[length - 1] == '\r') length--;
      line[length] = '\0';
      connection->used -= (size_t)(end + 1 - connection->buffer);
      memmove(connection->buffer, end + 1, connection->used);
      return ML_OK;
    }
    if (connection->used == sizeof connection->buffer)
      return ml_fail(error, ML_REFUSED, "%s answers what is no listing", connection->server);
    if (!await(connection, POLLIN)) return failed(connection, error);
    ssize_t got = recv(connection->fd, connection->buffer + connection->used,
                       sizeof connection->buffer - connection->used, 0);
    if (got == 0) errno = ECONNRESET;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
      return failed(connection, error);
    if (got > 0) connection->used += (size_t)got;
  }
}

static enum ml_status log_in(struct connection *connection, const struct dump_login *login,
                             struct ml_error *error) {
  char text[512];
  char line[LINE] = "";
  size_t length = strlen(login->username) + 1 + strlen(login->password);
  (void)snprintf(text, sizeof text, "set memlock-auth 0 0 %zu\r\n%s %s\r\n", length,
                 login->username, login->password);
  enum ml_status status = write_all(connection, text, error);
  if (status == ML_OK) status = read_line(connection, line, error);
  if (status == ML_OK && strcmp(line, "STORED") != 0)
    status = ml_fail(error, ML_REFUSED, "%s refused the username and password", connection->server);
  return status;
}

static int hex(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

/* Reads "key=<%xx for what is odd> ..." in place; NULL where it is no such line. */
static const char *read_key(char *line, size_t *length) {
  static const char mark[] = "key=";
  if (strncmp(line, mark, sizeof mark - 1) != 0) return NULL;
  const char *from = line + sizeof mark - 1;
  char *to = line;
  while (*from != '\0' && *from != ' ') {
    bool coded = from[0] == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0;
    *to++ = coded ? (char)(hex(from[1]) * 16 + hex(from[2])) : *from;
    from += coded ? 3 : 1;
  }
  *length = (size_t)(to - line);
  return line;
}

/* ML_HELD: the server is at another listing, and does one at a time. */
static enum ml_status read_keys(struct connection *connection, dump_key *take, void *context,
                                struct ml_error *error) {
  char line[LINE] = "";
  for (;;) {
    enum ml_status status = read_line(connection, line, error);
    if (status != ML_OK) return status;
    if (strcmp(line, "END") == 0) return ML_OK;
    if (strncmp(line, "BUSY", 4) == 0)
      return ml_fail(error, ML_HELD, "%s is listing for somebody else", connection->server);
    size_t length;
    const char *key = read_key(line, &length);
    if (key == NULL)
      return ml_fail(error, ML_REFUSED, "%s does not list what it has: %.200s", connection->server,
                     line);
    if (!take(context, key, length))
      return ml_fail(error, ML_CANCELLED, "not enough memory for the names on %s",
                     connection->server);
  }
}

static enum ml_status ask(struct connection *connection, const char *command, dump_key *take,
                          void *context, struct ml_error *error) {
  int64_t until = ml_clock_after(ml_clock_now(), connection->timeout);
  for (;;) {
    enum ml_status status = write_all(connection, command, error);
    if (status == ML_OK) status = read_keys(connection, take, context, error);
    if (status != ML_HELD) return status;
    if (ml_clock_now() >= until) return ML_TIMEOUT;
    (void)ml_clock_sleep(20 * ML_MILLISECOND);
  }
}

/* By the hash table, which has all keys; an older memcached only knows the way by its LRU lists, on
 * which a key that moves from one to the other just then is missed. */
static enum ml_status ask_in_any_way(struct connection *connection, dump_key *take, void *context,
                                     struct ml_error *error) {
  enum ml_status status = ask(connection, "lru_crawler metadump hash\r\n", take, context, error);
  if (status != ML_REFUSED) return status;
  return ask(connection, "lru_crawler metadump all\r\n", take, context, error);
}

enum ml_status dump_keys(const struct ml_address *address, const struct dump_login *login,
                         int64_t timeout, dump_key *take, void *context, struct ml_error *error) {
  struct connection connection = {.fd = -1, .timeout = timeout, .server = address->text};
  enum ml_status status = dial(&connection, address, error);
  if (status == ML_OK && login->username != NULL) status = log_in(&connection, login, error);
  if (status == ML_OK) status = ask_in_any_way(&connection, take, context, error);
  hang_up(&connection);
  return status;
}
