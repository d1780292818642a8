// Verifications and settlements beside the reference facilitator. It prints and asserts nothing
// about time. It ends with 1 when a call of ours failed.

import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startChains } from '../../harness/chains'
import { startTap } from '../../harness/settlement'
import { prepareMachine } from '../machine'
import { network } from '../paid/network'
import { mint, payers } from '../paid/payers'
import { align, judged } from '../paid/tables'
import * as Report from '../Report'
import * as Stats from '../Stats'
import { bodyOf, call, type Operation, type Run } from './bodies'

const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false } },
})

type Candidate = { name: string; script: string; args: readonly string[]; isShipped: boolean }

const ours: Candidate = {
  name: 'ours',
  script: join('..', 'paid', 'servers', 'ours.ts'),
  args: [],
  isShipped: false,
}
const reference = (mode: 'tuned' | 'shipped'): Candidate => ({
  name: `reference, ${mode}`,
  script: join('..', 'facilitator', 'servers', 'reference.ts'),
  args: [mode],
  isShipped: mode === 'shipped',
})
const peers = [reference('tuned'), reference('shipped')]
/**
 * The lower bound of a call, printed for comparison. With many callers it is not a bound, because
 * it makes no batches.
 */
const bare: Candidate = {
  name: 'the calls alone',
  script: join('..', 'facilitator', 'servers', 'bare.ts'),
  args: [],
  isShipped: false,
}

type Load = { operation: Operation; callers: number; each: number; eachShipped: number }

/** The reference as shipped polls for a receipt every four seconds, so few settlements suffice. */
const loads: readonly Load[] = [
  { operation: 'verify', callers: 1, each: 200, eachShipped: 200 },
  { operation: 'verify', callers: 32, each: 24, eachShipped: 24 },
  { operation: 'settle', callers: 1, each: 96, eachShipped: 4 },
  { operation: 'settle', callers: 32, each: 12, eachShipped: 3 },
]
const rounds = values.quick ? 1 : 3
const nameOf = ({ operation, callers }: Load) =>
  `${operation}, ${callers} ${callers === 1 ? 'caller' : 'callers'}`

const machine = prepareMachine()
const startedAt = performance.now()

/** A fresh chain, a fresh server and bodies that were never sent. */
async function sample(candidate: Candidate, load: Load): Promise<Run> {
  const [chain] = await startChains([network()])
  if (chain === undefined) throw new Error('no chain')
  try {
    const holders = payers(load.callers)
    await mint(chain, network(), holders)
    const server = await machine.serve(candidate.script, [chain.url, ...candidate.args])
    try {
      const most = candidate.isShipped ? load.eachShipped : load.each
      const each = values.quick ? Math.max(1, most >> 2) : most
      const bodies = (count: number) =>
        holders.map((payer) => Array.from({ length: count }, () => bodyOf(payer)))
      // A server that has run for a while has its code compiled.
      const warmUp = candidate.isShipped && load.operation === 'settle' ? 1 : each
      const [early, measured] = [bodies(warmUp), bodies(each)]
      await call(server.url, load.operation, early)
      return await call(server.url, load.operation, measured)
    } finally {
      await server.stop()
    }
  } finally {
    await chain.stop()
  }
}

const perSecond = ({ done, elapsedMs }: Run) => (done * 1000) / elapsedMs
const failed = ({ done, tried }: Run) => ((tried - done) / tried) * 100
const median = ({ times }: Run) => (times.length === 0 ? Number.NaN : Stats.median(times))

type Measured = { load: Load; runs: ReadonlyMap<Candidate, Run[]> }

async function measure(load: Load): Promise<Measured> {
  const all = [ours, ...peers, ...(load.callers === 1 ? [bare] : [])]
  const runs = new Map<Candidate, Run[]>(all.map((candidate) => [candidate, []]))
  for (let round = 0; round < rounds; round++) {
    for (const candidate of round % 2 === 0 ? all : all.toReversed()) {
      process.stderr.write(`bench:facilitator: ${nameOf(load)}, ${candidate.name} ...\n`)
      const take = () => sample(candidate, load)
      runs.get(candidate)?.push(await (values.quick ? take() : machine.sample(take)))
    }
  }
  return { load, runs }
}

function absolute({ load, runs }: Measured): string[][] {
  return [...runs].map(([candidate, all]) => {
    const over = (value: (run: Run) => number, digits: number) =>
      Stats.median(all.map(value)).toFixed(digits)
    return [
      nameOf(load),
      candidate.name,
      `${over(perSecond, 0)}/s`,
      `${over(median, 1)} ms`,
      `${over(failed, 0)} %`,
    ]
  })
}

/** Targets are relative to the reference as its documentation builds it. */
function ratios({ load, runs }: Measured): Report.Row[] {
  const own = runs.get(ours) ?? []
  const others = [...peers, bare].filter((peer) => runs.has(peer))
  return others.map((peer) => {
    const bound = load.operation === 'verify' ? { atLeast: 4 } : { atLeast: 10 }
    return Report.compare({
      what: nameOf(load),
      against: peer.name,
      ours: own.map(perSecond),
      theirs: (runs.get(peer) ?? []).map(perSecond),
      ...(peer.isShipped && !values.quick ? { bound } : {}),
      format: (value) => `${value.toFixed(0)}/s`,
    })
  })
}

/** JSON-RPC calls of ours for one verification. */
async function countCalls(): Promise<Report.Row> {
  const [chain] = await startChains([network()])
  if (chain === undefined) throw new Error('no chain')
  const tap = startTap(chain.url)
  try {
    const [payer] = payers(1)
    if (payer === undefined) throw new Error('no payer')
    await mint(chain, network(), [payer])
    const server = await machine.serve(ours.script, [tap.url])
    try {
      const before = tap.calls.length
      const count = 50
      await call(server.url, 'verify', [Array.from({ length: count }, () => bodyOf(payer))])
      const calls = (tap.calls.length - before) / count
      return judged({
        what: 'JSON-RPC calls per verification',
        against: '',
        value: calls,
        bound: { atMost: 1 },
        format: (value) => value.toFixed(2),
      })
    } finally {
      await server.stop()
    }
  } finally {
    tap.stop()
    await chain.stop()
  }
}

const measured: Measured[] = []
for (const load of loads) measured.push(await measure(load))
const rows = [...measured.flatMap(ratios), await countCalls()]
const failures = measured
  .flatMap(({ runs }) => runs.get(ours) ?? [])
  .reduce((sum, { tried, done }) => sum + tried - done, 0)
const { repeated, kept } = machine.disturbances()
const head = ['load', 'candidate', 'done', 'median', 'failed']
const lines = [
  ...align([head, ...measured.flatMap(absolute)]),
  '',
  ...Report.format(rows),
  '',
  `Bun ${Bun.version}, ${machine.description}. ${((performance.now() - startedAt) / 1000).toFixed(0)} s in all.`,
  'A fresh automining anvil, server and set of signatures for each sample; each caller sends its own',
  'one after the other, each once. Ratios are ours / theirs, median [min..max] over the rounds.',
  'As shipped: the documented viem wallet. Tuned: viem nonceManager and 50 ms polling. The reference',
  'keeps nothing on disk and is served by Bun without a framework. The calls alone: a server that makes',
  'only the calls to the node, checks nothing, keeps nothing and forgets its nonces.',
  `Samples disturbed by others: ${repeated} dropped and measured again, ${kept} kept nevertheless.`,
  `Failed calls of ours: ${failures}.`,
]
process.stdout.write(`\n${lines.join('\n')}\n`)
process.exit(failures === 0 ? 0 : 1)
