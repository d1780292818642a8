import { startChains } from '../harness/chains'
import { driveSockets, findLoad, measureAnswer } from './load'
import type { Machine, Server } from './machine'
import * as Report from './Report'
import * as Stats from './Stats'
import { rpcUrlsOf, shippedConfig } from './shipped'

const rounds = 7
const seconds = 1
const connections = 32
const paths = ['/m/catjoke/joke', '/m/weather/forecast']

type Candidate = {
  url: string
  server: Server
  perSecond: number[]
  cpuMicros: number[]
  busy: number[]
}

/**
 * Unpaid 402 per second: ours, a bare server with the same bytes, the least program on Elysia that makes such
 * answers, and mppx's proxy.
 */
export async function benchUnpaid(
  machine: Machine,
): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const load = findLoad()
  const chains = await startChains(shippedConfig().networks)
  const servers: Server[] = []
  const serve = async (script: string, args?: readonly string[]) => {
    const server = await machine.serve(script, args)
    servers.push(server)
    return server
  }
  try {
    const ours = await serve('ours.ts', [JSON.stringify(rpcUrlsOf(chains))])
    const candidates: Candidate[] = []
    const add = (server: Server, path: string) => {
      const candidate = { url: server.url + path, server, perSecond: [], cpuMicros: [], busy: [] }
      candidates.push(candidate)
      return candidate
    }
    const pairs = []
    for (const path of paths) {
      const bare = await serve('bare.ts', [ours.url + path])
      const elysia = await serve('elysia-402.ts', [ours.url + path])
      pairs.push({ path, ours: add(ours, path), bare: add(bare, path), elysia: add(elysia, path) })
    }
    const proxy = add(await serve('mppx-proxy.ts'), '/catjoke/joke')
    // Warms up, and checks every answer's status, which wrk does not.
    for (const { url } of candidates)
      await driveSockets({ url, status: 402, connections, seconds: 1.5 })
    for (let round = 0; round < rounds; round++) {
      for (const candidate of round % 2 === 0 ? candidates : candidates.toReversed())
        await measure(candidate)
    }
    const rows: Report.Row[] = []
    for (const { path, ours, bare, elysia } of pairs) {
      const compare = (theirs: Candidate, against: string, atLeast: number) =>
        Report.compare({
          what: `402 of GET ${path}`,
          against,
          ours: ours.perSecond,
          theirs: theirs.perSecond,
          bound: { atLeast },
          format: (value) => `${(value / 1000).toFixed(1)}k/s`,
        })
      rows.push(compare(bare, 'bare Bun.serve, same bytes', 0.5))
      rows.push(compare(elysia, 'minimal Elysia, as many bytes', 0.92))
      rows.push(compare(proxy, 'mppx Proxy, one evm route', 5))
    }
    return { rows, notes: await describe(candidates, load.name) }
  } finally {
    await Promise.all(servers.map((server) => server.stop()))
    await Promise.all(chains.map((chain) => chain.stop()))
  }

  async function measure(candidate: Candidate): Promise<void> {
    const { url, server } = candidate
    const { perSecond, cpuMicros, busy } = await machine.sample(async () => {
      const before = { cpu: machine.cpuSeconds(server.pid), at: performance.now() }
      const perSecond = await load.drive({ url, status: 402, connections, seconds })
      const cpuSeconds = machine.cpuSeconds(server.pid) - before.cpu
      return {
        perSecond,
        cpuMicros: (cpuSeconds * 1e6) / (perSecond * seconds),
        busy: (cpuSeconds * 1000) / (performance.now() - before.at),
      }
    })
    candidate.perSecond.push(perSecond)
    candidate.cpuMicros.push(cpuMicros)
    candidate.busy.push(busy)
  }
}

/** Sizes, cost, and whether the servers or the load were the limit. */
async function describe(candidates: readonly Candidate[], load: string): Promise<string[]> {
  const sizes = await Promise.all(candidates.map(({ url }) => measureAnswer(url)))
  const micros = candidates.map(({ cpuMicros }) => Stats.median(cpuMicros).toFixed(1))
  const busy = Math.min(...candidates.map((candidate) => Stats.median(candidate.busy)))
  const limit =
    busy > 0.9
      ? 'so the load was not the limit'
      : 'so the load or other programs were the limit: go by the CPU per answer'
  return [
    `unpaid: ${rounds} rounds of ${seconds} s, load by ${load} on ${connections} kept connections`,
    `unpaid: bytes per answer ${sizes.join(', ')} (ours, bare and Elysia for each path, then mppx)`,
    `unpaid: us of server CPU per answer ${micros.join(', ')} (in the same order)`,
    `unpaid: every server used at least ${(busy * 100).toFixed(0)} % of its core, ${limit}`,
  ]
}
