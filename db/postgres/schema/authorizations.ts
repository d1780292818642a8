// Written by db/postgres/generate.ts from db/authorizations.ts.
import type * as Network from '../../../src/protocol/Network'
import type { State } from '../../Authorization'
import {
  address,
  at,
  block,
  check,
  decimal,
  flag,
  hex,
  index,
  integer,
  isAddress,
  isAtMost,
  isDecimal,
  isFlag,
  isHex,
  isJson,
  isUnset,
  oneOf,
  sql,
  table,
  text,
  unique,
} from '../../columns.pg'

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
export const authorizations = table(
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
    /** When its settlement failed by the payer's doing, or, of a void one, when its request was lost. */
    failedAt: at('failed_at'),
    createdAt: at('created_at').notNull(),
  },
  (self) => [
    unique('authorizations_money').on(self.network, self.asset, self.payer, self.nonce),
    index('authorizations_open').on(self.state).where(sql`state IN ('authorized', 'metered')`),
    index('authorizations_failed').on(self.payer, self.failedAt).where(sql`failed_at IS NOT NULL`),
    index('authorizations_idempotency')
      .on(self.merchant, self.route, self.payer, self.idempotencyKey)
      .where(sql`idempotency_key IS NOT NULL`),
    check(
      'authorizations_network',
      sql`${self.network} = 'eip155:' || ${self.chainId} AND ${self.chainId} > 0`,
    ),
    check(
      'authorizations_addresses',
      sql`${isAddress(self.asset)} AND ${isAddress(self.payer)} AND ${isAddress(self.payee)} AND ${isAddress(self.facilitator)}`,
    ),
    check(
      'authorizations_ceiling',
      sql`${isDecimal(self.ceilingAtomic)} AND ${self.ceilingAtomic} <> '0'`,
    ),
    check('authorizations_nonce', isHex(self.nonce, 64)),
    check(
      'authorizations_window',
      sql`${isDecimal(self.validAfter)} AND ${isDecimal(self.validBefore)}`,
    ),
    check('authorizations_product', oneOf(self.product, ['gateway', 'facilitator'])),
    check('authorizations_state', oneOf(self.state, authorizationStates)),
    check(
      'authorizations_charge',
      sql`(${self.chargeAtomic} IS NULL) = (${self.state} = 'authorized') AND (${self.chargeAtomic} IS NULL OR (${isDecimal(self.chargeAtomic)}))`,
    ),
    // Only what costs nothing is void, and nothing else is settled.
    check(
      'authorizations_void',
      sql`${self.chargeAtomic} IS NULL OR (${self.chargeAtomic} = '0') = (${self.state} = 'void')`,
    ),
    check(
      'authorizations_most',
      sql`${self.chargeAtomic} IS NULL OR ${isAtMost(self.chargeAtomic, self.ceilingAtomic)}`,
    ),
    check(
      'authorizations_units',
      sql`(${self.units} IS NULL) = (${self.chargeAtomic} IS NULL) AND (${self.units} IS NULL OR ${isJson(self.units)})`,
    ),
    check(
      'authorizations_delivered',
      sql`${self.isDelivered} = (${self.upstreamStatus} IS NOT NULL) AND (${isUnset(self.isDelivered)} OR ${self.state} <> 'authorized')`,
    ),
    check(
      'authorizations_flags',
      sql`${isFlag(self.bound)} AND ${isFlag(self.truncated)} AND ${isFlag(self.isDelivered)}`,
    ),
  ],
)

export type AuthorizationRow = typeof authorizations.$inferSelect
