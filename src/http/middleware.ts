import * as Problem from '../protocol/Problem'
import { toResponse } from './problem'
import { hasManyHosts, isForSale, withPlainPath } from './url'

type Answer = Response | Promise<Response>
type Route = (request: Request) => Answer

export type MiddlewareOptions = {
  baseUrl: string
  requestId: () => string
  /** Unix ms. */
  now: () => number
}

export type Middleware = {
  /** Wraps the routes of an Elysia app: `app.wrap(wrapRoutes)`. */
  wrapRoutes(routes: unknown, request: Request): Route
  /** The request as it came, for a request that a route received. */
  originalOf(request: Request): Request
}

/**
 * The first step of every request, in front of Elysia's router. The router reads the path at an
 * offset of the URL. So the URL must already begin with `http://`, and the path must be normalised.
 * An `onRequest` hook would run too late for both, and would not see the date of HEAD. Several Host
 * fields are refused here, because a proxy may have read another one of them.
 */
export function createMiddleware({ baseUrl, requestId, now }: MiddlewareOptions): Middleware {
  /** Original requests, by the requests that replace them. */
  const originals = new WeakMap<Request, Request>()

  return {
    wrapRoutes(routes, request) {
      const route = routes as Route
      if (hasManyHosts(request.headers)) return refuse
      if (request.method === 'HEAD') return (asked) => dated(route(plainOf(asked)))
      const plain = plainOf(request)
      return plain === request ? route : () => route(plain)
    },
    originalOf: (request) => originals.get(request) ?? request,
  }

  /**
   * The request with a normalised path. Paths below `/m/` are left unchanged, because the gateway
   * normalises them itself.
   */
  function plainOf(request: Request): Request {
    const { url } = request
    const isAbsolute = url.startsWith('http://')
    if (isAbsolute && (!url.includes('%') || isForSale(url))) return request
    const plain = withPlainPath(request)
    if (plain !== request) originals.set(plain, request)
    return plain
  }

  function refuse(): Response {
    const detail = 'A request must have exactly one Host field.'
    return toResponse(Problem.of('bad-request', detail), { baseUrl, requestId: requestId() })
  }

  /** Bun sets the date of all answers except those to HEAD. */
  function dated(answer: Answer): Answer {
    if (answer instanceof Promise) return answer.then(dated)
    const { headers } = answer
    if (!headers.has('date')) headers.set('date', new Date(now()).toUTCString())
    return answer
  }
}
