import { createTally, type Hours, startHours } from '../books/tally'
import { salts } from '../http/ids'
import { createAnswers } from '../paywall/answer/store'
import { createReclaim } from '../paywall/answer/transfer-rate'
import { createTokens } from '../paywall/answer/undelivered'
import type { Claims } from '../paywall/claims'
import { showChallenges, withDeliveries } from '../paywall/metrics'
import { createQuoter, type Quoter } from '../paywall/offer/quote'
import { createPaywall, type Paywall } from '../paywall/paywall'
import { createLookup } from '../paywall/usage/lookup'
import { createPlausibility, type IsPlausible } from '../paywall/usage/plausible'
import * as Crypto from '../protocol/Crypto'
import { type OpenMarket, openMarket, type StartedStock, startStock } from '../stock/start'
import type { Base } from './base'
import { collect } from './collect'
import type { Money } from './money'

/** The parts that request payment and deliver what was paid for. */
export type Sales = {
  paywall: Paywall
  /** Claims on money, which all products share. */
  claims: Claims
  /** Whether the credential of a request may pay for its body. */
  isPlausible: IsPlausible
  /** Undefined without `[stock]`, as `startedStock` is. */
  exchange: OpenMarket | undefined
  startedStock: StartedStock | undefined
  /** Answers what a payment has cost. */
  lookup: ReturnType<typeof createLookup>
  /** Writes the counts of requests. */
  hours: Hours
  /** Signer of receipts. */
  receiptAddress: `0x${string}`
}

/** Starts the paywall and, where the configuration has `[stock]`, the stock desk. */
export async function startSales(base: Base, money: Money): Promise<Sales> {
  const { options, current, registry, now, log } = base
  const { settlement, sponsoring } = money
  const { challengeSecrets, receiptKey } = options.secrets
  const { baseUrl } = options.config.service
  const tally = createTally()
  const claims: Claims = new Map()
  const terms = {
    tally,
    claims,
    settlement: withDeliveries(settlement, registry),
    challengeSecrets,
    receiptKey,
    realm: new URL(baseUrl).hostname,
    baseUrl,
    now,
  }
  const waitMs = () => current.config.service.settleWaitSeconds * 1000
  const quoter = startQuoter(base, money, terms)
  const paywall = createPaywall({
    ...terms,
    sponsor: sponsoring.approvals,
    quoter,
    answers: await createAnswers(base.ledger.answers, options.answersMaxBytes),
    transferRateMin: {
      stalledMax: options.config.service.stalledStreamsMax,
      reclaim: createReclaim(collect),
      ...options.transferRateMin,
    },
    heldMaxBytes: options.config.service.bufferedMaxBytes,
    settleWaitMs: waitMs,
    symbolOf: (id) => current.config.networks.find((each) => each.id === id)?.asset.symbol,
    log,
  })
  const receiptAddress = Crypto.addressOf(receiptKey)
  const lookup = createLookup({
    settlement,
    tokens: createTokens(challengeSecrets),
    issuer: { key: receiptKey, address: receiptAddress },
    now,
  })
  const exchange = openMarket(options.config, {
    read: settlement.read,
    now,
    timeoutMs: options.marketTimeoutMs,
  })
  const startedStock =
    exchange &&
    startStock({
      ...terms,
      orders: base.ledger.orders,
      settlement,
      quoter,
      exchange,
      refundsMax: options.refundsMax,
      laterMs: options.orderRetryMs,
      meter: registry,
      sponsor: sponsoring.approvals,
      stockBaseUrl: options.config.service.stockBaseUrl,
      waitMs,
      receiptAddress,
      relayerKeys: options.secrets.relayerKeys,
      log,
    })
  base.onFailure(() => startedStock?.desk.stop())
  const isPlausible = createPlausibility(terms)
  const hours = startHours({ ledger: base.ledger.sales, tally, now })
  base.onFailure(hours.stop)
  return { paywall, claims, isPlausible, exchange, startedStock, lookup, hours, receiptAddress }
}

type Terms = Omit<
  Parameters<typeof createQuoter>[0],
  'whyNot' | 'facilitators' | 'takesApprovals' | 'gasSponsor' | 'salt'
>

function startQuoter(base: Base, { settlement, sponsoring }: Money, terms: Terms): Quoter {
  const { stockBaseUrl } = base.options.config.service
  showChallenges(base.registry, terms.tally)
  return createQuoter({
    ...terms,
    whyNot: settlement.whyNot,
    facilitators: settlement.authorizations.facilitators,
    takesApprovals: sponsoring.approvals !== undefined,
    gasSponsor: { url: `${stockBaseUrl}/api/gas/sponsor`, networks: sponsoring.networks },
    salt: salts(),
  })
}
