import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'
import type { Authorization } from './Authorization'
import type { Order } from './Order'
import type { Payment } from './Payment'
import type { Span } from './SalesLedger'

/** What became of a payment, in one word. `settled`: for another server, by the facilitator. */
export type Outcome = (typeof outcomes)[number]

export const outcomes = [
  'pending',
  'delivered',
  'undelivered',
  'settled',
  'order',
  'unpaid',
] as const

/** A payment in a list. */
export type PaymentLine = {
  id: string
  network: Network.Id
  asset: Address
  payer: Address
  payee: Address
  amountAtomic: bigint
  /** Empty for the facilitator; `stock` for an order. */
  merchant: string
  route: string
  protocol: 'mpp' | 'x402'
  outcome: Outcome
  upstreamStatus: number | undefined
  /** Unix ms; set when a delivery has failed. */
  redeemUntil: number | undefined
  transaction: Hex
  /** Unix ms. */
  createdAt: number
}

/** Which payments are listed; undefined: all of them. */
export type PaymentFilter = {
  payer?: Address | undefined
  merchant?: string | undefined
  route?: string | undefined
  outcome?: Outcome | undefined
}

/** A page of a list: lines older than the id `before`, at most `limit`. */
export type PageOf = { before: string | undefined; limit: number }

/** A transaction of a payment or of an order. Times are unix ms, fees in wei. */
export type StoryTransaction = {
  hash: Hex
  kind: string
  state: string
  relayer: Address
  nonce: number
  /** Payments that share it. */
  members: number
  maxFeeWei: bigint
  costWei: bigint | undefined
  createdAt: number
  firstSentAt: number | undefined
  blockNumber: number | undefined
}

/** All that the ledger has of one payment, or of a charge that was not sent. */
export type Story = {
  payment: Payment | undefined
  authorization: Authorization | undefined
  order: Order | undefined
  /** Transactions of the payment, then those of its order; the oldest first. */
  transactions: readonly StoryTransaction[]
  /** The answer that is kept for the buyer's idempotency key. */
  answer: { status: number; bytes: number; expiresAt: number } | undefined
}

export type GrantLine = {
  network: Network.Id
  address: Address
  kind: 'grant' | 'approval' | 'top-up'
  amountWei: bigint
  feeWei: bigint
  transaction: Hex
  createdAt: number
}

/** What the facilitator settled for a payee. */
export type PayeeLine = {
  network: Network.Id
  asset: Address
  payee: Address
  payments: number
  amountAtomic: bigint
}

/** What an operator paused, by kind and name. */
export type Pause = { kind: 'merchant' | 'network'; name: string; at: number }

/**
 * What the pages for operators read. No statement reads a whole table: each is bounded by its limit
 * or by a span of time.
 */
export type AdminLedger = {
  /**
   * Payments of the newest `rows` before an id that fit a filter, the newest first. `next`: the id
   * from which to continue; undefined at the end. The page has fewer lines than the limit when few
   * of these rows fit.
   */
  payments(
    filter: PaymentFilter,
    page: PageOf & { rows: number },
  ): Promise<{ lines: readonly PaymentLine[]; next: string | undefined }>
  /** All payments of a payer, the newest first; undefined when there are more than `max`. */
  ofPayer(payer: Address, max: number): Promise<readonly PaymentLine[] | undefined>
  /** Payments that are sent and not decided, the newest first. */
  pendingPayments(page: PageOf): Promise<readonly PaymentLine[]>
  /** Id of the payment of an order. */
  paymentOfOrder(id: string): Promise<string | undefined>
  /** Ids of the payments that a transaction contained or paid. */
  inTransaction(hash: Hex): Promise<readonly string[]>
  story(id: string): Promise<Story | undefined>
  /** The newest grants and top-ups of a network since a time. */
  grants(
    network: Network.Id,
    range: { from: number; before: number; limit: number },
  ): Promise<readonly GrantLine[]>
  /** Orders in any state, the newest first. */
  orders(page: PageOf): Promise<readonly Order[]>
  /** Confirmed settlements of the facilitator in a span. Ask for short spans, such as an hour. */
  payees(span: Span): Promise<readonly PayeeLine[]>
  /** When a job was written, unix ms. */
  jobAt(id: string): Promise<number | undefined>
  pauses(): Promise<readonly Pause[]>
  /**
   * Adds or removes one pause. Resolves with all pauses when that is on the disk. A call changes one
   * entry, so that operators at two gateways do not overwrite each other. Notifies other gateways.
   */
  setPause(pause: Pause, isPause: boolean): Promise<readonly Pause[]>
}
