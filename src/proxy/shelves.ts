import type { Config, Merchant, Method, NetworkConfig, Route } from '../config/Config'
import type { Earlier } from '../paywall/earlier'
import { type EarlierOffer, type Item, inMppOrder } from '../paywall/Item'
import type { Offer } from '../protocol/Offer'
import * as Bazaar from './Bazaar'

/** A route with what is sold there, one item per method. */
export type Shelf = { merchant: Merchant; route: Route; items: Partial<Record<Method, Item>> }

/**
 * Finds what is sold at a route of a configuration. Made when it is first asked for: with thousands
 * of routes a start should not wait for all, and most are not asked for.
 */
export function stock(
  config: Config,
  earlier: Earlier,
): (merchant: Merchant, route: Route) => Shelf {
  const shelves = new Map<Route, Shelf>()
  const networks = new Map<Merchant, readonly NetworkConfig[]>()
  return (merchant, route) => {
    const known = shelves.get(route)
    if (known !== undefined) return known
    const offered =
      networks.get(merchant) ?? config.networks.filter(({ id }) => merchant.networks.includes(id))
    networks.set(merchant, offered)
    const offers = offered.map((network) => ({
      network,
      payTo: merchant.payout,
      amountAtomic: route.priceAtomic,
    }))
    const before = withoutOffered(earlier(merchant.slug, route.path) ?? [], offers)
    const shelf = { merchant, route, items: itemsOf(config, merchant, route, offers, before) }
    shelves.set(route, shelf)
    return shelf
  }
}

function itemsOf(
  { service }: Config,
  merchant: Merchant,
  route: Route,
  offers: readonly Offer[],
  before: readonly EarlierOffer[],
): Shelf['items'] {
  const mppOffers = inMppOrder(offers, service.mppOrder)
  const items: Partial<Record<Method, Item>> = {}
  const idOf = (method: Method) => `${merchant.slug}:${method} ${route.path}`
  for (const method of route.methods) {
    const twin = twins[method]
    items[method] = {
      id: idOf(method),
      merchant: merchant.slug,
      route: route.path,
      method,
      resource: {
        url: `${service.baseUrl}/m/${merchant.slug}${route.path}`,
        description: route.summary,
        mimeType: 'application/json',
      },
      offers,
      mppOffers,
      extensions: [Bazaar.extension(merchant, route, method)],
      ...(twin !== undefined && route.methods.includes(twin) ? { twin: idOf(twin) } : {}),
      ...(before.length === 0 ? {} : { earlier: before }),
    }
  }
  return items
}

/** Specification 4.1: where a route accepts both, both have the same price and challenge. */
const twins: Partial<Record<Method, Method>> = { GET: 'POST', POST: 'GET' }

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
