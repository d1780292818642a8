import type { Merchant } from '../config/Config'
import { originOf } from './builtin/serve'
import type { Stocks } from './builtin/stocks'

/** Whether a merchant can deliver now. */
type Availability = 'available' | 'partly' | 'unavailable' | 'out-of-service'

/** Upstreams that a merchant needs to deliver; none for a builtin merchant that cannot deliver. */
export function originsOf(merchant: Merchant, stocks: Stocks | undefined): string[] {
  const { builtin, upstream, routes } = merchant
  const all =
    builtin === undefined
      ? [upstream, ...routes.map((route) => route.upstream)].map((url) => url?.origin)
      : [originOf(builtin, { stocks })]
  return [...new Set(all.filter((origin) => origin !== undefined))]
}

/** Whether a merchant with these origins can deliver now, according to the last requests. */
export function availabilityOf(
  origins: readonly string[],
  { outOfService }: Merchant,
  isOpen: (origin: string) => boolean,
): Availability {
  if (outOfService !== undefined || origins.length === 0) return 'out-of-service'
  const silent = origins.filter(isOpen).length
  if (silent === 0) return 'available'
  return silent < origins.length ? 'partly' : 'unavailable'
}

/**
 * A merchant that is configured and not served, with the reason: a variable's name, never its
 * value.
 */
export function outOfService(merchant: Merchant): { merchant: string; reason: string }[] {
  if (merchant.outOfService === undefined) return []
  return [{ merchant: merchant.slug, reason: `${merchant.outOfService} is not set` }]
}
