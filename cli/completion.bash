# shellcheck shell=bash
# Completion of memlock(1) for bash: subcommands, options, and the names of locks that are held.

# The names that `memlock list` shows with the options for servers given so far; odd ones left out.
_memlock_names() {
  local word options=()
  for ((word = 2; word < COMP_CWORD; word++)); do
    case ${COMP_WORDS[word]} in
      -s | --servers | --prefix | --user | --password-file)
        options+=("${COMP_WORDS[word]}" "${COMP_WORDS[word + 1]}")
        ;;
    esac
  done
  "${COMP_WORDS[0]}" list --timeout 0.5 "${options[@]}" 2>/dev/null |
    sed -n '1d; /\\/d; s/ .*//p'
}

_memlock() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[1]} word names=0
  local common='--servers --prefix --timeout --proxy --user --password-file --help' own=
  COMPREPLY=()

  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W \
      'run status list watch break check help --help --version' -- "$current")
    return
  fi

  # Behind `--`, or behind the name of a lock to run under, there is a command of its own.
  if [[ $command == run ]]; then
    for ((word = 2; word < COMP_CWORD; word++)); do
      case ${COMP_WORDS[word]} in
        --)
          _memlock_command $((word + (names == 0 ? 2 : 1)))
          return
          ;;
        -[stwEg] | --servers | --prefix | --timeout | --user | --password-file | --ttl | --wait | \
          --conflict-exit-code | --grace | --loss-grace | --at-least | --max-hold | --label | \
          --identity)
          word=$((word + 1))
          ;;
        -*) ;;
        *) names=$((names + 1)) ;;
      esac
      if ((names == 2)); then
        _memlock_command "$word"
        return
      fi
    done
    if ((names == 1)) && [[ $current != -* && $previous != -* ]]; then
      _memlock_command "$COMP_CWORD"
      return
    fi
  fi

  case $previous in
    --password-file)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
      ;;
    -w | --wait)
      mapfile -t COMPREPLY < <(compgen -W inf -- "$current")
      return
      ;;
    -[stEgi] | --servers | --prefix | --timeout | --user | --ttl | --conflict-exit-code | \
      --grace | --loss-grace | --at-least | --max-hold | --label | --identity | --interval | --id)
      return
      ;;
  esac

  case $command in
    run)
      own='--ttl --wait --nonblock --conflict-exit-code --grace --loss-grace --at-least
        --max-hold --label --identity --quiet --verbose'
      ;;
    status | list | check) own='--json' ;;
    watch) own='--json --interval' ;;
    break) own='--id --yes' ;;
    help)
      mapfile -t COMPREPLY < <(compgen -W 'run status list watch break check' -- "$current")
      return
      ;;
    *) return ;;
  esac
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$common $own" -- "$current")
  elif [[ $command != list && $command != check ]] && ((names == 0)); then
    mapfile -t COMPREPLY < <(compgen -W "$(_memlock_names)" -- "$current")
  fi
}

# Completes a command that begins at the given word: by bash-completion, where it is there.
_memlock_command() {
  if declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif ((COMP_CWORD == $1)); then
    mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
  fi
}

complete -F _memlock memlock
