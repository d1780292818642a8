import type { Database } from 'bun:sqlite'
import ledger from '../migrations/0001_ledger.sql' with { type: 'text' }
import {
  type About,
  type Applied,
  hashOf,
  leavesOrphans,
  type Migration,
  MigrationError,
  misfit,
  pendingOf,
  programKey,
  type Schema,
} from '../schemas'

/** In order. Embedded as text, so that the compiled binary contains them. */
export const migrations: readonly Migration[] = [{ name: '0001_ledger', sql: ledger }]

/** Reads what a database is. */
export function schemaOf(sqlite: Database): Schema {
  const hasTable = (name: string) =>
    sqlite.query('SELECT 1 FROM sqlite_schema WHERE name = ?').get(name) !== null
  const applied = hasTable('migrations')
    ? sqlite.query<Applied, []>('SELECT name, hash FROM migrations ORDER BY name').all()
    : []
  const program = hasTable('meta')
    ? sqlite
        .query<{ value: string }, [string]>('SELECT value FROM meta WHERE key = ?')
        .get(programKey)?.value
    : undefined
  return { applied, program }
}

/** Notes which program opens the database, for the message of an older one. */
export function noteProgram(sqlite: Database, program: string): void {
  if (schemaOf(sqlite).program === program) return
  sqlite.run('INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)', [programKey, program])
}

/**
 * Brings the schema up to date, all pending migrations in one transaction. Returns the names of
 * those that it applied. Throws `MigrationError` when the database does not fit this program;
 * nothing is changed then.
 */
export function migrate(
  sqlite: Database,
  now: number,
  list = migrations,
  about: About = {},
): string[] {
  sqlite.run(
    'CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL)',
  )
  const apply = sqlite.transaction(() => {
    const pending = pendingOf(schemaOf(sqlite), list, about)
    for (const { name, sql } of pending) {
      sqlite.run(sql)
      sqlite.run('INSERT INTO migrations (name, hash, applied_at) VALUES (?, ?, ?)', [
        name,
        hashOf(sql),
        now,
      ])
    }
    if (pending.length > 0) assertReferences(sqlite, about)
    return pending.map(({ name }) => name)
  })
  return apply.immediate()
}

/** Throws when a migration left a row that names a missing one. */
function assertReferences(sqlite: Database, about: About): void {
  const [fault] = sqlite.query<{ table: string }, []>('PRAGMA foreign_key_check').all()
  if (fault === undefined) return
  throw new MigrationError(leavesOrphans(fault.table, about))
}

/**
 * Why a command cannot use a database as it is, because a program of another version made it;
 * undefined when its schema is that of this program. Changes nothing.
 */
export function misfitOf(sqlite: Database, about: About = {}): string | undefined {
  return misfit(schemaOf(sqlite), migrations, about)
}
