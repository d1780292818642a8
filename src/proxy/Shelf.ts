import type { Config, Merchant, Method, Route } from '../config/Config'
import { type Item, inMppOrder } from '../paywall/Item'
import * as Bazaar from './Bazaar'

/** A route with what is sold there, one item per method. */
export type Shelf = { merchant: Merchant; route: Route; items: Partial<Record<Method, Item>> }

/** The shelves of a configuration, by their route. */
export function stock(config: Config): Map<Route, Shelf> {
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
          mppOffers: inMppOrder(offers, mppOrder),
          // Made when the route is first asked for: a start should not wait for all.
          get extensions() {
            return [Bazaar.extension(merchant, route, method)]
          },
        }
      shelves.set(route, { merchant, route, items })
    }
  }
  return shelves
}
