import { sql } from 'drizzle-orm'
import { check, foreignKey, index, primaryKey, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import { address, at, decimal, hex, isAddress, isDecimal, isHex, oneOf } from './columns'

export const grantKinds = ['grant', 'approval'] as const

/**
 * Native coin given to addresses so that they can approve Permit2: by request (`grant`) or for a
 * signed approve (`approval`). Written with the signed transfer, before it is sent. The job has the
 * state of the transfer.
 */
export const grants = sqliteTable(
  'grants',
  {
    network: text('network').$type<Network.Id>().notNull(),
    address: address('address').notNull(),
    token: address('token').notNull(),
    kind: text('kind').$type<(typeof grantKinds)[number]>().notNull(),
    /** The first one signed; a replacement has the same account nonce. */
    transactionHash: hex('transaction_hash').notNull(),
    amountWei: decimal('amount_wei').notNull(),
    /** Gas cost of the transfer; the upper limit until it is known. */
    feeWei: decimal('fee_wei').notNull(),
    /** Hash of the approve that the address had signed. */
    approveHash: hex('approve_hash'),
    createdAt: at('created_at').notNull(),
  },
  (table) => [
    // One per address, ever. This constraint decides every race.
    primaryKey({ columns: [table.network, table.address] }),
    index('grants_day').on(table.network, table.createdAt),
    check('grants_kind', oneOf(table.kind, grantKinds)),
    check('grants_network', sql`${table.network} GLOB 'eip155:[1-9]*'`),
    check('grants_addresses', sql`${isAddress(table.address)} AND ${isAddress(table.token)}`),
    check('grants_transaction', isHex(table.transactionHash, 64)),
    check(
      'grants_amounts',
      sql`${isDecimal(table.amountWei)} AND ${table.amountWei} <> '0' AND ${isDecimal(table.feeWei)}`,
    ),
    check(
      'grants_approve',
      sql`(${table.kind} = 'approval') = (${table.approveHash} IS NOT NULL) AND (${table.approveHash} IS NULL OR (${isHex(table.approveHash, 64)}))`,
    ),
  ],
)

/** One more transfer to an address whose grant became too small before it was used. */
export const grantTopUps = sqliteTable(
  'grant_top_ups',
  {
    network: text('network').$type<Network.Id>().notNull(),
    address: address('address').notNull(),
    transactionHash: hex('transaction_hash').notNull(),
    amountWei: decimal('amount_wei').notNull(),
    /** Gas cost, as in a grant. */
    feeWei: decimal('fee_wei').notNull(),
    createdAt: at('created_at').notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.network, table.address] }),
    foreignKey({
      columns: [table.network, table.address],
      foreignColumns: [grants.network, grants.address],
    }),
    index('grant_top_ups_day').on(table.network, table.createdAt),
    check('grant_top_ups_transaction', isHex(table.transactionHash, 64)),
    check(
      'grant_top_ups_amounts',
      sql`${isDecimal(table.amountWei)} AND ${table.amountWei} <> '0' AND ${isDecimal(table.feeWei)}`,
    ),
  ],
)

export type GrantRow = typeof grants.$inferSelect
export type TopUpRow = typeof grantTopUps.$inferSelect
