import { and, desc, eq, inArray, isNull, lt, type SQL, sql } from 'drizzle-orm'
import type { SQLiteUpdateSetSource } from 'drizzle-orm/sqlite-core'
import type { Address, Hex } from 'viem'
import {
  type HeldReason,
  type Order,
  type RefundReason,
  type State,
  transitions,
  unfinished,
} from '../../db/Order'
import { orders } from '../../db/orders'
import type { Db } from '../../db/sqlite/open'
import { createOrderCounts } from '../../db/sqlite/rows'
import { later, parameter, placeholders } from '../../db/sqlite/statement'
import { fromRow, toOrder, toRow } from './rows'

/**
 * Prepared statements. Every change is a compare-and-swap on the state: undefined when the order was
 * in another one. Call changes inside `write`.
 */
export type Store = ReturnType<typeof createStore>

export type HistoryQuery = {
  payer: Address | undefined
  limit: number
  /** Only orders older than this one. */
  before: string | undefined
}

/** What a swap made of the money. */
export type Delivery = { hash: Hex; amountAtomic: bigint; returnedAtomic: bigint }

export function createStore(db: Db) {
  return {
    ...readOrders(db),
    ...readOpen(db),
    ...readHistory(db),
    ...changeBySettlement(db),
    ...changeBySwap(db),
    ...changeByRefund(db),
    ...changeByRefundAttempt(db),
    ...changeByHold(db),
    ...changeByOperator(db),
  }
}

function readOrders(db: Db) {
  const { orm } = db
  const counts = createOrderCounts(db)
  const one = (condition: SQL) =>
    later(orm, () => orm.select().from(orders).where(condition).prepare())
  const byId = one(eq(orders.id, parameter('id')))
  const byPayment = one(eq(orders.paymentId, parameter('id')))
  return {
    find: (id: string) => toOrder(byId.get({ id })),
    findByPayment: (id: string) => toOrder(byPayment.get({ id })),
    /** Orders of a payer since an id whose money went back, or is on its way back. */
    countRefunds: counts.refunds,
    /** Orders of a payer that may still be delivered. */
    countUnderWay: counts.underWay,
  }
}

/** Reads of the orders that are not at an end, or not for good. */
function readOpen({ orm }: Db) {
  const open = later(orm, () =>
    orm
      .select()
      .from(orders)
      .where(sql`state IN ('settling', 'settled', 'swapping', 'refunding', 'held')`)
      .orderBy(orders.id)
      .prepare(),
  )
  const countOpen = later(orm, () =>
    orm
      .select({ count: sql<number>`count(*)` })
      .from(orders)
      // The states of the partial index, word for word: only so is it used.
      .where(
        sql`state IN ('settling', 'settled', 'swapping', 'refunding', 'held') AND state <> 'held'`,
      )
      .prepare(),
  )
  const doubtful = later(orm, () =>
    orm
      .select({ id: orders.id })
      .from(orders)
      .where(
        sql`${orders.id} IN (SELECT id FROM orders ORDER BY id DESC LIMIT ${sql.raw(String(recentMax))}) AND (
          ${orders.state} = 'delivered' AND ${isUndone(sql`'swap:' || orders.id`)} OR
          ${orders.state} = 'refunded' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = 'swap:' || orders.id AND jobs.state = 'confirmed') OR
          ${orders.state} = 'refunded' AND ${isUndone(sql`CASE WHEN refund_attempts <= 1 THEN 'refund:' || orders.id ELSE 'refund:' || orders.id || ':' || refund_attempts END`)})`,
      )
      .prepare(),
  )
  return {
    /** Everything that is not at an end, oldest first. */
    open: (): Order[] => open.all().map(fromRow),
    /** What the desk has to do: those that are held only when an operator asks to go on. */
    toDrive: (): Order[] =>
      open
        .all()
        .map(fromRow)
        .filter(({ state, retryAt }) => unfinished.includes(state) || retryAt !== undefined),
    /** Those among the newest that have ended on a transaction that has not, or not so any more. */
    toRecheck: (): string[] => doubtful.all().map(({ id }) => id),
    /** Orders that are under way. */
    countOpen: (): number => countOpen.get()?.count ?? 0,
  }
}

/** What a reorganisation can reach: the orders that came last. */
const recentMax = 10_000

