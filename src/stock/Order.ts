import type { Hex } from 'viem'
import type { Order } from '../../db/Order'
import * as Amount from '../protocol/Amount'
import * as Crypto from '../protocol/Crypto'

/** Decimals of every official stock token; shares are shown with all of them. */
export const shareDecimals = 18

/** The JSON of an order for `buy`, `order/{id}` and `orders`: on-chain facts and its state. */
export function toJson(order: Order, assetDecimals: number): Readonly<Record<string, unknown>> {
  const shares = (atomic: bigint) => Amount.toDecimal(atomic, shareDecimals)
  const usdg = (atomic: bigint) => Amount.toDecimal(atomic, assetDecimals)
  const { deliveredAtomic, returnedAtomic, swapTx, refundTx, refundReason, heldReason } = order
  return {
    id: order.id,
    status: order.state,
    symbol: order.symbol,
    token: order.token,
    payer: order.payer,
    recipient: order.recipient,
    usdg: usdg(order.usdgAtomic),
    usdgAtomic: String(order.usdgAtomic),
    // The paid amount, which a refund returns: more than what is swapped where there is a fee.
    ...(order.totalAtomic !== order.usdgAtomic && {
      total: usdg(order.totalAtomic),
      totalAtomic: String(order.totalAtomic),
    }),
    quotedShares: shares(order.quotedAtomic),
    minimumShares: shares(order.floorAtomic),
    ...(deliveredAtomic !== undefined && {
      deliveredShares: shares(deliveredAtomic),
      deliveredSharesAtomic: String(deliveredAtomic),
    }),
    ...(returnedAtomic !== undefined && {
      returned: usdg(returnedAtomic),
      returnedAtomic: String(returnedAtomic),
    }),
    settlementTx: order.settlementTx,
    swapTx,
    refundTx,
    refundReason,
    heldReason,
    createdAt: new Date(order.createdAt).toISOString(),
    updatedAt: new Date(order.updatedAt).toISOString(),
  }
}

/**
 * EIP-3009 nonce of the swap and the refunds of an order, so that only the first included one can
 * move money.
 */
export function nonceOf({ id, network }: Pick<Order, 'id' | 'network'>): Hex {
  return Crypto.hex(Crypto.keccak256(`turnpike stock order\n${network}\n${id}`))
}

/** Job id of the one swap of an order. */
export function swapId({ id }: Pick<Order, 'id'>): string {
  return `swap:${id}`
}

/** Job id of the current refund: the first one, or that of a later attempt. */
export function refundId({ id, refundAttempts }: Pick<Order, 'id' | 'refundAttempts'>): string {
  return refundAttempts <= 1 ? `refund:${id}` : `refund:${id}:${refundAttempts}`
}

/** Pattern of the id of an order. */
export const idPattern = '^ord_[0-9a-f]{32}$'

/** `ord_`, the time and randomness: grows with time, so that it sorts the history. */
export function newId(now: number, random: Uint8Array): string {
  const digits = Buffer.from(random).toString('hex').slice(0, 20)
  if (digits.length !== 20) throw new RangeError('an order id takes ten random bytes')
  return `ord_${now.toString(16).padStart(12, '0')}${digits}`
}

/** An id that sorts after every earlier id, and before every id of this time and later. */
export function idSince(now: number): string {
  return `ord_${Math.max(0, now).toString(16).padStart(12, '0')}`
}

/** Whether a text can be the id of an order. */
export function isId(text: string): boolean {
  return new RegExp(idPattern).test(text)
}
