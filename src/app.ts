import { Elysia } from 'elysia'
import { open } from '../db/open'
import { readPending } from '../db/pending'
import { unused } from '../db/statement'
import type { Limits } from './app/limits'
import { listenOn, withOneHost } from './app/listen'
import type { Catalogue, Parts } from './app/parts'
import { connectionReports, reportDroppedLines, reportStorage } from './app/report'
import type { Config } from './config/Config'
import type { Secrets } from './config/env'
import type { Path } from './config/lines'
import { needsRestart } from './config/restart'
import { bufferedBytes, createFacilitator } from './facilitator/handler'
import { createPayees } from './facilitator/payees'
import { createSettling } from './facilitator/settle'
import { createBudget } from './http/body'
import { createFront } from './http/front'
import { healthRoutes } from './http/health'
import { whenIdle } from './http/idle'
import { requestIds, salts } from './http/ids'
import { createRegistry, metricsRoutes } from './http/metrics'
import { errors } from './http/problem'
import { createRateLimit } from './http/ratelimit'
import { pathsBelow } from './http/url'
import type { Log } from './log'
import { withChallenges, withDeliveries } from './paywall/metrics'
import { createPaywall } from './paywall/paywall'
import { createQuoter } from './paywall/quote'
import { createReclaim } from './paywall/reclaim'
import { createRecognise } from './paywall/recognise'
import { type RetiredOffers, succeed } from './paywall/retired'
import { createAnswers } from './paywall/store'
import * as Crypto from './protocol/Crypto'
import type * as Network from './protocol/Network'
import * as Secp256k1 from './protocol/Secp256k1'
import { createBreaker } from './proxy/breaker'
import { createDocuments } from './proxy/documents'
import { createMcp } from './proxy/mcp/endpoint'
import { createGateway } from './proxy/merchant'
import { availabilityOf, originsOf, outOfService } from './proxy/origins'
import { createPlaces } from './proxy/places'
import { catalogueRoutes } from './proxy/routes'
import { createUpstream } from './proxy/upstream'
import { createSettlement, type Settlement } from './settlement/settle'
import { sponsorRoutes } from './sponsor/routes'
import { createSponsor } from './sponsor/sponsor'
import { marketRoutes } from './stock/market-routes'
import * as Orders from './stock/Order'
import { openMarket } from './stock/open'
import { orderRoutes } from './stock/routes'
import { startStock } from './stock/start'
import { webRoutes } from './web/routes'

/** Pending payments that the page for operators lists. */
const pendingShown = 20

