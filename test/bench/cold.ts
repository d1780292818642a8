import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { build } from '../../src/build'
import { startChains } from '../harness/chains'
import type { Machine } from './machine'
import * as Report from './Report'
import * as Stats from './Stats'
import { rpcUrlsOf, shippedConfig, shippedEnv, shippedText } from './shipped'

const rounds = 9

export type Program = {
  file: string
  /** Environment and other input, for the directory in which it is started. */
  prepare: (cwd: string) => Record<string, string>
  url: string
  /** Status of the answer that shows that it works. */
  expected: number
}

/** Milliseconds to any answer, and to the expected one. */
type Start = { answerMs: number; expectedMs: number }

/**
 * From the start of the executable to its first answer, in an empty directory each time: with the
 * executable on the disk, as after a boot, and with it in the page cache, as at a restart.
 */
export async function benchCold(
  machine: Machine,
): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  const chains = await startChains(shippedConfig().networks)
  try {
    const programs = await buildPrograms(directory, rpcUrlsOf(chains))
    const { ours, bare } = programs
    const canDrop = dropFromPageCache(ours.file)
    const times = { ours: series(), bare: series() }
    // The first start of each may wait for writes of the build, so it does not count.
    for (let round = -1; round < rounds; round++) {
      const names = ['ours', 'bare'] as const
      for (const name of round % 2 === 0 ? names : names.toReversed()) {
        const program = programs[name]
        const onDisk = await machine.sample(() => {
          if (canDrop) dropFromPageCache(program.file)
          return start(machine, program, directory)
        })
        const cached = await machine.sample(() => start(machine, program, directory))
        if (round < 0) continue
        times[name].onDisk.push(onDisk)
        times[name].cached.push(cached)
      }
    }
    const compare = (what: string, name: 'onDisk' | 'cached') =>
      Report.compare({
        what,
        against: 'bare Elysia, same build flags',
        ours: times.ours[name].map(({ answerMs }) => answerMs),
        theirs: times.bare[name].map(({ answerMs }) => answerMs),
        bound: { atMost: 2 },
        format: (value) => `${value.toFixed(0)} ms`,
      })
    const sells = Stats.median(times.ours.cached.map(({ expectedMs }) => expectedMs))
    return {
      rows: [
        ...(canDrop ? [compare('first answer, executable on disk', 'onDisk')] : []),
        compare('first answer, executable in page cache', 'cached'),
      ],
      notes: [
        `cold: ${rounds} rounds; ours is dist/turnpike built from these sources (${size(ours)}, Elysia ${size(bare)}), in an empty directory`,
        `cold: with the shipped file on local chains; the first 402 came after ${sells.toFixed(0)} ms (page cache)`,
      ],
    }
  } finally {
    await Promise.all(chains.map((chain) => chain.stop()))
    rmSync(directory, { recursive: true, force: true })
  }
}

async function buildPrograms(
  directory: string,
  rpcUrls: Readonly<Record<string, string>>,
): Promise<{ ours: Program; bare: Program }> {
  const port = freePort()
  const origin = `http://127.0.0.1:${port}`
  const programs = {
    ours: {
      file: join(directory, 'turnpike'),
      prepare: (cwd: string) => {
        writeFileSync(join(cwd, 'merchants.toml'), localText(rpcUrls, port))
        return shippedEnv
      },
      url: `${origin}/m/catjoke/joke`,
      expected: 402,
    },
    bare: {
      file: join(directory, 'elysia'),
      prepare: () => ({ PORT: `${port}` }),
      url: `${origin}/`,
      expected: 200,
    },
  }
  const sources = join(import.meta.dir, '..', '..', 'src')
  await build({ entry: join(sources, 'main.ts'), outfile: programs.ours.file })
  const elysia = join(import.meta.dir, 'servers', 'elysia.ts')
  await build({ entry: elysia, outfile: programs.bare.file })
  return programs
}

/** `whenUp` runs after the expected answer, before the program is ended. */
export async function start(
  machine: Machine,
  program: Program,
  directory: string,
  whenUp: (pid: number) => unknown = () => undefined,
): Promise<Start> {
  const { file, url, expected } = program
  const cwd = join(directory, crypto.randomUUID())
  mkdirSync(cwd)
  const env = program.prepare(cwd)
  const startedAt = performance.now()
  const child = Bun.spawn([...machine.onServerCore, file], {
    cwd,
    env,
    stdin: 'ignore',
    stdout: 'ignore',
    stderr: 'ignore',
  })
  try {
    let answerMs: number | undefined
    while (child.exitCode === null) {
      const answer = await fetch(url, { keepalive: false }).catch(() => undefined)
      const time = performance.now() - startedAt
      if (answer !== undefined) answerMs ??= time
      if (answer?.status === expected) {
        await whenUp(child.pid)
        return { answerMs: answerMs ?? time, expectedMs: time }
      }
      if (time > 30_000) throw new Error(`${url} answers ${answer?.status}, not ${expected}`)
      await Bun.sleep(1)
    }
    throw new Error(`${file} ended with ${child.exitCode}`)
  } finally {
    child.kill('SIGKILL')
    await child.exited
  }
}

/** Makes the next start read the file from the disk; false where dd cannot do that. */
function dropFromPageCache(file: string): boolean {
  if (process.platform !== 'linux') return false
  const flags = ['oflag=nocache', 'conv=notrunc,fdatasync', 'count=0']
  return Bun.spawnSync(['dd', `of=${file}`, ...flags]).success
}

function series(): { onDisk: Start[]; cached: Start[] } {
  return { onDisk: [], cached: [] }
}

function size(program: Program): string {
  return `${(Bun.file(program.file).size / 1e6).toFixed(0)} MB`
}

/** The shipped file `text` with other RPC URLs and another port, line for line. */
export function localText(
  rpcUrls: Readonly<Record<string, string>>,
  port: number,
  text = shippedText(),
): string {
  let network = ''
  return text
    .split('\n')
    .map((line) => {
      network = /^\[networks\."([^"]+)"\]/.exec(line)?.[1] ?? network
      if (line.startsWith('rpc_urls = ')) return `rpc_urls = ["${rpcUrls[network]}"]`
      if (line.startsWith('listen = ')) return `listen = "127.0.0.1:${port}"`
      return line
    })
    .join('\n')
}

export function freePort(): number {
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response() })
  const { port = 0 } = server
  server.stop(true)
  return port
}
