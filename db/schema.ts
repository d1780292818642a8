import { type SQL, sql } from 'drizzle-orm'
import {
  blob,
  check,
  customType,
  foreignKey,
  index,
  integer,
  primaryKey,
  sqliteTable as table,
  text,
  unique,
  uniqueIndex,
} from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'
import type { PaymentMethod } from '../src/protocol/Asset'
import type * as Client from '../src/protocol/Client'
import type * as Network from '../src/protocol/Network'
import * as Authorization from './Authorization'
import * as Entitlement from './Entitlement'
import * as Order from './Order'
import * as Payment from './Payment'
import * as Refund from './Refund'

/**
 * The tables of SQLite. The migrations of PostgreSQL are written by hand, and rows of both databases are
 * read by these columns.
 */

/** Non-negative integer of any size as decimal TEXT: bun:sqlite rounds INTEGER above 2^53. */
const decimal = customType<{ data: bigint; driverData: string }>({
  dataType: () => 'text',
  toDriver: String,
  fromDriver: BigInt,
})

/** Hex with `0x` in lower case. */
const hex = customType<{ data: Hex; driverData: string }>({
  dataType: () => 'text',
  toDriver: (text) => text.toLowerCase(),
})

/**
 * Address, written in its checksummed form. NOCASE, so that the same money cannot pass a UNIQUE
 * twice in different letter case.
 */
const address = customType<{ data: Address; driverData: string }>({
  dataType: () => 'text COLLATE NOCASE',
})

/** Block number: INTEGER, because it is compared and stays far below 2^53. */
const block = customType<{ data: bigint; driverData: number }>({
  dataType: () => 'integer',
  toDriver: Number,
  fromDriver: BigInt,
})

/** Unix ms. */
const at = (name: string) => integer(name, { mode: 'number' })

/**
 * The number of a row in the order in which rows were written. In PostgreSQL, of two commits that run
 * side by side, the one with the lower numbers may end last.
 */
const sequence = (name: string) => integer(name).primaryKey()

const flag = (name: string) => integer(name, { mode: 'boolean' })

type Column = Parameters<typeof sql>[1]

/** `column IN ('a', 'b')` for a CHECK: literals, because a CHECK takes no parameters. */
function oneOf(column: Column, values: readonly string[]): SQL {
  return sql`${column} IN (${sql.raw(values.map((value) => `'${value}'`).join(', '))})`
}

/** A decimal without sign, exponent or leading zero. */
function isDecimal(column: Column): SQL {
  return sql`typeof(${column}) = 'text' AND ${column} <> '' AND ${column} NOT GLOB '*[^0-9]*' AND (${column} = '0' OR ${column} NOT GLOB '0*')`
}

/** `0x` and that many lower-case hex digits. `unhex` takes a fifth of the time of a GLOB of them. */
function isHex(column: Column, digits: number): SQL {
  return sql`${isBytes(column, digits / 2)} AND ${column} = lower(${column})`
}

function isAddress(column: Column): SQL {
  return isBytes(column, 20)
}

/** `0x` and hex digits for that many bytes. IS, because `unhex` of another text is NULL. */
function isBytes(column: Column, bytes: number): SQL {
  return sql`length(unhex(substr(${column}, 3))) IS ${sql.raw(String(bytes))} AND ${column} GLOB '0x*'`
}

function isFlag(column: Column): SQL {
  return sql`${column} IN (0, 1)`
}

/** A flag that is not set. */
function isUnset(column: Column): SQL {
  return sql`${column} = 0`
}

/** Hex digits in lower case, without `0x`. */
function isDigest(column: Column, digits: number): SQL {
  return sql`length(unhex(${column})) IS ${sql.raw(String(digits / 2))} AND ${column} = lower(${column})`
}

/** A number of digits without sign that is at most another one. */
function isAtMost(column: Column, limit: Column): SQL {
  return sql`length(${column}) < length(${limit}) OR (length(${column}) = length(${limit}) AND ${column} <= ${limit})`
}

/** `prefix`: letters, digits and `_`. */
function startsWith(column: Column, prefix: string): SQL {
  return sql`${column} GLOB ${sql.raw(`'${prefix}*'`)}`
}

function isNetwork(column: Column): SQL {
  return sql`${column} GLOB 'eip155:[1-9]*'`
}

