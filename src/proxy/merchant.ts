import type { Config, Merchant, Method, Route as RouteConfig } from '../config/Config'
import { type Body, type Budget, readBody } from '../http/body'
import { allowOf, assertUnpacked, notAllowed, preflight } from '../http/methods'
import { clientOf, type Peer } from '../http/peer'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import * as RateLimit from '../http/ratelimit'
import { splitUrl } from '../http/url'
import type { Log } from '../log'
import type { Fulfilled } from '../paywall/delivery'
import { extract, none, type Presented } from '../paywall/extract'
import { bodyDigest } from '../paywall/fingerprint'
import type { Item } from '../paywall/Item'
import type { PaidRequest, Paywall } from '../paywall/paywall'
import { failingOf, failureHeaders } from '../paywall/receipts'
import type { Recognise } from '../paywall/recognise'
import type { Envelope } from '../paywall/rest'
import type { RetiredOffers } from '../paywall/retired'
import * as Problem from '../protocol/Problem'
import type { Payment } from '../settlement/Payment'
import { type Breaker, isSilence } from './breaker'
import { invalidInputs, originOf, serveBuiltin } from './builtin/serve'
import type { Stocks } from './builtin/stocks'
import type { Documents } from './documents'
import { compileItems, type RouteItems } from './items'
import { assertPlace, type Places } from './places'
import * as Route from './Route'
import { type Upstream, UpstreamError } from './upstream'

export type GatewayOptions = {
  config: Config
  retired: RetiredOffers
  paywall: Paywall
  recognise: Recognise
  upstream: Upstream
  breaker: Breaker
  places: Places
  budget: Budget
  documents: Documents
  /** What chain-stocks sells; undefined when the file lists none. */
  stocks?: Stocks | undefined
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
  requestId: () => string
  /** False once the process stops: nothing new is begun. */
  accepts: () => boolean
}

export type Gateway = {
  /**
   * Answers a request below `/m/`; never rejects. With an `envelope` its caller puts the answer into a
   * message.
   */
  handle(request: Request, peer: Peer, envelope?: Envelope): Response | Promise<Response>
}

const urlMaxBytes = 8192
/** Longest body whose faults are named in a 402. */
const hintMaxBytes = 16 * 1024

