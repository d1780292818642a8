// Written by db/postgres/generate.ts from db/grants.ts.
import type * as Network from '../../../src/protocol/Network'
import {
  address,
  at,
  check,
  decimal,
  foreignKey,
  hex,
  index,
  isAddress,
  isDecimal,
  isHex,
  isNetwork,
  oneOf,
  primaryKey,
  sql,
  table,
  text,
} from '../../columns.pg'

export const grantKinds = ['grant', 'approval'] as const

/**
 * Native coin given to addresses so that they can approve Permit2: by request (`grant`) or for a
 * signed approve (`approval`). Written with the signed transfer, before it is sent. The job has the
 * state of the transfer.
 */
export const grants = table(
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
  (self) => [
    // One per address, ever. This constraint decides every race.
    primaryKey({ columns: [self.network, self.address] }),
    index('grants_day').on(self.network, self.createdAt),
    check('grants_kind', oneOf(self.kind, grantKinds)),
    check('grants_network', isNetwork(self.network)),
    check('grants_addresses', sql`${isAddress(self.address)} AND ${isAddress(self.token)}`),
    check('grants_transaction', isHex(self.transactionHash, 64)),
    check(
      'grants_amounts',
      sql`${isDecimal(self.amountWei)} AND ${self.amountWei} <> '0' AND ${isDecimal(self.feeWei)}`,
    ),
    check(
      'grants_approve',
      sql`(${self.kind} = 'approval') = (${self.approveHash} IS NOT NULL) AND (${self.approveHash} IS NULL OR (${isHex(self.approveHash, 64)}))`,
    ),
  ],
)

/** One more transfer to an address whose grant became too small before it was used. */
export const grantTopUps = table(
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
  (self) => [
    primaryKey({ columns: [self.network, self.address] }),
    foreignKey({
      columns: [self.network, self.address],
      foreignColumns: [grants.network, grants.address],
    }),
    index('grant_top_ups_day').on(self.network, self.createdAt),
    check('grant_top_ups_transaction', isHex(self.transactionHash, 64)),
    check(
      'grant_top_ups_amounts',
      sql`${isDecimal(self.amountWei)} AND ${self.amountWei} <> '0' AND ${isDecimal(self.feeWei)}`,
    ),
  ],
)

export type GrantRow = typeof grants.$inferSelect
export type TopUpRow = typeof grantTopUps.$inferSelect
