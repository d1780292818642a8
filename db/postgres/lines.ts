import type { ClientConfig } from 'pg'
import { DatabaseGoneError } from './errors'
import { connect, type Line, type LineOptions, type Query } from './Line'
import { createWatch, graceMs, type PostgresStorage, retryMs, tryWrite, type Watch } from './watch'

/**
 * `commit`: its commits are on the disk when they are acknowledged. `soon`: a crash of the server may
 * undo the last ones. `read`: reads outside of commits. `beat`: signs of life, lanes and notifications.
 */
export type Kind = 'commit' | 'soon' | 'read' | 'beat'

/** The connections of a gateway to the primary, kept open. */
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
  /** Hosts in the order in which they are tried. */
  servers: readonly ClientConfig[]
  /** What the storage is called. */
  name: string
  /** Statements for each new session of that kind. */
  session(kind: Kind): readonly string[]
  /** A notification that the line `beat` has received. */
  onNotification?: (payload: string) => void
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
  const listeners = new Map<Kind, (() => void)[]>()
  let isClosed = false
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

/** A place of the pool: one line after the other. */
type Seat = {
  /** Opens the first line. */
  open(): Promise<void>
  run<T>(work: (query: Query) => Promise<T>): Promise<T>
  /** Work that runs or waits; more than any other while there is no connection. */
  load(): number
  isIdle(): boolean
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
    const { onNotification } = options
    const listens = kind === 'beat' && onNotification !== undefined
    line = await openAny(options, {
      session: listens ? [...options.session(kind), 'LISTEN turnpike'] : options.session(kind),
      onEnd,
      ...(listens && { onNotification: (_, payload) => onNotification(payload) }),
    })
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
    isIdle: () => work === 0,
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
  { session, onEnd, onNotification }: Pick<LineOptions, 'session' | 'onEnd' | 'onNotification'>,
): Promise<Line> {
  let last: unknown
  for (const client of servers) {
    try {
      const line = await connect({
        client,
        session,
        onEnd,
        ...(onNotification && { onNotification }),
        ...(answerMs && { answerMs }),
      })
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
  if (last instanceof DatabaseGoneError) throw last
  const reason = last instanceof Error ? last.message : 'no connection'
  throw new DatabaseGoneError(reason, { mayHaveRun: false, cause: last })
}
