// Requests that are paid by channels, beside the reference stack: the same chain, upstream and clients, in
// alternated rounds. It prints and asserts nothing about time. `--quick`: one round.

import { join } from 'node:path'
import { parseArgs } from 'node:util'
import type { Chain } from '../../../src/demo/chains'
import { startChains } from '../../harness/chains'
import { type Machine, prepareMachine, type Server } from '../machine'
import { network } from '../paid/network'
import { mint, type Payer, payers } from '../paid/payers'
import * as Report from '../Report'
import { type CountingRpc, startCountingRpc } from '../rpc'
import * as Stats from '../Stats'
import { createStock, openRaw, type Raw, type Run, type Stock } from './buyers'

const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false } } })
const rounds = values.quick ? 1 : 5
const channels = 64
/** Vouchers of each channel: before anything counts, and in a sample. */
const warmUpEach = values.quick ? 4 : 40
const each = values.quick ? 4 : 16
/** Requests of one channel in a sample, by vouchers signed before, and by the stock client. */
const rawRequests = values.quick ? 40 : 200
const stockRequests = values.quick ? 10 : 50
/** Deposits of a sample, each of a new payer. */
const deposits = values.quick ? 1 : 4
const lengths = values.quick ? [20] : [200, 10_000]

const names = ['ours', 'reference'] as const
type Name = (typeof names)[number]

const startedAt = performance.now()
const machine = prepareMachine()
const [chain] = await startChains([network()])
if (chain === undefined) throw new Error('no chain')
const upstream = await machine.serveBeside(scriptOf('upstream.ts'))
let payersUsed = 0

try {
  const compared = await compareAll(chain)
  const counted = await countAll(chain)
  const alone = await measureAlone(machine)
  const rows = [...compared, ...counted, ...alone]
  const { repeated, kept } = machine.disturbances()
  const notes = [
    `Bun ${Bun.version}, ${machine.description}; ${rounds} alternated rounds, median [min..max] of the ratios within a round.`,
    'raw: vouchers signed before, one request each. stock: @x402/fetch, which asks for the price before each request.',
    'Ours has each voucher and charge on the disk; the reference has its state in memory.',
    `Samples taken again because of other programs: ${repeated}; kept although disturbed: ${kept}. ${Math.round((performance.now() - startedAt) / 1000)} s in all.`,
  ]
  process.stdout.write(`\n${[...Report.format(rows), '', ...notes].join('\n')}\n`)
} finally {
  await upstream.stop()
  await chain.stop()
}
process.exit(0)

function scriptOf(file: string): string {
  return join('..', 'channels', 'servers', file)
}

function serve(name: Name, rpcUrl: string): Promise<Server> {
  return machine.serve(scriptOf(`${name}.ts`), [rpcUrl, upstream.url])
}

/** Payers that have bought nothing, with money. */
async function freshPayers(on: Chain, count: number): Promise<readonly Payer[]> {
  const fresh = payers(payersUsed + count).slice(payersUsed)
  payersUsed += count
  await mint(on, network(), fresh)
  return fresh
}

async function compareAll(on: Chain): Promise<Report.Row[]> {
  const stages: Stage[] = []
  try {
    for (const name of names) stages.push(await prepare(on, name))
    const samples: Record<Name, Sample[]> = { ours: [], reference: [] }
    for (let round = 0; round < rounds; round++) {
      for (const stage of round % 2 === 0 ? stages : stages.toReversed()) {
        process.stderr.write(`bench:channels: round ${round + 1}, ${stage.name} ...\n`)
        samples[stage.name].push(await sample(on, stage))
      }
    }
    return rowsOf(samples)
  } finally {
    await Promise.all(stages.map(({ server }) => server.stop()))
  }
}

type Stage = { name: Name; server: Server; raws: readonly Raw[]; stock: Stock }

/** A server that has run for a while, so that its code is compiled, with open channels. */
async function prepare(on: Chain, name: Name): Promise<Stage> {
  process.stderr.write(`bench:channels: opens the channels of ${name} ...\n`)
  const server = await serve(name, on.url)
  const holders = await freshPayers(on, channels + 1)
  const [first, ...others] = holders
  if (first === undefined) throw new Error('no payer')
  const raws: Raw[] = []
  for (const payer of others) raws.push(await openRaw(server.url, payer))
  const stock = createStock(server.url, on.url, first)
  await stock.pay(10)
  await payAll(raws, warmUpEach)
  return { name, server, raws, stock }
}

/** Sends vouchers of all channels at once, which were signed before. Resolves with the time, ms. */
async function payAll(raws: readonly Raw[], count: number): Promise<number> {
  for (const raw of raws) raw.prepare(count)
  const startedAt = performance.now()
  await Promise.all(raws.map((raw) => raw.pay()))
  return performance.now() - startedAt
}

/** Times in ms. */
type Sample = {
  one: Run
  stockWhole: Run
  stockPaid: Run
  perSecond: number
  cpuMs: number
  depositMs: number
}

async function sample(on: Chain, { server, raws, stock }: Stage): Promise<Sample> {
  const [first] = raws
  if (first === undefined) throw new Error('no channel')
  const one = await machine.sample(() => {
    first.prepare(rawRequests)
    return first.pay()
  })
  const { whole, paid } = await machine.sample(() => stock.pay(stockRequests))
  const many = await machine.sample(async () => {
    const before = machine.cpuSeconds(server.pid)
    const elapsedMs = await payAll(raws, each)
    const count = raws.length * each
    const cpuMs = ((machine.cpuSeconds(server.pid) - before) * 1000) / count
    return { perSecond: (count * 1000) / elapsedMs, cpuMs }
  })
  const times: number[] = []
  for (const payer of await freshPayers(on, deposits)) {
    const opened = createStock(server.url, on.url, payer)
    times.push(...(await opened.pay(1)).whole.times)
  }
  return {
    one,
    stockWhole: whole,
    stockPaid: paid,
    ...many,
    depositMs: Stats.median(times),
  }
}

