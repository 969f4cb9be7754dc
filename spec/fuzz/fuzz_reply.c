/*
 * What memlock makes of a server's replies, whatever they are. The input is a line of operations,
 * then the replies that the server gives to the commands (see fake.h):
 *
 *     flags        P behind a proxy, A with a password, I with an identity, S a very short lease
 *     on the lock  a acquire, f refresh, F refresh for longer, g release, v verify, d drop and
 * finish on its key   h who holds it, k break what h showed, s sweep, r read, p probe, b batch, i
 * inspect elsewhere    o another takes the lock, e an empty value stands there, m another program's
 * value does, x the lock is gone, l all is lost (and CAS ids start over)
 *
 * Claimed: nothing is called a success that the server has not shown in this very operation;
 * nothing is held after a failure, a loss or a release; nothing is shown that was not said; every
 * operation ends in time; and what memlock says is well-formed (fake.h). Memory is the sanitizers'
 * part.
 */
#include "clock.h"
#include "fake.h"
#include "lock.h"

#define TIMEOUT (30 * ML_MILLISECOND)
#define BOUND (TIMEOUT + 3 * ML_SECOND) /* the machine may be busy */
#define OPERATIONS 12
#define LABEL "fuzz:1"

struct scene {
  struct ml_servers servers;
  struct ml_store *store;
  struct ml_lock lock;
  char key_text[ML_KEY_TEXT];
  bool proxy, named, brief;
  char shown[FAKE_REPLY]; /* what the last h showed */
  size_t shown_length;
};

/* ---- What the server was heard to say ---------------------------------------------------------
 */

static bool said(const char *text) { return fake_said(text, strlen(text)); }

static bool showed_lock(void) { return fake_showed(LOCK_KEY); }
static bool showed_fence(void) { return fake_showed(FENCE_KEY); }

static bool showed_number(uint64_t number) {
  char digits[24];
  (void)snprintf(digits, sizeof digits, "%" PRIu64, number);
  return said(digits);
}

/* The record of the lock's last write. */
static bool showed_write(const struct ml_lock *lock, int64_t ttl) {
  if (ttl < lock->lasting) ttl = lock->lasting;
  struct ml_record record = {.seq = lock->seq,
                             .since = lock->since,
                             .ttl_ms = (ttl + ML_MILLISECOND / 2) / ML_MILLISECOND};
  memcpy(record.id, lock->id, sizeof record.id);
  (void)snprintf(record.label, sizeof record.label, "%s", lock->label);
  char text[ML_RECORD_MAX];
  size_t length = ml_record_encode(&record, text);
  return fake_said(text, length) && showed_lock();
}

static bool showed_own(const struct ml_lock *lock) {
  char text[ML_RECORD_MAX];
  (void)snprintf(text, sizeof text, "memlock/1 %s ", lock->id);
  return said(text) && showed_lock();
}

/* ---- On the lock ------------------------------------------------------------------------------
 */

static void check_error(enum ml_status status, const struct ml_error *error) {
  if (status == ML_OK) return;
  CLAIM(error->status == status);
  CLAIM(strcmp(ml_status_code(status), "") != 0);
  CLAIM(memchr(error->message, '\0', sizeof error->message) != NULL);
  CLAIM(error->message[0] != '\0');
  CLAIM(strstr(error->message, "fuzz-secret") == NULL);
}

/* A loss is said where the lease is over, the server said that there is nothing, or it showed
 * something else. */
static void check_loss(const struct ml_lock *lock, bool was_held) {
  CLAIM(!ml_lock_held(lock, NULL) && !lock->owned);
  CLAIM(!was_held || fake_told(&fake.absent) || showed_lock());
}

static void acquire(struct scene *scene) {
  struct ml_lock *lock = &scene->lock;
  struct ml_error error;
  bool was_held = ml_lock_held(lock, NULL);
  uint64_t token = lock->token;
  ml_store_begin(scene->store);
  enum ml_status status = ml_lock_acquire(lock, scene->store, &error);
  check_error(status, &error);
  if (status == ML_OK) {
    CLAIM(!was_held && lock->owned);
    CLAIM(showed_write(lock, lock->ttl));
    CLAIM(lock->token > 0 && lock->token <= INT64_MAX && showed_number(lock->token));
    if (!scene->brief) CLAIM(ml_lock_held(lock, NULL));
  } else if (was_held) {
    CLAIM(status == ML_HELD && lock->token == token);
  } else {
    CLAIM(!ml_lock_held(lock, NULL) && !lock->owned && lock->token == token);
    CLAIM(status == ML_HELD || status == ML_TIMEOUT || status == ML_UNREACHABLE ||
          status == ML_REFUSED || status == ML_UNSUPPORTED);
    if (status == ML_HELD) CLAIM(showed_lock() || fake_told(&fake.absent));
  }
}

