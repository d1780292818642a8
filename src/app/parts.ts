import { timeOf } from '../../db/sales'
import type { Certificates } from '../acme/certificates'
import { createRanges } from '../books/ranges'
import { createRecent, type Recent } from '../books/read'
import { createTally, startRequestCounts } from '../books/tally'
import { EnvironmentError } from '../config/env'
import { bufferedBytes } from '../facilitator/handler'
import { createPayees } from '../facilitator/payees'
import { createSettleRuns } from '../facilitator/settle-once'
import { refusedPerMinute } from '../gateway/sale'
import { createBreaker } from '../gateway/upstream/breaker'
import { createConcurrency } from '../gateway/upstream/concurrency'
import { createLatency } from '../gateway/upstream/latency'
import { createRefusals } from '../gateway/upstream/refusals'
import { createUpstream } from '../gateway/upstream/upstream'
import { createBudget } from '../http/body'
import type { Peer } from '../http/client'
import { salts } from '../http/ids'
import { createRateLimit } from '../http/rate-limit'
import { createReceipts } from '../paywall/answer/receipts'
import { createAnswerStore } from '../paywall/answer/store'
import { createReclaim } from '../paywall/answer/transfer-rate'
import { attemptsMax, cutAttemptsMax } from '../paywall/answer/undelivered'
import type { Claims } from '../paywall/checkout'
import { createPlausibility } from '../paywall/credential'
import { showRequests, withDeliveries } from '../paywall/metrics'
import { createQuoter } from '../paywall/offer/quote'
import { createPaywall } from '../paywall/paywall'
import { createLookup } from '../paywall/usage/lookup'
import * as Crypto from '../protocol/Crypto'
import { hourMs } from '../protocol/Time'
import { createRefunds } from '../refunds/refunds'
import { findChannelsFault } from '../settlement/channels/authorizer'
import { createSettlement } from '../settlement/settlement'
import { createSponsor } from '../sponsor/sponsor'
import { openMarket, startStock } from '../stock/start'
import { createSessions } from '../web/admin/sessions'
import { startWebhooks, type Webhooks } from '../webhooks/sender'
import type { Base } from './base'
import { createPauses } from './pauses'

export type HttpServer = {
  /** The client's end of the connection of a request that a route received. */
  peerOf: (request: Request) => Peer
  /** Only for HTTPS. */
  certificates: Certificates | undefined
}

/** Number of pending payments that the page for operators lists. */
const pendingShown = 20

/** Parts that survive a reload, because they have state or money. */
export type AppParts = Awaited<ReturnType<typeof startParts>>

/** Starts the parts in the order of their dependencies. */
export async function startParts(base: Base, { peerOf, certificates }: HttpServer) {
  const { options, current, ledger, registry, now, log } = base
  const { config, secrets } = options
  // Subscribe first: the recovery of payments writes messages, too.
  const webhooks = startWebhooks({
    ledger: ledger.webhooks,
    config,
    meter: registry,
    posting: options.posting,
    now,
    log,
  })
  base.onFailure(() => webhooks.stop(0))
  const money = await startMoney(base)
  const sales = await startSales(base, money, webhooks.undelivered)
  const { settlement } = money
  const payees = createPayees({
    ledger,
    networks: config.networks,
    priceOf: (network) => settlement.costOf(network).priceWei,
    now,
  })
  const upstream = createUpstream({ now, stalledMax: 2 * config.service.stalledStreamsMax })
  return {
    ...base,
    ...money,
    ...sales,
    webhooks,
    peerOf,
    /** Counts the calls of the facilitator. */
    calls: registry.counter('facilitator_calls_total', 'Calls of the facilitator by answer.', [
      'operation',
      'answer',
    ]),
    settling: createSettleRuns(payees, sales.claims),
    deskAddress: Crypto.addressOf(secrets.deskKey),
    upstream,
    refusals: createRefusals({ upstream, now, log }),
    breaker: createBreaker(),
    latency: createLatency(registry),
    concurrency: createConcurrency(options.fetchesMax),
    budget: createBudget(config.service.bufferedMaxBytes),
    /** The budget of the facilitator's request bodies. */
    facilitatorBudget: createBudget(bufferedBytes(config.service.bufferedMaxBytes)),
    rateLimit: createRateLimit(),
    accepts: () => !current.isStopping,
    adminToken: secrets.adminToken,
    operator: options.operator,
    /** The operators that are signed in; a reload keeps them. */
    sessions: createSessions(now),
    /** Domains without a usable certificate. */
    certificateFaults: () => certificates?.faults() ?? [],
    pending: () => ledger.payments.pending(pendingShown),
    /** The figures of the last days. */
    recent: createRecentFigures(base),
    ranges: createRanges({ sales: base.ledger.sales, attempts, now: base.now }),
  }
}

