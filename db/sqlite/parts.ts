import type { ChangeListener } from '../Ledger'
import { createAuthorizationStatements } from './authorizations'
import { createGas } from './gas'
import type { Group } from './group'
import { createJobs } from './jobs'
import type { Db } from './open'
import type { Outbox } from './outbox'
import { createPayments } from './payments'
import type { Riders } from './riders'
import { createTransactions } from './transactions'

/** The dependencies of the commits of settlement. */
export type Parts = {
  db: Db
  group: Group
  statements: Statements
  changes: ChangeListener
  riders: Riders
  outbox: Outbox
}

/** The prepared statements on payments and transactions. */
export type Statements = ReturnType<typeof createStatements>

export function createStatements(db: Db) {
  return {
    payments: createPayments(db),
    authorizations: createAuthorizationStatements(db),
    transactions: createTransactions(db),
    jobs: createJobs(db),
    gas: createGas(db),
  }
}
