/*
 * Which process is this? A fork copies every lock and connection; the copy must notice.
 *
 * ml_process_generation() returns a number that stays the same for the life of a process and
 * differs from that of the process it was forked from (and of all its ancestors). It costs a memory
 * read where the kernel can wipe a page at fork (Linux 4.14 and later), a getpid() elsewhere. It
 * may be called from any thread and never blocks.
 */
#ifndef ML_PROCESS_H
#define ML_PROCESS_H

#include <signal.h>
#include <stdint.h>

uint64_t ml_process_generation(void);

/* Blocks the signals of the calling thread, except those that report a fault of the running code,
 * which cannot be blocked sensibly; and sets back what *saved had. */
void ml_process_block_signals(sigset_t *saved);
void ml_process_restore_signals(const sigset_t *saved);

#endif
