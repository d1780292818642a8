import type { Dialect } from './dialect'
import type { RequestCounts, SalesKey } from './SalesLedger'

/** SQLite refuses a sum above 2^63 wei, which are 9 coins, so wei are summed in two parts. */
const part = 1_000_000_000n

export type GasSum = { high: string; low: string; unknownGas: number }

export function gasOf({ high, low }: GasSum): bigint {
  return BigInt(high) * part + BigInt(low)
}

/** The rows of all statements, of one state of the database. */
export type SpanRows = {
  payments: readonly PaymentsRow[]
  orders: readonly OrdersRow[]
  orderGas: readonly OrderGasRow[]
  charges: readonly ChargesRow[]
  otherGas: readonly OtherGasRow[]
  requests: readonly RequestCounts[]
}

export type PaymentsRow = SalesKey &
  GasSum & {
    outcome: 'pending' | 'unpaid' | 'ordered' | 'delivered' | 'redeemable' | 'undelivered'
    payments: number
    amount: string
  }

export type OrdersRow = SalesKey & {
  /** State of the orders. */
  outcome: string
  payments: number
  amount: string
  returned: string
  usdg: string
}

type OrderGasRow = SalesKey & GasSum

export type ChargesRow = SalesKey & {
  state: 'metered' | 'failed'
  charges: number
  amount: string
}

type OtherGasRow = GasSum & { network: SalesKey['network']; kind: string }

export type FirstRow = Record<'payment' | 'authorization', string | null> &
  Record<'hour' | 'transactionAt', number | null>

/**
 * Sums of one span for the figures of sales, in SQL for both databases. `$from` and `$to` are the
 * first ids of its begin and end, `$begin` and `$end` its times. A sum is read as text, because
 * bun:sqlite rounds integers above 2^53. Amounts of a short span are below 2^63.
 */
export function salesSql(dialect: Dialect) {
  return {
    payments: (byPayer: boolean) => paymentsSql(dialect, byPayer),
    orders: (byPayer: boolean) => ordersSql(dialect, byPayer),
    orderGas: (byPayer: boolean) => orderGasSql(dialect, byPayer),
    charges: (byPayer: boolean) => chargesSql(dialect, byPayer),
    otherGas: otherGasSql(dialect),
    requests: requestsSql,
    first: firstSql,
    assets: `SELECT network, address, network_name AS "networkName", symbol, decimals,
        coin_usd AS "coinUsd"
      FROM assets ORDER BY updated_at DESC, network, ${dialect.fold('address')}`,
  }
}

const isIncluded = "t.state IN ('mined', 'failed')"

/** Jobs of an order. Their ids are those of src/stock/Order.ts; `;` follows `:`. */
export function isJobOf(order: string): string {
  return `(j.job_id = 'swap:' || ${order}
    OR (j.job_id >= 'refund:' || ${order} AND j.job_id < 'refund:' || ${order} || ';'))`
}

function gasSum({ divide }: Dialect, wei: string): string {
  return `CAST(coalesce(sum(${divide(wei, String(part))}), 0) AS TEXT) AS high,
    CAST(coalesce(sum((${wei}) % ${part}), 0) AS TEXT) AS low`
}

function amountSum(amount: string): string {
  return `CAST(sum(${amount}) AS TEXT)`
}

function countOf(condition: string): string {
  return `sum(CASE WHEN ${condition} THEN 1 ELSE 0 END)`
}

/** Columns of a key. The id of a payment begins with the time of its request: an index of the time. */
function keyFrom({ fold }: Dialect, table: string, byPayer: boolean): string {
  return `CASE WHEN product = 'facilitator' THEN 'facilitator'
      WHEN ${fold('payer')} IN (SELECT ${fold('address')} FROM own_accounts) THEN 'own'
      ELSE 'sale' END AS class,
    network, asset, CASE product WHEN 'desk' THEN 'stock' ELSE merchant END AS merchant, route,
    ${byPayer ? 'payer' : 'NULL'} AS payer
  FROM ${table} WHERE id >= $from AND id < $to`
}

/** The key of a group of the rows `p`, and what groups and sorts by it. */
function keyOf({ fold, any }: Dialect): { key: string; group: string } {
  return {
    key: `p.class, p.network, ${any('p.asset')} AS asset, p.merchant, p.route, ${any('p.payer')} AS payer`,
    group: `p.class, p.network, ${fold('p.asset')}, p.merchant, p.route, ${fold('p.payer')}`,
  }
}

/** What became of the money of a payment. That of an order is in `ordersSql`. */
const outcome = `CASE WHEN state IN ('broadcast', 'reverted') THEN 'pending'
  WHEN state <> 'confirmed' THEN 'unpaid' WHEN product = 'desk' THEN 'ordered'
  WHEN delivery = 'delivered' OR product = 'facilitator' THEN 'delivered'
  WHEN product = 'gateway' AND (redeem_until IS NULL OR redeem_until > CAST($now AS BIGINT))
    AND attempts < CASE delivery WHEN 'delivering' THEN CAST($cutAttemptsMax AS BIGINT)
      ELSE CAST($attemptsMax AS BIGINT) END
    THEN 'redeemable' ELSE 'undelivered' END`

/** Members of a batch have equal parts of its cost, and the first ones the remainder: all of it. */
const members = `CASE t.kind WHEN 'batch' THEN (SELECT max(b.position) + 1
  FROM transaction_members AS b WHERE b.transaction_hash = t.hash) ELSE 1 END`

