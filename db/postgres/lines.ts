import type { ClientConfig } from 'pg'
import { DatabaseGoneError } from './errors'
import { connect, type Line, type LineOptions, type Query } from './Line'

/**
 * `commit`: its commits are on the disk when they are acknowledged. `soon`: a crash of the server may
 * undo the last ones. `read`: reads outside of commits.
 */
export type Kind = 'commit' | 'soon' | 'read'

/** The connections of a gateway to the primary, kept open. */
export type Lines = {
  /**
   * Runs work on the line of that kind which has the least to do. Rejects with DatabaseGoneError when
   * none is open within two seconds.
   */
  run<T>(kind: Kind, work: (query: Query) => Promise<T>): Promise<T>
  /** Whether a line of that kind is open and has nothing to do. */
  isIdle(kind: Kind): boolean
  storage: PostgresStorage
  close(): void
}

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

export type LinesOptions = {
  /** Hosts in the order in which they are tried. */
  servers: readonly ClientConfig[]
  /** What the storage is called. */
  name: string
  /** Statements for each new session of that kind. */
  session(kind: Kind): readonly string[]
  /** Milliseconds that never decrease. */
  monotonic: () => number
  answerMs?: number
  sizes?: Partial<Readonly<Record<Kind, number>>>
}

const sizesByDefault: Readonly<Record<Kind, number>> = { commit: 2, soon: 1, read: 2 }
const kinds = ['commit', 'soon', 'read'] as const
/** How long work waits for a connection, and how long a loss is not yet a fault. */
const graceMs = 2_000
const retryMs = 250
const goneCode = 'DATABASE_GONE'

/** Opens all lines. Rejects with the last host's error when none has a writable primary. */
export async function openLines(options: LinesOptions): Promise<Lines> {
  const watch = createWatch(options, () => run('commit', (query) => query(tryWrite)))
  const sizes = { ...sizesByDefault, ...options.sizes }
  const seats = Object.fromEntries(
    kinds.map((kind) => [
      kind,
      Array.from({ length: sizes[kind] }, () => createSeat(options, kind, watch)),
    ]),
  ) as Record<Kind, Seat[]>
  const all = Object.values(seats).flat()
  try {
    for (const seat of all) await seat.open()
  } catch (error) {
    for (const seat of all) seat.close()
    throw error
  }
  const run: Lines['run'] = async (kind, work) => {
    const [least] = seats[kind].toSorted((one, other) => one.load() - other.load())
    if (least === undefined) throw new Error(`no line of the kind ${kind}`)
    try {
      return await least.run(work)
    } catch (error) {
      if (kind !== 'read') watch.note(error)
      throw error
    }
  }
  return {
    run,
    isIdle: (kind) => seats[kind].some((seat) => seat.load() === 0),
    storage: watch.storage,
    close() {
      for (const seat of all) seat.close()
      watch.close()
    },
  }
}

/** A place of the pool: one line after the other. */
type Seat = {
  /** Opens the first line. */
  open(): Promise<void>
  run<T>(work: (query: Query) => Promise<T>): Promise<T>
  /** Work that runs or waits; more than any other while there is no connection. */
  load(): number
  close(): void
}

function createSeat(options: LinesOptions, kind: Kind, watch: Watch): Seat {
  let line: Line | undefined
  let work = 0
  let isClosed = false
  let opened = Promise.withResolvers<void>()
  opened.promise.catch(() => undefined)
  const onEnd = () => {
    const wasOpen = line !== undefined
    line = undefined
    if (isClosed || !wasOpen) return
    opened = Promise.withResolvers<void>()
    opened.promise.catch(() => undefined)
    watch.lost(seat)
    void reopen()
  }
  const open = async () => {
    line = await openAny(options, { session: options.session(kind), onEnd })
    if (isClosed) line.close()
    watch.found(seat)
    opened.resolve()
  }
  const reopen = async () => {
    while (!isClosed) {
      try {
        return await open()
      } catch {
        await Bun.sleep(retryMs)
      }
    }
  }
  const seat: Seat = {
    open,
    async run(job) {
      work++
      try {
        if (line === undefined) await withinGrace(opened.promise)
        if (line === undefined) throw gone()
        return await line.run(job)
      } finally {
        work--
      }
    },
    load: () => (line === undefined ? 1_000_000 : 0) + work,
    close() {
      isClosed = true
      opened.reject(gone())
      line?.close()
    },
  }
  return seat
}

async function withinGrace(opened: Promise<void>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(gone()), graceMs)
  })
  await Promise.race([opened, late]).finally(() => clearTimeout(timer))
}

function gone(): DatabaseGoneError {
  return new DatabaseGoneError('there is no connection to the database', { mayHaveRun: false })
}

/** The first host whose server is a primary that can be written. */
async function openAny(
  { servers, answerMs }: LinesOptions,
  { session, onEnd }: Pick<LineOptions, 'session' | 'onEnd'>,
): Promise<Line> {
  let last: unknown
  for (const client of servers) {
    try {
      const line = await connect({ client, session, onEnd, ...(answerMs && { answerMs }) })
      const [row] = await line.run((query) =>
        query<{ standby: boolean }>(
          "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS standby",
        ),
      )
      if (row?.standby === false) return line
      line.close()
      last = new DatabaseGoneError(`${client.host ?? 'the server'} is not writable`, {
        mayHaveRun: false,
      })
    } catch (error) {
      last = error
    }
  }
  throw last
}

type Watch = {
  storage: PostgresStorage
  /** A line was lost; its seat tries to open another. */
  lost(seat: Seat): void
  found(seat: Seat): void
  /** An error of a write. */
  note(error: unknown): void
  close(): void
}

/** Commits 64 KiB: a smaller write could succeed where a payment does not fit. */
const tryWrite = `INSERT INTO meta (key, value) VALUES ('storage-probe', repeat(' ', 65536))
  ON CONFLICT (key) DO UPDATE SET value = excluded.value`

/**
 * A fault begins when a line is missing for two seconds, or when the server cannot write. The second
 * ends when `probe` succeeds.
 */
function createWatch({ name, monotonic }: LinesOptions, probe: () => Promise<unknown>): Watch {
  const counts = new Map<string, number>()
  const listeners: ((code: string | undefined) => void)[] = []
  const waiting = new Set<() => void>()
  const missing = new Map<Seat, number>()
  let isFull = false
  let isProbing = false
  let isFault = false
  let timer: ReturnType<typeof setInterval> | undefined

  const change = (next: boolean) => {
    if (next === isFault) return
    isFault = next
    const code = next ? goneCode : undefined
    if (next) counts.set(goneCode, (counts.get(goneCode) ?? 0) + 1)
    for (const listener of listeners) listener(code)
  }
  const look = () => {
    const now = monotonic()
    const isLate = [...missing.values()].some((since) => now - since >= graceMs)
    if (isFull && !isProbing) void tryAgain()
    change(isLate || isFull)
    if (missing.size > 0 || isFault) return
    for (const resume of waiting) resume()
    waiting.clear()
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
      change(true)
      begin()
    },
    close() {
      clearInterval(timer)
    },
    storage: {
      file: name,
      name,
      fault: () => (isFault ? goneCode : undefined),
      counts: () => counts,
      onChange: (listener) => void listeners.push(listener),
      writable(signal) {
        const stopped = () => new Error('stopped before the database could be written')
        if (signal.aborted) return Promise.reject(stopped())
        if (!isFault && missing.size === 0) return Promise.resolve()
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
          begin()
        })
      },
    },
  }
}
