import type { Address } from 'viem'
import type * as Client from '../src/protocol/Client'
import type * as Network from '../src/protocol/Network'
import { dayStart } from '../src/protocol/Time'
import type { ChannelTotals } from './Channel'
import { createTotals } from './channels'
import type { Dialect } from './dialect'
import type { requests } from './schema'
import type { Selects } from './select'

/** SQLite refuses a sum above 2^63 wei, which are 9 coins, so wei are summed in two parts. */
const part = 1_000_000_000n

type GasSum = { high: string; low: string; unknownGas: number }

function gasOf({ high, low }: GasSum): bigint {
  return BigInt(high) * part + BigInt(low)
}

/** The rows of all statements, of one state of the database. */
export type SpanRows = {
  payments: readonly PaymentsRow[]
  orders: readonly OrdersRow[]
  orderGas: readonly OrderGasRow[]
  charges: readonly ChargesRow[]
  otherGas: readonly OtherGasRow[]
}

type PaymentsRow = SalesKey &
  GasSum & {
    outcome:
      | 'pending'
      | 'unpaid'
      | 'ordered'
      | 'delivered'
      | 'refunded'
      | 'redeemable'
      | 'undelivered'
    payments: number
    amount: string
    /** Payments that were refunded, also in part, and what went back. */
    refunds: number
    refunded: string
  }

type OrdersRow = SalesKey & {
  /** State of the orders. */
  outcome: string
  payments: number
  amount: string
  returned: string
  usdg: string
}

type OrderGasRow = SalesKey & GasSum

type ChargesRow = SalesKey & {
  state: 'metered' | 'failed'
  charges: number
  amount: string
}

type OtherGasRow = GasSum & { network: SalesKey['network']; kind: string }

type FirstRow = Record<'payment' | 'authorization', string | null> &
  Record<'day' | 'transactionAt', number | null>

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
    buyers: buyersSql(dialect),
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

/** What went back to the payer of a payment; NULL without a refund that was paid. */
const refundOf = `(SELECT refunds.amount_atomic FROM refunds
  WHERE refunds.payment_id = payments.id AND refunds.paid_hash IS NOT NULL)`

