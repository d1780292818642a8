import type { Command } from '../Command'

/** The script of each shell. It asks `turnpike __complete` with the words of the command line. */
const scripts: Readonly<Record<string, string>> = {
  // For bash 3.2 and later.
  bash: `# Completion of turnpike for bash: source <(turnpike completion bash)
_turnpike() {
  local IFS=$'\\n' current=\${COMP_WORDS[COMP_CWORD]} hits
  if [[ $current == = ]]; then current=''; fi
  hits=($(turnpike __complete "\${COMP_WORDS[@]:1:COMP_CWORD}"))
  case $hits in
    :file) COMPREPLY=($(compgen -f -- "$current")) ;;
    :directory) COMPREPLY=($(compgen -d -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "\${hits[*]%%:*}" -- "$current")); return ;;
  esac
  # bash 3 has no compopt.
  compopt -o filenames 2>/dev/null
}
complete -F _turnpike turnpike
`,
  // To be sourced, or a file _turnpike in a directory of fpath.
  zsh: `#compdef turnpike
# Completion of turnpike for zsh: source <(turnpike completion zsh)
_turnpike() {
  local -a hits
  hits=(\${(f)"$(turnpike __complete "\${(@Q)words[2,CURRENT]}")"})
  case $hits[1] in
    :file) compset -P '--*='; _files ;;
    :directory) compset -P '--*='; _files -/ ;;
    *) _describe turnpike hits ;;
  esac
}
if [[ $funcstack[1] == _turnpike ]]; then
  _turnpike "$@"
else
  compdef _turnpike turnpike
fi
`,
  // For fish 3 and later.
  fish: `# Completion of turnpike for fish: turnpike completion fish | source
function __turnpike
  set -l current (commandline -ct)
  set -l words (commandline -opc) "$current"
  set -l hits (turnpike __complete $words[2..-1])
  set -l option (string match -r '^--[^=]*=' -- "$current")
  set -l value (string replace -r '^--[^=]*=' '' -- "$current")
  switch "$hits[1]"
    case :file
      printf '%s\\n' "$option"(__fish_complete_path "$value")
    case :directory
      printf '%s\\n' "$option"(__fish_complete_directories "$value")
    case '*'
      string replace : \\t -- $hits
  end
end
complete -c turnpike -f -a '(__turnpike)'
`,
}

/** The completion script of a shell. Throws for an unknown shell. */
export function completion(shell: string): string {
  const script = scripts[shell]
  if (script === undefined) throw new Error(`no completion for ${shell}`)
  return script
}

/** What the scripts let the shell complete. */
const paths: Readonly<Record<string, string>> = { FILE: ':file', DIR: ':directory' }

/**
 * What may stand at the end of a command line, as `WORD:help`, or one of `paths`. The last of the words
 * after the program is the one at the cursor: the shell drops what does not begin with it.
 */
export function complete(
  words: readonly string[],
  commands: Readonly<Record<string, Command>>,
): readonly string[] {
  // bash makes three words of --config=a.
  const line = words.join('\0').replace(/\0=(\0|$)/g, '=')
  const [current = '', ...before] = line.split('\0').reverse()
  // An option takes a value in every command or in none.
  const valued = Object.values(commands).flatMap(({ options }) => Object.entries(options))
  const values = new Map(valued.map(([name, { value }]) => [`--${name}`, value]))
  const operands: string[] = []
  let value: string | undefined
  for (const word of before.reverse()) {
    if (value !== undefined) value = undefined
    else if (word.startsWith('-')) value = values.get(word)
    else operands.push(word)
  }
  value ??= values.get(/^(.*?)=/.exec(current)?.[1] ?? '')
  if (value !== undefined) return [paths[value] ?? []].flat()

  const [name = 'serve', ...rest] = operands
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined
  if (current.startsWith('-') && command !== undefined) {
    const options = Object.entries(command.options)
    const own = options.map(([option, { help }]) => `--${option}:${help}`)
    const version = operands.length === 0 ? ['--version:print the version'] : []
    return [...own, '--help:explain the command', ...version]
  }
  const names = Object.entries(commands).map(([each, { summary }]) => `${each}:${summary}`)
  if (operands.length === 0) return [...names, 'help:explain a command']
  if (rest.length > 0) return []
  if (name === 'help') return names
  return command?.operands?.[0] === 'a file' ? [':file'] : Object.keys(command?.verbs ?? {})
}
