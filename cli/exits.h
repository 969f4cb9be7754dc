/* The exit codes of the command, besides the command's own that `memlock run` passes on. They are
 * those of sysexits.h where it has a fitting one. doc/memlock.1 tells them to people. */
#ifndef EXITS_H
#define EXITS_H

#include "status.h"

enum exit_code {
  EXIT_FINE = 0,
  EXIT_NO = 1,           /* not fit for locks; not broken, because the answer was no */
  EXIT_USAGE = 64,       /* wrong use; nothing was done */
  EXIT_UNREACHABLE = 69, /* the server could not be asked, or refused */
  EXIT_SYSTEM = 71,      /* this machine has no memory, process or descriptor to give */
  EXIT_LOST = 73,        /* the lock was lost, or about to be, while the command ran */
  EXIT_BUSY = 75,        /* somebody else has the lock */
  EXIT_MAX_HOLD = 124,   /* the command took longer than it may */
  EXIT_CANNOT_RUN = 126, /* the command is there, and cannot be executed */
  EXIT_NOT_FOUND = 127,  /* there is no such command */
  EXIT_SIGNAL = 128,     /* plus the number of the signal that ended the command */
};

/* The exit code for an outcome of the core. */
int exit_code_of(enum ml_status status);

#endif
