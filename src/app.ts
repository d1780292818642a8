import type { Upgrade } from '../db/Database'
import { type Base, type Clocks, openBase } from './app/base'
import { describe } from './app/describe'
import { createHandlers } from './app/handlers'
import { startMoney } from './app/money'
import type { AppOptions } from './app/options'
import { createParts, type Parts } from './app/parts'
import { createRoutes } from './app/routes'
import { startSales } from './app/sales'
import { type HttpServer, startServer } from './app/server'
import type { Config } from './config/Config'
import type { Path } from './config/lines'
import { needsRestart } from './config/restart'
import { refusedOf } from './gateway/upstream/refusals'
import type { Sources } from './http/health'
import type { Family } from './http/metrics'
import type { Claims } from './paywall/claims'
import { succeed } from './paywall/offer/retired-offers'
import type { Settlement } from './settlement/settlement'
import { within } from './settlement/state/wait'
import { startWebhooks, type Webhooks } from './webhooks/sender'

export type App = {
  /** URL at which it listens, e.g. `http://127.0.0.1:4020`. */
  url: string
  /** Signer of receipts and offers. */
  receiptAddress: `0x${string}`
  settlement: Settlement
  /** Claims on money, which all products share. */
  claims: Claims
  /** Every metric that `/metrics` may have. */
  metrics(): Family[]
  /** What the start changed in a database of an earlier schema. */
  upgrade: Upgrade | undefined
  /** Domains without a usable certificate. */
  certificateFaults: Sources['certificateFaults']
  /**
   * Applies another configuration to requests from now on. Requests in progress end under the old
   * one. When something needs a restart it changes nothing and returns those places. Rejects, and
   * changes nothing for requests, when the database cannot be written. Calls run one after the other.
   */
  reload(config: Config): Promise<readonly Path[]>
  /** Starts no new work, lets paid work finish within the configured limit, then closes. */
  stop(): Promise<void>
}

/**
 * Starts the service: opens the data directory, listens, and continues what an earlier process left
 * unfinished. Resolves when every network has been read once. Throws DatabaseLockedError when
 * another process has the data directory, and DatabaseFileError or DatabaseLostError when there is
 * no sound database. Throws the system's error when the address is not available. Parts that were
 * started are stopped then, so that the process can end.
 */
export async function start(options: AppOptions): Promise<App> {
  const cleanups: (() => unknown)[] = []
  const clocks = { now: options.now ?? Date.now, monotonic: () => performance.now() }
  try {
    return await begin(options, clocks, (undo) => cleanups.push(undo))
  } catch (error) {
    for (const undo of cleanups.toReversed()) await undo()
    throw error
  }
}

type WithWebhooks = Parts & { webhooks: Webhooks }

/** Starts the parts in the order of their dependencies. */
async function begin(
  options: AppOptions,
  clocks: Clocks,
  onFailure: Base['onFailure'],
): Promise<App> {
  const base = await openBase(options, clocks, onFailure)
  // Bind first: a start without its address fails before other parts run.
  const server = await startServer(base)
  // Subscribe first: the recovery of payments writes messages, too.
  const webhooks = webhooksOf(base)
  const money = await startMoney(base)
  const sales = await startSales(base, money)
  const parts = createParts(base, server, money, sales)
  const first = await prepare(base, parts, options.config)
  const app = first.app()
  Object.assign(base.current, { app, offers: first.version })
  // Recover after binding: the health endpoints must answer while a chain does not.
  await money.settlement.recover()
  await sales.startedStock?.desk.recover()
  await first.write()
  webhooks.watch({
    networks: money.settlement.details,
    refused: () => refusedOf(base.current.config, parts.refusals),
  })
  const turn = inTurn((work: () => Promise<readonly Path[]>) => work())
  await followOffers(base, parts, turn)
  // Last, so that a start that fails orders no certificate.
  server.certificates?.start()
  warmUp(base, app.warm)
  return {
    url: server.listener.url,
    receiptAddress: sales.receiptAddress,
    settlement: money.settlement,
    claims: sales.claims,
    metrics: base.registry.describe,
    reload: (config) => turn(() => reload(base, { ...parts, webhooks }, config)),
    stop: () => stop(base, server, { ...parts, webhooks }),
    upgrade: base.database.upgrade,
    certificateFaults: () => server.certificates?.faults() ?? [],
  }
}

