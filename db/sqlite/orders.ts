import { eq } from 'drizzle-orm'
import type { Hex } from 'viem'
import { sqlite as dialect } from '../dialect'
import { jobs } from '../jobs'
import type { OrderLedger, OrderMove } from '../OrderLedger'
import { createOrderReads, orderCounts } from '../order-reads'
import { toOrder, toRow } from '../order-rows'
import { assertKnown, givenBy, type Rule, rules } from '../order-rules'
import { type OrderRow, orders } from '../orders'
import { payments } from '../schema'
import type { Values } from '../select'
import type { Db } from './open'
import { prepareMove } from './order-moves'
import type { Outbox } from './outbox'
import { RefusedError, type Riders } from './riders'
import { later, parameter, placeholders, selectsOf } from './statement'
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
      ...createOrderReads(selectsOf(db)),
      async move(move) {
        const row = write(db, () => change(move) ?? null)
        return row === null ? undefined : toOrder(row)
      },
    },
    riders: createRiders(db, counts, change),
  }
}

/** The counts of `createOrderReads`, inside a transaction. */
function countOrders({ orm, sqlite }: Db) {
  const texts = orderCounts(dialect)
  const count = <V extends Values>(text: string) => {
    const counted = later(orm, () => sqlite.prepare<{ count: number }, [V]>(text))
    return (values: V) => counted.get(values)?.count ?? 0
  }
  return {
    refunds: count<{ payer: string; since: string }>(texts.refunds),
    underWay: count<{ payer: string }>(texts.underWay),
    refundable: count<{ since: string }>(texts.refundable),
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
        const count = counts.refunds({ payer, since }) + counts.underWay({ payer })
        if (count >= max) throw new RefusedError('order-quota')
        if (all && counts.refundable({ since: all.since }) >= all.max)
          throw new RefusedError('refund-share')
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
