import { Database } from 'bun:sqlite'
import type { Hex } from 'viem'

/** The rows of the database, read from outside the program. */
export type Rows = {
  payments: readonly PaymentRow[]
  transactions: readonly TransactionRow[]
  authorizations: readonly AuthorizationRow[]
}

/** A signed ceiling of the scheme `upto`. `id` is also that of the payment that settles it. */
export type AuthorizationRow = {
  id: string
  network: string
  payer: string
  nonce: string
  ceiling_atomic: string
  charge_atomic: string | null
  state: string
  is_delivered: number
  truncated: number
  /** When the merchant lost its value, unix ms. */
  failed_at: number | null
  /** Unix ms. */
  created_at: number
  /** Unix seconds, as text. */
  valid_before: string
}

export type PaymentRow = {
  id: string
  network: string
  payer: string
  nonce: string
  method: string
  amount_atomic: string
  state: string
  /** Of a payment by a channel the id of the channel. */
  transaction_hash: string
  log_index: number | null
  delivery: string
  attempts: number
  answered: number
  upstream_status: number | null
  /** Unix ms. */
  delivered_at: number | null
}

/**
 * One row for each payment of a transaction; `payment_id` is null for a transaction without
 * payments.
 */
export type TransactionRow = {
  hash: string
  network: string
  relayer: string
  nonce: number
  kind: string
  state: string
  payment_id: string | null
}

export type EntitlementRow = {
  id: string
  kind: string
  uses: number
  uses_max: number
  attempts: number
}

export type ChannelRow = {
  id: Hex
  network: string
  charged_atomic: string
  signed_atomic: string | null
  signature: Hex | null
  reserved_id: string | null
  balance_atomic: string
  claimed_atomic: string
  withdraw_at: number | null
}

/** `id` is the nonce of the sign-in. Times are unix ms. */
export type UseRow = {
  id: string
  entitlement_id: string
  day_id: string | null
  wallet: string
  state: string
  created_at: number
}

export type RefundRow = {
  payment_id: string
  amount_atomic: string
  reason: string
  created_at: number
  /** The transaction that has paid it. */
  paid_hash: string | null
  /** State of its newest job; null before there is one. */
  job: string | null
}

/** What buyers who came back have used, and what was given back. */
export type Entitled = {
  entitlements: readonly EntitlementRow[]
  uses: readonly UseRow[]
  refunds: readonly RefundRow[]
}

export type Unfinished = Readonly<Record<keyof typeof unfinishedSql, number>>

/** A database, read from outside the program. */
export type Store = {
  rows(): Promise<Rows>
  entitled(): Promise<Entitled>
  /** Channels, and the payments by them. */
  channels(): Promise<{ channels: readonly ChannelRow[]; payments: readonly PaymentRow[] }>
  /** Id of the payment with this nonce; undefined: there is none. */
  paymentId(nonce: string): Promise<string | undefined>
  /** Number of payments, transactions and authorizations that have not ended. */
  unfinished(): Promise<Unfinished>
}

const paymentsSql = `SELECT id, network, payer, nonce, method, amount_atomic, state,
  transaction_hash, log_index, delivery, attempts, answered, upstream_status, delivered_at FROM payments`
const transactionsSql = `SELECT hash, network, relayer, nonce, kind, state, payment_id
  FROM transactions LEFT JOIN transaction_members ON transaction_hash = hash
  ORDER BY network, nonce`
const authorizationsSql = `SELECT id, network, payer, nonce, ceiling_atomic, charge_atomic, state,
  CAST(is_delivered AS INTEGER) AS is_delivered, CAST(truncated AS INTEGER) AS truncated,
  failed_at, created_at, valid_before FROM authorizations ORDER BY id`
const entitlementsSql = 'SELECT id, kind, uses, uses_max, attempts FROM entitlements'
const usesSql = `SELECT id, entitlement_id, day_id, wallet, state, created_at FROM entitlement_uses`
const channelsSql = `SELECT id, network, charged_atomic, signed_atomic, signature, reserved_id,
  balance_atomic, claimed_atomic, withdraw_at FROM channels ORDER BY id`
const jobId = `'repay:' || refunds.payment_id || ':' || refunds.attempts`
const refundsSql = `SELECT refunds.payment_id, amount_atomic, reason, refunds.created_at, paid_hash,
  jobs.state AS job FROM refunds LEFT JOIN jobs ON jobs.id = ${jobId}`
const unfinishedSql = {
  payments: `payments WHERE state IN ('broadcast', 'reverted')`,
  transactions: `transactions WHERE state IN ('signed', 'sent')`,
  authorizations: `authorizations WHERE state IN ('authorized', 'metered')`,
  uses: `entitlement_uses WHERE state = 'running'`,
  refunds: 'refunds WHERE paid_hash IS NULL',
  vouchers: 'channels WHERE reserved_id IS NOT NULL',
}

/** Runs a statement that SQLite and PostgreSQL understand. */
type Read = <Row>(sql: string) => Promise<readonly Row[]>

/** The store behind a function that reads it. */
export function storeOf(read: Read): Store {
  const count = async (from: string) =>
    Number((await read<{ n: number }>(`SELECT count(*) AS n FROM ${from}`))[0]?.n ?? 0)
  return {
    rows: async () => ({
      payments: await read<PaymentRow>(`${paymentsSql} ORDER BY id`),
      transactions: await read<TransactionRow>(transactionsSql),
      authorizations: await read<AuthorizationRow>(authorizationsSql),
    }),
    entitled: async () => ({
      entitlements: await read<EntitlementRow>(entitlementsSql),
      uses: await read<UseRow>(usesSql),
      refunds: await read<RefundRow>(refundsSql),
    }),
    channels: async () => ({
      // First: a charge that comes in between has its payment.
      channels: await read<ChannelRow>(channelsSql),
      payments: await read<PaymentRow>(`${paymentsSql} WHERE method = 'channel' ORDER BY id`),
    }),
    paymentId: async (nonce) =>
      (await read<{ id: string }>(`SELECT id FROM payments WHERE nonce = '${nonce}'`))[0]?.id,
    async unfinished() {
      const names = Object.keys(unfinishedSql) as (keyof typeof unfinishedSql)[]
      const counts = names.map(async (name) => [name, await count(unfinishedSql[name])])
      return Object.fromEntries(await Promise.all(counts)) as Unfinished
    },
  }
}

/** A file of SQLite; a program may have it open. */
export function fileStore(file: string): Store {
  return storeOf(async <Row>(sql: string) => {
    const database = new Database(file, { readonly: true })
    try {
      database.run('PRAGMA busy_timeout = 5000')
      return database.query<Row, []>(sql).all()
    } finally {
      database.close()
    }
  })
}
