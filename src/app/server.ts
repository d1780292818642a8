import { createPeer, type Peer } from '../http/peer'
import type { Base } from './base'
import { type Listener, listenOn } from './listen'
import { connectionReports } from './report'

export type HttpServer = {
  listener: Listener
  /** The other end of the connection of a request that a route received. */
  peerOf: (request: Request) => Peer
}

/** Listens for requests and hands them to `current.app`. Throws the system's error without the address. */
export function startServer({
  options,
  current,
  middleware,
  registry,
  log,
  onFailure,
}: Base): HttpServer {
  const { listen, connectionsMax } = options.config.service
  const listener = listenOn({
    ...listen,
    connectionsMax,
    idleSeconds: options.idleSeconds,
    ...connectionReports(registry, log),
    fetch: (request) => current.app.fetch(request),
  })
  onFailure(() => listener.stop(true))
  return {
    listener,
    peerOf: (request) => createPeer(request, listener.connections, middleware.originalOf),
  }
}