/**
 * Builds the routes of a configuration, and a function that records the configuration in the
 * database.
 */
async function prepare({ ledger, now }: Base, parts: Parts, config: Config, previous?: Config) {
  const { retired, version, write } = await succeed(ledger.offers, config, { now: now(), previous })
  const accounts = [...parts.relayers, parts.deskAddress]
  return {
    /** Compiles the routes; a caller that needs none does not call it. */
    app: () => createRoutes(createHandlers(config, retired, parts)),
    version,
    async write() {
      await write()
      await describe(ledger, config, { accounts, now: now() })
    },
  }
}

function webhooksOf({ options, ledger, registry, now, log, onFailure }: Base): Webhooks {
  const { config, posting } = options
  const webhooks = startWebhooks({
    ledger: ledger.webhooks,
    endpoints: config.webhooks,
    networks: config.networks,
    meter: registry,
    posting,
    now,
    log,
  })
  onFailure(() => webhooks.stop(0))
  return webhooks
}

async function reload(base: Base, parts: WithWebhooks, config: Config): Promise<readonly Path[]> {
  const places = needsRestart(base.current.config, config)
  if (places.length > 0) return places
  const { app, version, write } = await prepare(base, parts, config, base.current.config)
  const next = app()
  await write()
  Object.assign(base.current, { config, app: next, offers: version })
  parts.webhooks.apply(config.webhooks)
  // The accounts and the assets may have changed.
  parts.recent.clear()
  return []
}

/**
 * Accepts the offers of other gateways, whose configuration may differ while operators change it on one
 * after the other. Resolves when the present ones are accepted.
 */
async function followOffers(
  base: Base,
  parts: Parts,
  turn: (work: () => Promise<readonly Path[]>) => Promise<unknown>,
): Promise<void> {
  const { current, ledger, log } = base
  const look = async () => {
    if (current.isStopping) return []
    const { app, version } = await prepare(base, parts, current.config)
    if (version !== current.offers) Object.assign(current, { app: app(), offers: version })
    return []
  }
  // After a fault such an offer is refused until the next change, and nothing is charged.
  const follow = () => turn(look).catch((error: unknown) => log('settlement-fault', { error }))
  ledger.offers.onReplace(() => void follow())
  if (ledger.lanes.isShared) await follow()
}

/** Runs one call after the other, in their order. */
function inTurn<In, Out>(run: (input: In) => Promise<Out>): (input: In) => Promise<Out> {
  let last: Promise<unknown> = Promise.resolve()
  return (input) => {
    const next = last.then(() => run(input))
    last = next.catch(() => undefined)
    return next
  }
}

/** Prepares, between requests, what the first requests would wait for. */
function warmUp({ options, database, current }: Base, warmRoutes: () => unknown): void {
  // Before `unused`, because it invalidates every statement that was prepared earlier.
  const { reserveLog } = database
  const lasting = options.isLasting && reserveLog ? [reserveLog] : []
  const steps = [...lasting, ...database.unused(), warmRoutes]
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

async function stop(
  { current, database, ledger, now }: Base,
  { listener }: HttpServer,
  parts: WithWebhooks,
): Promise<void> {
  if (current.isStopping) return
  current.isStopping = true
  // A lane that is taken during the stop would be driven to its end first.
  ledger.lanes.retire()
  const { paywall, settling, startedStock, settlement, webhooks, hours } = parts
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
    paywall.inFlight() + settling.calls + (startedStock?.purchase.inFlight() ?? 0)
  while (inFlight() > 0 && now() < deadline) await Bun.sleep(10)
  const limitMs = Math.max(0, deadline - now())
  const stopped = [paywall.stop(), settlement.stop(limitMs), webhooks.stop(limitMs)]
  await last(Promise.all([...stopped, startedStock?.desk.stop()]), 2 * leastMs)
  await Promise.race([closed, Bun.sleep(200)])
  await listener.stop(true)
  await last(hours.stop(), leastMs)
  await last(Promise.resolve(database.close()), 0)
}
