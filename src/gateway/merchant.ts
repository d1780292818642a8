import type { Config, Method, NetworkConfig } from '../config/Config'
import type { Budget } from '../http/body'
import type { Peer } from '../http/client'
import { allowOf, notAllowed, preflight } from '../http/methods'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import type * as RateLimit from '../http/rate-limit'
import { splitUrl } from '../http/url'
import type { Log } from '../log'
import { failingOf, failureHeaders } from '../paywall/answer/receipts'
import type { Envelope } from '../paywall/answer/remainder'
import { extract, none } from '../paywall/extract'
import type { RetiredOffers } from '../paywall/offer/retired-offers'
import type { Paywall } from '../paywall/paywall'
import type { IsPlausible } from '../paywall/usage/plausible'
import * as Problem from '../protocol/Problem'
import { type Admission, admit } from './admission'
import type { Stocks } from './builtin/stocks'
import type { Documents } from './documents/documents'
import type { IncomingRequest } from './incoming'
import { compileItems } from './items'
import * as Route from './Route'
import type { Breaker } from './upstream/breaker'
import type { Concurrency } from './upstream/concurrency'
import type { Latency } from './upstream/latency'
import type { Refusals } from './upstream/refusals'
import type { Upstream } from './upstream/upstream'

export type GatewayOptions = {
  config: Config
  retired: RetiredOffers
  paywall: Paywall
  isPlausible: IsPlausible
  upstream: Upstream
  breaker: Breaker
  refusals: Refusals
  latency: Pick<Latency, 'observe'>
  concurrency: Concurrency
  budget: Budget
  documents: Documents
  /** Whether an operator has paused the sales of a merchant. */
  isPaused?: ((slug: string) => boolean) | undefined
  /** Stock data for chain-stocks; undefined when the file lists no stocks. */
  stocks?: Stocks | undefined
  rateLimit: RateLimit.RateLimit
  now: () => number
  log: Log
  requestId: () => string
  /** False while the process stops: nothing new is started. */
  accepts: () => boolean
}

export type Gateway = {
  /**
   * Answers a request below `/m/`; never rejects. With an `envelope` its caller puts the answer
   * into a message.
   */
  handle(request: Request, peer: Peer, envelope?: Envelope): Response | Promise<Response>
}

const urlMaxBytes = 8192
type State = {
  readonly matcher: Route.Matcher
  readonly itemsOf: ReturnType<typeof compileItems>
  readonly documents: Documents
  readonly admission: Admission
  readonly networks: readonly { network: NetworkConfig }[]
  readonly baseUrl: string
  readonly log: Log
}

type Caller = Pick<IncomingRequest, 'peer' | 'requestId' | 'envelope'>

/** The merchants' routes with the paywall in front. */
export function createGateway(options: GatewayOptions): Gateway {
  const { config, documents, log } = options
  const state: State = {
    matcher: Route.compile(config.merchants),
    itemsOf: compileItems(config, options.retired),
    documents,
    admission: admissionOf(options),
    networks: config.networks.map((network) => ({ network })),
    baseUrl: config.service.baseUrl,
    log,
  }
  return {
    handle: (request, peer, envelope) =>
      handle(state, request, { peer, requestId: options.requestId(), envelope }),
  }
}

/**
 * The steps of a sale with their dependencies: limits, then the sale, then the source of the
 * answer.
 */
function admissionOf(options: GatewayOptions): Admission {
  const { rateLimit, budget, isPlausible, accepts, paywall, concurrency, now } = options
  const { upstream, breaker, refusals, latency, stocks, log, isPaused } = options
  const { service } = options.config
  const { baseUrl, concurrencyMax, trustProxy } = service
  const own = { now, log, failureKeys: new Map() }
  const sources = { upstream, breaker, refusals, latency, stocks, isPaused, ...own }
  const sales = { paywall, concurrency, concurrencyMax, baseUrl, sources, trustProxy }
  return { limits: service, rateLimit, budget, isPlausible, accepts, now, sales }
}

function handle(state: State, request: Request, caller: Caller): Response | Promise<Response> {
  const { requestId } = caller
  try {
    const answer = route(state, request, caller)
    return answer instanceof Promise
      ? answer.then(
          (response) => finish(response, requestId),
          (error) => fail(state, error, request, requestId),
        )
      : finish(answer, requestId)
  } catch (error) {
    return fail(state, error, request, requestId)
  }
}

/** Finds the route of a request. Throws ProblemError. */
function route(state: State, request: Request, caller: Caller): Response | Promise<Response> {
  const { url, method } = request
  if (url.length > urlMaxBytes)
    throw Problem.of('uri-too-long', 'The URL is over 8 KB: shorten it.')
  const [pathname, search] = splitUrl(url)
  const path = state.matcher.exact.has(pathname) ? pathname : Route.canonicalize(pathname)
  if (path === undefined)
    throw Problem.of(
      'invalid-path',
      'The path is not in its canonical form: send it as the documents write it.',
    )
  const match = Route.match(state.matcher, path)
  if (match === undefined) {
    const document = state.documents.find(path)
    if (document !== undefined) return document(request)
    throw Problem.of('not-found', 'There is no such route; /openapi.json lists all.')
  }
  const items = state.itemsOf(match.merchant, match.route)
  if (method === 'OPTIONS') return preflight(request, allowOf(Object.keys(items)))
  const item = items[(method === 'HEAD' ? 'GET' : method) as Method]
  if (item === undefined) throw notAllowed(allowOf(Object.keys(items)))
  const presented = extract(request.headers)
  const { peer, requestId, envelope } = caller
  // Name each member, because a spread costs as much as a lookup.
  const incoming = { request, match, item, path, search, presented, peer, requestId, envelope }
  return admit(state.admission, incoming)
}

function finish(response: Response, requestId: string): Response {
  // A 402, the most frequent answer, already has all headers.
  if (response.status === 402) return response
  const { headers } = response
  headers.set('access-control-allow-origin', corsHeaders['Access-Control-Allow-Origin'])
  headers.set('access-control-expose-headers', corsHeaders['Access-Control-Expose-Headers'])
  headers.set('x-request-id', requestId)
  return response
}

function fail(state: State, error: unknown, request: Request, requestId: string): Response {
  const { networks, baseUrl, log } = state
  const known = error instanceof Problem.ProblemError
  const problem = inTermsOf(request, known ? error : unknownError(error, requestId), networks)
  if (!known) log.child({ requestId })('request-failed', { error })
  return toResponse(problem, { baseUrl, requestId })
}

/** Adds PAYMENT-RESPONSE to every failure of an x402 request, from whatever part it comes. */
function inTermsOf(
  { headers }: Request,
  problem: Problem.ProblemError,
  networks: State['networks'],
): Problem.ProblemError {
  const value = headers.get('payment-signature') ?? headers.get('x-payment')
  if (value === null || problem.headers['payment-response'] !== undefined) return problem
  // Do not read a body of an address above its rate limit.
  const presented = problem.status === 429 ? none : ({ kind: 'x402', value } as const)
  return Problem.withHeaders(problem, failureHeaders(problem, failingOf(presented, networks)))
}
