import type { Address, Hex } from 'viem'
import type * as Network from '../src/protocol/Network'

/**
 * State of a stock order. `settling`: the buyer's transfer to the desk was written and may have been
 * sent. `settled`: the desk holds the money and has sent nothing. `swapping`: a swap was written.
 * `refunding`: it is decided that the money goes back. `held`: an operator must look; the money or the
 * shares are accounted for, but no rule says what to do. `failed`: the transfer never happened.
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
 * Every change that may ever be made; the database refuses all others, too. A reorganisation can take
 * away what a state rests on: the same signed transaction is then under way again, so `delivered` goes
 * back to `swapping` and never to `refunding`, `refunded` only to `refunding`, and `refunding`, as long
 * as no refund was written, to `swapping`.
 */
export const transitions: Readonly<Record<State, readonly State[]>> = {
  settling: ['settled', 'failed'],
  settled: ['settling', 'swapping', 'refunding', 'held'],
  swapping: ['delivered', 'refunding', 'held'],
  delivered: ['swapping'],
  refunding: ['refunded', 'held', 'swapping'],
  refunded: ['refunding'],
  held: ['settled', 'swapping', 'refunding'],
  failed: [],
}

/** States that the desk drives on by itself. */
export const unfinished: readonly State[] = ['settling', 'settled', 'swapping', 'refunding']

/** Why the money went back. */
export type RefundReason = (typeof refundReasons)[number]

export const refundReasons = [
  /** The pool gives less than the floor. */
  'below-floor',
  /** The pool does not quote at all. */
  'no-quote',
  /** What is checked before an order is taken no longer holds: halted, paused, blocked, moved. */
  'check-failed',
  /** The swap is included and reverted. */
  'swap-failed',
  /** Another transaction took the account nonce of the swap. */
  'swap-replaced',
  /** Of an earlier version, in which the router had an allowance. */
  'no-allowance',
  /** The desk could not swap for too long. */
  'too-late',
] as const

/** Why an operator must look. */
export type HeldReason = (typeof heldReasons)[number]

export const heldReasons = [
  /** The swap succeeded and its receipt has no Transfer of the token to the recipient. */
  'delivery-not-found',
  /** The refund is included and reverted: the token does not let the payer receive. */
  'refund-failed',
  /** The refund succeeded and its receipt has no Transfer to the payer. */
  'refund-not-found',
  /** The chain proves that the payment, which was confirmed before, never happened. */
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
  /** Payer of record: a refund goes nowhere else. */
  payer: Address
  recipient: Address
  /** What is swapped. */
  usdgAtomic: bigint
  /** What was paid, and is refunded: the swapped amount and the fee. */
  totalAtomic: bigint
  /** Estimate that the order was taken on. */
  quotedAtomic: bigint
  /** Fewer shares than this are never delivered. */
  floorAtomic: bigint
  state: State
  settlementTx: Hex
  swapTx: Hex | undefined
  refundTx: Hex | undefined
  deliveredAtomic: bigint | undefined
  /** Of what was to be swapped, the part that the pool did not take: the swap gave it to the payer. */
  returnedAtomic: bigint | undefined
  refundReason: RefundReason | undefined
  heldReason: HeldReason | undefined
  /** Refunds that were tried: each has its own transaction, and the earlier ones can never succeed. */
  refundAttempts: number
  /** An operator asked to go on with a held order. */
  retryAt: number | undefined
  createdAt: number
  updatedAt: number
  settledAt: number | undefined
}
