import * as Crypto from '../src/protocol/Crypto'
import type { GasProduct } from './schema'
import * as Event from './WebhookEvent'
import type { Subscriptions, WebhookEvent } from './webhooks'

/** The subscriptions to events, and the messages that are written for them. */
export type Subscribers = {
  subscribe(subscriptions: Subscriptions): void
  onMessage(listener: () => void): void
  /** Whether an endpoint takes an event of one of these types. */
  takes(types: readonly string[]): boolean
  /** The messages of events, in their order. The same event has the same ids. */
  rowsOf(events: readonly WebhookEvent[]): readonly MessageRow[]
  /** Tells the listeners that messages were written. */
  notify(): void
  /** The event of a gas budget that this addition spends. */
  spent(gas: AddedGas): WebhookEvent | undefined
}

/** A message as it is written. Times are unix ms; it is due at once. */
type MessageRow = {
  id: string
  endpoint: string
  origin: string
  type: string
  subject: string
  body: string
  at: number
  expiresAt: number
}

export type AddedGas = {
  network: Event.SpentBudget['network']
  product: GasProduct
  at: number
  /** The sum of the day before and after. */
  beforeWei: bigint
  afterWei: bigint
}

/** How long a message is sent, ms. */
const lifetimeMs = 86_400_000

export function createSubscribers(): Subscribers {
  const listeners: (() => void)[] = []
  let current: Subscriptions = { endpoints: [], gasPerDay: [] }
  return {
    subscribe(subscriptions) {
      current = subscriptions
    },
    onMessage: (listener) => void listeners.push(listener),
    takes: (types) =>
      current.endpoints.some((each) => each.types.some((type) => types.includes(type))),
    rowsOf: (events) => events.flatMap((event) => messagesOf(event, current)),
    notify() {
      for (const listener of listeners) listener()
    },
    spent({ network, product, at, beforeWei, afterWei }) {
      const known = current.gasPerDay.find(
        (each) => each.network === network && each.product === product,
      )
      if (known === undefined || beforeWei >= known.wei || afterWei < known.wei) return undefined
      const sum = { network, product, spentWei: afterWei, budgetWei: known.wei }
      return Event.budgetSpent({ ...sum, budget: 'gas' }, at)
    },
  }
}

/** One message for each endpoint that takes the type. */
function messagesOf(event: WebhookEvent, { endpoints }: Subscriptions): MessageRow[] {
  const takers = endpoints.filter(({ endpoint, types }) =>
    event.endpoint === undefined
      ? types.some((type) => type === event.type)
      : endpoint === event.endpoint,
  )
  if (takers.length === 0) return []
  const { type, subject, at } = event
  const body = Event.bodyOf(event)
  return takers.map(({ endpoint, origin }) => {
    const id = idOf(endpoint, event)
    return { id, endpoint, origin, type, subject, body, at, expiresAt: at + lifetimeMs }
  })
}

/** The same event has the same id, also when a power loss undid it and it is recorded again. */
function idOf(endpoint: string, { type, subject, occurrence }: WebhookEvent): string {
  const facts = JSON.stringify([endpoint, type, subject, occurrence])
  return `evt_${Crypto.sha256(facts).slice(0, 32)}`
}
