/*
 * Randomness: ids that nobody else draws, and jitter. It comes from the kernel, never from the
 * host's rand(), whose sequence belongs to the host. A small pool per thread keeps it from costing
 * a system call each time; a forked child starts a pool of its own. Any thread; does not block.
 */
#ifndef ML_NONCE_H
#define ML_NONCE_H

#include <stdbool.h>
#include <stdint.h>

#define ML_NONCE_LENGTH 32

/* Draws 128 random bits as 32 lower-case hex digits and a final zero byte. Returns false when the
 * kernel has no random numbers to give (then `nonce` is not to be used). */
bool ml_nonce(char nonce[ML_NONCE_LENGTH + 1]);

/* 64 random bits; 0 when the kernel has none to give. */
uint64_t ml_nonce_bits(void);

/* A random number in 0 <= x < 1, for jitter. */
double ml_nonce_unit(void);

#endif
