import { parse } from './arguments'
import { commands } from './commands'

/** Runs the command of a command line. Returns the exit code. */
export async function run(argv: string[]): Promise<number> {
  const parsed = parse(argv, commands)
  switch (parsed.kind) {
    case 'run':
      if (!parsed.command.handlesOutput) endWithOutput()
      return parsed.command.run(parsed.args)
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
