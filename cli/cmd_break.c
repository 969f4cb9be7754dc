#include "commands.h"
int command_break(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
