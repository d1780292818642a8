import type { Peer } from './peer'
import { pathStart, withPlainPath } from './url'

type Answer = Response | Promise<Response>

/** The handlers of requests, in the order in which they are asked. */
export type Doors = {
  /** Below `/m/`. It brings paths to their canonical form itself. */
  gateway: { handle(request: Request, peer: Peer): Answer }
  mcp: { owns(url: string): boolean; handle(request: Request, peer: Peer): Answer }
  facilitator: { handle(request: Request, peer: Peer): Answer | undefined }
  /** Everywhere else. */
  site: { fetch(request: Request): Answer }
}

export type Front = {
  fetch(request: Request, peer: Peer): Answer
  /** The original request, for a request that a handler received. */
  originalOf(request: Request): Request
}

type FrontOptions = {
  /** Undefined while the service starts. */
  doors(): Doors | undefined
  /** Unix ms. */
  now: () => number
}

/**
 * The entry of every request. Paid routes and settlements bypass Elysia, which would cost a third
 * of an unpaid answer. A fixed path may arrive with unreserved characters percent-encoded: it is
 * the same path, and every handler sees it decoded.
 */
export function createFront({ doors, now }: FrontOptions): Front {
  /** Original requests, by the requests that replace them. */
  const originals = new WeakMap<Request, Request>()

  return {
    fetch(request, peer) {
      const answer = route(request, peer)
      if (request.method !== 'HEAD') return answer
      return answer instanceof Promise ? answer.then(dated) : dated(answer)
    },
    originalOf: (request) => originals.get(request) ?? request,
  }

  function route(request: Request, peer: Peer): Answer {
    const open = doors()
    if (open === undefined) return starting()
    const { gateway, mcp, facilitator, site } = open
    if (isForSale(request.url)) return gateway.handle(request, peer)
    const plain = withPlainPath(request)
    if (plain !== request) originals.set(plain, request)
    if (plain !== request && isForSale(plain.url)) return gateway.handle(plain, peer)
    if (mcp.owns(plain.url)) return mcp.handle(plain, peer)
    return facilitator.handle(plain, peer) ?? site.fetch(plain)
  }

  /** Bun sets the date of all answers but those to HEAD. */
  function dated(response: Response): Response {
    if (!response.headers.has('date')) response.headers.set('date', new Date(now()).toUTCString())
    return response
  }
}

function starting(): Response {
  return new Response('The service is starting.\n', {
    status: 503,
    headers: { 'retry-after': '1' },
  })
}

function isForSale(url: string): boolean {
  return url.startsWith('/m/', pathStart(url))
}