/** `2026-11-20`. */
function isDay(column: Column): SQL {
  return sql`${column} GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]'`
}

function isJson(column: Column): SQL {
  return sql`json_valid(${column})`
}

/**
 * The CHECKs repeat the rules of the code. A mistake in the code is then an error at the write, and
 * no payment is in an impossible state.
 */

/** The CHECKs of a table, by what follows its name in theirs. */
function checksOf(table: string, rules: Readonly<Record<string, SQL>>) {
  return Object.entries(rules).map(([name, rule]) => check(`${table}_${name}`, rule))
}

const deliveryStates = ['none', 'delivering', 'delivered'] as const
/** States that the table allows; the code writes no row that is `signed`. */
const transactionStates = ['signed', 'sent', 'mined', 'failed', 'replaced'] as const
const transactionKinds = [
  'payment',
  'batch',
  'swap',
  'refund',
  'grant',
  'approve',
  'channel',
  'cancel',
] as const
const products = ['gateway', 'facilitator', 'desk', 'sponsor', 'channels'] as const

export const payments = table(
  'payments',
  {
    id: text('id').primaryKey(),
    method: text('method').$type<PaymentMethod>().notNull(),
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
    product: text('product').$type<Payment.Product>().notNull(),
    protocol: text('protocol').$type<Payment.Protocol>().notNull(),
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
    /** Kind of the client that paid; NULL for the facilitator. */
    client: text('client').$type<Client.Kind>(),
    bound: flag('bound').notNull(),
    /** When the request arrived whose simulation passed. */
    receivedAt: at('received_at').notNull(),
    /** Newest known block before that simulation. */
    knownBlock: block('known_block').notNull(),
    state: text('state').$type<Payment.State>().notNull(),
    /**
     * The settling transaction once confirmed; before, the newest one signed. Of the method `channel`
     * the id of the channel.
     */
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
    // Set when a delivery has failed, and never changed back.
    index('payments_redeemable').on(self.redeemUntil).where(sql`redeem_until IS NOT NULL`),
    index('payments_unfinished').on(self.state).where(sql`state IN ('broadcast', 'reverted')`),
    index('payments_idempotency')
      .on(self.merchant, self.route, self.payer, self.idempotencyKey)
      .where(sql`idempotency_key IS NOT NULL`),
    // Payments that a reorganisation could remove.
    index('payments_block').on(self.network, self.blockNumber).where(sql`block_number IS NOT NULL`),
    ...checksOf('payments', {
      method: oneOf(self.method, ['eip3009', 'permit2', 'channel']),
      network: sql`${self.network} = 'eip155:' || ${self.chainId} AND ${self.chainId} > 0`,
      addresses: sql`${isAddress(self.asset)} AND ${isAddress(self.payer)} AND ${isAddress(self.payee)}`,
      amount: sql`${isDecimal(self.amountAtomic)} AND ${self.amountAtomic} <> '0'`,
      nonce: isHex(self.nonce, 64),
      window: sql`${isDecimal(self.validAfter)} AND ${isDecimal(self.validBefore)}`,
      product: oneOf(self.product, products.slice(0, 3)),
      protocol: oneOf(self.protocol, ['mpp', 'x402']),
      state: oneOf(self.state, Object.keys(Payment.transitions)),
      transaction: isHex(self.transactionHash, 64),
      // A charge of a channel is confirmed by its voucher, without a log.
      confirmed: sql`(${self.state} = 'confirmed' AND ${self.method} <> 'channel') = (${self.logIndex} IS NOT NULL) AND (${self.logIndex} IS NULL) = (${self.blockNumber} IS NULL) AND (${self.state} = 'confirmed') = (${self.confirmedAt} IS NOT NULL)`,
      channel: sql`${self.method} <> 'channel' OR (${self.state} = 'confirmed' AND ${self.product} = 'gateway' AND ${self.protocol} = 'x402')`,
      delivery: oneOf(self.delivery, deliveryStates),
      // Independent of the state: a delivered payment whose receipt vanished stays delivered.
      attempts: sql`${self.attempts} >= 0 AND (${self.delivery} = 'none' OR ${self.attempts} > 0)`,
      delivered: sql`(${self.delivery} = 'delivered') = (${self.deliveredAt} IS NOT NULL)`,
      redeemable: sql`(${self.redeemTokenHash} IS NULL) = (${self.redeemUntil} IS NULL)`,
      credential: sql`${self.credentialHash} IS NULL OR (${self.protocol} = 'x402' AND ${isDigest(self.credentialHash, 64)})`,
      // What was charged is at most what was signed.
      ceiling: sql`${self.ceilingAtomic} IS NULL OR (${isDecimal(self.ceilingAtomic)} AND ${self.ceilingAtomic} <> '0' AND ${self.method} = 'permit2' AND ${self.protocol} = 'x402' AND (${isAtMost(self.amountAtomic, self.ceilingAtomic)}))`,
      facilitator: sql`(${self.facilitator} IS NULL) = (${self.ceilingAtomic} IS NULL) AND (${self.facilitator} IS NULL OR (${isAddress(self.facilitator)}))`,
      flags: sql`${isFlag(self.bound)} AND ${isFlag(self.truncated)} AND ${isFlag(self.answered)}`,
    }),
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
    ...checksOf('transactions', {
      hash: isHex(self.hash, 64),
      network: isNetwork(self.network),
      nonce_range: sql`${self.nonce} >= 0`,
      kind: oneOf(self.kind, transactionKinds),
      product: oneOf(self.product, products),
      addresses: sql`${isAddress(self.relayer)} AND ${isAddress(self.to)}`,
      raw: startsWith(self.raw, '0x02'),
      fees: sql`${isDecimal(self.gasLimit)} AND ${isDecimal(self.maxFeeWei)} AND ${isDecimal(self.maxTipWei)}`,
      state: oneOf(self.state, transactionStates),
      included_block: sql`(${self.state} IN ('mined', 'failed')) = (${self.blockNumber} IS NOT NULL)`,
      sent: sql`${self.state} NOT IN ('sent', 'mined', 'failed') OR ${self.firstSentAt} IS NOT NULL`,
      cost: sql`${self.costWei} IS NULL OR (${isDecimal(self.costWei)} AND ${self.state} IN ('mined', 'failed'))`,
      signed: sql`${self.state} <> 'signed' OR ${self.firstSentAt} IS NULL`,
    }),
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
    ...checksOf('transaction_members', {
      position: sql`${self.position} >= 0`,
    }),
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
    ...checksOf('answers', {
      status: sql`${self.status} BETWEEN 200 AND 599`,
      headers: isJson(self.headers),
      times: sql`${self.expiresAt} > ${self.createdAt}`,
    }),
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
    ...checksOf('gas_spent', {
      product: oneOf(self.product, products),
      day: isDay(self.day),
      wei: isDecimal(self.wei),
      wasted_wei: isDecimal(self.wastedWei),
    }),
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

const jobStates = ['broadcast', 'confirmed', 'failed', 'replaced'] as const
const jobKinds = ['swap', 'refund', 'grant', 'allowance', 'channel'] as const

/** Transactions of our own that carry no payment. A row is written before its bytes are sent. */
export const jobs = table(
  'jobs',
  {
    id: text('id').primaryKey(),
    kind: text('kind').$type<(typeof jobKinds)[number]>().notNull(),
    /** The product whose gas budget pays. */
    product: text('product').$type<GasProduct>().notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    relayer: address('relayer').notNull(),
    /** Account nonce of the relayer: constant over all replacements. */
    nonce: integer('nonce').notNull(),
    to: address('to').notNull(),
    valueWei: decimal('value_wei').notNull(),
    state: text('state').$type<(typeof jobStates)[number]>().notNull(),
    /** The included transaction; before, the newest one signed. */
    transactionHash: hex('transaction_hash').notNull(),
    blockNumber: block('block_number'),
    /** JSON of the receipt that ended it. */
    receipt: text('receipt'),
    createdAt: at('created_at').notNull(),
    endedAt: at('ended_at'),
  },
  (self) => [
    index('jobs_unfinished').on(self.state).where(sql`state = 'broadcast'`),
    ...checksOf('jobs', {
      kind: oneOf(self.kind, jobKinds),
      product: oneOf(self.product, products),
      network: isNetwork(self.network),
      nonce: sql`${self.nonce} >= 0`,
      addresses: sql`${isAddress(self.relayer)} AND ${isAddress(self.to)}`,
      value: isDecimal(self.valueWei),
      state: oneOf(self.state, jobStates),
      transaction: isHex(self.transactionHash, 64),
      included: sql`(${self.state} IN ('confirmed', 'failed')) = (${self.blockNumber} IS NOT NULL) AND (${self.state} IN ('confirmed', 'failed')) = (${self.receipt} IS NOT NULL)`,
      ended: sql`(${self.state} = 'broadcast') = (${self.endedAt} IS NULL)`,
      receipt: sql`${self.receipt} IS NULL OR ${isJson(self.receipt)}`,
    }),
  ],
)

/** Every transaction that was ever signed for a job, all of them at its account nonce. */
export const jobTransactions = table(
  'job_transactions',
  {
    jobId: text('job_id')
      .notNull()
      .references(() => jobs.id),
    transactionHash: hex('transaction_hash')
      .notNull()
      .references(() => transactions.hash),
  },
  (self) => [
    primaryKey({ columns: [self.transactionHash] }),
    index('job_transactions_job').on(self.jobId),
  ],
)

export type JobRow = typeof jobs.$inferSelect

/** Offers of a configuration that its successor does not make: buyers may still use them. */
export const offers = table(
  'offers',
  {
    merchant: text('merchant').notNull(),
    /** Path below the merchant. */
    route: text('route').notNull(),
    network: text('network').$type<Network.Id>().notNull(),
    asset: address('asset').notNull(),
    payTo: address('pay_to').notNull(),
    amountAtomic: decimal('amount_atomic').notNull(),
    retiredAt: at('retired_at').notNull(),
  },
  (self) => [
    primaryKey({
      columns: [self.merchant, self.route, self.network, self.asset, self.payTo, self.amountAtomic],
    }),
    ...checksOf('offers', {
      addresses: isAddress(self.asset),
      payee: isAddress(self.payTo),
      amount: isDecimal(self.amountAtomic),
    }),
  ],
)

const grantKinds = ['grant', 'approval'] as const

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
    ...checksOf('grants', {
      kind: oneOf(self.kind, grantKinds),
      network: isNetwork(self.network),
      addresses: sql`${isAddress(self.address)} AND ${isAddress(self.token)}`,
      transaction: isHex(self.transactionHash, 64),
      amounts: sql`${isDecimal(self.amountWei)} AND ${self.amountWei} <> '0' AND ${isDecimal(self.feeWei)}`,
      approve: sql`(${self.kind} = 'approval') = (${self.approveHash} IS NOT NULL) AND (${self.approveHash} IS NULL OR (${isHex(self.approveHash, 64)}))`,
    }),
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
    ...checksOf('grant_top_ups', {
      transaction: isHex(self.transactionHash, 64),
      amounts: sql`${isDecimal(self.amountWei)} AND ${self.amountWei} <> '0' AND ${isDecimal(self.feeWei)}`,
    }),
  ],
)

