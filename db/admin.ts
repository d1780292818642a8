import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { Authorization } from './Authorization'
import type { AuthorizationLedger } from './authorizations'
import type { ChannelRows } from './channels'
import type { Dialect } from './dialect'
import type { Entitlement, EntitlementLedger } from './Entitlement'
import type { Order } from './Order'
import type { OrderLedger } from './orders'
import type { Payment } from './Payment'
import type { PaymentReads } from './payment-reads'
import { idAt, isJobOf, type Span } from './sales'
import { type Values, type WithNulls, withoutNulls } from './select'

/** What became of a payment, in one word. `settled`: for another server, by the facilitator. */
export type Outcome = (typeof outcomes)[number]

export const outcomes = [
  'pending',
  'delivered',
  'undelivered',
  'refunded',
  'settled',
  'order',
  'unpaid',
] as const

/** A payment in a list. */
export type PaymentLine = {
  id: string
  network: Network.Id
  asset: Address
  payer: Address
  payee: Address
  amountAtomic: bigint
  /** Empty for the facilitator; `stock` for an order. */
  merchant: string
  route: string
  protocol: 'mpp' | 'x402'
  method: Payment['transfer']['method']
  outcome: Outcome
  upstreamStatus: number | undefined
  /** Unix ms; set when a delivery has failed. */
  redeemUntil: number | undefined
  /** Of the method `channel` the channel. */
  transaction: Hex
  /** Unix ms. */
  createdAt: number
}

/** Which payments are listed; undefined: all of them. */
export type PaymentFilter = {
  payer?: Address | undefined
  merchant?: string | undefined
  route?: string | undefined
  outcome?: Outcome | undefined
}

/** A page of a list: lines older than the id `before`, at most `limit`. */
type PageOf = { before: string | undefined; limit: number }

/** A transaction of a payment or of an order. Times are unix ms, fees in wei. */
export type StoryTransaction = {
  hash: Hex
  kind: string
  state: string
  relayer: Address
  nonce: number
  /** Payments that share it. */
  members: number
  maxFeeWei: bigint
  costWei: bigint | undefined
  createdAt: number
  firstSentAt: number | undefined
  blockNumber: number | undefined
}

/** All that the ledger has of one payment, or of a charge that was not sent. */
export type Story = {
  payment: Payment | undefined
  authorization: Authorization | undefined
  order: Order | undefined
  /** What the payment gives its wallet besides the answer. */
  entitlement: Entitlement | undefined
  /** Transactions of the payment, then those of its order; the oldest first. */
  transactions: readonly StoryTransaction[]
  /** The answer that is kept for the buyer's idempotency key. */
  answer: { status: number; bytes: number; expiresAt: number } | undefined
}

type GrantLine = {
  network: Network.Id
  address: Address
  kind: 'grant' | 'approval' | 'top-up'
  amountWei: bigint
  feeWei: bigint
  transaction: Hex
  createdAt: number
}

/** What the facilitator settled for a payee. */
type PayeeLine = {
  network: Network.Id
  asset: Address
  payee: Address
  payments: number
  amountAtomic: bigint
}

/** What an operator paused, by kind and name. */
export type Pause = { kind: 'merchant' | 'network'; name: string; at: number }

/** The reads of other parts that a story needs. */
export type StoryReads = {
  payments: Pick<PaymentReads, 'findById'>
  authorizations: Pick<AuthorizationLedger, 'findById'>
  orders: Pick<OrderLedger, 'find' | 'findByPayment'>
  entitlements: Pick<EntitlementLedger, 'findByPayment'>
  channels: Pick<ChannelRows, 'find' | 'charges'>
}

/** The database of the pages for operators. */
type AdminBase = {
  sql: AdminSql
  all<Row>(sql: string, values: Values): Promise<readonly Row[]>
  /**
   * Adds or removes one entry of the JSON list in a value of `meta`. `kind` and `name` identify an
   * entry. Resolves with the list when it is on the disk.
   */
  setPause(key: string, pause: Pause, isPause: boolean): Promise<readonly Pause[]>
}

/** Sorts after every id. */
const last = '~'
const pausesKey = 'paused'

export type AdminLedger = ReturnType<typeof createAdminLedger>

/**
 * What the pages for operators read. No statement reads a whole table: each is bounded by its limit
 * or by a span of time.
 */
