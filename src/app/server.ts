import type { Certificates } from '../acme/certificates'
import { createPeers, type Peer } from '../http/client'
import type { ServerBase } from './base'
import { type Listener, listenOn } from './listen'
import { connectionReports } from './report'

export type HttpServer = {
  listener: Listener
  /** The other end of the connection of a request that a route received. */
  peerOf: (request: Request) => Peer
  /** Only for HTTPS. */
  certificates: Certificates | undefined
}

/**
 * Listens for requests and hands them to `current.app`. Throws the system's error without the
 * address, and PortError without a port of HTTPS.
 */
export async function startServer(base: ServerBase): Promise<HttpServer> {
  const { options, current, middleware } = base
  const common = {
    connectionsMax: options.config.service.connectionsMax,
    idleSeconds: options.idleSeconds,
    ...connectionReports(base.registry, base.log),
    fetch: (request: Request) => current.app.fetch(request),
  }
  const { listener, certificates } = await listen(base, common)
  return {
    listener,
    peerOf: createPeers(listener.connections, middleware.originalOf),
    certificates,
  }
}

async function listen(
  base: ServerBase,
  common: Omit<Parameters<typeof listenOn>[0], 'hostname' | 'port'>,
) {
  const { config, https } = base.options
  if (https !== undefined) {
    // Loaded only for HTTPS, so that other starts are not slower.
    const { listenHttps } = await import('./https')
    return listenHttps(base, https, common)
  }
  const listener = listenOn({ ...config.service.listen, ...common })
  base.onFailure(() => listener.stop(true))
  return { listener, certificates: undefined }
}
