import { getTableColumns } from 'drizzle-orm'
import type { Hex } from 'viem'
import type { EventType } from '../../src/protocol/Webhook'
import type { Order } from '../Order'
import type { OrderLedger, OrderMove, OrderRide } from '../OrderLedger'
import { toOrder } from '../order-rows'
import { assertKnown, givenBy, type Rule, rules, type Value } from '../order-rules'
import { orders } from '../orders'
import { rowOf } from '../select'
import * as Event from '../WebhookEvent'
import type { WebhookEvent } from '../WebhookLedger'
import type { Change } from './commits'
import type { Parts } from './parts'
import type { Reader } from './reader'
import type { Json } from './rows'

/** The orders of the stock desk. */
export function createOrders({ commits, reader }: Pick<Parts, 'commits' | 'reader'>): OrderLedger {
  for (const rule of Object.values(rules)) assertKnown(rule)
  return {
    ...findOrders(reader),
    ...countOrders(reader),
    move: (move) => commits.add(changeOf(move)),
  }
}

type Selected = { row: Json }

/** The newest orders, which a reorganisation can reach. */
const recentMax = 10_000
const select = 'SELECT to_jsonb(orders) AS row FROM orders'
const isUnfinished = "state IN ('settling', 'settled', 'swapping', 'refunding', 'held')"
/** Hides an order from others until its payment is on a chain. */
const feed = `${select} WHERE state NOT IN ('settling', 'failed') AND id < $1`
const newestFirst = 'ORDER BY id DESC LIMIT $2'
const hasJob = (id: string, state: string) =>
  `EXISTS (SELECT FROM jobs WHERE jobs.id = ${id} AND jobs.state ${state})`
const swapJob = "'swap:' || orders.id"
const refundJob = `CASE WHEN refund_attempts <= 1 THEN 'refund:' || orders.id
  ELSE 'refund:' || orders.id || ':' || refund_attempts END`
/** Orders whose end was premature, because its job is not confirmed or another one is. */
const doubtful = `SELECT id FROM orders
  WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT ${recentMax}) AND (
    state = 'delivered' AND ${hasJob(swapJob, "<> 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(swapJob, "= 'confirmed'")}
    OR state = 'refunded' AND ${hasJob(refundJob, "<> 'confirmed'")})`

type Finds = Pick<OrderLedger, 'find' | 'findByPayment' | 'open' | 'toRecheck' | 'history'>

function findOrders(reader: Reader): Finds {
  const one = async (where: string, value: string) => {
    const found = await reader.one<Selected>(`${select} WHERE ${where}`, [value])
    return found && decode(found)
  }
  const all = async (text: string, values: readonly unknown[] = []) =>
    (await reader.all<Selected>(text, values)).map(decode)
  // Above every id.
  const newest = 'ord_~'
  return {
    find: (id) => one('id = $1', id),
    findByPayment: (id) => one('payment_id = $1', id),
    open: () => all(`${select} WHERE ${isUnfinished} ORDER BY id`),
    toRecheck: async () => (await reader.all<{ id: string }>(doubtful)).map(({ id }) => id),
    history: ({ payer, limit, before = newest }) =>
      payer === undefined
        ? all(`${feed} ${newestFirst}`, [before, limit])
        : all(`${feed} AND lower(payer) = lower($3) ${newestFirst}`, [before, limit, payer]),
  }
}

type Counts = Pick<OrderLedger, 'countOpen' | 'countRefunds' | 'countUnderWay' | 'countRefundable'>

function countOrders(reader: Reader): Counts {
  const count = async (where: string, values: readonly unknown[] = []) =>
    (await reader.one<{ count: number }>(`SELECT count(*) FROM orders WHERE ${where}`, values))
      ?.count ?? 0
  return {
    countOpen: () => count(`${isUnfinished} AND state <> 'held'`),
    countRefunds: (payer, since) =>
      count('lower(payer) = lower($1) AND id > $2 AND refund_reason IS NOT NULL', [payer, since]),
    countUnderWay: (payer) =>
      count("lower(payer) = lower($1) AND state IN ('settling', 'settled', 'swapping')", [payer]),
    countRefundable: (since) =>
      count(
        `id > $1 AND refund_reason IS NOT NULL OR state IN ('settling', 'settled', 'swapping')`,
        [since],
      ),
  }
}

function decode({ row }: Selected): Order {
  return toOrder(rowOf(orders, row))
}

function changeOf(move: OrderMove): Change<Order | undefined> {
  const { id, kind } = move
  return {
    call: 'move_order',
    input: { id, change: changeBy(rules[kind], givenBy(move)) },
    key: id,
    read: (value) => (value === null ? undefined : decodeChanged(value).order),
    events: { types: typesOf(kind), of: (value) => eventsOf(kind, value) },
  }
}

/** The rider of a job; the function adds its hash. */
export function rideOf(ride: OrderRide): { id: string; change: Json } {
  const { kind, id, at } = ride
  const attempts = ride.kind === 'attempt-refund' ? { attempts: ride.attempts } : {}
  return { id, change: changeBy(rules[kind], { at, ...attempts }) }
}

type Given = Readonly<Record<string, string | number | null>>

/** A rule for the function `change_order`. */
function changeBy(rule: Rule, given: Given): Json {
  const { from, to, set = {}, when = [] } = rule
  const entries = Object.entries(set).map(([column, value]) => [column, value] as const)
  const isHash = (value: Value) =>
    value !== null && 'given' in value && value.given === 'hash' && given.hash === undefined
  const conditions = when.flatMap((each) =>
    'isSet' in each ? [] : [[nameOf(each.column), resolve(each.is, given)] as const],
  )
  return {
    from,
    is: Object.fromEntries(conditions),
    has: when.filter((each) => 'isSet' in each).map(({ column }) => nameOf(column)),
    set: {
      ...Object.fromEntries(
        entries
          .filter(([, value]) => !isHash(value))
          .map(([column, value]) => [nameOf(column), resolve(value, given)]),
      ),
      ...(to && { state: to }),
      updated_at: given.at,
    },
    hashed: entries.filter(([, value]) => isHash(value)).map(([column]) => nameOf(column)),
  }
}

function resolve(value: Value, given: Given): string | number | null {
  if (value === null) return null
  const name = 'given' in value ? value.given : value.after
  const found = given[name]
  if (found === undefined) throw new Error(`a move has no ${name}`)
  return 'given' in value ? found : Number(found) + 1
}

const columns: Readonly<Record<string, { name: string }>> = getTableColumns(orders)

function nameOf(column: string): string {
  const name = columns[column]?.name
  if (name === undefined) throw new Error(`orders have no ${column}`)
  return name
}

/** Types of the events of a move: none when the state stays. */
export function typesOf(kind: OrderMove['kind']): readonly EventType[] {
  const { to } = rules[kind]
  return to === undefined ? [] : [`order.${to}`]
}

/** `changed`: what the function of the move returned. */
export function eventsOf(kind: OrderMove['kind'], changed: Json): readonly WebhookEvent[] {
  if (changed === null || rules[kind].to === undefined) return []
  const { order, asset } = decodeChanged(changed)
  return [Event.orderChanged(order, asset)]
}

function decodeChanged(changed: Json): { order: Order; asset: Hex | '' } {
  const { order, asset } = changed as { order: Json; asset: Hex | null }
  return { order: decode({ row: order }), asset: asset ?? '' }
}
