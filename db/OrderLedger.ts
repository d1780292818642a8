import type { Address, Hex } from 'viem'
import type { HeldReason, Order, RefundReason } from './Order'

/** What was agreed on, before the payment is written and anything is sent. */
export type NewOrder = Pick<
  Order,
  | 'id'
  | 'network'
  | 'symbol'
  | 'token'
  | 'pool'
  | 'poolFee'
  | 'payer'
  | 'recipient'
  | 'usdgAtomic'
  | 'totalAtomic'
  | 'quotedAtomic'
  | 'floorAtomic'
  | 'createdAt'
>

/** Most orders of a payer that are under way, or were refunded since the time of an order id. */
export type OrderQuota = { payer: Address; since: string; max: number }

export type HistoryQuery = {
  payer: Address | undefined
  limit: number
  /** Only orders older than this one. */
  before: string | undefined
}

/** One change of an order: a compare-and-swap on its state. `at`: unix ms. */
export type OrderMove = { id: string; at: number } & (
  | { kind: 'settle'; hash: Hex }
  /** The settlement is not on the chain any more. */
  | { kind: 'unsettle' }
  | { kind: 'fail' }
  | { kind: 'swap'; hash: Hex }
  | { kind: 'deliver'; hash: Hex; amountAtomic: bigint; returnedAtomic: bigint }
  /** A reorganisation took the swap away: the same bytes are under way again. */
  | { kind: 'undeliver' }
  /**
   * A reorganisation took the failed swap away, so that it may succeed now, or brought it back.
   * `refundTx`: the refund that has moved no money; undefined: none was written.
   */
  | { kind: 'reswap'; refundTx: Hex | undefined }
  | { kind: 'refund'; reason: RefundReason }
  | { kind: 'refunded'; hash: Hex }
  | { kind: 'unrefund' }
  /** A refund is written: the attempt after `attempts`. */
  | { kind: 'attempt-refund'; attempts: number; hash: Hex }
  /** The refund under way can never succeed: the next attempt may be written. */
  | { kind: 'abandon-refund'; attempts: number }
  /** The refund that had failed is under way again, or has paid after all. */
  | { kind: 'resume-attempt'; attempts: number; hash: Hex }
  | { kind: 'hold'; reason: HeldReason }
  | { kind: 'resume-settled' }
  | { kind: 'resume-swap' }
  /** `refundTx` undefined: what was sent can never succeed, and a new attempt may be written. */
  | { kind: 'resume-refund'; refundTx: Hex | undefined }
  /** An operator asks to go on with an order that is held. */
  | { kind: 'request-retry' }
  /** The retry requested at that time had no effect. */
  | { kind: 'dismiss-retry'; retryAt: number }
)

/** A move that is written with the job that makes it: the job's transaction is its hash. */
export type OrderRide =
  | { kind: 'swap'; id: string; at: number }
  | { kind: 'attempt-refund'; id: string; at: number; attempts: number }

export type OrderLedger = {
  find(id: string): Promise<Order | undefined>
  findByPayment(paymentId: string): Promise<Order | undefined>
  /** Everything that is not at an end, oldest first. */
  open(): Promise<readonly Order[]>
  /** Those among the newest that have ended on a transaction that has not, or not so any more. */
  toRecheck(): Promise<readonly string[]>
  /** Orders that are under way. */
  countOpen(): Promise<number>
  /** Newest first. */
  history(query: HistoryQuery): Promise<readonly Order[]>
  /** Orders of a payer since an id whose money went back, or is on its way back. */
  countRefunds(payer: Address, since: string): Promise<number>
  /** Orders of a payer that may still be delivered. */
  countUnderWay(payer: Address): Promise<number>
  /** The order as it is then; undefined when it was in another state. */
  move(move: OrderMove): Promise<Order | undefined>
}
