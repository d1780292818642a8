import type { RequestCounts, SalesLedger } from '../../db/sales'
import { hourMs } from '../protocol/Time'

/** Requests of a route since the start; the hot path only adds to these numbers. */
type Count = {
  /** All answers 402. */
  sent: number
  /** Answers 402 to requests without a credential. */
  asked: number
  /** Purchases whose payment was confirmed, or whose answer by use was given. */
  paid: number
  /** Requests with a credential that got a problem. */
  failed: number
}

type Kept = Count & { written: RequestCounts; taken: number }

export type Tally = ReturnType<typeof createTally>

/**
 * Counts requests in memory, by merchant and route. The routes are those of configurations, so their
 * number is bounded by the file.
 */
export function createTally() {
  const byMerchant = new Map<string, Map<string, Kept>>()
  const add = (merchant: string, route: string): Kept => {
    const none = { asked: 0, paid: 0, failed: 0 }
    const made = { sent: 0, ...none, written: { merchant, route, ...none }, taken: 0 }
    const routes = byMerchant.get(merchant)
    if (routes === undefined) byMerchant.set(merchant, new Map([[route, made]]))
    else routes.set(route, made)
    return made
  }
  const all = () => [...byMerchant.values()].flatMap((routes) => [...routes.values()])
  return {
    of: ({ merchant, route }: { merchant: string; route: string }): Count =>
      byMerchant.get(merchant)?.get(route) ?? add(merchant, route),
    /** Answers 402 since the last call, by merchant. */
    takeSent(): ReadonlyMap<string, number> {
      const fresh = new Map<string, number>()
      for (const count of all()) {
        const { merchant } = count.written
        fresh.set(merchant, (fresh.get(merchant) ?? 0) + count.sent - count.taken)
        count.taken = count.sent
      }
      return fresh
    },
    /** What was counted and not written yet. */
    unwritten: (): readonly RequestCounts[] =>
      all()
        .map(({ asked, paid, failed, written }) => ({
          ...written,
          asked: asked - written.asked,
          paid: paid - written.paid,
          failed: failed - written.failed,
        }))
        .filter(({ asked, paid, failed }) => asked + paid + failed > 0),
    /** Marks counts as written. */
    wrote(counts: readonly RequestCounts[]): void {
      for (const { merchant, route, asked, paid, failed } of counts) {
        const written = byMerchant.get(merchant)?.get(route)?.written
        if (written === undefined) continue
        written.asked += asked
        written.paid += paid
        written.failed += failed
      }
    },
  }
}

/** Longest time (ms) that counts are in memory only. */
const waitMs = 5_000

/** Hours are kept for this time (ms), which bounds the table. */
const keptMs = 400 * 24 * hourMs

type HoursOptions = {
  ledger: Pick<SalesLedger, 'addRequests'>
  tally: Tally
  /** Unix ms. */
  now: () => number
}

/**
 * Writes the counts of requests every few seconds and at the end of each hour, so that a request
 * never waits for them. A crash loses the last seconds. Counts that cannot be written stay in
 * memory, and count for the hour in which they are written.
 */
export function startHours({ ledger, tally, now }: HoursOptions) {
  const hourNow = () => Math.floor(now() / hourMs) * hourMs
  /** The hour of the unwritten counts. */
  let hour = hourNow()
  let timer: ReturnType<typeof setTimeout> | undefined
  let isStopped = false
  let last = Promise.resolve()
  const write = async () => {
    const counts = tally.unwritten()
    const of = hour
    hour = hourNow()
    if (counts.length === 0) return
    try {
      await ledger.addRequests(of, counts, hour - keptMs)
      tally.wrote(counts)
    } catch {
      // The database reports its fault itself.
    }
  }
  const arm = () => {
    timer = setTimeout(run, Math.min(waitMs, hour + hourMs - now()))
    timer.unref()
  }
  // Runs one write after the other, because the counts of a running write are still unwritten.
  const flush = () => {
    last = last.then(write)
    return last
  }
  const run = async () => {
    await flush()
    if (!isStopped) arm()
  }
  arm()
  return {
    /** Writes what was counted since the last time. Never rejects. */
    flush,
    /** Writes the rest and ends the timer. */
    async stop(): Promise<void> {
      isStopped = true
      clearTimeout(timer)
      await flush()
    },
  }
}
