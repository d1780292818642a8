import { Elysia } from 'elysia'
import { open } from '../db/open'
import { readPending } from '../db/pending'
import { unused } from '../db/statement'
import type { Config, Merchant } from './config/Config'
import type { Secrets } from './config/env'
import type { Path } from './config/lines'
import { needsRestart } from './config/restart'
import { createFacilitator, type Facilitator } from './facilitator/handler'
import { createPayees } from './facilitator/payees'
import { createSettling, type Settling } from './facilitator/settle'
import { createBudget } from './http/body'
import { healthRoutes } from './http/health'
import { whenIdle } from './http/idle'
import { base36, requestIds } from './http/ids'
import { createRegistry, metricsRoutes, type Registry } from './http/metrics'
import { createPeer } from './http/peer'
import { errors } from './http/problem'
import { createRateLimit } from './http/ratelimit'
import { isForSale } from './http/url'
import type { Log } from './log'
import { withChallenges, withDeliveries } from './paywall/counted'
import { type Earlier, succeed } from './paywall/earlier'
import { type PaceMin, paceMin } from './paywall/pace'
import { createPaywall } from './paywall/paywall'
import { createQuoter } from './paywall/quote'
import { createAnswers } from './paywall/store'
import * as Crypto from './protocol/Crypto'
import * as Secp256k1 from './protocol/Secp256k1'
import { createBreaker } from './proxy/breaker'
import { originOf } from './proxy/builtin/serve'
import { createDocuments } from './proxy/documents'
import { createMcp, isMcp } from './proxy/mcp/endpoint'
import { createGateway, type Gateway, type GatewayOptions } from './proxy/merchant'
import { createPlaces } from './proxy/places'
import { catalogueRoutes } from './proxy/routes'
import { createUpstream } from './proxy/upstream'
import type { ApprovalSponsor } from './settlement/Sponsorship'
import { createSettlement, type Settlement } from './settlement/settle'
import { pathsOf, sponsorRoutes } from './sponsor/routes'
import { createSponsor, type Sponsor } from './sponsor/sponsor'
import { type Counter, createCounter } from './stock/counter'
import { marketRoutes } from './stock/market-routes'
import * as Orders from './stock/Order'
import { openMarket } from './stock/open'
import { orderRoutes } from './stock/routes'
import type { AdminState } from './web/admin'
import type { Health } from './web/catalogue'
import { webRoutes } from './web/routes'

/** Pending payments that the page for operators lists. */
const pendingShown = 20

export type AppOptions = {
  config: Config
  secrets: Secrets
  dataDir: string
  log: Log
  /** Unix ms; tests drive it. */
  now?: () => number
  /** Cap of the answers kept for idempotency keys. */
  answersMaxBytes?: number
  /** Transactions that may fail on chain for one payer in ten minutes. */
  payerFailuresMax?: number
  /** What a chain's block time counts as before its blocks are known. */
  blockTimeMs?: number
  /** Stock orders that may be refunded to one payer in an hour. */
  refundsMax?: number
  /** Requests that this process may send by `fetch` at once; the runtime's own limit by default. */
  fetchesMax?: number | undefined
  /** How fast buyers must read streams. */
  paceMin?: Partial<PaceMin>
  /** Longest silence of a connection, unless a sale is under way on it. */
  idleSeconds?: number
  /** It will run for long: the database's log is made as long at once as it gets anyway (16 MB). */
  isLasting?: boolean
}

export type App = {
  /** Where it listens, e.g. `http://127.0.0.1:4020`. */
  url: string
  /** Signer of receipts and offers. */
  receiptAddress: `0x${string}`
  settlement: Settlement
  /**
   * Takes over another configuration for requests from now on; those under way end under the old
   * one. Changes nothing and returns the places when something needs a restart; throws, with nothing
   * changed for requests, when the database cannot be written.
   */
  reload(config: Config): readonly Path[]
  /** Begins nothing new, lets what is paid finish within the configured limit, then closes. */
  stop(): Promise<void>
}

/**
 * Starts the service: opens the data directory, listens, and drives on what an earlier process left
 * unfinished; resolves when every network has been looked at once. Throws DatabaseLockedError when
 * another process has the data directory, and the system's error when the address is taken.
 */
