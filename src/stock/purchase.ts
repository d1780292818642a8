import type { Address } from 'viem'
import type { Rows, RowsRefusal } from '../../db/Ledger'
import type { Order } from '../../db/Order'
import type { NewOrder, OrderQuota } from '../../db/OrderLedger'
import type { Payment, Protocol } from '../../db/Payment'
import type { NetworkConfig, Stock } from '../config/Config'
import {
  failureHeaders,
  type Issuer,
  signReceipt,
  successHeaders,
} from '../paywall/answer/receipts'
import {
  assertContinues,
  type Checkout,
  type CheckoutOptions,
  type Product,
  type Sale,
  buy as sell,
} from '../paywall/checkout'
import { fingerprint, type Presented, peek } from '../paywall/credential'
import * as Denial from '../paywall/Denial'
import type { Item } from '../paywall/offer/Item'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import type * as Network from '../protocol/Network'
import * as Problem from '../protocol/Problem'
import { dayMs, hourMs } from '../protocol/Time'
import type { Transfer } from '../protocol/Transfer'
import type { Settlement } from '../settlement/settlement'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import type { Market } from './market'
import * as Orders from './Order'
import * as Snapshot from './Snapshot'
import { refundGas, swapGas } from './steps'

/** A request to `POST /api/stock/buy`. */
export type OrderRequest = {
  terms: Instrument.Terms
  /** Absolute, with its query, as requested. */
  url: string
  headers: Headers
  presented: Presented
  requestId: string
  /** Address of the client (http/client.ts). */
  client: string
}

export type PurchaseOptions = CheckoutOptions & {
  desk: Desk
  /** For unpaid requests, which may share a snapshot. */
  market: Market
  /** For paid requests, so that they do not wait behind free ones. */
  paidMarket: Market
  stock: Stock
  network: NetworkConfig
  /** Accounts of this service, which receive nothing. */
  own: readonly Address[]
  /** Absolute, without a trailing slash. */
  baseUrl: string
  orderResponse: OrderResponse
  /** Refunds that a payer may have in an hour. */
  refundsMax?: number | undefined
  /** Longest wait (ms) of a buyer, for settlement and swap together. */
  waitMs: () => number
}

export type Purchase = {
  /** The 402, or the state of the order. Throws ProblemError. */
  buy(incoming: OrderRequest): Promise<Response>
  /** Number of waiting buyers. */
  inFlight(): number
}

/** A request with a credential. `deadline`: when its buyer stops waiting, unix ms. */
type OrderSale = Sale & OrderRequest & { deadline: number }

type Parts = PurchaseOptions & { admission: Admission; items: Items }

/** Takes orders: makes all checks before money moves, and answers with the state of the order. */
export function createPurchase(options: PurchaseOptions): Purchase {
  const { network, desk, baseUrl, now } = options
  const items = createItems({ network, payTo: desk.address, baseUrl })
  const parts = { ...options, admission: createAdmission(options), items }
  const shop = { ...options, product: createOrderProduct(parts), keys: new Set<string>() }
  let active = 0

  async function buy(incoming: OrderRequest): Promise<Response> {
    const { presented } = incoming
    if (presented.kind === 'none') return ask(parts, incoming)
    if (presented.kind === 'redeem') {
      throw Problem.of('invalid-redeem-token', 'Orders are not redeemed: read the order instead.')
    }
    return sell(shop, { ...saleOf(parts, incoming), deadline: now() + options.waitMs() })
  }

  return {
    inFlight: () => active,
    buy(incoming) {
      active++
      return buy(incoming).finally(() => active--)
    },
  }
}

/** The 402 with its quote. Refuses before payment what would be refused after it. */
async function ask(parts: Parts, incoming: OrderRequest): Promise<Response> {
  const { admission, market, network } = parts
  const { recipient } = incoming.terms
  if (recipient !== undefined) admission.assertRecipient(recipient)
  await admission.assertReady()
  const shown = await admission.quote(market, incoming.terms, { recipient, fresh: false })
  await admission.assertRefundShare(incoming.terms, shown)
  const { snapshot, floorAtomic } = shown
  const minimum = {
    minimumShares: Amount.toDecimal(floorAtomic, Instrument.shareDecimals),
    minimumSharesAtomic: String(floorAtomic),
  }
  const quote = { ...quoteOf(snapshot, market, network.asset), ...minimum }
  return parts.quoter(saleOf(parts, incoming), { members: { quote } })
}

