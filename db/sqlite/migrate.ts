import type { Database } from 'bun:sqlite'
import payments from '../migrations/0001_payments.sql' with { type: 'text' }
import errands from '../migrations/0002_errands.sql' with { type: 'text' }
import nonceUsed from '../migrations/0003_nonce_used.sql' with { type: 'text' }
import offers from '../migrations/0004_offers.sql' with { type: 'text' }
import orders from '../migrations/0005_orders.sql' with { type: 'text' }
import grants from '../migrations/0006_grants.sql' with { type: 'text' }
import orderChange from '../migrations/0007_order_change.sql' with { type: 'text' }
import slimIndexes from '../migrations/0008_slim_indexes.sql' with { type: 'text' }
import credentialHash from '../migrations/0009_credential_hash.sql' with { type: 'text' }
import ordersDisputed from '../migrations/0010_orders_disputed.sql' with { type: 'text' }
import wastedGas from '../migrations/0011_wasted_gas.sql' with { type: 'text' }
import grantTopUps from '../migrations/0012_grant_top_ups.sql' with { type: 'text' }
import transactionsSent from '../migrations/0013_transactions_sent.sql' with { type: 'text' }
import jobs from '../migrations/0014_jobs.sql' with { type: 'text' }
import authorizations from '../migrations/0015_authorizations.sql' with { type: 'text' }
import sales from '../migrations/0016_sales.sql' with { type: 'text' }
import webhooks from '../migrations/0017_webhooks.sql' with { type: 'text' }
import failedOrders from '../migrations/0018_failed_orders.sql' with { type: 'text' }
import whole from '../migrations/whole.sql' with { type: 'text' }
import {
  type About,
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
export const migrations: readonly Migration[] = [
  { name: '0001_payments', sql: payments },
  { name: '0002_errands', sql: errands },
  { name: '0003_nonce_used', sql: nonceUsed },
  { name: '0004_offers', sql: offers },
  { name: '0005_orders', sql: orders },
  { name: '0006_grants', sql: grants },
  { name: '0007_order_change', sql: orderChange },
  { name: '0008_slim_indexes', sql: slimIndexes },
  { name: '0009_credential_hash', sql: credentialHash },
  { name: '0010_orders_disputed', sql: ordersDisputed },
  { name: '0011_wasted_gas', sql: wastedGas },
  { name: '0012_grant_top_ups', sql: grantTopUps },
  { name: '0013_transactions_sent', sql: transactionsSent },
  { name: '0014_jobs', sql: jobs },
  { name: '0015_authorizations', sql: authorizations },
  { name: '0016_sales', sql: sales },
  { name: '0017_webhooks', sql: webhooks },
  { name: '0018_failed_orders', sql: failedOrders },
]

/** Reads what a database is. It has no `last` before its first migration. */
export function schemaOf(sqlite: Database): Schema {
  const tables = sqlite
    .query<{ name: string }, []>("SELECT name FROM sqlite_schema WHERE type = 'table'")
    .all()
    .map(({ name }) => name)
  const last = tables.includes('migrations')
    ? sqlite.query<{ name: string }, []>('SELECT max(name) AS name FROM migrations').get()?.name
    : undefined
  const program = tables.includes('meta')
    ? sqlite
        .query<{ value: string }, [string]>('SELECT value FROM meta WHERE key = ?')
        .get(programKey)?.value
    : undefined
  return { last: last ?? undefined, program }
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
    const known = sqlite
      .query<{ name: string; hash: string }, []>('SELECT name, hash FROM migrations ORDER BY name')
      .all()
    const pending = pendingOf(known, list, schemaOf(sqlite), about)
    // A new database gets the tables as all migrations leave them, in a tenth of the time.
    const isNew = known.length === 0 && list === migrations
    if (isNew) sqlite.run(whole)
    for (const migration of pending) {
      if (!isNew) sqlite.run(migration.sql)
      sqlite.run('INSERT INTO migrations (name, hash, applied_at) VALUES (?, ?, ?)', [
        migration.name,
        hashOf(migration.sql),
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