static void refresh(struct scene *scene, int64_t ttl) {
  struct ml_lock *lock = &scene->lock;
  struct ml_error error;
  int64_t left = 0;
  bool was_owned = lock->owned, was_held = ml_lock_held(lock, &left);
  ml_store_begin(scene->store);
  enum ml_status status = ml_lock_refresh(lock, scene->store, ttl, &error);
  check_error(status, &error);
  if (!was_owned) CLAIM(status == ML_NOT_HELD);
  if (status == ML_OK) {
    CLAIM(was_held && lock->owned);
    CLAIM(showed_write(lock, ttl) || fake_told(&fake.stored));
    if (!scene->brief) CLAIM(ml_lock_held(lock, NULL));
  } else if (status == ML_LOST) {
    check_loss(lock, was_held && !scene->brief);
  } else {
    int64_t rest = 0; /* it goes on as it was, or for less */
    (void)ml_lock_held(lock, &rest);
    CLAIM(rest <= left);
  }
}

static void verify(struct scene *scene) {
  struct ml_lock *lock = &scene->lock;
  struct ml_error error;
  bool was_owned = lock->owned, was_held = ml_lock_held(lock, NULL);
  ml_store_begin(scene->store);
  enum ml_status status = ml_lock_verify(lock, scene->store, &error);
  check_error(status, &error);
  if (!was_owned) CLAIM(status == ML_NOT_HELD);
  if (status == ML_OK) CLAIM(was_held && showed_own(lock));
  if (status == ML_LOST) check_loss(lock, was_held && !scene->brief);
}

static void release(struct scene *scene) {
  struct ml_lock *lock = &scene->lock;
  struct ml_error error;
  bool was_owned = lock->owned, was_held = ml_lock_held(lock, NULL);
  bool was_given_up = lock->giving_up;
  ml_store_begin(scene->store);
  enum ml_status status = ml_lock_release(lock, scene->store, &error);
  check_error(status, &error);
  CLAIM(!ml_lock_held(lock, NULL) && !lock->owned);
  if (!was_owned && !was_given_up) CLAIM(status == ML_NOT_HELD);
  /* Either the server said so, or an answer was missed and the same counter still stands there. */
  if (status == ML_OK) CLAIM(fake_told(&fake.removed) || showed_fence());
  if (status == ML_LOST) check_loss(lock, was_held && !scene->brief);
}

static void drop(struct scene *scene) {
  struct ml_lock *lock = &scene->lock;
  struct ml_error error;
  struct ml_finish finish = {0};
  ml_store_begin(scene->store);
  ml_lock_drop(lock, scene->store, true);
  CLAIM(!ml_lock_held(lock, NULL) && !lock->owned);
  enum ml_status status = ml_store_flush(scene->store, &error);
  check_error(status, &error);
  if (ml_lock_finish(lock, scene->store, &finish)) CLAIM(!lock->in_doubt);
  ml_lock_ready(lock);
}

/* ---- On its key -------------------------------------------------------------------------------
 */

static void look(struct scene *scene) {
  struct ml_holder holder;
  struct ml_error error;
  ml_store_begin(scene->store);
  enum ml_status status = ml_lock_look(scene->store, &scene->lock.key, &holder, &error);
  check_error(status, &error);
  if (status != ML_OK) return;
  if (holder.free) {
    CLAIM(fake_told(&fake.absent) || showed_lock());
    return;
  }
  CLAIM(holder.length > 0 && fake_said(holder.value, holder.length) && showed_lock());
  if (holder.length > sizeof scene->shown) return;
  memcpy(scene->shown, holder.value, holder.length);
  scene->shown_length = holder.length;
}

