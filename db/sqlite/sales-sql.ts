import type { SalesKey } from '../SalesLedger'

/**
 * Sums of one span for the figures of sales, in SQL. A sum is read as text, because bun:sqlite
 * rounds integers above 2^53. Amounts of a short span are below 2^63.
 */

/** Wei of a span may exceed 2^63, which are 9 coins: SQLite refuses it, so it is summed in two parts. */
const part = 1_000_000_000n

const gasSum = (wei: string) =>
  `CAST(coalesce(sum((${wei}) / ${part}), 0) AS TEXT) AS high,
    CAST(coalesce(sum((${wei}) % ${part}), 0) AS TEXT) AS low`
const amountSum = (amount: string) => `CAST(sum(${amount}) AS TEXT)`

export type GasSum = { high: string; low: string; unknownGas: number }

export function gasOf({ high, low }: GasSum): bigint {
  return BigInt(high) * part + BigInt(low)
}

/** Columns of a key. The id of a payment begins with the time of its request: an index of the time. */
function keyFrom(table: 'payments' | 'authorizations', byPayer: boolean): string {
  return `CASE WHEN product = 'facilitator' THEN 'facilitator'
      WHEN payer IN (SELECT address FROM own_accounts) THEN 'own' ELSE 'sale' END AS class,
    network, asset, CASE product WHEN 'desk' THEN 'stock' ELSE merchant END AS merchant, route,
    ${byPayer ? 'payer' : 'NULL'} AS payer
  FROM ${table} WHERE id >= $from AND id < $to`
}

const key = 'class, network, asset, merchant, route, payer'
const keyOfPayment = key.replaceAll(/\w+/g, 'p.$&')

const isIncluded = "t.state IN ('mined', 'failed')"
const cost = 'CAST(t.cost_wei AS INTEGER)'

/** Members of a batch have equal parts of its cost, and the first ones the remainder: all of it. */
const members = `CASE t.kind WHEN 'batch' THEN (SELECT max(position) + 1
  FROM transaction_members WHERE transaction_hash = t.hash) ELSE 1 END`

/** What a payment cost; -1 minus that when the cost of a transaction of it is not known. */
const spent = `(SELECT iif(count(*) = count(cost), coalesce(sum(share), 0), -1 - coalesce(sum(share), 0))
    FROM (SELECT cost, cost / members + (position < cost % members) AS share
      FROM (SELECT ${cost} AS cost, m.position, ${members} AS members
        FROM transaction_members AS m JOIN transactions AS t ON t.hash = m.transaction_hash
        WHERE m.payment_id = payments.id AND ${isIncluded})))`

/** What became of the money of a payment. That of an order is in `ordersSql`. */
const outcome = `CASE WHEN state IN ('broadcast', 'reverted') THEN 'pending'
  WHEN state <> 'confirmed' THEN 'unpaid' WHEN product = 'desk' THEN 'ordered'
  WHEN delivery = 'delivered' OR product = 'facilitator' THEN 'delivered'
  WHEN product = 'gateway' AND (redeem_until IS NULL OR redeem_until > $now)
    AND attempts < CASE delivery WHEN 'delivering' THEN $cutAttemptsMax ELSE $attemptsMax END
    THEN 'redeemable' ELSE 'undelivered' END`

export const paymentsSql = (byPayer: boolean) => `WITH p AS MATERIALIZED (
    SELECT ${outcome} AS outcome, CAST(amount_atomic AS INTEGER) AS amount, ${spent} AS spent,
      ${keyFrom('payments', byPayer)}
  )
  SELECT ${key}, outcome, count(*) AS payments, ${amountSum('amount')} AS amount,
    ${gasSum('iif(spent < 0, -1 - spent, spent)')}, sum(spent < 0) AS unknownGas
  FROM p GROUP BY ${key}, outcome`

export type PaymentsRow = SalesKey &
  GasSum & {
    outcome: 'pending' | 'unpaid' | 'ordered' | 'delivered' | 'redeemable' | 'undelivered'
    payments: number
    amount: string
  }