export function createAdminLedger(base: AdminBase, reads: StoryReads) {
  const { all, sql } = base
  return {
    ...createLists(base),
    /** Ids of the newest charges of a channel; undefined when it is not known. */
    async inChannel(id: Hex, limit: number): Promise<readonly string[] | undefined> {
      const channel = await reads.channels.find(id)
      return channel && reads.channels.charges(channel, limit)
    },
    story: (id: string) => storyOf(base, reads, id),
    /** Id of the payment of an order. */
    paymentOfOrder: async (id: string) => (await reads.orders.find(id))?.paymentId,
    /** Orders in any state, the newest first. */
    async orders(page: PageOf): Promise<readonly Order[]> {
      const ids = await all<{ id: string }>(sql.orders, bounds(page))
      const found = await Promise.all(ids.map(({ id }) => reads.orders.find(id)))
      return found.filter((order) => order !== undefined)
    },
    async pauses(): Promise<readonly Pause[]> {
      const [row] = await all<{ value: string }>(sql.metaValue, { key: pausesKey })
      return row === undefined ? [] : (JSON.parse(row.value) as Pause[])
    },
    /**
     * Adds or removes one pause. Resolves with all pauses when that is on the disk. A call changes one
     * entry, so that operators at two gateways do not overwrite each other. Notifies other gateways.
     */
    setPause: (pause: Pause, isPause: boolean) => base.setPause(pausesKey, pause, isPause),
  }
}

function bounds({ before = last, limit }: PageOf) {
  return { before, limit }
}

function createLists({ all, sql }: AdminBase) {
  return {
    /**
     * Payments of the newest `rows` before an id that fit a filter, the newest first. `next`: the id
     * from which to continue; undefined at the end. The page has fewer lines than the limit when few
     * of these rows fit.
     */
    async payments(
      filter: PaymentFilter,
      page: PageOf & { rows: number },
    ): Promise<{ lines: readonly PaymentLine[]; next: string | undefined }> {
      const { payer = null, merchant = null, route = null, outcome = null } = filter
      const { before, limit } = bounds(page)
      const [start] = await all<{ id: string }>(sql.windowStart, { before, rows: page.rows })
      const values = { before, from: start?.id ?? '', limit, payer, merchant, route, outcome }
      const lines = (await all<LineRow>(sql.window, values)).map(toLine)
      const isFull = lines.length === limit
      return { lines, next: isFull ? lines.at(-1)?.id : start?.id }
    },
    /** All payments of a payer, the newest first; undefined when there are more than `max`. */
    async ofPayer(payer: Address, max: number): Promise<readonly PaymentLine[] | undefined> {
      const rows = await all<{ row: string | number }>(sql.rowsOfPayer, { payer, limit: max + 1 })
      if (rows.length > max) return undefined
      const ids = JSON.stringify(rows.map(({ row }) => row))
      const lines = (await all<LineRow>(sql.byRows, { rows: ids })).map(toLine)
      return lines.sort((left, right) => (left.id < right.id ? 1 : -1))
    },
    /** Payments that are sent and not decided, the newest first. */
    async pendingPayments(page: PageOf): Promise<readonly PaymentLine[]> {
      return (await all<LineRow>(sql.unfinished, bounds(page))).map(toLine)
    },
    /** Ids of the payments that a transaction contained or paid. */
    async inTransaction(hash: Hex): Promise<readonly string[]> {
      const text = hash.toLowerCase()
      const rows = [
        ...(await all<{ id: string }>(sql.membersOf, { hash: text })),
        ...(await all<{ id: string }>(sql.paidBy, { hash: text })),
      ]
      return [...new Set(rows.map(({ id }) => id))]
    },
    /** The newest grants and top-ups of a network since a time. */
    async grants(
      network: Network.Id,
      range: { from: number; before: number; limit: number },
    ): Promise<readonly GrantLine[]> {
      const values = { network, ...range }
      const rows = [
        ...(await all<GrantRow>(sql.grants, values)),
        ...(await all<GrantRow>(sql.topUps, values)),
      ]
      return rows
        .map((row): GrantLine => {
          return { ...row, amountWei: BigInt(row.amountWei), feeWei: BigInt(row.feeWei) }
        })
        .sort((left, right) => right.createdAt - left.createdAt)
        .slice(0, range.limit)
    },
    /** Confirmed settlements of the facilitator in a span. Ask for short spans, such as an hour. */
    async payees({ from, to }: Span): Promise<readonly PayeeLine[]> {
      const ids = { from: idAt(from), to: idAt(to) }
      return (await all<PayeeRow>(sql.payees, ids)).map(({ amount, ...row }): PayeeLine => {
        return { ...row, amountAtomic: BigInt(amount) }
      })
    },
    /** When a job was written, unix ms. */
    jobAt: async (id: string) => (await all<{ at: number }>(sql.jobAt, { id }))[0]?.at,
  }
}

