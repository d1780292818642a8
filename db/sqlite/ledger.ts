import { createAuthorizationReads } from '../authorizations'
import type { Database } from '../Database'
import { ownLanes } from '../LaneLedger'
import { createChanges, type Ledger, ownFailures } from '../Ledger'
import { createJobReads, createPaymentReads, createTransactionReads } from '../payment-reads'
import { createAdmin } from './admin'
import { createAnswers } from './answers'
import { createAuthorizationStatements, createAuthorizations } from './authorizations'
import { createChannels, createReserve, recoverChannels } from './channels'
import { createEntitlements, recoverUses } from './entitlements'
import { createGrants } from './grants'
import { createOffers } from './offers'
import type { Db } from './open'
import { createOrders } from './orders'
import { createSettlementStatements } from './payments'
import { createRefunds } from './refunds'
import { createSales } from './sales'
import { createDeliveries, createSettling } from './settling'
import { selectsOf, unused } from './statement'
import { createOutbox, createWebhooks } from './webhooks'
import { createGroup } from './write'

/** The ledger of an open SQLite database. Every function is synchronous inside. */
export function createLedger(db: Db): Ledger {
  const changes = createChanges()
  const group = createGroup(db)
  const selects = selectsOf(db)
  const own = createAuthorizationStatements(db)
  const statements = { ...createSettlementStatements(db), authorizations: own }
  const outbox = createOutbox(db)
  const orders = createOrders(db, outbox)
  const grants = createGrants(db, outbox)
  const entitlements = createEntitlements(db, group)
  const delivering = new Set<string>()
  const isDelivering = (id: string) => delivering.has(id)
  const refunds = createRefunds(db, { outbox, changes, isDelivering })
  const riders = {
    ...{ orders: orders.riders, grants: grants.riders },
    ...{ entitlements: entitlements.riders, refunds: refunds.riders },
    reserve: createReserve(db),
  }
  const parts = { db, group, statements, changes, riders, outbox, delivering }
  const payments = createPaymentReads(selects)
  const authorizations = createAuthorizations(group, own, createAuthorizationReads(selects))
  const channels = createChannels(parts)
  return {
    payments,
    transactions: createTransactionReads(selects),
    jobs: createJobReads(selects),
    settling: createSettling(parts),
    deliveries: createDeliveries(parts),
    gas: statements.gas,
    answers: createAnswers(db),
    authorizations,
    channels,
    offers: createOffers(db),
    orders: orders.ledger,
    grants: grants.ledger,
    entitlements: entitlements.ledger,
    refunds: refunds.ledger,
    webhooks: createWebhooks(db, group, outbox),
    sales: createSales(db),
    admin: createAdmin(db, {
      ...{ payments, authorizations, channels, orders: orders.ledger },
      entitlements: entitlements.ledger,
    }),
    failures: ownFailures,
    lanes: ownLanes,
    fault: db.storage.fault,
    writable: db.storage.writable,
    onChange: changes.listen,
    flush: group.flush,
  }
}

/** The file of an open SQLite database, as the service uses it. */
export function databaseOf(db: Db): Database {
  recoverUses(db)
  recoverChannels(db)
  return { ...db, ledger: createLedger(db), unused: () => unused(db) }
}
