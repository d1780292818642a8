import { bash } from './completion/bash'
import { fish } from './completion/fish'
import * as Table from './completion/Table'
import { zsh } from './completion/zsh'

const shells: Readonly<Record<string, (rows: readonly Table.CommandRow[]) => string>> = {
  bash,
  zsh,
  fish,
}

/** The completion script of a shell, from the table of commands. Throws for an unknown shell. */
export function completion(shell: string, commands: Table.Commands): string {
  const script = shells[shell]
  if (script === undefined) throw new Error(`no completion for ${shell}`)
  return script(Table.from(commands))
}
