import type { Merchant } from '../config/Config'
import { originOf } from '../proxy/builtin/serve'
import type { Stocks } from '../proxy/builtin/stocks'
import type { Health } from '../web/catalogue'

type Exchange = { data: Stocks } | undefined

/** What a merchant needs to deliver; none for a builtin one that cannot. */
export function originsOf(merchant: Merchant, exchange: Exchange): string[] {
  const { builtin, upstream, routes } = merchant
  const all =
    builtin === undefined
      ? [upstream, ...routes.map((route) => route.upstream)].map((url) => url?.origin)
      : [originOf(builtin, { stocks: exchange?.data })]
  return [...new Set(all.filter((origin) => origin !== undefined))]
}

/** Whether what a merchant sells can be delivered now, as far as the last requests tell. */
export function healthOf(
  origins: readonly string[],
  { outOfService }: Merchant,
  isOpen: (origin: string) => boolean,
): Health {
  if (outOfService !== undefined || origins.length === 0) return 'out-of-service'
  const silent = origins.filter(isOpen).length
  if (silent === 0) return 'available'
  return silent < origins.length ? 'partly' : 'unavailable'
}

/** The merchant with the reason why it is not served, or nothing. */
export function outOfService(merchant: Merchant): { merchant: string; reason: string }[] {
  if (merchant.outOfService === undefined) return []
  return [{ merchant: merchant.slug, reason: `${merchant.outOfService} is not set` }]
}
