import type { CommandRow, Kind, OptionRow } from './Table'

/** A script for zsh: to be sourced, or a file _turnpike in a directory of fpath. */
export function zsh(rows: readonly CommandRow[]): string {
  const names = rows.map(({ name, summary }) => `    ${quote(`${name}:${summary}`)}`).join('\n')
  const cases = rows.map((row) => `    ${row.name}) _arguments ${argumentsOf(row).join(' ')} ;;`)
  const serve = rows.find(({ name }) => name === 'serve')?.options ?? []
  const first = [...serve, { name: '--version', help: 'print the version' }].map(specOf)
  return `#compdef turnpike
# Completion of turnpike for zsh: source <(turnpike completion zsh)
_turnpike() {
  local context state state_descr line
  typeset -A opt_args
  local -a commands
  commands=(
${names}
    'help:explain a command'
  )
  _arguments -C ${first.join(' ')} '1:command:->command' '*::argument:->argument'
  if [[ $state == command ]]; then
    _describe command commands
    return
  fi
  [[ $state == argument ]] || return
  case $line[1] in
${cases.join('\n')}
    help) _describe command commands ;;
  esac
}
if [[ $funcstack[1] == _turnpike ]]; then
  _turnpike "$@"
else
  compdef _turnpike turnpike
fi
`
}

function argumentsOf({ options, verbs, takesFile }: CommandRow): string[] {
  const specs = options.map(specOf)
  if (verbs.length > 0) specs.push(quote(`1:verb:(${verbs.join(' ')})`))
  if (takesFile) specs.push(quote('1:file:_files'))
  // Further words are unknown: do not offer the options for them.
  return [...specs, quote('*: : ')]
}

const actions: Readonly<Record<Kind, string>> = {
  file: ':file:_files',
  directory: ':directory:_files -/',
  other: ':value: ',
}

function specOf({ name, help, kind }: OptionRow): string {
  const text = help.replace(/[[\]\\]/g, '\\$&')
  return quote(`${name}${kind ? '=' : ''}[${text}]${kind ? actions[kind] : ''}`)
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}
