import { setTimeout as sleep } from 'node:timers/promises'
import { storageCode } from '../../../db/fault'
import type { Ledger } from '../../../db/Ledger'

/** Resolves after the time, or at once when the signal fires. Never rejects. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return sleep(ms, undefined, { signal }).catch(() => undefined)
}

/** The promise's value, or undefined after the time (ms). The promise continues. */
export function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  const { promise: late, resolve } = Promise.withResolvers<undefined>()
  const timer = setTimeout(() => resolve(undefined), ms)
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

/** Runs work at intervals and when it is woken, once at a time. It must not reject. */
export function createLoop(work: () => Promise<unknown>, ms: number) {
  let timer: ReturnType<typeof setInterval> | undefined
  let running: Promise<void> | undefined
  let isDue = false
  let isOver = false
  const run = async () => {
    while (isDue && !isOver) {
      isDue = false
      await work()
    }
    running = undefined
  }
  const wake = () => {
    isDue = true
    if (timer !== undefined && !isOver) running ??= run()
  }
  return {
    wake,
    start(): void {
      if (!isOver) timer ??= setInterval(wake, ms)
      wake()
    },
    async stop(): Promise<void> {
      isOver = true
      clearInterval(timer)
      await running
    },
  }
}

/**
 * Runs work of one relayer sequentially. The account nonce that a turn chooses is on the disk, or
 * free again, when the next turn starts. Work must not ask for another turn of the same relayer.
 * The result settles as the work does.
 */
export type Turn = <T>(work: () => Promise<T>) => Promise<T>

export function createTurn(): Turn {
  let last: Promise<unknown> | undefined
  return <T>(work: () => Promise<T>): Promise<T> => {
    // An uncontended turn begins at once.
    const result = last === undefined ? Promise.try(work) : last.then(work)
    const over = result.catch(() => undefined)
    last = over
    void over.then(() => {
      if (last === over) last = undefined
    })
    return result
  }
}

/**
 * Runs work for keys that are asked for, one run at a time: each for all keys that were asked for since the
 * run before began, at most `max` of them. What is asked for settles as its run does. All callers give the
 * same work.
 */
export function createBatches<Key>(max: number) {
  const waiting = new Map<Key, PromiseWithResolvers<void>>()
  let isRunning = false
  const run = async (work: (keys: readonly Key[]) => Promise<void>) => {
    isRunning = true
    while (waiting.size > 0) {
      const batch = [...waiting].slice(0, max)
      for (const [key] of batch) waiting.delete(key)
      const result = work(batch.map(([key]) => key))
      for (const [, { resolve }] of batch) resolve(result)
      await result.catch(() => undefined)
    }
    isRunning = false
  }
  return async (keys: readonly Key[], work: Parameters<typeof run>[0]): Promise<void> => {
    const asked = keys.map((key) => {
      const one = waiting.get(key) ?? Promise.withResolvers<void>()
      waiting.set(key, one)
      return one.promise
    })
    if (!isRunning) void run(work)
    await Promise.all(asked)
  }
}

/** Repeats a write while the storage fails. Rejects with any other fault. */
export async function untilWritten<T>(
  { ledger, progress }: { ledger: Pick<Ledger, 'writable'>; progress: { signal: AbortSignal } },
  change: () => Promise<T>,
): Promise<T> {
  for (;;) {
    try {
      return await change()
    } catch (error) {
      if (storageCode(error) === undefined) throw error
      await ledger.writable(progress.signal)
    }
  }
}

export type Events = ReturnType<typeof createEvents>

type Listener = (id: string) => unknown

/** Notifications by id. `fault` gets what a listener throws or rejects with. */
export function createEvents(fault: (error: unknown, id: string) => void) {
  const listeners: Listener[] = []
  const waits = new Map<string, Set<(isChanged: boolean) => void>>()

  const wake = (id: string) => {
    const waiting = waits.get(id)
    waits.delete(id)
    for (const end of waiting ?? []) end(true)
  }

  const notify = (id: string) => {
    wake(id)
    for (const listener of listeners)
      Promise.try(listener, id).catch((error: unknown) => fault(error, id))
  }

  return {
    /** Notifies the listeners after the database transaction that it is called in, in a microtask. */
    emit(id: string): void {
      if (listeners.length > 0 || waits.size > 0) queueMicrotask(() => notify(id))
    },
    on: (listener: Listener): void => void listeners.push(listener),
    /**
     * Resolves to true when the id changes, and to false after the time or `end`. Call it
     * before you read the state: a change between reading and waiting is lost.
     */
    wait(id: string, ms: number): { changed: Promise<boolean>; end(): void } {
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
    /** Any id may have changed, or the process stops: every wait looks again. */
    wakeAll(): void {
      for (const id of [...waits.keys()]) wake(id)
    },
  }
}
