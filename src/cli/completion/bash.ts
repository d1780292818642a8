import { type CommandRow, type Kind, optionsOf } from './Table'

/** A script for bash 3.2 and later. */
export function bash(rows: readonly CommandRow[]): string {
  const valued = optionsOf(rows).filter(({ kind }) => kind !== undefined)
  const named = (wanted: Kind) =>
    valued.filter(({ kind }) => kind === wanted).map(({ name }) => name)
  const cases = rows.map(({ name, options, verbs, takesFile }) => {
    const flags = options.map((option) => option.name).join(' ')
    return `    ${name}) options='${flags}' verbs='${verbs.join(' ')}' files='${takesFile ? 1 : ''}' ;;`
  })
  const names = rows.map(({ name }) => name).join(' ')
  return `# Completion of turnpike for bash: source <(turnpike completion bash)
_turnpike() {
  local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD-1]}
  local command='' count=0 options verbs files i
  # bash makes three words of --config=a.
  if [[ $current == = ]]; then current=''; fi
  if [[ $previous == = ]]; then previous=\${COMP_WORDS[COMP_CWORD-2]}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case \${COMP_WORDS[i]} in
      ${valued.map(({ name }) => name).join('|')})
        if [[ \${COMP_WORDS[i+1]} == = ]]; then ((i++)); fi
        ((i++)) ;;
      -*) ;;
      *)
        ((count++))
        if [[ -z $command ]]; then command=\${COMP_WORDS[i]}; fi ;;
    esac
  done
  COMPREPLY=()
  case $previous in
    ${pattern(named('file'))}) _turnpike_paths -f; return ;;
    ${pattern(named('directory'))}) _turnpike_paths -d; return ;;
    ${pattern(named('other'))}) return ;;
  esac
  case \${command:-serve} in
${cases.join('\n')}
    help) options='' verbs='${names}' files='' ;;
    *) return ;;
  esac
  if [[ -z $command ]]; then options="$options --version"; fi
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -z $command ]]; then
    COMPREPLY=($(compgen -W '${names} help' -- "$current"))
  elif [[ $count == 1 && -n $verbs ]]; then
    COMPREPLY=($(compgen -W "$verbs" -- "$current"))
  elif [[ $count == 1 && -n $files ]]; then
    _turnpike_paths -f
  fi
}
_turnpike_paths() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen "$1" -- "$current"))
  # bash 3 has no compopt.
  compopt -o filenames 2>/dev/null
}
complete -F _turnpike turnpike
`
}

/** A pattern of a case that matches these words; one that matches nothing for none. */
function pattern(words: readonly string[]): string {
  return words.length === 0 ? "''" : words.join('|')
}
