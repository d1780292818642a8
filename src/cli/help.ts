import type { Command } from './Command'

const introduction = `turnpike sells any HTTP API per request to any client with a stablecoin wallet.
Usage: turnpike [command] [options]; COMMAND --help explains its options.
`

/** Text of `turnpike --help`: one line for each command, and no more than a terminal shows. */
export function overview(commands: Readonly<Record<string, Command>>): string {
  const rows = Object.entries(commands).map(([name, { summary }]) => [name, summary] as const)
  return `${introduction}${columns(rows)}
`
}

/** Text of `turnpike COMMAND --help`. */
export function explainCommand(name: string, command: Command): string {
  const { summary, details, verbs, operands = [], examples } = command
  const words = verbs === undefined ? operands.map(placeholder) : [usageOf(verbs, operands)]
  const options = Object.entries(command.options).map(([option, { value, help }]) => {
    return [`--${option}${value === undefined ? '' : ` ${value}`}`, help] as const
  })
  const usage = ['turnpike', name, ...words, ...(options.length === 0 ? [] : ['[options]'])]
  const parts = [
    `turnpike ${name}: ${summary}`,
    `Usage: ${usage.join(' ')}`,
    details,
    options.length === 0 ? undefined : `Options\n${columns(options)}`,
    `${examples.length === 1 ? 'Example' : 'Examples'}\n${examples.map((line) => `  turnpike ${line}`).join('\n')}`,
  ]
  return `${parts.filter((part) => part !== undefined).join('\n\n')}\n`
}

/** `list|PAYMENT` where an operand may stand in place of a verb. */
function usageOf(verbs: object, operands: readonly string[]): string {
  return [...Object.keys(verbs), ...operands.map(placeholder)].join('|')
}

/** `a file` is FILE. */
function placeholder(operand: string): string {
  return operand.split(' ').slice(1).join('_').toUpperCase()
}

function columns(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length))
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`).join('\n')
}
