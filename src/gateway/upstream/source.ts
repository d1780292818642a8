import type { Merchant, Route as RouteConfig } from '../../config/Config'
import type { Log } from '../../log'
import { UpstreamError } from '../../net/watch'
import type { Attempt, Fulfilled } from '../../paywall/answer/Fulfilment'
import * as Problem from '../../protocol/Problem'
import { originOf, serveBuiltin } from '../builtin/serve'
import type { Stocks } from '../builtin/stocks'
import type { IncomingRequest } from '../incoming'
import type { Match } from '../Route'
import { type Breaker, type Failure, isGatewayFailure } from './breaker'
import type { Latency } from './latency'
import { chargeOf, costOfTimeout } from './metering'
import type { Refusals } from './refusals'
import type { Asked, Forwarded, Upstream } from './upstream'

/** The sources of the answers that are sold: upstreams, and the program itself. */
export type Sources = {
  readonly upstream: Upstream
  readonly breaker: Breaker
  readonly refusals: Refusals
  readonly latency: Pick<Latency, 'observe'>
  /** Stock data for chain-stocks; undefined when the file lists no stocks. */
  readonly stocks: Stocks | undefined
  /** Whether an operator has paused the sales of a merchant. */
  readonly isPaused?: ((slug: string) => boolean) | undefined
  readonly now: () => number
  readonly log: Log
  /** Cached, because every 402 reads it and a URL builds its origin anew each time. */
  readonly failureKeys: Map<RouteConfig, string | undefined>
}

/** Why nothing is sold at a route now, from memory. */
export function unavailable(
  sources: Sources,
  merchant: Merchant,
  route: RouteConfig,
): Problem.ProblemError | undefined {
  if (merchant.outOfService !== undefined)
    return Problem.of(
      'not-ready',
      'This merchant is out of service; nothing is charged. Try again later.',
    )
  if (sources.isPaused?.(merchant.slug) === true)
    return Problem.of(
      'paused',
      'The sales of this merchant are paused; nothing is charged. Try again later.',
      { headers: { 'retry-after': '60' } },
    )
  const key = failureKey(sources, merchant, route)
  if (key === undefined || sources.breaker.isOpen(key, sources.now()))
    return Problem.of(
      'not-ready',
      'The upstream is not answering; nothing is charged. Try again later.',
      {
        headers: { 'retry-after': '10' },
      },
    )
  if (sources.refusals.isClosed(route))
    return Problem.of(
      'not-ready',
      'The upstream refuses the key of this service; nothing is charged. Try again later.',
      { headers: { 'retry-after': '60' } },
    )
  return undefined
}

/**
 * The problem of an upstream whose name does not resolve, or only to private addresses. Waits only
 * for the first lookup of a name.
 */
export function unreachable(
  { upstream }: Sources,
  match: Match,
): Problem.ProblemError | undefined | Promise<Problem.ProblemError | undefined> {
  if (match.merchant.builtin !== undefined) return undefined
  const reachable = upstream.isReachable(match)
  if (reachable instanceof Promise) return reachable.then((is) => (is ? undefined : away()))
  return reachable ? undefined : away()
}

/**
 * Starts the lookup of the upstream's name without waiting. Throws when the name is known to fail.
 */
export function assertReachable({ upstream }: Sources, match: Match): void {
  if (match.merchant.builtin === undefined && upstream.isReachable(match) === false) throw away()
}

/** Makes the request to the upstream, for a later `fulfil`; sends nothing. Never throws. */
export function prepare({ upstream }: Sources, incoming: IncomingRequest, body: Uint8Array): void {
  if (incoming.match.merchant.builtin !== undefined) return
  try {
    incoming.prepared = upstream.prepare(askedOf(incoming, body))
  } catch {
    // The forward has the same fault, and reports it.
  }
}

function askedOf({ match, request, search }: IncomingRequest, body: Uint8Array): Asked {
  return { match, method: request.method, search, headers: request.headers, body }
}

