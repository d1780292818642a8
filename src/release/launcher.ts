import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'

/** The command of the npm package: runs the executable that npm chose for this system. */

const load = createRequire(import.meta.url)
const manifest: { name: string; version: string; optionalDependencies: Record<string, string> } =
  load('../package.json')
const system = `${process.platform}-${process.arch}`
const packages = Object.keys(manifest.optionalDependencies)
const fitting = packages.filter((each) => each.replace(/-musl$/, '').endsWith(system))
const found = fitting.filter((each) => pathIn(each) !== undefined)
// Older versions of npm install the packages of both C libraries.
const chosen = found.find((each) => each.endsWith('-musl') === isMusl()) ?? found[0]

if (fitting.length === 0) fail(`there is no executable for ${system}, only ${packages.join(', ')}`)
else if (chosen === undefined)
  fail(
    `${fitting.join(' or ')} is not installed. npm leaves it out with --omit=optional, and where a package-lock.json or node_modules came from another system: remove both there, and install ${manifest.name} again`,
  )
else run(pathIn(chosen) ?? '')

/** Path of the executable in a package; undefined when it is not installed. */
function pathIn(name: string): string | undefined {
  try {
    return load.resolve(`${name}/bin/turnpike${process.platform === 'win32' ? '.exe' : ''}`)
  } catch {
    return undefined
  }
}

function isMusl(): boolean {
  const report = process.report.getReport() as { header?: { glibcVersionRuntime?: string } }
  return process.platform === 'linux' && report.header?.glibcVersionRuntime === undefined
}

function run(path: string): void {
  const isNpx = process.env.npm_command === 'exec'
  // What the program tells its operator to type.
  const command = isNpx ? `npx ${manifest.name}` : manifest.name
  // On macOS and Windows the runtime would send a report to its makers when it crashes.
  const env = { BUN_ENABLE_CRASH_REPORTING: '0', ...process.env, TURNPIKE_COMMAND: command }
  let child: ReturnType<typeof spawn> | undefined
  // Before the program starts: a signal in between would end this process alone.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.on(signal, () => {
      // A console of Windows tells every process itself, and there a signal would end it at once.
      if (process.platform !== 'win32') child?.kill(signal)
    })
  child = spawn(path, process.argv.slice(2), { stdio: 'inherit', env })
  child.on('error', (error) => {
    fail(`${path} does not start (${error.message}): it may be of another system or C library`)
  })
  child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1)
    process.removeAllListeners(signal)
    process.kill(process.pid, signal)
  })
  if (!isNpx) return
  // SIGTERM ends npx and its shell, which do not pass it on: the executable would go on.
  const parent = process.ppid
  const watch = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(watch)
    child.kill('SIGTERM')
  }, 200).unref()
}

function fail(message: string): void {
  process.stderr.write(`${manifest.name}: ${message}\n`)
  process.exitCode = 1
}
