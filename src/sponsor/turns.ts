/**
 * How many look at the chain at once: sponsoring shares the node with payments, which must not wait for
 * a crowd that asks for free money.
 */
export type Turns = {
  /** Runs the work when its turn comes; undefined when too many wait already. Rejects with it. */
  take<T>(work: () => Promise<T>): Promise<T> | undefined
}

/** `max` at once, `waitingMax` behind them, oldest first. */
export function createTurns(max: number, waitingMax: number): Turns {
  const waiting: (() => void)[] = []
  let running = 0
  async function run<T>(work: () => Promise<T>): Promise<T> {
    if (running >= max) await new Promise<void>((resolve) => waiting.push(resolve))
    // Work that ends hands its place on, so that no other work slips in between.
    else running++
    try {
      return await work()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else running--
    }
  }
  return {
    take: (work) => (running >= max && waiting.length >= waitingMax ? undefined : run(work)),
  }
}
