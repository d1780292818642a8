import { countTry, type Tally } from '../books/tally'
import type { Config } from '../config/Config'
import { type Body, type Budget, readBody } from '../http/body'
import { clientOf } from '../http/client'
import { assertUnpacked } from '../http/methods'
import * as RateLimit from '../http/rate-limit'
import { bodyDigest, fingerprint, type IsPlausible } from '../paywall/credential'
import type { GatewaySale } from '../paywall/GatewaySale'
import type { Item } from '../paywall/offer/Item'
import type { Paywall } from '../paywall/paywall'
import * as Client from '../protocol/Client'
import * as Problem from '../protocol/Problem'
import { invalidInputs } from './builtin/serve'
import { atCeiling } from './items'
import type { Concurrency } from './upstream/concurrency'
import { selecting } from './upstream/headers'
import { quoteFor } from './upstream/metering'
import {
  type AnswerSources,
  fulfil,
  fulfilBuiltin,
  type IncomingRequest,
  prepareUpstream,
  unavailabilityOf,
} from './upstream/source'
import type { InvalidParam } from './validate'

/** What a sale needs: its limits, the paywall, a free slot, and the source of the answer. */
export type SaleContext = AnswerSources & {
  readonly service: Config['service']
  readonly rateLimit: RateLimit.RateLimit
  readonly budget: Budget
  readonly isPlausible: IsPlausible
  /** False while the process stops: nothing new is started. */
  readonly accepts: () => boolean
  readonly paywall: Paywall
  readonly tally: Tally
  readonly concurrency: Concurrency
}

/** Longest body whose faults are named in a 402. */
const hintMaxBytes = 16 * 1024

export const emptyBody = new Uint8Array()
/** Marks a body that is too long to be read without a credential. */
const droppedBody = new Uint8Array()

/** Sells to a client within its limits. Throws ProblemError. */
export function sellWithinLimits(
  sales: SaleContext,
  incoming: IncomingRequest,
): Response | Promise<Response> {
  const { kind } = incoming.presented
  if (kind === 'none') return open(sales, incoming)
  // Not a try to pay.
  if (kind === 'sign-in') return limit(sales, incoming)
  const counts = sales.tally.of(incoming.item, clientKindOf(incoming))
  return countTry(counts, kind, () => limit(sales, incoming))
}

function clientKindOf({ request, envelope }: IncomingRequest): Client.Kind {
  return envelope === undefined ? Client.kindOf(request.headers) : 'mcp'
}

/** Share of the credentials of an address in a minute that may be refused. */
const refusedShare = 0.1

/** Credentials of an address in a minute that may be refused. */
export function refusedPerMinute({ paidPerMinute }: Pick<Config['service'], 'paidPerMinute'>) {
  return Math.ceil(paidPerMinute * refusedShare)
}

/**
 * Credentials cost calls to a node, so the number per address is limited, and fewer may be refused.
 */
function limit(sales: SaleContext, incoming: IncomingRequest): Promise<Response> | Response {
  const { rateLimit, now } = sales
  const { paidPerMinute, trustProxy } = sales.service
  const key = clientOf(incoming.request, incoming.peer(), trustProxy)
  const refusedMax = refusedPerMinute(sales.service)
  RateLimit.assertWithin(rateLimit.take(`paid ${key}`, paidPerMinute, now()), 'paid requests')
  RateLimit.assertWithin(rateLimit.peek(`refused ${key}`, refusedMax, now()), 'paid requests')
  const opened = open(sales, incoming)
  if (!(opened instanceof Promise)) return opened
  const answer = opened.finally(() => {
    if (incoming.held === 'until-answer') incoming.peer.hold?.(false)
  })
  const { presented } = incoming
  if (presented.kind === 'redeem') return answer
  const refused = () => rateLimit.take(`refused ${key}`, refusedMax, now())
  return answer.then(
    (response) => {
      // A new challenge: the signature was bad, or the simulation failed. This counts against the
      // address, because the named payer may not have signed it. A transaction that fails on chain
      // counts against the payer.
      const isFree = presented.kind === 'sign-in' && presented.isUnentitled === true
      const isOutOfStep = presented.kind === 'x402' && presented.isCorrected === true
      if (response.status === 402 && !isFree && !isOutOfStep) refused()
      return response
    },
    (error) => {
      // The whole body was searched for a credential that was not checked.
      if (error instanceof Problem.ProblemError && error.code === 'invalid-parameter') refused()
      throw error
    },
  )
}

/** Reads the body, if there is one, and sells. */
function open(sales: SaleContext, incoming: IncomingRequest): Response | Promise<Response> {
  const { service, budget } = sales
  const { request, presented } = incoming
  if (!sales.accepts())
    throw Problem.of('not-ready', 'The service is stopping: send the request again.')
  if (!hasBody(request)) return sell(sales, incoming)
  assertUnpacked(request.headers)
  const { bodyMaxBytes } = incoming.match.route
  const sellWith = async ({ bytes, release }: Body) => {
    incoming.body = bytes
    try {
      return await sell(sales, incoming)
    } finally {
      // A 402 is refused before there is a promise.
      release()
    }
  }
  const client = clientOf(request, incoming.peer(), service.trustProxy)
  if (presented.kind !== 'none') {
    return sales
      .isPlausible(presented, incoming.item)
      .then((isPaid) => readBody(request, bodyMaxBytes, budget, { client, isPaid }))
      .then(sellWith)
  }
  // Without a credential the body is only hashed. Without room for it the 402 has no digest.
  const most = Math.min(service.unpaidBodyMaxBytes, bodyMaxBytes)
  return readBody(request, most, budget, { client, isPaid: false }).then(sellWith, (error) => {
    const isLeftOut = error instanceof Problem.ProblemError && [413, 503].includes(error.status)
    if (!isLeftOut) throw error
    incoming.body = droppedBody
    return sell(sales, incoming)
  })
}

