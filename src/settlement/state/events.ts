type Listener = (id: string) => unknown

/** Notifications by id, emitted after the change is on the disk. */
export type Events = {
  /** Notifies the listeners after the database transaction that it is called in. */
  emit(id: string): void
  on(listener: Listener): void
  /**
   * Resolves to true when the id changes, and to false after the time, `release` or `end`. Call it
   * before you read the state: a change between reading and waiting is lost.
   */
  wait(id: string, ms: number): Wait
  /** Any id may have changed: every wait looks again. */
  wakeAll(): void
  /** Ends every wait. */
  release(): void
}

export type Wait = { changed: Promise<boolean>; end(): void }

/** Notifies its listeners synchronously. */
export type Signal = { emit(): void; on(listener: () => void): void }

export function createSignal(): Signal {
  const listeners: (() => void)[] = []
  return {
    emit() {
      for (const listener of listeners) listener()
    },
    on: (listener) => void listeners.push(listener),
  }
}

/** `fault` gets what a listener throws or rejects with. */
export function createEvents(fault: (error: unknown) => void): Events {
  const listeners: Listener[] = []
  const waits = new Map<string, Set<(isChanged: boolean) => void>>()

  const settle = (id: string, isChanged: boolean) => {
    const waiting = waits.get(id)
    waits.delete(id)
    for (const end of waiting ?? []) end(isChanged)
  }

  const notify = (id: string) => {
    settle(id, true)
    for (const listener of listeners) {
      try {
        const done = listener(id)
        if (done instanceof Promise) done.catch(fault)
      } catch (error) {
        fault(error)
      }
    }
  }

  return {
    // A database transaction is synchronous: a microtask comes after its end.
    emit(id) {
      if (listeners.length > 0 || waits.size > 0) queueMicrotask(() => notify(id))
    },
    on: (listener) => void listeners.push(listener),
    wait(id, ms) {
      const { promise: changed, resolve } = Promise.withResolvers<boolean>()
      const waiting = waits.get(id) ?? new Set()
      waits.set(id, waiting)
      const end = (isChanged: boolean) => {
        clearTimeout(timer)
        waiting.delete(end)
        if (waiting.size === 0 && waits.get(id) === waiting) waits.delete(id)
        resolve(isChanged)
      }
      const timer = setTimeout(() => end(false), ms)
      waiting.add(end)
      return { changed, end: () => end(false) }
    },
    wakeAll() {
      for (const id of [...waits.keys()]) settle(id, true)
    },
    release() {
      for (const id of [...waits.keys()]) settle(id, false)
    },
  }
}
