# memlock: locks on memcached, for Lua.  `make help` lists what can be made.

# ---- Yours to set, as in: make CC=clang CFLAGS=-O3 PREFIX=$HOME/.local ------------------------

CFLAGS      ?= -O2 -g
LUA_VERSION ?= 5.4
LUA         ?= lua$(LUA_VERSION)
PREFIX      ?= /usr/local
INST_LIBDIR ?= $(PREFIX)/lib/lua/$(LUA_VERSION)
INST_BINDIR ?= $(PREFIX)/bin
INST_PCDIR  ?= $(PREFIX)/lib/pkgconfig
INST_MANDIR ?= $(PREFIX)/share/man
INST_BASHDIR ?= $(PREFIX)/share/bash-completion/completions
BUILD       ?= build$(if $(filter-out 5.4,$(LUA_VERSION)),/lua$(LUA_VERSION))

# Where lua.h is: the first of the usual places. Where libmemcached is: the compiler knows, or say.
LUA_INCDIR ?= $(firstword $(patsubst %/lua.h,%,$(wildcard $(addsuffix /lua.h, \
                $(foreach dir,/usr/include /usr/local/include /opt/homebrew/include, \
                  $(dir)/lua$(LUA_VERSION) $(dir)/lua$(subst .,,$(LUA_VERSION))) \
                /usr/include /usr/local/include /opt/homebrew/include))))
LIBMEMCACHED_INCDIR ?= $(if $(MACOS),$(BREW)/include)
LIBMEMCACHED_LIBDIR ?= $(if $(MACOS),$(BREW)/lib)

# Empty unless you say otherwise: CPPFLAGS, LDFLAGS, DESTDIR, and
#   WERROR=1                    a warning is an error
#   V=1                         show every command
#   SANITIZE=address,undefined  instrument (use a BUILD of its own, such as BUILD=build/asan)
#   URL=https://...             the folder where the sources of `make dist` will be published
#   SECONDS=60 SEED=n           how long `make soak` and `make fuzz` take, and what a soak draws
#   TESTS="spec/core ..."       which files `make test` runs; FULL=1 runs them at full length

# ---- The machinery ----------------------------------------------------------------------------

MACOS := $(filter Darwin,$(shell uname -s))
BREW   = $(shell brew --prefix libmemcached 2>/dev/null)

LIBFLAG ?= $(if $(MACOS),-bundle -undefined dynamic_lookup,-shared)
OBJCOPY ?= objcopy

WARNINGS = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
           -Wold-style-definition -Wformat=2 -Wundef -Wvla -Wcast-qual -Wpointer-arith \
           -Wwrite-strings -Wnull-dereference -Wimplicit-fallthrough
SANITIZERS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
               -fno-omit-frame-pointer)

# Other people's headers come in by -isystem: their warnings are not ours.
ML_CPPFLAGS = -D_GNU_SOURCE -Isrc $(addprefix -isystem ,$(LIBMEMCACHED_INCDIR))
ML_CFLAGS   = -std=c11 -fPIC -fvisibility=hidden -pthread $(WARNINGS) $(if $(WERROR),-Werror) \
              $(SANITIZERS)
ML_LDFLAGS  = -pthread $(SANITIZERS) $(NODELETE) $(addprefix -L,$(LIBMEMCACHED_LIBDIR)) $(RPATH)
ML_LDLIBS   = -lmemcached

# Leaks are listed at the very end; a module that Lua has unloaded by then would have no names.
NODELETE = $(if $(SANITIZE),$(if $(MACOS),,-Wl,-z,nodelete))

# A library outside the system's own directories is found at run time only if we say where.
RPATH = $(addprefix -Wl$(comma)-rpath$(comma),$(filter-out /usr/lib% /lib%,$(LIBMEMCACHED_LIBDIR)))
comma = ,

