import type { HeldReason, Order, RefundReason } from './Order'
import type { NewOrder } from './OrderLedger'
import type { OrderRow } from './schema'

/** Columns of an order for which nothing was sent. */
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

/** The row of a new order, without those of its payment. */
export function toRow(order: NewOrder): Omit<OrderRow, 'paymentId' | 'settlementTx'> {
  return { ...order, ...unsent, updatedAt: order.createdAt }
}

export function toOrder(row: OrderRow): Order {
  return {
    ...row,
    swapTx: row.swapTx ?? undefined,
    refundTx: row.refundTx ?? undefined,
    deliveredAtomic: row.deliveredAtomic ?? undefined,
    returnedAtomic: row.returnedAtomic ?? undefined,
    // Written by the moves `refund` and `hold` only.
    refundReason: (row.refundReason as RefundReason | null) ?? undefined,
    heldReason: (row.heldReason as HeldReason | null) ?? undefined,
    retryAt: row.retryAt ?? undefined,
    settledAt: row.settledAt ?? undefined,
  }
}
