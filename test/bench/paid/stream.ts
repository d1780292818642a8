// Event streams that are paid by use, beside a bare proxy of the same upstream: the time to the first
// byte, and what it costs to pass 200 kB on and meter them. It prints and asserts nothing.

import { parseArgs } from 'node:util'
import type { Chain } from '../../../src/demo/chains'
import { type Machine, prepareMachine, type Server } from '../machine'
import * as Stats from '../Stats'
import { candidates, loads } from './candidates'
import { type Model, modelPath, streamRequest } from './model'
import type { Credential } from './payers'
import { type Stage, withStage } from './sample'

const { values } = parseArgs({ options: { streams: { type: 'string', default: '60' } } })
/** Of each length and candidate. */
const streams = Number(values.streams)
const warmUp = 20

const ours = candidates.find(({ name }) => name === 'ours, upto')
const [load] = loads
if (ours === undefined || load === undefined) throw new Error('nothing to measure')

/** Times of eth_call at the node, performance.now(). */
type Call = { startedAt: number; endedAt: number }

const machine = prepareMachine()
const rpc = startTimedRpc()
const setting = {
  candidate: ours,
  load: { ...load, payers: 1, each: 2 * streams + warmUp, warmUp: 0 },
  rpcOf: ({ url }: Chain) => rpc.before(url),
}
await withStage(machine, setting, (stage) => measure(machine, stage))
await rpc.stop()
process.exit(0)

async function measure(machine: Machine, { server, measured, model }: Stage): Promise<void> {
  if (model === undefined) throw new Error('no upstream')
  const bare = await machine.serve('bareproxy.ts', [`${model.url}/v1/chat/completions`])
  try {
    const left = measured.flat()
    const gateway = (length: Length) => read(server, length, left.pop())
    const proxy = (length: Length) => read(bare, length)
    for (let i = 0; i < warmUp; i++) {
      await gateway('large')
      await proxy('large')
    }
    const times = await compareFirstBytes({ gateway, proxy, model })
    const lines = Object.entries(times).map(([name, list]) => `${name.padEnd(44)}${span(list)} ms`)
    const cost = async (name: string, of: Server, take: typeof gateway, length: Length) => {
      const before = machine.cpuSeconds(of.pid)
      for (let i = 0; i < streams / 2; i++) await take(length)
      const ms = ((machine.cpuSeconds(of.pid) - before) * 1000) / (streams / 2)
      lines.push(`${`CPU of a ${length} stream, ${name}`.padEnd(44)}${ms.toFixed(2)} ms`)
      return ms
    }
    const more = async (name: string, of: Server, take: typeof gateway) =>
      (await cost(name, of, take, 'large')) - (await cost(name, of, take, 'short'))
    const [own, theirs] = [await more('gateway', server, gateway), await more('bare', bare, proxy)]
    lines.push(
      `200 kB more cost ${own.toFixed(2)} ms of CPU in the gateway, ${theirs.toFixed(2)} in the bare proxy:`,
      `the difference, ${(own - theirs).toFixed(2)} ms, is metering and all else that a payment adds to a byte.`,
    )
    process.stdout.write(`\n${lines.join('\n')}\n${notes()}\n`)
  } finally {
    await bare.stop()
  }
}

type Length = 'short' | 'large'

type Reading = { sentAt: number; firstMs: number }

type Candidates = {
  gateway: (length: Length) => Promise<Reading>
  proxy: (length: Length) => Promise<Reading>
  model: Model
}

/** In turn, so that others disturb both alike. */
async function compareFirstBytes({ gateway, proxy, model }: Candidates) {
  const times: Record<string, number[]> = {
    'first byte, bare proxy': [],
    'first byte, gateway by upto': [],
    'the difference, of neighbours': [],
    'one verification: eth_calls before the forward': [],
    'from the request to the upstream, gateway': [],
  }
  const [bare, own, difference, verify, forward] = Object.values(times)
  for (let i = 0; i < streams; i++) {
    const { firstMs: bareMs } = await proxy('large')
    rpc.calls.length = 0
    const { sentAt, firstMs } = await gateway('large')
    const arrivedAt = model.arrivedAt()
    const before = rpc.calls.filter(({ startedAt }) => startedAt < arrivedAt)
    const startedAt = Math.min(...before.map((call) => call.startedAt))
    const endedAt = Math.max(...before.map((call) => call.endedAt))
    bare?.push(bareMs)
    own?.push(firstMs)
    difference?.push(firstMs - bareMs)
    verify?.push(endedAt - startedAt)
    forward?.push(arrivedAt - sentAt)
  }
  return times
}

/** Reads a whole stream; throws when it is not one. */
async function read({ url }: Server, length: Length, credential?: Credential): Promise<Reading> {
  const { headers, ...init } = streamRequest(length)
  const [name, value] = credential ?? ['x-unpaid', '1']
  const sentAt = performance.now()
  const response = await fetch(url + modelPath, { ...init, headers: { ...headers, [name]: value } })
  let firstMs: number | undefined
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    firstMs ??= performance.now() - sentAt
    bytes += chunk.byteLength
  }
  if (response.status !== 200 || firstMs === undefined || (length === 'large' && bytes < 200_000))
    throw new Error(`${url} answered ${response.status} with ${bytes} bytes`)
  return { sentAt, firstMs }
}

/** Forwards to a node, and notes the times of eth_call. */
function startTimedRpc() {
  const calls: Call[] = []
  let target = ''
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    async fetch(request) {
      const startedAt = performance.now()
      const body = await request.text()
      const headers = { 'content-type': 'application/json' }
      const text = await (await fetch(target, { method: 'POST', headers, body })).text()
      if (body.includes('"eth_call"')) calls.push({ startedAt, endedAt: performance.now() })
      return new Response(text, { headers })
    },
  })
  return {
    calls,
    before(url: string) {
      target = url
      return `http://127.0.0.1:${server.port}`
    },
    stop: () => server.stop(true),
  }
}

function span(values: readonly number[]): string {
  const { median, min, max } = Stats.summarize(values)
  return `${median.toFixed(2)} [${min.toFixed(2)}..${max.toFixed(2)}]`
}

function notes(): string {
  return `Bun ${Bun.version}, ${machine.description}. ${streams} streams of each candidate in turn, one after the
other; medians [min..max]. Node, upstream and payer share the second core.`
}
