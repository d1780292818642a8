import type { Config, Merchant, Method, Route } from '../config/Config'
import type { Earlier } from '../paywall/earlier'
import { type EarlierOffer, type Item, inMppOrder } from '../paywall/Item'
import type { Offer } from '../protocol/Offer'
import * as Bazaar from './Bazaar'

/** A route with what is sold there, one item per method. */
export type Shelf = { merchant: Merchant; route: Route; items: Partial<Record<Method, Item>> }

/** Everything that a configuration sells. */
export function stock(config: Config, earlier: Earlier): Map<Route, Shelf> {
  const { baseUrl, mppOrder } = config.service
  const shelves = new Map<Route, Shelf>()
  for (const merchant of config.merchants) {
    const networks = config.networks.filter((network) => merchant.networks.includes(network.id))
    for (const route of merchant.routes) {
      const offers = networks.map((network) => ({
        network,
        payTo: merchant.payout,
        amountAtomic: route.priceAtomic,
      }))
      const before = withoutOffered(earlier(merchant.slug, route.path) ?? [], offers)
      const mppOffers = inMppOrder(offers, mppOrder)
      const items: Partial<Record<Method, Item>> = {}
      for (const method of route.methods)
        items[method] = {
          id: `${merchant.slug}:${method} ${route.path}`,
          merchant: merchant.slug,
          route: route.path,
          method,
          resource: {
            url: `${baseUrl}/m/${merchant.slug}${route.path}`,
            description: route.summary,
            mimeType: 'application/json',
          },
          offers,
          mppOffers,
          // Made when the route is first asked for: a start should not wait for all.
          get extensions() {
            return [Bazaar.extension(merchant, route, method)]
          },
          ...(before.length === 0 ? {} : { earlier: before }),
        }
      shelves.set(route, { merchant, route, items })
    }
  }
  return shelves
}

/** What was taken back and is offered again counts as offered. */
function withoutOffered(
  earlier: readonly EarlierOffer[],
  offers: readonly Offer[],
): readonly EarlierOffer[] {
  return earlier.filter(
    (before) =>
      !offers.some(
        ({ network, payTo, amountAtomic }) =>
          network === before.network &&
          payTo === before.payTo &&
          amountAtomic === before.amountAtomic,
      ),
  )
}
