import type { Address } from 'viem'
import type { NewOrder } from '../../db/OrderLedger'
import { fingerprint } from '../paywall/fingerprint'
import type * as Network from '../protocol/Network'
import type { Transfer } from '../protocol/Transfer'
import type { Admitted } from './admission'
import type * as Instrument from './Instrument'
import { buyPath } from './order-response'

/** The terms of an order. */
export type Agreement = Admitted &
  Pick<Instrument.Terms, 'token' | 'usdgAtomic'> & { recipient: Address; network: Network.Id }

/** Canonical text of the terms, independent of the spelling in the request. */
export function fingerprintOf(terms: Instrument.Terms, payer: Address): string {
  const { token, usdgAtomic, recipient = payer, minimumAtomic = 0n } = terms
  const query = new URLSearchParams({
    symbol: token.symbol,
    usdg: String(usdgAtomic),
    recipient,
    minimumShares: String(minimumAtomic),
  })
  return fingerprint('POST', buyPath, `?${query}`, {})
}

/** The new order of a payer, to be written with its payment. `now`: unix ms. */
export function orderOf(
  id: string,
  { payer, amountAtomic: totalAtomic }: Pick<Transfer, 'payer' | 'amountAtomic'>,
  agreed: Agreement,
  now: number,
): NewOrder {
  const { token, usdgAtomic, recipient, quotedAtomic, floorAtomic, network } = agreed
  return {
    id,
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
    createdAt: now,
  }
}
