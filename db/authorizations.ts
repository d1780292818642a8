import { sql } from 'drizzle-orm'
import { check, index, integer, sqliteTable, text, unique } from 'drizzle-orm/sqlite-core'
import type * as Network from '../src/protocol/Network'
import type { State } from './Authorization'
import {
  address,
  at,
  block,
  decimal,
  flag,
  hex,
  isAddress,
  isDecimal,
  isFlag,
  isHex,
  oneOf,
} from './columns'

export const authorizationStates = [
  'authorized',
  'metered',
  'sent',
  'void',
  'failed',
] as const satisfies readonly State[]

/**
 * Signed ceilings of the scheme `upto`. Triggers of the migration keep their money apart from that of
 * `payments`, permit only the transitions of the code, and keep what was agreed and charged.
 */
export const authorizations = sqliteTable(
  'authorizations',
  {
    id: text('id').primaryKey(),
    network: text('network').$type<Network.Id>().notNull(),
    chainId: integer('chain_id').notNull(),
    asset: address('asset').notNull(),
    payer: address('payer').notNull(),
    payee: address('payee').notNull(),
    ceilingAtomic: decimal('ceiling_atomic').notNull(),
    /** The relayer that may settle it. */
    facilitator: address('facilitator').notNull(),
    nonce: hex('nonce').notNull(),
    /** Unix seconds. */
    validAfter: decimal('valid_after').notNull(),
    validBefore: decimal('valid_before').notNull(),
    signature: hex('signature').notNull(),
    permit2612Value: decimal('permit2612_value'),
    permit2612Deadline: decimal('permit2612_deadline'),
    permit2612Signature: hex('permit2612_signature'),
    product: text('product').$type<'gateway' | 'facilitator'>().notNull(),
    merchant: text('merchant').notNull(),
    route: text('route').notNull(),
    fingerprint: text('fingerprint').notNull(),
    resource: text('resource').notNull(),
    idempotencyKey: text('idempotency_key'),
    credentialHash: text('credential_hash'),
    bound: flag('bound').notNull(),
    receivedAt: at('received_at').notNull(),
    knownBlock: block('known_block').notNull(),
    state: text('state').$type<State>().notNull(),
    chargeAtomic: decimal('charge_atomic'),
    /** JSON: what was counted, by unit. */
    units: text('units'),
    /** The buyer has the answer, as far as `truncated` says. */
    isDelivered: flag('is_delivered').notNull().default(false),
    upstreamStatus: integer('upstream_status'),
    truncated: flag('truncated').notNull().default(false),
    failedAt: at('failed_at'),
    createdAt: at('created_at').notNull(),
  },
  (table) => [
    unique('authorizations_money').on(table.network, table.asset, table.payer, table.nonce),
    index('authorizations_open').on(table.state).where(sql`state IN ('authorized', 'metered')`),
    index('authorizations_failed')
      .on(table.payer, table.failedAt)
      .where(sql`failed_at IS NOT NULL`),
    index('authorizations_idempotency')
      .on(table.merchant, table.route, table.payer, table.idempotencyKey)
      .where(sql`idempotency_key IS NOT NULL`),
    check(
      'authorizations_network',
      sql`${table.network} = 'eip155:' || ${table.chainId} AND ${table.chainId} > 0`,
    ),
    check(
      'authorizations_addresses',
      sql`${isAddress(table.asset)} AND ${isAddress(table.payer)} AND ${isAddress(table.payee)} AND ${isAddress(table.facilitator)}`,
    ),
    check(
      'authorizations_ceiling',
      sql`${isDecimal(table.ceilingAtomic)} AND ${table.ceilingAtomic} <> '0'`,
    ),
    check('authorizations_nonce', isHex(table.nonce, 64)),
    check(
      'authorizations_window',
      sql`${isDecimal(table.validAfter)} AND ${isDecimal(table.validBefore)}`,
    ),
    check('authorizations_product', oneOf(table.product, ['gateway', 'facilitator'])),
    check('authorizations_state', oneOf(table.state, authorizationStates)),
    check(
      'authorizations_charge',
      sql`(${table.chargeAtomic} IS NULL) = (${table.state} = 'authorized') AND (${table.chargeAtomic} IS NULL OR (${isDecimal(table.chargeAtomic)}))`,
    ),
    // Only what costs nothing is void, and nothing else is settled.
    check(
      'authorizations_void',
      sql`${table.chargeAtomic} IS NULL OR (${table.chargeAtomic} = '0') = (${table.state} = 'void')`,
    ),
    check(
      'authorizations_most',
      sql`${table.chargeAtomic} IS NULL OR length(${table.chargeAtomic}) < length(${table.ceilingAtomic}) OR (length(${table.chargeAtomic}) = length(${table.ceilingAtomic}) AND ${table.chargeAtomic} <= ${table.ceilingAtomic})`,
    ),
    check(
      'authorizations_units',
      sql`(${table.units} IS NULL) = (${table.chargeAtomic} IS NULL) AND (${table.units} IS NULL OR json_valid(${table.units}))`,
    ),
    check(
      'authorizations_delivered',
      sql`${table.isDelivered} = (${table.upstreamStatus} IS NOT NULL) AND (${table.isDelivered} = 0 OR ${table.state} <> 'authorized')`,
    ),
    check(
      'authorizations_flags',
      sql`${isFlag(table.bound)} AND ${isFlag(table.truncated)} AND ${isFlag(table.isDelivered)}`,
    ),
  ],
)

export type AuthorizationRow = typeof authorizations.$inferSelect
