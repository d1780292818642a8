import { createAuthorizationStatements } from './authorizations'
import { createGas } from './gas'
import { createJobs } from './jobs'
import type { Db } from './open'
import { createPayments } from './payments'
import { createTransactions } from './transactions'

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
