import { createPeer, type Peer } from '../http/peer'
import { toResponse } from '../http/problem'
import { hasManyHosts, hostOf } from '../http/url'
import * as Problem from '../protocol/Problem'

/** Answers a request. */
export type Handle = (request: Request, peer: Peer) => Response | Promise<Response>

export type Listener = {
  /** Where it listens, e.g. `http://127.0.0.1:4020` or `http://[::1]:4020`. */
  url: string
  peerOf(request: Request): string | undefined
  /** Takes no connection any more; true: ends those that are open, too. */
  stop(endsOpen: boolean): Promise<void>
}

/**
 * Listens for HTTP. `idleSeconds`: longest silence of a connection that no sale holds. Throws the system's error when the address cannot be had.
 */
export function listenOn(
  { hostname, port }: { hostname: string; port: number },
  handle: Handle,
  idleSeconds = 255,
): Listener {
  const server = Bun.serve({
    hostname,
    port,
    reusePort: false,
    development: false,
    idleTimeout: idleSeconds,
    // Bodies are read and capped by the routes, which answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch: (request, self) => handle(request, createPeer(request, self, idleSeconds)),
  })
  return {
    url: `http://${hostOf(hostname)}:${server.port}`,
    peerOf: (request) => server.requestIP(request)?.address,
    stop: (endsOpen) => server.stop(endsOpen),
  }
}

/** Refuses requests with several Host fields; `context` is that of the refusal. */
export function withOneHost(
  handle: Handle,
  context: () => Parameters<typeof toResponse>[1],
): Handle {
  return (request, peer) => {
    if (!hasManyHosts(request.headers)) return handle(request, peer)
    return toResponse(Problem.of('bad-request', 'Host must be there once.'), context())
  }
}
