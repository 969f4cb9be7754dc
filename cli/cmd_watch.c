#include "commands.h"
int command_watch(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
