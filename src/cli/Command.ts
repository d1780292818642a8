import { BesideError } from '../../db/fault'
import { type Env, EnvironmentError } from '../config/env'

export type Option = {
  /** What stands for the value in the help; absent for an option that takes none. */
  value?: string
  /** What the option does, and its default. */
  help: string
  /** It may be given several times; the values are joined by commas. */
  isList?: boolean
}

/** What a command works with, besides its own options. */
export type Context = {
  /** The first operand, which is the verb of a command that has verbs; empty without operands. */
  verb: string
  /** The last operand; empty without operands. */
  operand: string
  /** Path of merchants.toml, and the data directory. */
  file: string
  dataDir: string
  env: Env
  /** Unix ms. */
  now: () => number
  /** Print one line. */
  out: (line: string) => void
  err: (line: string) => void
}

/** Why a command cannot do its work. The message is for the user. */
export class CommandError extends Error {
  override readonly name: string = 'CommandError'
}

/** Prints an error whose message is for the user. Returns the exit code, and throws other errors. */
export function failed(error: unknown, print: (line: string) => void): 1 {
  const isForUser = [CommandError, EnvironmentError, BesideError].some((of) => error instanceof of)
  if (!isForUser || !(error instanceof Error)) throw error
  // Servers and files of strangers may have a part in it, and the terminal would obey theirs.
  print(`turnpike: ${error.message.replace(/[^\P{C}\n]+/gu, ' ')}`)
  return 1
}

export type Command = {
  /** It decides itself what happens when its output cannot be written. */
  handlesOutput?: true
  /** One line under 66 characters for `turnpike --help`. */
  summary: string
  /** Paragraphs of the command's own help, after its summary. */
  details?: string
  /** Names of the operands, in order. With `verbs` they stand in place of a verb. */
  operands?: readonly string[]
  /** Verbs of the command, each with the operands after it; `[an id]` may be left out. */
  verbs?: Readonly<Record<string, readonly string[]>>
  options: Readonly<Record<string, Option>>
  /** Command lines for the help, without the word `turnpike`. */
  examples: readonly [string, ...string[]]
}