export async function start(options: AppOptions): Promise<App> {
  const { secrets, log } = options
  const now = options.now ?? Date.now
  // Whatever a reload may change is read through it.
  let catalogue: Catalogue
  const service = () => catalogue.config.service
  const { baseUrl, listen, bufferedMaxBytes, stalledStreamsMax } = options.config.service
  const { idleSeconds = 255 } = options
  const db = open({ dataDir: options.dataDir, now })
  const registry = createRegistry()
  const settlement = await createSettlement({
    db,
    meter: registry,
    payerFailuresMax: options.payerFailuresMax,
    blockTimeMs: options.blockTimeMs,
    networks: options.config.networks,
    relayerKeys: secrets.relayerKeys,
    deskKey: options.config.stock && secrets.deskKey,
    deskNetwork: options.config.stock?.network,
    now,
    log,
  })
  const relayers = secrets.relayerKeys.map(Crypto.addressOf)
  const sponsoring = createSponsor({
    db,
    settlement,
    networks: options.config.networks,
    accounts: [...relayers, settlement.desk],
    meter: registry,
    now,
    log,
    waitMs: () => service().settleWaitSeconds * 1000,
  })
  const sponsor = sponsoring.approvals
  const paywallOptions = {
    settlement: withDeliveries(settlement, registry),
    challengeSecrets: secrets.challengeSecrets,
    receiptKey: secrets.receiptKey,
    realm: new URL(baseUrl).hostname,
    baseUrl,
    now,
  }
  const quoter = withChallenges(
    createQuoter({
      ...paywallOptions,
      isReady: settlement.isReady,
      takesApprovals: sponsor !== undefined,
      gasSponsor: { url: `${baseUrl}/api/gas/sponsor`, networks: sponsoring.networks },
      processNonce: base36(9),
    }),
    registry,
  )
  const paywall = createPaywall({
    ...paywallOptions,
    sponsor,
    quoter,
    answers: createAnswers(db, options.answersMaxBytes),
    paceMin: { ...paceMin, stalledMax: stalledStreamsMax, ...options.paceMin },
    get settleWaitMs() {
      return service().settleWaitSeconds * 1000
    },
    log,
  })
  const receiptAddress = Crypto.addressOf(secrets.receiptKey)
  const exchange = openMarket(options.config, { read: settlement.read, now })
  const counter =
    exchange &&
    createCounter({
      ...paywallOptions,
      db,
      settlement,
      quoter,
      exchange,
      refundsMax: options.refundsMax,
      meter: registry,
      sponsor,
      stockBaseUrl: options.config.service.stockBaseUrl,
      waitMs: () => service().settleWaitSeconds * 1000,
      receiptAddress,
      relayerKeys: secrets.relayerKeys,
      log,
    })
  let stopping = false
  const parts: Parts = {
    settlement,
    calls: registry.counter('facilitator_calls_total', 'Calls of the facilitator by answer.', [
      'operation',
      'answer',
    ]),
    relayers,
    settling: createSettling(createPayees({ db, networks: options.config.networks, now })),
    sponsor,
    sponsoring,
    paywall,
    registry,
    exchange,
    counter,
    deskAddress: Crypto.addressOf(secrets.deskKey),
    peerOf: (request) => server.requestIP(request)?.address,
    upstream: createUpstream({ now }),
    breaker: createBreaker(),
    places: createPlaces(options.fetchesMax),
    budget: createBudget(bufferedMaxBytes),
    rateLimit: createRateLimit(),
    receiptAddress,
    requestId: requestIds(),
    accepts: () => !stopping,
    adminToken: secrets.adminToken,
    pending: () => readPending(db, pendingShown),
    now,
    log,
  }
  const first = succeed(db, options.config, now())
  catalogue = createCatalogue(options.config, first.earlier, parts)
  // What is sold or settled goes past Elysia, which would cost a third of an unpaid answer.
  const server = Bun.serve({
    hostname: listen.hostname,
    port: listen.port,
    reusePort: false,
    development: false,
    idleTimeout: idleSeconds,
    // Bodies are read and capped by the routes, which answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch(request, self): Response | Promise<Response> {
      const peer = createPeer(request, self, idleSeconds)
      if (isForSale(request.url)) return catalogue.gateway.handle(request, peer)
      if (isMcp(request.url)) return catalogue.mcp.handle(request, peer)
      return catalogue.facilitator.handle(request, peer) ?? catalogue.site.fetch(request)
    },
  })
  // Behind the socket: a chain that hangs must not keep the health endpoints from saying so.
  await settlement.recover()
  counter?.desk.recover()
  first.write()
  // First: it makes every statement prepared before it be prepared again.
  const lasting = options.isLasting ? [db.reserveLog] : []
  void whenIdle([...lasting, Secp256k1.warm, ...unused(db)], () => stopping)

  return {
    url: `http://${listen.hostname}:${server.port}`,
    receiptAddress,
    settlement,
    reload(config) {
      const places = needsRestart(catalogue.config, config)
      if (places.length > 0) return places
      const next = succeed(db, config, now())
      const built = createCatalogue(config, next.earlier, parts)
      next.write()
      catalogue = built
      return []
    },
    async stop() {
      if (stopping) return
      stopping = true
      const deadline = now() + service().stopSeconds * 1000
      const closed = server.stop(false)
      const inFlight = () =>
        paywall.inFlight() + parts.settling.calls + (counter?.purchase.inFlight() ?? 0)
      while (inFlight() > 0 && now() < deadline) await Bun.sleep(10)
      await Promise.all([counter?.desk.stop(), settlement.stop(Math.max(0, deadline - now()))])
      await Promise.race([closed, Bun.sleep(200)])
      await server.stop(true)
      db.close()
    },
  }
}

