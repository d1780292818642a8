import { getTableColumns } from 'drizzle-orm'
import type { Address, Hex } from 'viem'
import { type HeldReason, type Order, type RefundReason, type State, transitions } from './Order'
import { type OrderRow, orders } from './schema'
import { decoderOf, rowsOf, type Selects, type Values, withoutNulls } from './select'

/** The terms of an order, before the payment is written and anything is sent. */
export type NewOrder = Pick<
  Order,
  | 'id'
  | 'network'
  | 'symbol'
  | 'token'
  | 'pool'
  | 'poolFee'
  | 'payer'
  | 'recipient'
  | 'usdgAtomic'
  | 'totalAtomic'
  | 'quotedAtomic'
  | 'floorAtomic'
  | 'createdAt'
>

/** Most orders that are under way, or were refunded since the time in an order id. */
export type OrderQuota = {
  payer: Address
  since: string
  max: number
  /** The same of all payers. Undefined for an order with the usual minimum. */
  all?: { since: string; max: number } | undefined
}

export type HistoryQuery = {
  payer: Address | undefined
  limit: number
  /** Only orders older than this one. */
  before: string | undefined
}

/** One change of an order: a compare-and-swap on its state. `at`: unix ms. */
export type OrderMove = { id: string; at: number } & (
  | { kind: 'settle'; hash: Hex }
  /** The settlement is no longer on the chain. */
  | { kind: 'unsettle' }
  | { kind: 'fail' }
  /** The payment of a failed order is confirmed after all. */
  | { kind: 'revive' }
  | { kind: 'swap'; hash: Hex }
  | { kind: 'deliver'; hash: Hex; amountAtomic: bigint; returnedAtomic: bigint }
  /** A reorganisation removed the swap: the same bytes are open again. */
  | { kind: 'undeliver' }
  /**
   * A reorganisation removed the failed swap, which may succeed now, or included it again.
   * `refundTx`: the refund that has moved no money; undefined: none was written.
   */
  | { kind: 'reswap'; refundTx: Hex | undefined }
  | { kind: 'refund'; reason: RefundReason }
  | { kind: 'refunded'; hash: Hex }
  | { kind: 'unrefund' }
  /** A refund is written: the attempt after `attempts`. */
  | { kind: 'attempt-refund'; attempts: number; hash: Hex }
  /** The current refund can never succeed: the next attempt may be written. */
  | { kind: 'abandon-refund'; attempts: number }
  /** The refund that had failed is open again, or has paid after all. */
  | { kind: 'resume-attempt'; attempts: number; hash: Hex }
  | { kind: 'hold'; reason: HeldReason }
  | { kind: 'resume-settled' }
  | { kind: 'resume-swap' }
  /** `refundTx` undefined: the sent refund can never succeed, and a new attempt may be written. */
  | { kind: 'resume-refund'; refundTx: Hex | undefined }
  /** An operator requests to resume a held order. */
  | { kind: 'request-retry' }
  /** The retry requested at that time had no effect. */
  | { kind: 'dismiss-retry'; retryAt: number }
)

/** A move that is written with its job: the job's transaction is its hash. */
export type OrderRide =
  | { kind: 'swap'; id: string; at: number }
  | { kind: 'attempt-refund'; id: string; at: number; attempts: number }

export type OrderLedger = ReturnType<typeof createOrderReads> & {
  /** The order after the move; undefined when it was in another state. */
  move(move: OrderMove): Promise<Order | undefined>
}

/** The newest orders, which a reorganisation can reach. */
const recentMax = 10_000
/** As in the partial index, so that it is clear that it has these rows. */
const isUnfinished = "state IN ('settling', 'settled', 'swapping', 'refunding', 'held')"
const isUnderWay = "state IN ('settling', 'settled', 'swapping')"
const isRefunded = 'id > $since AND refund_reason IS NOT NULL'

const hasJob = (id: string, state: string) =>
  `EXISTS (SELECT 1 FROM jobs WHERE jobs.id = ${id} AND jobs.state ${state})`
const swapJob = "'swap:' || orders.id"
const refundJob = `CASE WHEN refund_attempts <= 1 THEN 'refund:' || orders.id
  ELSE 'refund:' || orders.id || ':' || refund_attempts END`
/** Orders whose end was premature, because its job is not confirmed or another one is. */
const doubtful = `SELECT id FROM orders
  WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT ${recentMax}) AND (
    state = 'delivered' AND ${hasJob(swapJob, "<> 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(swapJob, "= 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(refundJob, "<> 'confirmed'")})`

