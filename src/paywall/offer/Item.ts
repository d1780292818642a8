import type * as Network from '../../protocol/Network'
import type { Offer } from '../../protocol/Offer'
import type { Declaration } from '../../protocol/X402'

/** One thing for sale: a route with one method (HEAD is sold as GET). */
export type Item = {
  /**
   * `slug:GET /path`; part of every MPP challenge, so that a credential pays for no other route.
   */
  id: string
  merchant: string
  /** Route path below the merchant. */
  route: string
  /** HTTP method that it is sold for. */
  method: string
  resource: { url: string; description: string; mimeType: string }
  /** In file order, which is the order of x402 `accepts`. */
  offers: readonly Offer[]
  /**
   * The same offers in the order of MPP challenges: unmodified MPP clients pay the first or fail.
   */
  mppOffers: readonly Offer[]
  /**
   * Id of a second item with the same offers: its challenges are valid here for requests without
   * body.
   */
  twin?: string
  /** x402 extensions besides the paywall's own. */
  extensions: readonly Declaration[]
  /**
   * Where a wallet may sign in for what it has: the price with the terms of that, as a text to which
   * each sign-in is bound.
   */
  signIn?: string
  /** The product whose gas budget pays for its settlement; the gateway by default. */
  product?: 'desk'
  /** Bytes of other headers that callers add to its 402. */
  besideBytes?: number
  /** Offers of this item before the configuration changed. */
  retired?: readonly RetiredOffer[]
  /**
   * For a route whose price depends on the request: the most that any request costs. The offers are
   * those of one request, and a payment of more than its price pays for it, too.
   */
  mostAtomic?: bigint
  /** Whether its requests may be paid by their use, by the x402 scheme `upto`. */
  isByUse?: boolean
  /** Whether it may be paid by payment channels, where a network has them. */
  isByChannel?: boolean
  /** False: neither `exact` nor MPP pays for it. */
  isExact?: boolean
  /** Its buyers may fetch the same answer again, so often and for so long. */
  again?: { forMs: number; max: number }
  /** Free answers of a wallet, once and for all, and of all wallets in a UTC day. */
  trial?: {
    requests: number
    totalPerDay: number
    /** What a wallet must hold, and for how many blocks, by the offers. */
    floors: readonly { network: Network.Id; balanceAtomic: bigint; blocks: number }[]
  }
  /** The pass that this item is, and the route that it opens. */
  opens?: { route: string; requests: number; periodMs: number }
  /** Whether it is also offered to clients of x402 version 1, where they know a network of it. */
  takesV1?: boolean
}

const exactOnly = new WeakMap<Item, Item>()

/** The same item, which is not sold by its use. */
export function withoutUse(item: Item): Item {
  if (item.isByUse !== true) return item
  const made = exactOnly.get(item) ?? { ...item, isByUse: false }
  exactOnly.set(item, made)
  return made
}

/** An offer that is no longer made. */
export type RetiredOffer = Offer & {
  /** Unix ms until which a new payment may use it. A known payment always may. */
  until: number
}
