import type { Config, Merchant, Service } from '../config/Config'
import { createFacilitator, type Operation } from '../facilitator/handler'
import { createDocuments } from '../gateway/documents/documents'
import { createGateway } from '../gateway/merchant'
import { refusedOf } from '../gateway/upstream/refusals'
import { availabilityOf, originsOf, outOfService } from '../gateway/upstream/source'
import { hasBearer } from '../http/bearer'
import { clientOf } from '../http/client'
import { createHealth } from '../http/health'
import { renderMetrics } from '../http/metrics'
import * as RateLimit from '../http/rate-limit'
import { prefixesOf } from '../http/url'
import type { RetiredOffers } from '../paywall/offer/retired-offers'
import * as Problem from '../protocol/Problem'
import type { ChannelOf } from '../protocol/X402'
import type { Settlement } from '../settlement/settlement'
import { sponsorApprove } from '../sponsor/granting'
import { createMarketHandlers, createOrderHandlers } from '../stock/handlers'
import type { AppParts } from './parts'

/** The handlers of the requests under one configuration. */
export type Handlers = ReturnType<typeof createHandlers>

/**
 * The handlers under one configuration. They are built anew for each configuration, so that no
 * handler mixes two.
 */
export function createHandlers(config: Config, retired: RetiredOffers, parts: AppParts) {
  const { settlement, exchange, startedStock, deskAddress, receiptAddress, peerOf } = parts
  const { service } = config
  const isReady: Settlement['isReady'] = (network) =>
    settlement.isReady(network) && settlement.hasBudget(network, 'gateway')
  const addressOf = (request: Request) => peerOf(request)()
  const serving = { ...parts, config, service, addressOf, sponsor: parts.sponsoring.approvals }
  const { facilitators } = settlement.authorizations
  const channelOf: ChannelOf = ({ network }) => settlement.channels.termsOf(network.id)
  const offers = { isReady, facilitators, channelOf }
  const updatedAt = parts.now()
  const documents = createDocuments(config, { ...offers, receiptAddress, updatedAt })
  const isPaused = (slug: string) => parts.pauses.has('merchant', slug)
  const stocks = exchange?.data
  const gateway = createGateway({ ...serving, isPaused, retired, documents, stocks })
  // Neither MCP nor the pages are loaded by a start, but by `app.ts#warmUp` after it.
  const mcp = once(async () => {
    const { createMcp } = await import('../gateway/mcp/endpoint')
    return createMcp({ ...serving, ...offers, gateway })
  })
  const budget = parts.facilitatorBudget
  const facilitator = createFacilitator({ ...serving, budget, ownAccounts: [deskAddress] })
  const operate = (operation: Operation) => (request: Request) =>
    facilitator.handle(operation, request, peerOf(request))
  const { granting } = parts.sponsoring
  const { trustProxy } = service
  const availability = availabilityIn(config, parts)
  const orders =
    exchange && startedStock && createOrderHandlers({ ...exchange, ...serving, ...startedStock })
  return {
    middleware: parts.middleware,
    errors: { baseUrl: service.baseUrl, log: parts.log, requestId: parts.requestId },
    /** Path prefixes under which the facilitator and the stock desk answer; '' is one of them. */
    facilitatorAt: prefixesOf([service.facilitatorUrl, `${service.baseUrl}/facilitator`]),
    stockAt: prefixesOf([service.stockBaseUrl]),
    gateway: (request: Request) => gateway.handle(request, peerOf(request)),
    mcp: async (request: Request) => (await mcp()).handle(request, peerOf(request)),
    supported: operate('supported'),
    verify: operate('verify'),
    settle: operate('settle'),
    documents,
    /** Undefined without `[stock]`, as `orders` is. */
    market: exchange && createMarketHandlers({ ...exchange, ...serving, payTo: deskAddress }),
    orders,
    sponsor: (request: Request) => sponsorApprove({ ...serving, granting, trustProxy }, request),
    metrics: createMetricsHandler(serving),
    /** What a payment has cost, by its id. */
    payment: parts.lookup,
    people: once(async () => {
      const [{ createPeople }, { toolOf }] = await Promise.all([import('./people'), mcp()])
      return createPeople(config, parts, {
        ...serving,
        ...availability,
        toolOf,
        hasMarket: exchange !== undefined,
        readOrder: orders?.order,
        pricesOf: (symbol) => exchange?.history.of(symbol) ?? [],
        isReady: ({ id }) => isReady(id),
        hasChannels: ({ id }) => settlement.channels.termsOf(id) !== undefined,
        isDeskReady: () =>
          config.stock !== undefined &&
          settlement.isReady(config.stock.network) &&
          settlement.hasBudget(config.stock.network, 'desk'),
        healthOf(merchant) {
          const health = availability.availabilityOf(merchant)
          return health !== 'out-of-service' && isPaused(merchant.slug) ? 'paused' : health
        },
        faultOf(merchant, route) {
          const url = route.upstream ?? merchant.upstream
          if (url !== undefined && parts.breaker.isOpen(url.origin, parts.now()))
            return 'unavailable'
          return parts.refusals.isClosed(route) ? 'key-refused' : undefined
        },
      })
    }),
    health: healthOf(config, parts, availability),
  }
}