# The user's flags come last, so that they win.
COMPILE  = $(CC) $(ML_CPPFLAGS) $(CPPFLAGS) $(ML_CFLAGS) $(CFLAGS)
LINK     = $(CC) $(ML_LDFLAGS) $(LDFLAGS)
WITH_LUA = $(addprefix -isystem ,$(LUA_INCDIR))

VERSION = $(shell sed -n 's/^.define ML_VERSION "\(.*\)"/\1/p' src/version.h)

# $(call say,VERB,what) begins a recipe line that shows itself briefly, with V=1 in full, and with
# `make -s` not at all.
silent = $(findstring s,$(firstword -$(filter-out --%,$(MAKEFLAGS))))
say    = $(if $(V),,@$(if $(silent),,printf '  %-6s %s\n' '$(1)' '$(2)';))

objects  = $(patsubst %.c,$(BUILD)/%.o,$(1))
CORE    := $(call objects,$(filter-out src/lua_%,$(wildcard src/*.c)))
BINDING := $(call objects,$(wildcard src/lua_*.c))
COMMAND := $(call objects,$(wildcard cli/*.c))

MODULE   = $(BUILD)/memlock.so
ARCHIVE  = $(BUILD)/libmemlock.a
PROGRAM  = $(BUILD)/memlock
TESTERS  = $(patsubst spec/core/%.c,$(BUILD)/spec/%,$(filter-out $(WRAPPED),\
             $(wildcard spec/core/test_*.c)))
SUPPORT  = $(patsubst spec/support/%.c,$(BUILD)/spec/%,$(wildcard spec/support/*.c))
FUZZERS  = $(patsubst spec/fuzz/%.c,$(BUILD)/spec/%,$(wildcard spec/fuzz/fuzz_*.c))
TOOLS    = $(patsubst %/posix,%/memlock_posix.so,$(SUPPORT))

.PHONY: all libmemlock.a spec-tools bench-tools demo embed test test-hosts soak fuzz fuzzers model \
        check bench bench-peers tidy doc install install-static uninstall dist clean help FORCE
.SECONDARY:          # keep the objects that implicit rules chain through
.DELETE_ON_ERROR:

all: $(MODULE) $(PROGRAM)

$(MODULE): $(CORE) $(BINDING)
	$(call say,LINK,$@)$(LINK) $(LIBFLAG) -o $@ $^ $(ML_LDLIBS)

$(PROGRAM): $(CORE) $(COMMAND)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(ML_LDLIBS)

# One object in which all but luaopen_memlock is local: a host that links it cannot clash with us.
# (On macOS `ld -r` makes hidden symbols local by itself.)
libmemlock.a: $(ARCHIVE)
$(ARCHIVE): $(CORE) $(BINDING)
	$(call say,AR,$@)$(LD) -r -o $(BUILD)/libmemlock.o $^
	$(if $(MACOS),,$(if $(V),,@)$(OBJCOPY) --keep-global-symbol=luaopen_memlock $(BUILD)/libmemlock.o)
	$(if $(V),,@)rm -f $@ && $(AR) rcs $@ $(BUILD)/libmemlock.o

# A program that embeds Lua and links all of memlock.
EMBED = $(BUILD)/embed
$(EMBED): $(BUILD)/examples/embed/host.o $(ARCHIVE)
	$(call say,LINK,$@)$(LINK) -o $@ $^ -llua$(LUA_VERSION) $(ML_LDLIBS)

$(BINDING) $(BUILD)/spec/support/posix.o $(patsubst %,$(BUILD)/%/host.o,spec/support examples/embed): \
  ML_CPPFLAGS += $(WITH_LUA)

# Objects depend on the flags they were made with, and on the headers they include (-MMD).
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(COMPILE) -MMD -MP -c -o $@ $<

-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d)

# Rewritten only when a flag changes; that is also when we look whether the libraries will do.
FLAGS  = $(COMPILE) $(WITH_LUA) $(LINK) $(LIBFLAG)
quoted = '$(subst ','\'',$(1))'
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@[ $(call quoted,$(FLAGS)) = "$$(cat $@ 2>/dev/null)" ] || { \
	  scripts/check-headers $(call quoted,$(COMPILE) $(WITH_LUA)) $(call quoted,$(LINK)) $(@D) \
	    '$(LUA_VERSION)' && \
	  printf '%s\n' $(call quoted,$(FLAGS)) >$@; }

# ---- Tests ------------------------------------------------------------------------------------

spec-tools: $(TESTERS) $(TOOLS) $(EMBED) $(BUILD)/bench/worker

$(BUILD)/spec/test_%: $(BUILD)/spec/core/test_%.o $(CORE)
	$(call say,LINK,$@)$(LINK) $(WRAP) -o $@ $^ -lcmocka $(ML_LDLIBS)

# This one has an allocator of its own between our objects and the system's. (Not on macOS, whose
# linker cannot do that.)
WRAPPED = $(if $(MACOS),spec/core/test_memory.c)
$(BUILD)/spec/test_memory: WRAP = $(addprefix -Wl$(comma)--wrap=,malloc calloc realloc strdup)

# A signal that comes after Lua has closed still needs its handler.
$(BUILD)/spec/memlock_posix.so: $(BUILD)/spec/support/posix.o
	$(call say,LINK,$@)$(LINK) $(LIBFLAG) $(if $(MACOS),,-Wl$(comma)-z$(comma)nodelete) -o $@ $^

$(BUILD)/spec/host: TOOL_LDLIBS = -llua$(LUA_VERSION)
$(BUILD)/spec/%: $(BUILD)/spec/support/%.o
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(TOOL_LDLIBS)

# The opener of the specs' helper module is exported without further ado.
$(BUILD)/spec/support/posix.o: ML_CFLAGS += -fvisibility=default -Wno-missing-prototypes

# An instrumented module needs the sanitizer's library in the process from the start: tests then
# take this interpreter, also (by its arg[-1]) to start others. `exec -a` needs bash.
PRELOAD    = $(if $(findstring address,$(SANITIZE)),asan)$(if $(findstring thread,$(SANITIZE)),tsan)
spec-tools: $(if $(PRELOAD),$(BUILD)/bin/$(notdir $(LUA)))
$(BUILD)/bin/$(notdir $(LUA)): $(BUILD)/spec/forget_preload.so
	@mkdir -p $(@D)
	@printf '#!/usr/bin/env bash\nLD_PRELOAD="%s %s" exec -a "$$0" %s "$$@"\n' \
	  "$$($(CC) -print-file-name=lib$(PRELOAD).so)" '$(abspath $<)' "$$(command -v $(LUA))" >$@
	@chmod +x $@
$(BUILD)/spec/forget_preload.so: scripts/forget_preload.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -fPIC -o $@ $<

export BUILD LUA

# `make` anew after each scripts/deps: what it installs is looked for when a makefile is read.
demo:
	@scripts/deps demo $(LUA_VERSION)
	@$(MAKE) --no-print-directory all
	@LUA_CPATH='$(BUILD)/?.so;;' $(LUA) examples/demo.lua

embed:
	@scripts/deps demo $(LUA_VERSION)
	@$(MAKE) --no-print-directory $(EMBED)
	@examples/embed/run

test:
	@scripts/deps test $(LUA_VERSION)
	@$(MAKE) --no-print-directory all spec-tools
	@$(LUA) scripts/test $(TESTS)

# In real servers that embed Lua. HAProxy is built with a Lua of its own choice.
test-hosts:
	@scripts/deps hosts
	@$(MAKE) --no-print-directory all spec-tools
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/haproxy' all LUA_VERSION="$$( \
	  PATH="$$PATH:/usr/sbin" haproxy -vv | sed -n 's/^Built with Lua version : Lua \(5\.[0-9]\).*/\1/p')"
	@$(LUA) scripts/test spec/hosts

# Everything goes wrong at once, for some time; `make soak SECONDS=300 SEED=7` goes on longer, and
# draws the same faults again. Not ?=, since bash has a SECONDS of its own.
SECONDS = 60
soak:
	@scripts/deps test $(LUA_VERSION)
	@$(MAKE) --no-print-directory all spec-tools
	@$(LUA) spec/soak/soak.lua '$(SECONDS)' $(SEED)

# Input at random, for SECONDS in all, with clang's libFuzzer and its sanitizers.
fuzz:
	@scripts/deps check
	@$(MAKE) --no-print-directory fuzzers BUILD=build/fuzz CC=clang CFLAGS='-O1 -g' \
	  SANITIZE=fuzzer-no-link,address,undefined
	@BUILD=build/fuzz scripts/fuzz '$(SECONDS)'

fuzzers: $(FUZZERS)
$(BUILD)/spec/fuzz_%: $(BUILD)/spec/fuzz/fuzz_%.o $(CORE)
	$(call say,LINK,$@)$(LINK) -fsanitize=fuzzer -o $@ $^ $(ML_LDLIBS)

check:
	@scripts/deps check 5.3
	@scripts/check

# The protocol, apart from its code: doc/model/README.md.
model:
	@scripts/deps check
	@doc/model/run

# clang-tidy with the flags that we compile with, a file at a time so that -j helps.
TIDY ?= clang-tidy
SOURCES = $(wildcard src/*.c cli/*.c)
tidy: $(SOURCES:%.c=$(BUILD)/%.tidy)
$(BUILD)/%.tidy: %.c .clang-tidy $(wildcard src/*.h cli/*.h) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,TIDY,$<)$(TIDY) --quiet --config-file=.clang-tidy $< -- \
	  $(ML_CPPFLAGS) $(WITH_LUA) $(CPPFLAGS) -std=c11 && touch $@

# The reference, made of the comments in the binding. Debian's ldoc begins with a line that takes
# another Lua; others have a script that starts it with the right one.
LDOC ?= $(if $(wildcard /usr/share/lua/$(LUA_VERSION)/ldoc),$(LUA) /usr/bin/ldoc,ldoc)
doc: $(BUILD)/doc/index.html
$(BUILD)/doc/index.html: doc/config.ld src/version.h $(wildcard src/lua_*.c)
	@mkdir -p $(@D)
	$(call say,LDOC,$@)$(LDOC) --config $< --fatalwarnings --dir '$(abspath $(@D))' \
	  --date 'with version $(VERSION)' . >/dev/null

# ---- Measuring --------------------------------------------------------------------------------

$(BUILD)/bench/worker: $(call objects,$(wildcard bench/*.c)) $(CORE)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(ML_LDLIBS) -lm

# The same with other turns of waiters, in microseconds, to show why ours is as long as it is.
TURNS = $(addprefix $(BUILD)/bench/turn-,2500 3500 6000 9000)
bench-tools: spec-tools $(TURNS)
$(TURNS): $(BUILD)/bench/turn-%: src/backoff.c $(BUILD)/bench/worker
	$(call say,LINK,$@)$(COMPILE) -DML_TURN='($* * 1000)' $(ML_LDFLAGS) $(LDFLAGS) -o $@ $< \
	  $(call objects,$(wildcard bench/*.c)) $(filter-out %/backoff.o,$(CORE)) $(ML_LDLIBS) -lm

# All figures of doc/performance.md, in some minutes; QUICK=1 shows in seconds that it works.
bench:
	@scripts/deps bench
	@$(MAKE) --no-print-directory all bench-tools
	@$(LUA) bench/bench.lua $(if $(QUICK),quick)

# The libraries that others use, from Debian.
bench-peers:
	@scripts/deps peers
	@$(MAKE) --no-print-directory all spec-tools
	@$(LUA) bench/bench.lua peers $(if $(QUICK),quick)

# ---- Installing -------------------------------------------------------------------------------

install: all
	install -d '$(DESTDIR)$(INST_LIBDIR)'
	install -m 755 $(MODULE) '$(DESTDIR)$(INST_LIBDIR)/memlock.so'
	install -d '$(DESTDIR)$(INST_BINDIR)' '$(DESTDIR)$(INST_MANDIR)/man1' '$(DESTDIR)$(INST_BASHDIR)'
	install -m 755 $(PROGRAM) '$(DESTDIR)$(INST_BINDIR)/memlock'
	install -m 644 doc/memlock.1 '$(DESTDIR)$(INST_MANDIR)/man1/memlock.1'
	install -m 644 cli/completion.bash '$(DESTDIR)$(INST_BASHDIR)/memlock'

# The archive, for programs that embed this Lua, beside the module; and what pkg-config says of it.
PC_FILE = $(INST_PCDIR)/memlock-lua$(LUA_VERSION).pc
install-static: $(ARCHIVE)
	install -d '$(DESTDIR)$(INST_LIBDIR)' '$(DESTDIR)$(INST_PCDIR)'
	install -m 644 $(ARCHIVE) '$(DESTDIR)$(INST_LIBDIR)/libmemlock.a'
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(INST_LIBDIR)' '' 'Name: memlock' \
	  'Description: Locks on memcached, for programs that embed Lua $(LUA_VERSION)' \
	  'Version: $(VERSION)' \
	  'Libs: -L$${libdir} -lmemlock $(addprefix -L,$(LIBMEMCACHED_LIBDIR)) $(ML_LDLIBS) -pthread' \
	  >'$(DESTDIR)$(PC_FILE)'

uninstall:
	rm -f '$(DESTDIR)$(INST_LIBDIR)/memlock.so' '$(DESTDIR)$(INST_BINDIR)/memlock' \
	  '$(DESTDIR)$(INST_MANDIR)/man1/memlock.1' '$(DESTDIR)$(INST_BASHDIR)/memlock'
	rm -f '$(DESTDIR)$(INST_LIBDIR)/libmemlock.a' '$(DESTDIR)$(PC_FILE)'

dist:
	@scripts/dist '$(BUILD)/dist' $(URL)

clean:
	rm -rf '$(BUILD)'

help:
	@echo 'make                build the module, $(MODULE), and the command, $(PROGRAM)'
	@echo 'make demo           install what is missing, build, and show memlock at work'
	@echo '  UNLOCKED=1        the same work without the lock: see the updates it loses'
	@echo 'make embed          a C program with memlock in it draws 60 frames a second, none of them late'
	@echo 'make test           install what is missing, build, and run all tests (some minutes)'
	@echo '  TESTS="FILE ..."  only these; FULL=1 at full length'
	@echo '  LUA_VERSION=5.3   with that Lua, in a build of its own (so with all that is here)'
	@echo 'make test-hosts     install lighttpd and HAProxy, and run memlock in them (a minute or two)'
	@echo 'make soak           for SECONDS (60), everything goes wrong at once; SEED=n draws it again'
	@echo 'make fuzz           for SECONDS (60), random input to what reads records, addresses, replies'
	@echo 'make check          install what is missing (clang, valgrind and more); style, warnings,'
	@echo '                    sanitizers, and the rules of the house'
	@echo 'make model          verify the protocol with spin: some minutes'
	@echo 'make doc            the reference, $(BUILD)/doc/index.html (with LDoc)'
	@echo 'make bench          measure everything: some minutes; QUICK=1 only shows that it works'
	@echo 'make bench-peers    measure the libraries that others use: installs them'
	@echo 'make install        module, command, manual into PREFIX (now $(PREFIX)), below DESTDIR if set'
	@echo 'make install-static the archive below, and a .pc file with which pkg-config finds it'
	@echo 'make uninstall      take all of it out again'
	@echo 'make libmemlock.a   $(ARCHIVE), to link into a program that embeds Lua'
	@echo 'make dist           a release of what is committed: sources, rockspec, packed rock'
	@echo 'make spec-tools     only build what the tests need'
	@echo 'make tidy           only run clang-tidy'
	@echo 'make clean          remove $(BUILD)'
	@echo
	@echo 'The variables that you may set are described at the top of the Makefile.'