type Money = Awaited<ReturnType<typeof startMoney>>

/**
 * Starts the settlement, the sponsoring and the refunds. After `recover` the settlement continues what
 * is unfinished.
 */
async function startMoney(base: Base) {
  const { options, current, ledger, registry, now, log } = base
  const { config, secrets } = options
  const own = { networks: config.networks, meter: registry, now, log }
  const fault = (error: unknown) => log('settlement-fault', { error })
  const { admin, onChange } = ledger
  /** What an operator has paused. */
  const pauses = await createPauses({ ledger: admin, onChange, now, fault })
  for (const { kind, name } of pauses.all()) log('sales-paused', { kind, name })
  const { receiverAuthorizerKey } = secrets
  const stranded = await findChannelsFault(ledger.channels, receiverAuthorizerKey, config.networks)
  if (stranded !== undefined) throw new EnvironmentError(stranded)
  const settlement = await createSettlement({
    ...own,
    ledger,
    payerFailuresMax: options.payerFailuresMax,
    blockTimeMs: options.blockTimeMs,
    rpcTimeoutMs: options.rpcTimeoutMs,
    relayerKeys: secrets.relayerKeys,
    receiverAuthorizerKey,
    deskKey: config.stock && secrets.deskKey,
    deskNetwork: config.stock?.network,
    monotonic: base.monotonic,
    clockSkewMaxMs: options.clockSkewMaxMs,
    payoutExclusive: () => current.config.service.payoutExclusive,
    isOwnPayee: (payee) =>
      payee === current.config.service.payout ||
      current.config.merchants.some(({ payout }) => payout === payee),
    confirmTwiceAbove: () => current.config.service.confirmTwiceAboveAtomic,
    isPaused: (network) => pauses.has('network', network),
    creditOf(slug) {
      // A merchant that a reload has removed sells nothing new.
      const merchant = current.config.merchants.find((each) => each.slug === slug)
      return (
        merchant && {
          payerAtomic: merchant.payerCreditAtomic,
          dayAtomic: merchant.lossesPerDayAtomic,
          holdsNew: merchant.newStreams === 'held',
        }
      )
    },
    unsettledMax: () => current.config.service.unsettledMaxAtomic,
  })
  base.onFailure(() => settlement.stop(0))
  /** Addresses that send settlements. */
  const relayers = secrets.relayerKeys.map(Crypto.addressOf)
  const waitMs = () => current.config.service.settleWaitSeconds * 1000
  const sponsoring = createSponsor({
    ...own,
    grants: ledger.grants,
    settlement,
    accounts: [...relayers, settlement.desk],
    waitMs,
  })
  const isAutomatic = ({ slug }: { slug: string }) =>
    current.config.merchants.some((each) => each.slug === slug && each.refund === 'undelivered')
  const refunds = createRefunds({
    ...{ ...own, refunds: ledger.refunds, settlement, key: secrets.refundKey },
    merchants: () => current.config.merchants.filter(isAutomatic).map(({ slug }) => slug),
    perDayAtomic: () => current.config.service.refundPerDayAtomic,
    lookMs: options.refundLookMs,
  })
  base.onFailure(refunds.stop)
  return { settlement, relayers, sponsoring, refunds, pauses, waitMs, isAutomatic }
}

