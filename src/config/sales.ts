import type { Merchant } from './Config'

/** `1 merchant sells 1 route`. */
export function salesOf(merchants: readonly Pick<Merchant, 'routes'>[]): string {
  const routes = merchants.reduce((sum, merchant) => sum + merchant.routes.length, 0)
  const sellers = merchants.length === 1 ? '1 merchant sells' : `${merchants.length} merchants sell`
  return `${sellers} ${routes === 1 ? '1 route' : `${routes} routes`}`
}
