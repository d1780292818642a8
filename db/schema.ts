import type { TransferMethod } from '../src/protocol/Asset'
import type * as Network from '../src/protocol/Network'
import {
  address,
  at,
  blob,
  block,
  check,
  decimal,
  flag,
  hex,
  index,
  integer,
  isAddress,
  isAtMost,
  isDay,
  isDecimal,
  isDigest,
  isFlag,
  isHex,
  isJson,
  isNetwork,
  oneOf,
  primaryKey,
  sql,
  startsWith,
  table,
  text,
  unique,
  uniqueIndex,
} from './columns'

/**
 * The CHECKs repeat the rules of the code. A mistake in the code is then an error at the write, and
 * no payment is in an impossible state.
 */

export const paymentStates = ['broadcast', 'confirmed', 'reverted', 'expired'] as const
export const deliveryStates = ['none', 'delivering', 'delivered'] as const
/** States that the table allows; the code writes no row that is `signed`. */
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

export const payments = table(
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
    /** Id of the MPP challenge that the credential answers. */
    challengeId: text('challenge_id'),
    /**
     * sha256 (hex) of the x402 credential that started the payment; NULL for MPP. The chain publishes
     * all that was signed, but not the bytes that were sent.
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
  (self) => [
    // The money settles once. This constraint decides every race.
    unique('payments_money').on(self.network, self.asset, self.payer, self.nonce),
    // Each index costs a commit a page. Partial ones leave out most rows, or those of a first commit.
    // One Transfer log pays for one payment.
    uniqueIndex('payments_log')
      .on(self.network, self.transactionHash, self.logIndex)
      .where(sql`log_index IS NOT NULL`),
    uniqueIndex('payments_redeem')
      .on(self.redeemTokenHash)
      .where(sql`redeem_token_hash IS NOT NULL`),
    index('payments_unfinished').on(self.state).where(sql`state IN ('broadcast', 'reverted')`),
    index('payments_idempotency')
      .on(self.merchant, self.route, self.payer, self.idempotencyKey)
      .where(sql`idempotency_key IS NOT NULL`),
    // Payments that a reorganisation could remove.
    index('payments_block').on(self.network, self.blockNumber).where(sql`block_number IS NOT NULL`),
    check('payments_method', oneOf(self.method, ['eip3009', 'permit2'])),
    check(
      'payments_network',
      sql`${self.network} = 'eip155:' || ${self.chainId} AND ${self.chainId} > 0`,
    ),
    check(
      'payments_addresses',
      sql`${isAddress(self.asset)} AND ${isAddress(self.payer)} AND ${isAddress(self.payee)}`,
    ),
    check('payments_amount', sql`${isDecimal(self.amountAtomic)} AND ${self.amountAtomic} <> '0'`),
    check('payments_nonce', isHex(self.nonce, 64)),
    check('payments_window', sql`${isDecimal(self.validAfter)} AND ${isDecimal(self.validBefore)}`),
    check('payments_product', oneOf(self.product, products.slice(0, 3))),
    check('payments_protocol', oneOf(self.protocol, ['mpp', 'x402'])),
    check('payments_state', oneOf(self.state, paymentStates)),
    check('payments_transaction', isHex(self.transactionHash, 64)),
    check(
      'payments_confirmed',
      sql`(${self.state} = 'confirmed') = (${self.logIndex} IS NOT NULL) AND (${self.state} = 'confirmed') = (${self.blockNumber} IS NOT NULL) AND (${self.state} = 'confirmed') = (${self.confirmedAt} IS NOT NULL)`,
    ),
    check('payments_delivery', oneOf(self.delivery, deliveryStates)),
    // Independent of the state: a delivered payment whose receipt vanished stays delivered.
    check(
      'payments_attempts',
      sql`${self.attempts} >= 0 AND (${self.delivery} = 'none' OR ${self.attempts} > 0)`,
    ),
    check(
      'payments_delivered',
      sql`(${self.delivery} = 'delivered') = (${self.deliveredAt} IS NOT NULL)`,
    ),
    check(
      'payments_redeemable',
      sql`(${self.redeemTokenHash} IS NULL) = (${self.redeemUntil} IS NULL)`,
    ),
    check(
      'payments_credential',
      sql`${self.credentialHash} IS NULL OR (${self.protocol} = 'x402' AND ${isDigest(self.credentialHash, 64)})`,
    ),
    // What was charged is at most what was signed.
    check(
      'payments_ceiling',
      sql`${self.ceilingAtomic} IS NULL OR (${isDecimal(self.ceilingAtomic)} AND ${self.ceilingAtomic} <> '0' AND ${self.method} = 'permit2' AND ${self.protocol} = 'x402' AND (${isAtMost(self.amountAtomic, self.ceilingAtomic)}))`,
    ),
    check(
      'payments_facilitator',
      sql`(${self.facilitator} IS NULL) = (${self.ceilingAtomic} IS NULL) AND (${self.facilitator} IS NULL OR (${isAddress(self.facilitator)}))`,
    ),
    check(
      'payments_flags',
      sql`${isFlag(self.bound)} AND ${isFlag(self.truncated)} AND ${isFlag(self.answered)}`,
    ),
  ],
)

/** Every transaction that was ever signed, with its bytes, before it is sent. */
export const transactions = table(
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
    /** What it cost, with the native coin that it gave. Written when it is included. */
    costWei: decimal('cost_wei'),
  },
  (self) => [
    // Replacements share a nonce; the chain includes one of them.
    uniqueIndex('transactions_included')
      .on(self.network, self.relayer, self.nonce)
      .where(sql`state IN ('mined', 'failed')`),
    index('transactions_block')
      .on(self.network, self.blockNumber)
      .where(sql`block_number IS NOT NULL`),
    index('transactions_unfinished').on(self.state).where(sql`state IN ('signed', 'sent')`),
    // Transactions without a payment, which are few, for the gas of a period.
    index('transactions_unpaid').on(self.createdAt).where(sql`kind NOT IN ('payment', 'batch')`),
    check('transactions_hash', isHex(self.hash, 64)),
    check('transactions_network', isNetwork(self.network)),
    check('transactions_nonce_range', sql`${self.nonce} >= 0`),
    check('transactions_kind', oneOf(self.kind, transactionKinds)),
    check('transactions_product', oneOf(self.product, products)),
    check('transactions_addresses', sql`${isAddress(self.relayer)} AND ${isAddress(self.to)}`),
    check('transactions_raw', startsWith(self.raw, '0x02')),
    check(
      'transactions_fees',
      sql`${isDecimal(self.gasLimit)} AND ${isDecimal(self.maxFeeWei)} AND ${isDecimal(self.maxTipWei)}`,
    ),
    check('transactions_state', oneOf(self.state, transactionStates)),
    check(
      'transactions_included_block',
      sql`(${self.state} IN ('mined', 'failed')) = (${self.blockNumber} IS NOT NULL)`,
    ),
    check(
      'transactions_sent',
      sql`${self.state} NOT IN ('sent', 'mined', 'failed') OR ${self.firstSentAt} IS NOT NULL`,
    ),
    check(
      'transactions_cost',
      sql`${self.costWei} IS NULL OR (${isDecimal(self.costWei)} AND ${self.state} IN ('mined', 'failed'))`,
    ),
    check('transactions_signed', sql`${self.state} <> 'signed' OR ${self.firstSentAt} IS NULL`),
  ],
)

