import type { HeldReason, Order, RefundReason } from '../../db/Order'
import type { OrderRow } from '../../db/orders'

export function toOrder(row: OrderRow | undefined): Order | undefined {
  return row && fromRow(row)
}

export function fromRow(row: OrderRow): Order {
  return {
    ...row,
    swapTx: row.swapTx ?? undefined,
    refundTx: row.refundTx ?? undefined,
    deliveredAtomic: row.deliveredAtomic ?? undefined,
    returnedAtomic: row.returnedAtomic ?? undefined,
    // Written by `refund` and `hold` only.
    refundReason: (row.refundReason as RefundReason | null) ?? undefined,
    heldReason: (row.heldReason as HeldReason | null) ?? undefined,
    retryAt: row.retryAt ?? undefined,
    settledAt: row.settledAt ?? undefined,
  }
}

export function toRow(order: Order): OrderRow {
  return {
    ...order,
    swapTx: order.swapTx ?? null,
    refundTx: order.refundTx ?? null,
    deliveredAtomic: order.deliveredAtomic ?? null,
    returnedAtomic: order.returnedAtomic ?? null,
    refundReason: order.refundReason ?? null,
    heldReason: order.heldReason ?? null,
    retryAt: order.retryAt ?? null,
    settledAt: order.settledAt ?? null,
  }
}
