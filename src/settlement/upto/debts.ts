/**
 * Requests by `upto` that ended without a charge, by payer or by address. A request may be what makes an
 * upstream fail, such as a text that its filters refuse near the end of the answer. After a few of
 * these the key waits, or it would have the work of the upstream for nothing.
 */
export type Debts = {
  add(key: string): void
  /** Ends one of them early, because its key has paid. */
  takeBack(key: string): void
  /** Seconds until the key may begin another one; 0 when it may now. */
  waitSeconds(key: string): number
}

const windowMs = 600_000
const keysMax = 10_000

/**
 * `now` is unix ms; a key may have `most` at once, and each expires after its part of the time. A
 * restart resets them.
 */
export function createDebts(now: () => number, most: number): Debts {
  /** The time at which all of a key have expired. */
  const until = new Map<string, number>()
  const tokenMs = windowMs / most
  const debtMs = (key: string) => {
    const debt = (until.get(key) ?? 0) - now()
    // More than all of them: the clock was set back, and the time is meaningless.
    return debt > windowMs ? 0 : Math.max(0, debt)
  }
  return {
    add(key) {
      const debt = Math.min(windowMs, debtMs(key) + tokenMs)
      // Keep the order of insertion: the oldest are dropped first.
      until.delete(key)
      until.set(key, now() + debt)
      const [oldest] = until.keys()
      if (until.size > keysMax && oldest !== undefined) until.delete(oldest)
    },
    takeBack(key) {
      const left = debtMs(key) - tokenMs
      if (left > 0) until.set(key, now() + left)
      else until.delete(key)
    },
    waitSeconds(key) {
      const missingMs = debtMs(key) - (most - 1) * tokenMs
      return missingMs > 0 ? Math.ceil(missingMs / 1000) : 0
    },
  }
}