export type GrantRow = typeof grants.$inferSelect
export type TopUpRow = typeof grantTopUps.$inferSelect

/** What the figures of sales need besides payments and transactions. */

/**
 * `asked`: an answer 402 to a request without a credential. `tried`: a request with one. `refused`:
 * such a request got a problem. `paid`: its payment was confirmed, or its answer by use was given.
 * `free`: an answer by an entitlement, whose kind is the detail.
 */
export const steps = ['asked', 'tried', 'refused', 'paid', 'free'] as const

/**
 * Requests by UTC day, route and kind of client. By day, because each kind and each reason of a
 * refusal is a row that a stranger can cause. The table has no rowid, which the migration says.
 */
export const requests = table(
  'requests',
  {
    /** Unix ms of its begin. */
    day: at('day').notNull(),
    merchant: text('merchant').notNull(),
    route: text('route').notNull(),
    client: text('client').$type<Client.Kind>().notNull(),
    step: text('step').$type<(typeof steps)[number]>().notNull(),
    /** What was presented in `tried`, the reason in `refused`, the kind in `free`; else empty. */
    detail: text('detail').notNull(),
    times: integer('times').notNull(),
  },
  (self) => [
    primaryKey({
      columns: [self.day, self.merchant, self.route, self.client, self.step, self.detail],
    }),
    ...checksOf('requests', {
      day: sql`${self.day} >= 0 AND ${self.day} % 86400000 = 0`,
      step: oneOf(self.step, steps),
      detail: sql`(${self.detail} = '') = (${self.step} IN ('asked', 'paid'))`,
      times: sql`${self.times} >= 0`,
    }),
  ],
)

