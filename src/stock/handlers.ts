import { Type } from '@sinclair/typebox'
import { countTry } from '../books/tally'
import type { Config } from '../config/Config'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/rate-limit'
import { searchOf } from '../http/url'
import { extract, type Presented } from '../paywall/credential'
import * as AddressText from '../protocol/Address'
import * as Amount from '../protocol/Amount'
import * as Client from '../protocol/Client'
import * as Problem from '../protocol/Problem'
import * as Schema from '../protocol/Schema'
import * as Instrument from './Instrument'
import * as Orders from './Order'
import { buyPath, buyShares, orderJson, quoteOf, soldAs } from './purchase'
import * as Snapshot from './Snapshot'
import type { OpenMarket, StartedStock } from './start'

type Serving = {
  service: Pick<
    Config['service'],
    'trustProxy' | 'quotePerMinute' | 'paidPerMinute' | 'stockBaseUrl'
  >
  rateLimit: RateLimit.RateLimit
  now: () => number
  /** Address of the other end of the connection. */
  addressOf: (request: Request) => string | undefined
}

/** Free routes, so limited for each address: `GET /api/stock/list` and `GET /api/stock/quote`. */
export function createMarketHandlers(
  options: Serving &
    Pick<OpenMarket, 'market' | 'asset'> & {
      /** The desk, to which purchases are paid. */
      payTo: `0x${string}`
    },
) {
  const { market, asset, payTo, service, now } = options
  const { stock } = market
  let page: { snapshots: readonly Snapshot.Snapshot[]; second: number; text: string } | undefined
  return {
    async list(request: Request): Promise<Response> {
      const headers = limit(options, 'quote', request, service.quotePerMinute)
      const snapshots = await market.snapshots().catch(Snapshot.unavailable)
      const second = Math.floor(now() / 1000)
      // The same snapshots give the same page within a second.
      if (page?.snapshots !== snapshots || page.second !== second) {
        const stocks = snapshots.map((snapshot) => entryOf(snapshot, options))
        const body = { network: stock.network, asset: asset.address, payTo, stocks }
        page = { snapshots, second, text: JSON.stringify(body) }
      }
      return answer(page.text, headers)
    },

    async quote(request: Request): Promise<Response> {
      const headers = limit(options, 'quote', request, service.quotePerMinute)
      const query = new URLSearchParams(searchOf(request.url))
      for (const name of new Set(query.keys()))
        if (!Instrument.quoteNames.some((known) => known === name)) query.delete(name)
      const { token, usdgAtomic } = Instrument.readTerms(query, stock, asset)
      const snapshot = await market.snapshotOf(token, usdgAtomic).catch(Snapshot.unavailable)
      const quoted = Snapshot.assertOpen(snapshot, market.judge(snapshot))
      return answer(JSON.stringify(quoteOf(quoted, stock, asset)), headers)
    },
  }
}

/** The list marks prices that are older than this, ms. */
const staleMs = 15_000

function entryOf(
  snapshot: Snapshot.Snapshot,
  { market, asset, now }: Pick<Serving, 'now'> & Pick<OpenMarket, 'market' | 'asset'>,
) {
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
    multiplier: Snapshot.multiplierOf(snapshot),
    feeBps,
    slippageBps: token.slippageBps,
    min: usdg(minAtomic),
    max: usdg(maxAtomic),
    status: now() - snapshot.readAt > staleMs ? 'stale' : verdict.ok ? 'open' : verdict.code,
    ...(verdict.ok ? Snapshot.warningsOf(verdict.warnings) : {}),
  }
}

/** Share of the credentials of an address in a minute that may be refused. */
const refusedShare = 0.1