/** What outlives a configuration: whatever holds state or money. */
type Parts = Pick<
  GatewayOptions,
  | 'paywall'
  | 'upstream'
  | 'breaker'
  | 'places'
  | 'budget'
  | 'rateLimit'
  | 'now'
  | 'log'
  | 'requestId'
  | 'accepts'
> & {
  settlement: Settlement
  /** Of the facilitator. */
  calls: ReturnType<Registry['counter']>
  settling: Settling
  relayers: readonly `0x${string}`[]
  sponsor: ApprovalSponsor | undefined
  sponsoring: Sponsor
  registry: Registry
  receiptAddress: `0x${string}`
  exchange: ReturnType<typeof openMarket>
  counter: Counter | undefined
  deskAddress: `0x${string}`
  /** Address of the other end of a request's connection. */
  peerOf: (request: Request) => string | undefined
  adminToken: string
  pending: () => AdminState['pending']
}

/** A configuration as it answers requests. */
type Catalogue = {
  config: Config
  /** Below `/m/`. */
  gateway: Gateway
  facilitator: Facilitator
  mcp: ReturnType<typeof createMcp>
  /** Everywhere else. */
  site: { fetch(request: Request): Response | Promise<Response> }
}

/** Built anew for each configuration, so that nothing in it is a mixture of two. */
function createCatalogue(config: Config, earlier: Earlier, parts: Parts): Catalogue {
  const { settlement, registry, breaker, exchange, counter, deskAddress } = parts
  const { now, log, requestId } = parts
  const { baseUrl } = config.service
  const { isReady } = settlement
  const { receiptAddress } = parts
  const documents = createDocuments(config, { receiptAddress, isReady, updatedAt: now() })
  const serving = { ...parts, config }
  const gateway = createGateway({ ...serving, earlier, documents, stocks: exchange?.data })
  const origins = new Set(config.merchants.flatMap((merchant) => originsOf(merchant, exchange)))
  const isOpen = (origin: string) => breaker.isOpen(origin, now())
  const canSell = () => parts.accepts() && settlement.status().some((network) => network.ready)
  const openCircuits = () => [...origins].filter(isOpen)
  const site = new Elysia({ handler: { standardHostname: false } })
    .use(errors({ baseUrl, log, requestId }))
    .use(catalogueRoutes(documents))
    .use(
      sponsorRoutes({
        ...parts,
        granting: parts.sponsoring.granting,
        paths: pathsOf([baseUrl, config.service.stockBaseUrl]),
        trustProxy: config.service.trustProxy,
      }),
    )
    .use(
      healthRoutes({
        canSell,
        networks: () => settlement.status(),
        merchantsOutOfService: () => config.merchants.flatMap(outOfService),
        spentBudgets: parts.sponsoring.spent,
        openCircuits,
      }),
    )
    .use(metricsRoutes(registry))
    .use(
      webRoutes({
        ...serving,
        hasMarket: exchange !== undefined,
        isReady: ({ id }) => isReady(id),
        healthOf: (merchant) => healthOf(originsOf(merchant, exchange), merchant, isOpen),
        adminState: () => ({
          networks: settlement.status(),
          pending: parts.pending(),
          openCircuits: openCircuits(),
          outOfService: config.merchants.flatMap(outOfService),
          heldOrders: counter?.desk.held().map(Orders.toHeld),
        }),
      }),
    )
  if (exchange !== undefined)
    site.use(marketRoutes({ ...exchange, ...serving, payTo: deskAddress, service: config.service }))
  if (exchange !== undefined && counter !== undefined)
    site.use(orderRoutes({ ...exchange, ...serving, ...counter, service: config.service }))
  return {
    config,
    site,
    gateway,
    facilitator: createFacilitator({ ...serving, ownAccounts: [deskAddress] }),
    mcp: createMcp({ ...serving, gateway, isReady }),
  }
}

/** What a merchant needs to deliver; none for a builtin one that cannot. */
function originsOf(merchant: Merchant, exchange: Parts['exchange']): string[] {
  const { builtin, upstream, routes } = merchant
  const all =
    builtin === undefined
      ? [upstream, ...routes.map((route) => route.upstream)].map((url) => url?.origin)
      : [originOf(builtin, { stocks: exchange?.data })]
  return [...new Set(all.filter((origin) => origin !== undefined))]
}

/** Whether what a merchant sells can be delivered now, as far as the last requests tell. */
function healthOf(
  origins: readonly string[],
  { outOfService }: Merchant,
  isOpen: (origin: string) => boolean,
): Health {
  if (outOfService !== undefined || origins.length === 0) return 'out-of-service'
  const silent = origins.filter(isOpen).length
  if (silent === 0) return 'available'
  return silent < origins.length ? 'partly' : 'unavailable'
}

function outOfService(merchant: Merchant): { merchant: string; reason: string }[] {
  if (merchant.outOfService === undefined) return []
  return [{ merchant: merchant.slug, reason: `${merchant.outOfService} is not set` }]
}