/** Accounts of this service, of all its configurations: what they pay is no sale. */
export const ownAccounts = table(
  'own_accounts',
  { address: address('address').notNull(), addedAt: at('added_at').notNull() },
  (self) => [
    primaryKey({ columns: [self.address] }),
    ...checksOf('own_accounts', {
      address: isAddress(self.address),
    }),
  ],
)

/** Assets of the networks, of all configurations, as the newest one with them describes them. */
export const assets = table(
  'assets',
  {
    network: text('network').$type<Network.Id>().notNull(),
    address: address('address').notNull(),
    networkName: text('network_name').notNull(),
    symbol: text('symbol').notNull(),
    decimals: integer('decimals').notNull(),
    /** `eth_price_usd` of the network, as a decimal. */
    coinUsd: text('coin_usd').notNull(),
    updatedAt: at('updated_at').notNull(),
  },
  (self) => [
    primaryKey({ columns: [self.network, self.address] }),
    ...checksOf('assets', {
      address: isAddress(self.address),
      decimals: sql`${self.decimals} BETWEEN 0 AND 36`,
    }),
  ],
)

/** `waiting`: to be sent. `failed`: given up. */
const messageStates = ['waiting', 'delivered', 'failed'] as const

/**
 * The outbox: one row for each event and endpoint, written in the commit of the event. Its CHECKs
 * are few, because a refused row would refuse the payment that it is about.
 */
