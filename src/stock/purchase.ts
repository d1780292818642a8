import type { Address } from 'viem'
import type { RowsRefusal } from '../../db/Ledger'
import type { Order } from '../../db/Order'
import type { NewOrder, OrderLedger, OrderQuota } from '../../db/orders'
import type { Payment } from '../../db/Payment'
import type { NetworkConfig, Stock } from '../config/Config'
import { failureHeaders, type Receipts } from '../paywall/answer/receipts'
import {
  assertContinues,
  buy,
  type Checkout,
  type CheckoutOptions,
  type Product,
  type Sale,
  type Shop,
} from '../paywall/checkout'
import { fingerprint, peek } from '../paywall/credential'
import * as Denial from '../paywall/Denial'
import type { Item } from '../paywall/offer/Item'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Problem from '../protocol/Problem'
import { dayStart, hourMs } from '../protocol/Time'
import { transferGas } from '../settlement/read/own-transfer'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import type { Market } from './market'
import * as Orders from './Order'
import * as Snapshot from './Snapshot'
import { swapGas } from './steps'

/** A request to `POST /api/stock/buy`. */
type OrderRequest = Pick<
  Sale,
  'url' | 'headers' | 'presented' | 'requestId' | 'client' | 'clientKind'
> & {
  terms: Instrument.Terms
}

export type OrderShopOptions = CheckoutOptions & {
  orders: Pick<OrderLedger, 'countRefunds' | 'countUnderWay' | 'countRefundable' | 'countOpen'>
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
  /** Signer of receipts. */
  receipts: Receipts
  /** Refunds that a payer may have in an hour; 10 by default. */
  refundsMax?: number | undefined
  /** Longest wait (ms) of a buyer, for settlement and swap together. */
  waitMs: () => number
}

/** A request with a credential. `deadline`: when its buyer stops waiting, unix ms. */
type OrderSale = Sale & OrderRequest & { deadline: number }

type Parts = OrderShopOptions & {
  /** The items of the newest terms, with the constants of their 402. */
  items: Map<string, Item>
}

/** Takes orders: makes all checks before money moves, and answers with the state of the order. */
export type OrderShop = Parts &
  Shop<OrderSale> & {
    /** Number of waiting buyers. */
    inFlight: number
  }

/** Creates the sale of orders. */
export function createOrderShop(options: OrderShopOptions): OrderShop {
  const parts = { ...options, items: new Map() }
  return { ...parts, product: createOrderProduct(parts), keys: new Set(), inFlight: 0 }
}

/** The 402, or the state of the order. Throws ProblemError. */
export async function buyShares(purchase: OrderShop, incoming: OrderRequest): Promise<Response> {
  const { kind } = incoming.presented
  purchase.inFlight++
  try {
    if (kind === 'none') return await answerQuote(purchase, incoming)
    if (kind === 'redeem') {
      throw Problem.of('invalid-redeem-token', 'Orders are not redeemed: read the order instead.')
    }
    const deadline = purchase.now() + purchase.waitMs()
    return await buy(purchase, { ...saleOf(purchase, incoming), deadline })
  } finally {
    purchase.inFlight--
  }
}

/** The 402 with its quote. Refuses before payment what would be refused after it. */
async function answerQuote(parts: Parts, incoming: OrderRequest): Promise<Response> {
  const { quoted, floorAtomic } = await admit(parts, incoming.terms, undefined)
  const quote = {
    ...quoteOf(quoted, parts.stock, parts.network.asset),
    minimumShares: Amount.toDecimal(floorAtomic, Orders.shareDecimals),
    minimumSharesAtomic: String(floorAtomic),
  }
  return parts.quoter(saleOf(parts, incoming), { members: { quote } })
}

/** The quote of a purchase of this amount. */
export function quoteOf(quoted: Snapshot.Quoted, stock: Pick<Stock, 'feeBps'>, asset: Asset) {
  const { token, usdgAtomic, sharesAtomic, priceAtomic, decimals } = quoted
  const totalAtomic = Instrument.totalOf(stock, usdgAtomic)
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
    multiplier: Snapshot.multiplierOf(quoted),
    slippageBps: token.slippageBps,
    blockNumber: Number(quoted.blockNumber),
    quotedAt: new Date(quoted.readAt).toISOString(),
    ...Snapshot.warningsOf(quoted.warnings),
  }
}

function saleOf(parts: Parts, incoming: OrderRequest): Sale & OrderRequest {
  const resource = `${parts.baseUrl}${buyPath}`
  return {
    ...incoming,
    item: itemOf(parts, incoming.terms),
    // The parameters are in the query: no body is read.
    digest: undefined,
    purpose: { product: 'desk', merchant: '', route: buyPath, resource },
  }
}

