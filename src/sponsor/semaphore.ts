/**
 * How many read the chain at once: sponsoring shares the node with payments, which must not wait for
 * a crowd that asks for free money.
 */
export type Semaphore = {
  /** Runs the work when a slot is free; undefined when too many wait already. Rejects with it. */
  run<T>(work: () => Promise<T>): Promise<T> | undefined
}

/** `max` at once, `waitingMax` behind them, oldest first. */
export function createSemaphore(max: number, waitingMax: number): Semaphore {
  const waiting: (() => void)[] = []
  let running = 0
  async function wait<T>(work: () => Promise<T>): Promise<T> {
    if (running >= max) await new Promise<void>((resolve) => waiting.push(resolve))
    // Work that ends hands its slot on, so that no other work slips in between.
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
    run: (work) => (running >= max && waiting.length >= waitingMax ? undefined : wait(work)),
  }
}
