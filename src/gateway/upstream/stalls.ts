/** Answers that wait for buyers that do not read. */
export type Stalls = ReturnType<typeof createStalls>

const checksOfGrace = 4

/**
 * Limits the answers that stand still. While its buyer does not read, the runtime holds about 2 MB
 * of an answer that comes fast, and no setting reduces that. A buyer of many answers would fill the
 * memory long before each of them is too slow. The answers that have waited longest are cut: at
 * most `max` wait for longer than `graceMs`.
 */
export function createStalls({ max, graceMs = 1_000 }: { max: number; graceMs?: number }) {
  /**
   * By answer, the check at which it began to wait, in that order. Most waits are short: a chunk
   * costs one entry.
   */
  const waiting = new Map<() => void, number>()
  let checks = 0
  let timer: ReturnType<typeof setInterval> | undefined

  /** Runs only while too many answers wait, so that time before that does not count. */
  const check = () => {
    checks++
    for (const [shed, since] of waiting) {
      if (waiting.size <= max || checks - since <= checksOfGrace) break
      waiting.delete(shed)
      shed()
    }
    if (waiting.size > max) return
    clearInterval(timer)
    timer = undefined
  }
  return {
    /** Watches an answer. `shed` is called once when it is cut in favour of others. */
    watch: (shed: () => void) => ({
      /** Bytes wait for the buyer from now on. */
      put(): void {
        waiting.delete(shed)
        waiting.set(shed, checks)
        if (waiting.size > max) timer ??= setInterval(check, graceMs / checksOfGrace)
      },
      /** The buyer has room again, or the answer has ended. */
      taken: () => void waiting.delete(shed),
    }),
  }
}
