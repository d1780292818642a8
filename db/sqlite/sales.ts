import type { Database, Statement } from 'bun:sqlite'
import type {
  AssetRow,
  OtherGas,
  RequestCounts,
  SalesFigures,
  SalesKey,
  SalesOfSpan,
  SalesQuery,
  SalesReads,
  SalesRow,
  Span,
} from '../SalesLedger'

/**
 * bun:sqlite rounds integers above 2^53, and SQLite refuses a sum above 2^63, which is 9 coins in
 * wei. So each sum is made of two parts, and read as text. One amount is below 2^63.
 */
const part = 1_000_000_000n

function sum(value: string, name: string): string {
  return `CAST(coalesce(sum((${value}) / ${part}), 0) AS TEXT) AS ${name}High,
    CAST(coalesce(sum((${value}) % ${part}), 0) AS TEXT) AS ${name}Low`
}

type Text<Name extends string> = Record<`${Name}${'High' | 'Low'}`, string>

function read<Name extends string>(row: Text<Name>, name: Name): bigint {
  const [high, low]: string[] = [row[`${name}High`], row[`${name}Low`]]
  return BigInt(high ?? 0) * part + BigInt(low ?? 0)
}

/** The id of a payment begins with the time of its request. So the key of the table is its index. */
const ofSpan = 'id >= $from AND id < $to'

