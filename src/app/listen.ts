import { hostOf } from '../http/url'

/** Answers a request. `peer`: address of the other end of its connection. */
export type Handle = (
  request: Request,
  peer: () => string | undefined,
) => Response | Promise<Response>

export type Listener = {
  /** Where it listens, e.g. `http://127.0.0.1:4020` or `http://[::1]:4020`. */
  url: string
  peerOf(request: Request): string | undefined
  /** Takes no connection any more; true: ends those that are open, too. */
  stop(endsOpen: boolean): Promise<void>
}

/** Listens for HTTP. Throws the system's error when the address cannot be had. */
export function listenOn(
  { hostname, port }: { hostname: string; port: number },
  handle: Handle,
): Listener {
  const server = Bun.serve({
    hostname,
    port,
    reusePort: false,
    development: false,
    idleTimeout: 255,
    // Bodies are read and capped by the routes, which answer with a problem.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch: (request, self) => handle(request, () => self.requestIP(request)?.address),
  })
  return {
    url: `http://${hostOf(hostname)}:${server.port}`,
    peerOf: (request) => server.requestIP(request)?.address,
    stop: (endsOpen) => server.stop(endsOpen),
  }
}
