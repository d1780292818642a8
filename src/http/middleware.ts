import * as Problem from '../protocol/Problem'
import { toResponse } from './problem'
import { loopbackHost, pathStart, withPlainPath } from './url'

type Answer = Response | Promise<Response>
type Route = (request: Request) => Answer

type MiddlewareOptions = {
  baseUrl: string
  requestId: () => string
  /** Unix ms. */
  now: () => number
  /**
   * Called once, when `baseUrl` is on this machine and a request names another host: a hint that a
   * proxy is in front. Any client can send any host.
   */
  onOtherHost?(host: string): void
}

export type Middleware = ReturnType<typeof createMiddleware>

/** A host as a client may write it. All else is not shown to the operator. */
const plausibleHost = /^([a-z\d.-]{1,100}|\[[a-f\d:.]{2,45}\])(:\d{1,5})?$/i

/**
 * The first step of every request, in front of Elysia's router. The router reads the path at an
 * offset of the URL. So the URL must already begin with `http://`, and the path must be normalised.
 * An `onRequest` hook would run too late for both, and would not see the date of HEAD. Several Host
 * fields are refused here, because a proxy may have read another one of them.
 */
export function createMiddleware(options: MiddlewareOptions) {
  const { baseUrl, requestId, now } = options
  /** Original requests, by the requests that replace them. */
  const originals = new WeakMap<Request, Request>()
  let looksForOther = loopbackHost.test(new URL(baseUrl).host)
  let otherHost: string | undefined

  return {
    /**
     * Wraps the routes of an Elysia app: `app.wrap(wrapRoutes)`. `sell` answers paths below `/m/`
     * without the router, which takes a tenth of the CPU of an unpaid 402.
     */
    wrapRoutes(routes: unknown, request: Request, sell?: Route): Route {
      const route = sell !== undefined && isForSale(request.url) ? sell : (routes as Route)
      // The runtime joins several Host fields. https://www.rfc-editor.org/rfc/rfc9112#section-3.2
      const host = request.headers.get('host') ?? ''
      if (host.includes(',')) return refuse
      if (looksForOther) look(host)
      if (request.method === 'HEAD') return (asked) => dated(route(plainOf(asked)))
      const plain = plainOf(request)
      return plain === request ? route : () => route(plain)
    },
    /** The request as it came, for a request that a route received. */
    originalOf: (request: Request) => originals.get(request) ?? request,
    /** The host of `onOtherHost`. */
    otherHost: () => otherHost,
  }

  /** Whether the path is below `/m/`. */
  function isForSale(url: string): boolean {
    return url.startsWith('/m/', pathStart(url))
  }

  function look(host: string): void {
    if (loopbackHost.test(host) || !plausibleHost.test(host)) return
    looksForOther = false
    otherHost = host
    options.onOtherHost?.(host)
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
