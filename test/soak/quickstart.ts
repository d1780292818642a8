// `bun run soak:quickstart [--warm]` does what docs/quickstart.md says, on a clean clone of HEAD.

import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { blocksOf, matches } from '../harness/page'

/** Seconds that all commands of the page may take. */
const limitSeconds = 300
/** Longest wait for what a block should print. */
const blockMs = 240_000

type Running = { terminal: string; child: Bun.Subprocess; output: () => string }

const root = join(import.meta.dir, '../..')
const directory = mkdtempSync(join(tmpdir(), 'turnpike-quickstart-'))
const clone = join(directory, 'turnpike')
const home = join(directory, 'home')
const running: Running[] = []
/** The folder of each terminal. */
const places = new Map<string, string>()

/** A new machine has no package in its caches; `--warm` uses those of this one. */
const isWarm = Bun.argv.includes('--warm')
const env = {
  PATH: process.env.PATH ?? '',
  HOME: isWarm ? (process.env.HOME ?? home) : home,
  TMPDIR: tmpdir(),
}

/** Runs a block as its terminal does; `output` grows. The shell says at its end where it is. */
function start(terminal: string, code: string) {
  const where = join(directory, `where-${terminal}`)
  const script = `trap 'pwd > ${where}' EXIT\n${code}`
  const child = Bun.spawn(['bash', '-e', '-c', script], {
    cwd: places.get(terminal) ?? clone,
    env,
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
    // A group of its own, so that its programs end with it.
    detached: true,
  })
  let text = ''
  const read = async (stream: ReadableStream<Uint8Array>) => {
    const decoder = new TextDecoder()
    for await (const chunk of stream) text += decoder.decode(chunk, { stream: true })
  }
  const reading = Promise.all([read(child.stdout), read(child.stderr)])
  return { terminal, child, reading, where, output: () => text }
}

/** Runs one block until it has printed what the page shows; a fault when it does not. */
async function run(block: ReturnType<typeof blocksOf>[number]): Promise<string | undefined> {
  const { terminal, code, expected, isLasting } = block
  const started = start(terminal, code)
  const { child, reading, where, output } = started
  running.push(started)
  if (isLasting) {
    const deadline = performance.now() + blockMs
    while (!matches(expected, output())) {
      if (child.exitCode !== null) return `it ended with ${child.exitCode}\n${output()}`
      if (performance.now() > deadline) return `it did not print what the page shows\n${output()}`
      await Bun.sleep(20)
    }
    return undefined
  }
  const late = setTimeout(() => process.kill(-child.pid, 'SIGKILL'), blockMs)
  const status = await child.exited
  await reading
  clearTimeout(late)
  places.set(terminal, (await Bun.file(where).text()).trim())
  if (status !== 0) return `it ended with ${status}\n${output()}`
  return matches(expected, output()) ? undefined : `the page shows something else\n${output()}`
}

async function stop(): Promise<void> {
  const hasEnded = ({ exitCode, signalCode }: Bun.Subprocess) =>
    exitCode !== null || signalCode !== null
  for (const { child } of running.toReversed()) {
    if (hasEnded(child)) continue
    process.kill(-child.pid, 'SIGINT')
    await Promise.race([child.exited, Bun.sleep(10_000)])
    if (!hasEnded(child)) process.kill(-child.pid, 'SIGKILL')
    await child.exited
  }
  rmSync(directory, { recursive: true, force: true })
}

async function main(): Promise<number> {
  mkdirSync(home)
  const cloned = Bun.spawnSync(['git', 'clone', '--quiet', root, clone])
  if (!cloned.success) throw new Error(cloned.stderr.toString())
  const blocks = blocksOf(await Bun.file(join(clone, 'docs/quickstart.md')).text())
  const begin = performance.now()
  const secondsSince = (moment: number) => (performance.now() - moment) / 1000
  for (const block of blocks) {
    const from = performance.now()
    const fault = await run(block)
    const line = `${secondsSince(from).toFixed(1).padStart(6)} s  terminal ${block.terminal}: ${block.title}`
    process.stdout.write(`${line}\n`)
    if (fault === undefined) continue
    process.stdout.write(`FAIL  ${fault}\n`)
    return 1
  }
  const seconds = secondsSince(begin)
  process.stdout.write(`${seconds.toFixed(1).padStart(6)} s  in all, of ${limitSeconds}\n`)
  return seconds <= limitSeconds ? 0 : 1
}

try {
  process.exitCode = await main()
} finally {
  await stop()
}
