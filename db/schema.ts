import { sql } from 'drizzle-orm'
import {
  blob,
  check,
  index,
  integer,
  primaryKey,
  sqliteTable,
  text,
  unique,
  uniqueIndex,
} from 'drizzle-orm/sqlite-core'
import type { TransferMethod } from '../src/protocol/Asset'
import type * as Network from '../src/protocol/Network'
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

/**
 * The CHECKs repeat the rules of the code. A mistake in the code is then an error at the write, and
 * no payment is in an impossible state.
 */

export const paymentStates = ['broadcast', 'confirmed', 'reverted', 'expired'] as const
export const deliveryStates = ['none', 'delivering', 'delivered'] as const
/** As the table allows them; no row is `signed` since the migration 0013. */
export const transactionStates = ['signed', 'sent', 'mined', 'failed', 'replaced'] as const
export const transactionKinds = [
  'payment',
  'batch',
  'swap',
  'refund',
  'grant',
  'approve',
  'cancel',
] as const
export const products = ['gateway', 'facilitator', 'desk', 'sponsor'] as const

export const payments = sqliteTable(
  'payments',
  {
    id: text('id').primaryKey(),
    method: text('method').$type<TransferMethod>().notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    chainId: integer('chain_id').notNull(),
    asset: address('asset').notNull(),
    payer: address('payer').notNull(),
    payee: address('payee').notNull(),
    amountAtomic: decimal('amount_atomic').notNull(),
    nonce: hex('nonce').notNull(),
    /** Unix seconds, uint256 on chain. */
    validAfter: decimal('valid_after').notNull(),
    validBefore: decimal('valid_before').notNull(),
    signature: hex('signature').notNull(),
    product: text('product').$type<'gateway' | 'facilitator' | 'desk'>().notNull(),
    protocol: text('protocol').$type<'mpp' | 'x402'>().notNull(),
    merchant: text('merchant').notNull(),
    route: text('route').notNull(),
    fingerprint: text('fingerprint').notNull(),
    resource: text('resource').notNull(),
    /** The buyer's own key for the request, scoped to merchant, route and payer. */
    idempotencyKey: text('idempotency_key'),
    /** Of the MPP challenge that the credential answers. */
    challengeId: text('challenge_id'),
    /**
     * sha256 (hex) of the x402 credential that started the payment. NULL for MPP, and for payments
     * of versions without this column: those continue only with data that the chain does not
     * publish.
     */
    credentialHash: text('credential_hash'),
    bound: flag('bound').notNull(),
    /** When the request arrived whose simulation passed. */
    receivedAt: at('received_at').notNull(),
    /** Newest known block before that simulation. */
    knownBlock: block('known_block').notNull(),
    state: text('state').$type<(typeof paymentStates)[number]>().notNull(),
    /** The settling transaction once confirmed; before, the newest one signed. */
    transactionHash: hex('transaction_hash').notNull(),
    logIndex: integer('log_index'),
    blockNumber: block('block_number'),
    delivery: text('delivery').$type<(typeof deliveryStates)[number]>().notNull().default('none'),
    attempts: integer('attempts').notNull().default(0),
    upstreamStatus: integer('upstream_status'),
    truncated: flag('truncated').notNull().default(false),
    answered: flag('answered').notNull().default(false),
    redeemTokenHash: text('redeem_token_hash'),
    redeemUntil: at('redeem_until'),
    /** EIP-2612 permit of the payer for Permit2, sent in the settling call. All three or none. */
    permit2612Value: decimal('permit2612_value'),
    permit2612Deadline: decimal('permit2612_deadline'),
    permit2612Signature: hex('permit2612_signature'),
    /** The signed ceiling of the scheme `upto`, and the account that may settle. Both or none. */
    ceilingAtomic: decimal('ceiling_atomic'),
    facilitator: address('facilitator'),
    /**
     * True when an expired payment has a used or cancelled nonce; false when only its time is over.
     */
    nonceUsed: flag('nonce_used').notNull().default(false),
    createdAt: at('created_at').notNull(),
    confirmedAt: at('confirmed_at'),
    deliveredAt: at('delivered_at'),
  },
  (table) => [
    // The money settles once. This constraint decides every race.
    unique('payments_money').on(table.network, table.asset, table.payer, table.nonce),
    // One Transfer log pays for one payment.
    unique('payments_log').on(table.network, table.transactionHash, table.logIndex),
    // Partial indexes leave out most rows, which saves one page per commit.
    uniqueIndex('payments_redeem')
      .on(table.redeemTokenHash)
      .where(sql`redeem_token_hash IS NOT NULL`),
    index('payments_unfinished').on(table.state).where(sql`state IN ('broadcast', 'reverted')`),
    index('payments_idempotency')
      .on(table.merchant, table.route, table.payer, table.idempotencyKey)
      .where(sql`idempotency_key IS NOT NULL`),
    // Payments that a reorganisation could remove.
    index('payments_block')
      .on(table.network, table.blockNumber)
      .where(sql`block_number IS NOT NULL`),
    check('payments_method', oneOf(table.method, ['eip3009', 'permit2'])),
    check(
      'payments_network',
      sql`${table.network} = 'eip155:' || ${table.chainId} AND ${table.chainId} > 0`,
    ),
    check(
      'payments_addresses',
      sql`${isAddress(table.asset)} AND ${isAddress(table.payer)} AND ${isAddress(table.payee)}`,
    ),
    check(
      'payments_amount',
      sql`${isDecimal(table.amountAtomic)} AND ${table.amountAtomic} <> '0'`,
    ),
    check('payments_nonce', isHex(table.nonce, 64)),
    check(
      'payments_window',
      sql`${isDecimal(table.validAfter)} AND ${isDecimal(table.validBefore)}`,
    ),
    check('payments_product', oneOf(table.product, products.slice(0, 3))),
    check('payments_protocol', oneOf(table.protocol, ['mpp', 'x402'])),
    check('payments_state', oneOf(table.state, paymentStates)),
    check('payments_transaction', isHex(table.transactionHash, 64)),
    check(
      'payments_confirmed',
      sql`(${table.state} = 'confirmed') = (${table.logIndex} IS NOT NULL) AND (${table.state} = 'confirmed') = (${table.blockNumber} IS NOT NULL) AND (${table.state} = 'confirmed') = (${table.confirmedAt} IS NOT NULL)`,
    ),
    check('payments_delivery', oneOf(table.delivery, deliveryStates)),
    // Independent of the state: a delivered payment whose receipt vanished stays delivered.
    check(
      'payments_attempts',
      sql`${table.attempts} >= 0 AND (${table.delivery} = 'none' OR ${table.attempts} > 0)`,
    ),
    check(
      'payments_delivered',
      sql`(${table.delivery} = 'delivered') = (${table.deliveredAt} IS NOT NULL)`,
    ),
    check(
      'payments_redeemable',
      sql`(${table.redeemTokenHash} IS NULL) = (${table.redeemUntil} IS NULL)`,
    ),
    check(
      'payments_credential',
      sql`${table.credentialHash} IS NULL OR (${table.protocol} = 'x402' AND length(${table.credentialHash}) = 64 AND ${table.credentialHash} NOT GLOB '*[^0-9a-f]*')`,
    ),
    check(
      'payments_flags',
      sql`${isFlag(table.bound)} AND ${isFlag(table.truncated)} AND ${isFlag(table.answered)}`,
    ),
  ],
)