/** The answer to a request that is paid for, or why there is none. */
export async function fulfil(
  sources: Sources,
  incoming: IncomingRequest,
  body: Uint8Array,
  payment: Attempt,
): Promise<Fulfilled> {
  const startedAt = sources.now()
  const { slug } = incoming.match.merchant
  const observe = () => sources.latency.observe(slug, sources.now() - startedAt)
  if (incoming.match.merchant.builtin !== undefined) {
    const answer = await serveBuiltin(sources, incoming, body)
    observe()
    note(sources, incoming, payment, answer.delivered ? 'answer' : 'connect')
    return answer
  }
  const { prepared } = incoming
  incoming.prepared = undefined
  try {
    const answer = await sources.upstream.forward({
      ...askedOf(incoming, body),
      prepared,
      paymentId: payment.id,
      ...(payment.signal === undefined ? {} : { signal: payment.signal }),
    })
    observe()
    note(sources, incoming, payment, isGatewayFailure(answer.status) ? 'silence' : 'answer')
    sources.refusals.note(incoming.match, answer.status)
    if (isDelivery(answer.status)) {
      const chargeOfAnswer = chargeOf(incoming.match, body, answer.reader)
      return { ...deliveredBy(answer, incoming), chargeOf: chargeOfAnswer }
    }
    if (answer.body instanceof ReadableStream) await answer.body.cancel()
    return {
      delivered: false,
      upstreamStatus: answer.status,
      code: 'upstream-failed',
      detail: `The upstream answered ${answer.status}.`,
    }
  } catch (error) {
    if (!(error instanceof UpstreamError)) throw error
    // A truncated answer does not count as a failure here: a buyer may know a request that crashes
    // the upstream.
    if (error.kind !== 'cut')
      note(sources, incoming, payment, error.kind === 'timeout' ? 'silence' : 'connect')
    sources.log.child({ requestId: incoming.requestId })('upstream-failed', {
      merchant: incoming.match.merchant.slug,
      kind: error.kind,
      payment: payment.id,
    })
    const cost = error.kind === 'timeout' ? costOfTimeout(incoming.match, body) : undefined
    return { delivered: false, upstreamStatus: undefined, ...undeliverable[error.kind], cost }
  }
}

function deliveredBy(
  { status, headers, body }: Forwarded,
  incoming: IncomingRequest,
): Extract<Fulfilled, { delivered: true }> {
  // An answer inside a message is read completely before anything is sent.
  const answer = { delivered: true, status, headers, body } as const
  if (body instanceof Uint8Array || incoming.envelope !== undefined) return answer
  incoming.held = 'until-end'
  return { ...answer, onEnd: (isCut) => incoming.peer.hold?.(false, isCut) }
}

/** Reports the result of a paid request to the breaker. */
function note(
  sources: Sources,
  { match }: IncomingRequest,
  payment: Attempt,
  kind: 'answer' | Failure['kind'],
): void {
  const { breaker, now } = sources
  const key = failureKey(sources, match.merchant, match.route) ?? ''
  if (kind === 'answer') breaker.success(key, now())
  else if (mayCount(payment, kind))
    breaker.failure(key, { kind, payer: payment.transfer.payer }, now())
}

/**
 * Redemptions are free. If they counted, one payment for a request that breaks the upstream would
 * count several times. By `upto` a failed answer costs nothing, so three wallets could stop the
 * sales to others at will. Failures that no request can cause always count.
 */
function mayCount({ attempts, transfer }: Attempt, kind: Failure['kind']): boolean {
  return attempts === 1 && (kind === 'connect' || transfer.upto === undefined)
}

/** Key under which failures are counted; undefined when the route cannot be served at all. */
function failureKey(
  { failureKeys, stocks }: Sources,
  { builtin, upstream }: Merchant,
  route: RouteConfig,
): string | undefined {
  if (failureKeys.has(route)) return failureKeys.get(route)
  const key = builtin ? originOf(builtin, { stocks }) : (route.upstream ?? upstream)?.origin
  failureKeys.set(route, key)
  return key
}

function away(): Problem.ProblemError {
  return Problem.of(
    'not-ready',
    'The upstream is not reachable; nothing is charged. Try again later.',
    {
      headers: { 'retry-after': '10' },
    },
  )
}

const undeliverable = {
  connect: { code: 'upstream-unreachable', detail: 'The upstream could not be reached.' },
  'refused-address': { code: 'upstream-unreachable', detail: 'The upstream is not reachable.' },
  timeout: { code: 'upstream-timeout', detail: 'The upstream did not answer in time.' },
  cut: { code: 'upstream-failed', detail: 'The answer of the upstream was cut off.' },
} as const

/** Statuses that count as the upstream's answer. All others are failures of the upstream. */
function isDelivery(status: number): boolean {
  if (status < 200 || status >= 500) return false
  if (status >= 300 && status < 400) return false
  return ![401, 402, 403, 407, 408, 425, 429].includes(status)
}
