import type { ClientConfig } from 'pg'
import type { StorageFaults } from '../Database'
import { createFaultState } from '../fault'
import { DatabaseGoneError } from './errors'
import { searchFunctions } from './functions'
import type { Line, Query } from './Line'
import { isOlder, openPrimary, type Place } from './reach'

/**
 * `commit`: its commits are on the disk when they are acknowledged. `soon`: a crash of the server may
 * undo the last ones. `read`: reads outside of commits. `beat`: signs of life, lanes and notifications.
 */
export type Kind = 'commit' | 'soon' | 'read' | 'beat'

/** The connections of a gateway to the newest primary that it has seen, kept open. */
export type Lines = {
  /**
   * Runs work on the line of that kind which has the least to do. Rejects with DatabaseGoneError when
   * none is open within two seconds.
   */
  run<T>(kind: Kind, work: (query: Query) => Promise<T>): Promise<T>
  /** Whether work of that kind would begin at once. True without a connection, for which it waits. */
  isIdle(kind: Kind): boolean
  /** Calls `listener` after each piece of work of that kind, whichever part has asked for it. */
  onEnd(kind: Kind, listener: () => void): void
  storage: PostgresStorage
  /** Whether `close` was called: nothing runs any more. */
  isClosed(): boolean
  close(): void
}

export type LinesOptions = {
  /** The ways to connect to every host. */
  servers: readonly ClientConfig[]
  /** What the storage is called. */
  name: string
  /** Statements for each new session of that kind. */
  session(kind: Kind): readonly string[]
  /** A notification that the line `beat` has received. */
  onNotification?: (payload: string) => void
  /** The newest primary that is known. An older one is not used. */
  place?: Place
  /** A newer primary is used from now on. */
  onPlace?: (place: Place) => void
  /** Milliseconds that never decrease. */
  monotonic: () => number
  answerMs?: number
  sizes?: Partial<Readonly<Record<Kind, number>>>
}

const sizesByDefault: Readonly<Record<Kind, number>> = {
  commit: 2,
  soon: 1,
  read: 2,
  beat: 1,
}
const kinds = ['commit', 'soon', 'read', 'beat'] as const
/** Opens all lines. Rejects with NoPrimaryError when no host has a primary that can be used. */
export async function openLines(options: LinesOptions): Promise<Lines> {
  const watch = createWatch(options, () => run('commit', (query) => query(tryWrite)))
  const sizes = { ...sizesByDefault, ...options.sizes }
  const seats = Object.fromEntries(
    kinds.map((kind) => [
      kind,
      Array.from({ length: sizes[kind] }, () => createSeat(options, kind, { watch, accept })),
    ]),
  ) as Record<Kind, Seat[]>
  const all = Object.values(seats).flat()
  const listeners = new Map<Kind, (() => void)[]>()
  let isClosed = false
  let newest = options.place
  function accept(place: Place): boolean {
    if (newest !== undefined && isOlder(place, newest)) return false
    const isNewer = newest !== undefined && isOlder(newest, place)
    newest = place
    if (isNewer) {
      for (const seat of all) seat.leave()
      options.onPlace?.(place)
    }
    return true
  }
  try {
    await Promise.all(all.map((seat) => seat.open()))
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
    } finally {
      for (const listener of listeners.get(kind) ?? []) listener()
    }
  }
  return {
    run,
    isIdle: (kind) => seats[kind].some((seat) => seat.isIdle()),
    onEnd: (kind, listener) => void listeners.set(kind, [...(listeners.get(kind) ?? []), listener]),
    storage: watch.storage,
    isClosed: () => isClosed,
    close() {
      isClosed = true
      for (const seat of all) seat.close()
      watch.close()
    },
  }
}

type Seat = ReturnType<typeof createSeat>

type Shared = {
  watch: Watch
  /** Whether no line has led to a newer primary. When this one is newer, the other lines leave theirs. */
  accept: (place: Place) => boolean
}

