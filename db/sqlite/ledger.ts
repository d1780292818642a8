import { createAuthorizationReads } from '../authorization-reads'
import type { Database } from '../Database'
import { ownFailures } from '../FailureLedger'
import { ownLanes } from '../LaneLedger'
import type { ChangeListener, Ledger } from '../Ledger'
import { createPaymentReads } from '../payment-reads'
import { createJobReads, createTransactionReads } from '../transaction-reads'
import { createAdmin } from './admin'
import { createAnswers } from './answers'
import { createAuthorizations } from './authorizations'
import { createDeliveries } from './deliveries'
import { createGrants } from './grants'
import { createGroup } from './group'
import { createOffers } from './offers'
import type { Db } from './open'
import { createOrders } from './orders'
import { createOutbox } from './outbox'
import { createStatements } from './parts'
import { createSales } from './sales'
import { createSettling } from './settling'
import { selectsOf, unused } from './statement'
import { createWebhooks } from './webhooks'

/** The ledger of an open SQLite database. Every function is synchronous inside. */
export function createLedger(db: Db): Ledger {
  const listeners: ChangeListener[] = []
  const changes: ChangeListener = {
    payment(id) {
      for (const listener of listeners) listener.payment(id)
    },
    job(id) {
      for (const listener of listeners) listener.job(id)
    },
  }
  const group = createGroup(db)
  const selects = selectsOf(db)
  const statements = createStatements(db)
  const outbox = createOutbox(db)
  const orders = createOrders(db, outbox)
  const grants = createGrants(db, outbox)
  const riders = { orders: orders.riders, grants: grants.riders }
  const payments = createPaymentReads(selects)
  const authorizations = createAuthorizations(
    group,
    statements.authorizations,
    createAuthorizationReads(selects),
  )
  return {
    payments,
    transactions: createTransactionReads(selects),
    jobs: createJobReads(selects),
    settling: createSettling({ db, group, statements, changes, riders, outbox }),
    deliveries: createDeliveries(group, statements, outbox),
    gas: { spentOn: statements.gas.gasSpentOn, wastedOn: statements.gas.gasWastedOn },
    answers: createAnswers(db),
    authorizations,
    offers: createOffers(db),
    orders: orders.ledger,
    grants: grants.ledger,
    webhooks: createWebhooks(db, group, outbox),
    sales: createSales(db),
    admin: createAdmin(db, { payments, authorizations, orders: orders.ledger }),
    failures: ownFailures,
    lanes: ownLanes,
    fault: db.storage.fault,
    writable: db.storage.writable,
    onChange: (listener) => void listeners.push(listener),
    flush: group.flush,
  }
}

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