/** Every transaction that was ever signed, with its bytes, before it is sent. */
export const transactions = sqliteTable(
  'transactions',
  {
    hash: hex('hash').primaryKey(),
    network: text('network').$type<Network.Id>().notNull(),
    relayer: address('relayer').notNull(),
    /** Account nonce of the relayer. */
    nonce: integer('nonce').notNull(),
    kind: text('kind').$type<(typeof transactionKinds)[number]>().notNull(),
    /** The product whose gas budget pays. */
    product: text('product').$type<(typeof products)[number]>().notNull(),
    to: address('to').notNull(),
    raw: hex('raw').notNull(),
    gasLimit: decimal('gas_limit').notNull(),
    maxFeeWei: decimal('max_fee_wei').notNull(),
    maxTipWei: decimal('max_tip_wei').notNull(),
    state: text('state').$type<Exclude<(typeof transactionStates)[number], 'signed'>>().notNull(),
    createdAt: at('created_at').notNull(),
    /** Written before the bytes are sent, which happens as soon as the row is on the disk. */
    firstSentAt: at('first_sent_at'),
    blockNumber: block('block_number'),
    /**
     * What an included transaction cost, with the native coin that it gave. NULL before it is
     * included, and for those that an earlier version recorded; the migration has a CHECK.
     */
    costWei: decimal('cost_wei'),
  },
  (table) => [
    // Replacements share a nonce; the chain includes one of them.
    uniqueIndex('transactions_included')
      .on(table.network, table.relayer, table.nonce)
      .where(sql`state IN ('mined', 'failed')`),
    index('transactions_nonce').on(table.network, table.relayer, table.nonce),
    index('transactions_block')
      .on(table.network, table.blockNumber)
      .where(sql`block_number IS NOT NULL`),
    index('transactions_unfinished').on(table.state).where(sql`state IN ('signed', 'sent')`),
    // Transactions without a payment, which are few, for the gas of a period.
    index('transactions_unpaid').on(table.createdAt).where(sql`kind NOT IN ('payment', 'batch')`),
    check('transactions_hash', isHex(table.hash, 64)),
    check('transactions_network', sql`${table.network} GLOB 'eip155:[1-9]*'`),
    check('transactions_nonce_range', sql`${table.nonce} >= 0`),
    check('transactions_kind', oneOf(table.kind, transactionKinds)),
    check('transactions_product', oneOf(table.product, products)),
    check('transactions_addresses', sql`${isAddress(table.relayer)} AND ${isAddress(table.to)}`),
    check('transactions_raw', sql`${table.raw} GLOB '0x02*'`),
    check(
      'transactions_fees',
      sql`${isDecimal(table.gasLimit)} AND ${isDecimal(table.maxFeeWei)} AND ${isDecimal(table.maxTipWei)}`,
    ),
    check('transactions_state', oneOf(table.state, transactionStates)),
    check(
      'transactions_included_block',
      sql`(${table.state} IN ('mined', 'failed')) = (${table.blockNumber} IS NOT NULL)`,
    ),
    check(
      'transactions_sent',
      sql`${table.state} NOT IN ('sent', 'mined', 'failed') OR ${table.firstSentAt} IS NOT NULL`,
    ),
    check('transactions_signed', sql`${table.state} <> 'signed' OR ${table.firstSentAt} IS NULL`),
  ],
)

