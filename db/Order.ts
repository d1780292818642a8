import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'

/**
 * State of a stock order. `settling`: the buyer's transfer to the desk was written and may have
 * been sent. `settled`: the desk has the money and has sent nothing. `swapping`: a swap was
 * written. `refunding`: a refund is decided. `held`: an operator must decide. The money or the
 * shares are accounted for, but no rule covers the case. `failed`: the transfer did not happen, and no
 * reorganisation within `reorg_depth` can bring it.
 */
export type State = (typeof states)[number]

export const states = [
  'settling',
  'settled',
  'swapping',
  'delivered',
  'refunding',
  'refunded',
  'held',
  'failed',
] as const

/**
 * Every permitted change; the database refuses all others, too. A reorganisation can remove the
 * transaction of a state. The same signed transaction is then open again, so `delivered` goes back
 * to `swapping` and never to `refunding`. `refunded` goes only to `refunding`. `refunding` goes to
 * `swapping` as long as no refund was written.
 */
export const transitions: Readonly<Record<State, readonly State[]>> = {
  settling: ['settled', 'failed'],
  settled: ['settling', 'swapping', 'refunding', 'held'],
  swapping: ['delivered', 'refunding', 'held'],
  delivered: ['swapping'],
  refunding: ['refunded', 'held', 'swapping'],
  refunded: ['refunding'],
  held: ['settled', 'swapping', 'refunding'],
  // Its payment was confirmed after it had expired.
  failed: ['settling'],
}

/** States that the desk drives on by itself. */
export const unfinished: readonly State[] = ['settling', 'settled', 'swapping', 'refunding']

/** Why the money was refunded. */
export type RefundReason = (typeof refundReasons)[number]

export const refundReasons = [
  /** The pool gives less than the floor. */
  'below-floor',
  /** The pool does not quote at all. */
  'no-quote',
  /** A check of the admission no longer holds: halted, paused, blocked, moved. */
  'check-failed',
  /** The swap is included and reverted. */
  'swap-failed',
  /** Another transaction took the account nonce of the swap. */
  'swap-replaced',
  /** Used by an earlier version, in which the router had an allowance. */
  'no-allowance',
  /** The desk could not swap for too long. */
  'too-late',
] as const

/** Why an operator must decide. */
export type HeldReason = (typeof heldReasons)[number]

export const heldReasons = [
  /** The swap succeeded and its receipt has no Transfer of the token to the recipient. */
  'delivery-not-found',
  /** The refund is included and reverted: the token does not let the payer receive. */
  'refund-failed',
  /** The refund succeeded and its receipt has no Transfer to the payer. */
  'refund-not-found',
  /** The chain proves that the confirmed payment never happened. */
  'settlement-lost',
  /** One node shows the payment, and another one has its transaction without the transfer. */
  'settlement-disputed',
] as const

/** An order as stored. Times are unix ms; amounts of USDG and of the token are atomic. */
export type Order = {
  id: string
  paymentId: string
  network: Network.Id
  symbol: string
  token: Address
  pool: Address
  /** Fee tier of the pool, hundredths of a basis point. */
  poolFee: number
  /** Payer of record, and the only recipient of a refund. */
  payer: Address
  recipient: Address
  /** The amount that is swapped. */
  usdgAtomic: bigint
  /** The paid amount, which a refund returns: the swapped amount and the fee. */
  totalAtomic: bigint
  /** The quote at admission. */
  quotedAtomic: bigint
  /** Fewer shares than this are never delivered. */
  floorAtomic: bigint
  state: State
  settlementTx: Hex
  swapTx: Hex | undefined
  refundTx: Hex | undefined
  deliveredAtomic: bigint | undefined
  /** The part of the amount that the pool did not take: the swap returned it to the payer. */
  returnedAtomic: bigint | undefined
  refundReason: RefundReason | undefined
  heldReason: HeldReason | undefined
  /** Number of refund attempts. Each has its own transaction, and only the last can succeed. */
  refundAttempts: number
  /** An operator requested to resume the held order. */
  retryAt: number | undefined
  createdAt: number
  updatedAt: number
  settledAt: number | undefined
}
