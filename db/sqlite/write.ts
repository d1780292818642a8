import { storageCode } from '../fault'
import type { RowsRefusal } from '../Ledger'
import type { Db } from './open'

/**
 * Runs `change` in one immediate transaction. Inside another `write` it is a savepoint of that.
 * Only SQLite may run in it: a promise is refused and rolled back, because drizzle and bun:sqlite
 * would commit before it settles. Throws what `change` throws.
 */
export function write<T>(db: Db, change: () => T extends PromiseLike<unknown> ? never : T): T {
  try {
    return runnerOf(db).immediate(change) as T
  } catch (error) {
    for (const reset of resets.get(db.sqlite) ?? []) reset()
    // SQLite may have rolled the transaction back by itself after any failed statement.
    db.storage.note(error)
    throw error
  }
}

/** As `write`, but `Db.sync` brings the commit to the disk. */
function writeEarly<T>(db: Db, change: Change<T>): T {
  return db.withoutSync(() => write(db, change))
}

/** Calls `reset` after changes of `write` were rolled back, so that no cache keeps their values. */
export function onRollback({ sqlite }: Db, reset: () => void): void {
  const others = resets.get(sqlite) ?? new Set()
  resets.set(sqlite, others.add(reset))
}

const resets = new WeakMap<Db['sqlite'], Set<() => void>>()

type Runner = { immediate(change: () => unknown): unknown }

/** Kept for each connection, because to make a runner takes longer than a small commit. */
const runners = new WeakMap<Db['sqlite'], Runner>()

function runnerOf({ sqlite }: Db): Runner {
  const known = runners.get(sqlite)
  if (known !== undefined) return known
  const made = sqlite.transaction((change: () => unknown) => {
    const result = change()
    if (result instanceof Promise) {
      result.catch(() => undefined)
      throw new TypeError('a database transaction must not wait')
    }
    return result
  })
  runners.set(sqlite, made)
  return made
}

/** Whether an error says that a UNIQUE constraint refused the row. */
export function isDuplicate(error: unknown): boolean {
  const code = codeOf(error)
  return code === 'SQLITE_CONSTRAINT_UNIQUE' || code === 'SQLITE_CONSTRAINT_PRIMARYKEY'
}

/** Whether a trigger refused the row. */
export function isBarred(error: unknown): boolean {
  return codeOf(error) === 'SQLITE_CONSTRAINT_TRIGGER'
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined
}

export type Group = ReturnType<typeof createGroup>

type Change<T> = () => T extends PromiseLike<unknown> ? never : T

type Entry = {
  run: () => unknown
  mayWait: boolean
  resolve: (value: unknown) => void
  reject: (error: unknown) => void
}
type End = { entry: Entry; value: unknown } | { entry: Entry; error: unknown }

/** Shares commits, because every commit costs time, and a sync of the disk. */
export function createGroup(db: Db) {
  let waiting: Entry[] = []
  let commits = 0
  const flush = () => {
    const entries = waiting
    if (entries.length === 0) return
    waiting = []
    commits++
    const ends = commit(db, entries)
    const isDurable = entries.some(({ mayWait }) => !mayWait)
    const synced = isDurable ? db.sync() : undefined
    for (const end of ends) {
      const { entry } = end
      if ('error' in end) entry.reject(end.error)
      else if (entry.mayWait || !synced) entry.resolve(end.value)
      else void synced.then(() => entry.resolve(end.value))
    }
  }
  const enter = <T>(change: Change<T>, mayWait: boolean) =>
    new Promise<T>((resolve, reject) => {
      // Changes that the turn's answers cause join before the check phase of the loop.
      if (waiting.length === 0) setImmediate(flush)
      waiting.push({ run: change, mayWait, resolve: resolve as Entry['resolve'], reject })
    })
  return {
    /**
     * Runs `change` together with those of the same turn of the event loop. Resolves with its result
     * once that is on the disk. Rejects with what it threw, which affects no other change. It may run
     * twice, so it must do nothing but SQLite.
     */
    add: <T>(change: Change<T>) => enter(change, false),
    /**
     * The same for changes that can be restored otherwise. They survive a killed process, but for up
     * to 100 ms a power loss may undo them. That saves the wait for the disk.
     */
    addSoon: <T>(change: Change<T>) => enter(change, true),
    /**
     * Runs `change` at once, in a commit of its own. Resolves with its result once that is on the
     * disk. Rejects with what it threw.
     */
    async run<T>(change: Change<T>): Promise<T> {
      const value = writeEarly(db, change)
      await db.sync()
      return value
    },
    /** Commits the waiting changes. */
    flush,
    /** Commits so far. */
    commits: () => commits,
  }
}

/** Commits all at once; when one of them throws, again with a savepoint for each. */
function commit(db: Db, entries: readonly Entry[]): End[] {
  const [first] = entries
  try {
    return writeEarly(db, () => entries.map((entry) => ({ entry, value: entry.run() })))
  } catch (error) {
    if (entries.length === 1 && first) return [{ entry: first, error }]
    // A full disk fails every change, so do not retry each change alone.
    if (storageCode(error) !== undefined) return entries.map((entry) => ({ entry, error }))
  }
  try {
    return writeEarly(db, () =>
      entries.map((entry): End => {
        try {
          return { entry, value: write(db, () => entry.run() as undefined) }
        } catch (error) {
          // SQLite may have ended the transaction; later statements would then commit one by one.
          if (storageCode(error) !== undefined) throw error
          return { entry, error }
        }
      }),
    )
  } catch (error) {
    return entries.map((entry) => ({ entry, error }))
  }
}

/** Rolls a transaction back because the rows of a product cannot be written. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError'
  readonly reason: RowsRefusal

  constructor(reason: RowsRefusal) {
    super(`rows refused: ${reason}`)
    this.reason = reason
  }
}