static void break_it(struct scene *scene) {
  if (scene->shown_length == 0) return;
  struct ml_error error;
  ml_store_begin(scene->store);
  enum ml_status status =
      ml_lock_break(scene->store, &scene->lock.key, scene->shown, scene->shown_length, &error);
  check_error(status, &error);
  if (status == ML_OK) CLAIM(fake_told(&fake.removed) || fake_told(&fake.absent));
  if (status == ML_NOT_HELD) CLAIM(fake_told(&fake.absent));
  if (status == ML_HELD) CLAIM(showed_lock());
}

static void check_answer(enum ml_answer answer, const struct ml_error *error) {
  if (answer == ML_ANSWER_STORED) CLAIM(fake_told(&fake.stored));
  if (answer == ML_ANSWER_ABSENT) CLAIM(fake_told(&fake.absent));
  if (answer == ML_ANSWER_NONE || answer == ML_ANSWER_REFUSED) check_error(error->status, error);
}

static void sweep(struct scene *scene) {
  struct ml_error error;
  const struct ml_lock *lock = &scene->lock;
  ml_store_begin(scene->store);
  enum ml_answer answer =
      ml_lock_sweep(scene->store, &lock->key, lock->id, ml_lock_writes(lock), &error);
  check_answer(answer, &error);
  if (answer == ML_ANSWER_STORED) CLAIM(fake_told(&fake.removed) && showed_own(lock));
  if (answer == ML_ANSWER_EXISTS) CLAIM(showed_lock());
}

static void probe(struct scene *scene) {
  struct ml_error error;
  ml_store_begin(scene->store);
  enum ml_answer answer = ml_store_probe(scene->store, &scene->lock.key, &error);
  check_answer(answer, &error);
  if (answer == ML_ANSWER_EXISTS) CLAIM(fake_told(&fake.exists));
}

static void check_view(const struct ml_view *view) {
  if (!view->present) return;
  CLAIM(view->version.cas > 0 && view->version.epoch > 0);
  CLAIM(fake_said(view->value, view->length));
}

static void read_it(struct scene *scene) {
  struct ml_view view;
  struct ml_error error;
  ml_store_begin(scene->store);
  enum ml_status status = ml_store_read(scene->store, &scene->lock.key, true, &view, &error);
  check_error(status, &error);
  if (status != ML_OK) return;
  check_view(&view);
  if (view.present) CLAIM(showed_lock());
  if (view.fence > 0) CLAIM(view.fence <= INT64_MAX && showed_fence());
}

#define BATCH 3

struct batch {
  struct ml_key keys[BATCH];
  char texts[BATCH][ML_KEY_TEXT];
  struct ml_version versions[BATCH];
  size_t next;
};

static void show(void *context, size_t index, const struct ml_view *view) {
  struct batch *batch = context;
  CLAIM(index >= batch->next && index < BATCH);
  CLAIM(view->present);
  check_view(view);
  CLAIM(fake_showed(batch->texts[index] + 1));
  batch->versions[index] = view->version;
  batch->next = index + 1;
}

/* Reads three keys, then renews those that were there. */
static void renew_many(struct scene *scene) {
  static const char *const names[BATCH] = {"x", "y", "z"};
  struct batch batch = {0};
  struct ml_item items[BATCH];
  const struct ml_write write = {.value = "renewed", .length = 7, .expiry = 100};
  struct ml_error error;
  for (size_t i = 0; i < BATCH; i++) {
    ml_store_place(scene->store, &batch.keys[i], batch.texts[i], "memlock:", names[i], 1);
    items[i] = (struct ml_item){.key = &batch.keys[i]};
  }
  ml_store_begin(scene->store);
  enum ml_status status = ml_store_batch(scene->store, items, BATCH, show, &batch, &error);
  check_error(status, &error);
  if (status != ML_OK) return;
  for (size_t i = 0; i < BATCH; i++) {
    if (batch.versions[i].cas == 0) continue;
    items[i].write = &write;
    items[i].at = batch.versions[i];
  }
  batch.next = 0;
  status = ml_store_batch(scene->store, items, BATCH, show, &batch, &error);
  check_error(status, &error);
}

