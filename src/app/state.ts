import type { Config, Merchant } from '../config/Config'
import { availabilityOf, originsOf, outOfService } from '../gateway/origins'
import { refusedOf } from '../gateway/upstream/refusals'
import type { Sources } from '../http/health'
import type * as Network from '../protocol/Network'
import type { PagesOptions } from '../web/public/pages'
import type { Parts } from './parts'

/** The state of the service for health endpoints and pages. All values come from memory. */
export type State = Sources & Pick<PagesOptions, 'hasMarket' | 'pricesOf' | 'isReady' | 'healthOf'>

/** The state under one configuration. `isReady`: whether the gateway can sell on a network. */
export function createState(
  config: Config,
  parts: Parts,
  isReady: (network: Network.Id) => boolean,
): State {
  const { settlement, breaker, refusals, exchange, now } = parts
  const { storage, server } = parts.database
  const originsAt = (merchant: Merchant) => originsOf(merchant, exchange?.data)
  const isOpen = (origin: string) => breaker.isOpen(origin, now())
  return {
    canSell: () => parts.accepts() && settlement.status().some((network) => network.ready),
    networks: () => settlement.status(),
    merchantsOutOfService: () => [
      ...config.merchants.flatMap(outOfService),
      ...refusedOf(config, refusals),
    ],
    spentBudgets: parts.sponsoring.spent,
    openCircuits: () =>
      config.merchants
        .filter((merchant) => originsAt(merchant).some(isOpen))
        .map(({ slug }) => slug),
    storageFaults() {
      const reason = storage.fault()
      return reason === undefined ? [] : [{ file: storage.name, reason }]
    },
    certificateFaults: parts.certificateFaults,
    ...(server !== undefined && { database: server }),
    hasMarket: exchange !== undefined,
    pricesOf: (symbol) => exchange?.history.of(symbol) ?? [],
    isReady: ({ id }) => isReady(id),
    healthOf: (merchant) =>
      parts.pauses.has('merchant', merchant.slug)
        ? 'out-of-service'
        : availabilityOf(originsAt(merchant), merchant, isOpen),
  }
}
