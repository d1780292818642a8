import * as Report from '../Report'
import * as Stats from '../Stats'
import { type Candidate, type Load, schemeOf } from './candidates'
import type { Sample } from './sample'

/** Measurements of one load: a sample of each candidate per round, in the same order. */
export type Measured = { load: Load; samples: ReadonlyMap<Candidate, readonly Sample[]> }

export const perSecond = ({ paid, elapsedMs }: Sample): number => (paid * 1000) / elapsedMs

/** Milliseconds below which a share of the paid requests stayed; infinite when none was paid. */
export function latency({ times }: Sample, share: number): number {
  return times.length === 0 ? Number.POSITIVE_INFINITY : Stats.quantile(times, share)
}

const failed = ({ paid, tried }: Sample): number => ((tried - paid) / tried) * 100

/** One line per candidate and load, medians over the rounds. */
export function absolute({ load, samples }: Measured): string[][] {
  return [...samples].map(([candidate, all]) => {
    const over = (value: (sample: Sample) => number, digits: number) =>
      Stats.median(all.map(value)).toFixed(digits)
    const faults = new Set(all.flatMap((sample) => [...sample.faults.keys()]))
    return [
      load.name,
      candidate.name,
      `${over(perSecond, 0)}/s`,
      `${over((sample) => latency(sample, 0.5), 1)} ms`,
      `${over((sample) => latency(sample, 0.99), 1)} ms`,
      `${over(failed, 0)} %${faults.size === 0 ? '' : ` (${[...faults].join(', ')})`}`,
      `${over(({ cpuMs }) => cpuMs, 2)} ms`,
    ]
  })
}

export const absoluteHead = [
  'load',
  'candidate',
  'paid',
  'median',
  'p99',
  'failed',
  'server CPU per payment',
]

type Bounds = Partial<Record<Candidate['kind'], Report.Bound>>

/** The targets of each load that has any. Other values are printed without a result. */
const rateBounds: Readonly<Record<string, Bounds>> = {
  'exact, 32 payers': { tuned: { atLeast: 4 }, shipped: { atLeast: 50 } },
  'upto, 32 payers': { tuned: { atLeast: 3 } },
}
const medianBounds: Readonly<Record<string, Bounds>> = {
  'exact, 1 payer': { tuned: { atMost: 0.5 } },
}

const against: Readonly<Record<Candidate['kind'], string>> = {
  ours: '',
  postgres: '',
  tuned: 'best tuned peer',
  shipped: 'best peer as shipped',
  further: 'mppx, writeContractSync',
}

type Measure = {
  what: string
  value: (sample: Sample) => number
  best: (...values: number[]) => number
  bounds?: Bounds | undefined
  format: (value: number) => string
}

const rate: Measure = {
  what: 'payments',
  value: perSecond,
  best: Math.max,
  format: (value) => `${value.toFixed(0)}/s`,
}
const median: Measure = {
  what: 'median',
  value: (sample) => latency(sample, 0.5),
  best: Math.min,
  format: (value) => `${value.toFixed(1)} ms`,
}

/** Ours in each protocol against the best peer of each kind, which is selected in each round. */
export function ratios({ load, samples }: Measured): Report.Row[] {
  const rows: Report.Row[] = []
  const of = (kind: Candidate['kind']) => [...samples].filter(([each]) => each.kind === kind)
  for (const [candidate, all] of of('ours')) {
    const name = `${schemeOf(candidate)}, ${load.name}`
    for (const kind of ['tuned', 'shipped', 'further'] as const) {
      const peers = of(kind)
        .filter(([peer]) => schemeOf(peer) === schemeOf(candidate))
        .map(([, each]) => each)
      if (peers.length === 0) continue
      const row = ({ what, value, best, bounds, format }: Measure) =>
        Report.compare({
          what: `${candidate.name}, ${load.name}: ${what}`,
          against: against[kind],
          ours: all.map(value),
          theirs: all.map((_, round) =>
            best(...peers.flatMap((peer) => peer.slice(round, round + 1).map(value))),
          ),
          ...(bounds?.[kind] === undefined ? {} : { bound: bounds[kind] }),
          format,
        })
      rows.push(row({ ...rate, bounds: rateBounds[name] }))
      // The latency of the few successful payments of a peer as shipped is not comparable.
      if (kind !== 'shipped' || load.payers === 1)
        rows.push(row({ ...median, bounds: medianBounds[name] }))
    }
  }
  return rows
}

const postgresBounds: Readonly<Record<string, number>> = { '32 payers': 0.8, '256 payers': 1.2 }
/** How much longer one payment may take with PostgreSQL, ms. */
const longerMaxMs = 2

/** Ours on PostgreSQL against ours on SQLite, in the same rounds. */
export function databases({ load, samples }: Measured): Report.Row[] {
  const rows: Report.Row[] = []
  for (const [candidate, all] of samples) {
    const isTwin = ({ kind, protocol }: Candidate) =>
      kind === 'ours' && protocol === candidate.protocol
    const [, twin] = [...samples].find(([each]) => isTwin(each)) ?? []
    if (candidate.kind !== 'postgres' || twin === undefined) continue
    const bound = postgresBounds[load.name]
    const row = ({ what, value, format }: Measure, target?: Report.Bound) =>
      Report.compare({
        what: `${candidate.name}, ${load.name}: ${what}`,
        against: 'ours on SQLite',
        ours: all.map(value),
        theirs: twin.map(value),
        ...(target && { bound: target }),
        format,
      })
    rows.push(row(rate, bound === undefined ? undefined : { atLeast: bound }), row(median))
    if (load.payers > 1) continue
    const longer = all.map((each, round) => median.value(each) - median.value(twin[round] ?? each))
    rows.push(
      judged({
        what: `${candidate.name}, ${load.name}: median`,
        against: 'longer than on SQLite',
        value: Stats.median(longer),
        bound: { atMost: longerMaxMs },
        format: median.format,
      }),
    )
  }
  return rows
}

type Figure = {
  what: string
  against: string
  value: number
  bound?: Report.Bound | undefined
  format: (value: number) => string
}

/** A row that is not a comparison of two measured series. */
export function judged({ what, against, value, bound, format }: Figure): Report.Row {
  const result = Report.evaluate(value, bound)
  return { what, against, ratio: undefined, ...result, ours: format(value), theirs: '' }
}

/** Lines with columns of the needed width. */
export function align(lines: readonly (readonly string[])[]): string[] {
  const widths = (lines[0] ?? []).map((_, column) =>
    Math.max(...lines.map((line) => line[column]?.length ?? 0)),
  )
  return lines.map((line) =>
    line
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
}