/** What became of the money of a payment. That of an order is in `ordersSql`. */
const outcome = `CASE WHEN state IN ('broadcast', 'reverted') THEN 'pending'
  WHEN state <> 'confirmed' THEN 'unpaid' WHEN product = 'desk' THEN 'ordered'
  WHEN delivery = 'delivered' OR product = 'facilitator' THEN 'delivered'
  WHEN ${refundOf} = amount_atomic THEN 'refunded'
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
      ${dialect.number(refundOf)} AS refund,
      ${spentOf(dialect)} AS spent, ${keyFrom(dialect, 'payments', byPayer)}
  )
  SELECT ${key}, outcome, count(*) AS payments, ${amountSum('amount')} AS amount,
    count(refund) AS refunds, ${amountSum('coalesce(refund, 0)')} AS refunded,
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

/**
 * Gas of transactions without payment and order, and of refunds of payments. The first condition is that
 * of the index.
 */
function otherGasSql(dialect: Dialect): string {
  return `SELECT network, kind, ${gasSum(dialect, dialect.number('t.cost_wei'))},
    ${countOf('cost_wei IS NULL')} AS "unknownGas"
  FROM transactions AS t
  WHERE kind NOT IN ('payment', 'batch') AND created_at >= $begin AND created_at < $end
    AND (kind NOT IN ('swap', 'refund') OR (SELECT j.job_id FROM job_transactions AS j
      WHERE j.transaction_hash = t.hash) LIKE 'repay:%') AND ${isIncluded}
  GROUP BY network, kind ORDER BY network, kind`
}

const requestsSql = `SELECT merchant, route, client, step, detail, times FROM requests
  WHERE day = $day ORDER BY merchant, route, client, step, detail`

/** Most payments of a payer that are looked at for one on an earlier day; nonces are their order. */
const lookedAtMax = 2_000

/** Confirmed payments by payer. `$day` is the first id of the UTC day that the span is in. */
function buyersSql(dialect: Dialect): string {
  const { fold, any } = dialect
  const isPaid = "state = 'confirmed' AND product <> 'facilitator'"
  return `WITH p AS (
    SELECT coalesce(client, 'other') AS client, ${keyFrom(dialect, 'payments', true)}
      AND ${isPaid}
  ), b AS (
    SELECT class, merchant, route, client, ${any('payer')} AS payer, count(*) AS payments
    FROM p GROUP BY class, merchant, route, client, ${fold('payer')}
  )
  SELECT b.*, CASE WHEN EXISTS (
      SELECT 1 FROM assets AS a WHERE $day > (SELECT min(known.id) FROM (
        SELECT e.id FROM payments AS e WHERE e.network = a.network
          AND ${fold('e.asset')} = ${fold('a.address')} AND ${fold('e.payer')} = ${fold('b.payer')}
          AND ${isPaid} LIMIT ${lookedAtMax}) AS known)
    ) THEN 1 ELSE 0 END AS again
  FROM b ORDER BY class, merchant, route, client, ${fold('payer')}`
}

/** The smallest id or time of each table, by an index. */
const firstSql = `SELECT (SELECT min(id) FROM payments) AS payment,
  (SELECT min(id) FROM authorizations) AS "authorization", (SELECT min(day) FROM requests) AS day,
  (SELECT min(created_at) FROM transactions WHERE kind NOT IN ('payment', 'batch'))
    AS "transactionAt"`

/** The figures of a span, from the sums of the database. */
export function figuresOf(sums: SpanRows): SalesOfSpan {
  const { at, rows } = collect()
  for (const row of sums.payments) addPayments(at(row), row)
  for (const row of sums.orders) addOrders(at(row), row)
  for (const row of sums.orderGas) addGas(at(row), row)
  for (const row of sums.charges) addCharges(at(row), row)
  return {
    rows: rows(),
    otherGas: sums.otherGas.map((row) => {
      const { network, kind, unknownGas } = row
      return { network, kind, unknownGas, gasWei: gasOf(row) }
    }),
  }
}

/** Unix ms of the first row that has figures. */
function firstOf(first: FirstRow | undefined): number | undefined {
  const { payment, authorization, day, transactionAt } = first ?? {}
  const ids = [timeOf(payment ?? ''), timeOf(authorization ?? '')].filter((time) => time > 0)
  const times = [...ids, day, transactionAt].filter((time) => typeof time === 'number')
  return times.length === 0 ? undefined : Math.min(...times)
}

/** The smallest id of a payment whose request came at this time or later. */
export function idAt(at: number): string {
  return `pay_${at.toString(16).padStart(12, '0')}`
}

/** The time in the id of a payment or an order: when its request came, unix ms. 0 in another text. */
export function timeOf(id: string): number {
  return Number.parseInt(id.slice(4, 16), 16) || 0
}

/** Figures of the payments of a key that arrived in a span, here of none. Every amount is atomic. */
export const noFigures = {
  /** Confirmed payments. `paid` is the sum of delivered, undelivered and refunded. */
  payments: 0,
  paidAtomic: 0n,
  deliveredAtomic: 0n,
  undelivered: 0,
  undeliveredAtomic: 0n,
  /** The part of the undelivered whose buyers can still fetch the answer. */
  redeemable: 0,
  redeemableAtomic: 0n,
  /** The part of the undelivered that is stock orders which have not ended. */
  openOrders: 0,
  /** Payments that went back, also in part, without the change of an order that was delivered. */
  refunds: 0,
  refundedAtomic: 0n,
  /** The part of the delivered that was swapped for stock. */
  swappedAtomic: 0n,
  /** Payments that are sent and not decided, and charges that are not sent yet. */
  pending: 0,
  pendingAtomic: 0n,
  /** Charges by use that could never be settled. */
  lost: 0,
  lostAtomic: 0n,
  /**
   * Cost of the included transactions of all payments, confirmed or not: an equal part of each
   * batch, and the swaps and refunds of orders.
   */
  gasWei: 0n,
  /** Included transactions whose cost an earlier version did not store, once for each payment. */
  unknownGas: 0,
}

export type SalesFigures = typeof noFigures

function addPayments(to: SalesRow, row: PaymentsRow): void {
  const { outcome, payments } = row
  const amount = BigInt(row.amount)
  addGas(to, row)
  if (outcome === 'pending') {
    to.pending += payments
    to.pendingAtomic += amount
  }
  if (outcome === 'pending' || outcome === 'unpaid' || outcome === 'ordered') return
  const [refunded, kept] = [BigInt(row.refunded), amount - BigInt(row.refunded)]
  to.payments += payments
  to.paidAtomic += amount
  to.refunds += row.refunds
  to.refundedAtomic += refunded
  if (outcome === 'delivered') to.deliveredAtomic += kept
  if (outcome === 'delivered' || outcome === 'refunded') return
  to.undelivered += payments
  to.undeliveredAtomic += kept
  if (outcome !== 'redeemable') return
  to.redeemable += payments
  to.redeemableAtomic += kept
}

function addOrders(to: SalesRow, { outcome, payments, ...row }: OrdersRow): void {
  const [amount, returned] = [BigInt(row.amount), BigInt(row.returned)]
  to.payments += payments
  to.paidAtomic += amount
  if (outcome === 'refunded') to.refunds += payments
  if (outcome === 'delivered') {
    to.deliveredAtomic += amount - returned
    to.refundedAtomic += returned
    to.swappedAtomic += BigInt(row.usdg) - returned
  } else if (outcome === 'refunded') {
    to.refundedAtomic += amount
  } else {
    to.undelivered += payments
    to.undeliveredAtomic += amount
    to.openOrders += payments
  }
}

function addCharges(to: SalesRow, { state, charges, amount }: ChargesRow): void {
  if (state === 'metered') {
    to.pending += charges
    to.pendingAtomic += BigInt(amount)
  } else {
    to.lost += charges
    to.lostAtomic += BigInt(amount)
  }
}

function addGas(to: SalesRow, row: GasSum): void {
  to.gasWei += gasOf(row)
  to.unknownGas += row.unknownGas
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
        ...noFigures,
      }
      byKey.set(text, made)
      return made
    },
    rows: () => [...byKey.values()],
  }
}

/** Time from `from` to before `to`, unix ms. */
export type Span = { from: number; to: number }

/**
 * Whose money a payment is. `sale`: a buyer's. `own`: an account of this service paid. `facilitator`:
 * another server's sale, settled for it.
 */
export type SalesClass = 'sale' | 'own' | 'facilitator'

/** What figures of sales belong to. A stock order belongs to the merchant `stock`. */
type SalesKey = {
  class: SalesClass
  network: Network.Id
  asset: Address
  merchant: string
  route: string
  /** Undefined when the figures are not by payer. */
  payer: Address | undefined
}

export type SalesRow = SalesKey & SalesFigures

/** Transactions without a payment or an order: grants, approves, refunds, cancelled account nonces. */
export type OtherGas = { network: Network.Id; kind: string; gasWei: bigint; unknownGas: number }

/** Requests of one kind of client to a route, at one step of the table `requests`. */
export type RequestCounts = Omit<typeof requests.$inferSelect, 'day'>

/** Confirmed payments of a payer to a route, of one kind of client. */
export type BuyerRow = {
  class: Exclude<SalesClass, 'facilitator'>
  merchant: string
  route: string
  client: Client.Kind
  payer: Address
  payments: number
  /** Whether the payer has paid on an earlier UTC day: 1 or 0. */
  again: number
}

/** Figures of one span, all of one state of the database. */
export type SalesOfSpan = {
  rows: readonly SalesRow[]
  otherGas: readonly OtherGas[]
}

export type SalesQuery = {
  byPayer: boolean
  /** Decides what is redeemable: unix ms, and the attempts after which an answer is not. */
  redeemable: { now: number; attemptsMax: number; cutAttemptsMax: number }
}

/** An asset of a network; `coinUsd` is the price of the native coin, as a decimal. */
export type AssetRow = {
  network: Network.Id
  address: Address
  networkName: string
  symbol: string
  decimals: number
  coinUsd: string
}

export type SalesReads = {
  /**
   * Figures of what arrived in a span: the time in the id of a payment. The read ends before it
   * resolves. Ask for short spans, such as an hour: while it is read, the database's log cannot be
   * written back, and within the service nothing else runs.
   */
  ofSpan(span: Span, query: SalesQuery): Promise<SalesOfSpan>
  /** Counts of a UTC day, by its begin (unix ms). */
  requestsOf(day: number): Promise<readonly RequestCounts[]>
  /** Payers of a span within a UTC day. Ask for short spans, as for `ofSpan`. */
  buyersOf(span: Span): Promise<readonly BuyerRow[]>
  /** Of the open channels now. */
  channels(): Promise<readonly ChannelTotals[]>
  /** Unix ms before which there are no figures; undefined when there are none at all. */
  firstAt(): Promise<number | undefined>
  /** The newest description first. */
  assets(): Promise<readonly AssetRow[]>
}

/** The reads that are one statement in both databases. */
export function createSalesSelects(selects: Selects): Omit<SalesReads, 'ofSpan'> {
  const { select, dialect } = selects
  const sql = salesSql(dialect)
  const requestsOf = select<RequestCounts>(sql.requests)
  const buyersOf = select<BuyerRow>(sql.buyers)
  const first = select<FirstRow>(sql.first)
  const assets = select<AssetRow>(sql.assets)
  return {
    requestsOf: (day) => requestsOf({ day }),
    // `day`: the first id of the UTC day of the span.
    buyersOf: ({ from, to }) =>
      buyersOf({ from: idAt(from), to: idAt(to), day: idAt(dayStart(from)) }),
    channels: createTotals(selects),
    firstAt: async () => firstOf((await first())[0]),
    assets: () => assets(),
  }
}

export type SalesLedger = SalesReads & {
  /**
   * Adds to the counts of a UTC day (unix ms of its begin), and deletes days that began before
   * `keptFrom`. Does not wait for the disk: a power loss may undo it until the next other commit.
   */
  addRequests(day: number, counts: readonly RequestCounts[], keptFrom: number): Promise<void>
  /** Keeps the accounts and the assets of a configuration beside those of earlier ones. */
  describe(input: {
    accounts: readonly Address[]
    assets: readonly AssetRow[]
    now: number
  }): Promise<void>
}
