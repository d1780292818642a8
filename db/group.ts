import type { Db } from './open'
import { write } from './write'

/** Shares commits: a commit costs a flush of the disk, however many changes are in it. */
export type Group = {
  /**
   * Runs `change` together with those of the same turn of the event loop. Resolves with its result
   * once that is on the disk; rejects with what it threw, which touches no other change. It may run
   * twice, so it must do nothing but SQLite.
   */
  add<T>(change: () => T extends PromiseLike<unknown> ? never : T): Promise<T>
  /** Commits what waits now. */
  flush(): void
  /** Commits so far. */
  commits(): number
}

type Entry = { run: () => unknown; resolve: (value: unknown) => void; reject: (e: unknown) => void }
type End = { entry: Entry; value: unknown } | { entry: Entry; error: unknown }

export function createGroup(db: Db): Group {
  let waiting: Entry[] = []
  let commits = 0
  const flush = () => {
    const entries = waiting
    if (entries.length === 0) return
    waiting = []
    commits++
    for (const end of commit(db, entries)) {
      if ('error' in end) end.entry.reject(end.error)
      else end.entry.resolve(end.value)
    }
  }
  return {
    add<T>(change: () => T extends PromiseLike<unknown> ? never : T): Promise<T> {
      return new Promise<T>((resolve, reject) => {
        // Everything that the turn's answers set off joins before the check phase of the loop.
        if (waiting.length === 0) setImmediate(flush)
        waiting.push({ run: change, resolve: resolve as Entry['resolve'], reject })
      })
    },
    flush,
    commits: () => commits,
  }
}

/** All at once; when one of them throws, again with a savepoint for each. */
function commit(db: Db, entries: readonly Entry[]): End[] {
  const [first] = entries
  try {
    return write(db, () => entries.map((entry) => ({ entry, value: entry.run() })))
  } catch (error) {
    if (entries.length === 1 && first) return [{ entry: first, error }]
  }
  try {
    return write(db, () =>
      entries.map((entry): End => {
        try {
          return { entry, value: write(db, () => entry.run() as undefined) }
        } catch (error) {
          return { entry, error }
        }
      }),
    )
  } catch (error) {
    return entries.map((entry) => ({ entry, error }))
  }
}