/** What a payment cost; -1 minus that when the cost of a transaction of it is not known. */
function spentOf({ number, divide, join }: Dialect): string {
  return `(SELECT CASE WHEN count(*) = count(cost) THEN coalesce(sum(share), 0)
      ELSE -1 - coalesce(sum(share), 0) END
    FROM (SELECT cost, ${divide('cost', 'members')}
        + CASE WHEN place < cost % members THEN 1 ELSE 0 END AS share
      FROM (SELECT ${number('t.cost_wei')} AS cost, m.position AS place, ${members} AS members
        FROM transaction_members AS m
          ${join('transactions', 't', `t.hash = m.transaction_hash AND ${isIncluded}`)}
        WHERE m.payment_id = payments.id) AS costs) AS shares)`
}

function paymentsSql(dialect: Dialect, byPayer: boolean): string {
  const { key, group } = keyOf(dialect)
  return `WITH p AS MATERIALIZED (
    SELECT ${outcome} AS outcome, ${dialect.number('amount_atomic')} AS amount,
      ${spentOf(dialect)} AS spent, ${keyFrom(dialect, 'payments', byPayer)}
  )
  SELECT ${key}, outcome, count(*) AS payments, ${amountSum('amount')} AS amount,
    ${gasSum(dialect, 'CASE WHEN spent < 0 THEN -1 - spent ELSE spent END')},
    ${countOf('spent < 0')} AS "unknownGas"
  FROM p GROUP BY ${group}, outcome ORDER BY ${group}, outcome`
}

/** Confirmed payments of orders: `returned` went back to the payer, of what was to be swapped. */
function ordersSql(dialect: Dialect, byPayer: boolean): string {
  const { key, group } = keyOf(dialect)
  const { number, join } = dialect
  return `WITH p AS (
    SELECT id, state, ${number('amount_atomic')} AS amount, ${keyFrom(dialect, 'payments', byPayer)}
  )
  SELECT ${key}, o.state AS outcome, count(*) AS payments, ${amountSum('p.amount')} AS amount,
    ${amountSum(`coalesce(${number('o.returned_atomic')}, 0)`)} AS returned,
    ${amountSum(number('o.usdg_atomic'))} AS usdg
  FROM orders AS o ${join('p', 'p', "p.id = o.payment_id AND p.state = 'confirmed'")}
  WHERE o.payment_id >= $from AND o.payment_id < $to
  GROUP BY ${group}, o.state ORDER BY ${group}, o.state`
}

function orderGasSql(dialect: Dialect, byPayer: boolean): string {
  const { key, group } = keyOf(dialect)
  const { number, join } = dialect
  return `WITH paid AS (
    SELECT id, ${keyFrom(dialect, 'payments', byPayer)}
  ), p AS (
    SELECT paid.*, ${number('t.cost_wei')} AS cost
    FROM orders AS o ${join('paid', 'paid', 'paid.id = o.payment_id')}
      ${join('job_transactions', 'j', isJobOf('o.id'))}
      ${join('transactions', 't', `t.hash = j.transaction_hash AND ${isIncluded}`)}
    WHERE o.payment_id >= $from AND o.payment_id < $to
  )
  SELECT ${key}, ${gasSum(dialect, 'cost')}, ${countOf('cost IS NULL')} AS "unknownGas"
  FROM p GROUP BY ${group} ORDER BY ${group}`
}

/** Charges without a payment: `metered` ones are to be sent, `failed` ones are lost. */
function chargesSql(dialect: Dialect, byPayer: boolean): string {
  const { key, group } = keyOf(dialect)
  return `WITH p AS (
    SELECT state, ${dialect.number('charge_atomic')} AS charge,
      ${keyFrom(dialect, 'authorizations', byPayer)} AND state IN ('metered', 'failed')
  )
  SELECT ${key}, state, count(*) AS charges, ${amountSum('charge')} AS amount
  FROM p GROUP BY ${group}, state ORDER BY ${group}, state`
}

/** Gas of transactions without payment and order. The first condition is that of the index. */
function otherGasSql(dialect: Dialect): string {
  return `SELECT network, kind, ${gasSum(dialect, dialect.number('t.cost_wei'))},
    ${countOf('cost_wei IS NULL')} AS "unknownGas"
  FROM transactions AS t
  WHERE kind NOT IN ('payment', 'batch') AND created_at >= $begin AND created_at < $end
    AND kind NOT IN ('swap', 'refund') AND ${isIncluded}
  GROUP BY network, kind ORDER BY network, kind`
}

/** Counts of the hours that the span is in. */
const requestsSql = `SELECT merchant, route, sum(asked) AS asked, sum(paid) AS paid,
    sum(failed) AS failed
  FROM hours WHERE hour > CAST($begin AS BIGINT) - 3600000 AND hour < $end
  GROUP BY merchant, route ORDER BY merchant, route`

/** The smallest id or time of each table, by an index. */
const firstSql = `SELECT (SELECT min(id) FROM payments) AS payment,
  (SELECT min(id) FROM authorizations) AS "authorization", (SELECT min(hour) FROM hours) AS hour,
  (SELECT min(created_at) FROM transactions WHERE kind NOT IN ('payment', 'batch'))
    AS "transactionAt"`
