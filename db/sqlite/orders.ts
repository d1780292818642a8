import { and, desc, eq, gt, lt, or, type SQL, sql } from 'drizzle-orm'
import type { Address, Hex } from 'viem'
import { jobs } from '../jobs'
import type { HistoryQuery, OrderLedger, OrderMove } from '../OrderLedger'
import { toOrder, toRow } from '../order-rows'
import { assertKnown, givenBy, type Rule, rules } from '../order-rules'
import { type OrderRow, orders } from '../orders'
import { payments } from '../schema'
import type { Db } from './open'
import { prepareMove } from './order-moves'
import type { Outbox } from './outbox'
import { RefusedError, type Riders } from './riders'
import { later, parameter, placeholders } from './statement'
import { write } from './write'

/** The orders of the stock desk, and their rows in commits of payments and jobs. */
export function createOrders(
  db: Db,
  outbox: Outbox,
): { ledger: OrderLedger; riders: Riders['orders'] } {
  const counts = countOrders(db)
  const change = reporting(db, changeOrders(db), outbox)
  return {
    ledger: {
      ...findOrders(db),
      ...findOpen(db),
      history: readHistory(db),
      countRefunds: async (payer, since) => counts.refunds(payer, since),
      countUnderWay: async (payer) => counts.underWay(payer),
      countRefundable: async (since) => counts.refundable(since),
      async move(move) {
        const row = write(db, () => change(move) ?? null)
        return row === null ? undefined : toOrder(row)
      },
    },
    riders: createRiders(db, counts, change),
  }
}

function findOrders({ orm }: Db): Pick<OrderLedger, 'find' | 'findByPayment'> {
  const one = (condition: SQL) =>
    later(orm, () => orm.select().from(orders).where(condition).prepare())
  const byId = one(eq(orders.id, parameter('id')))
  const byPayment = one(eq(orders.paymentId, parameter('id')))
  const orderOf = (row: OrderRow | undefined) => row && toOrder(row)
  return {
    find: async (id) => orderOf(byId.get({ id })),
    findByPayment: async (id) => orderOf(byPayment.get({ id })),
  }
}

/** The newest orders, which a reorganisation can reach. */
const recentMax = 10_000

/** Reads of orders that have not ended, or whose end is not final. */
function findOpen({ orm }: Db): Pick<OrderLedger, 'open' | 'countOpen' | 'toRecheck'> {
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
      // The states must equal those of the partial index as text, or SQLite does not use it.
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
    open: async () => open.all().map(toOrder),
    countOpen: async () => countOpen.get()?.count ?? 0,
    toRecheck: async () => doubtful.all().map(({ id }) => id),
  }
}

/** Whether a job is not confirmed, so that the end of its order was premature. */
function isUndone(id: SQL): SQL {
  return sql`EXISTS (SELECT 1 FROM jobs WHERE jobs.id = ${id} AND jobs.state <> 'confirmed')`
}

function readHistory({ orm }: Db): OrderLedger['history'] {
  // Hide an order from others until its payment is on a chain.
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
  return async ({ payer, limit, before = newest }: HistoryQuery) => {
    const rows =
      payer === undefined ? all.all({ before, limit }) : ofPayer.all({ before, limit, payer })
    return rows.map(toOrder)
  }
}

/** Counts orders by what they may cost. */
function countOrders({ orm }: Db) {
  const count = (...conditions: Parameters<typeof and>) =>
    later(orm, () =>
      orm
        .select({ count: sql<number>`count(*)` })
        .from(orders)
        .where(and(...conditions))
        .prepare(),
    )
  const isOfPayer = eq(orders.payer, parameter('payer'))
  const isRefunded = and(gt(orders.id, parameter('since')), sql`refund_reason IS NOT NULL`)
  const isUnderWay = sql`state IN ('settling', 'settled', 'swapping')`
  const refunds = count(isOfPayer, isRefunded)
  const underWay = count(isOfPayer, isUnderWay)
  // SQLite uses the index of open orders only for exactly its states.
  const isOpen = sql`state IN ('settling', 'settled', 'swapping', 'refunding', 'held')`
  const refundable = count(or(isRefunded, and(isOpen, isUnderWay)))
  return {
    /** Orders of a payer since an id that were refunded or will be. */
    refunds: (payer: Address, since: string): number => refunds.get({ payer, since })?.count ?? 0,
    /** Orders of a payer that may still be delivered. */
    underWay: (payer: Address): number => underWay.get({ payer })?.count ?? 0,
    /** Those of all payers together. */
    refundable: (since: string): number => refundable.get({ since })?.count ?? 0,
  }
}

/** Makes a move inside a transaction; undefined when the order was in another state. */
type Change = (move: OrderMove) => OrderRow | undefined

function changeOrders(db: Db): Change {
  const statementOf = (rule: Rule) => {
    assertKnown(rule)
    return later(db.orm, () => prepareMove(db, rule))
  }
  const statements = new Map(
    Object.entries(rules).map(([kind, rule]) => [kind, statementOf(rule)] as const),
  )
  return (move) => {
    const statement = statements.get(move.kind)
    if (statement === undefined) throw new Error(`${move.kind} is no move of an order`)
    return statement.get(givenBy(move))
  }
}

/** Writes an event with each change of a state. */
function reporting({ orm }: Db, change: Change, outbox: Outbox): Change {
  const assets = later(orm, () =>
    orm
      .select({ asset: payments.asset })
      .from(payments)
      .where(eq(payments.id, parameter('id')))
      .prepare(),
  )
  return (move) => {
    const row = change(move)
    if (row !== undefined && rules[move.kind].to !== undefined) {
      outbox.ordered(toOrder(row), (id) => assets.get({ id })?.asset)
    }
    return row
  }
}

function createRiders(
  { orm }: Db,
  counts: ReturnType<typeof countOrders>,
  change: Change,
): Riders['orders'] {
  const insert = later(orm, () => orm.insert(orders).values(placeholders(orders)).prepare())
  const paymentState = later(orm, () =>
    orm
      .select({ state: payments.state })
      .from(payments)
      .where(eq(payments.id, parameter('id')))
      .prepare(),
  )
  const jobState = later(orm, () =>
    orm
      .select({ state: jobs.state })
      .from(jobs)
      .where(eq(jobs.id, parameter('id')))
      .prepare(),
  )
  const isWithoutEffect = (id: string): boolean => {
    const state = jobState.get({ id })?.state
    return state === 'failed' || state === 'replaced'
  }
  return {
    insert({ order, quota }, { id: paymentId, transaction: settlementTx }) {
      if (quota !== undefined) {
        const { payer, since, max, all } = quota
        const count = counts.refunds(payer, since) + counts.underWay(payer)
        if (count >= max) throw new RefusedError('order-quota')
        if (all && counts.refundable(all.since) >= all.max) throw new RefusedError('refund-share')
      }
      insert.run({ ...toRow(order), paymentId, settlementTx })
    },
    ride({ ride, confirmed, withoutEffect = [] }, hash: Hex) {
      if (confirmed !== undefined && paymentState.get({ id: confirmed })?.state !== 'confirmed') {
        throw new RefusedError('payment-not-confirmed')
      }
      if (!withoutEffect.every(isWithoutEffect)) throw new RefusedError('job-may-have-effect')
      if (change({ ...ride, hash }) === undefined) throw new RefusedError('order-changed')
    },
  }
}