type LineRow = WithNulls<Omit<PaymentLine, 'amountAtomic'>> & { amount: string }
type GrantRow = Omit<GrantLine, 'amountWei' | 'feeWei'> & { amountWei: string; feeWei: string }
type PayeeRow = Omit<PayeeLine, 'amountAtomic'> & { amount: string }
type TransactionRow = WithNulls<Omit<StoryTransaction, 'maxFeeWei' | 'costWei'>> & {
  maxFeeWei: string
  costWei: string | null
}

function toLine({ amount, ...row }: LineRow): PaymentLine {
  return { ...withoutNulls(row), amountAtomic: BigInt(amount) }
}

async function storyOf(
  { all, sql }: AdminBase,
  reads: StoryReads,
  id: string,
): Promise<Story | undefined> {
  const payment = await reads.payments.findById(id)
  const authorization = await reads.authorizations.findById(id)
  if (payment === undefined && authorization === undefined) return undefined
  const order =
    payment?.purpose.product === 'desk' ? await reads.orders.findByPayment(id) : undefined
  const ofPayment = await all<TransactionRow>(sql.transactionsOfPayment, { id })
  const ofOrder = order && (await all<TransactionRow>(sql.transactionsOfOrder, { id: order.id }))
  const rows = [...ofPayment, ...(ofOrder ?? [])]
  const [answer] = await all<NonNullable<Story['answer']>>(sql.answerOf, { id })
  const entitlement = await reads.entitlements.findByPayment(id)
  const transactions = rows.map(toTransaction)
  return { payment, authorization, order, entitlement, transactions, answer }
}

function toTransaction(row: TransactionRow): StoryTransaction {
  const costWei = row.costWei === null ? undefined : BigInt(row.costWei)
  return { ...withoutNulls(row), maxFeeWei: BigInt(row.maxFeeWei), costWei }
}

/** Statements of the pages for operators. `test/db/admin-ledger.test.ts` reads their query plans. */
type AdminSql = ReturnType<typeof adminSql>

/** Reads of all payments of a payer, which have no common text. */
type PayerSql = {
  /** Gives `row` of each, by the index of the money, in each asset that was ever configured. */
  rowsOfPayer: string
  /** Whether the array of `row` in the JSON `$rows` has it. */
  isInRows: string
}

export function adminSql(dialect: Dialect, { rowsOfPayer, isInRows }: PayerSql) {
  return {
    ...windows(dialect),
    rowsOfPayer,
    byRows: `SELECT ${line} FROM payments WHERE ${isInRows}`,
    ...transactions(dialect),
    grants: grantsOf(dialect, 'grants', 'kind'),
    topUps: grantsOf(dialect, 'grant_top_ups', "'top-up'"),
    orders: 'SELECT id FROM orders WHERE id < $before ORDER BY id DESC LIMIT $limit',
    payees: payeesSql(dialect),
    answerOf: `SELECT status, length(body) AS bytes, expires_at AS "expiresAt"
      FROM answers WHERE payment_id = $id`,
    jobAt: 'SELECT created_at AS at FROM jobs WHERE id = $id',
    metaValue: 'SELECT value FROM meta WHERE key = $key',
  }
}

/**
 * As in `sales.ts`, without what depends on the time: whether the buyer of an undelivered answer
 * can still fetch it.
 */
const outcome = `CASE WHEN state IN ('broadcast', 'reverted') THEN 'pending'
  WHEN state <> 'confirmed' THEN 'unpaid' WHEN product = 'desk' THEN 'order'
  WHEN product = 'facilitator' THEN 'settled'
  WHEN delivery = 'delivered' THEN 'delivered'
  WHEN (SELECT refunds.amount_atomic FROM refunds WHERE refunds.payment_id = payments.id
    AND refunds.paid_hash IS NOT NULL) = amount_atomic THEN 'refunded'
  ELSE 'undelivered' END`