/** Columns of a key, from a table with money. */
function keyFrom(table: 'payments' | 'authorizations', byPayer: boolean): string {
  return `CASE WHEN product = 'facilitator' THEN 'facilitator'
      WHEN payer IN (SELECT address FROM own_accounts) THEN 'own' ELSE 'sale' END AS class,
    network, asset, CASE product WHEN 'desk' THEN 'stock' ELSE merchant END AS merchant, route,
    ${byPayer ? 'payer' : 'NULL'} AS payer FROM ${table} WHERE ${ofSpan}`
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

/** What happened to the money of each payment, then the sums by key. */
function paymentsSql(byPayer: boolean): string {
  const redeemable = `(redeem_until IS NULL OR redeem_until > $now)
    AND attempts < CASE delivery WHEN 'delivering' THEN $cutAttemptsMax ELSE $attemptsMax END`
  return `WITH p AS (
    SELECT id, product, state, delivery, CAST(amount_atomic AS INTEGER) AS amount,
      ${redeemable} AS isRedeemable, ${spent} AS spent, ${keyFrom('payments', byPayer)}
  ), parts AS MATERIALIZED (
    SELECT ${keyOfPayment}, product, amount, isRedeemable, spent, p.state = 'confirmed' AS isPaid,
      p.state IN ('broadcast', 'reverted') AS isPending,
      CASE WHEN p.state <> 'confirmed' THEN 0
        WHEN product <> 'desk' THEN iif(delivery = 'delivered', amount, 0)
        WHEN o.state = 'delivered' THEN amount - coalesce(CAST(returned_atomic AS INTEGER), 0)
        ELSE 0 END AS delivered,
      CASE WHEN p.state <> 'confirmed' THEN 0 WHEN o.state = 'refunded' THEN amount
        WHEN o.state = 'delivered' THEN coalesce(CAST(returned_atomic AS INTEGER), 0)
        ELSE 0 END AS refunded,
      CASE WHEN p.state = 'confirmed' AND o.state = 'delivered'
        THEN CAST(usdg_atomic AS INTEGER) - coalesce(CAST(returned_atomic AS INTEGER), 0)
        ELSE 0 END AS swapped
    FROM p LEFT JOIN orders AS o ON product = 'desk' AND o.payment_id = p.id
  ), figures AS MATERIALIZED (
    SELECT *, iif(isPaid, amount - delivered - refunded, 0) AS undelivered FROM parts
  )
  SELECT ${key}, sum(isPaid) AS payments, ${sum('iif(isPaid, amount, 0)', 'paid')},
    ${sum('delivered', 'delivered')}, sum(undelivered > 0) AS undelivered,
    ${sum('undelivered', 'undelivered')},
    sum(undelivered > 0 AND product = 'gateway' AND isRedeemable) AS redeemable,
    ${sum("iif(product = 'gateway' AND isRedeemable, undelivered, 0)", 'redeemable')},
    sum(undelivered > 0 AND product = 'desk') AS openOrders,
    ${sum('refunded', 'refunded')}, ${sum('swapped', 'swapped')},
    sum(isPending) AS pending, ${sum('iif(isPending, amount, 0)', 'pending')},
    ${sum('iif(spent < 0, -1 - spent, spent)', 'gas')}, sum(spent < 0) AS unknownGas
  FROM figures GROUP BY ${key}`
}

type PaymentsRow = SalesKey &
  Record<'payments' | 'undelivered' | 'redeemable' | 'openOrders' | 'pending', number> &
  Text<'paid' | 'delivered' | 'undelivered' | 'redeemable' | 'refunded' | 'swapped' | 'pending'> &
  Pick<SalesFigures, 'unknownGas'> &
  Text<'gas'>

/** Charges without a payment: to be sent, or lost. */
function chargesSql(byPayer: boolean): string {
  return `WITH a AS (
    SELECT state, CAST(charge_atomic AS INTEGER) AS charge, ${keyFrom('authorizations', byPayer)}
      AND state IN ('metered', 'failed')
  )
  SELECT ${key}, sum(state = 'metered') AS pending, sum(state = 'failed') AS lost,
    ${sum("iif(state = 'metered', charge, 0)", 'pending')},
    ${sum("iif(state = 'failed', charge, 0)", 'lost')}
  FROM a GROUP BY ${key}`
}

type ChargesRow = SalesKey & Record<'pending' | 'lost', number> & Text<'pending' | 'lost'>

/** Ids of jobs are those of src/stock/Order.ts; `;` follows `:`. */
function orderGasSql(byPayer: boolean): string {
  return `WITH p AS (SELECT id, ${keyFrom('payments', byPayer)}),
  costs AS (
    SELECT p.*, ${cost} AS cost
    FROM orders AS o CROSS JOIN p ON p.id = o.payment_id
      CROSS JOIN job_transactions AS j ON j.job_id = 'swap:' || o.id
        OR (j.job_id >= 'refund:' || o.id AND j.job_id < 'refund:' || o.id || ';')
      CROSS JOIN transactions AS t ON t.hash = j.transaction_hash AND ${isIncluded}
    WHERE o.payment_id >= $from AND o.payment_id < $to
  )
  SELECT ${key}, ${sum('cost', 'gas')}, sum(cost IS NULL) AS unknownGas
  FROM costs GROUP BY ${key}`
}

type GasRow = SalesKey & { unknownGas: number } & Text<'gas'>

/** The first condition is that of the index. */
const otherGasSql = `SELECT network, kind, ${sum(cost, 'gas')}, sum(cost_wei IS NULL) AS unknownGas
  FROM transactions AS t
  WHERE kind NOT IN ('payment', 'batch') AND created_at >= $from AND created_at < $to
    AND kind NOT IN ('swap', 'refund') AND ${isIncluded}
  GROUP BY network, kind`

const requestsSql = `SELECT merchant, route, sum(asked) AS asked, sum(paid) AS paid,
    sum(failed) AS failed
  FROM hours WHERE hour >= $from AND hour < $to GROUP BY merchant, route`

/** The smallest of each, by an index. */
const firstSql = `SELECT (SELECT min(id) FROM payments) AS payment,
  (SELECT min(id) FROM authorizations) AS authorization, (SELECT min(hour) FROM hours) AS hour,
  (SELECT min(created_at) FROM transactions WHERE kind NOT IN ('payment', 'batch')) AS transactionAt`

type First = Record<'payment' | 'authorization', string | null> &
  Record<'hour' | 'transactionAt', number | null>

const assetsSql = `SELECT network, address, network_name AS networkName, symbol, decimals,
    coin_usd AS coinUsd
  FROM assets ORDER BY updated_at DESC, network, address`

/** The figures of sales, from any connection. */
export function createSalesReads(sqlite: Database): SalesReads {
  const prepared = new Map<string, Statement>()
  /** Prepared on first use, because a service may never need them. */
  const all = <Row>(sql: string, values: Record<string, string | number> = {}): Row[] => {
    const statement = prepared.get(sql) ?? sqlite.prepare(sql)
    prepared.set(sql, statement)
    return statement.all(values) as Row[]
  }
  const figures = (span: Span, { byPayer, redeemable }: SalesQuery): SalesOfSpan => {
    const ids = { from: idAt(span.from), to: idAt(span.to) }
    const collected = collect()
    const payments = all<PaymentsRow>(paymentsSql(byPayer), { ...ids, ...redeemable })
    for (const row of payments) Object.assign(collected.at(row), paymentFigures(row))
    for (const row of all<ChargesRow>(chargesSql(byPayer), ids)) {
      const found = collected.at(row)
      found.pending += row.pending
      found.pendingAtomic += read(row, 'pending')
      found.lost += row.lost
      found.lostAtomic += read(row, 'lost')
    }
    for (const row of all<GasRow>(orderGasSql(byPayer), ids)) {
      const found = collected.at(row)
      found.gasWei += read(row, 'gas')
      found.unknownGas += row.unknownGas
    }
    const gas = all<Omit<OtherGas, 'gasWei'> & Text<'gas'>>(otherGasSql, { ...span })
    return {
      rows: collected.rows(),
      otherGas: gas.map(({ network, kind, unknownGas, ...row }) => {
        return { network, kind, unknownGas, gasWei: read(row, 'gas') }
      }),
      requests: all<RequestCounts>(requestsSql, { ...span }),
    }
  }
  // One transaction, so that all figures are of one state.
  const inOne = sqlite.transaction(figures)
  return {
    ofSpan: async (span, query) => inOne(span, query),
    async firstAt() {
      const [first] = all<First>(firstSql)
      const times = [
        timeOf(first?.payment ?? null),
        timeOf(first?.authorization ?? null),
        first?.hour ?? null,
        first?.transactionAt ?? null,
      ].filter((time) => time !== null)
      return times.length === 0 ? undefined : Math.min(...times)
    },
    assets: async () => all<AssetRow>(assetsSql),
  }
}

function idAt(at: number): string {
  return `pay_${at.toString(16).padStart(12, '0')}`
}

function timeOf(id: string | null): number | null {
  const time = id === null ? Number.NaN : Number.parseInt(id.slice(4, 16), 16)
  return Number.isNaN(time) ? null : time
}

const nothing: SalesFigures = {
  payments: 0,
  paidAtomic: 0n,
  deliveredAtomic: 0n,
  undelivered: 0,
  undeliveredAtomic: 0n,
  redeemable: 0,
  redeemableAtomic: 0n,
  openOrders: 0,
  refundedAtomic: 0n,
  swappedAtomic: 0n,
  pending: 0,
  pendingAtomic: 0n,
  lost: 0,
  lostAtomic: 0n,
  gasWei: 0n,
  unknownGas: 0,
}

function paymentFigures(row: PaymentsRow): Partial<SalesFigures> {
  const { payments, undelivered, redeemable, openOrders, pending, unknownGas } = row
  return {
    payments,
    undelivered,
    redeemable,
    openOrders,
    pending,
    unknownGas,
    gasWei: read(row, 'gas'),
    paidAtomic: read(row, 'paid'),
    deliveredAtomic: read(row, 'delivered'),
    undeliveredAtomic: read(row, 'undelivered'),
    redeemableAtomic: read(row, 'redeemable'),
    refundedAtomic: read(row, 'refunded'),
    swappedAtomic: read(row, 'swapped'),
    pendingAtomic: read(row, 'pending'),
  }
}

/** Rows by their keys. */
function collect() {
  const byKey = new Map<string, SalesRow>()
  return {
    at({ class: of, network, asset, merchant, route, payer }: SalesKey): SalesRow {
      const text = [of, network, asset, merchant, route, payer].join(' ')
      const known = byKey.get(text)
      if (known !== undefined) return known
      const made = {
        ...{ class: of, network, asset, merchant, route, payer: payer ?? undefined },
        ...nothing,
      }
      byKey.set(text, made)
      return made
    },
    rows: () => [...byKey.values()],
  }
}
