import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'

/** A merchant as the last configuration left it; `json` is without secrets. */
export type MerchantRow = { slug: string; title: string; hash: string; json: string }

export type RetiredOffer = {
  merchant: string
  route: string
  network: Network.Id
  asset: Address
  payTo: Address
  amountAtomic: bigint
  /** Unix ms. */
  retiredAt: number
}

export type OfferLedger = {
  merchants(): Promise<readonly MerchantRow[]>
  /** Offers that a configuration made and its successor does not. */
  retired(): Promise<readonly RetiredOffer[]>
  /**
   * Takes a configuration over: its merchants, and the offers that end with it. Forgets offers that
   * ended before `keptFrom` (unix ms).
   */
  replace(input: {
    merchants: readonly MerchantRow[]
    ended: readonly RetiredOffer[]
    keptFrom: number
    now: number
  }): Promise<void>
}