export const buyPath = '/api/stock/buy'

/** How figures name what the desk sells. */
export const soldAs = { merchant: 'stock', route: buyPath }

/** Items that are kept, the newest ones. */
const keptMax = 500

/** RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset. */
const rateLimitBytes = 90

/**
 * What is sold: one item for each combination of parameters, because the price depends on them. The id
 * contains the terms, so that an MPP challenge for one order does not pay for another stock or
 * recipient.
 */
function itemOf(
  { items, network, desk, baseUrl, stock }: Parts,
  { token, usdgAtomic, recipient, minimumAtomic }: Instrument.Terms,
): Item {
  const terms = [token.symbol, usdgAtomic, recipient ?? '', minimumAtomic ?? ''].join(' ')
  const known = items.get(terms)
  if (known !== undefined) return known
  const amountAtomic = Instrument.totalOf(stock, usdgAtomic)
  const offers = [{ network, payTo: desk.address, amountAtomic }]
  const item: Item = {
    id: `desk:POST ${buyPath} ${terms}`,
    ...soldAs,
    method: 'POST',
    resource: {
      url: `${baseUrl}${buyPath}`,
      description: `Tokenized stock ${token.symbol}`,
      mimeType: 'application/json',
    },
    offers,
    mppOffers: offers,
    besideBytes: rateLimitBytes,
    extensions: [],
    product: 'desk',
  }
  const [oldest] = items.keys()
  if (items.size >= keptMax && oldest !== undefined) items.delete(oldest)
  items.set(terms, item)
  return item
}

function createOrderProduct(parts: Parts): Product<OrderSale> {
  const { desk, network, now, settlement } = parts
  const leftMs = ({ deadline }: OrderSale) => Math.max(0, deadline - now())
  return {
    challenge: parts.quoter,
    fingerprintOf: ({ terms }, { payer }) => fingerprintOf(terms, payer),
    waitMs: leftMs,
    peek: ({ presented }) => peek(presented, network),
    readmit: (checkout, payment) => assertOrdered(desk, checkout, payment),
    async admit({ sale: { terms }, presentation: { transfer } }) {
      const admitted = await admit(parts, terms, transfer.payer)
      return {
        order: newOrder(parts, terms, transfer, admitted),
        quota: quotaOf(parts, transfer.payer, terms, admitted),
      }
    },
    refusalOf,
    async fulfil({ sale, by, claim }, { payment }) {
      // The order is written: other requests with this credential may wait for it, too.
      claim.release()
      // Read it again: when the money was known before, the rows of this request are not written.
      const written = await desk.findByPayment(payment.id)
      if (written === undefined) throw new Error(`payment ${payment.id} has no order`)
      desk.drive(written.id)
      const order = await desk.wait(written.id, isOver, leftMs(sale))
      const current = (await settlement.findById(order.paymentId)) ?? payment
      const response = respond(parts, order, current)
      if (by === 'key') response.headers.set('idempotency-replayed', 'true')
      return response
    },
    async explain({ presentation }, problem) {
      if (problem.status === 402) return problem
      const known = await settlement.find(presentation.transfer)
      const order = known && (await desk.findByPayment(known.id))
      return order === undefined ? problem : withOrder(parts, problem, order)
    },
  }
}

/** Whether the order of a confirmed payment no longer changes by itself. A failed one continues. */
function isOver({ state }: Order): boolean {
  return state === 'delivered' || state === 'refunded' || state === 'held'
}

/** A returning request for an order: the same terms are accepted, others are refused. */
async function assertOrdered(
  desk: Desk,
  { by, sale, presentation, fingerprint: asked, key }: Checkout<OrderSale>,
  payment: Payment,
): Promise<void> {
  const { product, fingerprint: paidFor, protocol } = payment.purpose
  if (by === 'key') {
    if (paidFor !== asked) throw Denial.keyConflict('was used for another order')
    return
  }
  if (product !== 'desk' || (await desk.findByPayment(payment.id)) === undefined) {
    throw Denial.mismatch('The credential has paid for something else.')
  }
  if (paidFor !== asked) throw Denial.mismatch('The credential has paid for another order.')
  if (sale.presented.kind !== protocol) {
    throw Denial.mismatch('The credential has paid in the other protocol.')
  }
  assertContinues(payment, { presentation, key })
}

/** Canonical text of the terms, independent of the spelling in the request. */
function fingerprintOf(terms: Instrument.Terms, payer: Address): string {
  const { token, usdgAtomic, recipient = payer, minimumAtomic = 0n } = terms
  const query = new URLSearchParams({
    symbol: token.symbol,
    usdg: String(usdgAtomic),
    recipient,
    minimumShares: String(minimumAtomic),
  })
  return fingerprint('POST', buyPath, `?${query}`, {})
}

