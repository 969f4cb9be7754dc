rockspec_format = "3.0"
package = "memlock"
version = "scm-1"

-- A placeholder until memlock has a public home. It is only read where the sources are fetched
-- (`luarocks install`, `luarocks pack` of this file), not by `luarocks make` in a checkout.
source = { url = "git+https://memlock.example/memlock.git" }

description = {
  summary = "Locks on memcached that are leases, with fencing tokens",
  detailed = [[
    memlock lets Lua programs that run on many machines agree, through memcached, on who may do a
    thing now. One round trip per operation; a lost lock is noticed; each holder gets a token
    larger than all before, so that a store can refuse a late writer. The command `memlock` runs
    other programs under such locks.]],
  license = "MIT",
  labels = { "memcached", "lock", "distributed" },
}

dependencies = { "lua >= 5.3, < 5.6" }

-- libmemcached 1.1.4 or later; the Makefile checks that. When it is not found, set
-- LIBMEMCACHED_DIR, or LIBMEMCACHED_INCDIR and LIBMEMCACHED_LIBDIR, on the command line.
external_dependencies = {
  LIBMEMCACHED = { header = "libmemcached/memcached.h", library = "memcached" },
}

build = {
  type = "make",
  copy_directories = { "doc", "types" }, -- beside the module, where `luarocks doc` finds them
  variables = { -- the same for building and installing, so that installing rebuilds nothing
    BUILD = "build/rock",
    LUA_VERSION = "any",
    CC = "$(CC)",
    CFLAGS = "$(CFLAGS)",
    LIBFLAG = "$(LIBFLAG)",
    LUA_INCDIR = "$(LUA_INCDIR)",
    LIBMEMCACHED_INCDIR = "$(LIBMEMCACHED_INCDIR)",
    LIBMEMCACHED_LIBDIR = "$(LIBMEMCACHED_LIBDIR)",
    INST_LIBDIR = "$(LIBDIR)",
    INST_BINDIR = "$(BINDIR)",
    INST_MANDIR = "$(PREFIX)/man", -- with the rock: `luarocks show memlock` tells where
    INST_BASHDIR = "$(PREFIX)/completions",
  },
}
