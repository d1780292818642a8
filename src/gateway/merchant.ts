import type { Config, Method, NetworkConfig } from '../config/Config'
import type { Peer } from '../http/client'
import { allowOf, notAllowed, preflight } from '../http/methods'
import { corsHeaders, toResponse, unknownError } from '../http/problem'
import { splitUrl } from '../http/url'
import { failingOf, failureHeaders } from '../paywall/answer/receipts'
import type { Envelope } from '../paywall/answer/remainder'
import { extract, extractWithSignIn, isRefund } from '../paywall/credential'
import type { Item } from '../paywall/offer/Item'
import type { RetiredOffers } from '../paywall/offer/retired-offers'
import * as Problem from '../protocol/Problem'
import type { Documents } from './documents/documents'
import { compileItems } from './items'
import * as Route from './Route'
import { emptyBody, type SaleContext, sellWithinLimits } from './sale'
import type { IncomingRequest } from './upstream/source'

export type GatewayOptions = Omit<SaleContext, 'service'> & {
  config: Config
  retired: RetiredOffers
  documents: Documents
  requestId: () => string
}

export type Gateway = ReturnType<typeof createGateway>

const urlMaxBytes = 8192
type State = SaleContext & {
  readonly matcher: Route.Matcher
  readonly itemsOf: ReturnType<typeof compileItems>
  readonly documents: Documents
  readonly networks: readonly { network: NetworkConfig }[]
}

type Caller = Pick<IncomingRequest, 'peer' | 'requestId' | 'envelope'>

/** The merchants' routes with the paywall in front. */
export function createGateway(options: GatewayOptions) {
  const { config, retired, requestId } = options
  const state: State = {
    ...options,
    service: config.service,
    matcher: Route.compile(config.merchants),
    itemsOf: compileItems(config, retired),
    networks: config.networks.map((network) => ({ network })),
  }
  return {
    /**
     * Answers a request below `/m/`; never rejects. With an `envelope` its caller puts the answer
     * into a message.
     */
    handle: (request: Request, peer: Peer, envelope?: Envelope) =>
      handle(state, request, { peer, requestId: requestId(), envelope }),
  }
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
  const { headers } = request
  const own = items[(method === 'HEAD' ? 'GET' : method) as Method]
  const item = own ?? (method === 'GET' ? Object.values(items).find(isByChannel) : undefined)
  if (item === undefined) throw notAllowed(allowOf(Object.keys(items)))
  const presented = item.signIn === undefined ? extract(headers) : extractWithSignIn(headers)
  // Clients refund a channel by GET at any route that takes it. That GET buys nothing.
  if (own === undefined && presented.kind !== 'none' && !isRefund(presented))
    throw notAllowed(allowOf(Object.keys(items)))
  const { peer, requestId, envelope } = caller
  const body = emptyBody
  // Name each member, because a spread costs as much as a lookup.
  const incoming: IncomingRequest = {
    request,
    match,
    item,
    path,
    search,
    body,
    presented,
    peer,
    requestId,
    envelope,
  }
  return sellWithinLimits(state, incoming)
}

function isByChannel(item: Item): boolean {
  return item.isByChannel === true
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
  const { networks, service, log } = state
  const known = error instanceof Problem.ProblemError
  const problem = inTermsOf(request, known ? error : unknownError(error, requestId), networks)
  if (!known) log.child({ requestId })('request-failed', { error })
  return toResponse(problem, { baseUrl: service.baseUrl, requestId })
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
  const read = problem.status === 429 ? undefined : value
  return Problem.withHeaders(problem, failureHeaders(problem, failingOf(read, networks)))
}
