#include "nonce.h"

#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "process.h"

/* Bytes are handed out from the end. The generation tells whose bytes they are: a child must not
 * hand out what its parent will hand out too. */
static _Thread_local struct {
  uint64_t generation;
  size_t left;
  unsigned char bytes[256];
} pool;

static bool draw(void *out, size_t count) {
  uint64_t generation = ml_process_generation();
  if (pool.generation != generation || pool.left < count) {
    pool.left = 0;
    if (getentropy(pool.bytes, sizeof pool.bytes) != 0) return false;
    pool.generation = generation;
    pool.left = sizeof pool.bytes;
  }
  pool.left -= count;
  memcpy(out, pool.bytes + pool.left, count);
  return true;
}

bool ml_nonce(char nonce[ML_NONCE_LENGTH + 1]) {
  static const char digits[] = "0123456789abcdef";
  unsigned char bytes[ML_NONCE_LENGTH / 2];
  if (!draw(bytes, sizeof bytes)) return false;
  for (size_t i = 0; i < sizeof bytes; i++) {
    nonce[2 * i] = digits[bytes[i] >> 4];
    nonce[2 * i + 1] = digits[bytes[i] & 15];
  }
  nonce[ML_NONCE_LENGTH] = '\0';
  return true;
}

uint64_t ml_nonce_bits(void) {
  uint64_t bits = 0;
  return draw(&bits, sizeof bits) ? bits : 0;
}

double ml_nonce_unit(void) { return (double)(ml_nonce_bits() >> 11) / (double)(UINT64_C(1) << 53); }