function saleOf({ items, stock, baseUrl }: Parts, incoming: OrderRequest): Sale & OrderRequest {
  const { terms } = incoming
  return {
    ...incoming,
    item: items.of(terms, Instrument.totalOf(stock, terms.usdgAtomic)),
    // The parameters are in the query: no body is read.
    digest: undefined,
    purpose: {
      product: 'desk',
      merchant: '',
      route: buyPath,
      resource: `${baseUrl}${buyPath}`,
    },
  }
}

type Agreed = Admitted & { recipient: Address }

function createOrderProduct(parts: Parts): Product<OrderSale> {
  const { desk, network, now, orderResponse, quoter } = parts
  const leftMs = ({ deadline }: OrderSale) => Math.max(0, deadline - now())
  return {
    challenge: quoter,
    fingerprintOf: ({ terms }, { payer }) => fingerprintOf(terms, payer),
    waitMs: leftMs,
    peek: ({ presented }) => peek(presented, network),
    readmit: (checkout, payment) => assertOrdered(desk, checkout, payment),
    admit: async (checkout) => rowsOf(parts, checkout, await admit(parts, checkout)),
    refusalOf: problemOfRows,
    async fulfil({ sale, by, claim }, { payment }) {
      // The order is written: other requests with this credential may wait for it, too.
      claim.release()
      // Read it again: when the money was known before, the rows of this request are not written.
      const { id } = await orderOf(desk, payment)
      desk.drive(id)
      const order = await desk.wait(id, isOver, leftMs(sale))
      const current = (await parts.settlement.findById(order.paymentId)) ?? payment
      const response = orderResponse.respond(order, current, payment.purpose.protocol)
      if (by === 'key') response.headers.set('idempotency-replayed', 'true')
      return response
    },
    async explain({ presentation }, problem) {
      if (problem.status === 402) return problem
      const known = await parts.settlement.find(presentation.transfer)
      const order = known && (await desk.findByPayment(known.id))
      return order === undefined ? problem : orderResponse.withOrder(problem, order)
    },
  }
}

async function orderOf(desk: Desk, payment: Payment): Promise<Order> {
  const order = await desk.findByPayment(payment.id)
  if (order === undefined) throw new Error(`payment ${payment.id} has no order`)
  return order
}

/** A returning request for an order: the same terms are accepted, others are refused. */
async function assertOrdered(
  desk: Desk,
  { by, sale, presentation, fingerprint, key }: Checkout<OrderSale>,
  payment: Payment,
): Promise<void> {
  const { product, fingerprint: paidFor, protocol } = payment.purpose
  if (by === 'key') {
    if (paidFor !== fingerprint) throw Denial.keyConflict('was used for another order')
    return
  }
  if (product !== 'desk' || (await desk.findByPayment(payment.id)) === undefined) {
    throw Denial.mismatch('The credential has paid for something else.')
  }
  if (paidFor !== fingerprint) throw Denial.mismatch('The credential has paid for another order.')
  if (sale.presented.kind !== protocol) {
    throw Denial.mismatch('The credential has paid in the other protocol.')
  }
  assertContinues(payment, { presentation, key })
}

/** Makes all checks before money moves. */
async function admit(
  { admission, paidMarket }: Parts,
  { sale, presentation }: Checkout<OrderSale>,
): Promise<Agreed> {
  const { terms } = sale
  const { payer } = presentation.transfer
  const recipient = terms.recipient ?? payer
  admission.assertRecipient(recipient)
  admission.assertRecipient(payer)
  await admission.assertQuota(payer)
  await admission.assertReady()
  const admitted = await admission.quote(paidMarket, terms, { recipient, fresh: true })
  await admission.assertRefundShare(terms, admitted)
  return { ...admitted, recipient }
}

/** The rows of the order, which are written with its payment. */
function rowsOf(
  { admission, network, now }: Parts,
  { sale, presentation }: Checkout<OrderSale>,
  agreed: Agreed,
): Rows {
  const { terms } = sale
  const { transfer } = presentation
  const id = Orders.newId(now(), crypto.getRandomValues(new Uint8Array(10)))
  const agreement = { ...terms, ...agreed, network: network.id }
  return {
    order: newOrder(id, transfer, agreement, now()),
    quota: admission.quotaOf(transfer.payer, terms, agreed),
  }
}

/** Whether the order of a confirmed payment no longer changes by itself. A failed one continues. */
function isOver({ state }: Order): boolean {
  return state === 'delivered' || state === 'refunded' || state === 'held'
}

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

