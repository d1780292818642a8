import type { Address } from 'viem'
import type { Rows } from '../../db/Ledger'
import type { Order } from '../../db/Order'
import type { Payment } from '../../db/Payment'
import type { NetworkConfig, Stock } from '../config/Config'
import { type CheckoutOptions, buy as sell } from '../paywall/checkout'
import { mayContinue } from '../paywall/continuation'
import { peek } from '../paywall/credential'
import * as Denial from '../paywall/Denial'
import type { Presented } from '../paywall/extract'
import type { Checkout, Product, Sale } from '../paywall/Product'
import * as Amount from '../protocol/Amount'
import * as Problem from '../protocol/Problem'
import * as Agreement from './Agreement'
import { type Admission, type Admitted, createAdmission, problemOfRows } from './admission'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import { createItems, type Items } from './items'
import type { Market } from './market'
import { quoteOf } from './market-handlers'
import * as Orders from './Order'
import { buyPath, type OrderResponse } from './order-response'

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
    fingerprintOf: ({ terms }, { payer }) => Agreement.fingerprintOf(terms, payer),
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
  if (!mayContinue(payment, { presentation, key })) throw Denial.otherCredential()
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
    order: Agreement.orderOf(id, transfer, agreement, now()),
    quota: admission.quotaOf(transfer.payer, terms, agreed),
  }
}

/** Whether the order of a confirmed payment no longer changes by itself. A failed one continues. */
function isOver({ state }: Order): boolean {
  return state === 'delivered' || state === 'refunded' || state === 'held'
}
