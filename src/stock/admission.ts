import type { Address } from 'viem'
import type { RowsRefusal } from '../../db/Ledger'
import type { OrderQuota } from '../../db/OrderLedger'
import type { NetworkConfig, Stock } from '../config/Config'
import * as Amount from '../protocol/Amount'
import * as Problem from '../protocol/Problem'
import { dayMs, hourMs } from '../protocol/Time'
import type { Settlement } from '../settlement/settlement'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import { refundGas, swapGas } from './jobs'
import type { Market } from './market'
import { idSince } from './Order'
import type { Snapshot } from './Snapshot'
import { problemOf, unavailable } from './Verdict'

/** Checks before money moves, except that of the buyer's credential. */
export type Admission = {
  /** Throws ProblemError, 400, for an account that would keep or lose the shares. */
  assertRecipient(recipient: Address): void
  /** Throws ProblemError, 503, for a desk that can neither swap nor refund. */
  assertReady(): Promise<void>
  /**
   * Throws ProblemError, 429, for a payer with too many orders that were refunded or are under way:
   * each may cost gas for a refund, because the price can move while it is under way.
   */
  assertQuota(payer: Address): Promise<void>
  /**
   * Throws ProblemError, 503, for an order with a tighter minimum than usual when the refunds of all
   * payers have used their share of the desk's gas. Its payer can cause a refund at no cost: any order
   * that is filled before it moves the price below such a minimum.
   */
  assertRefundShare(terms: Instrument.Terms, admitted: Admitted): Promise<void>
  /**
   * Both quotas for the commit that writes the order. Only there is the payer verified: before, any
   * client may present orders in the payer's name.
   */
  quotaOf(payer: Address, terms: Instrument.Terms, admitted: Admitted): OrderQuota
  /** A snapshot at the market that permits the order. Throws ProblemError. */
  quote(market: Market, terms: Instrument.Terms, options: QuoteOptions): Promise<Admitted>
}

type QuoteOptions = { recipient: Address | undefined; fresh: boolean }

export type Admitted = { snapshot: Snapshot; quotedAtomic: bigint; floorAtomic: bigint }

export type AdmissionOptions = {
  settlement: Pick<Settlement, 'desk' | 'status' | 'isReady' | 'fees'>
  stock: Stock
  network: NetworkConfig
  /** Accounts of this service, which receive nothing. */
  own: readonly Address[]
  desk: Pick<Desk, 'refundsOf' | 'open' | 'underWay' | 'refundable'>
  /** Refunds that a payer may have in an hour; 10 by default. */
  refundsMax?: number | undefined
  now: () => number
}

/** Most gas of the swap and the refund of an order together, or of its payment and the refund. */
const usedGas = 400_000n
/** Refunded orders of all payers may cost this part of the desk's gas of a day. */
const refundParts = 4n

export function createAdmission(options: AdmissionOptions): Admission {
  const { settlement, stock, network, own } = options
  const { asset } = network
  /** Nodes require the whole limit of a transaction in advance; open transactions use less. */
  const neededWei = async () => {
    const gas = swapGas + refundGas + BigInt(await options.desk.open()) * usedGas
    return gas * settlement.fees(network.id).maxFeeWei
  }
  return {
    ...createQuotas(options),
    assertRecipient(recipient) {
      const reason = Instrument.refusalOf(recipient, { stock, asset, own })
      if (reason === undefined) return
      const name = 'recipient'
      throw Problem.of('invalid-parameter', `Invalid: recipient ${reason}.`, {
        members: { invalidParams: [{ name, reason, in: 'query' }] },
      })
    },
    async assertReady() {
      const neededNowWei = await neededWei()
      const status = settlement.status().find((each) => each.network === network.id)
      const account = status?.relayers.find((each) => each.relayer === settlement.desk)
      const { balanceWei } = account ?? {}
      const isPaid = balanceWei === undefined || balanceWei >= neededNowWei
      if (settlement.isReady(network.id) && account?.ready !== false && isPaid) return
      throw Problem.of(
        'not-ready',
        'The stock desk cannot send transactions now; nothing is charged. Try again later.',
        {
          headers: { 'retry-after': '10' },
        },
      )
    },
    async quote(market, terms, { recipient, fresh }) {
      const people = [settlement.desk, ...(recipient === undefined ? [] : [recipient])]
      const snapshot = await market
        .snapshotOf(terms.token, terms.usdgAtomic, { people, fresh })
        .catch(unavailable)
      const verdict = market.judge(snapshot)
      if (!verdict.ok) throw problemOf(verdict)
      return { snapshot, ...priceOf(terms, snapshot) }
    },
  }
}

