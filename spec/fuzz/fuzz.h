/*
 * What every fuzz target begins with: an entry for libFuzzer, and claims that end the program where
 * they do not hold, so that libFuzzer keeps the input.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CLAIM(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      (void)fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

/* A copy that is exactly as long as its content, so that a read beyond it is seen. */
static inline char *exact_copy(const void *bytes, size_t size) {
  char *copy = malloc(size > 0 ? size : 1);
  CLAIM(copy != NULL);
  if (size > 0) memcpy(copy, bytes, size);
  return copy;
}

#endif
