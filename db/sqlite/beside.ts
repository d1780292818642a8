import { Database } from 'bun:sqlite'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Ledger } from '../Ledger'
import type { SalesReads } from '../SalesLedger'
import { createLedger } from './ledger'
import { databaseName, openBeside } from './open'
import { createSalesReads } from './sales'

export type LedgerBeside = { ledger: Ledger; close(): void }

/**
 * The ledger of a data directory whose process may be running, for commands of the operator. Write
 * only what that process expects others to write. `missing`: there is no database. `old`: its table
 * of orders lacks a column of this version, or it has no `table`.
 */
export function openLedgerBeside(options: {
  dataDir: string
  table?: string
}): LedgerBeside | 'missing' | 'old' {
  const db = openBeside(options)
  if (db === undefined) return 'missing'
  const newest = "SELECT name FROM pragma_table_info('orders') WHERE name = 'returned_atomic'"
  const named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
  const { table = 'orders' } = options
  if (db.sqlite.query(newest).get() === null || db.sqlite.query(named).get(table) === null) {
    db.close()
    return 'old'
  }
  return { ledger: createLedger(db), close: db.close }
}

export type SalesBeside = { sales: SalesReads; close(): void }

/**
 * The figures of sales of a data directory whose process may be running, or of a copy. The
 * connection cannot write. `missing`: there is no database. `old`: it lacks tables of this version.
 */
export function openSalesBeside(options: { dataDir: string }): SalesBeside | 'missing' | 'old' {
  const file = join(options.dataDir, databaseName)
  if (!existsSync(file)) return 'missing'
  const sqlite = new Database(file, { readonly: true, strict: true })
  sqlite.run('PRAGMA busy_timeout = 5000')
  // 64 MiB: the transactions are found by their hashes, whose index is large.
  sqlite.run('PRAGMA cache_size = -65536')
  const newest = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name = 'own_accounts'"
  if (sqlite.query(newest).get() === null) {
    sqlite.close()
    return 'old'
  }
  return { sales: createSalesReads(sqlite), close: () => sqlite.close() }
}
