import { type Certificates, createCertificates } from '../acme/certificates'
import { listenHttp } from '../acme/http-port'
import type { Challenges } from '../acme/order'
import { codeOf } from '../config/env'
import { hostOf } from '../http/url'
import type { Base } from './base'
import { assertFree, type Listener, type ListenOptions, listenOn } from './listen'
import type { HttpsOptions } from './options'

/** The address of a port cannot be used. The message says what to do. */
export class PortError extends Error {
  override readonly name = 'PortError'
}

/** Tells browsers to use HTTPS only for a year. RFC 6797. */
const transportSecurity = 'max-age=31536000'
/** Addresses of IPv6 and, on usual systems, of IPv4. */
const everyAddress = '::'

/** Listens for HTTPS with certificates of a CA, and for HTTP to prove the domains to it. */
export function listenHttps(
  base: Base,
  https: HttpsOptions,
  common: Omit<ListenOptions, 'hostname' | 'port'>,
): { listener: Listener; certificates: Certificates } {
  const { options, current, registry, now, log, onFailure } = base
  const { domains, hostname = everyAddress, httpPort, httpsPort: port } = https
  const challenges: Challenges = new Map()
  const { baseUrl } = options.config.service
  const own = { domains, baseUrl, connectionsMax: common.connectionsMax }
  const http = bind(hostname, httpPort, 'http-port', (host) =>
    listenHttp({ ...own, hostname: host, port: httpPort, challenges }),
  )
  onFailure(http.stop)
  let inner: Listener | undefined
  const open = (host: string, tls: ListenOptions['tls']) =>
    listenOn({ ...common, hostname: host, port, tls, fetch: secured(common.fetch) })
  let servedUntil = 0
  const certificates = createCertificates({
    ...https,
    dataDir: options.dataDir,
    contact: () => mailOf(current.config.service.contact),
    challenges,
    serve({ key, chain, validTo }) {
      const tls = { key, cert: chain }
      // When no client accepts the present certificate, it is replaced at once.
      if (inner !== undefined) inner.renew(tls, servedUntil <= now() ? 0 : undefined)
      else inner = bind(hostname, port, 'https-port', (host) => open(host, tls))
      servedUntil = validTo
    },
    registry,
    now,
    log,
  })
  certificates.restore()
  // A port that is taken must fail the start, not the first certificate.
  if (inner === undefined)
    bind(hostname, port, 'https-port', (host) => assertFree({ hostname: host, port }))
  /** One listener of both ports. Without a certificate the port of HTTPS is closed. */
  const listener: Listener = {
    url: inner?.url ?? `https://${hostOf(hostname)}:${port}`,
    connections: {
      idleSeconds: inner?.connections.idleSeconds ?? common.idleSeconds ?? 255,
      addressOf: (request) => inner?.connections.addressOf(request),
      setTimeout: (request, seconds) => inner?.connections.setTimeout(request, seconds),
    },
    renew: (tls, drainSeconds) => inner?.renew(tls, drainSeconds),
    async stop(endsOpen) {
      http.stop()
      await Promise.all([certificates.stop(), inner?.stop(endsOpen)])
    },
  }
  onFailure(() => listener.stop(true))
  return { listener, certificates }
}

/**
 * Answers of HTTPS. The router finds the path behind `http://` (http/middleware.ts), as it does
 * behind a proxy that ends TLS. A copy of the request would lose its connection.
 */
function secured(fetch: ListenOptions['fetch']): ListenOptions['fetch'] {
  return (request) => {
    const { url } = request
    if (url.startsWith('https://'))
      Object.defineProperty(request, 'url', { value: `http://${url.slice(8)}` })
    return withTransportSecurity(fetch(request))
  }
}

function withTransportSecurity(answer: Response | Promise<Response>): typeof answer {
  if (answer instanceof Promise) return answer.then(withTransportSecurity)
  answer.headers.set('strict-transport-security', transportSecurity)
  return answer
}

/** Binds a port on every address; on those of IPv4 where the system has no IPv6. */
function bind<T>(hostname: string, port: number, option: string, listen: (host: string) => T): T {
  try {
    return listen(hostname)
  } catch (error) {
    const code = codeOf(error)
    const hasNoIpv6 = code === 'EAFNOSUPPORT' || code === 'EADDRNOTAVAIL'
    if (hostname === everyAddress && hasNoIpv6) return bind('0.0.0.0', port, option, listen)
    throw new PortError(portFault(code, port, option))
  }
}

/** Why a port cannot be used, and what to do. `option` names another one. */
export function portFault(code: string, port: number, option: string): string {
  if (code === 'EADDRINUSE')
    return `port ${port} is in use by another program: stop it, or name another port by --${option}`
  if (code === 'EACCES' || code === 'EPERM')
    return (
      `port ${port} needs a right that this user has not: give the process CAP_NET_BIND_SERVICE ` +
      `(systemd: AmbientCapabilities), or forward ${port} to the port of --${option}`
    )
  return `port ${port} cannot be used (${code}): see --${option}`
}

/** A mail address for the CA; a sample address is refused there. */
function mailOf(contact: string | undefined): string | undefined {
  const isMail = contact !== undefined && /^[^\s@,?]+@[^\s@,?]+\.[^\s@,?]+$/.test(contact)
  return isMail && !/@(.*\.)?example\.(com|net|org)$/i.test(contact) ? contact : undefined
}