export const webhooks = table(
  'webhooks',
  {
    /** The order of the events. */
    seq: sequence('seq'),
    /** The `webhook-id`, the same for each attempt. */
    id: text('id').notNull().unique('webhooks_id'),
    /** 16 hex digits, of the URL. The URL is not stored: its path may be a secret. */
    endpoint: text('endpoint').notNull(),
    /** Scheme, host and port of the URL. */
    origin: text('origin').notNull(),
    type: text('type').notNull(),
    /** Id of the payment, of the order or of the network: one after the other for each of them. */
    subject: text('subject').notNull(),
    /** The JSON that is sent. */
    body: text('body').notNull(),
    state: text('state').$type<(typeof messageStates)[number]>().notNull(),
    attempts: integer('attempts').notNull().default(0),
    /** HTTP status of the last answer. */
    lastStatus: integer('last_status'),
    /** Why the last attempt has no answer, or why there is no further attempt. */
    lastError: text('last_error'),
    createdAt: at('created_at').notNull(),
    dueAt: at('due_at').notNull(),
    /** No attempt begins after this time. */
    expiresAt: at('expires_at').notNull(),
    endedAt: at('ended_at'),
  },
  (self) => [
    index('webhooks_due').on(self.endpoint, self.dueAt).where(sql`state = 'waiting'`),
    index('webhooks_subject')
      .on(self.endpoint, self.subject, self.seq)
      .where(sql`state = 'waiting'`),
    index('webhooks_ended').on(self.endpoint, self.endedAt).where(sql`ended_at IS NOT NULL`),
    ...checksOf('webhooks', {
      state: oneOf(self.state, messageStates),
      ended_at: sql`(${self.state} = 'waiting') = (${self.endedAt} IS NULL)`,
    }),
  ],
)

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
    state: text('state').$type<Order.State>().notNull(),
    settlementTx: hex('settlement_tx').notNull(),
    /** Set permanently when the swap is written: what may have been swapped is not refunded. */
    swapTx: hex('swap_tx'),
    /** Transaction of the newest attempt. */
    refundTx: hex('refund_tx'),
    deliveredAtomic: decimal('delivered_atomic'),
    /** Part of `usdg_atomic` that the pool did not take and the swap returned. */
    returnedAtomic: decimal('returned_atomic'),
    refundReason: text('refund_reason').$type<Order.RefundReason>(),
    heldReason: text('held_reason').$type<Order.HeldReason>(),
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
    ...checksOf('orders', {
      id: sql`length(${self.id}) = 36 AND ${startsWith(self.id, 'ord_')}`,
      network: isNetwork(self.network),
      addresses: sql`${isAddress(self.token)} AND ${isAddress(self.pool)} AND ${isAddress(self.payer)} AND ${isAddress(self.recipient)}`,
      amounts: sql`${isDecimal(self.usdgAtomic)} AND ${self.usdgAtomic} <> '0' AND ${isDecimal(self.totalAtomic)} AND ${self.totalAtomic} <> '0' AND ${isDecimal(self.quotedAtomic)} AND ${isDecimal(self.floorAtomic)} AND ${self.floorAtomic} <> '0'`,
      state: oneOf(self.state, Order.states),
      settlement: isHex(self.settlementTx, 64),
      swap: sql`${self.swapTx} IS NULL OR ${isHex(self.swapTx, 64)}`,
      refund: sql`${self.refundTx} IS NULL OR ${isHex(self.refundTx, 64)}`,
      // Nothing was sent for an order before its money arrived.
      unsent: sql`${self.state} NOT IN ('settling', 'settled', 'failed') OR (${self.swapTx} IS NULL AND ${self.refundTx} IS NULL AND ${self.refundReason} IS NULL)`,
      swapped: sql`${self.state} NOT IN ('swapping', 'delivered') OR (${self.swapTx} IS NOT NULL AND ${self.refundTx} IS NULL AND ${self.refundReason} IS NULL)`,
      delivered: sql`(${self.state} = 'delivered') = (${self.deliveredAtomic} IS NOT NULL) AND (${self.deliveredAtomic} IS NULL OR (${isDecimal(self.deliveredAtomic)} AND ${self.deliveredAtomic} <> '0'))`,
      // Only a swap that delivered gives change.
      returned: sql`${self.returnedAtomic} IS NULL OR (${self.state} = 'delivered' AND ${isDecimal(self.returnedAtomic)} AND ${self.returnedAtomic} <> '0')`,
      refunding: sql`${self.state} NOT IN ('refunding', 'refunded') OR ${self.refundReason} IS NOT NULL`,
      refunded: sql`${self.state} <> 'refunded' OR (${self.refundTx} IS NOT NULL AND ${self.refundAttempts} > 0)`,
      // A refund has a reason, and each that was written counts as an attempt.
      attempts: sql`${self.refundAttempts} >= 0 AND (${self.refundTx} IS NULL OR (${self.refundReason} IS NOT NULL AND ${self.refundAttempts} > 0))`,
      held: sql`(${self.state} = 'held') = (${self.heldReason} IS NOT NULL)`,
      retry: sql`${self.retryAt} IS NULL OR ${self.state} = 'held'`,
      settled: sql`${self.state} IN ('settling', 'failed') OR ${self.settledAt} IS NOT NULL`,
    }),
  ],
)

