import type { Address, Hex } from 'viem'

/**
 * State of a refund. `requested`: nothing was sent. `sent`: a transaction of it may be included.
 * `refunded`: the payer has the money. `failed`: its newest transaction has no effect, and another
 * attempt may be sent.
 */
export type State = 'requested' | 'sent' | 'refunded' | 'failed'

export const reasons = ['operator', 'undelivered'] as const
export type Reason = (typeof reasons)[number]

/** The money of a payment, or a part of it, that goes back to its payer: once for a payment. */
export type Refund = {
  paymentId: string
  /** The account that pays it, the same for all attempts: its nonce of the transfer is used once. */
  account: Address
  amountAtomic: bigint
  reason: Reason
  note: string | undefined
  state: State
  /** Attempts that were written. Each is a job of its own, and only one transfer can succeed. */
  attempts: number
  /** The one that paid it; before, the newest one of its newest attempt. */
  transaction: Hex | undefined
  /** Unix ms. */
  createdAt: number
}

export type RefundRequest = {
  paymentId: string
  account: Address
  /** Undefined: all that was paid. */
  amountAtomic: bigint | undefined
  reason: Reason
  note: string | undefined
  /** The most of all refunds of a UTC day. */
  perDayAtomic: bigint
  /** Unix ms. */
  now: number
}

/** `not-confirmed`: also a payment that is not the gateway's, and one of a channel. */
export type Requested =
  | 'requested'
  | 'exists'
  | 'not-confirmed'
  | 'too-much'
  | 'delivered'
  | 'day-spent'

export type RefundLedger = {
  find(paymentId: string): Promise<Refund | undefined>
  /**
   * Writes a refund in one commit that checks everything. `undelivered`: only while the payment is not
   * delivered, no living process delivers it, and nothing that it entitles to was used. From then on no
   * delivery of it begins.
   */
  request(request: RefundRequest): Promise<Requested>
  /** Those that are not refunded, the oldest first. `after`: only those after this one in the list. */
  open(page: { after: string | undefined; limit: number }): Promise<readonly Refund[]>
  /** How many are not refunded, by their state. */
  countOpen(): Promise<Readonly<Record<Exclude<State, 'refunded'>, number>>>
  /** The newest first. `before`: only those after this one in the list. */
  list(page: { before: string | undefined; limit: number }): Promise<readonly Refund[]>
  /**
   * Lets another attempt be sent in place of the newest one, whose job has no effect. False when there is
   * no such job.
   */
  retry(paymentId: string): Promise<boolean>
  /** A transaction that is not that of its newest attempt has paid it, whatever the job says. */
  setElsewhere(paymentId: string, hash: Hex, at: number): Promise<void>
  /**
   * Payments of these merchants that were not delivered and can no longer be redeemed, without a refund.
   * Those that no attempt has ended are looked for among the next `limit` payments after an id, up to the
   * time of `now` less `unansweredMs`; `lastId`: from which to continue, the same at the end. There the
   * others are added, whose time to redeem has ended within `lookBackMs`.
   */
  undelivered(of: {
    merchants: readonly string[]
    afterId: string
    /** Unix ms. */
    now: number
    limit: number
  }): Promise<{ ids: readonly string[]; lastId: string }>
}

/** How long a payment without a failed attempt may be continued before it counts as undelivered, ms. */
export const unansweredMs = 25 * 3_600_000
/** How far back payments are looked for whose time to redeem has ended, ms. */
export const lookBackMs = 8 * 86_400_000

const prefix = 'repay:'

/** The job of an attempt; the first one is 1. */
export function jobId(paymentId: string, attempt: number): string {
  return `${prefix}${paymentId}:${attempt}`
}

/** The payment that a job refunds; undefined for another job. */
export function paymentOf(job: string): string | undefined {
  return job.startsWith(prefix) ? job.slice(prefix.length).split(':')[0] : undefined
}
