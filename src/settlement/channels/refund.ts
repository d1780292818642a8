import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import * as Refusals from '../read/refusals'
import type { ChainState, Context } from '../state/state'
import type { Presented } from './state'

export type Refunded = {
  kind: 'refunded'
  channel: Channel
  transaction: Hex
  amountAtomic: bigint
}

export type RefundOptions = {
  requestId: string | undefined
  client?: string | undefined
  /** Bounds the wait only: the refund continues. */
  waitMs: number
}

/**
 * Reserves, claims and refunds what a credential of kind `refund` asks for. The caller has the turn of
 * the channel, and has checked the signature and that the voucher is all that was charged.
 */
export async function refund(
  _context: Context,
  _chain: ChainState,
  _asked: { transfer: Presented; channel: Channel },
  _options: RefundOptions,
): Promise<Refunded | Refusals.PaymentRefusal> {
  return Refusals.unavailable(undefined)
}
