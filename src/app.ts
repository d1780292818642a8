import { type Base, type Clocks, openBase } from './app/base'
import { createHandlers } from './app/handlers'
import { type Listener, type ListenOptions, listenOn } from './app/listen'
import type { AppOptions } from './app/options'
import { type AppParts, startParts } from './app/parts'
import { createRoutes } from './app/routes'
import type { Config } from './config/Config'
import type { Path } from './config/lines'
import { needsRestart } from './config/restart'
import { zeroAddress } from './config/values'
import { refusedOf } from './gateway/upstream/refusals'
import { createPeers } from './http/client'
import { succeed } from './paywall/offer/retired-offers'
import { within } from './settlement/state/wait'

export type App = Awaited<ReturnType<typeof begin>>

/**
 * Starts the service: opens the data directory, listens, and continues what an earlier process left
 * unfinished. Resolves when every network has been read once. Throws DatabaseLockedError when
 * another process has the data directory, and DatabaseFileError or DatabaseLostError when there is
 * no sound database. Throws the system's error when the address is not available. Parts that were
 * started are stopped then, so that the process can end.
 */
export async function start(options: AppOptions): Promise<App> {
  const cleanups: (() => unknown)[] = []
  const clocks = { now: options.now ?? Date.now, monotonic: performance.now.bind(performance) }
  try {
    return await begin(options, clocks, (undo) => cleanups.push(undo))
  } catch (error) {
    for (const undo of cleanups.toReversed()) await undo()
    throw error
  }
}

/** Starts the parts in the order of their dependencies. */
async function begin(options: AppOptions, clocks: Clocks, onFailure: Base['onFailure']) {
  const base = await openBase(options, clocks, onFailure)
  // Bind first: a start without its address fails before other parts run.
  const server = await startServer(base)
  const parts = await startParts(base, server)
  const { current, settlement, startedStock, webhooks } = parts
  const first = await prepare(parts, options.config)
  const app = first.app()
  Object.assign(current, { app, offers: first.version })
  // Recover after binding: the health endpoints must answer while a chain does not.
  await settlement.recover()
  await startedStock?.desk.recover()
  parts.refunds.start()
  await first.write()
  webhooks.watch(watchedOf(parts))
  const turn = inTurn()
  await followOffers(parts, turn)
  // Last, so that a start that fails orders no certificate.
  server.certificates?.start()
  warmUp(parts, app.warm)
  const { receiptAddress, claims, certificateFaults } = parts
  return {
    /** URL at which it listens, e.g. `http://127.0.0.1:4020`. */
    url: server.listener.url,
    /** Signer of receipts and offers. */
    receiptAddress,
    settlement,
    /** Claims on money, which all products share. */
    claims,
    /** Every metric that `/metrics` may have. */
    metrics: base.registry.describe,
    /** What the start changed in a database of an earlier schema. */
    upgrade: base.database.upgrade,
    /** Domains without a usable certificate. */
    certificateFaults,
    /**
     * Applies another configuration to requests from now on. Requests in progress end under the old
     * one. When something needs a restart it changes nothing and returns those places. Rejects, and
     * changes nothing for requests, when the database cannot be written. Calls run one after the other.
     */
    reload: (config: Config) => turn(() => reload(parts, config)),
    /** Starts no new work, lets paid work finish within the configured limit, then closes. */
    stop: () => stop(server.listener, parts),
  }
}

/**
 * Listens for requests and hands them to `current.app`. Throws the system's error without the
 * address, and PortError without a port of HTTPS.
 */
async function startServer(base: Base) {
  const { options, current, middleware, registry, log } = base
  const full = registry.counter(
    'connections_full_total',
    'Times that idle connections were ended because too many were open.',
  )
  const { listener, certificates } = await listen(base, {
    connectionsMax: options.config.service.connectionsMax,
    idleSeconds: options.idleSeconds,
    fetch: (request) => current.app.fetch(request),
    onFull(openFiles) {
      full.inc()
      log('connections-full', { openFiles })
    },
    onFault: (error) => log('listen-failed', { error }),
  })
  const peerOf = createPeers(listener.connections, middleware.originalOf)
  return { listener, peerOf, certificates }
}

