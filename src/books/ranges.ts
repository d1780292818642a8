import type { SalesReads } from '../../db/sales'
import type * as Books from './Books'
import type * as Funnel from './Funnel'
import { type ReadOptions, readBooks, readFunnel } from './read'

/** Longest time that a page waits for a report, ms. */
const waitMs = 1_500
/** A report is shown again for this long, ms, so that each page does not read the period. */
const keptMs = 15_000
const keptReports = 8
/** Payers in the memory at once. */
const linesMax = 20_000

type Options = {
  sales: SalesReads
  attempts: ReadOptions['attempts']
  /** Unix ms. */
  now: () => number
}

/** A period of whole UTC days, unix ms; `to` is the begin of the day after the last one. */
export type Range = { from: number; to: number }

type Kept = { readAt: number; isRead: boolean; report: Promise<unknown> }

export type Ranges = ReturnType<typeof createRanges>

/**
 * Reports of any period for pages: those of `turnpike sales`. One is read after the other, and the
 * read continues when its page does not wait. Undefined while it is being read.
 */
export function createRanges({ sales, attempts, now }: Options) {
  const kept = new Map<string, Kept>()
  let last: Promise<unknown> = Promise.resolve()
  const find = <T>(key: string, read: () => Promise<T>): Promise<T> => {
    const known = kept.get(key)
    const age = known === undefined ? 0 : now() - known.readAt
    if (known !== undefined && (!known.isRead || (age >= 0 && age < keptMs)))
      return known.report as Promise<T>
    const report = last.then(read)
    const entry: Kept = { readAt: now(), isRead: false, report }
    kept.set(key, entry)
    const ended = () => {
      entry.isRead = true
      entry.readAt = now()
    }
    last = report.then(ended, () => void kept.delete(key))
    const [oldest] = [...kept].filter(([, { isRead }]) => isRead)
    if (kept.size > keptReports && oldest !== undefined) kept.delete(oldest[0])
    return report
  }
  const soon = <T>(report: Promise<T>): Promise<T | undefined> =>
    Promise.race([report, Bun.sleep(waitMs).then(() => undefined)])
  const until = (to: number) => Math.min(to, now())
  return {
    sales: ({ from, to }: Range, by: Books.By): Promise<Books.Report | undefined> =>
      soon(
        find(`sales ${from} ${to} ${by}`, () =>
          readBooks({ sales, by, from, to: until(to), attempts, linesMax }),
        ),
      ),
    funnel: ({ from, to }: Range, by: Funnel.By): Promise<Funnel.Report | undefined> =>
      soon(
        find(`funnel ${from} ${to} ${by}`, () => readFunnel({ sales, by, from, to: until(to) })),
      ),
  }
}
