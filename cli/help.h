/* The help texts. */
#ifndef HELP_H
#define HELP_H

#include <stdbool.h>
#include <stdio.h>

/* Prints the text of a subcommand, or the general one (NULL). False: there is no such one. */
bool help_print(FILE *file, const char *command);

#endif
