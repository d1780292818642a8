import { parse } from './cli/arguments'
import { commands } from './cli/commands'

// Do this first, because it restarts the process.
if (mayServe(Bun.argv[2]) && process.env.BUN_CONFIG_MAX_HTTP_REQUESTS === undefined) {
  const { raiseFetchLimit } = await import('./cli/fetches')
  raiseFetchLimit()
}
process.exitCode = await main(Bun.argv.slice(2))

/** Whether the first argument may mean `serve`. */
function mayServe(word: string | undefined): boolean {
  return word === undefined || word === 'serve' || word.startsWith('-')
}

async function main(argv: string[]): Promise<number> {
  const parsed = parse(argv, commands)
  switch (parsed.kind) {
    case 'run':
      return parsed.command.run(parsed.args)
    case 'help': {
      const { explain, overview } = await import('./cli/help')
      const { about } = parsed
      process.stdout.write(about ? explain(about.name, about.command) : overview(commands))
      return 0
    }
    case 'fault':
      process.stderr.write(`turnpike: ${parsed.message}\nRun turnpike --help.\n`)
      return 2
  }
}
