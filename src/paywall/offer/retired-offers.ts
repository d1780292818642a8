import type { MerchantRow, OfferLedger, RetiredOffer as RetiredRow } from '../../../db/Ledger'
import type { Config, Merchant } from '../../config/Config'
import type { RetiredOffer } from './Item'

/** Offers of a merchant's route before the configuration changed; undefined: none. */
export type RetiredOffers = (merchant: string, route: string) => readonly RetiredOffer[] | undefined

/**
 * New payments may still use a retired offer for this time (ms), the longest validity of a
 * signature.
 */
const honouredMs = 360_000

/** A known payment needs its offer for as long as it may be redeemed, ms. */
const keptMs = 2 * 24 * 60 * 60 * 1000

/**
 * The retired offers that a configuration must still accept, from this process or another one.
 * An offer that another process makes now is accepted like one that is retired now. `previous` is the
 * configuration that this process had; another process may have written a later one. `write` mirrors
 * the merchants in the database and keeps the offers that ended. Before it, a crash changes nothing:
 * the next start gets the same result. Between this call and `write` this process may apply no other
 * configuration, because its offers would be lost.
 */
export async function succeed(
  ledger: OfferLedger,
  config: Config,
  { now, previous }: { now: number; previous?: Config | undefined },
) {
  const merchants = rowsOf(config)
  const before = previous === undefined ? [] : endedOf(rowsOf(previous), merchants, now)
  const endedNow = async () =>
    unique([...before, ...endedOf(await ledger.merchants(), merchants, now)])
  const ended = await endedNow()
  const earlier = await ledger.retired()
  const times = earlier.map((offer) => `${keyOf(offer)} ${offer.retiredAt}`)
  return {
    retired: find(unique([...earlier, ...ended]), config),
    /** Changes with the retired offers and with the times at which they were retired. */
    version: [...times, '', ...ended.map(keyOf)].toSorted().join('\n'),
    async write(): Promise<void> {
      // Read again: another process may have applied its configuration during the reads above.
      await ledger.replace({ merchants, ended: await endedNow(), keptFrom: now - keptMs, now })
    },
  }
}

function rowsOf(config: Config): readonly MerchantRow[] {
  return config.merchants.map((merchant) => ({
    slug: merchant.slug,
    title: merchant.title,
    json: JSON.stringify(keptOf(merchant, config)),
    // Computed only where it is read.
    get hash() {
      return merchant.hash
    },
  }))
}

/** Keeps the last of equal offers. */
function unique(all: readonly RetiredRow[]): RetiredRow[] {
  return [...new Map(all.map((offer) => [keyOf(offer), offer])).values()]
}

type Kept = ReturnType<typeof keptOf>

/** The stored terms of a merchant. Header values may be secret and are left out. */
function keptOf(merchant: Merchant, config: Config) {
  const { tag, description, payout, routes } = merchant
  const networks = config.networks.filter(({ id }) => merchant.networks.includes(id))
  return {
    tag,
    description,
    /** The merchant makes no offers. */
    outOfService: merchant.outOfService !== undefined,
    networks: networks.map(({ id }) => id),
    /** Assets of the networks, in their order. */
    assets: networks.map(({ asset }) => asset.address),
    payout,
    upstream: merchant.upstream?.origin,
    routes: routes.map(({ path, methods, priceAtomic }) => ({
      path,
      methods,
      priceAtomic: String(priceAtomic),
    })),
  }
}

/** The offers of rows that are not among those of their successors. */
function endedOf(
  before: readonly MerchantRow[],
  after: readonly MerchantRow[],
  retiredAt: number,
): RetiredRow[] {
  const successors = new Map(after.map((row) => [row.slug, row.json]))
  return before.flatMap(({ slug, json }) => {
    const successor = successors.get(slug)
    if (successor === json) return []
    const made = new Set(successor === undefined ? [] : offersOf(slug, successor).map(keyOf))
    return offersOf(slug, json)
      .filter((offer) => !made.has(keyOf(offer)))
      .map((offer) => ({ ...offer, retiredAt }))
  })
}

type Bare = Omit<RetiredRow, 'retiredAt'>

function offersOf(merchant: string, json: string): Bare[] {
  const kept: Kept = JSON.parse(json)
  if (kept.outOfService) return []
  return kept.routes.flatMap(({ path, priceAtomic }) =>
    kept.networks.flatMap((network, i) => {
      const asset = kept.assets[i]
      if (asset === undefined) return []
      const amountAtomic = BigInt(priceAtomic)
      return [{ merchant, route: path, network, asset, payTo: kept.payout, amountAtomic }]
    }),
  )
}

function keyOf({ merchant, route, network, asset, payTo, amountAtomic }: Bare): string {
  return `${merchant} ${route} ${network} ${asset} ${payTo} ${amountAtomic}`
}

function find(kept: Iterable<RetiredRow>, config: Config): RetiredOffers {
  const networks = new Map(config.networks.map((network) => [network.id, network]))
  const merchants = new Map(config.merchants.map((merchant) => [merchant.slug, merchant]))
  const found = new Map<string, RetiredOffer[]>()
  for (const { merchant: slug, route, retiredAt, ...offer } of kept) {
    const merchant = merchants.get(slug)
    const network = networks.get(offer.network)
    // Another asset could not be settled.
    if (merchant === undefined || network?.asset.address !== offer.asset) continue
    const { payTo, amountAtomic } = offer
    // An operator that changes the payee wants no new money to go to the old one.
    const until = payTo === merchant.payout ? retiredAt + honouredMs : 0
    const key = `${slug} ${route}`
    const all = found.get(key) ?? []
    all.push({ network, payTo, amountAtomic, until })
    found.set(key, all)
  }
  return (merchant, route) => found.get(`${merchant} ${route}`)
}
