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

/** In order. Embedded as text, so that the compiled binary contains them. */
export const migrations: readonly { name: string; sql: string }[] = [
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
]

/** The database was written by a newer program, or a migration was changed after it ran. */
export class MigrationError extends Error {
  override name = 'MigrationError'
}

/**
 * Brings the schema up to date, all pending migrations in one transaction. Throws `MigrationError`
 * when the database does not fit this program; nothing is changed then.
 */
export function migrate(sqlite: Database, now: number, list = migrations): void {
  sqlite.run(
    'CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL)',
  )
  const apply = sqlite.transaction(() => {
    const known = sqlite
      .query<{ name: string; hash: string }, []>('SELECT name, hash FROM migrations ORDER BY name')
      .all()
    for (const [index, row] of known.entries()) {
      const migration = list[index]
      if (migration?.name !== row.name) {
        throw new MigrationError(`the database has the migration ${row.name}: use a newer program`)
      }
      if (hashOf(migration.sql) !== row.hash) {
        throw new MigrationError(`the migration ${row.name} is not the one that was applied`)
      }
    }
    for (const migration of list.slice(known.length)) {
      sqlite.run(migration.sql)
      sqlite.run('INSERT INTO migrations (name, hash, applied_at) VALUES (?, ?, ?)', [
        migration.name,
        hashOf(migration.sql),
        now,
      ])
    }
  })
  apply.immediate()
}

function hashOf(text: string): string {
  return new Bun.CryptoHasher('sha256').update(text).digest('hex')
}
