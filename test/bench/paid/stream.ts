// Event streams that are paid by use, beside a bare proxy of the same upstream: the time to the first
// byte, and what it costs to pass 200 kB on and meter them. With `--against DIR`, the gateway of another
// checkout takes part in each round. It prints and asserts nothing.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { type Machine, prepareMachine, type Server } from '../machine'
import * as Stats from '../Stats'
import { candidates, loads } from './candidates'
import { type Length, modelPath, streamRequest } from './model'
import type { Credential } from './payers'
import { withStage } from './sample'

const { values } = parseArgs({
  options: {
    streams: { type: 'string', default: '150' },
    'warm-up': { type: 'string', default: '250' },
    against: { type: 'string' },
  },
})
/** Rounds of first bytes, and streams of each length for the CPU. */
const streams = Number(values.streams)
/** A server that has run for a while has its code compiled. */
const warmUp = Number(values['warm-up'])
/** Streams of one length and candidate in succession, while their CPU is counted. */
const block = 10
/** What a gateway does after the end of a stream would delay what comes next, often a call of /verify. */
const quietMs = 25

const ours = candidates.find(({ name }) => name === 'ours, upto')
const [load] = loads
if (ours === undefined || load === undefined) throw new Error('nothing to measure')
const setting = {
  load: { ...load, payers: 1, each: 4 * streams + 2 * warmUp + 2 * block, warmUp: 0 },
  modelOf: () => machine.serveBeside(join('..', 'paid', 'servers', 'model.ts')),
}

type Gateway = {
  name: string
  server: Server
  credentials: Credential[]
  /** What the verification of each payment took, ms. */
  verifications: () => ReadonlyMap<string, number>
}

const machine = prepareMachine()
const directory = mkdtempSync(join(tmpdir(), 'turnpike-stream-'))
try {
  await withGateway('gateway', '.', async (own, upstream) => {
    const bare = await machine.serve('bare-proxy.ts', [upstream])
    try {
      if (values.against === undefined) return await measure(machine, bare, [own])
      const servers = resolve(values.against, 'test', 'bench', 'paid', 'servers')
      const other = relative(join(import.meta.dir, 'servers'), servers)
      await withGateway('the other one', other, (it) => measure(machine, bare, [own, it]))
    } finally {
      await bare.stop()
    }
  })
} finally {
  rmSync(directory, { recursive: true, force: true })
}
process.exit(0)

/** Starts a gateway with a chain and an upstream of its own. */
async function withGateway(
  name: string,
  scripts: string,
  use: (gateway: Gateway, upstream: string) => Promise<void>,
): Promise<void> {
  if (ours === undefined) return
  const file = join(directory, name)
  const candidate = { ...ours, script: join(scripts, ours.script) }
  await withStage(machine, { ...setting, candidate, args: [file] }, async (stage) => {
    if (stage.model === undefined) throw new Error('no upstream')
    const verifications = () =>
      new Map(
        readFileSync(file, 'utf8')
          .trim()
          .split('\n')
          .map((line) => line.split(' '))
          .map(([id = '', ms]) => [id, Number(ms)]),
      )
    const gateway = {
      name,
      server: stage.server,
      credentials: stage.measured.flat(),
      verifications,
    }
    await use(gateway, `${stage.model.url}/v1/chat/completions`)
  })
}

async function measure(machine: Machine, bare: Server, gateways: readonly Gateway[]) {
  for (let i = 0; i < warmUp; i++) {
    await read(bare, i % 2 === 0 ? 'large' : 'short')
    for (const each of gateways) {
      await buy(each, i % 2 === 0 ? 'large' : 'short')
      await verify(each)
    }
  }
  const lines = [
    ...(await compareFirstBytes(bare, gateways)),
    ...(await compareCpu(machine, bare, gateways)),
  ]
  process.stdout.write(`\n${lines.join('\n')}\n${notes()}\n`)
}

