import type { Channel } from '../../db/Channel'
import { stateJson } from '../protocol/Channel'

/** The state of a channel as its client reads it: in `PAYMENT-RESPONSE`, and in a 402 to correct itself. */

/** `channelState` of x402 `batch-settlement`: integers as text, times in unix seconds. */
export function of(channel: Channel) {
  const { id, chargedAtomic } = channel
  return { ...stateJson(id, channel), chargedCumulativeAmount: String(chargedAtomic) }
}

/** What a corrective 402 adds to the entry of the channel. */
export type Correction = ReturnType<typeof correctionOf>

/** The voucher proves to the client what it has signed. Without one the chain has all that was charged. */
export function correctionOf(channel: Channel) {
  const { network, signed, chargedAtomic } = channel
  const isCovered = signed !== undefined && signed.maxAtomic >= chargedAtomic
  return {
    network,
    channelState: of(channel),
    ...(isCovered && {
      voucherState: { signedMaxClaimable: String(signed.maxAtomic), signature: signed.signature },
    }),
  }
}
