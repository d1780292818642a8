import { Database } from 'bun:sqlite'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { BesideError } from '../fault'
import type { Ledger } from '../Ledger'
import type { SalesReads } from '../sales'
import { databaseName } from './directory'
import { createLedger } from './ledger'
import { misfitOf } from './migrate'
import { openBeside } from './open'
import { createSalesReads } from './sales'

type Place = { dataDir: string }

/**
 * The ledger of a data directory whose process may be running, for commands of the operator. Write
 * only what that process expects others to write. Throws `BesideError` when there is no database,
 * or when it is of another version.
 */
export function openLedgerBeside({ dataDir }: Place): { ledger: Ledger; close(): void } {
  const db = openBeside({ dataDir })
  if (db === undefined) throw missing(dataDir)
  assertOwn(db.sqlite, db.close, dataDir)
  return { ledger: createLedger(db), close: db.close }
}

/**
 * The figures of sales of a data directory whose process may be running, or of a copy. The
 * connection cannot write. Throws `BesideError` as `openLedgerBeside` does.
 */
export function openSalesBeside({ dataDir }: Place): { sales: SalesReads; close(): void } {
  const file = join(dataDir, databaseName)
  if (!existsSync(file)) throw missing(dataDir)
  const sqlite = new Database(file, { readonly: true, strict: true })
  const close = () => sqlite.close()
  sqlite.run('PRAGMA busy_timeout = 5000')
  // 64 MiB: the transactions are found by their hashes, whose index is large.
  sqlite.run('PRAGMA cache_size = -65536')
  assertOwn(sqlite, close, dataDir)
  return { sales: createSalesReads(sqlite), close }
}

function missing(dataDir: string): BesideError {
  return new BesideError(`there is no database in ${dataDir}: name its directory by --data`)
}

function assertOwn(sqlite: Database, close: () => void, dataDir: string): void {
  const misfit = misfitOf(sqlite, { file: join(dataDir, databaseName) })
  if (misfit === undefined) return
  close()
  throw new BesideError(misfit)
}