async function listen(base: Base, common: Omit<ListenOptions, 'hostname' | 'port'>) {
  const { config, https } = base.options
  if (https !== undefined) {
    // Loaded only for HTTPS, so that other starts are not slower.
    const { listenHttps } = await import('./app/https')
    return listenHttps(base, https, common)
  }
  const listener = listenOn({ ...config.service.listen, ...common })
  base.onFailure(() => listener.stop(true))
  return { listener, certificates: undefined }
}

/**
 * Builds the routes of a configuration, and a function that records the configuration in the
 * database.
 */
async function prepare(parts: AppParts, config: Config, previous?: Config) {
  const { ledger, now } = parts
  const { retired, version, write } = await succeed(ledger.offers, config, { now: now(), previous })
  return {
    /** Compiles the routes; a caller that needs none does not call it. */
    app: () => createRoutes(createHandlers(config, retired, parts)),
    version,
    async write() {
      await write()
      await describe(parts, config)
    },
  }
}

/**
 * Keeps the accounts and assets of a configuration in the database, so that the figures of sales can
 * be read beside the service and from a copy, without the file and its secrets.
 */
function describe(parts: AppParts, config: Config): Promise<void> {
  const { ledger, relayers, deskAddress, refunds, now } = parts
  const payouts = [config.service.payout, ...config.merchants.map(({ payout }) => payout)]
  const accounts = new Set([...relayers, deskAddress, refunds.account ?? deskAddress, ...payouts])
  return ledger.sales.describe({
    // A merchant that is out of service may have no payout.
    accounts: [...accounts].filter((each) => each !== zeroAddress),
    assets: config.networks.map(({ id, name, asset, ethPriceUsd }) => ({
      network: id,
      address: asset.address,
      networkName: name,
      symbol: asset.symbol,
      decimals: asset.decimals,
      // A plain decimal such as `4000`: small numbers have an exponent otherwise.
      coinUsd: ethPriceUsd.toFixed(6).replace(/\.?0+$/, ''),
    })),
    now: now(),
  })
}

async function reload(parts: AppParts, config: Config): Promise<readonly Path[]> {
  const { current } = parts
  const places = needsRestart(current.config, config)
  if (places.length > 0) return places
  const { app, version, write } = await prepare(parts, config, current.config)
  const next = app()
  await write()
  Object.assign(current, { config, app: next, offers: version })
  parts.webhooks.apply(config)
  // The accounts and the assets may have changed.
  parts.recent.clear()
  return []
}

/** The states that operators are told about. */
function watchedOf(parts: AppParts): Parameters<AppParts['webhooks']['watch']>[0] {
  const { current, options, settlement, sponsoring, refunds } = parts
  return {
    networks: settlement.details,
    refunds: refunds.stuck,
    claims: () =>
      current.config.networks.flatMap(({ id }) => settlement.channels.claimsOf(id)?.late ?? []),
    refused: () => refusedOf(current.config, parts.refusals),
    certificates() {
      const faults = new Map(
        parts.certificateFaults().map(({ domain, reason }) => [domain, reason]),
      )
      return (options.https?.domains ?? []).map((domain) => {
        const reason = faults.get(domain)
        // The first order has not ended.
        return { domain, reason: reason === 'no certificate yet' ? undefined : reason }
      })
    },
    async spentBudgets() {
      const sponsors = new Set((await sponsoring.spent()).map(({ network }) => network))
      return settlement.details().flatMap(({ network, gas }) =>
        gas.flatMap(({ product, spentWei, budgetWei }) => {
          const isSponsor = product === 'sponsor'
          // A budget of zero is configured, not a fault.
          const isSpent = budgetWei > 0n && spentWei >= budgetWei
          if (!(isSponsor ? sponsors.has(network) : isSpent)) return []
          const budget = isSponsor ? 'grants' : 'gas'
          return [{ network, product, budget, spentWei, budgetWei } as const]
        }),
      )
    },
  }
}

