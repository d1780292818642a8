import type { Merchant } from '../../config/Config'
import type { Peer } from '../../http/client'
import type { Log } from '../../log'
import { UpstreamError } from '../../net/watch'
import type { Attempt, Fulfilled, Made } from '../../paywall/answer/delivery'
import type { Envelope } from '../../paywall/answer/remainder'
import type { Presented } from '../../paywall/credential'
import type { Item } from '../../paywall/offer/Item'
import * as Problem from '../../protocol/Problem'
import { originOf, serveBuiltin } from '../builtin/serve'
import type { Stocks } from '../builtin/stocks'
import type { Match } from '../Route'
import type { Breaker, Failure } from './breaker'
import type { Latency } from './latency'
import { chargeOf, costOfTimeout } from './metering'
import { type Refusals, refusing } from './refusals'
import {
  forward,
  isReachable,
  type Prepared,
  prepareRequest,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamRequest,
} from './upstream'

/** A request for something that is sold, and what it selects. */
export type IncomingRequest = {
  request: Request
  match: Match
  item: Item
  path: string
  /** '' or with its `?`. */
  search: string
  /** Empty until it was read. */
  body: Uint8Array
  presented: Presented
  peer: Peer
  requestId: string
  /** Set by a caller that puts the answer into a message. */
  envelope: Envelope | undefined
  /** Whether the idle timeout is suspended, and by a stream until the stream ends. */
  held?: 'until-answer' | 'until-end'
  /** The request to the upstream, where it was made before its payment was decided. */
  prepared?: Prepared | undefined
}

/** The sources of the answers that are sold: upstreams, and the program itself. */
export type AnswerSources = {
  readonly upstream: Upstream
  readonly breaker: Breaker
  readonly refusals: Refusals
  readonly latency: Pick<Latency, 'observe'>
  /** Stock data for chain-stocks; undefined when the file lists no stocks. */
  readonly stocks?: Stocks | undefined
  /** Whether an operator has paused the sales of a merchant. */
  readonly isPaused?: ((slug: string) => boolean) | undefined
  readonly now: () => number
  readonly log: Log
}

/**
 * Why nothing is sold at a route now. It is known from memory, and a promise only while the name of
 * the upstream is looked up for the first time. It never rejects.
 */
export function unavailabilityOf(
  sources: AnswerSources,
  match: Match,
): Problem.ProblemError | undefined | Promise<Problem.ProblemError | undefined> {
  const { merchant, route } = match
  if (merchant.outOfService !== undefined)
    return Problem.of(
      'not-ready',
      'This merchant is out of service; nothing is charged. Try again later.',
    )
  if (sources.isPaused?.(merchant.slug) === true)
    return away('The sales of this merchant are paused', '60', 'paused')
  const key = failureKey(sources, match)
  if (key === undefined || sources.breaker.isOpen(key, sources.now()))
    return away('The upstream is not answering', '10')
  if (sources.refusals.isClosed(route))
    return away('The upstream refuses the key of this service', '60')
  const reachable = isReachable(sources.upstream, match)
  if (reachable instanceof Promise) return reachable.then((is) => (is ? undefined : unreachable()))
  return reachable ? undefined : unreachable()
}

function unreachable(): Problem.ProblemError {
  return away('The upstream is not reachable', '10')
}

function away(
  reason: string,
  retryAfter: string,
  code: 'not-ready' | 'paused' = 'not-ready',
): Problem.ProblemError {
  const headers = { 'retry-after': retryAfter }
  return Problem.of(code, `${reason}; nothing is charged. Try again later.`, { headers })
}

/** Makes the request to the upstream, for a later delivery; sends nothing. Never throws. */
export function prepareUpstream({ upstream }: AnswerSources, incoming: IncomingRequest): void {
  if (incoming.match.merchant.builtin !== undefined) return
  try {
    incoming.prepared = prepareRequest(upstream, askedOf(incoming))
  } catch {
    // The forward has the same fault, and reports it.
  }
}

function askedOf({ match, request, search, body }: IncomingRequest): UpstreamRequest {
  return { match, method: request.method, search, headers: request.headers, body }
}

/** The answer of a merchant that the program serves itself, or why there is none. */
export async function fulfilBuiltin(
  sources: AnswerSources,
  incoming: IncomingRequest,
  payment: Attempt,
): Promise<Fulfilled> {
  const startedAt = sources.now()
  const answer = await serveBuiltin(sources, incoming)
  observe(sources, incoming, startedAt)
  note(sources, incoming, payment, answer.delivered ? 'answer' : 'connect')
  return answer
}

