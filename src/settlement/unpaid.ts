/**
 * Streams that failed after their payers had a part of them, for which nothing is charged. A request may
 * be what makes an upstream break an answer off near its end, such as a text that its filters refuse.
 * After a few of these a payer waits, or it would have all but the end of every answer for nothing.
 */
export type Unpaid = {
  /** A payer has a part of an answer that failed. */
  record(payer: string): void
  /** Seconds until the payer may begin another one; 0 when it may now. */
  waitSeconds(payer: string): number
}

/** A payer may have this many at once; each expires after its part of the time. */
const unpaidMax = 5
const windowMs = 600_000
const payersMax = 10_000

/** `now` is unix ms. A restart resets it. */
export function createUnpaid(now: () => number): Unpaid {
  /** The time at which all of a payer's failures have expired. */
  const until = new Map<string, number>()
  const debtMs = (payer: string) => {
    const debt = (until.get(payer) ?? 0) - now()
    // More than all of them: the clock was set back, and the time is meaningless.
    return debt > windowMs ? 0 : Math.max(0, debt)
  }
  return {
    record(payer) {
      const debt = Math.min(windowMs, debtMs(payer) + windowMs / unpaidMax)
      // Keep the order of insertion: the oldest are dropped first.
      until.delete(payer)
      until.set(payer, now() + debt)
      const [oldest] = until.keys()
      if (until.size > payersMax && oldest !== undefined) until.delete(oldest)
    },
    waitSeconds(payer) {
      const missingMs = debtMs(payer) - (unpaidMax - 1) * (windowMs / unpaidMax)
      return missingMs > 0 ? Math.ceil(missingMs / 1000) : 0
    },
  }
}
