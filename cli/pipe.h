/* A pipe of our own: neither end blocks, and neither is inherited by another program. */
#ifndef PIPE_H
#define PIPE_H

#include <stdbool.h>

/* The end to read, the end to write. False with errno. */
bool pipe_open(int ends[2]);

#endif