/** `POST /api/stock/buy`, `GET /api/stock/order/{id}` and `GET /api/stock/orders`. */
export function createOrderHandlers(
  options: Serving &
    StartedStock & {
      requestId: () => string
      /** False once the process stops: then nothing new is started. */
      accepts: () => boolean
    },
) {
  const { desk, purchase, service, rateLimit, now } = options
  const sell = async (request: Request, presented: Presented, clientKind: Client.Kind) => {
    if (!options.accepts()) {
      throw Problem.of('not-ready', 'The service is stopping: send the request again.')
    }
    assertUnpacked(request.headers)
    const isPaid = presented.kind !== 'none'
    // A price costs calls to a node, and so does a credential.
    const limits = isPaid
      ? limit(options, 'paid', request, service.paidPerMinute)
      : limit(options, 'quote', request, service.quotePerMinute)
    const refusedPerMinute = Math.ceil(service.paidPerMinute * refusedShare)
    const client = keyOf(options, request)
    const refusedKey = `refused ${client}`
    if (isPaid) {
      const verdict = rateLimit.peek(refusedKey, refusedPerMinute, now())
      RateLimit.assertWithin(verdict, 'refused credentials')
    }
    const search = searchOf(request.url)
    const { stock, network } = purchase
    const response = await buyShares(purchase, {
      terms: Instrument.readTerms(new URLSearchParams(search), stock, network.asset),
      url: `${service.stockBaseUrl}${buyPath}${search}`,
      headers: request.headers,
      presented,
      requestId: options.requestId(),
      client,
      clientKind,
    })
    const isRefused = response.status === 402
    if (isPaid && isRefused) rateLimit.take(refusedKey, refusedPerMinute, now())
    // A 402 has its own, shorter headers.
    const added = isRefused ? limits : { ...corsHeaders, ...limits }
    for (const [name, value] of Object.entries(added)) response.headers.set(name, value)
    return response
  }
  return {
    buy(request: Request): Promise<Response> {
      const presented = extract(request.headers)
      const clientKind = Client.kindOf(request.headers)
      const run = () => sell(request, presented, clientKind)
      if (presented.kind === 'none') return run()
      return countTry(purchase.tally.of(soldAs, clientKind), presented.kind, run)
    },

    async order(request: Request, id: string): Promise<Response> {
      const headers = limit(options, 'orders', request, service.paidPerMinute)
      const found = Orders.isId(id) ? await desk.find(id) : undefined
      if (found !== undefined) return Response.json(orderJson(purchase, found), open(headers))
      const detail = 'There is no such order; /api/stock/orders lists those of a payer.'
      throw Problem.of('not-found', detail)
    },

    async orders(request: Request): Promise<Response> {
      const headers = limit(options, 'orders', request, service.paidPerMinute)
      const query = historyOf(new URLSearchParams(searchOf(request.url)))
      const found = await desk.history({ ...query, limit: query.limit + 1 })
      const page = found.slice(0, query.limit)
      const last = page.at(-1)
      const orders = page.map((order) => orderJson(purchase, order))
      const next = found.length > page.length && last !== undefined ? { next: last.id } : {}
      return Response.json({ orders, ...next }, open(headers))
    },
  }
}

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
  const { payer, limit: most = '20', before } = values
  return { payer: AddressText.parse(payer), limit: Number(most), before }
}

function keyOf({ addressOf, service }: Serving, request: Request): string {
  return clientOf(request, addressOf(request), service.trustProxy)
}

/** Counts a request of a client. Returns the headers that report its limit. Throws ProblemError. */
function limit(
  serving: Serving,
  name: string,
  request: Request,
  perMinute: number,
): Record<string, string> {
  const { rateLimit, now } = serving
  const verdict = rateLimit.take(`${name} ${keyOf(serving, request)}`, perMinute, now())
  RateLimit.assertWithin(verdict)
  return RateLimit.headers(verdict)
}

function answer(json: string, headers: Record<string, string>): Response {
  return new Response(json, open({ ...headers, 'content-type': 'application/json' }))
}

/** The head of an answer that pages of other origins may read. */
function open(headers: Record<string, string>): ResponseInit {
  return { headers: { ...corsHeaders, ...headers, 'cache-control': 'no-store' } }
}
