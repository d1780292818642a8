// Paid requests beside the reference x402 stack and mppx. It prints and asserts nothing about time.
// It ends with 1 when a payment of ours failed.

import { parseArgs } from 'node:util'
import { hasPostgres } from '../../harness/postgres'
import { prepareMachine } from '../machine'
import * as Report from '../Report'
import * as Stats from '../Stats'
import { type Calls, countCalls } from './calls'
import {
  type Candidate,
  candidates,
  type Load,
  lengthened,
  loads,
  quickLoads,
  schemeOf,
} from './candidates'
import { addFormed, type Formed, measureSizes, totals } from './gas'
import { type Sample, sample } from './sample'
import * as Tables from './tables'

const usage = `bench:paid [--quick] [--only ours|mppx|x402] [--scheme exact|upto] [--load TEXT] [--rounds N] [--warm-up N] [--profile DIRECTORY]
  --quick    a few payments of each load, one round, within a minute
  --only     candidates whose name begins so
  --scheme   candidates of that scheme; without it both
  --load     loads whose name contains it, such as "32 payers"
  --rounds   so many of each load, without a pass that counts calls and gas
  --warm-up  so many payments before those that count, at least
  --profile  a CPU profile of each server in that directory
`

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: '' },
    scheme: { type: 'string' },
    load: { type: 'string', default: '' },
    rounds: { type: 'string' },
    'warm-up': { type: 'string', default: '0' },
    profile: { type: 'string' },
  },
})
const chosen = candidates.filter(
  (candidate) =>
    candidate.name.startsWith(values.only) &&
    (hasPostgres || candidate.kind !== 'postgres') &&
    (values.scheme === undefined || schemeOf(candidate) === values.scheme),
)
const chosenLoads = (values.quick ? quickLoads : loads)
  .filter(
    ({ name, schemes }) =>
      name.includes(values.load) && chosen.some((each) => schemes.includes(schemeOf(each))),
  )
  .map((load) => lengthened(load, { warmUp: Number(values['warm-up']) }))
if (chosen.length === 0 || chosenLoads.length === 0) {
  process.stderr.write(usage)
  process.exit(2)
}
if (values.profile !== undefined)
  process.env.BUN_OPTIONS = `--cpu-prof --cpu-prof-dir=${values.profile}`

const machine = prepareMachine()
const formed: Formed = new Map()
const startedAt = performance.now()

const measured: Tables.Measured[] = []
for (const load of chosenLoads) measured.push(await measure(load))
const calls = values.rounds === undefined ? await countAll() : { rows: [], notes: [] }
const isExact =
  values.rounds === undefined &&
  chosen.some((candidate) => isOurs(candidate) && schemeOf(candidate) === 'exact')
const gas = isExact ? await gasRows() : []

const rows = [
  ...measured.flatMap(Tables.ratios),
  ...measured.flatMap(Tables.databases),
  ...ownTargets(),
  ...calls.rows,
  ...gas,
].map((row) => (values.quick ? { ...row, target: '', met: undefined } : row))
const table = Tables.align([Tables.absoluteHead, ...measured.flatMap(Tables.absolute)])
process.stdout.write(
  `\n${[...table, '', ...Report.format(rows), '', ...calls.notes, ...notes()].join('\n')}\n`,
)
process.exit(failures() === 0 ? 0 : 1)

function isOurs({ kind }: Candidate): boolean {
  return kind === 'ours'
}

async function measure(load: Load): Promise<Tables.Measured> {
  const all = chosen.filter(
    (candidate) =>
      (load.withFurther || candidate.kind !== 'further') &&
      load.schemes.includes(schemeOf(candidate)),
  )
  const rounds = Number(values.rounds ?? load.rounds)
  const samples = new Map<Candidate, Sample[]>(all.map((candidate) => [candidate, []]))
  for (let round = 0; round < rounds; round++) {
    for (const candidate of round % 2 === 0 ? all : all.toReversed()) {
      process.stderr.write(`bench:paid: ${load.name}, ${candidate.name} ...\n`)
      // Gas is compared between transfers of the scheme `exact`.
      const isCounted = isOurs(candidate) && schemeOf(candidate) === 'exact'
      const take = () =>
        sample(machine, candidate, load, async ({ chain }) => {
          if (isCounted) await addFormed(formed, chain)
        })
      // A short run does not wait for an idle machine, because it checks no targets.
      const result = await (values.quick || values.rounds ? take() : machine.sample(take))
      samples.get(candidate)?.push(result)
    }
  }
  return { load, samples }
}

