#include "exits.h"

int exit_code_of(enum ml_status status) {
  switch (status) {
  case ML_OK:
  case ML_NOT_HELD:
    return EXIT_FINE;
  case ML_HELD:
  case ML_CONFLICT:
    return EXIT_BUSY;
  case ML_LOST:
    return EXIT_LOST;
  case ML_TIMEOUT:
  case ML_UNREACHABLE:
  case ML_REFUSED:
  case ML_UNSUPPORTED:
    return EXIT_UNREACHABLE;
  case ML_INVALID:
    return EXIT_USAGE;
  case ML_CANCELLED:
  case ML_CLOSED:
    break;
  }
  return EXIT_SYSTEM;
}
