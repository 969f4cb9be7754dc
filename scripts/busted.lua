-- busted, under the Lua that runs this file: on Debian the command `busted` takes Lua 5.1.
require "busted.runner" { standalone = false }