/** Targets that compare ours with itself or with nothing. */
function ownTargets(): Report.Row[] {
  return chosen
    .filter(({ kind }) => kind === 'ours')
    .flatMap((candidate) => {
      const rate = (name: string) => {
        const all = measured.find(({ load }) => load.name === name)?.samples.get(candidate)
        return all && Stats.median(all.map(Tables.perSecond))
      }
      const [few, many] = [rate('32 payers'), rate('256 payers')]
      const blocks = rate('256 payers, 1 s blocks')
      const times = (value: number) => value.toFixed(2)
      const perSecond = (value: number) => `${value.toFixed(0)}/s`
      return [
        ...(few === undefined || many === undefined
          ? []
          : [
              Tables.judged({
                what: `${candidate.name}: payments with 256 payers`,
                against: 'with 32 payers',
                value: many / few,
                bound: { atLeast: 1 },
                format: times,
              }),
            ]),
        ...(blocks === undefined
          ? []
          : [
              Tables.judged({
                what: `${candidate.name}: payments with 1 s blocks`,
                against: '',
                value: blocks,
                bound: { atLeast: 200 },
                format: perSecond,
              }),
            ]),
      ]
    })
}

async function countAll(): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const rows: Report.Row[] = []
  const lines: string[] = []
  for (const load of chosenLoads.filter(({ payers }) => payers <= 32)) {
    const short = { ...load, each: Math.min(load.each, 32) }
    for (const candidate of chosen.filter(
      (each) =>
        (each.kind === 'ours' || each.kind === 'tuned') && load.schemes.includes(schemeOf(each)),
    )) {
      const { perPayment, methods }: Calls = await countCalls(machine, candidate, short)
      // Each charge by use is a transaction of its own.
      const isBound = isOurs(candidate) && schemeOf(candidate) === 'exact'
      const bound = load.payers === 1 ? { atMost: 2.1 } : { atMost: 0.99 }
      rows.push(
        Tables.judged({
          what: `${candidate.name}, ${load.name}: JSON-RPC calls per payment`,
          against: '',
          value: perPayment,
          bound: isBound ? bound : undefined,
          format: (value) => value.toFixed(2),
        }),
      )
      lines.push(`calls per payment, ${candidate.name}, ${load.name}: ${methods}`)
    }
  }
  return { rows, notes: lines }
}

async function gasRows(): Promise<Report.Row[]> {
  const rows: Report.Row[] = []
  const round = (value: number) => value.toFixed(0)
  const lone = totals(formed, 1, 1)
  const add = (what: string, against: string, value: number, bound?: Report.Bound) =>
    rows.push(
      Tables.judged({
        what,
        against,
        value,
        bound,
        format: bound ? (each) => each.toFixed(3) : round,
      }),
    )
  const ranges = [
    [1, 1],
    [2, 7],
    [8, 23],
    [24, 47],
    [48, 95],
    [96, 999],
  ] as const
  for (const [from, to] of ranges) {
    const { perPayment, transactions } = totals(formed, from, to)
    if (perPayment === undefined) continue
    const size = from === to ? 'alone' : `in batches of ${from} to ${to}`
    add(`gas per payment of ours, ${size} (${transactions} transactions)`, '', perPayment)
    if (from === 24 && lone.perPayment !== undefined)
      add(`the same, as a share of a lone one`, 'alone', perPayment / lone.perPayment, {
        atMost: 0.7,
      })
  }
  for (const method of ['eip3009', 'permit2'] as const) {
    const { lone, batches } = await measureSizes(method, [8, 32, 128])
    add(`gas by hand, ${method}, alone`, '', lone)
    for (const { size, perPayment } of batches) {
      const share = perPayment / lone
      const what = `gas by hand, ${method}, ${size} in a batch (${perPayment.toFixed(0)})`
      if (size === 32 && method === 'eip3009') add(what, 'alone', share, { atMost: 0.7 })
      else add(what, 'alone', share, { atMost: 1 })
    }
  }
  return rows
}

function failures(): number {
  return measured
    .flatMap(({ samples }) => [...samples])
    .filter(([{ kind }]) => kind === 'ours' || kind === 'postgres')
    .flatMap(([, all]) => all)
    .reduce((sum, { tried, paid }) => sum + tried - paid, 0)
}

function notes(): string[] {
  const { repeated, kept } = machine.disturbances()
  return [
    `Bun ${Bun.version}, ${machine.description}. ${((performance.now() - startedAt) / 1000).toFixed(0)} s in all.`,
    'A fresh automining anvil, server and set of credentials for each sample; each payer sends its own',
    'credentials one after the other, each once. Ratios are ours / the best peer of the round, median',
    '[min..max] over the rounds; absolute figures are medians. Latency is of what was paid.',
    'As shipped: the documented viem wallet. Tuned: viem nonceManager and 50 ms polling. Sync: receipts',
    'by eth_sendRawTransactionSync besides, which no peer documents. The peers keep nothing on disk.',
    ...(values.quick
      ? ['A short run: a few payments and one round say nothing about targets.']
      : []),
    `Samples disturbed by others: ${repeated} dropped and measured again, ${kept} kept nevertheless.`,
    `Failed payments of ours: ${failures()}.`,
  ]
}