/** The payments in a transaction. */
export const transactionMembers = sqliteTable(
  'transaction_members',
  {
    transactionHash: hex('transaction_hash')
      .notNull()
      .references(() => transactions.hash),
    position: integer('position').notNull(),
    paymentId: text('payment_id')
      .notNull()
      .references(() => payments.id),
  },
  (table) => [
    primaryKey({ columns: [table.transactionHash, table.position] }),
    unique('transaction_members_once').on(table.transactionHash, table.paymentId),
    index('transaction_members_payment').on(table.paymentId),
    check('transaction_members_position', sql`${table.position} >= 0`),
  ],
)

/**
 * Answers stored for the buyer's own key, which is in the payment: a repeat gets the same bytes.
 * The payment's insert is the reservation of the key.
 */
export const answers = sqliteTable(
  'answers',
  {
    paymentId: text('payment_id')
      .primaryKey()
      .references(() => payments.id),
    status: integer('status').notNull(),
    /** JSON, an array of name and value pairs. */
    headers: text('headers').notNull(),
    body: blob('body', { mode: 'buffer' }).notNull(),
    createdAt: at('created_at').notNull(),
    expiresAt: at('expires_at').notNull(),
  },
  (table) => [
    index('answers_expiry').on(table.expiresAt),
    check('answers_status', sql`${table.status} BETWEEN 200 AND 599`),
    check('answers_headers', sql`json_valid(${table.headers})`),
    check('answers_times', sql`${table.expiresAt} > ${table.createdAt}`),
  ],
)

/** Mirror of the configuration file, for operators that read the database. */
export const merchants = sqliteTable('merchants', {
  slug: text('slug').primaryKey(),
  title: text('title').notNull(),
  hash: text('hash').notNull(),
  json: text('json').notNull(),
  updatedAt: at('updated_at').notNull(),
})

/** Native gas spent per product and UTC day. */
export const gasSpent = sqliteTable(
  'gas_spent',
  {
    network: text('network').$type<Network.Id>().notNull(),
    product: text('product').$type<(typeof products)[number]>().notNull(),
    /** `2026-11-20`. */
    day: text('day').notNull(),
    wei: decimal('wei').notNull(),
    /** The part that failed payments of payers with code cost. */
    wastedWei: decimal('wasted_wei').notNull().default(sql`'0'`),
  },
  (table) => [
    primaryKey({ columns: [table.network, table.product, table.day] }),
    check('gas_spent_product', oneOf(table.product, products)),
    check('gas_spent_day', sql`${table.day} GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'`),
    check('gas_spent_wei', isDecimal(table.wei)),
    check('gas_spent_wasted_wei', isDecimal(table.wastedWei)),
  ],
)

export const meta = sqliteTable('meta', {
  key: text('key').primaryKey(),
  value: text('value').notNull(),
})

export type PaymentRow = typeof payments.$inferSelect
/** The cost is written by the end of the transaction only. */
export type TransactionRow = Omit<typeof transactions.$inferSelect, 'costWei'>
export type GasProduct = (typeof products)[number]
