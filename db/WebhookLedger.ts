import type * as Network from '../src/protocol/Network'
import type { EventType } from '../src/protocol/Webhook'
import type { Product } from './Payment'

/** An event as it is written. Ids are made from it, so that the same event has the same id. */
export type WebhookEvent = {
  type: EventType
  /** Id of the payment, order or network. Messages about it are sent in the order of its events. */
  subject: string
  /** Tells two events of one type and subject apart. */
  occurrence: string
  /** Unix ms. */
  at: number
  /** JSON without bigint. */
  data: Readonly<Record<string, unknown>>
}

/** What is written from now on, until the next call. */
export type Subscriptions = {
  endpoints: readonly Subscription[]
  /** Gas of a UTC day, by product. Reaching it is the event `budget.spent`. */
  gasPerDay: readonly { network: Network.Id; product: Product; wei: bigint }[]
}

type Subscription = { endpoint: string; origin: string; types: readonly EventType[] }

/** `waiting`: to be sent. `failed`: given up. */
export type MessageState = 'waiting' | 'delivered' | 'failed'

/** A message for one endpoint. Times are unix ms. */
export type Message = {
  /** The order of the events. */
  seq: number
  /** The `webhook-id`. */
  id: string
  /** Id of the endpoint in the configuration that wrote the message. */
  endpoint: string
  /** Scheme, host and port of the endpoint. */
  origin: string
  type: string
  subject: string
  /** The JSON that is sent. */
  body: string
  state: MessageState
  attempts: number
  /** HTTP status of the last answer. */
  lastStatus: number | null
  /** Why the last attempt has no answer, or why there is no further attempt. */
  lastError: string | null
  createdAt: number
  dueAt: number
  expiresAt: number
  endedAt: number | null
}

/** How an attempt ended. */
export type Attempt = {
  seq: number
  status: number | undefined
  error: string | undefined
  at: number
}

/** What the outbox keeps; the oldest messages beyond it are given up or deleted. */
export type Bounds = {
  /** Waiting messages of one endpoint. */
  waitingMax: number
  /** Ended messages of one endpoint. */
  endedMax: number
  /** How long an ended message is kept, ms. */
  endedMs: number
}

export type SweepReason = 'expired' | 'dropped' | 'removed'

/** Messages that were given up, by endpoint. */
export type Swept = {
  endpoint: string
  origin: string
  reason: SweepReason
  count: number
}

/**
 * The outbox of webhooks. Events of payments, deliveries, orders and budgets are written by the
 * commits of those; `subscribe` says for which endpoints. None of the writes here waits for the
 * disk: what a power loss undoes is sent again with the same id.
 */
export type WebhookLedger = {
  subscribe(subscriptions: Subscriptions): void
  /** Notifies inside the transaction that writes messages, which may still be rolled back. */
  onMessage(listener: () => void): void
  /** Writes an event that no other commit writes. */
  add(event: WebhookEvent): Promise<void>
  /** Messages that may be sent, the longest due first: of each subject only the oldest waiting. */
  due(query: { endpoint: string; at: number; limit: number }): Promise<readonly Message[]>
  /** Also for a message that was given up during the attempt. */
  delivered(attempt: Attempt): Promise<void>
  /** A message that no longer waits stays as it is, here and below. */
  retry(attempt: Attempt, dueAt: number): Promise<void>
  failed(attempt: Attempt): Promise<void>
  /** Gives up all waiting messages of an endpoint. Resolves with their number. */
  giveUp(endpoint: string, reason: string, at: number): Promise<number>
  /** Lets waiting messages of these endpoints live at least until a time. */
  prolong(endpoints: readonly string[], until: number): Promise<void>
  /**
   * Gives up what has expired and what exceeds the bounds, and deletes old ended messages.
   * `endpoints`: the configured ones.
   */
  sweep(at: number, endpoints: readonly string[], bounds: Bounds): Promise<readonly Swept[]>
  /** Waiting messages by endpoint. */
  countWaiting(): Promise<ReadonlyMap<string, number>>
  /** Waiting messages of an operator's list first, then failed ones, then the newest of the rest. */
  list(limit: number): Promise<readonly Message[]>
  find(id: string): Promise<Message | undefined>
  /** Makes a message due now, whatever its state. Undefined when there is none. */
  resend(id: string, times: { at: number; expiresAt: number }): Promise<Message | undefined>
}