/** The order to be written with its payment. */
function newOrder(
  { network, now }: Parts,
  { token, usdgAtomic, recipient }: Instrument.Terms,
  { payer, amountAtomic: totalAtomic }: { payer: Address; amountAtomic: bigint },
  { quoted, floorAtomic }: Admitted,
): NewOrder {
  return {
    id: Orders.newId(now(), crypto.getRandomValues(new Uint8Array(10))),
    network: network.id,
    symbol: token.symbol,
    token: token.address,
    pool: token.pool,
    poolFee: token.fee,
    payer,
    recipient: recipient ?? payer,
    usdgAtomic,
    totalAtomic,
    quotedAtomic: quoted.sharesAtomic,
    floorAtomic,
    createdAt: now(),
  }
}

/** Most gas of the swap and the refund of an order together, or of its payment and the refund. */
const usedGas = 400_000n
/** Refunded orders of all payers may cost this part of the desk's gas of a day. */
const refundParts = 4n

type Admitted = { quoted: Snapshot.Quoted; floorAtomic: bigint }

/**
 * Makes all checks before money moves, except that of the credential. `payer`: undefined for a request
 * without one, which may share a snapshot. Throws ProblemError.
 */
async function admit(
  parts: Parts,
  terms: Instrument.Terms,
  payer: Address | undefined,
): Promise<Admitted> {
  const { desk, market, paidMarket } = parts
  const recipient = terms.recipient ?? payer
  if (recipient !== undefined) assertRecipient(parts, recipient)
  if (payer !== undefined) {
    assertRecipient(parts, payer)
    await assertQuota(parts, payer)
  }
  await assertReady(parts)
  const people = recipient === undefined ? [desk.address] : [desk.address, recipient]
  const isPaid = payer !== undefined
  const snapshot = await (isPaid ? paidMarket : market)
    .snapshotOf(terms.token, terms.usdgAtomic, { people, fresh: isPaid })
    .catch(Snapshot.unavailable)
  const quoted = Snapshot.assertOpen(snapshot, market.judge(snapshot))
  const { sharesAtomic } = quoted
  const floorAtomic = Instrument.floorOf(terms.token, sharesAtomic, terms.minimumAtomic)
  if (floorAtomic > sharesAtomic) {
    const shares = Amount.toDecimal(sharesAtomic, Orders.shareDecimals)
    const detail = `The pool gives ${shares} now, less than minimumShares: lower it, or wait.`
    throw Problem.of('below-minimum', detail, { members: { estimatedShares: shares } })
  }
  const admitted = { quoted, floorAtomic }
  const all = quotaOfAll(parts, terms, admitted)
  const isSpent = all && (await parts.orders.countRefundable(all.since)) >= all.max
  if (isSpent) throw shareSpent()
  return admitted
}

/** Throws ProblemError, 400, for an account that would keep or lose the shares. */
function assertRecipient({ stock, network, own }: Parts, recipient: Address): void {
  const reason = Instrument.refusalOf(recipient, { stock, asset: network.asset, own })
  if (reason === undefined) return
  const name = 'recipient'
  throw Problem.of('invalid-parameter', `Invalid: recipient ${reason}.`, {
    members: { invalidParams: [{ name, reason, in: 'query' }] },
  })
}

/**
 * Throws ProblemError, 429, for a payer with too many orders that were refunded or are under way:
 * each may cost gas for a refund, because the price can move while it is under way.
 */
async function assertQuota(parts: Parts, payer: Address): Promise<void> {
  const { orders, now, refundsMax = 10 } = parts
  const refunds = await orders.countRefunds(payer, Orders.idSince(now() - hourMs))
  if (refunds >= refundsMax) {
    const detail =
      'Too many orders of this payer were refunded in the last hour: wait for Retry-After.'
    throw Problem.of('rate-limited', detail, { headers: { 'retry-after': '600' } })
  }
  if (refunds + (await orders.countUnderWay(payer)) >= refundsMax) throw tooManyOpen()
}

/** Throws ProblemError, 503, for a desk that can neither swap nor refund. */
async function assertReady({ settlement, orders, desk, network: { id } }: Parts): Promise<void> {
  // Nodes require the whole limit of a transaction in advance; open transactions use less.
  const gas = swapGas + transferGas + BigInt(await orders.countOpen()) * usedGas
  const neededWei = gas * settlement.fees(id).maxFeeWei
  const status = settlement.status().find((each) => each.network === id)
  const account = status?.relayers.find((each) => each.relayer === desk.address)
  const { balanceWei } = account ?? {}
  const isPaid = balanceWei === undefined || balanceWei >= neededWei
  if (settlement.isReady(id) && account?.ready !== false && isPaid) return
  const detail = 'The stock desk cannot send transactions now; nothing is charged. Try again later.'
  throw Problem.of('not-ready', detail, { headers: { 'retry-after': '10' } })
}

