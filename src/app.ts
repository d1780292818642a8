import { Elysia } from 'elysia'
import { mirrorMerchants } from '../db/merchants'
import { open } from '../db/open'
import type { Config, Merchant } from './config/Config'
import type { Secrets } from './config/env'
import { createBudget } from './http/body'
import { healthRoutes } from './http/health'
import { createRegistry, metricsRoutes, type Registry } from './http/metrics'
import { errors } from './http/problem'
import { createRateLimit } from './http/ratelimit'
import { pathStart } from './http/url'
import type { Log } from './log'
import { createPaywall } from './paywall/paywall'
import { createQuoter, type Quoter } from './paywall/quote'
import { createAnswers } from './paywall/store'
import * as Crypto from './protocol/Crypto'
import * as Secp256k1 from './protocol/Secp256k1'
import { createBreaker } from './proxy/breaker'
import { createDocuments } from './proxy/documents'
import { createGateway } from './proxy/merchant'
import { catalogueRoutes } from './proxy/routes'
import { createUpstream } from './proxy/upstream'
import type { Delivered } from './settlement/delivery'
import { createSettlement, type Settlement } from './settlement/settle'
import { createCounter } from './stock/counter'
import { createMarket } from './stock/market'
import { marketRoutes } from './stock/market-routes'

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
}

export type App = {
  /** Where it listens, e.g. `http://127.0.0.1:4020`. */
  url: string
  /** Signer of receipts and offers. */
  receiptAddress: `0x${string}`
  settlement: Settlement
  /** Begins nothing new, lets what is paid finish within the configured limit, then closes. */
  stop(): Promise<void>
}

/**
 * Starts the service: opens the data directory, listens, and drives on what an earlier process left
 * unfinished; resolves when every network has been looked at once. Throws DatabaseLockedError when
 * another process has the data directory, and the system's error when the address is taken.
 */
export async function start(options: AppOptions): Promise<App> {
  const { config, secrets, log } = options
  const now = options.now ?? Date.now
  const { service } = config
  const db = open({ dataDir: options.dataDir, now })
  const registry = createRegistry()
  const settlement = await createSettlement({
    db,
    meter: registry,
    payerFailuresMax: options.payerFailuresMax,
    networks: config.networks,
    relayerKeys: secrets.relayerKeys,
    deskKey: config.stock && secrets.deskKey,
    deskNetwork: config.stock?.network,
    now,
    log,
  })
  const paywallOptions = {
    settlement: withDeliveries(settlement, registry),
    challengeSecrets: secrets.challengeSecrets,
    receiptKey: secrets.receiptKey,
    realm: new URL(service.baseUrl).hostname,
    baseUrl: service.baseUrl,
    now,
  }
  const quoter = withChallenges(
    createQuoter({
      ...paywallOptions,
      isReady: settlement.isReady,
      processNonce: base36(9),
    }),
    registry,
  )
  const paywall = createPaywall({
    ...paywallOptions,
    quoter,
    answers: createAnswers(db, options.answersMaxBytes),
    settleWaitMs: service.settleWaitSeconds * 1000,
    log,
  })
  const receiptAddress = Crypto.addressOf(secrets.receiptKey)
  const documents = createDocuments(config, receiptAddress)
  const breaker = createBreaker()
  const origins = [...new Set(config.merchants.flatMap(originsOf))]
  const requestId = requestIds()
  const rateLimit = createRateLimit()
  const market = marketOf(config, settlement, now)
  const deskAddress = Crypto.addressOf(secrets.deskKey)
  let stopping = false
  const gateway = createGateway({
    config,
    paywall,
    upstream: createUpstream({ now }),
    breaker,
    budget: createBudget(service.bufferedMaxBytes),
    documents,
    rateLimit,
    now,
    log,
    requestId,
    accepts: () => !stopping,
  })
  const canSell = () => !stopping && settlement.status().some((network) => network.ready)
  const elysia = new Elysia({ handler: { standardHostname: false } })
    .use(errors({ baseUrl: service.baseUrl, log, requestId }))
    .use(catalogueRoutes(documents))
    .use(
      healthRoutes({
        canSell,
        networks: () => settlement.status(),
        merchantsOutOfService: () => config.merchants.flatMap(outOfService),
        openCircuits: () => origins.filter((origin) => breaker.isOpen(origin, now())),
      }),
    )
    .use(metricsRoutes(registry))
  const peerOf = (request: Request) => server.requestIP(request)?.address
  const common = { service, rateLimit, now, peerOf }
  if (market !== undefined) {
    elysia.use(marketRoutes({ ...market, ...common, payTo: deskAddress }))
  }
  const counter =
    market &&
    createCounter({
      ...paywallOptions,
      ...common,
      ...market,
      db,
      settlement,
      quoter,
      relayerKeys: secrets.relayerKeys,
      log,
      requestId,
      accepts: () => !stopping,
    })
  if (counter !== undefined) elysia.use(counter.routes)
  // What is sold goes past Elysia, which would cost a third of an unpaid answer.
  const server = Bun.serve({
    hostname: service.listen.hostname,
    port: service.listen.port,
    reusePort: false,
    development: false,
    idleTimeout: 255,
    // Bodies are read and capped by the routes, which answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch(request, self): Response | Promise<Response> {
      if (!isForSale(request.url)) return elysia.fetch(request)
      return gateway.handle(request, () => self.requestIP(request)?.address)
    },
  })
  // Behind the socket: a chain that hangs must not keep the health endpoints from saying so.
  await settlement.recover()
  counter?.desk.recover()
  mirrorMerchants(db, config.merchants.map(merchantRow), now())
  Secp256k1.warm()

  return {
    url: `http://${service.listen.hostname}:${server.port}`,
    receiptAddress,
    settlement,
    async stop() {
      if (stopping) return
      stopping = true
      const deadline = now() + service.stopSeconds * 1000
      const closed = server.stop(false)
      const waiting = () => paywall.inFlight() + (counter?.inFlight() ?? 0)
      while (waiting() > 0 && now() < deadline) await Bun.sleep(10)
      await Promise.all([counter?.desk.stop(), settlement.stop(Math.max(0, deadline - now()))])
      await Promise.race([closed, Bun.sleep(200)])
      await server.stop(true)
      db.close()
    },
  }
}