export type Admitted = { snapshot: Snapshot.Snapshot; quotedAtomic: bigint; floorAtomic: bigint }

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
        .catch(Snapshot.unavailable)
      const verdict = market.judge(snapshot)
      if (!verdict.ok) throw Snapshot.problemOf(verdict)
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
        since: Orders.idSince(now() - hourMs),
        max: refundsMax,
        all: all && { ...all, since: Orders.idSince(all.since) },
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
function priceOf({ token, minimumAtomic }: Instrument.Terms, { sharesAtomic }: Snapshot.Snapshot) {
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

/** What is sold: one item for each combination of parameters, because the price depends on them. */
export type Items = { of(terms: Instrument.Terms, totalAtomic: bigint): Item }

/** Items that are kept, the newest ones, with the constants of their 402. */
const keptMax = 500

/** RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset. */
const rateLimitBytes = 90

/**
 * Items of the desk. The id contains the terms, so that an MPP challenge for one order does not pay
 * for another stock or recipient.
 */
export function createItems(options: {
  network: NetworkConfig
  payTo: Address
  baseUrl: string
}): Items {
  const { network, payTo, baseUrl } = options
  const kept = new Map<string, Item>()
  return {
    of({ token, usdgAtomic, recipient, minimumAtomic }, totalAtomic) {
      const terms = [token.symbol, usdgAtomic, recipient ?? '', minimumAtomic ?? ''].join(' ')
      const known = kept.get(terms)
      if (known !== undefined) return known
      const offers = [{ network, payTo, amountAtomic: totalAtomic }]
      const item: Item = {
        id: `desk:POST /api/stock/buy ${terms}`,
        merchant: 'stock',
        route: '/api/stock/buy',
        method: 'POST',
        resource: {
          url: `${baseUrl}/api/stock/buy`,
          description: `Tokenized stock ${token.symbol}`,
          mimeType: 'application/json',
        },
        offers,
        mppOffers: offers,
        besideBytes: rateLimitBytes,
        extensions: [],
        product: 'desk',
      }
      const [oldest] = kept.keys()
      if (kept.size >= keptMax && oldest !== undefined) kept.delete(oldest)
      kept.set(terms, item)
      return item
    },
  }
}

/** The terms of an order. */
export type Agreement = Admitted &
  Pick<Instrument.Terms, 'token' | 'usdgAtomic'> & { recipient: Address; network: Network.Id }

/** Canonical text of the terms, independent of the spelling in the request. */
export function fingerprintOf(terms: Instrument.Terms, payer: Address): string {
  const { token, usdgAtomic, recipient = payer, minimumAtomic = 0n } = terms
  const query = new URLSearchParams({
    symbol: token.symbol,
    usdg: String(usdgAtomic),
    recipient,
    minimumShares: String(minimumAtomic),
  })
  return fingerprint('POST', buyPath, `?${query}`, {})
}

/** The new order of a payer, to be written with its payment. `now`: unix ms. */
function newOrder(
  id: string,
  { payer, amountAtomic: totalAtomic }: Pick<Transfer, 'payer' | 'amountAtomic'>,
  agreed: Agreement,
  now: number,
): NewOrder {
  const { token, usdgAtomic, recipient, quotedAtomic, floorAtomic, network } = agreed
  return {
    id,
    network,
    symbol: token.symbol,
    token: token.address,
    pool: token.pool,
    poolFee: token.fee,
    payer,
    recipient,
    usdgAtomic,
    totalAtomic,
    quotedAtomic,
    floorAtomic,
    createdAt: now,
  }
}

/** Answers with the state of an order. */
export type OrderResponse = {
  /** The public fields of the order. */
  toJson(order: Order): Readonly<Record<string, unknown>>
  /**
   * The answer to the buyer: 200 when delivered, 202 while it is not decided. Throws ProblemError:
   * 502 with the refund, 503 while the payment is not confirmed, 402 when it never was.
   */
  respond(order: Order, payment: Payment, protocol: Protocol): Response
  /** Adds the state of the order to a problem. */
  withOrder(problem: Problem.ProblemError, order: Order): Problem.ProblemError
}

export type OrderResponseOptions = {
  /** Absolute, without a trailing slash. */
  baseUrl: string
  assetDecimals: number
  issuer: Issuer
  now: () => number
}

export const buyPath = '/api/stock/buy'
export const orderPath = '/api/stock/order'

export function createOrderResponse(options: OrderResponseOptions): OrderResponse {
  const { baseUrl, assetDecimals, issuer, now } = options
  const units = { assetDecimals, tokenDecimals: Instrument.shareDecimals }
  return { toJson, respond, withOrder }

  function toJson(order: Order): Readonly<Record<string, unknown>> {
    return Orders.toJson(order, units)
  }

  function respond(order: Order, payment: Payment, protocol: Protocol): Response {
    const { refundTx, state } = order
    if (refundTx !== undefined) throw undelivered(order, refundTx, payment, protocol)
    if (state === 'failed') {
      throw Denial.verificationFailed('settlement_failed', 'The transfer did not happen.')
    }
    // Sign no receipt for money that only one of two nodes shows.
    if (state === 'settling' || order.heldReason === 'settlement-disputed') {
      throw withOrder(Denial.unpaid({ kind: 'pending', payment }), order)
    }
    const isDelivered = state === 'delivered'
    const receipt = signReceipt(payment, issuer, now(), { order: order.id })
    const headers = {
      'cache-control': 'private, no-store',
      location: urlOf(order),
      ...(isDelivered ? {} : { 'retry-after': '2' }),
      ...successHeaders(payment, { protocol }, issuer, receipt),
    }
    return Response.json(toJson(order), { status: isDelivered ? 200 : 202, headers })
  }

  /** The refund is open or confirmed: the answer names its transaction. */
  function undelivered(
    order: Order,
    refundTx: string,
    payment: Payment,
    protocol: Protocol,
  ): Problem.ProblemError {
    const detail =
      order.state === 'refunded'
        ? 'The shares could not be delivered; the payment was refunded.'
        : 'The shares could not be delivered; the refund is not confirmed yet. Read orderUrl until it is.'
    const { transaction, transfer } = payment
    const failure = { code: 'delivery-failed', members: { reason: 'delivery_failed', transaction } }
    const headers = protocol === 'x402' ? failureHeaders(failure, transfer) : {}
    const members = { reason: order.refundReason, transaction, refundTx }
    return withOrder(Problem.of('delivery-failed', detail, { headers, members }), order)
  }

  /** RFC 9457 uses `status` itself, so the state of the order is `orderStatus`. */
  function withOrder(problem: Problem.ProblemError, order: Order): Problem.ProblemError {
    const members = {
      ...problem.members,
      orderStatus: order.state,
      orderUrl: urlOf(order),
      order: toJson(order),
    }
    return new Problem.ProblemError({ ...problem, members, cause: problem.cause })
  }

  function urlOf({ id }: Order): string {
    return `${baseUrl}${orderPath}/${id}`
  }
}

/**
 * The quote of a purchase of this amount. Throws ProblemError when the purchase would be refused.
 */
export function quoteOf(
  snapshot: Snapshot.Snapshot,
  market: Pick<Market, 'judge' | 'stock'>,
  asset: Asset,
) {
  const verdict = market.judge(snapshot)
  if (!verdict.ok) throw Snapshot.problemOf(verdict)
  const { token, usdgAtomic, sharesAtomic, priceAtomic, decimals } = snapshot
  // A verdict permits only snapshots that have them.
  if (sharesAtomic === undefined || priceAtomic === undefined || decimals === undefined) {
    throw new Error('a snapshot without a quote was accepted')
  }
  const totalAtomic = Instrument.totalOf(market.stock, usdgAtomic)
  const minimumAtomic = Instrument.floorOf(token, sharesAtomic)
  const usdg = (atomic: bigint) => Amount.toDecimal(atomic, asset.decimals)
  const shares = (atomic: bigint) => Amount.toDecimal(atomic, decimals)
  return {
    symbol: token.symbol,
    usdg: usdg(usdgAtomic),
    fee: usdg(totalAtomic - usdgAtomic),
    total: usdg(totalAtomic),
    totalAtomic: String(totalAtomic),
    estimatedShares: shares(sharesAtomic),
    estimatedSharesAtomic: String(sharesAtomic),
    minimumShares: shares(minimumAtomic),
    minimumSharesAtomic: String(minimumAtomic),
    price: usdg(priceAtomic),
    multiplier: multiplierOf(snapshot),
    slippageBps: token.slippageBps,
    blockNumber: Number(snapshot.blockNumber),
    quotedAt: new Date(snapshot.readAt).toISOString(),
    ...warningsOf(verdict.warnings),
  }
}

/** ERC-8056: underlying shares per token, for display. Amounts are always of tokens. */
export function multiplierOf({ multiplierE18 }: Snapshot.Snapshot): string | null {
  return multiplierE18 === undefined ? null : Amount.toDecimal(multiplierE18, 18)
}

export function warningsOf(warnings: readonly Snapshot.Warning[]) {
  return warnings.length === 0 ? {} : { warnings }
}