/** A place of the pool: one line after the other. */
function createSeat(options: LinesOptions, kind: Kind, { watch, accept }: Shared) {
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
    const { onNotification } = options
    const listens = kind === 'beat' && onNotification !== undefined
    const { line: opening, place } = await openPrimary(options.servers, {
      session: listens ? [...options.session(kind), 'LISTEN turnpike'] : options.session(kind),
      answerMs: options.answerMs,
      onEnd,
      ...(listens && { onNotification: (_, payload) => onNotification(payload) }),
    })
    if (!accept(place)) {
      opening.close()
      throw gone()
    }
    line = opening
    // What was notified meanwhile is unknown: an empty notification says that all may have changed.
    if (listens) onNotification('{}')
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
  const seat = {
    /** Opens the first line. */
    open,
    async run<T>(job: (query: Query) => Promise<T>): Promise<T> {
      work++
      try {
        if (line === undefined) await withinGrace(opened.promise)
        if (line === undefined) throw gone()
        return await line.run(job)
      } finally {
        work--
      }
    },
    isIdle: () => work === 0,
    /** Work that runs or waits; more than any other while there is no connection. */
    load: () => (line === undefined ? 1_000_000 : 0) + work,
    /** Ends its line and opens another, because its server is an old primary. */
    leave: () => line?.close(),
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

/** Whether the database can be written: `DATABASE_GONE` while nothing could be for two seconds. */
type PostgresStorage = StorageFaults & {
  /** Resolves when the database can be written; rejects when the signal fires. */
  writable(signal: AbortSignal): Promise<void>
}

/** How long work waits for a connection, and how long a loss is not yet a fault, ms. */
const graceMs = 2_000
/** How often a lost connection is tried again, ms. */
const retryMs = 250
const goneCode = 'DATABASE_GONE'

/** The name of the storage, and a clock. */
type WatchOptions = {
  name: string
  /** Milliseconds that never decrease. */
  monotonic: () => number
}

type Watch = ReturnType<typeof createWatch>

/** Commits 64 KiB: a smaller write could succeed where a payment does not fit. */
const tryWrite = `INSERT INTO meta (key, value) VALUES ('storage-probe', repeat(' ', 65536))
  ON CONFLICT (key) DO UPDATE SET value = excluded.value`

/**
 * A fault begins when a line is missing for two seconds, or when the server cannot write. The second
 * ends when `probe` succeeds.
 */
function createWatch({ name, monotonic }: WatchOptions, probe: () => Promise<unknown>) {
  const state = createFaultState()
  const missing = new Map<object, number>()
  let isFull = false
  let isProbing = false
  let timer: ReturnType<typeof setInterval> | undefined

  const change = (isOn: boolean) => {
    if (isOn && state.fault() === undefined) state.count(goneCode)
    state.change(isOn ? goneCode : undefined)
  }
  const look = () => {
    const now = monotonic()
    const isLate = [...missing.values()].some((since) => now - since >= graceMs)
    if (isFull && !isProbing) void tryAgain()
    change(isLate || isFull)
    if (missing.size > 0 || state.fault() !== undefined) return
    state.resume()
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
    /** A line was lost; its seat tries to open another. */
    lost(seat: object) {
      missing.set(seat, monotonic())
      begin()
    },
    found(seat: object) {
      missing.delete(seat)
    },
    /** An error of a write. */
    note(error: unknown) {
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
      fault: state.fault,
      counts: state.counts,
      onChange: state.onChange,
      writable(signal: AbortSignal): Promise<void> {
        const isOpen = state.fault() === undefined && missing.size === 0
        if (isOpen && !signal.aborted) return Promise.resolve()
        begin()
        return state.wait(signal)
      },
    },
  }
}

/**
 * A commit finds a few rows by their keys. The planner prefers to read a small table whole, and keeps
 * that plan when the table has grown.
 */
const plansByKey = [
  'SET enable_seqscan = off',
  'SET enable_hashjoin = off',
  'SET enable_mergejoin = off',
  // Otherwise each call plans again those statements whose plan may depend on the values.
  'SET plan_cache_mode = force_generic_plan',
]

/**
 * Statements that prepare a session: limits, so that no statement or lock of a process that is gone
 * stays, and what an acknowledged commit means.
 */
export function sessionOf(kind: Kind, statementMs = 5_000): readonly string[] {
  return [
    `SET statement_timeout = ${statementMs}`,
    'SET lock_timeout = 2000',
    'SET idle_in_transaction_session_timeout = 5000',
    // Compiling a plan takes longer than any of these statements.
    'SET jit = off',
    'SET default_transaction_isolation = "read committed"',
    `SET synchronous_commit = ${kind === 'soon' ? 'off' : 'on'}`,
    ...(kind === 'commit' || kind === 'soon' ? plansByKey : []),
    searchFunctions(),
  ]
}
