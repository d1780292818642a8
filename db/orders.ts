import type * as Network from '../src/protocol/Network'
import {
  address,
  at,
  check,
  decimal,
  hex,
  index,
  integer,
  isAddress,
  isDecimal,
  isHex,
  isNetwork,
  oneOf,
  sql,
  startsWith,
  table,
  text,
  unique,
} from './columns'
import { type State, states } from './Order'
import { payments } from './schema'

/**
 * Stock orders. Between settlement and delivery the desk has a buyer's money. So the CHECKs refuse
 * rows that would lose or double it. The migration adds a trigger that refuses every change of
 * state that is not in Order.ts, and every change of the agreed terms.
 */

export const orders = table(
  'orders',
  {
    /** Grows with time, so it sorts the history. */
    id: text('id').primaryKey(),
    paymentId: text('payment_id')
      .notNull()
      .references(() => payments.id),
    network: text('network').$type<Network.Id>().notNull(),
    symbol: text('symbol').notNull(),
    token: address('token').notNull(),
    pool: address('pool').notNull(),
    poolFee: integer('pool_fee').notNull(),
    payer: address('payer').notNull(),
    recipient: address('recipient').notNull(),
    usdgAtomic: decimal('usdg_atomic').notNull(),
    totalAtomic: decimal('total_atomic').notNull(),
    quotedAtomic: decimal('quoted_atomic').notNull(),
    floorAtomic: decimal('floor_atomic').notNull(),
    state: text('state').$type<State>().notNull(),
    settlementTx: hex('settlement_tx').notNull(),
    /** Set permanently when the swap is written: what may have been swapped is not refunded. */
    swapTx: hex('swap_tx'),
    /** Transaction of the newest attempt. */
    refundTx: hex('refund_tx'),
    deliveredAtomic: decimal('delivered_atomic'),
    /** Part of `usdg_atomic` that the pool did not take and the swap returned. */
    returnedAtomic: decimal('returned_atomic'),
    refundReason: text('refund_reason'),
    heldReason: text('held_reason'),
    refundAttempts: integer('refund_attempts').notNull().default(0),
    /** Time of a retry that the operator requested; another process writes it. */
    retryAt: at('retry_at'),
    createdAt: at('created_at').notNull(),
    updatedAt: at('updated_at').notNull(),
    settledAt: at('settled_at'),
  },
  (self) => [
    // One payment buys one order.
    unique('orders_payment').on(self.paymentId),
    index('orders_payer').on(self.payer, self.id),
    index('orders_unfinished')
      .on(self.state)
      .where(sql`state IN ('settling', 'settled', 'swapping', 'refunding', 'held')`),
    check('orders_id', sql`length(${self.id}) = 36 AND ${startsWith(self.id, 'ord_')}`),
    check('orders_network', isNetwork(self.network)),
    check(
      'orders_addresses',
      sql`${isAddress(self.token)} AND ${isAddress(self.pool)} AND ${isAddress(self.payer)} AND ${isAddress(self.recipient)}`,
    ),
    check(
      'orders_amounts',
      sql`${isDecimal(self.usdgAtomic)} AND ${self.usdgAtomic} <> '0' AND ${isDecimal(self.totalAtomic)} AND ${self.totalAtomic} <> '0' AND ${isDecimal(self.quotedAtomic)} AND ${isDecimal(self.floorAtomic)} AND ${self.floorAtomic} <> '0'`,
    ),
    check('orders_state', oneOf(self.state, states)),
    check('orders_settlement', isHex(self.settlementTx, 64)),
    check('orders_swap', sql`${self.swapTx} IS NULL OR ${isHex(self.swapTx, 64)}`),
    check('orders_refund', sql`${self.refundTx} IS NULL OR ${isHex(self.refundTx, 64)}`),
    // Nothing was sent for an order before its money arrived.
    check(
      'orders_unsent',
      sql`${self.state} NOT IN ('settling', 'settled', 'failed') OR (${self.swapTx} IS NULL AND ${self.refundTx} IS NULL AND ${self.refundReason} IS NULL)`,
    ),
    check(
      'orders_swapped',
      sql`${self.state} NOT IN ('swapping', 'delivered') OR (${self.swapTx} IS NOT NULL AND ${self.refundTx} IS NULL AND ${self.refundReason} IS NULL)`,
    ),
    check(
      'orders_delivered',
      sql`(${self.state} = 'delivered') = (${self.deliveredAtomic} IS NOT NULL) AND (${self.deliveredAtomic} IS NULL OR (${isDecimal(self.deliveredAtomic)} AND ${self.deliveredAtomic} <> '0'))`,
    ),
    // Only a swap that delivered gives change.
    check(
      'orders_returned',
      sql`${self.returnedAtomic} IS NULL OR (${self.state} = 'delivered' AND ${isDecimal(self.returnedAtomic)} AND ${self.returnedAtomic} <> '0')`,
    ),
    check(
      'orders_refunding',
      sql`${self.state} NOT IN ('refunding', 'refunded') OR ${self.refundReason} IS NOT NULL`,
    ),
    check(
      'orders_refunded',
      sql`${self.state} <> 'refunded' OR (${self.refundTx} IS NOT NULL AND ${self.refundAttempts} > 0)`,
    ),
    // A refund has a reason, and each that was written counts as an attempt.
    check(
      'orders_attempts',
      sql`${self.refundAttempts} >= 0 AND (${self.refundTx} IS NULL OR (${self.refundReason} IS NOT NULL AND ${self.refundAttempts} > 0))`,
    ),
    check('orders_held', sql`(${self.state} = 'held') = (${self.heldReason} IS NOT NULL)`),
    check('orders_retry', sql`${self.retryAt} IS NULL OR ${self.state} = 'held'`),
    check(
      'orders_settled',
      sql`${self.state} IN ('settling', 'failed') OR ${self.settledAt} IS NOT NULL`,
    ),
  ],
)

export type OrderRow = typeof orders.$inferSelect
