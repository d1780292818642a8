// Payments of 1, 2 and 4 gateways over one PostgreSQL, with four relayers in all, in alternated rounds,
// and what bounds them: CPU and flushes of a payment. The gateways share a core, so on a small machine
// the CPU tells more than the rate. It asserts nothing about time, and ends with 1 when a payment failed.

import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startChains } from '../../harness/chains'
import { prepareMachine, type Server } from '../machine'
import * as Report from '../Report'
import { cluster, newDatabase } from './database'
import { pay, type Run } from './load'
import { network } from './network'
import { type Credential, credentials, mint, payers } from './payers'

const { values } = parseArgs({
  options: {
    payers: { type: 'string', default: '128' },
    each: { type: 'string', default: '8' },
    warmUp: { type: 'string', default: '3' },
    rounds: { type: 'string', default: '3' },
    sizes: { type: 'string', default: '1,2,4' },
  },
})
const relayers = 4
const sizes = values.sizes.split(',').map(Number)
/** Gateways that wait for the looks of the others, each two seconds, share the relayers by then. */
const shareMs = 120_000
const machine = prepareMachine()
const rates = new Map<number, number[]>(sizes.map((size) => [size, []]))
const [warmUp, each, rounds] = [values.warmUp, values.each, values.rounds].map(Number) as [
  number,
  number,
  number,
]
let failed = 0

for (let round = 0; round < rounds; round++) {
  for (const size of round % 2 === 0 ? sizes : sizes.toReversed()) {
    const { paid, tried, elapsedMs, ...used } = await measure(size)
    failed += tried - paid
    rates.get(size)?.push((paid * 1000) / elapsedMs)
    const perSecond = ((paid * 1000) / elapsedMs).toFixed(0)
    const of = (sum: number) => (sum / Math.max(1, paid)).toFixed(2)
    process.stderr.write(
      `bench:cluster: ${size}: ${perSecond}/s; for a payment ${of(used.gatewayMs)} ms of the gateways' ` +
        `CPU, ${of(used.serverMs)} ms of the server's, ${of(used.transactions)} transactions of the ` +
        `database, ${of(used.flushes)} flushes, ${of(used.walBytes)} bytes of its log\n`,
    )
  }
}
const alone = rates.get(1) ?? []
const rows = sizes.map((size) =>
  Report.compare({
    what: `${size} gateways`,
    against: '1 gateway',
    ours: rates.get(size) ?? [],
    theirs: alone,
    format: (value) => `${value.toFixed(0)}/s`,
  }),
)
process.stdout.write(`
${Report.format(rows).join('\n')}

Bun ${Bun.version}, ${machine.description}, PostgreSQL on all cores. ${values.payers} payers, ${values.each} payments each,
${rounds} alternated rounds, ${relayers} relayers in all; ratios are of one round, median [min..max].
Failed payments: ${failed}.
`)
await (await cluster()).stop()
process.exit(failed === 0 ? 0 : 1)

type Used = {
  gatewayMs: number
  serverMs: number
  transactions: number
  flushes: number
  walBytes: number
}

/** Each payer pays at one gateway. Everything is new. */
async function measure(size: number): Promise<Pick<Run, 'paid' | 'tried' | 'elapsedMs'> & Used> {
  const [chain] = await startChains([network()])
  if (chain === undefined) throw new Error('no chain')
  const servers: Server[] = []
  try {
    const holders = payers(Number(values.payers))
    await mint(chain, network(), holders)
    const url = await newDatabase()
    const script = join('..', 'paid', 'servers', 'ours-postgres.ts')
    for (let index = 0; index < size; index++)
      servers.push(await machine.serve(script, [chain.url, url, `${relayers}`]))
    await shareLanes(url, size)
    const [first] = servers
    if (first === undefined) throw new Error('no gateway')
    const context = { url: first.url, protocol: 'x402', network: network() } as const
    const lists = await credentials(context, holders, warmUp + each)
    const payAll = async (part: (list: Credential[]) => Credential[]) => {
      const startedAt = performance.now()
      const runs = await Promise.all(
        servers.map((server, index) =>
          pay(server.url, lists.filter((_, place) => place % size === index).map(part)),
        ),
      )
      const sum = (value: (run: Run) => number) => runs.reduce((all, run) => all + value(run), 0)
      return {
        paid: sum((run) => run.paid),
        tried: sum((run) => run.tried),
        elapsedMs: performance.now() - startedAt,
      }
    }
    await payAll((list) => list.slice(0, warmUp))
    const before = await usedBy(url, servers)
    const run = await payAll((list) => list.slice(warmUp))
    const after = await usedBy(url, servers)
    const spent = (of: keyof Used) => after[of] - before[of]
    return {
      ...run,
      gatewayMs: spent('gatewayMs'),
      serverMs: spent('serverMs'),
      transactions: spent('transactions'),
      flushes: spent('flushes'),
      walBytes: spent('walBytes'),
    }
  } finally {
    for (const server of servers) await server.stop()
    await chain.stop()
  }
}

/** Since the start. Connections of the gateways stay open, so none of their CPU is lost. */
async function usedBy(url: string, servers: readonly Server[]): Promise<Used> {
  const { run } = await cluster()
  const sum = (pids: readonly number[]) =>
    pids.reduce((all, pid) => all + machine.cpuSeconds(pid) * 1000, 0)
  const pids = await run('SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()')
  const [row] = await run(
    `SELECT xact_commit AS transactions, wal_sync AS flushes, wal_bytes AS bytes
     FROM pg_stat_database, pg_stat_wal WHERE datname = current_database()`,
    nameOf(url),
  )
  return {
    gatewayMs: sum(servers.map(({ pid }) => pid)),
    serverMs: sum(pids.map(({ pid }) => Number(pid))),
    transactions: Number(row?.transactions),
    flushes: Number(row?.flushes),
    walBytes: Number(row?.bytes),
  }
}

function nameOf(url: string): string {
  return new URL(url).pathname.slice(1)
}

/** The gateways share the relayers fairly after a few of their looks. */
async function shareLanes(url: string, size: number): Promise<void> {
  const { run } = await cluster()
  const endsAt = performance.now() + shareMs
  for (;;) {
    const held = await run(
      `SELECT count(*)::int AS lanes FROM lanes WHERE relayer <> 'keeper' AND holder IS NOT NULL
       GROUP BY holder`,
      nameOf(url),
    )
    if (held.length === size && held.every(({ lanes }) => lanes === relayers / size)) return
    if (performance.now() > endsAt)
      throw new Error(`${size} gateways do not share the relayers: ${JSON.stringify(held)}`)
    await Bun.sleep(50)
  }
}
