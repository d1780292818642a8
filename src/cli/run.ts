import { parse } from './arguments'
import type { Context, Values } from './Command'
import { commands } from './commands'

/** Runs the command of a command line. Returns the exit code. */
export async function run(argv: string[]): Promise<number> {
  // The completion scripts of the shells call this; it is for no person.
  if (argv[0] === '__complete') {
    const { complete } = await import('./completion/completion')
    process.stdout.write(
      complete(argv.slice(1), commands)
        .map((line) => `${line}\n`)
        .join(''),
    )
    return 0
  }
  const parsed = parse(argv, commands)
  switch (parsed.kind) {
    case 'run':
      if (!parsed.command.handlesOutput) endWithOutput()
      return parsed.command.run({ ...parsed.args, ...contextOf(parsed.args.values) })
    case 'help': {
      const { explain, overview } = await import('./help')
      const { about } = parsed
      endWithOutput()
      process.stdout.write(about ? explain(about.name, about.command) : overview(commands))
      return 0
    }
    case 'fault':
      process.stderr.write(`turnpike: ${parsed.message}\nRun turnpike --help.\n`)
      return 2
  }
}

function contextOf({ config, data }: Values): Context {
  return {
    file: config ?? 'merchants.toml',
    dataDir: data ?? 'data',
    env: process.env,
    now: Date.now,
    out: (line) => void process.stdout.write(`${line}\n`),
    err: (line) => void process.stderr.write(`${line}\n`),
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
