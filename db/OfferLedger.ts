import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'

/** A merchant of the last configuration; `json` has no secrets. */
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
  /** Offers of a configuration that its successor does not make. */
  retired(): Promise<readonly RetiredOffer[]>
  /**
   * Applies a configuration: stores its merchants, and the offers that end with it. Deletes offers
   * that ended before `keptFrom` (unix ms).
   */
  replace(input: {
    merchants: readonly MerchantRow[]
    ended: readonly RetiredOffer[]
    keptFrom: number
    now: number
  }): Promise<void>
  /** Calls back when another process may have called `replace`. */
  onReplace(listener: () => void): void
}
