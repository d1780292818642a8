import type { Pending } from '../../db/Ledger'
import { createRecent, type Recent } from '../books/read'
import { bufferedBytes } from '../facilitator/handler'
import { createPayees } from '../facilitator/payees'
import { createSettling, type Settling } from '../facilitator/settle-once'
import type { GatewayOptions } from '../gateway/merchant'
import { createBreaker } from '../gateway/upstream/breaker'
import { createConcurrency } from '../gateway/upstream/concurrency'
import { createLatency, type Latency } from '../gateway/upstream/latency'
import { createRefusals } from '../gateway/upstream/refusals'
import { createUpstream } from '../gateway/upstream/upstream'
import { createBudget } from '../http/body'
import type { Peer } from '../http/client'
import type { Sources } from '../http/health'
import type { Registry } from '../http/metrics'
import { createRateLimit } from '../http/rate-limit'
import { attemptsMax, cutAttemptsMax } from '../paywall/answer/undelivered'
import * as Crypto from '../protocol/Crypto'
import { hourMs } from '../protocol/Time'
import { createSessions, type Sessions } from '../web/admin/sessions'
import type { Base } from './base'
import type { Money } from './money'
import type { Operator } from './options'
import type { Sales } from './sales'
import type { HttpServer } from './server'

/** Number of pending payments that the page for operators lists. */
const pendingShown = 20

/** Parts that survive a reload, because they have state or money. */
export type Parts = Pick<
  Base,
  'middleware' | 'database' | 'ledger' | 'registry' | 'requestId' | 'now' | 'log'
> &
  Money &
  Sales &
  Pick<
    GatewayOptions,
    'upstream' | 'breaker' | 'refusals' | 'concurrency' | 'budget' | 'rateLimit' | 'accepts'
  > & {
    latency: Latency
    /** Counts the calls of the facilitator. */
    calls: ReturnType<Registry['counter']>
    settling: Settling
    /** The budget of the facilitator's request bodies. */
    facilitatorBudget: GatewayOptions['budget']
    deskAddress: `0x${string}`
    /** The client's end of the connection of a request that a route received. */
    peerOf: (request: Request) => Peer
    adminToken: string
    operator: Operator | undefined
    /** The operators that are signed in; a reload keeps them. */
    sessions: Sessions
    certificateFaults: Sources['certificateFaults']
    pending: () => Promise<Pending>
    /** The figures of the last days. */
    recent: Recent
  }

/** Makes the parts that the requests of all products share. */
export function createParts(base: Base, server: HttpServer, money: Money, sales: Sales): Parts {
  const { options, current, database, ledger, registry, requestId, now, log } = base
  const { config, secrets } = options
  const { settlement } = money
  const payees = createPayees({
    ledger,
    networks: config.networks,
    priceOf: (network) => settlement.costOf(network).priceWei,
    now,
  })
  const upstream = createUpstream({ now, stalledMax: 2 * config.service.stalledStreamsMax })
  return {
    middleware: base.middleware,
    database,
    ledger,
    registry,
    requestId,
    now,
    log,
    ...money,
    ...sales,
    peerOf: server.peerOf,
    calls: registry.counter('facilitator_calls_total', 'Calls of the facilitator by answer.', [
      'operation',
      'answer',
    ]),
    settling: createSettling(payees, sales.claims),
    deskAddress: Crypto.addressOf(secrets.deskKey),
    upstream,
    refusals: createRefusals({ upstream, now, log }),
    breaker: createBreaker(),
    latency: createLatency(registry),
    concurrency: createConcurrency(options.fetchesMax),
    budget: createBudget(config.service.bufferedMaxBytes),
    facilitatorBudget: createBudget(bufferedBytes(config.service.bufferedMaxBytes)),
    rateLimit: createRateLimit(),
    accepts: () => !current.isStopping,
    adminToken: secrets.adminToken,
    operator: options.operator,
    sessions: createSessions(now),
    certificateFaults: () => server.certificates?.faults() ?? [],
    pending: () => ledger.payments.pending(pendingShown),
    recent: createRecentFigures(base),
  }
}

/**
 * The figures of the last days. They are read again when a payment or an order of theirs changes.
 */
function createRecentFigures({ ledger, now }: Pick<Base, 'ledger' | 'now'>): Recent {
  const recent = createRecent({
    sales: ledger.sales,
    attempts: { attemptsMax, cutAttemptsMax },
    now,
  })
  ledger.onChange({
    payment: (id) => recent.changed(timeOf(id)),
    job(id) {
      const [, order] = id.split(':')
      // The hours beside it, too, because the id of its payment may be older.
      for (const ms of order?.startsWith('ord_') ? [-hourMs, 0, hourMs] : [])
        recent.changed(timeOf(order ?? '') + ms)
      void ledger.admin.jobAt(id).then(
        (at) => at !== undefined && recent.changed(at),
        () => recent.clear(),
      )
    },
  })
  return recent
}

/** The time in the id of a payment or of an order, unix ms. */
function timeOf(id: string): number {
  return Number.parseInt(id.slice(4, 16), 16)
}
