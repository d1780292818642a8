import { parse } from './arguments'
import { commands } from './commands'

/** Runs the command of a command line. Returns the exit code. */
export async function run(argv: string[]): Promise<number> {
  const parsed = parse(argv, commands)
  switch (parsed.kind) {
    case 'run':
      return parsed.command.run(parsed.args)
    case 'help': {
      const { explain, overview } = await import('./help')
      const { about } = parsed
      process.stdout.write(about ? explain(about.name, about.command) : overview(commands))
      return 0
    }
    case 'fault':
      process.stderr.write(`turnpike: ${parsed.message}\nRun turnpike --help.\n`)
      return 2
  }
}
