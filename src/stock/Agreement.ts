import type { Address } from 'viem'
import { fingerprint } from '../paywall/fingerprint'
import type * as Network from '../protocol/Network'
import type { Payment } from '../settlement/Payment'
import type { Admitted } from './admission'
import type * as Instrument from './Instrument'
import * as Orders from './Order'
import { buyPath } from './order-response'

/** What a buyer and the desk agree on. */
export type Agreement = Admitted &
  Pick<Instrument.Terms, 'token' | 'usdgAtomic'> & { recipient: Address; network: Network.Id }

/** Canonical text of an agreement, independent of the spelling in the request. */
export function fingerprintOf(terms: Instrument.Terms, payer: Address): string {
  const { token, usdgAtomic, recipient = payer, minimumAtomic = 0n } = terms
  const query = new URLSearchParams({
    symbol: token.symbol,
    usdg: String(usdgAtomic),
    recipient,
    minimumShares: String(minimumAtomic),
  })
  return fingerprint('POST', buyPath, `?${query}`, undefined)
}

/** A new order, as its payment is written at `now` (unix ms). */
export function orderOf(
  id: string,
  payment: Payment,
  agreed: Agreement,
  now: number,
): Orders.Order {
  const { token, usdgAtomic, recipient, quotedAtomic, floorAtomic, network } = agreed
  const { payer, amountAtomic: totalAtomic } = payment.transfer
  return {
    id,
    paymentId: payment.id,
    network,
    symbol: token.symbol,
    token: token.address,
    pool: token.pool,
    poolFee: token.fee,
    payer,
    recipient,
    usdgAtomic,
    totalAtomic,
    quotedAtomic,
    floorAtomic,
    settlementTx: payment.transaction,
    createdAt: now,
    updatedAt: now,
    ...Orders.untouched,
  }
}
