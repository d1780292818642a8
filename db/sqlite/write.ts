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
    for (const forget of forgetful.get(db.sqlite) ?? []) forget()
    // SQLite may have rolled the transaction back by itself after any failed statement.
    db.storage.note(error)
    throw error
  }
}

/** Calls `forget` whenever changes of `write` were rolled back: what is cached of them is void. */
export function onRollback({ sqlite }: Db, forget: () => void): void {
  const others = forgetful.get(sqlite) ?? new Set()
  forgetful.set(sqlite, others.add(forget))
}

const forgetful = new WeakMap<Db['sqlite'], Set<() => void>>()

type Runner = { immediate(change: () => unknown): unknown }

/** Made once for each connection: to make one takes longer than a small commit. */
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
  const code = codeOf(error) ?? codeOf(error instanceof Error ? error.cause : undefined)
  return code === 'SQLITE_CONSTRAINT_UNIQUE' || code === 'SQLITE_CONSTRAINT_PRIMARYKEY'
}

/** Whether a trigger refused the row. */
export function isBarred(error: unknown): boolean {
  const code = codeOf(error) ?? codeOf(error instanceof Error ? error.cause : undefined)
  return code === 'SQLITE_CONSTRAINT_TRIGGER'
}

function codeOf(error: unknown): unknown {
  return error instanceof Error && 'code' in error ? error.code : undefined
}
