import type { Config, Merchant, Method, NetworkConfig, Route } from '../config/Config'
import { isGiven, passAt, trialNeeds } from '../paywall/entitlement/Entitlements'
import { takes } from '../paywall/offer/ByChannel'
import type { Item, RetiredOffer } from '../paywall/offer/Item'
import type { RetiredOffers } from '../paywall/offer/retired-offers'
import { mayBeByUse } from '../paywall/usage/ByUse'
import type * as Network from '../protocol/Network'
import type { Offer } from '../protocol/Offer'
import * as Bazaar from './documents/Bazaar'

/** The item that is sold at a route, by method. */
export type Items = Partial<Record<Method, Item>>
/** The offers that pay for an item, and their networks. */
type Terms = {
  offers: readonly Offer[]
  retired: readonly RetiredOffer[]
  networks: readonly NetworkConfig[]
}

/**
 * Finds the items of a route of a configuration. They are compiled at the first request: with
 * thousands of routes a start should not compile all, and most are never requested.
 */
export function compileItems(
  config: Config,
  retired: RetiredOffers,
): (merchant: Merchant, route: Route) => Items {
  const byRoute = new Map<Route, Items>()
  const networks = new Map<Merchant, readonly NetworkConfig[]>()
  return (merchant, route) => {
    const known = byRoute.get(route)
    if (known !== undefined) return known
    const offered =
      networks.get(merchant) ?? config.networks.filter(({ id }) => merchant.networks.includes(id))
    networks.set(merchant, offered)
    const offers = offered.map((network) => ({
      network,
      payTo: merchant.payout,
      amountAtomic: route.priceAtomic,
    }))
    const before = withoutOffered(retired(merchant.slug, route.path) ?? [], offers)
    const terms = { offers, retired: before, networks: offered }
    const made = itemsOf(config, merchant, route, terms)
    byRoute.set(route, made)
    return made
  }
}

function itemsOf(
  { service }: Config,
  merchant: Merchant,
  route: Route,
  { offers, retired, networks }: Terms,
): Items {
  const isExact = takes(route, 'exact')
  const mppOffers = isExact ? inMppOrder(offers, service.mppOrder) : []
  const isByChannel = takes(route, 'channel') && networks.some(({ channels }) => channels)
  const signIn = signInTermsOf(route)
  const items: Items = {}
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
      ...(route.meter === undefined
        ? {}
        : { mostAtomic: route.priceAtomic, isByUse: takes(route, 'upto') && mayBeByUse(merchant) }),
      ...(isByChannel ? { isByChannel } : {}),
      ...(isExact ? {} : { isExact }),
      extensions: [Bazaar.extension(merchant, route, method)],
      ...entitlementsOf(merchant, route, networks),
      takesV1: service.x402V1 && isExact,
      ...(signIn === undefined ? {} : { signIn }),
      ...(twin !== undefined && route.methods.includes(twin) ? { twin: idOf(twin) } : {}),
      ...(retired.length === 0 ? {} : { retired }),
    }
  }
  return items
}

/** A sign-in is for these terms alone, so that none from before a reload has an answer at others. */
function signInTermsOf({ priceAtomic, again, trial, pass }: Route): string | undefined {
  if (!isGiven({ again, trial, pass })) return undefined
  const terms = [priceAtomic, again, trial, pass]
  return JSON.stringify(terms, (_, part) => (typeof part === 'bigint' ? String(part) : part))
}

/** What buyers of an item may have without a further payment. */
function entitlementsOf(
  merchant: Merchant,
  route: Route,
  networks: readonly NetworkConfig[],
): Pick<Item, 'again' | 'trial' | 'opens'> {
  const { again, trial } = route
  const sold = passAt(merchant, route)
  return {
    ...(again && { again }),
    ...(trial && {
      trial: {
        ...trial,
        floors: networks.map((each) => ({ network: each.id, ...trialNeeds(trial, each) })),
      },
    }),
    ...(sold && {
      opens: { route: sold.opens.path, requests: sold.requests, periodMs: sold.periodMs },
    }),
  }
}

/** Sorts offers by the networks of `mppOrder`. Other networks follow in their own order. */
function inMppOrder(offers: readonly Offer[], mppOrder: readonly Network.Id[]): readonly Offer[] {
  const rank = (offer: Offer): number => {
    const index = mppOrder.indexOf(offer.network.id)
    return index === -1 ? mppOrder.length : index
  }
  return offers.toSorted((a, b) => rank(a) - rank(b))
}

/**
 * Compiled 402s that are kept for one item. A price of 100 times the base has 220 ceilings. With
 * fewer places any client could have all of them compiled again and again.
 */
const ceilingsMax = 256
const byCeiling = new WeakMap<Item, Map<bigint, Item>>()

/** A metered item as it is sold to a request with this ceiling; the newest ceilings are kept. */
export function atCeiling(item: Item, ceilingAtomic: bigint): Item {
  if (item.mostAtomic === undefined || item.mostAtomic === ceilingAtomic) return item
  const known = byCeiling.get(item) ?? new Map<bigint, Item>()
  byCeiling.set(item, known)
  const found = known.get(ceilingAtomic)
  known.delete(ceilingAtomic)
  const [oldest] = known.keys()
  if (oldest !== undefined && known.size >= ceilingsMax) known.delete(oldest)
  const made = found ?? withAmount(item, ceilingAtomic)
  known.set(ceilingAtomic, made)
  return made
}

function withAmount(item: Item, amountAtomic: bigint): Item {
  const made = new Map(item.offers.map((offer) => [offer, { ...offer, amountAtomic }]))
  const same = (offers: readonly Offer[]) =>
    offers.map((offer) => made.get(offer) ?? { ...offer, amountAtomic })
  return { ...item, offers: same(item.offers), mppOffers: same(item.mppOffers) }
}

/**
 * Specification 4.1: where a route accepts both methods, both have the same price and challenge.
 */
const twins: Partial<Record<Method, Method>> = { GET: 'POST', POST: 'GET' }

/** A retired offer that is offered again is not retired. */
function withoutOffered(
  retired: readonly RetiredOffer[],
  offers: readonly Offer[],
): readonly RetiredOffer[] {
  return retired.filter(
    (before) =>
      !offers.some(
        ({ network, payTo, amountAtomic }) =>
          network === before.network &&
          payTo === before.payTo &&
          amountAtomic === before.amountAtomic,
      ),
  )
}
