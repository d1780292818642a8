import type { Hex } from 'viem'
import type { EventType } from '../../src/protocol/Webhook'
import type { Order } from '../Order'
import {
  columnNameOf,
  createOrderReads,
  givenBy,
  type OrderLedger,
  type OrderMove,
  type OrderRide,
  type Rule,
  rules,
  toOrder,
  type Value,
} from '../orders'
import * as Event from '../WebhookEvent'
import type { WebhookEvent } from '../webhooks'
import type { Change } from './commits'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import type { Json } from './rows'

/** The orders of the stock desk. */
export function createOrders({ commits, reader }: Pick<Parts, 'commits' | 'reader'>): OrderLedger {
  return {
    ...createOrderReads(selectsOf(reader)),
    move: (move) => commits.add(changeOf(move)),
  }
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
    'isSet' in each ? [] : [[columnNameOf(each.column), resolve(each.is, given)] as const],
  )
  return {
    from,
    is: Object.fromEntries(conditions),
    has: when.filter((each) => 'isSet' in each).map(({ column }) => columnNameOf(column)),
    set: {
      ...Object.fromEntries(
        entries
          .filter(([, value]) => !isHash(value))
          .map(([column, value]) => [columnNameOf(column), resolve(value, given)]),
      ),
      ...(to && { state: to }),
      updated_at: given.at,
    },
    hashed: entries.filter(([, value]) => isHash(value)).map(([column]) => columnNameOf(column)),
  }
}

function resolve(value: Value, given: Given): string | number | null {
  if (value === null) return null
  const name = 'given' in value ? value.given : value.after
  const found = given[name]
  if (found === undefined) throw new Error(`a move has no ${name}`)
  return 'given' in value ? found : Number(found) + 1
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
  return { order: toOrder(order), asset: asset ?? '' }
}
