import type { Command, Option } from '../Command'

export type Commands = Readonly<Record<string, Command>>

/** The kind of a word of the command line: a file, a directory, or anything else. */
export type Kind = 'file' | 'directory' | 'other'

export type OptionRow = {
  /** The option with its dashes. */
  name: string
  help: string
  /** Kind of its value; absent for an option that takes none. */
  kind?: Kind
}

export type CommandRow = {
  name: string
  summary: string
  options: readonly OptionRow[]
  verbs: readonly string[]
  /** Whether its operand is a file. */
  takesFile: boolean
}

const everywhere: readonly OptionRow[] = [{ name: '--help', help: 'explain the command' }]

/** The table of commands as the shells need it. */
export function from(commands: Commands): readonly CommandRow[] {
  return Object.entries(commands).map(([name, { summary, options, verbs, operands }]) => ({
    name,
    summary,
    options: [...Object.entries<Option>(options).map(rowOf), ...everywhere],
    verbs: Object.keys(verbs ?? {}),
    takesFile: operands?.[0] === 'a file',
  }))
}

/** Every option once: whether an option takes a value is the same in all commands. */
export function optionsOf(rows: readonly CommandRow[]): readonly OptionRow[] {
  const byName = new Map(rows.flatMap(({ options }) => options.map((row) => [row.name, row])))
  return [...byName.values()]
}

function rowOf([name, { value, help }]: [string, Option]): OptionRow {
  const kinds: Readonly<Record<string, Kind>> = { FILE: 'file', DIR: 'directory' }
  const row = { name: `--${name}`, help }
  return value === undefined ? row : { ...row, kind: kinds[value] ?? 'other' }
}