/** The payments in a transaction. The table has no rowid, which the migration says. */
export const transactionMembers = table(
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
  (self) => [
    primaryKey({ columns: [self.transactionHash, self.position] }),
    index('transaction_members_payment').on(self.paymentId),
    check('transaction_members_position', sql`${self.position} >= 0`),
  ],
)

/**
 * Answers stored for the buyer's own key, which is in the payment: a repeat gets the same bytes.
 * The payment's insert is the reservation of the key. Also answers by use that their buyers have not
 * got, some before their charge is confirmed.
 */
export const answers = table(
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
  (self) => [
    index('answers_expiry').on(self.expiresAt),
    check('answers_status', sql`${self.status} BETWEEN 200 AND 599`),
    check('answers_headers', isJson(self.headers)),
    check('answers_times', sql`${self.expiresAt} > ${self.createdAt}`),
  ],
)

/** Mirror of the configuration file, for operators that read the database. */
export const merchants = table('merchants', {
  slug: text('slug').primaryKey(),
  title: text('title').notNull(),
  hash: text('hash').notNull(),
  json: text('json').notNull(),
  updatedAt: at('updated_at').notNull(),
})

/** Native gas spent per product and UTC day. */
export const gasSpent = table(
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
  (self) => [
    primaryKey({ columns: [self.network, self.product, self.day] }),
    check('gas_spent_product', oneOf(self.product, products)),
    check('gas_spent_day', isDay(self.day)),
    check('gas_spent_wei', isDecimal(self.wei)),
    check('gas_spent_wasted_wei', isDecimal(self.wastedWei)),
  ],
)

export const meta = table('meta', {
  key: text('key').primaryKey(),
  value: text('value').notNull(),
})

export type PaymentRow = typeof payments.$inferSelect
/** The cost is written by the end of the transaction only. */
export type TransactionRow = Omit<typeof transactions.$inferSelect, 'costWei'>
export type GasProduct = (typeof products)[number]