/** How many orders of a payer, and of all payers, may end as refunds. */
function createQuotas(
  options: AdmissionOptions,
): Pick<Admission, 'assertQuota' | 'assertRefundShare' | 'quotaOf'> {
  const { settlement, network, desk, refundsMax = 10, now } = options
  /** How many refunded orders the share of a day pays for, at the gas price now. */
  const refundsOfAllMax = () => {
    const { baseFeeWei, maxTipWei } = settlement.fees(network.id)
    const costWei = usedGas * (baseFeeWei + maxTipWei) + 1n
    return Number(network.gasPerDayWei.desk / refundParts / costWei)
  }
  const quotaOfAll = (terms: Instrument.Terms, admitted: Admitted) => {
    const usualAtomic = Instrument.floorOf(terms.token, admitted.quotedAtomic)
    if (admitted.floorAtomic <= usualAtomic) return undefined
    // The budget is that of a UTC day.
    const since = now() - (now() % dayMs)
    return { since, max: refundsOfAllMax() }
  }
  return {
    async assertQuota(payer) {
      const refunds = await desk.refundsOf(payer, now() - hourMs)
      if (refunds >= refundsMax) {
        const detail =
          'Too many orders of this payer were refunded in the last hour: wait for Retry-After.'
        throw Problem.of('rate-limited', detail, { headers: { 'retry-after': '600' } })
      }
      if (refunds + (await desk.underWay(payer)) >= refundsMax) throw tooManyOpen()
    },
    async assertRefundShare(terms, admitted) {
      const all = quotaOfAll(terms, admitted)
      if (all && (await desk.refundable(all.since)) >= all.max) throw shareSpent()
    },
    quotaOf(payer, terms, admitted) {
      const all = quotaOfAll(terms, admitted)
      return {
        payer,
        since: idSince(now() - hourMs),
        max: refundsMax,
        all: all && { ...all, since: idSince(all.since) },
      }
    },
  }
}

/**
 * The problem for a buyer whose order was not written; undefined when the buyer did not cause it.
 */
export function problemOfRows(reason: RowsRefusal): Problem.ProblemError | undefined {
  if (reason === 'refund-share') return shareSpent()
  return reason === 'order-quota' ? tooManyOpen() : undefined
}

function tooManyOpen(): Problem.ProblemError {
  const detail =
    'Too many orders of this payer are under way or were refunded: wait for Retry-After.'
  return Problem.of('rate-limited', detail, { headers: { 'retry-after': '10' } })
}

function shareSpent(): Problem.ProblemError {
  const detail =
    'Refunds have used their share of the gas of today, so a minimumShares above the usual minimum ' +
    'is refused: leave it out, or try again after 0:00 UTC.'
  return Problem.of('not-ready', detail, { headers: { 'retry-after': '600' } })
}

/** Throws when the pool gives less than the buyer's minimum. */
function priceOf({ token, minimumAtomic }: Instrument.Terms, { sharesAtomic }: Snapshot) {
  if (sharesAtomic === undefined) throw new Error('a snapshot without a quote was accepted')
  const floorAtomic = Instrument.floorOf(token, sharesAtomic, minimumAtomic)
  if (floorAtomic > sharesAtomic) {
    const shares = Amount.toDecimal(sharesAtomic, Instrument.shareDecimals)
    throw Problem.of(
      'below-minimum',
      `The pool gives ${shares} now, less than minimumShares: lower it, or wait.`,
      {
        members: { estimatedShares: shares },
      },
    )
  }
  return { quotedAtomic: sharesAtomic, floorAtomic }
}
