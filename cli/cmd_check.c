#include "commands.h"
int command_check(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
