import type { Merchant, Route } from '../../config/Config'

/**
 * Headers of a buyer's request that are forwarded. This is an allowlist, because an upstream may
 * give a meaning to any name (x-payer, x-api-key, x-http-method-override, x-original-url, ...).
 * Method, path, query and body name what is sold. Range and conditional headers are not forwarded:
 * the buyer pays for one whole answer, and a 304 would deliver nothing.
 */
const requestAllowed = ['accept', 'accept-language', 'content-language', 'content-type'] as const

/**
 * The forwarded headers that decide which answer a metered request gets, in one form for clients
 * that write the same differently. Accept-Encoding is not forwarded there, and the merchant's own
 * headers are the same for all.
 */
export function selecting(
  buyer: Headers,
  merchant: Pick<Merchant, 'headers'>,
  route: Pick<Route, 'meter'>,
): string {
  const own = Object.keys(merchant.headers).map((name) => name.toLowerCase())
  if (route.meter?.plan.request !== undefined) own.push('content-type')
  own.push(...tokens(buyer.get('connection')))
  const lines = requestAllowed.map((name) => {
    const sent = buyer.get(name) ?? (name === 'accept' ? '*/*' : '')
    return own.includes(name) ? '' : sent.toLowerCase().replace(/[ \t]/g, '')
  })
  return lines.join('\n')
}

const encodings = /^(?:gzip|br|deflate|zstd|identity|x-gzip|\*)$/i

/** Headers of an upstream's answer that are forwarded, besides the route's `pass_headers`. */
const responseAllowed = [
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-type',
  'etag',
  'last-modified',
  'retry-after',
] as const

/**
 * Never forwarded, even when a route lists it: framing, payment headers, the buyer's browser state,
 * and headers that would affect the origin that all merchants share.
 */
const responseForbidden =
  /^(?:connection|keep-alive|te|trailer|transfer-encoding|upgrade|content-length|location|refresh|set-cookie2?|www-authenticate|authorization|cache-control|expires|pragma|vary|alt-svc|alt-used|clear-site-data|service-worker-allowed|strict-transport-security|public-key-pins|x-content-type-options|x-frame-options|nel|report-to|reporting-endpoints|origin-agent-cluster|idempotency-replayed|x-request-id)$|^(?:proxy|payment|x-payment|settlement-|access-control|content-security-policy|cross-origin|permissions-policy|speculation-rules|x-accel|x-sendfile)/

/**
 * Headers of the upstream request: the allowed ones of the buyer, then the merchant's, which take
 * precedence. The connection sets Host, Content-Length and Idempotency-Key.
 */
export function toUpstream(
  buyer: Headers,
  merchant: Pick<Merchant, 'headers'>,
  route: Pick<Route, 'meter' | 'body'>,
  hasBody: boolean,
): Headers {
  const headers = new Headers()
  const listed = tokens(buyer.get('connection'))
  for (const name of requestAllowed) {
    const value = buyer.get(name)
    if (value !== null && !listed.includes(name)) headers.set(name, value)
  }
  // Bodies are forwarded in their encoding, so the upstream may use only what the buyer can decode.
  const accepted = (buyer.get('accept-encoding') ?? '')
    .split(',')
    .map((part) => part.trim())
    .filter((part) => encodings.test(part.split(';', 1)[0]?.trim() ?? ''))
  headers.set('accept-encoding', accepted.length === 0 ? 'identity' : accepted.join(', '))
  // A meter and a schema read the body as JSON in UTF-8. Under another type, such as a form or UTF-7,
  // the same bytes may have other members. `curl -d` says that its JSON is a form.
  const isJson = route.meter?.plan.request !== undefined || (hasBody && route.body !== undefined)
  if (isJson) headers.set('content-type', 'application/json')
  // Set here because fetch would send its own name.
  headers.set('user-agent', 'turnpike')
  for (const [name, value] of Object.entries(merchant.headers)) headers.set(name, value)
  return headers
}

/**
 * Headers of the buyer's answer. It is always private and not stored, because one buyer paid for
 * it. It is always sandboxed, because every merchant's content appears under one origin.
 */
export function toBuyer(upstream: Headers, route: Pick<Route, 'passHeaders'>): Headers {
  const headers = new Headers()
  const listed = tokens(upstream.get('connection'))
  for (const name of [...responseAllowed, ...route.passHeaders]) {
    const value = upstream.get(name)
    if (value === null || responseForbidden.test(name.toLowerCase())) continue
    if (!listed.includes(name.toLowerCase())) headers.set(name, value)
  }
  headers.set('cache-control', 'private, no-store')
  headers.set('x-content-type-options', 'nosniff')
  headers.set('content-security-policy', 'sandbox')
  return headers
}

function tokens(value: string | null): string[] {
  return value === null ? [] : value.split(',').map((token) => token.trim().toLowerCase())
}
