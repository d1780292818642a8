import { Database } from 'bun:sqlite'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { schemaOf } from './migrate'

/** Where the rows of a file are now. */
type Moved = {
  /** Id of the PostgreSQL database. */
  id: string
  /** Its hosts and its name. */
  to: string
  /** Unix ms. */
  at: number
}

/** Key in the table `meta`. */
const movedKey = 'moved'

/** The file was moved to a server, which has its rows and its account nonces now. */
export class DatabaseMovedError extends Error {
  override readonly name = 'DatabaseMovedError'

  constructor(file: string, { to, at }: Moved) {
    super(
      `${file} was moved to PostgreSQL (${to}) at ${new Date(at).toISOString()}: set DATABASE_URL. ` +
        'Two services with the same keys would send transactions with the same account nonces',
    )
  }
}

/** Where the rows of an open file were moved; undefined when they were not. */
export function movedOf(sqlite: Database): Moved | undefined {
  if (schemaOf(sqlite).applied.length === 0) return undefined
  const row = sqlite
    .query<{ value: string }, [string]>('SELECT value FROM meta WHERE key = ?')
    .get(movedKey)
  return row === null ? undefined : JSON.parse(row.value)
}

/** Throws `DatabaseMovedError` for a file whose rows a server has. Call it before any write. */
export function assertNotMoved(sqlite: Database, file: string): void {
  const moved = movedOf(sqlite)
  if (moved !== undefined) throw new DatabaseMovedError(file, moved)
}

/** Marks a file as moved. On the disk on return. */
export function markMoved(sqlite: Database, moved: Moved): void {
  sqlite.run('INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)', [
    movedKey,
    JSON.stringify(moved),
  ])
}

/** Takes the mark back, because nothing was moved. */
export function unmarkMoved(sqlite: Database): void {
  sqlite.run('DELETE FROM meta WHERE key = ?', [movedKey])
}

/** What the data directory has of a service with a file: whether there are rows, and where they went. */
export function fileState(
  dataDir: string,
  name: string,
): { file: string; moved?: Moved } | undefined {
  const file = join(dataDir, name)
  if (!existsSync(file)) return undefined
  const sqlite = new Database(file, { readonly: true })
  try {
    sqlite.run('PRAGMA busy_timeout = 5000')
    if (schemaOf(sqlite).applied.length === 0) return undefined
    const moved = movedOf(sqlite)
    if (moved !== undefined) return { file, moved }
    // A file without transactions has no money in it.
    return sqlite.query('SELECT 1 FROM transactions').get() === null ? undefined : { file }
  } finally {
    sqlite.close()
  }
}
