import type { Merchant } from '../config/Config'
import * as Problem from '../protocol/Problem'

/** Sales under way, by merchant and in total. */
export type Places = {
  /**
   * A place, from before anybody is charged until the answer has left; it is given back by calling
   * the result. Undefined when the merchant, or all of them together, have no more.
   */
  take(merchant: string, max: PlacesMax): (() => void) | undefined
  used(): number
}

export type PlacesMax = { merchant: number; total: number }

/** Requests by `fetch` that this runtime has under way at once, unless its environment says more. */
const fetchesMaxDefault = 256
/** The others are for calls to nodes: no payment must wait for a slow upstream. */
const forwardedShare = 3 / 4

/**
 * `fetchesMax` is what the runtime was started with: of that only a part is for upstreams, whatever
 * the file says. Counts by merchant, so that the slow upstream or the slow buyers of one leave the others theirs:
 * the runtime has a limit of requests at once, and behind it an upstream would only seem slow.
 */
export function createPlaces(fetchesMax = fetchesMaxDefault): Places {
  const most = Math.max(1, Math.floor(fetchesMax * forwardedShare))
  const byMerchant = new Map<string, number>()
  let used = 0
  const add = (merchant: string, change: 1 | -1) => {
    used += change
    const sum = (byMerchant.get(merchant) ?? 0) + change
    if (sum > 0) byMerchant.set(merchant, sum)
    else byMerchant.delete(merchant)
  }
  return {
    used: () => used,
    take(merchant, max) {
      if (used >= Math.min(max.total, most) || (byMerchant.get(merchant) ?? 0) >= max.merchant)
        return undefined
      add(merchant, 1)
      let isHeld = true
      return () => {
        if (isHeld) add(merchant, -1)
        isHeld = false
      }
    },
  }
}

/** A place for a sale of the merchant. Throws ProblemError `not-ready` when there is none. */
export function assertPlace(
  places: Places,
  { slug, concurrencyMax }: Pick<Merchant, 'slug' | 'concurrencyMax'>,
  total: number,
): () => void {
  const free = places.take(slug, { merchant: concurrencyMax, total })
  if (free !== undefined) return free
  const detail = 'Too many requests for this merchant are under way; nothing is charged.'
  throw Problem.of('not-ready', detail, { headers: { 'retry-after': '2' } })
}
