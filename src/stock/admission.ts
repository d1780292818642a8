import type { Address } from 'viem'
import type { RowsRefusal } from '../../db/Ledger'
import type { OrderQuota } from '../../db/OrderLedger'
import { RpcFault } from '../chain/client'
import type { NetworkConfig, Stock } from '../config/Config'
import * as Amount from '../protocol/Amount'
import * as Problem from '../protocol/Problem'
import type { Settlement } from '../settlement/settlement'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import { refundGas, swapGas } from './jobs'
import type { Market } from './market'
import { idSince } from './Order'
import type { Snapshot } from './Snapshot'
import { problemOf } from './Verdict'

/** Checks before money moves, except that of the buyer's credential. */
export type Admission = {
  /** Throws ProblemError, 400, for an account that would keep or lose the shares. */
  assertRecipient(recipient: Address): void
  /** Throws ProblemError, 503, for a desk that can neither swap nor refund. */
  assertReady(): Promise<void>
  /** Throws ProblemError, 429, for a payer with too many refunded orders: each costs gas. */
  assertRefundQuota(payer: Address): Promise<void>
  /**
   * Throws ProblemError, 429, for an order with a minimum of its own when too many orders of the
   * payer are open. The limit is that of refunds, because the first filled order can cause a refund
   * of each.
   */
  assertOpenOrderQuota(
    payer: Address,
    terms: Pick<Instrument.Terms, 'minimumAtomic'>,
  ): Promise<void>
  /**
   * The same quota for the commit that writes the order. Only there is the payer verified: before,
   * any client may present orders in the payer's name. Undefined for an order without a minimum of
   * its own.
   */
  openOrderQuota(
    payer: Address,
    terms: Pick<Instrument.Terms, 'minimumAtomic'>,
  ): OrderQuota | undefined
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
  desk: Pick<Desk, 'refundsOf' | 'open' | 'underWay'>
  /** Refunds that a payer may have in an hour; 10 by default. */
  refundsMax?: number | undefined
  now: () => number
}

const hourMs = 60 * 60 * 1000
/** Most gas of the swap and the refund of an order together. */
const usedGas = 400_000n

export function createAdmission(options: AdmissionOptions): Admission {
  const { settlement, stock, network, own, refundsMax = 10 } = options
  const { asset } = network
  /** Nodes require the whole limit of a transaction in advance; open transactions use less. */
  const neededWei = async () => {
    const gas = swapGas + refundGas + BigInt(await options.desk.open()) * usedGas
    return gas * settlement.fees(network.id).maxFeeWei
  }
  return {
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
    async assertRefundQuota(payer) {
      if ((await options.desk.refundsOf(payer, options.now() - hourMs)) < refundsMax) return
      const detail =
        'Too many orders of this payer were refunded in the last hour: wait for Retry-After.'
      throw Problem.of('rate-limited', detail, { headers: { 'retry-after': '600' } })
    },
    async assertOpenOrderQuota(payer, { minimumAtomic }) {
      if (minimumAtomic === undefined) return
      const refunds = await options.desk.refundsOf(payer, options.now() - hourMs)
      if (refunds + (await options.desk.underWay(payer)) >= refundsMax) throw tooManyOpen()
    },
    openOrderQuota(payer, { minimumAtomic }) {
      if (minimumAtomic === undefined) return undefined
      const since = idSince(options.now() - hourMs)
      return { payer, since, max: refundsMax }
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

/**
 * The problem for a buyer whose order was not written; undefined when the buyer did not cause it.
 */
export function problemOfRows(reason: RowsRefusal): Problem.ProblemError | undefined {
  return reason === 'order-quota' ? tooManyOpen() : undefined
}

function tooManyOpen(): Problem.ProblemError {
  const detail =
    'Too many orders of this payer that name minimumShares are under way: wait for Retry-After.'
  return Problem.of('rate-limited', detail, { headers: { 'retry-after': '10' } })
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

function unavailable(cause: unknown): never {
  if (!(cause instanceof RpcFault)) throw cause
  const headers = { 'retry-after': '2' }
  throw Problem.of('not-ready', 'The network gives no answer now; try again.', { headers, cause })
}
