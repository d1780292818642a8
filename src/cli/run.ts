import { parseArguments } from './arguments'
import { failed } from './Command'
import { commands, type Run } from './commands'

type Name = keyof typeof commands
/** Takes the options of any command: the table was their check. */
type Start = { start(args: object): number | Promise<number> }['start']

/** Runs each command: loads its modules, and answers its exit code. */
const runs: { [Each in Name]: (args: Run<Each>) => number | Promise<number> } = {
  async init(args) {
    const { init } = await import('./sell/init')
    const { terminal } = await import('./terminal')
    const asking = terminal()
    try {
      return await init(args, asking?.ask)
    } finally {
      asking?.close()
    }
  },
  // A log that cannot be written must not keep the process running.
  serve: async (args) => process.exit(await (await import('./sell/serve')).serve(args)),
  check: async (args) => (await import('./sell/check')).check(args),
  demo: async (args) => (await import('./sell/demo')).demo(args),
  pay: async (args) => (await import('./buy/pay')).pay(args),
  channels: async (args) => (await import('./buy/channels')).channels(args),
  // An open connection to a gateway must not keep the process running.
  mcp: async (args) => process.exit(await (await import('./mcp/mcp')).mcp(args)),
  receipt: async (args) => (await import('./buy/receipt')).verifyReceipt(args),
  sales: async (args) => (await import('./operate/sales')).sales(args),
  orders: async (args) => (await import('./operate/orders')).orders(args),
  refund: async (args) => (await import('./operate/refund')).refund(args),
  webhooks: async (args) => (await import('./operate/webhooks')).webhooks(args),
  alerts: async (args) => (await import('./operate/alerts')).alerts(args),
  gateways: async (args) => (await import('./operate/gateways')).gateways(args),
  meter: async (args) => (await import('./sell/meter')).meterAnswer(args),
  backup: async (args) => (await import('./operate/backup')).backup(args),
  move: async (args) => (await import('./operate/move')).move(args),
  health: async (args) => (await import('./operate/health')).health(args),
  service: async (args) => (await import('./operate/service')).service(args),
  async completion({ verb }) {
    process.stdout.write((await import('./completion/completion')).completion(verb))
    return 0
  },
  async version({ json, out }) {
    const { describeVersion, ownVersion } = await import('./version')
    out(json ? JSON.stringify(ownVersion()) : describeVersion(ownVersion()))
    return 0
  },
}

/** Runs the command of a command line. Returns the exit code. */
export async function run(argv: string[]): Promise<number> {
  // The completion scripts of the shells call this; it is for no person.
  if (argv[0] === '__complete') {
    const { complete } = await import('./completion/completion')
    for (const line of complete(argv.slice(1), commands)) process.stdout.write(`${line}\n`)
    return 0
  }
  const parsed = parseArguments(argv, commands)
  switch (parsed.kind) {
    case 'run': {
      if (!parsed.command.handlesOutput) endWithOutput()
      const { values, word, operand } = parsed.args
      const context = contextOf(values)
      const start: Start = runs[parsed.name as Name]
      try {
        return await start({ ...values, ...context, verb: word, operand })
      } catch (error) {
        return failed(error, context.out)
      }
    }
    case 'help': {
      const { explainCommand, overview } = await import('./help')
      const { about } = parsed
      endWithOutput()
      process.stdout.write(about ? explainCommand(about.name, about.command) : overview(commands))
      return 0
    }
    case 'fault':
      process.stderr.write(`turnpike: ${parsed.message}\nRun turnpike --help.\n`)
      return 2
  }
}

function contextOf({ config, data }: Readonly<Record<string, unknown>>) {
  return {
    file: String(config ?? 'merchants.toml'),
    dataDir: String(data ?? 'data'),
    env: process.env,
    now: Date.now,
    out: (line: string) => void process.stdout.write(`${line}\n`),
    err: (line: string) => void process.stderr.write(`${line}\n`),
  }
}

/** Ends the program when its output cannot be written: silently when its reader has left. */
function endWithOutput(): void {
  const end = ({ code, message }: NodeJS.ErrnoException) => {
    // 128 and SIGPIPE, as a shell reports other programs.
    if (code === 'EPIPE') process.exit(141)
    process.stderr.write(`turnpike: the output cannot be written: ${message}\n`)
    process.exit(1)
  }
  process.stdout.on('error', end)
  process.stderr.on('error', () => process.exit(1))
}
