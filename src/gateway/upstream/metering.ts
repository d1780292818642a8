import * as Charge from '../../meter/Charge'
import * as Quote from '../../meter/Quote'
import type { Reader } from '../../meter/Reader'
import * as Text from '../../meter/Text'
import { type Match, upstreamUrl } from '../Route'
import { rewriteBody } from './rewrite'

/** The quotes by body: a sale asks for its quote, and the forward asks again. */
const quoted = new WeakMap<Uint8Array, { match: Match; quote: Quote.Quote }>()

/** The most that a request with this body costs; undefined for a route with a fixed price. */
export function quoteFor(match: Match, body: Uint8Array): Quote.Quote | undefined {
  const { route, tail, target } = match
  if (route.meter === undefined || target === undefined) return undefined
  const known = quoted.get(body)
  if (known?.match.route === route && known.match.tail === tail) return known.quote
  const path = upstreamUrl(target, tail, '').pathname
  const quote = Quote.of(route.meter, { path, body: rewriteBody(body, route.rewrite) })
  // Requests without a body share one.
  if (body.byteLength > 0) quoted.set(body, { match, quote })
  return quote
}

/** The body as it is forwarded. */
export function forwardedBody(match: Match, body: Uint8Array): Uint8Array {
  return quoteFor(match, body)?.body ?? rewriteBody(body, match.route.rewrite)
}

/**
 * The cost of an answer. One that was not read to its end costs what `missing` says, because
 * services report the usage at the end; what it used until then, where that is more. Otherwise a
 * buyer would choose what it pays by choosing when it is cut. Undefined for a route with a fixed
 * price.
 */
export function chargeOf(
  match: Match,
  body: Uint8Array,
  reader: Pick<Reader, 'end' | 'soFar'> | undefined,
): ((isWhole: boolean) => Charge.Charge) | undefined {
  const { meter } = match.route
  const quote = quoteFor(match, body)
  if (meter === undefined || quote === undefined || reader === undefined) return undefined
  return (isWhole) => {
    const usage = reader.end()
    if (isWhole || usage.kind === 'failed' || usage.kind === 'named')
      return Charge.of(meter, quote, usage)
    const missing = Charge.of(meter, quote, unread)
    const used = Charge.of(meter, quote, reader.soFar(Text.tokensOf(body, meter.plan.texts)))
    const { reason } = unread
    return used.amountAtomic > missing.amountAtomic ? { ...used, reason } : missing
  }
}

/** The cost of a request that was not answered in time; undefined where it costs nothing. */
export function costOfTimeout(match: Match, body: Uint8Array): Charge.Charge | undefined {
  const { meter } = match.route
  const quote = quoteFor(match, body)
  return meter && quote && Charge.ofTimeout(meter, quote)
}

const unread = { kind: 'missing', reason: 'the answer was not read to its end' } as const