/**
 * Accepts the offers of other gateways, whose configuration may differ while operators change it on one
 * after the other. Resolves when the present ones are accepted.
 */
async function followOffers(parts: AppParts, turn: ReturnType<typeof inTurn>): Promise<void> {
  const { current, ledger, log } = parts
  const look = async () => {
    if (current.isStopping) return
    const { app, version } = await prepare(parts, current.config)
    if (version !== current.offers) Object.assign(current, { app: app(), offers: version })
  }
  // After a fault such an offer is refused until the next change, and nothing is charged.
  const follow = () => turn(look).catch((error: unknown) => log('settlement-fault', { error }))
  ledger.offers.onReplace(() => void follow())
  if (ledger.lanes.isShared) await follow()
}

/** Runs one piece of work after the other, in their order. */
function inTurn() {
  let last: Promise<unknown> = Promise.resolve()
  return <Out>(work: () => Promise<Out>): Promise<Out> => {
    const next = last.then(work)
    last = next.catch(() => undefined)
    return next
  }
}

/** Prepares, between requests, what the first requests would wait for. */
function warmUp({ options, database, current }: Base, warmRoutes: () => unknown): void {
  // Before `unused`, because it invalidates every statement that was prepared earlier.
  const { reserveLog } = database
  const lasting = options.isLasting && reserveLog ? [reserveLog] : []
  // Last, so that what runs only once is not compiled to machine code (build.ts).
  const compileMore = () => Bun.unsafe.setJITPolicy(1)
  const steps = [...lasting, ...database.unused(), warmRoutes, compileMore]
  void whenIdle(steps, () => current.isStopping)
}

/** Runs work that no request should wait for, between requests, after the first requests. */
async function whenIdle(steps: readonly (() => unknown)[], isOver: () => boolean): Promise<void> {
  await Bun.sleep(200)
  for (const step of steps) {
    await new Promise((resolve) => setImmediate(resolve))
    if (isOver()) return
    try {
      await step()
    } catch {
      // The request that needs the result gets the same fault and reports it.
    }
  }
}

/** Longest time of the last writes after `stop_seconds`, ms. `turnpike service` allows 10 s. */
const lastWritesMs = 8_000
/** The last write has at least this part of that time, ms. */
const leastMs = 2_000

async function stop(listener: Listener, parts: AppParts): Promise<void> {
  const { current, database, ledger, now } = parts
  if (current.isStopping) return
  current.isStopping = true
  // A lane that is taken during the stop would be driven to its end first.
  ledger.lanes.retire()
  const { paywall, settling, startedStock, settlement, refunds, webhooks, requestCounts } = parts
  const deadline = now() + current.config.service.stopSeconds * 1000
  /**
   * Limits the time of a last write. When the database server is gone, a write waits for it,
   * because its effect is unknown. The next holder of the accounts finds that out, as after a
   * crash.
   */
  const last = (work: Promise<unknown>, reserveMs: number) =>
    within(work, Math.max(leastMs, deadline + lastWritesMs - reserveMs - now()))
  const closed = listener.stop(false)
  const inFlight = () =>
    paywall.inFlight() + settling.calls + (startedStock?.purchase.inFlight ?? 0)
  while (inFlight() > 0 && now() < deadline) await Bun.sleep(10)
  const limitMs = Math.max(0, deadline - now())
  const stopped = [paywall.stop(), settlement.stop(limitMs), webhooks.stop(limitMs)]
  await last(Promise.all([...stopped, startedStock?.desk.stop(), refunds.stop()]), 2 * leastMs)
  await Promise.race([closed, Bun.sleep(200)])
  await listener.stop(true)
  await last(requestCounts.stop(), leastMs)
  await last(Promise.resolve(database.close()), 0)
}
