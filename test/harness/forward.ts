import net, { type AddressInfo } from 'node:net'
import tls from 'node:tls'
import type { Merchant, Route as RouteConfig } from '../../src/config/Config'
import * as Route from '../../src/gateway/Route'
import {
  createUpstream,
  type ForwardInput,
  forward as send,
  type UpstreamAnswer,
  type UpstreamOptions,
} from '../../src/gateway/upstream/upstream'
import { UpstreamError } from '../../src/net/watch'
import { merchant, route } from './merchants'

const cleanups: (() => void)[] = []
/** Ends the upstreams of a test and their connections. */
export function stopUpstreams(): void {
  for (const cleanup of cleanups.splice(0)) cleanup()
}

/** A real HTTP upstream on loopback. */
export function serve(fetch: (request: Request) => Response | Promise<Response>): URL {
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch, idleTimeout: 0 })
  cleanups.push(() => void server.stop(true))
  return new URL(`http://127.0.0.1:${server.port}`)
}

type Connection = { socket: net.Socket; number: number; servername: string | undefined }

/** An upstream with scripted bytes; `onRequest` gets every piece that arrives. */
export async function raw(onRequest: (text: string, connection: Connection) => void): Promise<URL> {
  const server = net.createServer(connections(onRequest))
  return new URL(`http://127.0.0.1:${await listen(server)}`)
}

export function connections(onRequest: (text: string, connection: Connection) => void) {
  let count = 0
  return (socket: net.Socket) => {
    const number = ++count
    const servername = socket instanceof tls.TLSSocket ? socket.servername || undefined : undefined
    cleanups.push(() => socket.destroy())
    socket.on('error', () => {})
    socket.on('data', (data) => onRequest(data.toString('latin1'), { socket, number, servername }))
  }
}

export async function listen(server: net.Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => server.close())
  return (server.address() as AddressInfo).port
}

type Fields = {
  merchant?: Partial<Merchant>
  route?: Partial<RouteConfig>
  path?: string
  options?: Partial<UpstreamOptions>
} & Partial<Omit<ForwardInput, 'match'>>

export function forward(upstream: URL, fields: Fields = {}): Promise<UpstreamAnswer> {
  const { merchant: own, route: ownRoute, path, options, ...input } = fields
  const seller = merchant('m', {
    upstream,
    allowPrivate: true,
    routes: [route('/r', ownRoute)],
    ...own,
  })
  const match = Route.match(Route.compile([seller]), path ?? '/m/m/r')
  if (match === undefined) throw new Error('no match')
  return send(createUpstream({ now: () => 0, ...options }), {
    match,
    method: 'GET',
    search: '',
    headers: new Headers(),
    body: new Uint8Array(0),
    paymentId: 'pay_1',
    ...input,
  })
}

export async function failure(promise: Promise<UpstreamAnswer>): Promise<UpstreamError> {
  const result = await promise.catch((error: unknown) => error)
  if (result instanceof UpstreamError) return result
  throw new Error('there was an answer')
}

export function text(forwarded: UpstreamAnswer): string {
  if (!(forwarded.body instanceof Uint8Array)) throw new Error('a stream')
  return new TextDecoder().decode(forwarded.body)
}

export function readerOf(forwarded: UpstreamAnswer) {
  if (forwarded.body instanceof Uint8Array) throw new Error('not a stream')
  return forwarded.body.getReader()
}
