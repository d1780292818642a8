import { type CommandRow, type Kind, type OptionRow, optionsOf } from './Table'

/** A script for fish 3 and later. */
export function fish(rows: readonly CommandRow[]): string {
  const valued = optionsOf(rows).filter(({ kind }) => kind !== undefined)
  const lines = rows.flatMap(({ name, summary, options, verbs, takesFile }) => [
    `${on('at')} -a ${name} -d ${quote(summary)}`,
    `${on('at help')} -a ${name} -d ${quote(summary)}`,
    ...options.map((option) => `${on(`in ${name}`)} ${flagOf(option)}`),
    ...verbs.map((verb) => `${on(`at ${name}`)} -a ${verb}`),
    ...(takesFile ? [`${on(`at ${name}`)} -F`] : []),
  ])
  return `# Completion of turnpike for fish: turnpike completion fish | source
# The words of the command line without options and their values.
function __turnpike_words
  set -l skip 0
  for word in (commandline -opc)[2..-1]
    if test $skip = 1
      set skip 0
      continue
    end
    switch $word
      case ${valued.map(({ name }) => name).join(' ')}
        set skip 1
      case '-*'
      case '*'
        echo $word
    end
  end
end
# Whether exactly these words stand before the cursor.
function __turnpike_at
  set -l words (__turnpike_words)
  test "$words" = "$argv"
end
# Whether the command is this one; without a word it is serve.
function __turnpike_in
  set -l words (__turnpike_words) serve
  test "$words[1]" = "$argv[1]"
end
complete -c turnpike -f
${on('at')} -a help -d 'explain a command'
${on('at')} -l version -d 'print the version'
${lines.join('\n')}
`
}

function on(condition: string): string {
  return `complete -c turnpike -n '__turnpike_${condition}'`
}

const values: Readonly<Record<Kind, string>> = {
  file: '-r -F',
  directory: "-x -a '(__fish_complete_directories (commandline -ct))'",
  other: '-x',
}

function flagOf({ name, help, kind }: OptionRow): string {
  const flag = `-l ${name.replace(/^--/, '')}`
  return [flag, ...(kind ? [values[kind]] : []), `-d ${quote(help)}`].join(' ')
}

function quote(text: string): string {
  return `'${text.replace(/['\\]/g, '\\$&')}'`
}