export type AppOptions = Limits & {
  config: Config
  secrets: Secrets
  dataDir: string
  log: Log
  /** Lines of the log that could not be written. */
  droppedLines?: () => number
  /** Unix ms; tests drive it. */
  now?: () => number
  /** Cap of the answers kept for idempotency keys. */
  answersMaxBytes?: number
  /** Transactions that may fail on chain for one payer in ten minutes. */
  payerFailuresMax?: number
  /** What a chain's block time counts as before its blocks are known. */
  blockTimeMs?: number
  /** A network is paused while its blocks prove a larger clock error, ms. */
  clockSkewMaxMs?: number
  /** Stock orders that may be refunded to one payer in an hour. */
  refundsMax?: number
  /** Opens the database; tests keep the connection, to let its writes fail. */
  openDatabase?: typeof open
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
 * another process has the data directory, DatabaseFileError and DatabaseLostError when there is no
 * sound database, and the system's error when the address cannot be had. What was begun is stopped
 * then: the process can end.
 */
export async function start(options: AppOptions): Promise<App> {
  const begun: (() => unknown)[] = []
  try {
    return await begin(options, (undo) => begun.push(undo))
  } catch (error) {
    for (const undo of begun.toReversed()) await undo()
    throw error
  }
}

/** Starts the parts and pushes onto `undoing` what stops each of them. */
async function begin(options: AppOptions, undoing: (undo: () => unknown) => void): Promise<App> {
  const { secrets, log } = options
  const now = options.now ?? Date.now
  // Whatever a reload may change is read through it.
  let catalogue: Catalogue
  const service = () => catalogue.config.service
  const { baseUrl, stockBaseUrl, bufferedMaxBytes, stalledStreamsMax } = options.config.service
  const db = (options.openDatabase ?? open)({ dataDir: options.dataDir, now })
  undoing(db.close)
  const registry = createRegistry()
  reportStorage(db.storage, registry, log)
  reportDroppedLines(options.droppedLines ?? (() => 0), registry)
  // Bind first: a start without its address fails before other parts run.
  const front = createFront({ doors: () => catalogue, now })
  const { listen, connectionsMax } = options.config.service
  const server = listenOn({
    ...listen,
    connectionsMax,
    idleSeconds: options.idleSeconds,
    ...connectionReports(registry, log),
    handle: withOneHost(front.fetch, () => ({ baseUrl, requestId: parts.requestId() })),
  })
  undoing(() => server.stop(true))
  const settlement = await createSettlement({
    db,
    meter: registry,
    payerFailuresMax: options.payerFailuresMax,
    blockTimeMs: options.blockTimeMs,
    networks: options.config.networks,
    relayerKeys: secrets.relayerKeys,
    deskKey: options.config.stock && secrets.deskKey,
    deskNetwork: options.config.stock?.network,
    monotonic: () => performance.now(),
    clockSkewMaxMs: options.clockSkewMaxMs,
    payoutExclusive: () => service().payoutExclusive,
    isOwnPayee: (payee) =>
      payee === service().payout ||
      catalogue.config.merchants.some(({ payout }) => payout === payee),
    confirmTwiceAbove: () => service().confirmTwiceAboveAtomic,
    now,
    log,
  })
  undoing(() => settlement.stop(0))
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
      whyNot: settlement.whyNot,
      takesApprovals: sponsor !== undefined,
      gasSponsor: { url: `${stockBaseUrl}/api/gas/sponsor`, networks: sponsoring.networks },
      salt: salts(),
    }),
    registry,
  )
  const paywall = createPaywall({
    ...paywallOptions,
    sponsor,
    quoter,
    answers: createAnswers(db, options.answersMaxBytes),
    paceMin: {
      stalledMax: stalledStreamsMax,
      reclaim: createReclaim(collect),
      ...options.paceMin,
    },
    get settleWaitMs() {
      return service().settleWaitSeconds * 1000
    },
    log,
  })
  const receiptAddress = Crypto.addressOf(secrets.receiptKey)
  const exchange = openMarket(options.config, { read: settlement.read, now })
  const counter =
    exchange &&
    startStock({
      ...paywallOptions,
      db,
      settlement,
      quoter,
      exchange,
      refundsMax: options.refundsMax,
      meter: registry,
      sponsor,
      stockBaseUrl,
      waitMs: () => service().settleWaitSeconds * 1000,
      receiptAddress,
      relayerKeys: secrets.relayerKeys,
      log,
    })
  undoing(() => counter?.desk.stop())
  let stopping = false
  const parts: Parts = {
    db,
    settlement,
    calls: registry.counter('facilitator_calls_total', 'Calls of the facilitator by answer.', [
      'operation',
      'answer',
    ]),
    relayers,
    settling: createSettling(
      createPayees({ db, networks: options.config.networks, priceOf: gasPriceOf(settlement), now }),
    ),
    sponsor,
    sponsoring,
    paywall,
    registry,
    exchange,
    counter,
    deskAddress: Crypto.addressOf(secrets.deskKey),
    peerOf: (request) => server.peerOf(front.originalOf(request)),
    upstream: createUpstream({ now }),
    breaker: createBreaker(),
    places: createPlaces(options.fetchesMax),
    recognise: createRecognise({ ...paywallOptions, settlement }),
    budget: createBudget(bufferedMaxBytes),
    facilitatorBudget: createBudget(bufferedBytes(bufferedMaxBytes)),
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
  catalogue = createCatalogue(options.config, first.retired, parts)
  // Behind the socket: a chain that hangs must not keep the health endpoints from saying so.
  await settlement.recover()
  counter?.desk.recover()
  first.write()
  // First: it makes every statement prepared before it be prepared again.
  const lasting = options.isLasting ? [db.reserveLog] : []
  void whenIdle([...lasting, Secp256k1.warm, ...unused(db)], () => stopping)

  return {
    url: server.url,
    receiptAddress,
    settlement,
    reload(config) {
      const places = needsRestart(catalogue.config, config)
      if (places.length > 0) return places
      const next = succeed(db, config, now())
      const built = createCatalogue(config, next.retired, parts)
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
      paywall.stop()
      await Promise.all([counter?.desk.stop(), settlement.stop(Math.max(0, deadline - now()))])
      await Promise.race([closed, Bun.sleep(200)])
      await server.stop(true)
      db.close()
    },
  }
}

