import { Elysia } from 'elysia'
import type { Config, NetworkConfig, Stock } from '../config/Config'
import { clientKey } from '../http/clientip'
import { assertUnpacked, byMethod, unread } from '../http/methods'
import { corsHeaders } from '../http/problem'
import * as RateLimit from '../http/ratelimit'
import { pathsBelow, searchOf } from '../http/url'
import { extract } from '../paywall/extract'
import * as AddressText from '../protocol/Address'
import * as Problem from '../protocol/Problem'
import type { Desk } from './desk'
import * as Instrument from './Instrument'
import * as Orders from './Order'
import { buyPath, type OrderResponse, orderPath } from './order-response'
import type { Purchase } from './purchase'

export type OrderRoutesOptions = {
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
  peerOf: (request: Request) => string | undefined
  /** False once the process stops: nothing new is begun. */
  accepts: () => boolean
}

/** `POST /api/stock/buy`, `GET /api/stock/order/{id}` and `GET /api/stock/orders`. */
export function orderRoutes(options: OrderRoutesOptions) {
  const { desk, orderResponse, stock, service, rateLimit, now } = options

  const keyOf = (request: Request) =>
    clientKey(options.peerOf(request), request.headers.get('x-forwarded-for'), service.trustProxy)

  const limit = (name: string, request: Request, perMinute: number): Record<string, string> => {
    const verdict = rateLimit.take(`${name} ${keyOf(request)}`, perMinute, now())
    const headers = RateLimit.headers(verdict)
    if (verdict.ok) return headers
    throw Problem.of('rate-limited', 'Too many requests from this address.', { headers })
  }

  const buy = async (request: Request): Promise<Response> => {
    if (!options.accepts()) throw Problem.of('not-ready', 'The service is stopping.')
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
      const headers = RateLimit.headers(verdict)
      if (!verdict.ok) {
        throw Problem.of('rate-limited', 'Too many refused credentials.', { headers })
      }
    }
    const search = searchOf(request.url)
    const parsed = Instrument.parseTerms(new URLSearchParams(search), stock, options.network.asset)
    const response = await options.purchase.buy({
      terms: Instrument.assertTerms(parsed),
      url: `${service.stockBaseUrl}${buyPath}${search}`,
      headers: request.headers,
      presented,
      requestId: options.requestId(),
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

  const order = (request: Request, id: string): Response => {
    const headers = limit('orders', request, service.paidPerMinute)
    const found = Orders.isId(id) ? desk.find(id) : undefined
    if (found === undefined) throw Problem.of('not-found', 'There is no such order.')
    return answer(orderResponse.toJson(found), headers)
  }

  const orders = (request: Request): Response => {
    const headers = limit('orders', request, service.paidPerMinute)
    const query = historyOf(new URLSearchParams(searchOf(request.url)))
    const found = desk.history({ ...query, limit: query.limit + 1 })
    const page = found.slice(0, query.limit)
    const last = page.at(-1)
    const next = found.length > page.length && last !== undefined ? { next: last.id } : {}
    return answer({ orders: page.map(orderResponse.toJson), ...next }, headers)
  }

  const app = new Elysia({ name: 'orders' })
  // The parameters are in the query: nobody's body is read.
  const places = (path: string) => pathsBelow([service.stockBaseUrl], path)
  const open = { isOpen: true }
  for (const path of places(buyPath))
    app.all(path, byMethod({ POST: ({ request }) => buy(request) }, open), unread)
  for (const path of places('/api/stock/orders'))
    app.all(path, byMethod({ GET: ({ request }) => orders(request) }, open), unread)
  const one = byMethod({ GET: ({ request, params }: Asked) => order(request, params.id) }, open)
  for (const path of places(orderPath)) app.all(`${path}/:id`, (asked) => one(asked), unread)
  return app
}

type Asked = { request: Request; params: { id: string } }

/** Of the credentials that an address may present in a minute, so many may be refused. */
const refusedShare = 0.1
const limitMax = 100

/** Throws ProblemError, 400 with everything that is wrong. */
function historyOf(query: URLSearchParams) {
  const invalidParams: { name: string; reason: string; in: 'query' }[] = []
  const refuse = (name: string, reason: string) =>
    void invalidParams.push({ name, reason, in: 'query' })
  for (const name of new Set(query.keys())) {
    if (!['payer', 'limit', 'before'].includes(name)) refuse(name, 'is not a parameter here')
    else if (query.getAll(name).length > 1) refuse(name, 'is given more than once')
  }
  const [payerText, limitText, before] = ['payer', 'limit', 'before'].map((name) => query.get(name))
  const payer = payerText == null ? undefined : AddressText.parse(payerText)
  if (payerText != null && payer === undefined) refuse('payer', 'must be an address')
  const limit = limitText == null ? 20 : Number(limitText)
  const isLimit = limitText == null || /^[1-9]\d{0,2}$/.test(limitText)
  if (!isLimit || limit > limitMax) refuse('limit', `must be an integer from 1 to ${limitMax}`)
  if (before != null && !Orders.isId(before)) refuse('before', 'must be the id of an order')
  if (invalidParams.length > 0) {
    const names = [...new Set(invalidParams.map(({ name }) => name))].join(', ')
    throw Problem.of('invalid-parameter', `Invalid: ${names}.`, { members: { invalidParams } })
  }
  return { payer, limit, before: before ?? undefined }
}

function answer(body: unknown, headers: Record<string, string>): Response {
  return Response.json(body, {
    headers: { ...corsHeaders, ...headers, 'cache-control': 'no-store' },
  })
}