/** Whether a job is not confirmed: what rests on it was told too early. */
function isUndone(id: SQL): SQL {
  return sql`EXISTS (SELECT 1 FROM jobs WHERE jobs.id = ${id} AND jobs.state <> 'confirmed')`
}

function readHistory({ orm }: Db) {
  // Show an order to its buyer alone until a chain has it.
  const isPublic = sql`state NOT IN ('settling', 'failed')`
  const feed = (...conditions: Parameters<typeof and>) =>
    later(orm, () =>
      orm
        .select()
        .from(orders)
        .where(and(isPublic, lt(orders.id, parameter('before')), ...conditions))
        .orderBy(desc(orders.id))
        .limit(sql.placeholder('limit'))
        .prepare(),
    )
  const all = feed()
  const ofPayer = feed(eq(orders.payer, parameter('payer')))
  // Above every id.
  const newest = 'ord_~'
  return {
    /** Newest first. */
    history: ({ payer, limit, before = newest }: HistoryQuery): Order[] =>
      (payer === undefined
        ? all.all({ before, limit })
        : ofPayer.all({ before, limit, payer })
      ).map(fromRow),
  }
}

/** Maker of statements that change one order under conditions and return its row. */
function changeOf({ orm }: Db) {
  return (set: SQLiteUpdateSetSource<typeof orders>, ...conditions: Parameters<typeof and>) =>
    later(orm, () =>
      orm
        .update(orders)
        .set({ ...set, updatedAt: parameter('at') })
        .where(and(eq(orders.id, parameter('id')), ...conditions))
        .returning()
        .prepare(),
    )
}

/** Condition of a change into a state. Throws for a change that the table does not have. */
function into(state: State, ...from: readonly State[]): SQL {
  if (!from.every((source) => transitions[source].includes(state)))
    throw new Error(`${from.join(', ')} do not lead to ${state}`)
  return inArray(orders.state, [...from])
}

/** What the settlement of its payment makes of an order. */
function changeBySettlement(db: Db) {
  const { orm } = db
  const change = changeOf(db)
  const insert = later(orm, () => orm.insert(orders).values(placeholders(orders)).prepare())
  const settle = change(
    { state: 'settled', settlementTx: parameter('tx'), settledAt: parameter('at') },
    into('settled', 'settling'),
  )
  const unsettle = change({ state: 'settling', settledAt: null }, into('settling', 'settled'))
  const fail = change({ state: 'failed' }, into('failed', 'settling'))
  return {
    insert: (order: Order): void => void insert.run(toRow(order)),
    settle: (id: string, hash: Hex, at: number) => toOrder(settle.get({ id, tx: hash, at })),
    /** The settlement is not on the chain any more. */
    unsettle: (id: string, at: number) => toOrder(unsettle.get({ id, at })),
    fail: (id: string, at: number) => toOrder(fail.get({ id, at })),
  }
}

function changeBySwap(db: Db) {
  const change = changeOf(db)
  const tx = parameter('tx')
  const swap = change({ state: 'swapping', swapTx: tx }, into('swapping', 'settled'))
  const deliver = change(
    {
      state: 'delivered',
      swapTx: tx,
      deliveredAtomic: parameter('amount'),
      returnedAtomic: parameter('returned'),
    },
    into('delivered', 'swapping'),
  )
  const undeliver = change(
    { state: 'swapping', deliveredAtomic: null, returnedAtomic: null },
    into('swapping', 'delivered'),
  )
  const reswap = change(
    { state: 'swapping', refundReason: null, refundTx: null },
    into('swapping', 'refunding'),
    sql`refund_tx IS ${parameter('refundTx')}`,
  )
  return {
    swap: (id: string, hash: Hex, at: number) => toOrder(swap.get({ id, tx: hash, at })),
    deliver: (id: string, { hash, amountAtomic, returnedAtomic }: Delivery, at: number) => {
      const returned = returnedAtomic > 0n ? String(returnedAtomic) : null
      return toOrder(deliver.get({ id, tx: hash, amount: String(amountAtomic), returned, at }))
    },
    /** A reorganisation took the swap away: the same bytes are under way again. */
    undeliver: (id: string, at: number) => toOrder(undeliver.get({ id, at })),
    /**
     * A reorganisation took the failed swap away, so that it may succeed now, or brought it back.
     * `refundTx`: the refund that has moved no money; undefined: none was written.
     */
    reswap: (id: string, refundTx: Hex | undefined, at: number) =>
      toOrder(reswap.get({ id, refundTx: refundTx ?? null, at })),
  }
}