static void inspect(struct scene *scene) {
  struct ml_facts facts;
  struct ml_findings findings;
  struct ml_error error;
  ml_store_begin(scene->store);
  enum ml_status status = ml_store_inspect(scene->store, 0, &facts, &error);
  check_error(status, &error);
  if (status != ML_OK) return;
  CLAIM(memchr(facts.version, '\0', sizeof facts.version) != NULL);
  if (facts.has_cas) CLAIM(fake_told(&fake.removed));
  ml_fitness(&facts, &findings);
  CLAIM(findings.count <= ML_FINDINGS_MAX);
  for (size_t i = 0; i < findings.count; i++)
    CLAIM(strnlen(findings.text[i], sizeof findings.text[i]) < sizeof findings.text[i]);
}

/* ---- Elsewhere --------------------------------------------------------------------------------
 */

static void meanwhile(char what) {
  static const char other[] = "memlock/1 other 1 1 100 other:1";
  const char *value = what == 'o' ? other : what == 'm' ? "another program's" : "";
  (void)pthread_mutex_lock(&fake.mutex);
  struct fake_item *item = fake_find(LOCK_KEY);
  if (what == 'l') {
    for (size_t i = 0; i < FAKE_ITEMS; i++) fake.items[i].key[0] = '\0';
    fake.cas = 100;
  } else if (what == 'x') {
    if (item != NULL) item->key[0] = '\0';
  } else {
    if (item == NULL) item = fake_find("");
    if (item != NULL) fake_put(item, LOCK_KEY, value, strlen(value), 0, 0);
  }
  (void)pthread_mutex_unlock(&fake.mutex);
}

static void operate(struct scene *scene, char what) {
  switch (what) {
  case 'a':
    acquire(scene);
    break;
  case 'f':
    refresh(scene, scene->lock.ttl);
    break;
  case 'F':
    refresh(scene, 2 * scene->lock.ttl);
    break;
  case 'g':
    release(scene);
    break;
  case 'v':
    verify(scene);
    break;
  case 'd':
    drop(scene);
    break;
  case 'h':
    look(scene);
    break;
  case 'k':
    break_it(scene);
    break;
  case 's':
    sweep(scene);
    break;
  case 'r':
    read_it(scene);
    break;
  case 'p':
    probe(scene);
    break;
  case 'b':
    renew_many(scene);
    break;
  case 'i':
    inspect(scene);
    break;
  default:
    if (strchr("oemxl", what) != NULL) meanwhile(what);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
  size_t line = end != NULL ? (size_t)(end - data) : size;
  const uint8_t *script = end != NULL ? end + 1 : data + size;
  static struct scene scene;
  bool secret = false;
  if (fake.path[0] == '\0') fake_start();

  memset(&scene, 0, sizeof scene);
  for (size_t i = 0; i < line; i++) {
    scene.proxy = scene.proxy || data[i] == 'P';
    scene.named = scene.named || data[i] == 'I';
    scene.brief = scene.brief || data[i] == 'S';
    secret = secret || data[i] == 'A';
  }
  fake_begin(script, size - (size_t)(script - data), secret);

  struct ml_error error;
  CLAIM(ml_servers_add(&scene.servers, fake.path, strlen(fake.path), &error) == ML_OK);
  const struct ml_store_options options = {.servers = &scene.servers,
                                           .timeout = TIMEOUT,
                                           .proxy = scene.proxy,
                                           .username = secret ? "fuzz" : NULL,
                                           .password = secret ? "fuzz-secret" : NULL};
  scene.store = ml_store_open(&options, &error);
  CLAIM(scene.store != NULL);
  struct ml_lock *lock = &scene.lock;
  ml_store_place(scene.store, &lock->key, scene.key_text, "memlock:", "x", 1);
  lock->name = "x";
  lock->label = LABEL;
  lock->ttl = scene.brief ? 2 * ML_MILLISECOND : 3600 * ML_SECOND;
  lock->named = scene.named;
  if (scene.named) (void)snprintf(lock->id, sizeof lock->id, "web-1");
  ml_lock_ready(lock);

  size_t count = 0;
  for (size_t i = 0; i < line && count < OPERATIONS; i++) {
    if (data[i] == '\0' || strchr("PAIS", (char)data[i]) != NULL) continue;
    fake_forget();
    int64_t start = ml_clock_now();
    operate(&scene, (char)data[i]);
    CLAIM(ml_clock_now() - start < BOUND);
    count++;
  }
  ml_store_close(scene.store);
  fake_end();
  return 0;
}