/** Statements that count orders by what they may cost, as `count`. */
export function orderCounts({ fold }: Selects['dialect']) {
  const count = 'SELECT count(*) AS count FROM orders WHERE'
  const isOfPayer = `${fold('payer')} = ${fold('$payer')}`
  return {
    open: `${count} ${isUnfinished} AND state <> 'held'`,
    /** Orders of a payer since an id that were refunded or will be. */
    refunds: `${count} ${isOfPayer} AND ${isRefunded}`,
    /** Orders of a payer that may still be delivered. */
    underWay: `${count} ${isOfPayer} AND ${isUnderWay}`,
    /** Those of all payers together. */
    refundable: `${count} ${isRefunded} OR (${isUnfinished} AND ${isUnderWay})`,
  }
}

export function createOrderReads(selects: Selects) {
  const { select, dialect } = selects
  const counts = orderCounts(dialect)
  const { all, one } = rowsOf(selects, orders, toOrder)
  const byId = one('WHERE id = $id')
  const byPayment = one('WHERE payment_id = $id')
  const open = all(`WHERE ${isUnfinished} ORDER BY id`)
  const recheck = select<{ id: string }>(doubtful)
  // Hides an order from others until its payment is on a chain.
  const isPublic = "state NOT IN ('settling', 'failed') AND id < $before"
  const newestFirst = 'ORDER BY id DESC LIMIT $limit'
  const newest = all(`WHERE ${isPublic} ${newestFirst}`)
  const isOfPayer = `${dialect.fold('payer')} = ${dialect.fold('$payer')}`
  const ofPayer = all(`WHERE ${isPublic} AND ${isOfPayer} ${newestFirst}`)
  const count = (text: string) => {
    const counted = select<{ count: number }>(text)
    return async (values?: Values) => (await counted(values))[0]?.count ?? 0
  }
  const [openCount, refunds] = [count(counts.open), count(counts.refunds)]
  const [underWay, refundable] = [count(counts.underWay), count(counts.refundable)]
  return {
    find: (id: string) => byId({ id }),
    findByPayment: (paymentId: string) => byPayment({ id: paymentId }),
    /** All orders that have not ended, oldest first. */
    open: () => open(),
    /** Ids of recent orders whose end is no longer confirmed by its transaction. */
    toRecheck: async (): Promise<readonly string[]> => (await recheck()).map(({ id }) => id),
    /** Newest first. The id by default is above every other. */
    history: ({ payer, limit, before = 'ord_~' }: HistoryQuery) =>
      payer === undefined ? newest({ before, limit }) : ofPayer({ before, limit, payer }),
    /** Number of open orders. */
    countOpen: () => openCount(),
    /** Orders of a payer since an id that were refunded or will be. */
    countRefunds: (payer: Address, since: string) => refunds({ payer, since }),
    /** Orders of a payer that may still be delivered. */
    countUnderWay: (payer: Address) => underWay({ payer }),
    /** Orders of all payers that may still be delivered, or were refunded since an id or will be. */
    countRefundable: (since: string) => refundable({ since }),
  }
}

/** A value of a move: what the caller gives under this name, or the number after it. */
export type Value = null | { given: Given } | { after: Given }

type Given = 'hash' | 'at' | 'amount' | 'returned' | 'refundTx' | 'reason' | 'attempts' | 'retryAt'

type Column = Exclude<keyof OrderRow, 'id' | 'state' | 'updatedAt'>

/** What a column must be in addition to the state. NULL is equal to NULL. */
type Condition = { column: Column; is: Value } | { column: Column; isSet: true }

/** One compare-and-swap of an order. Both databases make their statements from it. */
export type Rule = {
  /** States in which the order may be. */
  from: readonly [State, ...State[]]
  /** State afterwards; undefined: it stays as it is. */
  to?: State
  set?: Readonly<Partial<Record<Column, Value>>>
  when?: readonly Condition[]
}

const given = (name: Given): Value => ({ given: name })
const hash = given('hash')
const released = { heldReason: null, retryAt: null }
const isAttempt = { column: 'refundAttempts', is: given('attempts') } as const
const isUnsent = { column: 'refundTx', is: null } as const
const isUnrefunded = { column: 'refundReason', is: null } as const