function changeByRefund(db: Db) {
  const change = changeOf(db)
  const refund = change(
    { state: 'refunding', refundReason: parameter('reason') },
    into('refunding', 'settled', 'swapping'),
  )
  const refunded = change(
    { state: 'refunded', refundTx: parameter('tx') },
    into('refunded', 'refunding'),
  )
  const unrefund = change({ state: 'refunding' }, into('refunding', 'refunded'))
  return {
    refund: (id: string, reason: RefundReason, at: number) =>
      toOrder(refund.get({ id, reason, at })),
    refunded: (id: string, hash: Hex, at: number) => toOrder(refunded.get({ id, tx: hash, at })),
    unrefund: (id: string, at: number) => toOrder(unrefund.get({ id, at })),
  }
}

/** What the transactions of a refund under way make of an order, which stays `refunding`. */
function changeByRefundAttempt(db: Db) {
  const change = changeOf(db)
  const tx = parameter('tx')
  const isRefunding = eq(orders.state, 'refunding')
  const isAttempt = eq(orders.refundAttempts, parameter('attempts'))
  const isUnsent = isNull(orders.refundTx)
  const attempt = change(
    { refundAttempts: sql`refund_attempts + 1`, refundTx: tx },
    isRefunding,
    isAttempt,
    isUnsent,
  )
  const again = change({ refundTx: null }, isRefunding, isAttempt)
  const resume = change({ refundTx: tx }, isRefunding, isAttempt, isUnsent)
  return {
    /** A refund is written: the attempt after `attempts`. */
    attemptRefund: (id: string, attempts: number, hash: Hex, at: number) =>
      toOrder(attempt.get({ id, attempts, tx: hash, at })),
    /** The refund under way can never succeed: the next attempt may be written. */
    abandonRefund: (id: string, attempts: number, at: number) =>
      toOrder(again.get({ id, attempts, at })),
    /** The refund that had failed is under way again, or has paid after all. */
    resumeAttempt: (id: string, attempts: number, hash: Hex, at: number) =>
      toOrder(resume.get({ id, attempts, tx: hash, at })),
  }
}

function changeByHold(db: Db) {
  const change = changeOf(db)
  const hold = change(
    { state: 'held', heldReason: parameter('reason') },
    into('held', 'settled', 'swapping', 'refunding'),
  )
  const released = { heldReason: null, retryAt: null }
  const resumeSettled = change(
    { ...released, state: 'settled' },
    into('settled', 'held'),
    isNull(orders.swapTx),
    isNull(orders.refundReason),
  )
  const resumeSwap = change(
    { ...released, state: 'swapping' },
    into('swapping', 'held'),
    isNull(orders.refundReason),
  )
  const resumeRefund = change(
    { ...released, state: 'refunding', refundTx: parameter('refundTx') },
    into('refunding', 'held'),
    sql`refund_reason IS NOT NULL`,
  )
  return {
    hold: (id: string, reason: HeldReason, at: number) => toOrder(hold.get({ id, reason, at })),
    resumeSettled: (id: string, at: number) => toOrder(resumeSettled.get({ id, at })),
    resumeSwap: (id: string, at: number) => toOrder(resumeSwap.get({ id, at })),
    /** `refundTx` undefined: what was sent can never succeed, and a new attempt may be written. */
    resumeRefund: (id: string, refundTx: Hex | undefined, at: number) =>
      toOrder(resumeRefund.get({ id, refundTx: refundTx ?? null, at })),
  }
}

/** What an operator asks of an order that is held. */
function changeByOperator(db: Db) {
  const change = changeOf(db)
  const isHeld = eq(orders.state, 'held')
  const retry = change({ retryAt: parameter('at') }, isHeld)
  const dismiss = change({ retryAt: null }, isHeld, eq(orders.retryAt, parameter('retryAt')))
  return {
    requestRetry: (id: string, at: number) => toOrder(retry.get({ id, at })),
    /** The retry requested at that time had no effect. */
    dismissRetry: (id: string, retryAt: number, at: number) =>
      toOrder(dismiss.get({ id, retryAt, at })),
  }
}
