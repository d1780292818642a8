import { clientOf } from '../http/client'
import { receiptUrl } from '../paywall/answer/receipts'
import { bodyDigest } from '../paywall/fingerprint'
import type { Item } from '../paywall/offer/Item'
import type { GatewaySale, Paywall } from '../paywall/paywall'
import { invalidInputs } from './builtin/serve'
import type { IncomingRequest } from './incoming'
import { atCeiling } from './items'
import { acquire, type Concurrency } from './upstream/concurrency'
import { selecting } from './upstream/headers'
import { quoteFor } from './upstream/metering'
import {
  assertReachable,
  fulfil,
  prepare,
  type Sources,
  unavailable,
  unreachable,
} from './upstream/source'
import type { InvalidParam } from './validate'

/** What a sale needs: the paywall, a free slot, and the source of the answer. */
export type Sales = {
  readonly paywall: Paywall
  readonly concurrency: Concurrency
  /** Most sales of all merchants together. */
  readonly concurrencyMax: number
  readonly baseUrl: string
  readonly sources: Sources
  /** Number of reverse proxies in front. */
  readonly trustProxy: number
}

/** Longest body whose faults are named in a 402. */
const hintMaxBytes = 16 * 1024

export const emptyBody = new Uint8Array()
/** Marks a body that is too long to be read without a credential. */
export const droppedBody = new Uint8Array()

/** The answer to a request whose body was read: what was bought, or a 402. */
export function sell(
  sales: Sales,
  incoming: IncomingRequest,
  body: Uint8Array,
): Response | Promise<Response> {
  // The 402 is the most frequent answer, so build nothing for it that only a sale needs.
  if (incoming.presented.kind === 'none') return ask(sales, incoming, body)
  const { request, match, item, path, search } = incoming
  const { sources } = sales
  const resource = sales.baseUrl + path
  const sale: GatewaySale = {
    item,
    priced: () => priced(incoming, body),
    method: request.method,
    path,
    search,
    resource,
    url: resource + search,
    headers: request.headers,
    presented: incoming.presented,
    body,
    digest: bodyDigest(body),
    selecting: () => selecting(request.headers, match.merchant, match.route),
    purpose: {
      product: 'gateway',
      merchant: item.merchant,
      route: item.route,
      resource: receiptUrl(resource, item),
    },
    requestId: incoming.requestId,
    timeoutMs: match.merchant.timeoutMs,
    envelope: incoming.envelope,
    get client() {
      return clientOf(request, incoming.peer(), sales.trustProxy)
    },
    // Lazy, because creating a signal costs as much as the other bookkeeping of an unpaid answer.
    get signal() {
      return request.signal
    },
    get invalidParams() {
      return invalidIn(sources, incoming, body)
    },
    unavailable: () =>
      unavailable(sources, match.merchant, match.route) ?? unreachable(sources, match),
    reserve: () => reserve(sales, incoming),
    prepare: () => prepare(sources, incoming, body),
    fulfil: (payment) => fulfil(sources, incoming, body, payment),
  }
  return sales.paywall.serve(sale)
}

/** The item at the price of a request. Without the whole body that is the price of the route. */
function priced({ item, match }: IncomingRequest, body: Uint8Array): Item {
  const quote = body === droppedBody ? undefined : quoteFor(match, body)
  return quote === undefined ? item : atCeiling(item, quote.ceilingAtomic)
}

/** Makes the 402. */
function ask(
  { paywall, baseUrl, sources }: Sales,
  incoming: IncomingRequest,
  body: Uint8Array,
): Response {
  const { match, path, search, requestId } = incoming
  const problem = unavailable(sources, match.merchant, match.route)
  if (problem !== undefined) throw problem
  // Starts a lookup that a payment would otherwise wait for.
  assertReachable(sources, match)
  const asked = { item: priced(incoming, body), url: baseUrl + path + search, requestId }
  return paywall.ask(asked, {
    digest: bodyDigest(body),
    isBodiless: body.byteLength === 0 && body !== droppedBody,
    // A client without a credential must not make us parse a large body.
    invalidParams: () =>
      body.byteLength > hintMaxBytes || body === droppedBody
        ? []
        : invalidIn(sources, incoming, body),
  })
}

/** The inputs that the route does not serve: by its schemas, then by the limits of its meter. */
function invalidIn(
  sources: Sources,
  incoming: IncomingRequest,
  body: Uint8Array,
): readonly InvalidParam[] {
  const found = invalidInputs(sources, incoming, body)
  if (found.length > 0) return found
  const faults = quoteFor(incoming.match, body)?.faults ?? []
  return faults.map((fault) => ({ ...fault, in: 'body' }))
}

/** Acquires a slot for a sale and its delivery; throws when there is none. */
function reserve({ concurrency, concurrencyMax }: Sales, incoming: IncomingRequest): () => void {
  const { merchant } = incoming.match
  const free = merchant.builtin ? () => undefined : acquire(concurrency, merchant, concurrencyMax)
  // Settlement and the upstream have time limits of their own, which may exceed the server's idle
  // timeout.
  incoming.held = 'until-answer'
  incoming.peer.hold?.(true)
  return free
}
