import { DatabaseGoneError } from './errors'

/** Whether the database can be written; the shape of db/sqlite/storage.ts. */
export type PostgresStorage = {
  /** Host and name of the database, without credentials. */
  file: string
  name: string
  /** `DATABASE_GONE` while nothing could be written for two seconds. */
  fault(): string | undefined
  /** Faults since the start, by code. */
  counts(): ReadonlyMap<string, number>
  onChange(listener: (code: string | undefined) => void): void
  /** Resolves when the database can be written; rejects when the signal fires. */
  writable(signal: AbortSignal): Promise<void>
}

/** How long work waits for a connection, and how long a loss is not yet a fault, ms. */
export const graceMs = 2_000
/** How often a lost connection is tried again, ms. */
export const retryMs = 250
const goneCode = 'DATABASE_GONE'

/** The name of the storage, and a clock. */
type WatchOptions = {
  name: string
  /** Milliseconds that never decrease. */
  monotonic: () => number
}

export type Watch = {
  storage: PostgresStorage
  /** A line was lost; its seat tries to open another. */
  lost(seat: object): void
  found(seat: object): void
  /** An error of a write. */
  note(error: unknown): void
  close(): void
}

/** Commits 64 KiB: a smaller write could succeed where a payment does not fit. */
export const tryWrite = `INSERT INTO meta (key, value) VALUES ('storage-probe', repeat(' ', 65536))
  ON CONFLICT (key) DO UPDATE SET value = excluded.value`

/**
 * A fault begins when a line is missing for two seconds, or when the server cannot write. The second
 * ends when `probe` succeeds.
 */
export function createWatch(
  { name, monotonic }: WatchOptions,
  probe: () => Promise<unknown>,
): Watch {
  const fault = createFault()
  const waiting = createWaiting()
  const missing = new Map<object, number>()
  let isFull = false
  let isProbing = false
  let timer: ReturnType<typeof setInterval> | undefined

  const look = () => {
    const now = monotonic()
    const isLate = [...missing.values()].some((since) => now - since >= graceMs)
    if (isFull && !isProbing) void tryAgain()
    fault.change(isLate || isFull)
    if (missing.size > 0 || fault.isOn()) return
    waiting.resume()
    clearInterval(timer)
    timer = undefined
  }
  const tryAgain = async () => {
    isProbing = true
    await probe().then(
      () => {
        isFull = false
      },
      () => undefined,
    )
    isProbing = false
  }
  const begin = () => {
    timer ??= setInterval(look, retryMs)
    timer.unref()
  }
  return {
    lost(seat) {
      missing.set(seat, monotonic())
      begin()
    },
    found(seat) {
      missing.delete(seat)
    },
    note(error) {
      const isRefusal = error instanceof DatabaseGoneError && !error.mayHaveRun && error.cause
      if (!isRefusal) return
      isFull = true
      fault.change(true)
      begin()
    },
    close() {
      clearInterval(timer)
    },
    storage: {
      file: name,
      name,
      fault: () => (fault.isOn() ? goneCode : undefined),
      counts: fault.counts,
      onChange: fault.onChange,
      writable(signal) {
        if (!fault.isOn() && missing.size === 0 && !signal.aborted) return Promise.resolve()
        begin()
        return waiting.wait(signal)
      },
    },
  }
}

/** Holds whether there is a fault and how often one began, and calls the listeners. */
function createFault() {
  const counts = new Map<string, number>()
  const listeners: ((code: string | undefined) => void)[] = []
  let isOn = false
  return {
    isOn: () => isOn,
    counts: () => counts,
    onChange: (listener: (code: string | undefined) => void) => void listeners.push(listener),
    change(next: boolean) {
      if (next === isOn) return
      isOn = next
      if (next) counts.set(goneCode, (counts.get(goneCode) ?? 0) + 1)
      for (const listener of listeners) listener(next ? goneCode : undefined)
    },
  }
}

/** The promises that resolve when the database can be written. */
function createWaiting() {
  const waiting = new Set<() => void>()
  return {
    resume() {
      for (const each of waiting) each()
      waiting.clear()
    },
    wait(signal: AbortSignal): Promise<void> {
      const stopped = () => new Error('stopped before the database could be written')
      if (signal.aborted) return Promise.reject(stopped())
      return new Promise((resolve, reject) => {
        const fail = () => {
          waiting.delete(resume)
          reject(stopped())
        }
        const resume = () => {
          signal.removeEventListener('abort', fail)
          resolve()
        }
        waiting.add(resume)
        signal.addEventListener('abort', fail, { once: true })
      })
    },
  }
}
