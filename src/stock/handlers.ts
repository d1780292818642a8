import { Type } from '@sinclair/typebox'
import type { Address } from 'viem'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import { searchOf } from '../http/url'
import { extract } from '../paywall/credential'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import type { Asset } from '../protocol/Asset'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import type { Market } from './market'
import * as Orders from './Order'
import {
  buyPath,
  multiplierOf,
  type OrderResponse,
  type Purchase,
  quoteOf,
  warningsOf,
} from './purchase'
import * as Snapshot from './Snapshot'

export type OrderHandlersOptions = {
  desk: Desk
  purchase: Purchase
  orderResponse: OrderResponse
  stock: Stock
  network: Pick<NetworkConfig, 'asset'>
  service: Pick<
    Config['service'],
    'trustProxy' | 'quotePerMinute' | 'paidPerMinute' | 'stockBaseUrl'
  >
  rateLimit: RateLimit.RateLimit
  now: () => number
  requestId: () => string
  /** Address of the other end of the connection. */
  addressOf: (request: Request) => string | undefined
  /** False once the process stops: then nothing new is started. */
  accepts: () => boolean
}

/** `POST /api/stock/buy`, `GET /api/stock/order/{id}` and `GET /api/stock/orders`. */
export function createOrderHandlers(options: OrderHandlersOptions) {
  const { desk, orderResponse, stock, service, rateLimit, addressOf, now } = options

  const keyOf = (request: Request) => clientOf(request, addressOf(request), service.trustProxy)

  const limit = (name: string, request: Request, perMinute: number): Record<string, string> => {
    const verdict = rateLimit.take(`${name} ${keyOf(request)}`, perMinute, now())
    RateLimit.assertWithin(verdict)
    return RateLimit.headers(verdict)
  }

  const buy = async (request: Request): Promise<Response> => {
    if (!options.accepts()) throw Problem.of('not-ready', stopping)
    assertUnpacked(request.headers)
    const presented = extract(request.headers)
    const isPaid = presented.kind !== 'none'
    // A price costs calls to a node, and so does a credential.
    const limits = isPaid
      ? limit('paid', request, service.paidPerMinute)
      : limit('quote', request, service.quotePerMinute)
    const refusedPerMinute = Math.ceil(service.paidPerMinute * refusedShare)
    const refusedKey = `refused ${keyOf(request)}`
    if (isPaid) {
      const verdict = rateLimit.peek(refusedKey, refusedPerMinute, now())
      RateLimit.assertWithin(verdict, 'refused credentials')
    }
    const search = searchOf(request.url)
    const parsed = Instrument.parseTerms(new URLSearchParams(search), stock, options.network.asset)
    const response = await options.purchase.buy({
      terms: Instrument.assertTerms(parsed),
      url: `${service.stockBaseUrl}${buyPath}${search}`,
      headers: request.headers,
      presented,
      requestId: options.requestId(),
      client: keyOf(request),
    })
    if (isPaid && response.status === 402) rateLimit.take(refusedKey, refusedPerMinute, now())
    // A 402 has its own, shorter headers.
    const added: Record<string, string> =
      response.status === 402 ? limits : { ...corsHeaders, ...limits }
    for (const [name, value] of Object.entries(added)) {
      response.headers.set(name, value)
    }
    return response
  }

  const order = async (request: Request, id: string): Promise<Response> => {
    const headers = limit('orders', request, service.paidPerMinute)
    const found = Orders.isId(id) ? await desk.find(id) : undefined
    if (found === undefined) throw Problem.of('not-found', noOrder)
    return answer(orderResponse.toJson(found), headers)
  }

  const orders = async (request: Request): Promise<Response> => {
    const headers = limit('orders', request, service.paidPerMinute)
    const query = historyOf(new URLSearchParams(searchOf(request.url)))
    const found = await desk.history({ ...query, limit: query.limit + 1 })
    const page = found.slice(0, query.limit)
    const last = page.at(-1)
    const next = found.length > page.length && last !== undefined ? { next: last.id } : {}
    return answer({ orders: page.map(orderResponse.toJson), ...next }, headers)
  }

  return { buy, order, orders }
}

const noOrder = 'There is no such order; /api/stock/orders lists those of a payer.'
const stopping = 'The service is stopping: send the request again.'

/** Share of the credentials of an address in a minute that may be refused. */
const refusedShare = 0.1

/** Query of the history. */
export const historyQuery = Type.Object({
  payer: Type.Optional(
    Type.String({
      description: 'Orders of this address only.',
      pattern: '^0x[0-9a-fA-F]{40}$',
      fault: 'must be an address',
    }),
  ),
  limit: Type.Optional(
    Type.String({
      description: 'Most orders of a page; 20 by default.',
      pattern: '^(?:[1-9][0-9]?|100)$',
      fault: 'must be an integer from 1 to 100',
    }),
  ),
  before: Type.Optional(
    Type.String({
      description: 'Orders before this one: `next` of the page before.',
      pattern: Orders.idPattern,
      fault: 'must be the id of an order',
    }),
  ),
})