function hasBody(request: Request): boolean {
  const { method, headers } = request
  if (method === 'GET' || method === 'HEAD') return false
  return headers.has('transfer-encoding') || (headers.get('content-length') ?? '0') !== '0'
}

/** With a longer URL the head of an answer with its receipt would be longer than proxies accept. */
const urlMaxLength = 300

/** The answer to a request whose body was read: what was bought, or a 402. */
function sell(sales: SaleContext, incoming: IncomingRequest): Response | Promise<Response> {
  // The 402 is the most frequent answer, so build nothing for it that only a sale needs.
  if (incoming.presented.kind === 'none') return ask(sales, incoming)
  const { request, match, item, path, search, body, peer } = incoming
  const { merchant, route } = match
  const { baseUrl, concurrencyMax, trustProxy } = sales.service
  const resource = baseUrl + path
  const sale: GatewaySale = {
    item,
    priced: route.meter === undefined ? undefined : () => priced(incoming),
    method: request.method,
    path,
    search,
    url: resource + search,
    headers: request.headers,
    presented: incoming.presented,
    body,
    digest: bodyDigest(body),
    selecting: () => selecting(request.headers, merchant, route),
    purpose: {
      product: 'gateway',
      merchant: item.merchant,
      route: item.route,
      resource: resource.length > urlMaxLength ? item.resource.url : resource,
    },
    requestId: incoming.requestId,
    clientKind: clientKindOf(incoming),
    timeoutMs: merchant.timeoutMs,
    envelope: incoming.envelope,
    isAgain: item.again !== undefined,
    get client() {
      return clientOf(request, peer(), trustProxy)
    },
    // Lazy, because creating a signal costs as much as the other bookkeeping of an unpaid answer.
    get signal() {
      return request.signal
    },
    get invalidParams() {
      return hasInputs(incoming) ? invalidIn(sales, incoming) : []
    },
    unavailable: () => unavailabilityOf(sales, match),
    reserve: () => {
      const free = merchant.builtin
        ? () => undefined
        : sales.concurrency.acquire(merchant, concurrencyMax)
      // Settlement and the upstream have time limits of their own, which may exceed the server's
      // idle timeout.
      incoming.held = 'until-answer'
      peer.hold?.(true)
      return free
    },
    prepare: () => prepareUpstream(sales, incoming),
    fulfil: (payment) =>
      merchant.builtin === undefined
        ? fulfil(sales, incoming, payment)
        : fulfilBuiltin(sales, incoming, payment),
  }
  return sales.paywall.serve(sale)
}

/** The item at the price of a request. Without the whole body that is the price of the route. */
function priced({ item, match, body }: IncomingRequest): Item {
  const quote = body === droppedBody ? undefined : quoteFor(match, body)
  return quote === undefined ? item : atCeiling(item, quote.ceilingAtomic)
}

/** Makes the 402. */
function ask(sales: SaleContext, incoming: IncomingRequest): Response {
  const { match, item, path, search, body, requestId } = incoming
  // Starts a lookup that a payment would otherwise wait for, and does not wait for it.
  const problem = unavailabilityOf(sales, match)
  if (problem instanceof Problem.ProblemError) throw problem
  const asked = {
    item: match.route.meter === undefined ? item : priced(incoming),
    url: sales.service.baseUrl + path + search,
    requestId,
    clientKind: clientKindOf(incoming),
  }
  const digest = bodyDigest(body)
  const mayIn = item.signIn !== undefined && incoming.envelope === undefined && body !== droppedBody
  return sales.paywall.ask(asked, {
    digest,
    signIn: mayIn ? fingerprint(incoming.request.method, path, search, { digest }) : undefined,
    isBodiless: body.byteLength === 0 && body !== droppedBody,
    // A client without a credential must not make us parse a large body.
    invalidParams: () =>
      body.byteLength > hintMaxBytes || body === droppedBody ? [] : invalidIn(sales, incoming),
  })
}

/** Whether there is something to check: most requests have no input for a schema or a meter. */
function hasInputs({ match: { merchant, route }, body }: IncomingRequest): boolean {
  if (route.params.length > 0 || route.bodyRequired || route.meter !== undefined) return true
  return body.byteLength > 0 || merchant.builtin !== undefined
}

/** The inputs that the route does not serve: by its schemas, then by the limits of its meter. */
function invalidIn(sources: AnswerSources, incoming: IncomingRequest): readonly InvalidParam[] {
  const { match, body } = incoming
  const found = invalidInputs(sources, incoming)
  if (found.length > 0) return found
  const faults = quoteFor(match, body)?.faults ?? []
  return faults.map((fault) => ({ ...fault, in: 'body' }))
}
