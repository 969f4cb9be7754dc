#include "commands.h"
int command_status(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