export type OrderRow = typeof orders.$inferSelect

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
    client: text('client').$type<Client.Kind>(),
    bound: flag('bound').notNull(),
    receivedAt: at('received_at').notNull(),
    knownBlock: block('known_block').notNull(),
    state: text('state').$type<Authorization.State>().notNull(),
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
    ...checksOf('authorizations', {
      network: sql`${self.network} = 'eip155:' || ${self.chainId} AND ${self.chainId} > 0`,
      addresses: sql`${isAddress(self.asset)} AND ${isAddress(self.payer)} AND ${isAddress(self.payee)} AND ${isAddress(self.facilitator)}`,
      ceiling: sql`${isDecimal(self.ceilingAtomic)} AND ${self.ceilingAtomic} <> '0'`,
      nonce: isHex(self.nonce, 64),
      window: sql`${isDecimal(self.validAfter)} AND ${isDecimal(self.validBefore)}`,
      product: oneOf(self.product, ['gateway', 'facilitator']),
      state: oneOf(self.state, Object.keys(Authorization.transitions)),
      charge: sql`(${self.chargeAtomic} IS NULL) = (${self.state} = 'authorized') AND (${self.chargeAtomic} IS NULL OR (${isDecimal(self.chargeAtomic)}))`,
      // Only what costs nothing is void, and nothing else is settled.
      void: sql`${self.chargeAtomic} IS NULL OR (${self.chargeAtomic} = '0') = (${self.state} = 'void')`,
      most: sql`${self.chargeAtomic} IS NULL OR ${isAtMost(self.chargeAtomic, self.ceilingAtomic)}`,
      units: sql`(${self.units} IS NULL) = (${self.chargeAtomic} IS NULL) AND (${self.units} IS NULL OR ${isJson(self.units)})`,
      delivered: sql`${self.isDelivered} = (${self.upstreamStatus} IS NOT NULL) AND (${isUnset(self.isDelivered)} OR ${self.state} <> 'authorized')`,
      flags: sql`${isFlag(self.bound)} AND ${isFlag(self.truncated)} AND ${isFlag(self.isDelivered)}`,
    }),
  ],
)

