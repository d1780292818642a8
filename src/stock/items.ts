import type { Address } from 'viem'
import type { NetworkConfig } from '../config/Config'
import type { Item } from '../paywall/offer/Item'
import type { Terms } from './Instrument'

/** What is sold: one item for each combination of parameters, because the price depends on them. */
export type Items = { of(terms: Terms, totalAtomic: bigint): Item }

/** Items that are kept, the newest ones, with the constants of their 402. */
const keptMax = 500

/** RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset. */
const rateLimitBytes = 90

/**
 * Items of the desk. The id contains the terms, so that an MPP challenge for one order does not pay
 * for another stock or recipient.
 */
export function createItems(options: {
  network: NetworkConfig
  payTo: Address
  baseUrl: string
}): Items {
  const { network, payTo, baseUrl } = options
  const kept = new Map<string, Item>()
  return {
    of({ token, usdgAtomic, recipient, minimumAtomic }, totalAtomic) {
      const terms = [token.symbol, usdgAtomic, recipient ?? '', minimumAtomic ?? ''].join(' ')
      const known = kept.get(terms)
      if (known !== undefined) return known
      const offers = [{ network, payTo, amountAtomic: totalAtomic }]
      const item: Item = {
        id: `desk:POST /api/stock/buy ${terms}`,
        merchant: 'stock',
        route: '/api/stock/buy',
        method: 'POST',
        resource: {
          url: `${baseUrl}/api/stock/buy`,
          description: `Tokenized stock ${token.symbol}`,
          mimeType: 'application/json',
        },
        offers,
        mppOffers: offers,
        besideBytes: rateLimitBytes,
        extensions: [],
        product: 'desk',
      }
      const [oldest] = kept.keys()
      if (kept.size >= keptMax && oldest !== undefined) kept.delete(oldest)
      kept.set(terms, item)
      return item
    },
  }
}
