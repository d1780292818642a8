import { parseArgs } from 'node:util'
import { check } from './cli/check'
import { demo } from './cli/demo'
import { serve } from './cli/serve'

declare const VERSION: string | undefined

const usage = `turnpike sells any HTTP API per request to anyone who holds a stablecoin wallet.

Usage: turnpike [command] [options]

  serve            serve merchants.toml (the default)
  check            validate merchants.toml; --online also chains, contracts and upstreams
  demo             local chains, sample upstreams and the gateway; --once also buys and exits
  version          print the version

Options
  --config FILE    configuration (default: merchants.toml)
  --data DIR       data directory (default: ./data)
  --online         check: ask every RPC and upstream too
  --once           demo: buy with every stock client, show what happened, exit
  --help           this text
`

const commands = ['serve', 'check', 'demo', 'version'] as const
type Command = (typeof commands)[number]

const allowed: Readonly<Record<Command, readonly string[]>> = {
  serve: ['config', 'data'],
  check: ['config', 'data', 'online'],
  demo: ['once', 'config'],
  version: [],
}

process.exitCode = await main(Bun.argv.slice(2))

async function main(argv: string[]): Promise<number> {
  const args = parse(argv)
  if (typeof args === 'string') {
    process.stderr.write(`turnpike: ${args}\nRun turnpike --help.\n`)
    return 2
  }
  const { command, values } = args
  if (values.help) {
    process.stdout.write(usage)
    return 0
  }
  const file = values.config ?? 'merchants.toml'
  const dataDir = values.data ?? 'data'
  switch (command) {
    case 'version':
      process.stdout.write(`turnpike ${typeof VERSION === 'string' ? VERSION : 'development'}\n`)
      return 0
    case 'check':
      return check({
        file,
        dataDir,
        env: process.env,
        online: values.online ?? false,
        out: (text) => void process.stdout.write(text),
      })
    case 'demo':
      return demo({ once: values.once ?? false, file, env: process.env })
    case 'serve':
      return serve({ file, dataDir, env: process.env })
  }
}

type Values = {
  config?: string
  data?: string
  online?: boolean
  once?: boolean
  help?: boolean
}

/** The command and its options, or what is wrong with them. */
function parse(argv: string[]): { command: Command; values: Values } | string {
  try {
    const { values, positionals } = parseArgs({
      args: argv,
      allowPositionals: true,
      options: {
        config: { type: 'string' },
        data: { type: 'string' },
        online: { type: 'boolean' },
        once: { type: 'boolean' },
        help: { type: 'boolean', short: 'h' },
      },
    })
    const [name = 'serve', extra] = positionals
    const command = commands.find((known) => known === name)
    if (command === undefined) return `unknown command ${JSON.stringify(name)}`
    if (extra !== undefined) return `unexpected argument ${JSON.stringify(extra)}`
    const wrong = Object.keys(values).find(
      (option) => option !== 'help' && !allowed[command].includes(option),
    )
    if (wrong !== undefined) return `${command} does not take --${wrong}`
    return { command, values }
  } catch (error) {
    return error instanceof Error ? error.message : 'bad arguments'
  }
}