/**
 * The quota of all payers, for an order with a tighter minimum than usual. Its payer can cause a refund
 * at no cost: any order that is filled before it moves the price below such a minimum. So refunds have
 * a share of the desk's gas of a day.
 */
function quotaOfAll(
  { settlement, network, now }: Parts,
  { token }: Instrument.Terms,
  { quoted, floorAtomic }: Admitted,
): OrderQuota['all'] {
  if (floorAtomic <= Instrument.floorOf(token, quoted.sharesAtomic)) return undefined
  const { baseFeeWei, maxTipWei } = settlement.fees(network.id)
  // At the gas price now. The budget is that of a UTC day.
  const costWei = usedGas * (baseFeeWei + maxTipWei) + 1n
  const max = Number(network.gasPerDayWei.desk / refundParts / costWei)
  return { since: Orders.idSince(dayStart(now())), max }
}

/**
 * Both quotas for the commit that writes the order. Only there is the payer verified: before, any
 * client may present orders in the payer's name.
 */
function quotaOf(
  parts: Parts,
  payer: Address,
  terms: Instrument.Terms,
  admitted: Admitted,
): OrderQuota {
  const { now, refundsMax: max = 10 } = parts
  const since = Orders.idSince(now() - hourMs)
  return { payer, since, max, all: quotaOfAll(parts, terms, admitted) }
}

/**
 * The problem for a buyer whose order was not written; undefined when the buyer did not cause it.
 */
function refusalOf(reason: RowsRefusal): Problem.ProblemError | undefined {
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

/** The public fields of an order. */
export function orderJson({ network }: Pick<Parts, 'network'>, order: Order) {
  return Orders.toJson(order, network.asset.decimals)
}

/**
 * The answer to the buyer: 200 when delivered, 202 while it is not decided. Throws ProblemError: 502
 * with the refund, 503 while the payment is not confirmed, 402 when it never was.
 */
function respond(parts: Parts, order: Order, payment: Payment): Response {
  const { refundTx, state } = order
  const { protocol } = payment.purpose
  if (refundTx !== undefined) throw undelivered(parts, order, refundTx, payment)
  if (state === 'failed') {
    throw Denial.verificationFailed('settlement_failed', 'The transfer did not happen.')
  }
  // Sign no receipt for money that only one of two nodes shows.
  if (state === 'settling' || order.heldReason === 'settlement-disputed') {
    throw withOrder(parts, Denial.unpaid({ kind: 'pending', payment }), order)
  }
  const isDelivered = state === 'delivered'
  const headers = {
    'cache-control': 'private, no-store',
    location: urlOf(parts, order),
    ...(isDelivered ? {} : { 'retry-after': '2' }),
    ...parts.receipts.headersOf(payment, { protocol, order: order.id }),
  }
  return Response.json(orderJson(parts, order), { status: isDelivered ? 200 : 202, headers })
}

/** The refund is open or confirmed: the answer names its transaction. */
function undelivered(
  parts: Parts,
  order: Order,
  refundTx: string,
  { transaction, transfer, purpose }: Payment,
): Problem.ProblemError {
  const detail =
    order.state === 'refunded'
      ? 'The shares could not be delivered; the payment was refunded.'
      : 'The shares could not be delivered; the refund is not confirmed yet. Read orderUrl until it is.'
  const failure = { code: 'delivery-failed', members: { reason: 'delivery_failed', transaction } }
  const headers = purpose.protocol === 'x402' ? failureHeaders(failure, transfer) : {}
  const members = { reason: order.refundReason, transaction, refundTx }
  return withOrder(parts, Problem.of('delivery-failed', detail, { headers, members }), order)
}

/**
 * Adds the state of the order to a problem. RFC 9457 uses `status` itself, so it is `orderStatus`.
 */
function withOrder(
  parts: Parts,
  problem: Problem.ProblemError,
  order: Order,
): Problem.ProblemError {
  const members = {
    ...problem.members,
    orderStatus: order.state,
    orderUrl: urlOf(parts, order),
    order: orderJson(parts, order),
  }
  return new Problem.ProblemError({ ...problem, members, cause: problem.cause })
}

function urlOf({ baseUrl }: Parts, { id }: Order): string {
  return `${baseUrl}/api/stock/order/${id}`
}