/** Throws ProblemError, 400 with everything that is wrong. */
function historyOf(query: URLSearchParams) {
  const unknown = 'is not a parameter here'
  const { values, wrong } = Schema.readQuery(historyQuery, query, { unknown })
  if (wrong.length > 0) throw Instrument.invalidQuery(wrong)
  const { payer, limit = '20', before } = values
  return { payer: AddressText.parse(payer), limit: Number(limit), before }
}

function answer(body: unknown, headers: Record<string, string>): Response {
  return Response.json(body, {
    headers: { ...corsHeaders, ...headers, 'cache-control': 'no-store' },
  })
}

export type MarketHandlersOptions = {
  market: Market
  asset: Asset
  /** The desk, to which purchases are paid. */
  payTo: Address
  service: Pick<Config['service'], 'trustProxy' | 'quotePerMinute'>
  rateLimit: RateLimit.RateLimit
  now: () => number
  /** Address of the other end of the connection. */
  addressOf: (request: Request) => string | undefined
}

/** Free routes, so limited for each address: `GET /api/stock/list` and `GET /api/stock/quote`. */
export function createMarketHandlers(options: MarketHandlersOptions) {
  const { market, asset, payTo, service, rateLimit, now, addressOf } = options
  const { stock } = market

  const limited = (request: Request): Record<string, string> => {
    const key = clientOf(request, addressOf(request), service.trustProxy)
    const verdict = rateLimit.take(`quote ${key}`, service.quotePerMinute, now())
    RateLimit.assertWithin(verdict)
    return RateLimit.headers(verdict)
  }

  let page: { snapshots: readonly Snapshot.Snapshot[]; second: number; text: string } | undefined
  const list = async (request: Request): Promise<Response> => {
    const headers = limited(request)
    const snapshots = await market.snapshots().catch(Snapshot.unavailable)
    const second = Math.floor(now() / 1000)
    // The same snapshots give the same page within a second.
    if (page?.snapshots !== snapshots || page.second !== second) {
      const stocks = snapshots.map((snapshot) => entryOf(snapshot, market, asset, now()))
      const body = { network: stock.network, asset: asset.address, payTo, stocks }
      page = { snapshots, second, text: JSON.stringify(body) }
    }
    return answerText(page.text, headers)
  }

  const quote = async (request: Request): Promise<Response> => {
    const headers = limited(request)
    const terms = termsOf(request, stock, asset)
    const snapshot = await market
      .snapshotOf(terms.token, terms.usdgAtomic)
      .catch(Snapshot.unavailable)
    return answerText(JSON.stringify(quoteOf(snapshot, market, asset)), headers)
  }

  return { list, quote }
}

/** The list marks prices that are older than this, ms. */
const staleMs = 15_000

function entryOf(snapshot: Snapshot.Snapshot, market: Market, asset: Asset, now: number) {
  const { token, decimals } = snapshot
  const priceAtomic = Snapshot.shownPriceAtomic(snapshot)
  const { feeBps, minAtomic, maxAtomic } = market.stock
  const verdict = market.judge(snapshot)
  const usdg = (atomic: bigint) => Amount.toDecimal(atomic, asset.decimals)
  return {
    symbol: token.symbol,
    name: token.name,
    address: token.address,
    decimals: decimals ?? null,
    pool: token.pool,
    price: priceAtomic === undefined ? null : usdg(priceAtomic),
    priceUpdatedAt: new Date(snapshot.readAt).toISOString(),
    multiplier: multiplierOf(snapshot),
    feeBps,
    slippageBps: token.slippageBps,
    min: usdg(minAtomic),
    max: usdg(maxAtomic),
    status: now - snapshot.readAt > staleMs ? 'stale' : verdict.ok ? 'open' : verdict.code,
    ...(verdict.ok ? warningsOf(verdict.warnings) : {}),
  }
}

function termsOf(request: Request, stock: Stock, asset: Asset): Instrument.Terms {
  // A request of HTTP/1.0 may come as a path alone.
  const asked = [...new URLSearchParams(searchOf(request.url))]
  const query = new URLSearchParams(
    asked.filter(([name]) => Instrument.quoteNames.some((known) => known === name)),
  )
  return Instrument.assertTerms(Instrument.parseTerms(query, stock, asset))
}

function answerText(json: string, headers: Record<string, string>): Response {
  const own = { 'content-type': 'application/json', 'cache-control': 'no-store' }
  return new Response(json, { headers: { ...corsHeaders, ...headers, ...own } })
}