function rowsOf({ ours, reference }: Readonly<Record<Name, readonly Sample[]>>): Report.Row[] {
  const row = (
    what: string,
    value: (sample: Sample) => number,
    { unit, digits = 2, bound }: { unit: string; digits?: number; bound?: Report.Bound },
  ) =>
    Report.compare({
      what,
      against: 'reference',
      ours: ours.map(value),
      theirs: reference.map(value),
      ...(bound && { bound }),
      format: (each) => `${each.toFixed(digits)}${unit}`,
    })
  const ms = { unit: ' ms' }
  const of = (run: (sample: Sample) => Run, share: number) => (each: Sample) =>
    Stats.quantile(run(each).times, share)
  return [
    row(
      'voucher, one channel, raw: p50',
      of(({ one }) => one, 0.5),
      ms,
    ),
    row(
      'voucher, one channel, raw: p95',
      of(({ one }) => one, 0.95),
      ms,
    ),
    row(
      'voucher, one channel, stock: p50',
      of(({ stockPaid }) => stockPaid, 0.5),
      ms,
    ),
    row(
      'voucher, one channel, stock: p95',
      of(({ stockPaid }) => stockPaid, 0.95),
      ms,
    ),
    row(
      '402 and voucher, stock: p50',
      of(({ stockWhole }) => stockWhole, 0.5),
      ms,
    ),
    row(`${channels} channels, raw`, ({ perSecond }) => perSecond, { unit: '/s', digits: 0 }),
    row(`${channels} channels, raw: CPU`, ({ cpuMs }) => cpuMs, { unit: ' ms', digits: 3 }),
    row('deposit and first answer, stock', ({ depositMs }) => depositMs, {
      unit: ' ms',
      digits: 1,
    }),
  ]
}

/** Transactions and calls of whole channels, from the deposit to the refund. */
async function countAll(on: Chain): Promise<Report.Row[]> {
  const rows: Report.Row[] = []
  for (const length of lengths) {
    const counted: Record<Name, Counted> = {
      ours: await countOf(on, 'ours', length),
      reference: await countOf(on, 'reference', length),
    }
    const { ours, reference } = counted
    const text = ({ transactions, calls }: Counted) => `${transactions} tx, ${calls} calls`
    const what = `deposit, ${length} requests, refund`
    rows.push({
      ...{ what, against: 'reference', ratio: undefined },
      ...{ target: '', met: undefined },
      ...{ ours: text(ours), theirs: text(reference) },
    })
  }
  return rows
}

type Counted = { transactions: number; calls: number }

/** The first thousand requests are made by the stock client; more by vouchers signed before. */
async function countOf(on: Chain, name: Name, length: number): Promise<Counted> {
  process.stderr.write(`bench:channels: ${length} requests of ${name} ...\n`)
  const rpc = startCountingRpc(on.url)
  const server = await serve(name, rpc.url)
  try {
    const [payer] = await freshPayers(on, 1)
    if (payer === undefined) throw new Error('no payer')
    rpc.reset()
    if (length <= 1_000) {
      const stock = createStock(server.url, on.url, payer)
      await stock.pay(length)
      await stock.refund()
    } else {
      const raw = await openRaw(server.url, payer)
      raw.prepare(length - 1)
      await raw.pay()
      await raw.refund()
    }
    // What was claimed is swept after the refund.
    await machine.settle()
    return countedBy(rpc)
  } finally {
    await server.stop()
    await rpc.stop()
  }
}

function countedBy({ counts }: CountingRpc): Counted {
  const all = [...counts]
  const sum = (of: typeof all) => of.reduce((total, [, count]) => total + count, 0)
  const transactions = sum(all.filter(([method]) => method.startsWith('eth_sendRawTransaction')))
  return { transactions, calls: sum(all) }
}

type Measured = { perSecond: number; cpuUs: number }

/** Check, reservation and charge without HTTP, on the core of the servers. */
async function measureAlone({ onServerCore }: Machine): Promise<Report.Row[]> {
  process.stderr.write('bench:channels: vouchers without HTTP ...\n')
  const script = join(import.meta.dir, 'servers', 'alone.ts')
  const warmUps = values.quick ? 1 : 3
  const counts = [warmUps + rounds, channels, values.quick ? 8 : 40].map(String)
  const child = Bun.spawn([...onServerCore, process.execPath, script, ...counts], {
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'inherit',
    env: { ...process.env, NODE_ENV: 'production' },
  })
  const lines = (await child.stdout.text()).split('\n').filter((line) => line.startsWith('{'))
  const found = lines
    .slice(warmUps)
    .map((line) => JSON.parse(line) as { vouchers: Measured; bound: Measured })
  if (found.length < rounds) throw new Error('the vouchers without HTTP were not measured')
  const row = (what: string, value: (of: Measured) => number, target?: number) =>
    Report.compare({
      what,
      against: 'recovery of the signature alone',
      ours: found.map(({ vouchers }) => value(vouchers)),
      theirs: found.map(({ bound }) => value(bound)),
      format: (each) => (target ? `${each.toFixed(0)}/s` : `${each.toFixed(0)} us`),
    })
  const rate = row(`${channels} channels without HTTP`, ({ perSecond }) => perSecond, 5_000)
  const perSecond = Stats.median(found.map(({ vouchers }) => vouchers.perSecond))
  return [
    { ...rate, ...Report.evaluate(perSecond, { atLeast: 5_000 }), target: '>= 5000/s' },
    row(`${channels} channels without HTTP: CPU`, ({ cpuUs }) => cpuUs),
  ]
}