export type AuthorizationRow = typeof authorizations.$inferSelect

/**
 * Payment channels. Triggers of the migration keep what makes a channel, and let what was charged only
 * grow.
 */
export const channels = table(
  'channels',
  {
    id: hex('id').primaryKey(),
    network: text('network').$type<Network.Id>().notNull(),
    payer: address('payer').notNull(),
    payerAuthorizer: address('payer_authorizer').notNull(),
    receiver: address('receiver').notNull(),
    receiverAuthorizer: address('receiver_authorizer').notNull(),
    token: address('token').notNull(),
    /** Seconds. */
    withdrawDelay: integer('withdraw_delay').notNull(),
    salt: hex('salt').notNull(),
    chargedAtomic: decimal('charged_atomic').notNull(),
    /** The voucher that covers what was charged. Both or none. */
    signedAtomic: decimal('signed_atomic'),
    signature: hex('signature'),
    /** The voucher of a request, or of a refund, that is under way. All or none. */
    reservedId: text('reserved_id'),
    reservedAtomic: decimal('reserved_atomic'),
    reservedSignature: hex('reserved_signature'),
    reservedFingerprint: text('reserved_fingerprint'),
    reservedAt: at('reserved_at'),
    /** As last read from the chain. */
    balanceAtomic: decimal('balance_atomic').notNull(),
    claimedAtomic: decimal('claimed_atomic').notNull(),
    withdrawAt: at('withdraw_at'),
    refundNonce: decimal('refund_nonce').notNull(),
    syncedAt: at('synced_at').notNull(),
    usedAt: at('used_at').notNull(),
    createdAt: at('created_at').notNull(),
  },
  (self) => [
    index('channels_created').on(self.createdAt, self.id),
    // The open ones. What a request changes is in no index, nor in its condition.
    index('channels_open')
      .on(self.network, self.createdAt, self.id)
      .where(sql`balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL`),
    ...checksOf('channels', {
      id: sql`${isHex(self.id, 64)} AND ${isHex(self.salt, 64)}`,
      network: isNetwork(self.network),
      addresses: sql`${isAddress(self.payer)} AND ${isAddress(self.payerAuthorizer)} AND ${isAddress(self.receiver)} AND ${isAddress(self.receiverAuthorizer)} AND ${isAddress(self.token)}`,
      delay: sql`${self.withdrawDelay} > 0`,
      chain: sql`${isDecimal(self.balanceAtomic)} AND ${isDecimal(self.claimedAtomic)} AND ${isDecimal(self.refundNonce)}`,
      charged: sql`${isDecimal(self.chargedAtomic)} AND (${isAtMost(self.claimedAtomic, self.chargedAtomic)})`,
      // What was charged is at most what was signed.
      signed: sql`(${self.signedAtomic} IS NULL) = (${self.signature} IS NULL) AND (${self.signedAtomic} IS NULL OR (${isDecimal(self.signedAtomic)} AND (${isAtMost(self.chargedAtomic, self.signedAtomic)})))`,
      // Only an open channel has a request, so the index finds those that a process has left.
      reserved: sql`(${self.reservedId} IS NULL) = (${self.reservedAtomic} IS NULL) AND (${self.reservedId} IS NULL) = (${self.reservedSignature} IS NULL) AND (${self.reservedId} IS NULL) = (${self.reservedFingerprint} IS NULL) AND (${self.reservedId} IS NULL) = (${self.reservedAt} IS NULL) AND (${self.reservedAtomic} IS NULL OR (${isDecimal(self.reservedAtomic)})) AND (${self.reservedId} IS NULL OR ${self.reservedId} LIKE 'refund:%' OR ${self.balanceAtomic} <> ${self.claimedAtomic} OR ${self.withdrawAt} IS NOT NULL)`,
    }),
  ],
)

/**
 * What wallets may have without a further payment, with its counters. The table has no rowid, which the
 * migration says: its short rows are in the index of their key, and the other index ends with the id.
 */
