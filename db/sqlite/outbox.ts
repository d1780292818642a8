import { sql } from 'drizzle-orm'
import type { Tally } from '../GrantBudget'
import type { NewGrant } from '../GrantLedger'
import type { Order } from '../Order'
import type { Payment } from '../Payment'
import type { GasProduct } from '../schema'
import * as Event from '../WebhookEvent'
import type { Subscriptions, WebhookEvent } from '../WebhookLedger'
import { webhooks } from '../webhooks'
import type { Db } from './open'
import { later, parameter } from './statement'

/**
 * Writes messages for webhooks inside the commits of their events: one insert for an event that an
 * endpoint has subscribed to, and nothing for others. Call inside `write`.
 */
export type Outbox = {
  subscribe(subscriptions: Subscriptions): void
  onMessage(listener: () => void): void
  /** Writes an event. The same event is written once while its message is kept. */
  add(event: WebhookEvent): void
  confirmed(payment: Payment, at: number): void
  undelivered(payment: Payment, at: number): void
  /** The state of an order has changed. `assetOf`: of its payment. */
  ordered(order: Order, assetOf: (paymentId: string) => string | undefined): void
  /** Gas was added to the sum of a day. */
  spent(gas: AddedGas): void
  granted(grant: NewGrant, tally: Tally): void
}

export type AddedGas = {
  network: Order['network']
  product: GasProduct
  at: number
  /** The sum of the day before and after. */
  beforeWei: bigint
  afterWei: bigint
}

/** How long a message is sent, ms. */
export const lifetimeMs = 86_400_000

export function createOutbox({ orm }: Db): Outbox {
  const insert = later(orm, () =>
    orm
      .insert(webhooks)
      .values({
        id: parameter('id'),
        endpoint: parameter('endpoint'),
        origin: parameter('origin'),
        type: parameter('type'),
        subject: parameter('subject'),
        body: parameter('body'),
        state: sql`'waiting'`,
        createdAt: parameter('at'),
        dueAt: parameter('at'),
        expiresAt: parameter('expiresAt'),
      })
      .onConflictDoNothing()
      .prepare(),
  )
  const listeners: (() => void)[] = []
  let current: Subscriptions = { endpoints: [], gasPerDay: [] }
  const takersOf = (type: string) =>
    current.endpoints.filter(({ types }) => types.some((each) => each === type))

  /** Makes the event only when an endpoint takes its type. */
  function put(type: string, make: () => WebhookEvent): void {
    const takers = takersOf(type)
    if (takers.length === 0) return
    const event = make()
    const { subject, at } = event
    const body = Event.bodyOf(event)
    for (const { endpoint, origin } of takers) {
      const id = idOf(endpoint, event)
      insert.run({ id, endpoint, origin, type, subject, body, at, expiresAt: at + lifetimeMs })
    }
    for (const listener of listeners) listener()
  }

  return {
    subscribe(subscriptions) {
      current = subscriptions
    },
    onMessage: (listener) => void listeners.push(listener),
    add: (event) => put(event.type, () => event),
    confirmed: (payment, at) => put('payment.confirmed', () => Event.paymentConfirmed(payment, at)),
    undelivered: (payment, at) => put('delivery.failed', () => Event.deliveryFailed(payment, at)),
    ordered: (order, assetOf) =>
      put(`order.${order.state}`, () => Event.orderChanged(order, assetOf(order.paymentId) ?? '')),
    spent({ network, product, at, beforeWei, afterWei }) {
      const known = current.gasPerDay.find(
        (each) => each.network === network && each.product === product,
      )
      if (known === undefined || beforeWei >= known.wei || afterWei < known.wei) return
      const sum = { network, product, spentWei: afterWei, budgetWei: known.wei }
      put('budget.spent', () => Event.budgetSpent({ ...sum, budget: 'gas' }, at))
    },
    granted(grant, tally) {
      const event = Event.grantsSpent(grant, tally)
      if (event !== undefined) put(event.type, () => event)
    },
  }
}

/** The same event has the same id, also when a power loss undid it and it is recorded again. */
function idOf(endpoint: string, { type, subject, occurrence }: WebhookEvent): string {
  const facts = JSON.stringify([endpoint, type, subject, occurrence])
  return `evt_${new Bun.CryptoHasher('sha256').update(facts).digest('hex').slice(0, 32)}`
}