/** The market of `[stock]`, and what pays there. */
function marketOf({ stock, networks }: Config, settlement: Settlement, now: () => number) {
  const network = networks.find(({ id }) => id === stock?.network)
  if (stock === undefined || network === undefined) return undefined
  const { asset } = network
  const market = createMarket({ stock, asset, read: settlement.read, now })
  return { stock, network, asset, market }
}

/** Counts the challenges that go out, by merchant. */
function withChallenges(quoter: Quoter, registry: Registry): Quoter {
  const count = registry.counter('challenges_total', 'Answers 402 with a challenge.', ['merchant'])
  // Finding the series costs more than counting: it is done when somebody looks.
  const fresh = new Map<string, number>()
  registry.onRender(() => {
    for (const [merchant, times] of fresh) count.inc({ merchant }, times)
    fresh.clear()
  })
  return {
    ...quoter,
    challenge(item, url, requestId, details) {
      fresh.set(item.merchant, (fresh.get(item.merchant) ?? 0) + 1)
      return quoter.challenge(item, url, requestId, details)
    },
  }
}

/** Counts the forwards of paid requests and how they ended. */
function withDeliveries(settlement: Settlement, registry: Registry): Settlement {
  const attempts = registry.counter('delivery_attempts_total', 'Paid requests that were forwarded.')
  const count = registry.counter(
    'deliveries_total',
    'Ends of forwarded requests; one that is cut after its first byte counts as delivered before.',
    ['outcome'],
  )
  return {
    ...settlement,
    beginDelivery(id) {
      attempts.inc()
      return settlement.beginDelivery(id)
    },
    async endDelivery(id, told) {
      // Decided at the write, so known after it.
      let result: Delivered | undefined
      await settlement.endDelivery(id, () => {
        result = typeof told === 'function' ? told() : told
        return result
      })
      if (result !== undefined) count.inc({ outcome: outcomeOf(result) })
    },
  }
}

function outcomeOf(result: Delivered): string {
  if (!result.delivered) return 'undelivered'
  return result.truncated ? 'truncated' : 'delivered'
}

function originsOf(merchant: Merchant): string[] {
  return [merchant.upstream, ...merchant.routes.map((route) => route.upstream)].flatMap((url) =>
    url === undefined ? [] : [url.origin],
  )
}

/** Whether a request's URL is below `/m/`. */
function isForSale(url: string): boolean {
  return url.startsWith('/m/', pathStart(url))
}

function outOfService(merchant: Merchant): { merchant: string; reason: string }[] {
  if (merchant.outOfService === undefined) return []
  return [{ merchant: merchant.slug, reason: `${merchant.outOfService} is not set` }]
}

/** What the database keeps of a merchant: header values may be secret and stay out. */
function merchantRow(merchant: Merchant) {
  const { slug, title, tag, description, networks, payout, routes, hash } = merchant
  const kept = {
    tag,
    description,
    networks,
    payout,
    upstream: merchant.upstream?.origin,
    routes: routes.map(({ path, methods, priceAtomic }) => ({
      path,
      methods,
      priceAtomic: String(priceAtomic),
    })),
  }
  return { slug, title, hash, json: JSON.stringify(kept) }
}

/** Short ids that do not repeat: a random prefix for the process and a counter. */
function requestIds(): () => string {
  const prefix = base36(8)
  let counter = 0
  return () => `${prefix}-${(counter++).toString(36)}`
}

function base36(length: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(length))
  return Array.from(bytes, (byte) => (byte % 36).toString(36)).join('')
}
