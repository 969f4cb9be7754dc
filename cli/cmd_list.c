#include "commands.h"
int command_list(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
