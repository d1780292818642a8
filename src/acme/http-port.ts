import type { Socket } from 'bun'
import type { Challenges } from './order'

export type HttpPortOptions = {
  hostname: string
  port: number
  challenges: Challenges
  /** DNS names, lower case. */
  domains: readonly string[]
  /** Where the service is, without a slash at its end: other requests are redirected there. */
  baseUrl: string
  /** Most connections of the service. This port has a part of them. */
  connectionsMax: number
}

export type HttpPort = { port: number; stop(): void }

/** What is known of a connection. */
type Connection = { head: string; isAnswered: boolean }

const challengePath = '/.well-known/acme-challenge/'
const headMax = 8192
/** Most open connections: a part of those of the service, and never more than this. */
const openMax = 512
const openShare = 4
const idleSeconds = 10
const requestLine = /^([A-Z]+) (\S+) HTTP\/1\.[01]\r\n/

/**
 * Answers the challenges of the CA, and redirects all other requests to HTTPS. It reads one request
 * of each connection and no body, and nothing of a request is sent back but its path. Sockets of our
 * own have an exact limit of connections. So a flood on this port cannot use up the open files that
 * the service counts (app/listen.ts). Throws the system's error when the port is not available.
 */
export function listenHttp(options: HttpPortOptions): HttpPort {
  const { hostname, port } = options
  const connectionsMax = Math.min(openMax, Math.ceil(options.connectionsMax / openShare))
  const open = new Set<Socket<Connection>>()
  const server = Bun.listen<Connection>({
    hostname,
    port,
    exclusive: true,
    // A client that ends its half first still gets the answer.
    allowHalfOpen: true,
    socket: {
      open(socket) {
        socket.data = { head: '', isAnswered: false }
        socket.timeout(idleSeconds)
        open.add(socket)
        const [oldest] = open
        if (open.size > connectionsMax) oldest?.terminate()
      },
      data(socket, chunk) {
        const { data } = socket
        if (data.isAnswered) return
        data.head += chunk.toString('latin1')
        if (data.head.length <= headMax && !data.head.includes('\r\n\r\n')) return
        data.isAnswered = true
        socket.end(answer(data.head.slice(0, headMax), options))
      },
      timeout: (socket) => void socket.terminate(),
      end: (socket) => void socket.end(),
      close: (socket) => void open.delete(socket),
      error: (socket) => void open.delete(socket),
    },
  })
  return {
    port: server.port,
    stop: () => void server.stop(true),
  }
}

/** The whole answer to a head. */
function answer(head: string, options: HttpPortOptions): string {
  const [, method = '', target = ''] = requestLine.exec(head) ?? []
  if (target === '' || !head.includes('\r\n\r\n'))
    return format('400 Bad Request', [], 'bad request')
  const path = pathOf(target)
  if (path.startsWith(challengePath)) {
    const found = options.challenges.get(path.slice(challengePath.length))
    if (found === undefined) return format('404 Not Found', [], 'no challenge of this service')
    const body = format('200 OK', [], found)
    return method === 'HEAD' ? body.slice(0, body.indexOf('\r\n\r\n') + 4) : body
  }
  const location = `Location: ${originFor(head, options)}${path}`
  return format('308 Permanent Redirect', [location], '')
}

/** The path and query of a request's target, which may be a whole URL. */
function pathOf(target: string): string {
  const path = /^https?:\/\/[^/?#]*(.*)$/i.exec(target)?.[1] ?? target
  // Only what a URL may contain, so that no client reads another header or another host in it.
  return /^\/[\x21-\x7e]*$/.test(path) && !path.includes('\\') ? path : '/'
}

/** The service under the domain that was asked for, if it is ours; else under the first. */
function originFor(head: string, { domains, baseUrl }: HttpPortOptions): string {
  const asked = /\r\nhost:[ \t]*([^\s:]+)/i.exec(head)?.[1]?.toLowerCase()
  const domain = domains.find((known) => known === asked)
  if (domain === undefined) return baseUrl
  const url = new URL(baseUrl)
  url.hostname = domain
  return url.origin
}

function format(status: string, headers: readonly string[], body: string): string {
  return [
    `HTTP/1.1 ${status}`,
    ...headers,
    'Content-Type: text/plain; charset=utf-8',
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Cache-Control: no-store',
    'Connection: close',
    '',
    body,
  ].join('\r\n')
}
