import type { Hex } from 'viem'
import { sqlite as dialect } from '../dialect'
import type { JobRider, OrderRows } from '../Ledger'
import type { Order } from '../Order'
import {
  columnNameOf,
  createOrderReads,
  givenBy,
  newOrderRow,
  type OrderLedger,
  type OrderMove,
  orderCounts,
  type Rule,
  rules,
  toOrder,
  type Value,
} from '../orders'
import { orders } from '../schema'
import type { Values } from '../select'
import type { Db } from './open'
import { insertInto, selectsOf, statement } from './statement'
import type { Outbox } from './webhooks'
import { RefusedError, write } from './write'

/** The orders of the stock desk, and their rows in commits of payments and jobs. */
export function createOrders(db: Db, outbox: Outbox) {
  const change = changeOrders(db, outbox)
  const ledger: OrderLedger = {
    ...createOrderReads(selectsOf(db)),
    async move(move) {
      return write(db, () => change(move))
    },
  }
  return { ledger, riders: createRiders(db, change) }
}

type OrderRider = Extract<JobRider, { kind: 'order' }>

/** Makes a move inside a transaction; undefined when the order was in another state. */
type Change = (move: OrderMove) => Order | undefined

function changeOrders(db: Db, outbox: Outbox): Change {
  const statements = new Map<string, ReturnType<typeof statement>>()
  for (const [kind, rule] of Object.entries(rules))
    statements.set(kind, statement(db, textOf(rule)))
  const assets = statement<{ asset: string }>(db, 'SELECT asset FROM payments WHERE id = $id')
  return (move) => {
    const row = statements.get(move.kind)?.().get(givenBy(move)) ?? null
    if (row === null) return undefined
    const order = toOrder(row)
    // Each change of a state is an event.
    if (rules[move.kind].to !== undefined)
      outbox.ordered(order, (id) => assets().get({ id })?.asset)
    return order
  }
}

/** The statement of a rule. Its parameters have the names that `givenBy` gives them. */
function textOf({ from, to, set = {}, when = [] }: Rule): string {
  const write = (value: Value) => {
    if (value === null) return 'NULL'
    return 'given' in value ? `$${value.given}` : `$${value.after} + 1`
  }
  const changes = Object.entries(set).map(
    ([key, value]) => `${columnNameOf(key)} = ${write(value)}`,
  )
  if (to !== undefined) changes.push(`state = '${to}'`)
  const conditions = when.map((each) => {
    const name = columnNameOf(each.column)
    return 'isSet' in each ? `AND ${name} IS NOT NULL` : `AND ${name} IS ${write(each.is)}`
  })
  return `UPDATE orders SET ${[...changes, 'updated_at = $at'].join(', ')}
    WHERE id = $id AND state IN (${from.map((state) => `'${state}'`).join(', ')})
    ${conditions.join(' ')} RETURNING *`
}

function createRiders(db: Db, change: Change) {
  const texts = orderCounts(dialect)
  const count = (text: string) => {
    const counted = statement<{ count: number }>(db, text)
    return (values: Values) => counted().get(values)?.count ?? 0
  }
  const refunds = count(texts.refunds)
  const underWay = count(texts.underWay)
  const refundable = count(texts.refundable)
  const insert = insertInto(db, orders)
  const paymentState = statement<{ state: string }>(db, 'SELECT state FROM payments WHERE id = $id')
  const jobState = statement<{ state: string }>(db, 'SELECT state FROM jobs WHERE id = $id')
  const isWithoutEffect = (id: string): boolean => {
    const state = jobState().get({ id })?.state
    return state === 'failed' || state === 'replaced'
  }
  return {
    /** The order of a payment, after the payment's row. Throws for the quota. */
    insert({ order, quota }: OrderRows, payment: { id: string; transaction: Hex }): void {
      if (quota !== undefined) {
        const { payer, since, max, all } = quota
        const count = refunds({ payer, since }) + underWay({ payer })
        if (count >= max) throw new RefusedError('order-quota')
        if (all && refundable({ since: all.since }) >= all.max)
          throw new RefusedError('refund-share')
      }
      insert({ ...newOrderRow(order), paymentId: payment.id, settlementTx: payment.transaction })
    },
    ride({ ride, confirmed, withoutEffect = [] }: OrderRider, hash: Hex): void {
      if (confirmed !== undefined && paymentState().get({ id: confirmed })?.state !== 'confirmed') {
        throw new RefusedError('payment-not-confirmed')
      }
      if (!withoutEffect.every(isWithoutEffect)) throw new RefusedError('job-may-have-effect')
      if (change({ ...ride, hash }) === undefined) throw new RefusedError('order-changed')
    },
  }
}
