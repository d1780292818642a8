import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { build } from '../../src/build'
import { startChains } from '../../src/demo/chains'
import type { Machine } from './machine'
import * as Report from './Report'
import { rpcUrlsOf, shippedConfig, shippedEnv, shippedText } from './shipped'

const rounds = 11

/** From the start of the executable to its first answer, ours in an empty directory each time. */
export async function benchCold(
  machine: Machine,
): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  const ours = join(directory, 'turnpike')
  const bare = join(directory, 'elysia')
  await build({ entry: join(import.meta.dir, '..', '..', 'src', 'main.ts'), outfile: ours })
  await build({ entry: join(import.meta.dir, 'servers', 'elysia.ts'), outfile: bare })
  const chains = await startChains(shippedConfig().networks)
  const rpcUrls = rpcUrlsOf(chains)
  const port = freePort()
  const starts = {
    ours: () => {
      const cwd = emptyDirectory()
      writeFileSync(join(cwd, 'merchants.toml'), localText(rpcUrls, port))
      return firstAnswers([ours], cwd, shippedEnv, `http://127.0.0.1:${port}/m/catjoke/joke`, 402)
    },
    bare: () =>
      firstAnswers([bare], emptyDirectory(), { PORT: `${port}` }, `http://127.0.0.1:${port}/`, 200),
  }
  try {
    const times = { ours: [] as Start[], bare: [] as Start[] }
    const order = ['ours', 'bare'] as const
    // The first start of each fills the page cache and does not count.
    for (let round = -1; round < rounds; round++) {
      for (const name of round % 2 === 0 ? order : order.toReversed()) {
        const time = await machine.sample(starts[name])
        if (round >= 0) times[name].push(time)
      }
    }
    const compare = (what: string, name: keyof Start, bound?: Report.Bound) =>
      Report.compare({
        what,
        against: 'bare Elysia, same build flags',
        ours: times.ours.map((time) => time[name]),
        theirs: times.bare.map((time) => time[name]),
        ...(bound && { bound }),
        format: (value) => `${value.toFixed(0)} ms`,
      })
    return {
      rows: [
        compare('cold start to the first answer', 'answerMs', { atMost: 2 }),
        compare('cold start to the first 402', 'expectedMs'),
      ],
      notes: [
        `cold: ${rounds} rounds; ours is dist/turnpike built from these sources, each time in an empty directory with the shipped file, on local chains`,
      ],
    }
  } finally {
    await Promise.all(chains.map((chain) => chain.stop()))
    rmSync(directory, { recursive: true, force: true })
  }

  function emptyDirectory(): string {
    const path = join(directory, crypto.randomUUID())
    mkdirSync(path)
    return path
  }

  async function firstAnswers(
    command: readonly string[],
    cwd: string,
    env: Record<string, string>,
    url: string,
    expected: number,
  ): Promise<Start> {
    const startedAt = performance.now()
    const child = Bun.spawn([...machine.onServerCore, ...command], {
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
        if (answer?.status === expected) return { answerMs: answerMs ?? time, expectedMs: time }
        if (time > 10_000) throw new Error(`${url} answers ${answer?.status}, not ${expected}`)
        await Bun.sleep(0)
      }
      throw new Error(`${command.join(' ')} ended with ${child.exitCode}`)
    } finally {
      child.kill('SIGKILL')
      await child.exited
    }
  }
}

/** Milliseconds to any answer, and to the one that says that it works. */
type Start = { answerMs: number; expectedMs: number }

/** The shipped file with other RPC URLs and another port, line for line. */
function localText(rpcUrls: Readonly<Record<string, string>>, port: number): string {
  let network = ''
  return shippedText()
    .split('\n')
    .map((line) => {
      network = /^\[networks\."([^"]+)"\]/.exec(line)?.[1] ?? network
      if (line.startsWith('rpc_urls = ')) return `rpc_urls = ["${rpcUrls[network]}"]`
      if (line.startsWith('listen = ')) return `listen = "127.0.0.1:${port}"`
      return line
    })
    .join('\n')
}

function freePort(): number {
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response() })
  const { port = 0 } = server
  server.stop(true)
  return port
}
