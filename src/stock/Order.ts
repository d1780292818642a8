import type { Address, Hex } from 'viem'
import * as Amount from '../protocol/Amount'
import * as Crypto from '../protocol/Crypto'
import type * as Network from '../protocol/Network'

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

/** Decimals of the two amounts that an order tells. */
export type Units = { assetDecimals: number; tokenDecimals: number }

/** The order as `buy`, `order/{id}` and `orders` tell it: on-chain facts and how it stands. */
export function toJson(order: Order, units: Units): Readonly<Record<string, unknown>> {
  const shares = (atomic: bigint) => Amount.toDecimal(atomic, units.tokenDecimals)
  const { deliveredAtomic, returnedAtomic, swapTx, refundTx, refundReason, heldReason } = order
  return {
    id: order.id,
    status: order.state,
    symbol: order.symbol,
    token: order.token,
    payer: order.payer,
    recipient: order.recipient,
    usdg: Amount.toDecimal(order.usdgAtomic, units.assetDecimals),
    usdgAtomic: String(order.usdgAtomic),
    // Paid, and refunded if need be: more than what is swapped where there is a fee.
    ...(order.totalAtomic === order.usdgAtomic
      ? {}
      : {
          total: Amount.toDecimal(order.totalAtomic, units.assetDecimals),
          totalAtomic: String(order.totalAtomic),
        }),
    quotedShares: shares(order.quotedAtomic),
    minimumShares: shares(order.floorAtomic),
    ...(deliveredAtomic === undefined
      ? {}
      : {
          deliveredShares: shares(deliveredAtomic),
          deliveredSharesAtomic: String(deliveredAtomic),
        }),
    ...(returnedAtomic === undefined
      ? {}
      : {
          returned: Amount.toDecimal(returnedAtomic, units.assetDecimals),
          returnedAtomic: String(returnedAtomic),
        }),
    settlementTx: order.settlementTx,
    ...(swapTx === undefined ? {} : { swapTx }),
    ...(refundTx === undefined ? {} : { refundTx }),
    ...(refundReason === undefined ? {} : { refundReason }),
    ...(heldReason === undefined ? {} : { heldReason }),
    createdAt: new Date(order.createdAt).toISOString(),
    updatedAt: new Date(order.updatedAt).toISOString(),
  }
}

/** What the page for operators tells of an order that is held. */
export function toHeld({ id, symbol, state, heldReason, updatedAt }: Order) {
  return { id, symbol, status: state, reason: heldReason ?? '', updatedAt }
}

/** EIP-3009 nonce that swap and refunds of an order spend: the first that is included, and no other. */
export function nonceOf({ id, network }: Pick<Order, 'id' | 'network'>): Hex {
  return Crypto.hex(Crypto.keccak256(`turnpike stock order\n${network}\n${id}`))
}

/** Errand id of the one swap of an order. */
export function swapId({ id }: Pick<Order, 'id'>): string {
  return `swap:${id}`
}

/** Errand id of the refund under way: the first one, or that of a later attempt. */
export function refundId({ id, refundAttempts }: Pick<Order, 'id' | 'refundAttempts'>): string {
  return refundAttempts <= 1 ? `refund:${id}` : `refund:${id}:${refundAttempts}`
}

const idPattern = /^ord_[0-9a-f]{32}$/

/** `ord_`, the time and randomness: grows with time, so that it orders the history. */
export function newId(now: number, random: Uint8Array): string {
  const digits = Buffer.from(random).toString('hex').slice(0, 20)
  if (digits.length !== 20) throw new RangeError('an order id takes ten random bytes')
  return `ord_${now.toString(16).padStart(12, '0')}${digits}`
}

/** Below every id of this time and later, above every earlier one. */
export function idSince(now: number): string {
  return `ord_${Math.max(0, now).toString(16).padStart(12, '0')}`
}

/** Whether a text can be the id of an order. */
export function isId(text: string): boolean {
  return idPattern.test(text)
}