/** The merchants' routes behind the paywall. */
export function createGateway(options: GatewayOptions): Gateway {
  const { config, log, now } = options
  const { baseUrl } = config.service
  const matcher = Route.compile(config.merchants)
  const itemsOf = compileItems(config, options.retired)
  const networks = config.networks.map((network) => ({ network }))
  const failureKeys = new Map<RouteConfig, string | undefined>()

  return {
    handle(request, peer, envelope) {
      const requestId = options.requestId()
      try {
        const answer = route(request, { peer, requestId, envelope })
        return answer instanceof Promise
          ? answer.then(
              (response) => finish(response, requestId),
              (error) => fail(error, request, requestId),
            )
          : finish(answer, requestId)
      } catch (error) {
        return fail(error, request, requestId)
      }
    },
  }

  function finish(response: Response, requestId: string): Response {
    // The 402, which is answered most, comes with all of them.
    if (response.status === 402) return response
    const { headers } = response
    headers.set('access-control-allow-origin', corsHeaders['Access-Control-Allow-Origin'])
    headers.set('access-control-expose-headers', corsHeaders['Access-Control-Expose-Headers'])
    headers.set('x-request-id', requestId)
    return response
  }

  function fail(error: unknown, request: Request, requestId: string): Response {
    const known = error instanceof Problem.ProblemError
    const problem = inTermsOf(request, known ? error : unknownError(error, requestId))
    if (!known) log.child({ requestId }).error('request-failed', { error })
    return toResponse(problem, { baseUrl, requestId })
  }

  /** Adds PAYMENT-RESPONSE to every failure of an x402 request, whatever part refused it. */
  function inTermsOf({ headers }: Request, problem: Problem.ProblemError): Problem.ProblemError {
    const value = headers.get('payment-signature') ?? headers.get('x-payment')
    if (value === null || problem.headers['payment-response'] !== undefined) return problem
    // Read no body of an address above its rate limit.
    const presented = problem.status === 429 ? none : ({ kind: 'x402', value } as const)
    return Problem.withHeaders(problem, failureHeaders(problem, failingOf(presented, networks)))
  }

  function route(request: Request, caller: Caller): Response | Promise<Response> {
    const { url } = request
    if (url.length > urlMaxBytes) throw Problem.of('uri-too-long', 'The URL is over 8 KB.')
    const [pathname, search] = splitUrl(url)
    const path = matcher.exact.has(pathname) ? pathname : Route.canonicalize(pathname)
    if (path === undefined)
      throw Problem.of('invalid-path', 'The path is not in its canonical form.')
    const match = Route.match(matcher, path)
    if (match === undefined) {
      const document = options.documents.find(path)
      if (document !== undefined) return document(request)
      throw Problem.of('not-found', 'There is no such route.')
    }
    const sold = itemsOf(match.merchant, match.route)
    const { method } = request
    if (method === 'OPTIONS') return preflight(request, allowOf(Object.keys(sold.items)))
    const item = sold.items[(method === 'HEAD' ? 'GET' : method) as Method]
    if (item === undefined) throw notAllowed(allowOf(Object.keys(sold.items)))
    const presented = extract(request.headers)
    const { peer, requestId, envelope } = caller
    // Name each member, because a spread costs as much as a lookup.
    const visit = { match, sold, item, path, search, presented, peer, requestId, envelope }
    return sell(request, visit)
  }

  type Caller = { peer: Peer; requestId: string; envelope: Envelope | undefined }

  type Visit = Caller & {
    match: Route.Match
    sold: RouteItems
    item: Item
    path: string
    search: string
    presented: Presented
    /** Whether the connection is held, and by a stream beyond the answer. */
    held?: 'until-answer' | 'until-end'
  }

  function sell(request: Request, visit: Visit): Response | Promise<Response> {
    return visit.presented.kind === 'none' ? open(request, visit, false) : limited(request, visit)
  }

  /** Credentials cost calls to a node: each address may present so many, and so many bad ones. */
  function limited(request: Request, visit: Visit): Promise<Response> | Response {
    const { paidPerMinute, trustProxy } = config.service
    const key = clientOf(visit.peer, request.headers, trustProxy)
    const refusedPerMinute = Math.ceil(paidPerMinute * refusedShare)
    const { rateLimit } = options
    assertWithin(rateLimit.take(`paid ${key}`, paidPerMinute, now()))
    assertWithin(rateLimit.peek(`refused ${key}`, refusedPerMinute, now()))
    const opened = open(request, visit, true)
    if (!(opened instanceof Promise)) return opened
    const answer = opened.finally(() => {
      if (visit.held === 'until-answer') visit.peer.hold?.(false)
    })
    if (visit.presented.kind === 'redeem') return answer
    const refused = () => rateLimit.take(`refused ${key}`, refusedPerMinute, now())
    return answer.then(
      (response) => {
        // A new challenge: the signature was bad, or the simulation refused. What fails on chain counts
        // against the payer, so that junk in somebody's name costs its sender.
        if (response.status === 402) refused()
        return response
      },
      (error) => {
        // The whole body was looked through for a credential that nobody has judged.
        if (error instanceof Problem.ProblemError && error.code === 'invalid-parameter') refused()
        throw error
      },
    )
  }

  function open(request: Request, visit: Visit, pays: boolean): Response | Promise<Response> {
    if (!options.accepts()) throw Problem.of('not-ready', 'The service is stopping.')
    if (!hasBody(request)) return offer(request, visit, empty)
    assertUnpacked(request.headers)
    const { route } = visit.sold
    const offerWith = ({ bytes, release }: Body) =>
      Promise.resolve(offer(request, visit, bytes)).finally(release)
    const client = clientOf(visit.peer, request.headers, config.service.trustProxy)
    const owner = { client, isPaid: pays && options.recognise(visit.presented, visit.item) }
    if (pays) return readBody(request, route.bodyMaxBytes, options.budget, owner).then(offerWith)
    // Without a credential the body is only digested; without room the 402 has no digest.
    const most = Math.min(config.service.unpaidBodyMaxBytes, route.bodyMaxBytes)
    return readBody(request, most, options.budget, owner).then(offerWith, (error) => {
      const isLeftOut = error instanceof Problem.ProblemError && [413, 503].includes(error.status)
      if (isLeftOut) return offer(request, visit, dropped)
      throw error
    })
  }

  function offer(request: Request, visit: Visit, body: Uint8Array): Response | Promise<Response> {
    const { sold, item, path, search, requestId } = visit
    const { merchant, route } = sold
    // Nothing is made for it that only a sale needs: this is answered more often than all else.
    if (visit.presented.kind === 'none') return ask(visit, body)
    const paid: PaidRequest = {
      item,
      method: request.method,
      path,
      search,
      headers: request.headers,
      presented: visit.presented,
      body,
      resource: `${baseUrl}${path}`,
      requestId,
      envelope: visit.envelope,
      // Making one costs as much as the rest of an unpaid answer's bookkeeping.
      get signal() {
        return request.signal
      },
      get invalidParams() {
        return invalidInputs(options, visit, body)
      },
      unavailable: () => unavailable(merchant, route) ?? unreachable(visit.match),
      reserve: () => reserve(visit),
      fulfil: (payment) => fulfil(request, visit, body, payment),
    }
    return options.paywall.serve(paid)
  }

  function ask(visit: Visit, body: Uint8Array): Response {
    const { sold, item, path, search, requestId } = visit
    const problem = unavailable(sold.merchant, sold.route)
    if (problem !== undefined) throw problem
    const { match } = visit
    // A 402 starts the lookup without waiting for it; a payment waits.
    if (match.merchant.builtin === undefined && options.upstream.isReachable(match) === false)
      throw away()
    return options.paywall.ask(item, baseUrl + path + search, requestId, {
      digest: bodyDigest(body),
      isBodiless: body.byteLength === 0 && body !== dropped,
      // Nobody who shows no credential makes us look through a large body.
      invalidParams: () =>
        body.byteLength > hintMaxBytes || body === dropped
          ? []
          : invalidInputs(options, visit, body),
    })
  }

  function unavailable(merchant: Merchant, route: RouteConfig): Problem.ProblemError | undefined {
    if (merchant.outOfService !== undefined)
      return Problem.of('not-ready', 'This merchant is out of service.')
    const origin = failureKey(merchant, route)
    if (origin === undefined || options.breaker.isOpen(origin, now()))
      return Problem.of('not-ready', 'The upstream is not answering; nothing is charged.', {
        headers: { 'retry-after': '10' },
      })
    return undefined
  }

  /** An upstream whose name leads nowhere, or to a private address. Waits only for a name's first lookup. */
  function unreachable(match: Route.Match) {
    if (match.merchant.builtin !== undefined) return undefined
    const reachable = options.upstream.isReachable(match)
    if (reachable instanceof Promise) return reachable.then((is) => (is ? undefined : away()))
    return reachable ? undefined : away()
  }

  /** Takes a place for a sale and its delivery; throws when there is none. */
  function reserve(visit: Visit): () => void {
    const { merchant } = visit.sold
    const free = merchant.builtin
      ? () => undefined
      : assertPlace(options.places, merchant, config.service.concurrencyMax)
    // Settlement and the upstream have limits of their own, which may be longer than the server's.
    visit.held = 'until-answer'
    visit.peer.hold?.(true)
    return free
  }

  /** Under which failures are counted. Kept, because every 402 asks and a URL makes it anew each time. */
  function failureKey({ builtin, upstream }: Merchant, route: RouteConfig): string | undefined {
    if (failureKeys.has(route)) return failureKeys.get(route)
    const key = builtin ? originOf(builtin, options) : (route.upstream ?? upstream)?.origin
    failureKeys.set(route, key)
    return key
  }

  async function fulfil(
    request: Request,
    visit: Visit,
    body: Uint8Array,
    payment: Payment,
  ): Promise<Fulfilled> {
    const { merchant, route } = visit.sold
    const origin = failureKey(merchant, route) ?? ''
    const { payer } = payment.transfer
    const failed = (kind: 'connect' | 'silence') => {
      // Redemptions are free: with them one payment for a request that breaks the upstream would
      // count many times.
      if (payment.attempts === 1) options.breaker.failure(origin, { kind, payer }, now())
    }
    if (merchant.builtin !== undefined) {
      const answer = await serveBuiltin(options, visit, body)
      if (answer.delivered) options.breaker.success(origin, now())
      else failed('connect')
      return answer
    }
    try {
      const answer = await options.upstream.forward({
        match: visit.match,
        method: request.method,
        search: visit.search,
        headers: request.headers,
        body,
        paymentId: payment.id,
      })
      const { status } = answer
      if (isSilence(status)) failed('silence')
      else options.breaker.success(origin, now())
      if (isDelivery(status)) {
        // An answer inside a message is read completely before anything is sent.
        if (answer.body instanceof Uint8Array || visit.envelope !== undefined)
          return { delivered: true, ...answer }
        visit.held = 'until-end'
        return { delivered: true, ...answer, onEnd: (isCut) => visit.peer.hold?.(false, isCut) }
      }
      if (answer.body instanceof ReadableStream) await answer.body.cancel()
      return {
        delivered: false,
        upstreamStatus: status,
        code: 'upstream-failed',
        detail: `The upstream answered ${status}.`,
      }
    } catch (error) {
      if (!(error instanceof UpstreamError)) throw error
      // A broken answer is no failure here: a buyer may know a request that crashes the upstream.
      if (error.kind !== 'cut') failed(error.kind === 'timeout' ? 'silence' : 'connect')
      log.child({ requestId: visit.requestId }).warn('upstream-failed', {
        merchant: merchant.slug,
        kind: error.kind,
        payment: payment.id,
      })
      return { delivered: false, upstreamStatus: undefined, ...undeliverable[error.kind] }
    }
  }
}

