import type { Database } from '../Database'
import { createLedger } from './ledger'
import type { Db } from './open'
import { unused } from './statement'

/** The file of an open SQLite database, as the service uses it. */
export function databaseOf(db: Db): Database {
  return {
    ledger: createLedger(db),
    storage: db.storage,
    upgrade: db.upgrade,
    reserveLog: db.reserveLog,
    unused: () => unused(db),
    close: db.close,
  }
}
