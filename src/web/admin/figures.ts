import { type By, type Line, type Report, sumOfUsd, usdOf } from '../../books/Books'
import { reportOf } from '../../books/read'
import type { AdminSources } from './sources'

/** Longest time that a page waits for the figures of earlier days, ms. */
const waitMs = 1_500
export const periods = [1, 7, 30] as const

export type Figures = Awaited<ReturnType<typeof readFigures>>

type Reads = Pick<AdminSources, 'recent' | 'assets' | 'flushRequests'>

/** The figures of today, 7 and 30 days; those of `turnpike sales`. */
export async function readFigures(sources: Reads) {
  const { found, isWhole } = await readDays(sources)
  const reports: Report[] = []
  for (const days of periods) reports.push(await reportOf(sources, found, 'day', days))
  /** `days` that are added up; fewer than there are while they are read for the first time. */
  return { days: found.days.length, isWhole, reports }
}

/** One report of the last days. */
export async function readReport(sources: Reads, by: By, days: number) {
  const { found, isWhole } = await readDays(sources)
  return { report: await reportOf(sources, found, by, days), isWhole }
}

async function readDays({ recent, flushRequests }: Reads) {
  await flushRequests()
  const reading = recent.read(30)
  // The read continues, and its result is kept, when this page does not wait.
  reading.catch(() => undefined)
  const read = await Promise.race([reading, Bun.sleep(waitMs)])
  return { found: read ?? recent.sofar(), isWhole: read !== undefined }
}

export type Sum = ReturnType<typeof sumOf>

/** Of sales on all networks. Amounts are millionths of a USD; undefined where a price is not known. */
export function sumOf({ totals }: Report) {
  const usd = (name: keyof Line['usd']) => sumOfUsd(totals.map((line) => line.usd[name]))
  const number = (name: 'payments' | 'undelivered' | 'openOrders' | 'redeemable' | 'refunds') =>
    totals.reduce((sum, { figures }) => sum + figures[name], 0)
  return {
    payments: number('payments'),
    /** Without stock orders: they end by themselves, or are held and shown as such. */
    undelivered: number('undelivered') - number('openOrders'),
    /** Those of `undelivered` that buyers can still fetch. */
    redeemable: number('redeemable'),
    refunds: number('refunds'),
    /** Earned before gas: without what was swapped for stock, which is `swapped`. */
    revenue: usd('revenue'),
    swapped: usd('swapped'),
    paid: usd('paid'),
    gas: usd('gas'),
    margin: usd('margin'),
  }
}

/** Millionths of a USD that an amount of a line is worth, such as `deliveredAtomic`. */
export function worthOf(
  lines: readonly Line[],
  name: 'deliveredAtomic' | 'undeliveredAtomic' | 'refundedAtomic',
): bigint | undefined {
  return sumOfUsd(lines.map(({ asset, figures }) => usdOf(figures[name], asset)))
}

/** Answers without a further payment, by their kind. */
export function freeOf({ requests }: Report): readonly (readonly [name: string, times: number])[] {
  return Object.entries(freeNames).map(([kind, name]) => [
    name,
    requests.reduce((sum, { free }) => sum + (free[kind] ?? 0), 0),
  ])
}

const freeNames = {
  trial: 'Answers of a trial',
  pass: 'Answers by a pass',
  again: 'Answers fetched again',
}

/** Requests of a report: 402s, paid and failed ones. */
export function requestsOf({ requests }: Report) {
  const sum = (name: 'asked' | 'paid' | 'failed') =>
    requests.reduce((total, line) => total + line[name], 0)
  return { asked: sum('asked'), paid: sum('paid'), failed: sum('failed') }
}
