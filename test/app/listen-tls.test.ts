import { afterEach, expect, test } from 'bun:test'
import { readFileSync } from 'node:fs'
import tls from 'node:tls'
import { type Listener, type ListenOptions, listenOn } from '../../src/app/listen'
import { certificate } from '../harness/certificate'
import { connected } from '../harness/https'
import { until } from '../harness/settlement'

/** A certificate that is replaced while clients are connected. */

const first = certificate('first.example.test')
const second = certificate('second.example.test')
const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

function listen(fetch: ListenOptions['fetch'], options: Partial<ListenOptions> = {}): Listener {
  const listener = listenOn({
    hostname: '127.0.0.1',
    port: 0,
    connectionsMax: 1000,
    // Longer than a busy machine lets a connection wait.
    idleSeconds: 30,
    tls: first,
    fetch,
    onFull: () => undefined,
    onFault: (error) => {
      throw error
    },
    ...options,
  })
  cleanups.push(() => listener.stop(true))
  return listener
}

const portOf = ({ url }: Listener) => Number(new URL(url).port)
const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`
const to = (listener: Listener) => connected({ port: portOf(listener), name: 'first.example.test' })

/** Sockets that listen on a port, where the system tells them. */
function listenersOf(port: number): number {
  if (process.platform !== 'linux') return 1
  const address = `:${port.toString(16).toUpperCase().padStart(4, '0')} 00000000:0000 0A `
  return readFileSync('/proc/self/net/tcp', 'utf8').split(address).length - 1
}

test('another certificate comes after answers have ended the connections', async () => {
  const gate = Promise.withResolvers<void>()
  const listener: Listener = listen((request) => {
    if (!request.url.endsWith('/stream'))
      return new Response(listener.connections.addressOf(request))
    const body = async function* () {
      yield 'first '
      await gate.promise
      yield 'ended'
    }
    return new Response(body())
  })
  const [kept, stream, silent] = await Promise.all([to(listener), to(listener), to(listener)])
  kept.send(get('/'))
  stream.send(get('/stream'))
  await until(() => stream.received().includes('first'))
  await until(() => kept.received().endsWith('127.0.0.1'))
  expect(kept.isClosed()).toBe(false)

  listener.renew(second, 1)
  // The connection is told to end, and its request is answered.
  kept.send(get('/'))
  await until(() => kept.isClosed())
  const [, , last = ''] = kept.received().split('HTTP/1.1 200 OK')
  expect(last.toLowerCase()).toContain('connection: close\r\n')
  expect(last).toEndWith('127.0.0.1')
  await until(async () => (await to(listener)).names === 'DNS:second.example.test')

  // A connection without a request may still send its first one, and a request in progress
  // continues.
  silent.send(get('/'))
  await until(() => silent.received().endsWith('127.0.0.1'))
  await until(() => listenersOf(portOf(listener)) === 1)
  gate.resolve()
  await until(() => stream.received().includes('ended'))
})

test('a request whose body arrives across the change is answered', async () => {
  let began = false
  const listener = listen(async (request) => {
    began ||= request.method === 'POST'
    return new Response(`read ${(await request.text()).length}`)
  })
  const slow = await to(listener)
  slow.send('POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\nabcd')
  await until(() => began)
  listener.renew(second, 1)
  await until(async () => {
    const next = await to(listener)
    next.end()
    return next.names === 'DNS:second.example.test'
  })
  slow.send('efgh')
  // The replaced server has stopped: no other socket listens.
  await until(() => listenersOf(portOf(listener)) === 1)
  slow.send('ijkl')
  await until(() => slow.received().includes('read ') || slow.isClosed())
  expect(slow.received()).toEndWith('read 12')
})

test('clients that ask all the time lose no request while the certificate changes', async () => {
  const listener = listen((request) => new Response(new URL(request.url).pathname))
  const asked = { names: new Set<string>(), count: 0, isOver: false }
  // Each uses its connection until an answer ends it.
  const client = async (id: number) => {
    while (!asked.isOver) {
      const peer = await to(listener)
      asked.names.add(peer.names)
      for (let isLast = false; !isLast && !asked.isOver; ) {
        const path = `/${id}/${asked.count++}`
        peer.send(get(path))
        await until(() => {
          const isAnswered = peer.received().endsWith(path)
          if (!isAnswered && peer.isClosed()) throw new Error(`lost: ${path}`)
          return isAnswered
        })
        isLast = peer.received().toLowerCase().includes('connection: close')
      }
      peer.end()
    }
  }
  const clients = [1, 2, 3, 4].map(client)
  await until(() => asked.count > 100)
  listener.renew(second, 1)
  await Promise.race([until(() => asked.names.size === 2), ...clients])
  const seen = asked.count
  await Promise.race([until(() => asked.count > seen + 100), ...clients])
  asked.isOver = true
  await Promise.all(clients)
})

test('without a wait the next connection has the other certificate', async () => {
  const listener = listen(() => new Response('ok'))
  listener.renew(second, 0)
  await until(async () => (await to(listener)).names === 'DNS:second.example.test')
})

test('error: a stop before the change keeps the port closed', async () => {
  const listener = listen(() => new Response('ok'))
  const port = portOf(listener)
  listener.renew(second, 0)
  await listener.stop(true)
  await Bun.sleep(0)
  const next = listen(() => new Response('next'), { port, tls: second })
  expect((await to(next)).names).toBe('DNS:second.example.test')
})

test('attack: a second listener cannot share the port', () => {
  const listener = listen(() => new Response('ok'))
  expect(() => listen(() => new Response(), { port: portOf(listener) })).toThrow('Failed to listen')
})

test('versions before TLS 1.2 are refused', async () => {
  const listener = listen(() => new Response('ok'))
  const by = (version: tls.SecureVersion) => {
    const { promise, resolve } = Promise.withResolvers<string>()
    const socket = tls.connect({
      host: '127.0.0.1',
      port: portOf(listener),
      rejectUnauthorized: false,
      minVersion: 'TLSv1',
      maxVersion: version,
    })
    socket.on('secureConnect', () => resolve(socket.getProtocol() ?? ''))
    socket.on('error', () => resolve('refused'))
    return promise.finally(() => socket.destroy())
  }
  const versions = ['TLSv1', 'TLSv1.1', 'TLSv1.2', 'TLSv1.3'] as const
  const answers = await Promise.all(versions.map(by))
  expect(answers).toEqual(['refused', 'refused', 'TLSv1.2', 'TLSv1.3'])
})