/** The answer of the upstream to a request that is paid for, or why there is none. */
export async function fulfil(
  sources: AnswerSources,
  incoming: IncomingRequest,
  payment: Attempt,
): Promise<Fulfilled> {
  const startedAt = sources.now()
  const { match, prepared } = incoming
  incoming.prepared = undefined
  try {
    const answer = await forward(sources.upstream, {
      ...askedOf(incoming),
      prepared,
      paymentId: payment.id,
      ...(payment.signal === undefined ? {} : { signal: payment.signal }),
    })
    const { status, body } = answer
    observe(sources, incoming, startedAt)
    note(sources, incoming, payment, gatewayFailures.has(status) ? 'silence' : 'answer')
    sources.refusals.note(match, status)
    if (isDelivery(status)) return deliveredBy(answer, incoming)
    if (body instanceof ReadableStream) await body.cancel()
    return {
      delivered: false,
      upstreamStatus: status,
      code: 'upstream-failed',
      detail: `The upstream answered ${status}.`,
    }
  } catch (error) {
    if (!(error instanceof UpstreamError)) throw error
    const { kind } = error
    // A truncated answer does not count as a failure here: a buyer may know a request that crashes
    // the upstream.
    if (kind !== 'cut') note(sources, incoming, payment, kind === 'timeout' ? 'silence' : 'connect')
    sources.log.child({ requestId: incoming.requestId })('upstream-failed', {
      merchant: match.merchant.slug,
      kind,
      payment: payment.id,
    })
    const cost = kind === 'timeout' ? costOfTimeout(match, incoming.body) : undefined
    return { delivered: false, upstreamStatus: undefined, ...undeliverable[kind], cost }
  }
}

function deliveredBy(
  { status, headers, body, reader }: UpstreamAnswer,
  incoming: IncomingRequest,
): Made {
  const answer: Made = { delivered: true, status, headers, body }
  if (reader !== undefined) answer.chargeOf = chargeOf(incoming.match, incoming.body, reader)
  // An answer inside a message is read completely before anything is sent.
  if (body instanceof Uint8Array || incoming.envelope !== undefined) return answer
  incoming.held = 'until-end'
  answer.onEnd = (isCut) => incoming.peer.hold?.(false, isCut)
  return answer
}

function observe(
  { latency, now }: AnswerSources,
  { match }: IncomingRequest,
  startedAt: number,
): void {
  latency.observe(match.merchant.slug, now() - startedAt)
}

/** Reports the result of a paid request to the breaker. */
function note(
  sources: AnswerSources,
  { match }: IncomingRequest,
  payment: Attempt,
  kind: 'answer' | Failure['kind'],
): void {
  const { breaker, now } = sources
  const key = failureKey(sources, match) ?? ''
  if (kind === 'answer') breaker.success(key, now())
  else if (mayCount(payment, kind))
    breaker.failure(key, { kind, payer: payment.transfer.payer }, now())
}

/**
 * Redemptions are free. If they counted, one payment for a request that breaks the upstream would
 * count several times. By `upto`, and for a use of an entitlement, a failed answer costs nothing, so
 * three wallets could stop the sales to others at will. Failures that no request can cause always count.
 */
function mayCount({ attempts, transfer, isFree }: Attempt, kind: Failure['kind']): boolean {
  return attempts === 1 && (kind === 'connect' || !(isFree || transfer.upto !== undefined))
}

/** Key under which failures are counted; undefined when the route cannot be served at all. */
function failureKey({ stocks }: AnswerSources, { merchant, target }: Match): string | undefined {
  return merchant.builtin ? originOf(merchant.builtin, { stocks }) : target?.origin
}

const undeliverable = {
  connect: { code: 'upstream-unreachable', detail: 'The upstream could not be reached.' },
  'refused-address': { code: 'upstream-unreachable', detail: 'The upstream is not reachable.' },
  timeout: { code: 'upstream-timeout', detail: 'The upstream did not answer in time.' },
  cut: { code: 'upstream-failed', detail: 'The answer of the upstream was cut off.' },
} as const

/** With these a proxy answers in front of an upstream that is missing. */
const gatewayFailures: ReadonlySet<number> = new Set([502, 503, 504])

/** Statuses that count as the upstream's answer. All others are failures of the upstream. */
function isDelivery(status: number): boolean {
  if (status < 200 || status >= 500) return false
  if (status >= 300 && status < 400) return false
  return !refusing.has(status) && ![402, 408, 425, 429].includes(status)
}

/** Whether a merchant can deliver now. */
type Availability = 'available' | 'partly' | 'unavailable' | 'out-of-service'

/** Upstreams that a merchant needs to deliver; none for a builtin merchant that cannot deliver. */
export function originsOf(merchant: Merchant, stocks: Stocks | undefined): string[] {
  const { builtin, upstream, routes } = merchant
  const all =
    builtin === undefined
      ? [upstream, ...routes.map((route) => route.upstream)].map((url) => url?.origin)
      : [originOf(builtin, { stocks })]
  return [...new Set(all.filter((origin) => origin !== undefined))]
}

/** Whether a merchant with these origins can deliver now, according to the last requests. */
export function availabilityOf(
  origins: readonly string[],
  { outOfService }: Merchant,
  isOpen: (origin: string) => boolean,
): Availability {
  if (outOfService !== undefined || origins.length === 0) return 'out-of-service'
  const silent = origins.filter(isOpen).length
  if (silent === 0) return 'available'
  return silent < origins.length ? 'partly' : 'unavailable'
}

/**
 * A merchant that is configured and not served, with the reason: a variable's name, never its
 * value.
 */
export function outOfService(merchant: Merchant): { merchant: string; reason: string }[] {
  if (merchant.outOfService === undefined) return []
  return [{ merchant: merchant.slug, reason: `${merchant.outOfService} is not set` }]
}
