import type * as Network from '../protocol/Network'
import type { Offer } from '../protocol/Offer'
import type { Declaration } from '../protocol/X402'

/** One thing for sale at a fixed price: a route with one method (HEAD is sold as GET). */
export type Item = {
  /** `slug:GET /path`; bound into every MPP challenge, so that a credential opens no other route. */
  id: string
  merchant: string
  /** Route path below the merchant. */
  route: string
  /** HTTP method it is sold under. */
  method: string
  resource: { url: string; description: string; mimeType: string }
  /** In file order, which is the order of x402 `accepts`. */
  offers: readonly Offer[]
  /** The same offers in the order of MPP challenges: stock MPP clients pay the first or give up. */
  mppOffers: readonly Offer[]
  /**
   * Id of a second item with the same offers: its challenges are valid here for requests without
   * body.
   */
  twin?: string
  /** x402 extensions besides the paywall's own. */
  extensions: readonly Declaration[]
  /** Whose gas budget pays for its settlement; the gateway's by default. */
  product?: 'desk'
  /** Bytes of further headers that callers add to its 402. */
  besideBytes?: number
  /** What was offered here before the configuration changed. */
  retired?: readonly RetiredOffer[]
}

/** An offer that is no longer made. */
export type RetiredOffer = Offer & {
  /** Unix ms up to which a new payment may take it; a payment that is known already always may. */
  until: number
}

/** Orders offers by the networks of `mppOrder`; networks it does not name keep their order behind. */
export function inMppOrder(
  offers: readonly Offer[],
  mppOrder: readonly Network.Id[],
): readonly Offer[] {
  const rank = (offer: Offer): number => {
    const index = mppOrder.indexOf(offer.network.id)
    return index === -1 ? mppOrder.length : index
  }
  return offers.toSorted((a, b) => rank(a) - rank(b))
}
