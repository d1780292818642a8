import type { Ledger } from '../Ledger'
import { createLedger } from './ledger'
import { openBeside } from './open'

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