/** Built anew for each configuration, so that nothing in it is a mixture of two. */
function createCatalogue(config: Config, retired: RetiredOffers, parts: Parts): Catalogue {
  const { settlement, registry, breaker, exchange, counter, deskAddress } = parts
  const { now, log, requestId } = parts
  const { baseUrl } = config.service
  const isReady: Settlement['isReady'] = (network) =>
    settlement.isReady(network) && settlement.hasBudget(network, 'gateway')
  const { receiptAddress } = parts
  const documents = createDocuments(config, { receiptAddress, isReady, updatedAt: now() })
  const serving = { ...parts, config }
  const gateway = createGateway({ ...serving, retired, documents, stocks: exchange?.data })
  const origins = new Set(
    config.merchants.flatMap((merchant) => originsOf(merchant, exchange?.data)),
  )
  const isOpen = (origin: string) => breaker.isOpen(origin, now())
  const canSell = () => parts.accepts() && settlement.status().some((network) => network.ready)
  const openCircuits = () => [...origins].filter(isOpen)
  const failing = () =>
    config.merchants.filter((merchant) => originsOf(merchant, exchange?.data).some(isOpen))
  const { storage } = parts.db
  const site = new Elysia({ handler: { standardHostname: false } })
    .use(errors({ baseUrl, log, requestId }))
    .use(catalogueRoutes(documents, config.service))
    .use(
      sponsorRoutes({
        ...parts,
        granting: parts.sponsoring.granting,
        paths: pathsBelow([config.service.stockBaseUrl], '/api/gas/sponsor'),
        trustProxy: config.service.trustProxy,
      }),
    )
    .use(
      healthRoutes({
        canSell,
        networks: () => settlement.status(),
        merchantsOutOfService: () => config.merchants.flatMap(outOfService),
        spentBudgets: parts.sponsoring.spent,
        openCircuits: () => failing().map(({ slug }) => slug),
        storageFaults() {
          const reason = storage.fault()
          return reason === undefined ? [] : [{ file: storage.name, reason }]
        },
      }),
    )
    .use(metricsRoutes(registry))
    .use(
      webRoutes({
        ...serving,
        hasMarket: exchange !== undefined,
        isReady: ({ id }) => isReady(id),
        healthOf: (merchant) =>
          availabilityOf(originsOf(merchant, exchange?.data), merchant, isOpen),
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
    facilitator: createFacilitator({
      ...serving,
      budget: parts.facilitatorBudget,
      ownAccounts: [deskAddress],
    }),
    mcp: createMcp({ ...serving, gateway, isReady }),
  }
}

function gasPriceOf({ costOf }: Settlement): (network: Network.Id) => bigint {
  return (network) => costOf(network).priceWei
}

/** Collects all garbage. Returns how many ms that took. */
function collect(): number {
  const startedAt = performance.now()
  Bun.gc(true)
  return performance.now() - startedAt
}
