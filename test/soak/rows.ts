import { Database } from 'bun:sqlite'

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
  amount_atomic: string
  state: string
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

export function readRows(file: string): Rows {
  return query(file, (database) => ({
    payments: database
      .query<PaymentRow, []>(
        `SELECT id, network, payer, nonce, amount_atomic, state, transaction_hash, log_index,
           delivery, attempts, answered, upstream_status, delivered_at
           FROM payments ORDER BY id`,
      )
      .all(),
    transactions: database
      .query<TransactionRow, []>(
        `SELECT hash, network, relayer, nonce, kind, state, payment_id FROM transactions
           LEFT JOIN transaction_members ON transaction_hash = hash ORDER BY network, nonce`,
      )
      .all(),
    authorizations: database
      .query<AuthorizationRow, []>(
        `SELECT id, network, payer, nonce, ceiling_atomic, charge_atomic, state, is_delivered,
           truncated, created_at, valid_before FROM authorizations ORDER BY id`,
      )
      .all(),
  }))
}

export type Unfinished = { payments: number; transactions: number; authorizations: number }

/** Number of payments, transactions and authorizations that have not ended. */
export function countUnfinished(file: string): Unfinished {
  return query(file, (database) => {
    const count = (from: string) =>
      database.query<{ n: number }, []>(`SELECT count(*) AS n FROM ${from}`).get()?.n ?? 0
    return {
      payments: count(`payments WHERE state IN ('broadcast', 'reverted')`),
      transactions: count(`transactions WHERE state IN ('signed', 'sent')`),
      authorizations: count(`authorizations WHERE state IN ('authorized', 'metered')`),
    }
  })
}

function query<T>(file: string, read: (database: Database) => T): T {
  const database = new Database(file, { readonly: true })
  try {
    database.run('PRAGMA busy_timeout = 5000')
    return read(database)
  } finally {
    database.close()
  }
}
