import * as Problem from '../protocol/Problem'
import { corsHeaders } from './problem'

type Answer = Response | Promise<Response>
/** The parts of a path that its pattern names. */
export type Params = Readonly<Record<string, string>>
export type Handler<Given extends Answer = Answer> = (request: Request, params: Params) => Given

/** Elysia option: the route reads the body itself, or does not read it. */
export const unread = { parse: 'none' } as const

/**
 * One handler for all methods of a path. HEAD runs the handler of GET, and the server omits the
 * body, so that both have the same header fields. OPTIONS is answered for every path. `isOpen`:
 * pages of other origins may send requests. Throws ProblemError 405 that lists the allowed methods.
 */
export function byMethod<Given extends Answer>(
  handlers: Partial<Record<'GET' | 'POST', Handler<Given>>>,
  { isOpen }: { isOpen: boolean },
): (request: Request, params?: Params) => Given | Response {
  const known = new Map(Object.entries(handlers))
  const allow = allowOf([...known.keys()])
  return (request, params = {}) => {
    const { method } = request
    if (method === 'OPTIONS') return isOpen ? preflight(request, allow) : options(allow)
    const handler = known.get(method === 'HEAD' ? 'GET' : method)
    if (handler === undefined) throw notAllowed(allow)
    return handler(request, params)
  }
}

/** Value of `Allow` for a path with these methods. */
export function allowOf(methods: readonly string[]): string {
  return [...methods, ...(methods.includes('GET') ? ['HEAD'] : []), 'OPTIONS'].join(', ')
}

export function notAllowed(allow: string): Problem.ProblemError {
  const headers = { allow }
  return Problem.of('method-not-allowed', `This path accepts ${allow}.`, { headers })
}

/** Request headers that stock clients send from pages of other origins. */
const requestHeaders = [
  'Authorization',
  'Content-Type',
  'Payment-Signature',
  'X-Payment',
  'Accept-Payment',
  'Payment-Redeem',
  'Sign-In-With-X',
  'Payment-Token',
  'Idempotency-Key',
  'X-API-Key',
  'If-Match',
  'If-None-Match',
  // Some x402 clients send this response header in requests.
  'Access-Control-Expose-Headers',
].join(', ')

const headerList = /^[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,1024}$/

/**
 * Answers a preflight, which has no credential and no price. All requested headers are allowed,
 * because there are no cookies. Other rules decide which headers reach an upstream.
 */
export function preflight(request: Request, allow: string): Response {
  const asked = request.headers.get('access-control-request-headers') ?? ''
  return new Response(null, {
    status: 204,
    headers: {
      ...corsHeaders,
      allow,
      'access-control-allow-methods': allow,
      'access-control-allow-headers': headerList.test(asked)
        ? `${requestHeaders}, ${asked}`
        : requestHeaders,
      'access-control-max-age': '600',
      'cache-control': 'no-store',
    },
  })
}

function options(allow: string): Response {
  return new Response(null, { status: 204, headers: { allow, 'cache-control': 'no-store' } })
}

/**
 * Throws ProblemError 415 for a compressed body. Bodies are not decompressed here, so a compressed
 * body cannot be checked before the payment.
 */
export function assertUnpacked(headers: Headers): void {
  const encoding = headers.get('content-encoding')
  if (encoding === null || /^\s*(?:identity)?\s*$/i.test(encoding)) return
  throw Problem.of('unsupported-media-type', 'The body must not be compressed.', {
    headers: { 'accept-encoding': 'identity' },
  })
}
