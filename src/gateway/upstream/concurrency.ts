import type { Merchant } from '../../config/Config'
import { createCounts } from '../../http/counts'
import * as Problem from '../../protocol/Problem'

/** Sales in progress, by merchant and in total. */
export type Concurrency = ReturnType<typeof createConcurrency>

type Seller = Pick<Merchant, 'slug' | 'concurrencyMax'>

/** The runtime's default limit of concurrent requests by `fetch`. */
const fetchesMaxDefault = 256
/**
 * The other slots are reserved for calls to nodes, so that no payment waits for a slow upstream.
 */
const forwardedShare = 3 / 4

/**
 * Counts sales by merchant, so that a slow upstream or slow buyers of one merchant cannot take the
 * slots of others. `fetchesMax` is the runtime's limit of concurrent fetches. Upstreams get only a
 * part of it, whatever the file says, because requests above the limit wait, and every upstream
 * would seem slow.
 */
export function createConcurrency(fetchesMax = fetchesMaxDefault) {
  const most = Math.max(1, Math.floor(fetchesMax * forwardedShare))
  const byMerchant = createCounts()
  return {
    used: byMerchant.total,
    /**
     * Acquires a slot for the time from before the payment until the answer was sent. Calling the
     * result releases it. Throws ProblemError `not-ready` when the merchant, or all merchants
     * together (`total`), have no free slot.
     */
    acquire({ slug, concurrencyMax }: Seller, total: number): () => void {
      if (byMerchant.total() >= Math.min(total, most) || byMerchant.of(slug) >= concurrencyMax)
        throw Problem.of(
          'not-ready',
          'Too many requests for this merchant are in progress; nothing is charged. Wait for Retry-After.',
          { headers: { 'retry-after': '2' } },
        )
      byMerchant.add(slug, 1)
      let isHeld = true
      return () => {
        if (isHeld) byMerchant.add(slug, -1)
        isHeld = false
      }
    },
  }
}
