import * as Problem from '../protocol/Problem'
import { toResponse } from './problem'
import { hasManyHosts, isForSale, withPlainPath } from './url'

type Answer = Response | Promise<Response>
type Route = (request: Request) => Answer

export type EntranceOptions = {
  baseUrl: string
  requestId: () => string
  /** Unix ms. */
  now: () => number
}

export type Entrance = {
  /** Wraps the routes of an Elysia app: `app.wrap(enter)`. */
  enter(routes: unknown, request: Request): Route
  /** The request as it came, for a request that a route received. */
  originalOf(request: Request): Request
}

/**
 * The first step of every request. It stands in front of Elysia's router, which reads the path at an
 * offset of the URL: the URL must begin with `http://` by then, and the path must be the plain one.
 * A hook of `onRequest` would come too late for both, and would not see the date of HEAD. Several Host
 * fields are refused here because nothing may be read from such a request.
 */
export function createEntrance({ baseUrl, requestId, now }: EntranceOptions): Entrance {
  /** Original requests, by the requests that replace them. */
  const originals = new WeakMap<Request, Request>()

  return {
    enter(routes, request) {
      const route = routes as Route
      if (hasManyHosts(request.headers)) return refuse
      if (request.method === 'HEAD') return (asked) => dated(route(plainOf(asked)))
      const plain = plainOf(request)
      return plain === request ? route : () => route(plain)
    },
    originalOf: (request) => originals.get(request) ?? request,
  }

  /** The gateway brings paths to their canonical form itself. */
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

  /** Bun sets the date of all answers but those to HEAD. */
  function dated(answer: Answer): Answer {
    if (answer instanceof Promise) return answer.then(dated)
    const { headers } = answer
    if (!headers.has('date')) headers.set('date', new Date(now()).toUTCString())
    return answer
  }
}
