import type { Tally } from '../GrantBudget'
import type { NewGrant } from '../GrantLedger'
import type { Order } from '../Order'
import { type AddedGas, createSubscribers } from '../outbox'
import type { Payment } from '../Payment'
import type { Refund } from '../Refund'
import * as Event from '../WebhookEvent'
import {
  createWebhookMessages,
  type MessagesBase,
  type Subscriptions,
  type WebhookEvent,
  type WebhookLedger,
} from '../webhooks'
import type { Db } from './open'
import { selectsOf, statement } from './statement'
import { type Group, write } from './write'

export function createWebhooks(db: Db, group: Group, outbox: Outbox): WebhookLedger {
  const messages = createWebhookMessages({ ...selectsOf(db), change: changeOf(db, group) })
  return {
    ...messages,
    subscribe: outbox.subscribe,
    onMessage: outbox.onMessage,
    async add(event) {
      await group.addSoon(() => outbox.add(event))
    },
    /** What a receiver is told must not be undone by a loss of power. */
    async due(query) {
      const early = await messages.due(query)
      if (early.length === 0) return early
      await db.sync()
      // Others may have been sent meanwhile, or written.
      const synced = new Set(early.map(({ seq }) => seq))
      return (await messages.due(query)).filter(({ seq }) => synced.has(seq))
    },
  }
}

/** Makes statements that change rows, and may return some. */
export function changeOf(db: Db, group: Group): MessagesBase['change'] {
  return <Row>(kind: 'commit' | 'soon', text: string) => {
    const change = statement<Row>(db, text)
    return kind === 'soon'
      ? (values) => group.addSoon(() => change().all(values))
      : async (values) => write(db, () => change().all(values))
  }
}

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
  refunded(paymentOf: () => Payment, refund: Refund, at: number): void
  /** The state of an order has changed. `assetOf`: of its payment. */
  ordered(order: Order, assetOf: (paymentId: string) => string | undefined): void
  /** Gas was added to the sum of a day. */
  spent(gas: AddedGas): void
  granted(grant: NewGrant, tally: Tally): void
}

export function createOutbox(db: Db): Outbox {
  const insert = statement(
    db,
    `INSERT INTO webhooks
       (id, endpoint, origin, type, subject, body, state, created_at, due_at, expires_at)
     VALUES ($id, $endpoint, $origin, $type, $subject, $body, 'waiting', $at, $at, $expiresAt)
     ON CONFLICT DO NOTHING`,
  )
  const subscribers = createSubscribers()

  /** Makes the event only when an endpoint takes its type. */
  function put(type: string, make: () => WebhookEvent | undefined): void {
    if (!subscribers.takes([type])) return
    const event = make()
    if (event !== undefined) add(event)
  }

  function add(event: WebhookEvent): void {
    const rows = subscribers.rowsOf([event])
    for (const row of rows) insert().run(row)
    if (rows.length > 0) subscribers.notify()
  }

  return {
    subscribe: subscribers.subscribe,
    onMessage: subscribers.onMessage,
    add,
    confirmed: (payment, at) => put('payment.confirmed', () => Event.paymentConfirmed(payment, at)),
    undelivered: (payment, at) => put('delivery.failed', () => Event.deliveryFailed(payment, at)),
    refunded: (paymentOf, refund, at) =>
      put('payment.refunded', () => Event.paymentRefunded(paymentOf(), refund, at)),
    ordered: (order, assetOf) =>
      put(`order.${order.state}`, () => Event.orderChanged(order, assetOf(order.paymentId) ?? '')),
    spent: (gas) => put('budget.spent', () => subscribers.spent(gas)),
    granted: (grant, tally) => put('budget.spent', () => Event.grantsSpent(grant, tally)),
  }
}
