import { nearest } from '../config/nearest'
import type { Command } from './Command'

type Parsed =
  | { kind: 'run'; name: string; command: Command; args: Arguments }
  /** Without a command: help about all of them. */
  | { kind: 'help'; about?: { name: string; command: Command } }
  /** What is wrong with the arguments. */
  | { kind: 'fault'; message: string }

/** Values by option; true for an option without a value. */
type Values = Record<string, string | boolean | undefined>

/** `word`: the first operand, `operand`: the last one; empty without operands. */
type Arguments = { values: Values; word: string; operand: string }

type Commands = Readonly<Record<string, Command>>

/** Reads a command line by the table of commands; `argv` has no program name. */
export function parseArguments(argv: string[], commands: Commands): Parsed {
  try {
    const { values, positionals } = split(argv, commands)
    const { help, version, ...rest } = values
    const isHelp = help === true || positionals[0] === 'help'
    const [word, ...operands] = positionals[0] === 'help' ? positionals.slice(1) : positionals
    if (isHelp && word === undefined) return { kind: 'help' }
    const name = word ?? (version === true ? 'version' : 'serve')
    const command = Object.hasOwn(commands, name) ? commands[name] : undefined
    if (command === undefined) throw unknownCommand(name, Object.keys(commands))
    if (isHelp) return { kind: 'help', about: { name, command } }
    const wrong = Object.keys(rest).find((option) => !Object.hasOwn(command.options, option))
    if (wrong !== undefined) throw wrongOption(name, command, wrong)
    const args = { values: rest, ...readOperands(name, command, operands) }
    return { kind: 'run', name, command, args }
  } catch (error) {
    return { kind: 'fault', message: error instanceof Error ? error.message : 'bad arguments' }
  }
}

/** `before`: the command of a verb, with a blank. */
function unknownCommand(word: string, known: readonly string[], before = ''): Error {
  const near = nearest(word, known)
  const hint = near === undefined ? '' : `; did you mean ${before}${near}?`
  return new Error(`unknown command ${JSON.stringify(before + word)}${hint}`)
}

/** An option means the same type in each command, so that it may stand before the command. */
function split(argv: string[], commands: Commands): { values: Values; positionals: string[] } {
  // A start without options does not load the parser.
  if (!argv.some((word) => word.startsWith('-'))) return { values: {}, positionals: argv }
  const { parseArgs } = process.getBuiltinModule('node:util')
  const known = Object.values(commands).flatMap(({ options }) => Object.entries(options))
  const types = known.map(([name, { value, isList = false }]) => {
    return [name, { type: value === undefined ? 'boolean' : 'string', multiple: isList }] as const
  })
  const options = {
    ...Object.fromEntries(types),
    help: { type: 'boolean', short: 'h' },
    version: { type: 'boolean' },
  } as const
  try {
    const { values, positionals } = parseArgs({ args: argv, allowPositionals: true, options })
    const joined = Object.entries(values).map(([name, value]) => {
      return [name, Array.isArray(value) ? value.join(',') : value]
    })
    return { values: Object.fromEntries(joined), positionals }
  } catch (error) {
    throw unknownOption(error, argv, commands) ?? error
  }
}

/** The fault of an option that no command takes; undefined for other errors. */
function unknownOption(error: unknown, argv: readonly string[], commands: Commands) {
  const text = error instanceof Error ? error.message : ''
  const [, dashes, option] = /^Unknown option '(--?)([^']+)'/.exec(text) ?? []
  if (option === undefined) return undefined
  const name = argv.find((word) => Object.hasOwn(commands, word)) ?? 'serve'
  const command = commands[name]
  return command && wrongOption(name, command, option, dashes)
}

const listen = ': write listen = "127.0.0.1:4020" below [service]; with --domain: --https-port'

/** Options of other programs, and of earlier versions, by command: what is meant. */
const meant: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  // It means the data directory everywhere else.
  pay: { data: ': the request body is --body' },
  serve: { port: listen, p: listen, listen, host: listen, address: listen, bind: listen },
}

function wrongOption(name: string, { options }: Command, option: string, dashes = '--') {
  const near = nearest(option, Object.keys(options))
  const hint = meant[name]?.[option] ?? (near === undefined ? '' : `; did you mean --${near}?`)
  return new Error(`${name} does not take ${dashes}${option}${hint}`)
}

function readOperands(name: string, command: Command, operands: string[]) {
  const { verbs } = command
  const [word = '', ...rest] = operands
  const operand = operands.at(-1) ?? ''
  const isVerb = verbs !== undefined && Object.hasOwn(verbs, word)
  if (verbs === undefined || (command.operands !== undefined && !isVerb)) {
    assertCount(name, command.operands ?? [], operands)
    return { word, operand }
  }
  const known = Object.keys(verbs)
  if (word === '') throw new Error(`${name} needs ${known.join(' or ')}`)
  if (!known.includes(word)) throw unknownCommand(word, known, `${name} `)
  assertCount(`${name} ${word}`, verbs[word] ?? [], rest)
  return { word, operand }
}

function assertCount(name: string, expected: readonly string[], operands: readonly string[]): void {
  const extra = operands[expected.length]
  if (extra !== undefined) throw new Error(`unexpected argument ${JSON.stringify(extra)}`)
  const missing = expected[operands.length]
  if (missing !== undefined && !missing.startsWith('[')) throw new Error(`${name} needs ${missing}`)
}
