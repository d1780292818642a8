import { and, eq, gt, sql } from 'drizzle-orm'
import type { Address } from 'viem'
import { type OrderRow, orders } from '../orders'
import { payments } from '../schema'
import type { Db } from './open'
import { later, parameter, placeholders } from './statement'

/** Rows that a product writes in the transaction that inserts its payment: data, no code. */
export type Rows = {
  order: NewOrder
  /** Counted in that transaction, because only there the order is certainly the payer's own. */
  quota: OrderQuota | undefined
}

/** What was agreed on, before the payment is written and anything is sent. */
export type NewOrder = Omit<
  OrderRow,
  'paymentId' | 'settlementTx' | 'updatedAt' | keyof typeof unsent
>

const unsent = {
  state: 'settling',
  swapTx: null,
  refundTx: null,
  deliveredAtomic: null,
  returnedAtomic: null,
  refundReason: null,
  heldReason: null,
  refundAttempts: 0,
  retryAt: null,
  settledAt: null,
} as const satisfies Partial<OrderRow>

/** Most orders of a payer that are under way, or were refunded since the time of an order id. */
export type OrderQuota = { payer: Address; since: string; max: number; refusal: Error }

/**
 * Writes the rows of a payment. Call it in the transaction that has inserted the payment. Throws the
 * refusal of the quota.
 */
export type WriteRows = (rows: Rows, paymentId: string) => void

export function createWriteRows(db: Db): WriteRows {
  const { orm } = db
  const counts = createOrderCounts(db)
  const settling = later(orm, () =>
    orm
      .select({ hash: payments.transactionHash })
      .from(payments)
      .where(eq(payments.id, parameter('id')))
      .prepare(),
  )
  const insert = later(orm, () => orm.insert(orders).values(placeholders(orders)).prepare())
  return ({ order, quota }, paymentId) => {
    if (quota !== undefined) {
      const { payer, since, max, refusal } = quota
      if (counts.refunds(payer, since) + counts.underWay(payer) >= max) throw refusal
    }
    const payment = settling.get({ id: paymentId })
    if (payment === undefined) throw new Error(`payment ${paymentId} is not written`)
    const { createdAt: updatedAt } = order
    insert.run({ ...order, ...unsent, paymentId, settlementTx: payment.hash, updatedAt })
  }
}

/** Counts the orders of a payer. */
export function createOrderCounts({ orm }: Db) {
  const count = (...conditions: Parameters<typeof and>) =>
    later(orm, () =>
      orm
        .select({ count: sql<number>`count(*)` })
        .from(orders)
        .where(and(eq(orders.payer, parameter('payer')), ...conditions))
        .prepare(),
    )
  const refunds = count(gt(orders.id, parameter('since')), sql`refund_reason IS NOT NULL`)
  const underWay = count(sql`state IN ('settling', 'settled', 'swapping')`)
  return {
    /** Whose money went back, or is on its way back, since an id. */
    refunds: (payer: Address, since: string): number => refunds.get({ payer, since })?.count ?? 0,
    /** Which may still be delivered. */
    underWay: (payer: Address): number => underWay.get({ payer })?.count ?? 0,
  }
}