/** Every change of an order that this program makes. */
export const rules: Readonly<Record<OrderMove['kind'], Rule>> = {
  // Caused by the payment.
  settle: {
    from: ['settling'],
    to: 'settled',
    set: { settlementTx: hash, settledAt: given('at') },
  },
  unsettle: { from: ['settled'], to: 'settling', set: { settledAt: null } },
  fail: { from: ['settling'], to: 'failed' },
  revive: { from: ['failed'], to: 'settling' },
  // Caused by the swap.
  swap: { from: ['settled'], to: 'swapping', set: { swapTx: hash } },
  deliver: {
    from: ['swapping'],
    to: 'delivered',
    set: { swapTx: hash, deliveredAtomic: given('amount'), returnedAtomic: given('returned') },
  },
  undeliver: {
    from: ['delivered'],
    to: 'swapping',
    set: { deliveredAtomic: null, returnedAtomic: null },
  },
  reswap: {
    from: ['refunding'],
    to: 'swapping',
    set: { refundReason: null, refundTx: null },
    when: [{ column: 'refundTx', is: given('refundTx') }],
  },
  // Caused by the refund.
  refund: {
    from: ['settled', 'swapping'],
    to: 'refunding',
    set: { refundReason: given('reason') },
  },
  refunded: { from: ['refunding'], to: 'refunded', set: { refundTx: hash } },
  unrefund: { from: ['refunded'], to: 'refunding' },
  'attempt-refund': {
    from: ['refunding'],
    set: { refundAttempts: { after: 'attempts' }, refundTx: hash },
    when: [isAttempt, isUnsent],
  },
  'abandon-refund': { from: ['refunding'], set: { refundTx: null }, when: [isAttempt] },
  'resume-attempt': { from: ['refunding'], set: { refundTx: hash }, when: [isAttempt, isUnsent] },
  // Caused by an operator.
  hold: {
    from: ['settled', 'swapping', 'refunding'],
    to: 'held',
    set: { heldReason: given('reason') },
  },
  'resume-settled': {
    from: ['held'],
    to: 'settled',
    set: released,
    when: [{ column: 'swapTx', is: null }, isUnrefunded],
  },
  'resume-swap': { from: ['held'], to: 'swapping', set: released, when: [isUnrefunded] },
  'resume-refund': {
    from: ['held'],
    to: 'refunding',
    set: { ...released, refundTx: given('refundTx') },
    when: [{ column: 'refundReason', isSet: true }],
  },
  'request-retry': { from: ['held'], set: { retryAt: given('at') } },
  'dismiss-retry': {
    from: ['held'],
    set: { retryAt: null },
    when: [{ column: 'retryAt', is: given('retryAt') }],
  },
}

// No rule makes a change that the table of states does not have.
for (const { from, to } of Object.values(rules)) {
  if (to === undefined || from.every((source) => transitions[source].includes(to))) continue
  throw new Error(`${from.join(', ')} do not lead to ${to}`)
}

const columns: Readonly<Record<string, { name: string }>> = getTableColumns(orders)

/** The name in the database of a column of orders. */
export function columnNameOf(column: string): string {
  const name = columns[column]?.name
  if (name === undefined) throw new Error(`orders have no ${column}`)
  return name
}

/** What a move gives, by the names of `Value`, as it is written in the columns. */
export function givenBy(move: OrderMove): Record<string, string | number | null> {
  switch (move.kind) {
    case 'deliver': {
      const { amountAtomic, returnedAtomic, ...rest } = move
      const returned = returnedAtomic > 0n ? String(returnedAtomic) : null
      return { ...rest, amount: String(amountAtomic), returned }
    }
    case 'reswap':
    case 'resume-refund':
      return { ...move, refundTx: move.refundTx ?? null }
    default:
      return move
  }
}

/** Columns of an order for which nothing was sent. */
const unsent = {
  state: 'settling',
  swapTx: null,
  refundTx: null,
  deliveredAtomic: null,
  returnedAtomic: null,
  refundReason: null,
  heldReason: null,
  refundAttempts: 0,
  retryAt: null,
  settledAt: null,
} as const satisfies Partial<OrderRow>

/** The row of a new order, without those of its payment. */
export function newOrderRow(order: NewOrder): Omit<OrderRow, 'paymentId' | 'settlementTx'> {
  return { ...order, ...unsent, updatedAt: order.createdAt }
}

const decodeOrder = decoderOf(orders)

/** The order of a row as a database gives it. */
export const toOrder = (found: unknown): Order => withoutNulls(decodeOrder(found))
