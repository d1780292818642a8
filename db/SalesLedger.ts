import type { Address } from 'viem'
import type * as Network from '../src/protocol/Network'

/** Time from `from` to before `to`, unix ms. */
export type Span = { from: number; to: number }

/**
 * Whose money a payment is. `sale`: a buyer's. `own`: an account of this service paid. `facilitator`:
 * another server's sale, settled for it.
 */
export type SalesClass = 'sale' | 'own' | 'facilitator'

/** What figures of sales belong to. A stock order belongs to the merchant `stock`. */
export type SalesKey = {
  class: SalesClass
  network: Network.Id
  asset: Address
  merchant: string
  route: string
  /** Undefined when the figures are not by payer. */
  payer: Address | undefined
}

/** Figures of the payments of a key that arrived in a span. Every amount is atomic. */
export type SalesFigures = {
  /** Confirmed payments. `paid` is the sum of delivered, undelivered and refunded. */
  payments: number
  paidAtomic: bigint
  deliveredAtomic: bigint
  undelivered: number
  undeliveredAtomic: bigint
  /** The part of the undelivered whose buyers can still fetch the answer. */
  redeemable: number
  redeemableAtomic: bigint
  /** The part of the undelivered that is stock orders which have not ended. */
  openOrders: number
  refundedAtomic: bigint
  /** The part of the delivered that was swapped for stock. */
  swappedAtomic: bigint
  /** Payments that are sent and not decided, and charges that are not sent yet. */
  pending: number
  pendingAtomic: bigint
  /** Charges by use that could never be settled. */
  lost: number
  lostAtomic: bigint
  /**
   * Cost of the included transactions of all payments, confirmed or not: an equal part of each
   * batch, and the swaps and refunds of orders.
   */
  gasWei: bigint
  /** Included transactions whose cost an earlier version did not store, once for each payment. */
  unknownGas: number
}

export type SalesRow = SalesKey & SalesFigures

/** Transactions without a payment or an order: grants, approves, cancelled account nonces. */
export type OtherGas = { network: Network.Id; kind: string; gasWei: bigint; unknownGas: number }

/** Requests of a route: without a credential, paid, and refused or failed ones with a credential. */
export type RequestCounts = {
  merchant: string
  route: string
  asked: number
  paid: number
  failed: number
}

/** Figures of one span, all of one state of the database. */
export type SalesOfSpan = {
  rows: readonly SalesRow[]
  otherGas: readonly OtherGas[]
  /** Of the whole hours that the span is in. */
  requests: readonly RequestCounts[]
}

export type SalesQuery = {
  byPayer: boolean
  /** Decides what is redeemable: unix ms, and the attempts after which an answer is not. */
  redeemable: { now: number; attemptsMax: number; cutAttemptsMax: number }
}

/** An asset of a network; `coinUsd` is the price of the native coin, as a decimal. */
export type AssetRow = {
  network: Network.Id
  address: Address
  networkName: string
  symbol: string
  decimals: number
  coinUsd: string
}

export type SalesReads = {
  /**
   * Figures of what arrived in a span: the time in the id of a payment. The read ends before it
   * resolves. Ask for short spans, such as an hour: while it is read, the database's log cannot be
   * written back, and within the service nothing else runs.
   */
  ofSpan(span: Span, query: SalesQuery): Promise<SalesOfSpan>
  /** Unix ms before which there are no figures; undefined when there are none at all. */
  firstAt(): Promise<number | undefined>
  /** The newest description first. */
  assets(): Promise<readonly AssetRow[]>
}

export type SalesLedger = SalesReads & {
  /**
   * Adds to the counts of an hour (unix ms of its begin), and deletes hours that began before
   * `keptFrom`. Does not wait for the disk: a power loss may undo it until the next other commit.
   */
  addRequests(hour: number, counts: readonly RequestCounts[], keptFrom: number): Promise<void>
  /** Keeps the accounts and the assets of a configuration beside those of earlier ones. */
  describe(input: {
    accounts: readonly Address[]
    assets: readonly AssetRow[]
    now: number
  }): Promise<void>
}
