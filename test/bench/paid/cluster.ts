// Payments of 1, 2 and 4 gateways over one PostgreSQL, with four relayers in all, in alternated rounds.
// It prints and asserts nothing about time. It ends with 1 when a payment failed.

import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startChains } from '../../../src/demo/chains'
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
  },
})
const relayers = 4
const sizes = [1, 2, 4] as const
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
    const { paid, tried, elapsedMs, commits } = await measure(size)
    failed += tried - paid
    rates.get(size)?.push((paid * 1000) / elapsedMs)
    const perSecond = ((paid * 1000) / elapsedMs).toFixed(0)
    const each = (commits / (Number(values.payers) * (warmUp + Number(values.each)))).toFixed(2)
    process.stderr.write(`bench:cluster: ${size}: ${perSecond}/s, ${each} commits per payment\n`)
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

/** Each payer pays at one gateway. Everything is new. */
async function measure(
  size: number,
): Promise<Pick<Run, 'paid' | 'tried' | 'elapsedMs'> & { commits: number }> {
  const [chain] = await startChains([network()])
  if (chain === undefined) throw new Error('no chain')
  const servers: Server[] = []
  try {
    const holders = payers(Number(values.payers))
    await mint(chain, network(), holders)
    const url = await newDatabase()
    const script = join('..', 'paid', 'servers', 'ourspostgres.ts')
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
    const run = await payAll((list) => list.slice(warmUp))
    const [row] = await (await cluster()).run(
      'SELECT count(*)::int AS count FROM commits',
      nameOf(url),
    )
    return { ...run, commits: Number(row?.count) }
  } finally {
    for (const server of servers) await server.stop()
    await chain.stop()
  }
}

function nameOf(url: string): string {
  return new URL(url).pathname.slice(1)
}

/** The gateways share the relayers fairly after a few of their looks. */
async function shareLanes(url: string, size: number): Promise<void> {
  const { run } = await cluster()
  for (;;) {
    const held = await run(
      `SELECT count(*)::int AS lanes FROM lanes WHERE relayer <> 'keeper' AND holder IS NOT NULL
       GROUP BY holder`,
      nameOf(url),
    )
    if (held.length === size && held.every(({ lanes }) => lanes === relayers / size)) return
    await Bun.sleep(50)
  }
}
