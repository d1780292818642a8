import type { Address, Hex } from 'viem'
import type { HeldReason, Order, RefundReason } from './Order'

/** The terms of an order, before the payment is written and anything is sent. */
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

/** Most orders that are under way, or were refunded since the time in an order id. */
export type OrderQuota = {
  payer: Address
  since: string
  max: number
  /** The same of all payers. Undefined for an order with the usual minimum. */
  all?: { since: string; max: number } | undefined
}

export type HistoryQuery = {
  payer: Address | undefined
  limit: number
  /** Only orders older than this one. */
  before: string | undefined
}

/** One change of an order: a compare-and-swap on its state. `at`: unix ms. */
export type OrderMove = { id: string; at: number } & (
  | { kind: 'settle'; hash: Hex }
  /** The settlement is no longer on the chain. */
  | { kind: 'unsettle' }
  | { kind: 'fail' }
  /** The payment of a failed order is confirmed after all. */
  | { kind: 'revive' }
  | { kind: 'swap'; hash: Hex }
  | { kind: 'deliver'; hash: Hex; amountAtomic: bigint; returnedAtomic: bigint }
  /** A reorganisation removed the swap: the same bytes are open again. */
  | { kind: 'undeliver' }
  /**
   * A reorganisation removed the failed swap, which may succeed now, or included it again.
   * `refundTx`: the refund that has moved no money; undefined: none was written.
   */
  | { kind: 'reswap'; refundTx: Hex | undefined }
  | { kind: 'refund'; reason: RefundReason }
  | { kind: 'refunded'; hash: Hex }
  | { kind: 'unrefund' }
  /** A refund is written: the attempt after `attempts`. */
  | { kind: 'attempt-refund'; attempts: number; hash: Hex }
  /** The current refund can never succeed: the next attempt may be written. */
  | { kind: 'abandon-refund'; attempts: number }
  /** The refund that had failed is open again, or has paid after all. */
  | { kind: 'resume-attempt'; attempts: number; hash: Hex }
  | { kind: 'hold'; reason: HeldReason }
  | { kind: 'resume-settled' }
  | { kind: 'resume-swap' }
  /** `refundTx` undefined: the sent refund can never succeed, and a new attempt may be written. */
  | { kind: 'resume-refund'; refundTx: Hex | undefined }
  /** An operator requests to resume a held order. */
  | { kind: 'request-retry' }
  /** The retry requested at that time had no effect. */
  | { kind: 'dismiss-retry'; retryAt: number }
)

/** A move that is written with its job: the job's transaction is its hash. */
export type OrderRide =
  | { kind: 'swap'; id: string; at: number }
  | { kind: 'attempt-refund'; id: string; at: number; attempts: number }

export type OrderLedger = {
  find(id: string): Promise<Order | undefined>
  findByPayment(paymentId: string): Promise<Order | undefined>
  /** All orders that have not ended, oldest first. */
  open(): Promise<readonly Order[]>
  /** Ids of recent orders whose end is no longer confirmed by its transaction. */
  toRecheck(): Promise<readonly string[]>
  /** Number of open orders. */
  countOpen(): Promise<number>
  /** Newest first. */
  history(query: HistoryQuery): Promise<readonly Order[]>
  /** Orders of a payer since an id that were refunded or will be. */
  countRefunds(payer: Address, since: string): Promise<number>
  /** Orders of a payer that may still be delivered. */
  countUnderWay(payer: Address): Promise<number>
  /** Orders of all payers that may still be delivered, or were refunded since an id or will be. */
  countRefundable(since: string): Promise<number>
  /** The order after the move; undefined when it was in another state. */
  move(move: OrderMove): Promise<Order | undefined>
}
