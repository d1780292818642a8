const keysMax = 10_000

/**
 * What strangers do at our cost, by key. A key may have `most` at once, and each expires after its part of the
 * time (ms). A restart resets them.
 */
export function createDebts(now: () => number, most: number, windowMs: number) {
  /** The time at which all of a key have expired. */
  const until = new Map<string, number>()
  const tokenMs = windowMs / most
  const debtMs = (key: string) => {
    const debt = (until.get(key) ?? 0) - now()
    // More than all of them: the clock was set back, and the time is meaningless.
    return debt > windowMs ? 0 : Math.max(0, debt)
  }
  return {
    add(key: string): void {
      const debt = Math.min(windowMs, debtMs(key) + tokenMs)
      // Keep the order of insertion: the oldest are dropped first.
      until.delete(key)
      until.set(key, now() + debt)
      const [oldest] = until.keys()
      if (until.size > keysMax && oldest !== undefined) until.delete(oldest)
    },
    /** Ends one of them early, because its key has paid, or because it was not sent. */
    takeBack(key: string): void {
      const left = debtMs(key) - tokenMs
      if (left > 0) until.set(key, now() + left)
      else until.delete(key)
    },
    /** Seconds until the key may begin another one; 0 when it may now. */
    waitSeconds(key: string): number {
      const missingMs = debtMs(key) - (most - 1) * tokenMs
      return missingMs > 0 ? Math.ceil(missingMs / 1000) : 0
    },
  }
}
