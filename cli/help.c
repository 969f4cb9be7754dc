#include "help.h"

#include <string.h>

static const char general[] =
    "Usage: memlock COMMAND [OPTION]... [ARGUMENT]...\n"
    "Locks on memcached, among many machines.\n"
    "\n"
    "  memlock run NAME -- COMMAND   run a command while holding a lock\n"
    "  memlock status NAME...        who holds these locks?\n"
    "  memlock list                  which locks are held now?\n"
    "  memlock watch NAME            a line each time that the holder changes\n"
    "  memlock break NAME            take a lock away from its holder\n"
    "  memlock check                 are the servers fit for locks?\n"
    "\n"
    "'memlock help COMMAND' tells more of one, 'memlock --version' the version; memlock(1) has "
    "all\n"
    "of it, exit codes included.\n";

#define COMMON                                                                                     \
  "\n"                                                                                             \
  "  -s, --servers LIST        host, host:port, [v6]:port or /path/of/a/socket, with commas\n"     \
  "                            between them (MEMLOCK_SERVERS, or 127.0.0.1:11211)\n"               \
  "      --prefix TEXT         of the keys (memlock:)\n"                                           \
  "      --timeout SECONDS     for one operation (1)\n"                                            \
  "      --proxy               the servers are behind a proxy\n"                                   \
  "      --user NAME           with the password of MEMLOCK_PASSWORD, or of ...\n"                 \
  "      --password-file FILE  ... the first line of this file (memcached -Y)\n"                   \
  "  -h, --help                this text\n"

static const char run[] =
    "Usage: memlock run [OPTION]... NAME -- COMMAND [ARGUMENT]...\n"
    "Runs COMMAND while holding the lock NAME, renews it meanwhile, and gives it up at the end.\n"
    "\n"
    "  -t, --ttl SECONDS         the lease: for how long the lock outlives us, if we die (30)\n"
    "  -w, --wait SECONDS        wait that long for the lock, or 'inf' (0: one try)\n"
    "  -n, --nonblock            do not wait\n"
    "  -E, --conflict-exit-code NUMBER\n"
    "                            when somebody else has the lock (75)\n"
    "  -g, --grace SECONDS       from TERM to KILL, when the command has to end (5)\n"
    "      --loss-grace SECONDS  the same, when the lock has been lost already (0)\n"
    "      --at-least SECONDS    keep the lock that long, even if COMMAND ends sooner\n"
    "      --max-hold SECONDS    end COMMAND when it takes longer\n"
    "      --label TEXT          what others are shown as the holder (host:pid)\n"
    "      --identity TEXT       the holder's identity: who has it takes the lock over\n"
    "  -q, --quiet               say nothing but errors: not that it is held\n"
    "  -v, --verbose             say what is done\n" COMMON "\n"
    "Times are in seconds, or with s, m, h or d behind them: 90, 0.5, 2m.\n"
    "COMMAND sees MEMLOCK_NAME and MEMLOCK_TOKEN. The exit code is its own, or 128+n when signal "
    "n\n"
    "ended it; 75 somebody else has the lock, 69 no server could be asked, 73 the lock was lost\n"
    "while it ran, 124 it took longer than --max-hold, 127 it was not found, 126 it cannot be "
    "run,\n"
    "64 wrong use, 71 this machine has nothing to give.\n";

static const char status[] =
    "Usage: memlock status [OPTION]... NAME...\n"
    "Shows who holds these locks.\n"
    "\n"
    "      --json                for programs: a list of objects\n" COMMON "\n"
    "The exit code is 0, held or free; 69 when a server could not be asked.\n";

static const char list[] = "Usage: memlock list [OPTION]...\n"
                           "Shows the locks that the servers hold now, with this prefix, as far as "
                           "memcached lets one list\n"
                           "them: an old one may miss some, and a proxy lists nothing.\n"
                           "\n"
                           "      --json                for programs: a list of objects\n" COMMON;

static const char watch[] =
    "Usage: memlock watch [OPTION]... NAME\n"
    "Prints a line each time that the holder changes, until Ctrl-C.\n"
    "\n"
    "  -i, --interval SECONDS    between looks (0.5); what is shorter goes unseen\n"
    "      --json                for programs: an object on each line\n" COMMON;

static const char break_[] =
    "Usage: memlock break [OPTION]... NAME\n"
    "Shows who holds the lock, asks, and removes exactly what was shown. Its holder notices at "
    "its\n"
    "next renewal, and goes on until then.\n"
    "\n"
    "      --id ID               only this holder, as 'memlock status' shows its id; do not ask\n"
    "  -y, --yes                 do not ask\n" COMMON "\n"
    "The exit code is 0 when nobody of these holds it any more, 1 when the answer was no, 75 when\n"
    "somebody else holds it by now, 69 when the server could not be asked.\n";

static const char check[] =
    "Usage: memlock check [OPTION]...\n"
    "Tells whether the servers are fit for locks, and what is wrong with them.\n"
    "\n"
    "      --json                for programs: a list of objects\n" COMMON "\n"
    "The exit code is 0 only when all are fit; 1 when one is not, 69 when one could not be "
    "asked.\n";

bool help_print(FILE *file, const char *command) {
  const struct {
    const char *name;
    const char *text;
  } texts[] = {
      {"run", run},     {"status", status}, {"list", list},
      {"watch", watch}, {"break", break_},  {"check", check},
  };
  const char *text = command == NULL ? general : NULL;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0] && text == NULL; i++)
    if (strcmp(command, texts[i].name) == 0) text = texts[i].text;
  return text != NULL && fputs(text, file) >= 0;
}
