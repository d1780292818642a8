import * as Quote from '../meter/Quote'
import { type Match, upstreamUrl } from './Route'
import { rewriteBody } from './rewrite'

/** The body and what it was quoted: a sale asks for it, and the forward asks again. */
const quoted = new WeakMap<Uint8Array, { match: Match; quote: Quote.Quote }>()

/** What a request with this body costs at most; undefined for a route with a fixed price. */
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