/** Starts the paywall and, where the configuration has `[stock]`, the stock desk. */
async function startSales(
  base: Base,
  { settlement, sponsoring, refunds, relayers, waitMs, isAutomatic }: Money,
  onUndelivered: Webhooks['undelivered'],
) {
  const { options, current, ledger, registry, now, log } = base
  const { challengeSecrets, receiptKey } = options.secrets
  const { baseUrl, stockBaseUrl, stalledStreamsMax, bufferedMaxBytes } = options.config.service
  const tally = createTally()
  /** Claims on money, which all products share. */
  const claims: Claims = new Map()
  const sponsor = sponsoring.approvals
  const receipts = createReceipts(receiptKey, now)
  const terms = {
    tally,
    claims,
    refunds,
    settlement: withDeliveries(settlement, registry),
    challengeSecrets,
    receiptKey,
    receipts,
    realm: new URL(baseUrl).hostname,
    baseUrl,
    sponsor,
    channelOf: settlement.channels.namedTermsOf,
    now,
    log,
  }
  showRequests(registry, tally)
  const quoter = createQuoter({
    ...terms,
    channelOf: settlement.channels.termsOf,
    whyNot: settlement.whyNot,
    facilitators: settlement.authorizations.facilitators,
    takesApprovals: sponsor !== undefined,
    gasSponsor: { url: `${stockBaseUrl}/api/gas/sponsor`, networks: sponsoring.networks },
    salt: salts(),
  })
  const paywall = createPaywall({
    ...terms,
    monotonic: base.monotonic,
    quoter,
    answers: await createAnswerStore(ledger.answers, options.answersMaxBytes),
    entitlements: ledger.entitlements,
    meter: registry,
    trialsPerMinute: () => refusedPerMinute(current.config.service),
    transferRateMin: {
      stalledMax: stalledStreamsMax,
      reclaim: createReclaim(collect),
      ...options.transferRateMin,
    },
    heldMaxBytes: bufferedMaxBytes,
    onUndelivered,
    isRefunded: ({ transfer, purpose }) =>
      isAutomatic({ slug: purpose.merchant }) && refunds.canRefund(transfer),
    settleWaitMs: waitMs,
    symbolOf: (named) =>
      current.config.networks.find(({ id: network }) => network === named)?.asset.symbol,
  })
  /** Answers what a payment has cost. */
  const lookup = createLookup(terms)
  /** Undefined without `[stock]`, as `startedStock` is. */
  const exchange = openMarket(options.config, {
    read: settlement.read,
    now,
    timeoutMs: options.marketTimeoutMs,
  })
  const startedStock =
    exchange &&
    startStock({
      ...terms,
      orders: ledger.orders,
      settlement,
      quoter,
      exchange,
      refundsMax: options.refundsMax,
      laterMs: options.orderRetryMs,
      meter: registry,
      baseUrl: stockBaseUrl,
      waitMs,
      relayers,
    })
  base.onFailure(() => startedStock?.desk.stop())
  /** Whether the credential of a request may pay for its body. */
  const isPlausible = createPlausibility(terms)
  /** Writes the counts of requests. */
  const requestCounts = startRequestCounts({ ledger: ledger.sales, tally, now })
  base.onFailure(requestCounts.stop)
  /** Signer of receipts. */
  const receiptAddress = receipts.address
  return {
    ...{ paywall, tally, claims, isPlausible, exchange, startedStock, lookup },
    ...{ requestCounts, receiptAddress },
  }
}

/**
 * Collects all garbage. Returns how many ms of CPU that took. Elapsed time would also count other
 * programs of a busy machine, and the pause that is computed from it would be too long.
 */
export function collect(run: () => void = () => Bun.gc(true)): number {
  const before = process.cpuUsage()
  run()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

const attempts = { attemptsMax, cutAttemptsMax }

/**
 * The figures of the last days. They are read again when a payment or an order of theirs changes.
 */
function createRecentFigures({ ledger, now }: Base): Recent {
  const recent: Recent = createRecent({
    sales: ledger.sales,
    attempts,
    now,
    follow: () =>
      ledger.onChange({
        payment: (id) => recent.changed(timeOf(id)),
        job(id) {
          const [, order] = id.split(':')
          if (order?.startsWith('pay_')) recent.changed(timeOf(order))
          // The hours beside it, too, because the id of its payment may be older.
          for (const ms of order?.startsWith('ord_') ? [-hourMs, 0, hourMs] : [])
            recent.changed(timeOf(order ?? '') + ms)
          void ledger.admin.jobAt(id).then(
            (at) => at !== undefined && recent.changed(at),
            () => recent.clear(),
          )
        },
      }),
  })
  return recent
}
