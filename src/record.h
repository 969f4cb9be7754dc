/*
 * The lock record: what stands in memcached while a lock is held.
 *
 *     memlock/1 <id> <seq> <since> <ttl> <label>
 *
 * id: the holder, a nonce or an identity; seq: which write this is; since: unix seconds of the
 * acquisition; ttl: seconds, with up to three decimals; label: for people, the rest of the value.
 * Encoding and decoding are pure: no allocation, no locale, any thread. Decoding trusts nothing:
 * the value may come from any program, or from an attacker.
 */
#ifndef ML_RECORD_H
#define ML_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ML_ID_MAX 64
#define ML_LABEL_MAX 128
#define ML_RECORD_MAX 320 /* longer than any record, its final zero byte included */

struct ml_record {
  char id[ML_ID_MAX + 1];
  uint64_t seq;
  int64_t since;  /* unix seconds, >= 0 */
  int64_t ttl_ms; /* > 0 */
  char label[ML_LABEL_MAX + 1];
};

/* An id is 1 to ML_ID_MAX bytes of 0x21-0x7e or 0x80-0xff. */
bool ml_record_id_ok(const char *id, size_t length);

/* A label is up to ML_LABEL_MAX bytes without control characters (0x00-0x1f, 0x7f). */
bool ml_record_label_ok(const char *label, size_t length);

/* Writes the record (its parts already valid) and a zero byte; returns the length without it. */
size_t ml_record_encode(const struct ml_record *record, char out[ML_RECORD_MAX]);

/* Reads a value; false, with *record undefined, when it is not exactly a record of this form. */
bool ml_record_decode(const char *value, size_t length, struct ml_record *record);

#endif
