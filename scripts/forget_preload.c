/* Loaded together with a sanitizer's library, which has to come first in a Lua that loads an
 * instrumented module. The programs that this Lua starts must not inherit it: some do not survive.
 */
#include <stdlib.h>

__attribute__((constructor)) static void forget_preload(void) { unsetenv("LD_PRELOAD"); }
