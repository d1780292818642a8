/**
 * Limits the concurrent reads of the chain. Sponsoring shares the node with payments, which must
 * not wait for many free requests.
 */
export type Semaphore = {
  /** Runs the work when a slot is free; undefined when too many wait already. Rejects with it. */
  run<T>(work: () => Promise<T>): Promise<T> | undefined
}

/** `max` run at once, `waitingMax` wait, oldest first. */
export function createSemaphore(max: number, waitingMax: number): Semaphore {
  const waiting: (() => void)[] = []
  let running = 0
  async function wait<T>(work: () => Promise<T>): Promise<T> {
    if (running >= max) await new Promise<void>((resolve) => waiting.push(resolve))
    // Work that ends passes its slot on, so that no other work takes it in between.
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