/** Confirmed payments of orders: `returned` went back to the payer, of what was to be swapped. */
export const ordersSql = (byPayer: boolean) => `WITH p AS (
    SELECT id, state, CAST(amount_atomic AS INTEGER) AS amount, ${keyFrom('payments', byPayer)}
  )
  SELECT ${keyOfPayment}, o.state AS outcome, count(*) AS payments, ${amountSum('amount')} AS amount,
    ${amountSum('coalesce(CAST(returned_atomic AS INTEGER), 0)')} AS returned,
    ${amountSum('CAST(usdg_atomic AS INTEGER)')} AS usdg
  FROM orders AS o CROSS JOIN p ON p.id = o.payment_id AND p.state = 'confirmed'
  WHERE o.payment_id >= $from AND o.payment_id < $to
  GROUP BY ${keyOfPayment}, o.state`

export type OrdersRow = SalesKey & {
  /** State of the orders. */
  outcome: string
  payments: number
  amount: string
  returned: string
  usdg: string
}

/** Ids of jobs are those of src/stock/Order.ts; `;` follows `:`. */
export const orderGasSql = (byPayer: boolean) => `WITH p AS (
    SELECT id, ${keyFrom('payments', byPayer)}
  ), costs AS (
    SELECT p.*, ${cost} AS cost
    FROM orders AS o CROSS JOIN p ON p.id = o.payment_id
      CROSS JOIN job_transactions AS j ON j.job_id = 'swap:' || o.id
        OR (j.job_id >= 'refund:' || o.id AND j.job_id < 'refund:' || o.id || ';')
      CROSS JOIN transactions AS t ON t.hash = j.transaction_hash AND ${isIncluded}
    WHERE o.payment_id >= $from AND o.payment_id < $to
  )
  SELECT ${key}, ${gasSum('cost')}, sum(cost IS NULL) AS unknownGas FROM costs GROUP BY ${key}`

export type OrderGasRow = SalesKey & GasSum

/** Charges without a payment: `metered` ones are to be sent, `failed` ones are lost. */
export const chargesSql = (byPayer: boolean) => `WITH a AS (
    SELECT state, CAST(charge_atomic AS INTEGER) AS charge, ${keyFrom('authorizations', byPayer)}
      AND state IN ('metered', 'failed')
  )
  SELECT ${key}, state, count(*) AS charges, ${amountSum('charge')} AS amount
  FROM a GROUP BY ${key}, state`

export type ChargesRow = SalesKey & {
  state: 'metered' | 'failed'
  charges: number
  amount: string
}

/** Of transactions without payment and order. The first condition is that of the index. */
export const otherGasSql = `SELECT network, kind, ${gasSum(cost)}, sum(cost_wei IS NULL) AS unknownGas
  FROM transactions AS t
  WHERE kind NOT IN ('payment', 'batch') AND created_at >= $from AND created_at < $to
    AND kind NOT IN ('swap', 'refund') AND ${isIncluded}
  GROUP BY network, kind`

export type OtherGasRow = GasSum & { network: SalesKey['network']; kind: string }

/** Of the hours that the span is in. */
export const requestsSql = `SELECT merchant, route, sum(asked) AS asked, sum(paid) AS paid,
    sum(failed) AS failed
  FROM hours WHERE hour > $from - 3600000 AND hour < $to GROUP BY merchant, route`

/** The smallest of each, by an index. */
export const firstSql = `SELECT (SELECT min(id) FROM payments) AS payment,
  (SELECT min(id) FROM authorizations) AS authorization, (SELECT min(hour) FROM hours) AS hour,
  (SELECT min(created_at) FROM transactions WHERE kind NOT IN ('payment', 'batch')) AS transactionAt`

export type FirstRow = Record<'payment' | 'authorization', string | null> &
  Record<'hour' | 'transactionAt', number | null>

export const assetsSql = `SELECT network, address, network_name AS networkName, symbol, decimals,
    coin_usd AS coinUsd
  FROM assets ORDER BY updated_at DESC, network, address`
