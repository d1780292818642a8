import type { Read } from './reader'

const token = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/

/** Request headers that the gateway or the connection sets. */
const gatewayRequest = new Set([
  'host',
  'content-length',
  'transfer-encoding',
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'upgrade',
  'expect',
  'idempotency-key',
])

/** Response headers that must not come from a merchant: all merchants share one origin. */
const forbiddenResponse = new Set([
  'set-cookie',
  'set-cookie2',
  'location',
  'refresh',
  'www-authenticate',
  'proxy-authenticate',
  'authentication-info',
  'cache-control',
  'expires',
  'pragma',
  'vary',
  'content-security-policy',
  'content-security-policy-report-only',
  'x-content-type-options',
  'strict-transport-security',
  'clear-site-data',
  'service-worker-allowed',
  'alt-svc',
  'connection',
  'keep-alive',
  'content-length',
  'content-encoding',
  'transfer-encoding',
  'te',
  'trailer',
  'upgrade',
])

const forbiddenPrefixes = [
  'payment-',
  'x-payment',
  'settlement-',
  'access-control-',
  'proxy-',
  'idempotency-',
]

/** Why a merchant may not send this request header; undefined when it may. */
export function requestNameFault(name: string): string | undefined {
  if (!token.test(name)) return 'is not a header name: letters, digits and - only'
  const lower = name.toLowerCase()
  if (gatewayRequest.has(lower)) return 'is set by the gateway: remove it'
  const prefix = forbiddenPrefixes.find((start) => lower.startsWith(start))
  return prefix ? `starts with ${prefix}, which is never sent upstream: remove it` : undefined
}

/**
 * A header value. A line end could add a second header. The value is never shown, because it may be
 * a secret.
 */
export const value: Read<string> = (raw) =>
  typeof raw === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(raw)
    ? raw
    : { wrong: 'must be a string without line ends or control characters', hide: true }

/** A response header that may be forwarded to the buyer, lower-case. */
export const passName: Read<string> = (raw) => {
  if (typeof raw !== 'string' || !token.test(raw)) {
    return { wrong: 'must be a header name, such as "x-total-count"' }
  }
  const name = raw.toLowerCase()
  const isForbidden =
    forbiddenResponse.has(name) || forbiddenPrefixes.some((prefix) => name.startsWith(prefix))
  return isForbidden ? { wrong: 'must not name a header that is never forwarded: remove it' } : name
}
