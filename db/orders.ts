import { sql } from 'drizzle-orm'
import { check, index, integer, sqliteTable, text, unique } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import { address, at, decimal, hex, isAddress, isDecimal, isHex, oneOf } from './columns'
import { type State, states } from './Order'
import { payments } from './schema'

/**
 * Stock orders. Between settlement and delivery the desk has a buyer's money. So the CHECKs refuse
 * rows that would lose or double it. The migration adds a trigger that refuses every change of
 * state that is not in Order.ts, and every change of the agreed terms.
 */

export const orders = sqliteTable(
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
    /** Of the newest attempt. */
    refundTx: hex('refund_tx'),
    deliveredAtomic: decimal('delivered_atomic'),
    /**
     * Part of `usdg_atomic` that the pool did not take and the swap returned; the migration has a
     * CHECK.
     */
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
  (table) => [
    // One payment buys one order.
    unique('orders_payment').on(table.paymentId),
    index('orders_payer').on(table.payer, table.id),
    index('orders_unfinished')
      .on(table.state)
      .where(sql`state IN ('settling', 'settled', 'swapping', 'refunding', 'held')`),
    check('orders_id', sql`length(${table.id}) = 36 AND ${table.id} GLOB 'ord_*'`),
    check('orders_network', sql`${table.network} GLOB 'eip155:[1-9]*'`),
    check(
      'orders_addresses',
      sql`${isAddress(table.token)} AND ${isAddress(table.pool)} AND ${isAddress(table.payer)} AND ${isAddress(table.recipient)}`,
    ),
    check(
      'orders_amounts',
      sql`${isDecimal(table.usdgAtomic)} AND ${table.usdgAtomic} <> '0' AND ${isDecimal(table.totalAtomic)} AND ${table.totalAtomic} <> '0' AND ${isDecimal(table.quotedAtomic)} AND ${isDecimal(table.floorAtomic)} AND ${table.floorAtomic} <> '0'`,
    ),
    check('orders_state', oneOf(table.state, states)),
    check('orders_settlement', isHex(table.settlementTx, 64)),
    check('orders_swap', sql`${table.swapTx} IS NULL OR ${isHex(table.swapTx, 64)}`),
    check('orders_refund', sql`${table.refundTx} IS NULL OR ${isHex(table.refundTx, 64)}`),
    // Nothing was sent for an order before its money arrived.
    check(
      'orders_unsent',
      sql`${table.state} NOT IN ('settling', 'settled', 'failed') OR (${table.swapTx} IS NULL AND ${table.refundTx} IS NULL AND ${table.refundReason} IS NULL)`,
    ),
    check(
      'orders_swapped',
      sql`${table.state} NOT IN ('swapping', 'delivered') OR (${table.swapTx} IS NOT NULL AND ${table.refundTx} IS NULL AND ${table.refundReason} IS NULL)`,
    ),
    check(
      'orders_delivered',
      sql`(${table.state} = 'delivered') = (${table.deliveredAtomic} IS NOT NULL) AND (${table.deliveredAtomic} IS NULL OR (${isDecimal(table.deliveredAtomic)} AND ${table.deliveredAtomic} <> '0'))`,
    ),
    check(
      'orders_refunding',
      sql`${table.state} NOT IN ('refunding', 'refunded') OR ${table.refundReason} IS NOT NULL`,
    ),
    check(
      'orders_refunded',
      sql`${table.state} <> 'refunded' OR (${table.refundTx} IS NOT NULL AND ${table.refundAttempts} > 0)`,
    ),
    // A refund has a reason, and each that was written counts as an attempt.
    check(
      'orders_attempts',
      sql`${table.refundAttempts} >= 0 AND (${table.refundTx} IS NULL OR (${table.refundReason} IS NOT NULL AND ${table.refundAttempts} > 0))`,
    ),
    check('orders_held', sql`(${table.state} = 'held') = (${table.heldReason} IS NOT NULL)`),
    check('orders_retry', sql`${table.retryAt} IS NULL OR ${table.state} = 'held'`),
    check(
      'orders_settled',
      sql`${table.state} IN ('settling', 'failed') OR ${table.settledAt} IS NOT NULL`,
    ),
  ],
)

export type OrderRow = typeof orders.$inferSelect
