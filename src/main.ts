// Import nothing here: the program restarts itself, and would load it twice.
export {}

const isServe = mayServe(Bun.argv[2])
// Do this first, because it restarts the process.
if (isServe && process.env.BUN_CONFIG_MAX_HTTP_REQUESTS === undefined) {
  const { raiseFetchLimit } = await import('./cli/buy/fetches')
  raiseFetchLimit()
}
// The service does this after its start: the executable compiles little code until then.
if (!isServe) Bun.unsafe.setJITPolicy(1)
const { run } = await import('./cli/run')
process.exitCode = await run(Bun.argv.slice(2))

/** Whether the first argument may mean `serve`. */
function mayServe(word: string | undefined): boolean {
  return word === undefined || word === 'serve' || word.startsWith('-')
}