/** Makes a value at the first call. Every call gets that value; after a failure it is made again. */
export function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => {
    made ??= make().catch((error: unknown) => {
      made = undefined
      throw error
    })
    return made
  }
}

type Availability = ReturnType<typeof availabilityIn>

/** Which upstreams of the merchants answer; from memory. */
function availabilityIn({ merchants }: Config, { breaker, exchange, now }: AppParts) {
  const originsAt = (merchant: Merchant) => originsOf(merchant, exchange?.data)
  const isOpen = (origin: string) => breaker.isOpen(origin, now())
  return {
    /** Whether a merchant can deliver, paused or not. */
    availabilityOf: (merchant: Merchant) => availabilityOf(originsAt(merchant), merchant, isOpen),
    /** Origins whose circuit is open. */
    openOrigins: () => [...new Set(merchants.flatMap(originsAt))].filter(isOpen),
    /** Merchants that need such an origin. */
    openMerchants: () => merchants.filter((merchant) => originsAt(merchant).some(isOpen)),
  }
}

function healthOf(config: Config, parts: AppParts, { openMerchants }: Availability) {
  const { settlement } = parts
  const { storage, server } = parts.database
  return createHealth({
    canSell: () => parts.accepts() && settlement.status().some((network) => network.ready),
    networks: settlement.status,
    merchantsOutOfService: () => [
      ...config.merchants.flatMap(outOfService),
      ...refusedOf(config, parts.refusals),
    ],
    spentBudgets: parts.sponsoring.spent,
    openCircuits: () => openMerchants().map(({ slug }) => slug),
    storageFaults() {
      const reason = storage.fault()
      return reason === undefined ? [] : [{ file: storage.name, reason }]
    },
    certificateFaults: parts.certificateFaults,
    ...(server !== undefined && { database: server }),
  })
}

/** Requests of one address in a minute: more than a scraper sends, fewer than a guess needs. */
const metricsPerMinute = 120

type MetricsOptions = Pick<AppParts, 'adminToken' | 'peerOf' | 'rateLimit' | 'registry' | 'now'> & {
  service: Pick<Service, 'metrics' | 'trustProxy'>
}

/** `GET /metrics`, as far as `metrics` of the file permits it. */
export function createMetricsHandler(options: MetricsOptions) {
  const { metrics, trustProxy } = options.service
  const { adminToken, peerOf, rateLimit, registry, now } = options
  return (request: Request): Promise<Response> => {
    if (metrics === 'off') throw Problem.of('not-found', 'There is nothing at this path.')
    if (metrics !== 'token') return renderMetrics(registry)
    const key = `metrics ${clientOf(request, peerOf(request)(), trustProxy)}`
    RateLimit.assertWithin(rateLimit.take(key, metricsPerMinute, now()))
    if (hasBearer(request, adminToken)) return renderMetrics(registry)
    throw Problem.of('unauthorized', 'The metrics need Authorization: Bearer ADMIN_TOKEN.', {
      headers: { 'WWW-Authenticate': 'Bearer realm="metrics"' },
    })
  }
}
