/** Tells whoever listens which of many things has changed, after the change is on the disk. */
export type Bell = {
  /** Rings in this turn of the event loop, after the database transaction that it is called in. */
  ring(id: string): void
  on(listener: (id: string) => void): void
  /** Resolves to true when it rings for this id, to false after the time or `release`. */
  wait(id: string, ms: number): Promise<boolean>
  /** Ends every wait. */
  release(): void
}

/** `fault` is told what a listener throws. */
export function createBell(fault: (error: unknown) => void): Bell {
  const listeners: ((id: string) => void)[] = []
  const waiters = new Map<string, Set<(rang: boolean) => void>>()

  const wake = (id: string, rang: boolean) => {
    const waiting = waiters.get(id)
    waiters.delete(id)
    for (const end of waiting ?? []) end(rang)
  }

  const tell = (id: string) => {
    wake(id, true)
    for (const listener of listeners) {
      try {
        listener(id)
      } catch (error) {
        fault(error)
      }
    }
  }

  return {
    // A database transaction is synchronous: a microtask comes after its end.
    ring(id) {
      if (listeners.length > 0 || waiters.size > 0) queueMicrotask(() => tell(id))
    },
    on: (listener) => void listeners.push(listener),
    wait(id, ms) {
      return new Promise((resolve) => {
        const waiting = waiters.get(id) ?? new Set()
        waiters.set(id, waiting)
        const end = (rang: boolean) => {
          clearTimeout(timer)
          waiting.delete(end)
          if (waiting.size === 0 && waiters.get(id) === waiting) waiters.delete(id)
          resolve(rang)
        }
        const timer = setTimeout(() => end(false), ms)
        waiting.add(end)
      })
    },
    release() {
      for (const id of [...waiters.keys()]) wake(id, false)
    },
  }
}