export const entitlements = table(
  'entitlements',
  {
    /** Those of db/Entitlement.ts: the payment of one that was paid is in it. */
    id: text('id').primaryKey(),
    kind: text('kind').$type<(typeof Entitlement.kinds)[number]>().notNull(),
    merchant: text('merchant').notNull(),
    /** The route that it opens. */
    route: text('route').notNull(),
    wallet: address('wallet'),
    fingerprint: text('fingerprint'),
    paymentId: text('payment_id').references(() => payments.id),
    network: text('network').$type<Network.Id>(),
    periodMs: integer('period_ms'),
    uses: integer('uses').notNull(),
    usesMax: integer('uses_max').notNull(),
    /** Begun uses, failed ones too. */
    attempts: integer('attempts').notNull(),
    createdAt: at('created_at').notNull(),
    /** Unix ms after which no request can use it; NULL for one that is kept. */
    expiresAt: at('expires_at'),
  },
  (self) => [
    index('entitlements_wallet')
      .on(self.wallet, self.merchant, self.route, self.fingerprint, self.id)
      .where(sql`wallet IS NOT NULL`),
    index('entitlements_expiry').on(self.expiresAt).where(sql`expires_at IS NOT NULL`),
    ...checksOf('entitlements', {
      kind: sql`${oneOf(self.kind, Entitlement.kinds)} AND ${self.id} LIKE ${self.kind} || '|%'`,
      // The trials of a day are of no wallet.
      wallet: sql`(${self.kind} = 'day') = (${self.wallet} IS NULL) AND (${self.kind} = 'day') = (${self.network} IS NULL) AND (${self.wallet} IS NULL OR (${isAddress(self.wallet)} AND ${isNetwork(self.network)}))`,
      payment: sql`(${self.kind} IN ('again', 'pass')) = (${self.paymentId} IS NOT NULL) AND (${self.paymentId} IS NULL) = (${self.periodMs} IS NULL) AND (${self.periodMs} IS NULL OR ${self.periodMs} > 0) AND (${self.kind} = 'again') = (${self.fingerprint} IS NOT NULL)`,
      uses: sql`${self.uses} >= 0 AND ${self.uses} <= ${self.usesMax} AND ${self.uses} <= ${self.attempts} AND ${self.usesMax} > 0`,
    }),
  ],
)

export type EntitlementRow = typeof entitlements.$inferSelect

/** Uses of entitlements: their ids are used once. Without a rowid, too. */
export const entitlementUses = table(
  'entitlement_uses',
  {
    id: text('id').primaryKey(),
    /** Not a foreign key: an entitlement that is over may be deleted before its last use. */
    entitlementId: text('entitlement_id').notNull(),
    dayId: text('day_id'),
    wallet: address('wallet').notNull(),
    state: text('state').$type<(typeof Entitlement.useStates)[number]>().notNull(),
    createdAt: at('created_at').notNull(),
  },
  (self) => [
    index('entitlement_uses_running').on(self.state).where(sql`state = 'running'`),
    index('entitlement_uses_created').on(self.createdAt),
    ...checksOf('entitlement_uses', {
      state: oneOf(self.state, Entitlement.useStates),
      wallet: isAddress(self.wallet),
    }),
  ],
)

/** Money that goes back to payers, once for a payment. The state is that of the newest job. */
export const refunds = table(
  'refunds',
  {
    paymentId: text('payment_id')
      .primaryKey()
      .references(() => payments.id),
    /** The account that pays it. */
    account: address('account').notNull(),
    amountAtomic: decimal('amount_atomic').notNull(),
    reason: text('reason').$type<Refund.Reason>().notNull(),
    /** By the operator. */
    note: text('note'),
    attempts: integer('attempts').notNull(),
    /** The transaction that has paid it. */
    paidHash: hex('paid_hash'),
    createdAt: at('created_at').notNull(),
  },
  (self) => [
    index('refunds_created').on(self.createdAt, self.paymentId),
    index('refunds_open').on(self.createdAt, self.paymentId).where(sql`paid_hash IS NULL`),
    ...checksOf('refunds', {
      account: isAddress(self.account),
      amount: sql`${isDecimal(self.amountAtomic)} AND ${self.amountAtomic} <> '0'`,
      reason: oneOf(self.reason, Refund.reasons),
      attempts: sql`${self.attempts} >= 0`,
      paid: sql`${self.paidHash} IS NULL OR (${isHex(self.paidHash, 64)})`,
    }),
  ],
)

export type RefundRow = typeof refunds.$inferSelect