const empty = new Uint8Array()
/** Marks a body that is too long to be read without a credential. */
const dropped = new Uint8Array()

function away(): Problem.ProblemError {
  return Problem.of('not-ready', 'The upstream is not reachable; nothing is charged.', {
    headers: { 'retry-after': '10' },
  })
}

/** Of the credentials that an address may present in a minute, so many may be refused. */
const refusedShare = 0.1

function assertWithin(verdict: RateLimit.Verdict): void {
  if (verdict.ok) return
  throw Problem.of('rate-limited', 'Too many paid requests from this address.', {
    headers: RateLimit.headers(verdict),
  })
}

const undeliverable = {
  connect: { code: 'upstream-unreachable', detail: 'The upstream could not be reached.' },
  'refused-address': { code: 'upstream-unreachable', detail: 'The upstream is not reachable.' },
  timeout: { code: 'upstream-timeout', detail: 'The upstream did not answer in time.' },
  cut: { code: 'upstream-failed', detail: 'The upstream broke its answer off.' },
} as const

/** Statuses that are the upstream's answer; all others are its failure. */
function isDelivery(status: number): boolean {
  if (status < 200 || status >= 500) return false
  if (status >= 300 && status < 400) return false
  return ![401, 402, 403, 407, 408, 425, 429].includes(status)
}

function hasBody(request: Request): boolean {
  const { method, headers } = request
  if (method === 'GET' || method === 'HEAD') return false
  return headers.has('transfer-encoding') || (headers.get('content-length') ?? '0') !== '0'
}
