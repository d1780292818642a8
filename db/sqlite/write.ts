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