const merchant = "CASE product WHEN 'desk' THEN 'stock' ELSE merchant END"

const line = `id, network, asset, payer, payee, amount_atomic AS amount, ${merchant} AS merchant,
  route, protocol, method, ${outcome} AS outcome, upstream_status AS "upstreamStatus",
  redeem_until AS "redeemUntil", transaction_hash AS "transaction", created_at AS "createdAt"`

/** The casts tell PostgreSQL the type of a parameter that may be NULL. */
function isAny(parameter: string): string {
  return `CAST(${parameter} AS TEXT) IS NULL`
}

function windows({ fold, opaque }: Dialect) {
  return {
    /** The id at which a window of `$rows` payments before an id begins. */
    windowStart: `SELECT id FROM payments WHERE id < $before
      ORDER BY id DESC LIMIT 1 OFFSET $rows`,
    /** Without `opaque` a partial index would be read in another order. */
    window: `SELECT ${line} FROM payments
      WHERE id < $before AND id >= $from
        AND (${isAny('$payer')} OR ${fold(opaque('payer'))} = ${fold('$payer')})
        AND (${isAny('$merchant')} OR ${merchant} = $merchant)
        AND (${isAny('$route')} OR ${opaque('route')} = $route)
        AND (${isAny('$outcome')} OR ${outcome} = $outcome)
      ORDER BY id DESC LIMIT $limit`,
    /** The condition is that of the partial index. The unfinished payments are few. */
    unfinished: `SELECT ${line} FROM payments
      WHERE state IN ('broadcast', 'reverted') AND ${opaque('id')} < $before
      ORDER BY ${opaque('id')} DESC LIMIT $limit`,
  }
}

function transactions({ join, serial }: Dialect) {
  return {
    membersOf: `SELECT payment_id AS id FROM transaction_members
      WHERE transaction_hash = $hash ORDER BY position`,
    /** Payments by external transactions have no members: by the index of the logs, in each network. */
    paidBy: `SELECT p.id, p.network, p.log_index AS place
      FROM (SELECT DISTINCT network FROM assets) AS n
      ${join('payments', 'p', 'p.network = n.network AND p.transaction_hash = $hash AND p.log_index IS NOT NULL')}
      UNION ALL SELECT id, network, -1 FROM payments
      WHERE state IN ('broadcast', 'reverted') AND transaction_hash = $hash
      ORDER BY network, place, id`,
    transactionsOfPayment: `SELECT ${transaction}, (SELECT count(*) FROM transaction_members AS b
          WHERE b.transaction_hash = t.hash) AS members
      FROM transaction_members AS m ${join('transactions', 't', 't.hash = m.transaction_hash')}
      WHERE m.payment_id = $id ORDER BY t.created_at, t.${serial}`,
    transactionsOfOrder: `SELECT ${transaction}, 1 AS members
      FROM job_transactions AS j ${join('transactions', 't', 't.hash = j.transaction_hash')}
      WHERE ${isJobOf('$id')}
      ORDER BY t.created_at, t.${serial}`,
  }
}

const transaction = `t.hash, t.kind, t.state, t.relayer, t.nonce, t.max_fee_wei AS "maxFeeWei",
  t.cost_wei AS "costWei", t.created_at AS "createdAt", t.first_sent_at AS "firstSentAt",
  t.block_number AS "blockNumber"`

function grantsOf({ fold }: Dialect, table: string, kind: string): string {
  return `SELECT network, address, ${kind} AS kind, amount_wei AS "amountWei",
      fee_wei AS "feeWei", transaction_hash AS "transaction", created_at AS "createdAt"
    FROM ${table} WHERE network = $network AND created_at >= $from AND created_at < $before
    ORDER BY created_at DESC, ${fold('address')} LIMIT $limit`
}

function payeesSql({ number, fold, any, opaque }: Dialect): string {
  const group = `network, ${fold('asset')}, ${fold('payee')}`
  return `SELECT network, ${any('asset')} AS asset, ${any('payee')} AS payee, count(*) AS payments,
      CAST(sum(${number('amount_atomic')}) AS TEXT) AS amount
    FROM payments
    WHERE id >= $from AND id < $to AND ${opaque('product')} = 'facilitator'
      AND ${opaque('state')} = 'confirmed'
    GROUP BY ${group} ORDER BY ${group}`
}