/** In turn, and each first in its round as often as the others, so that others disturb all alike. */
async function compareFirstBytes(bare: Server, gateways: readonly Gateway[]): Promise<string[]> {
  const bareMs: number[] = []
  const own = gateways.map((): { id: string; firstMs: number }[] => [])
  const calls = gateways.map((): number[] => [])
  const turns = [
    async () => void bareMs.push((await read(bare, 'paced')).firstMs),
    ...gateways.map(
      (gateway, index) => async () => void own[index]?.push(await buy(gateway, 'paced')),
    ),
    ...gateways.map((gateway, index) => async () => void calls[index]?.push(await verify(gateway))),
  ]
  for (let i = 0; i < streams; i++) {
    for (let turn = 0; turn < turns.length; turn++) {
      await Bun.sleep(quietMs)
      await turns[(i + turn) % turns.length]?.()
    }
  }
  await Bun.sleep(500)
  const lines = [line('first byte, bare proxy', bareMs)]
  for (const [index, { name, verifications }] of gateways.entries()) {
    const times = own[index] ?? []
    const verified = verifications()
    const verifyMs = times.map(({ id }) => verified.get(id) ?? Number.NaN)
    const callMs = calls[index] ?? []
    const more = times.map(({ firstMs }, round) => firstMs - (bareMs[round] ?? Number.NaN))
    lines.push(
      line(
        `first byte, ${name}`,
        times.map(({ firstMs }) => firstMs),
      ),
      line('  its verification', verifyMs),
      line('  later than the bare proxy', more),
      line(
        '  later than that and the verification',
        more.map((ms, round) => ms - (verifyMs[round] ?? Number.NaN)),
      ),
      line('  a call of its /verify', callMs),
      line(
        '  later than the bare proxy and that call',
        more.map((ms, round) => ms - (callMs[round] ?? Number.NaN)),
      ),
    )
  }
  return lines
}

/** CPU of the server alone, with the settlement of the charge. */
async function compareCpu(
  machine: Machine,
  bare: Server,
  gateways: readonly Gateway[],
): Promise<string[]> {
  const takers = [
    { name: 'bare proxy', server: bare, take: (length: Length) => read(bare, length) },
    ...gateways.map((gateway) => ({
      ...gateway,
      take: (length: Length) => buy(gateway, length),
    })),
  ]
  const costs = takers.map(() => ({ short: 0, large: 0 }))
  const blocks = Math.ceil(streams / block)
  for (let i = 0; i < blocks; i++) {
    for (const [index, { server, take }] of takers.entries()) {
      for (const length of ['short', 'large'] as const) {
        const before = machine.cpuSeconds(server.pid)
        for (let j = 0; j < block; j++) await take(length)
        const ms = ((machine.cpuSeconds(server.pid) - before) * 1000) / (blocks * block)
        const cost = costs[index]
        if (cost) cost[length] += ms
      }
    }
  }
  return takers.map(({ name }, index) => {
    const { short = 0, large = 0 } = costs[index] ?? {}
    const more = `200 kB more cost ${(large - short).toFixed(2)} ms`
    return `${`CPU of a stream, ${name}`.padEnd(44)}${more}: ${short.toFixed(2)}, ${large.toFixed(2)}`
  })
}

type Reading = { headers: Headers; firstMs: number }

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
  return { headers: response.headers, firstMs }
}

/** What a call of the facilitator's `/verify` takes for a payment that is not used otherwise, ms. */
async function verify({ server, credentials }: Gateway): Promise<number> {
  const [, value = ''] = credentials.pop() ?? []
  const paymentPayload = JSON.parse(Buffer.from(value, 'base64').toString())
  const body = { x402Version: 2, paymentPayload, paymentRequirements: paymentPayload.accepted }
  const sentAt = performance.now()
  const response = await fetch(`${server.url}/facilitator/verify`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  const { isValid } = (await response.json()) as { isValid?: boolean }
  const ms = performance.now() - sentAt
  if (isValid !== true) throw new Error(`${server.url} verified nothing: ${response.status}`)
  return ms
}

/** The same for a payment. Ends when its charge is confirmed, so that it disturbs nothing later. */
async function buy(
  { server, credentials }: Gateway,
  length: Length,
): Promise<{ id: string; firstMs: number }> {
  const { headers, firstMs } = await read(server, length, credentials.pop())
  const id = headers.get('payment-id') ?? ''
  const token = headers.get('payment-token') ?? ''
  for (;;) {
    const answer = await fetch(`${server.url}/api/payments/${id}`, {
      headers: { 'payment-token': token },
    })
    const { state } = (await answer.json()) as { state?: string }
    if (state === 'confirmed') return { id, firstMs }
    if (state === undefined) throw new Error(`${server.url} knows no payment ${id}`)
    await Bun.sleep(5)
  }
}

function line(name: string, times: readonly number[]): string {
  const { median, min, max } = Stats.summarize(times)
  return `${name.padEnd(44)}${median.toFixed(2)} [${min.toFixed(2)}..${max.toFixed(2)}] ms`
}

function notes(): string {
  return `Bun ${Bun.version}, ${machine.description}. ${streams} rounds, after ${warmUp} streams that warm up:
one stream of each after the other, ${quietMs} ms apart, each first in turn; medians [min..max] of the differences of a round.
Node, upstream and payer share the second core.`
}
