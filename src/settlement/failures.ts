/**
 * What payers cost us in vain. A payer whose signature is proven and whose transaction then fails
 * has burnt our gas: a few times that is bad luck, then it is an attack and the payer waits. Only
 * proven signatures count here, so that junk in somebody's name cannot lock that somebody out.
 */
export type Failures = {
  /**
   * Seconds until one more payment of the payer may be sent; 0 when it may now. A payer with a
   * failure on record, and one with code (which may fail at will), has no more payments under way
   * than it may still fail. `more`: of its payments that are about to be sent.
   */
  waitSeconds(payer: string, hasCode: boolean, more?: number): number
  /** A payment of the payer is on its way, until the result is called. */
  begin(payer: string): () => void
  /** A transaction with a payment of this payer was included and failed. */
  record(payer: string): void
}

/** The time in which all failures of a payer are forgotten. */
const windowMs = 600_000
const payersMax = 10_000

/** In memory: a restart forgives. `now` is unix ms; `most`: failures that a payer has at once. */
export function createFailures(now: () => number, most = 5): Failures {
  const tokenMs = windowMs / most
  /** When a payer's bucket is full again (GCRA). */
  const fullAt = new Map<string, number>()
  const underWay = new Map<string, number>()

  const debtMs = (payer: string) => {
    const debt = (fullAt.get(payer) ?? 0) - now()
    // More than a full bucket: the clock was set back, and the time means nothing.
    return debt > windowMs ? 0 : Math.max(debt, 0)
  }

  return {
    waitSeconds(payer, hasCode, more = 0) {
      const debt = debtMs(payer)
      const missingMs = debt + tokenMs - windowMs
      if (missingMs > 0) return Math.ceil(missingMs / 1000)
      if (debt === 0 && !hasCode) return 0
      const left = Math.floor((windowMs - debt) / tokenMs)
      return (underWay.get(payer) ?? 0) + more < left ? 0 : 1
    },
    begin(payer) {
      underWay.set(payer, (underWay.get(payer) ?? 0) + 1)
      let isOver = false
      return () => {
        if (isOver) return
        isOver = true
        const left = (underWay.get(payer) ?? 0) - 1
        if (left > 0) underWay.set(payer, left)
        else underWay.delete(payer)
      }
    },
    record(payer) {
      const next = now() + Math.min(debtMs(payer) + tokenMs, windowMs)
      // Last in the order of insertion: the oldest go first.
      fullAt.delete(payer)
      fullAt.set(payer, next)
      if (fullAt.size > payersMax) forget()
    },
  }

  /** Every entry cost a failed transaction: as many as fit are far below any gas budget. */
  function forget(): void {
    const time = now()
    for (const [payer, at] of fullAt) if (at <= time) fullAt.delete(payer)
    for (const [payer] of fullAt) {
      if (fullAt.size <= payersMax) return
      fullAt.delete(payer)
    }
  }
}
