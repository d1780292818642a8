import { afterEach, describe, expect, test } from 'bun:test'
import tls from 'node:tls'
import * as Route from '../../src/gateway/Route'
import {
  createUpstream,
  type ForwardInput,
  forward as sendBy,
} from '../../src/gateway/upstream/upstream'
import { certificate } from '../harness/certificate'
import {
  connections,
  failure,
  forward,
  listen,
  raw,
  serve,
  stopUpstreams,
  text,
} from '../harness/forward'
import { merchant, route } from '../harness/merchants'

afterEach(stopUpstreams)

describe('addresses', () => {
  test('error: private addresses are refused, by number and by name, and never connected to', async () => {
    let count = 0
    const upstream = await raw(() => count++)
    const closed = { allowPrivate: false }
    expect((await failure(forward(upstream, { merchant: closed }))).kind).toBe('refused-address')
    for (const address of ['127.0.0.1', '::1', '::ffff:127.0.0.1', '169.254.169.254', '0.0.0.0']) {
      const named = new URL(`http://a.test:${upstream.port}`)
      const options = { resolve: async () => [address] }
      const error = await failure(forward(named, { merchant: closed, options }))
      expect(error.kind).toBe('refused-address')
    }
    for (const host of ['[::1]', '2130706433', '0x7f.1', '[::ffff:7f00:1]', 'localhost'])
      expect(
        (await failure(forward(new URL(`http://${host}:${upstream.port}`), { merchant: closed })))
          .kind,
      ).toBe('refused-address')
    expect(count).toBe(0)
  })

  test('error: a name that becomes private, or was resolved for another merchant, is refused', async () => {
    let now = 0
    const upstream = await raw((_, { socket }) => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    })
    const answers = [['127.0.0.1'], ['::1', '127.0.0.1']]
    const shared = createUpstream({
      now: () => now,
      resolve: async () => answers.shift() ?? [],
    })
    const input = (allowPrivate: boolean): ForwardInput => {
      const named = new URL(`http://rebind.test:${upstream.port}`)
      const seller = merchant('m', { upstream: named, allowPrivate, routes: [route('/r')] })
      const match = Route.match(Route.compile([seller]), '/m/m/r')
      if (match === undefined) throw new Error('no match')
      const headers = new Headers()
      return { match, method: 'GET', search: '', headers, body: new Uint8Array(0), paymentId: 'p' }
    }
    expect(text(await sendBy(shared, input(true)))).toBe('ok')
    expect((await failure(sendBy(shared, input(false)))).kind).toBe('refused-address')
    expect(answers.length).toBe(1)
    now = 30_000
    expect((await failure(sendBy(shared, input(false)))).kind).toBe('refused-address')
    expect(answers.length).toBe(0)
  })

  test('the connection is made to the resolved address, with the name as Host', async () => {
    const hosts: string[] = []
    const upstream = await raw((piece, { socket }) => {
      hosts.push(/^host: (.*)\r$/im.exec(piece)?.[1] ?? '')
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    })
    let count = 0
    const options = {
      resolve: async () => {
        count++
        return ['127.0.0.1']
      },
    }
    const named = new URL(`http://no-such-name.test:${upstream.port}`)
    expect(text(await forward(named, { options }))).toBe('ok')
    expect([hosts, count]).toEqual([[named.host], 1])
  })

  test('the next address is tried when a connection cannot be made', async () => {
    const upstream = serve(() => new Response('ok'))
    const options = { resolve: async () => ['::1', '127.0.0.1'] }
    const named = new URL(`http://a.test:${upstream.port}`)
    expect(text(await forward(named, { options }))).toBe('ok')
  })

  test('error: the next address is not tried when the request may have arrived', async () => {
    let count = 0
    const upstream = await raw((_, { socket }) => {
      count++
      socket.end()
    })
    const options = { resolve: async () => ['127.0.0.1', '127.0.0.1'] }
    const named = new URL(`http://a.test:${upstream.port}`)
    const pending = forward(named, { options, method: 'POST', body: new Uint8Array(3) })
    expect((await failure(pending)).kind).toBe('cut')
    expect(count).toBe(1)
  })
})

describe('TLS', () => {
  const a = certificate('a.test')
  const b = certificate('b.test')

  async function secure(): Promise<{ port: number; seen: string[] }> {
    const seen: string[] = []
    const server = tls.createServer(
      {
        ...a,
        SNICallback: (name, done) => done(null, tls.createSecureContext(name === 'b.test' ? b : a)),
      },
      connections((piece, { socket, number, servername }) => {
        seen.push(`${number} ${servername} ${/^host: (.*)\r$/im.exec(piece)?.[1]?.split(':')[0]}`)
        socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
      }),
    )
    return { port: await listen(server), seen }
  }
  const options = { ca: `${a.cert}${b.cert}`, resolve: async () => ['127.0.0.1'] }

  test('the certificate is checked for the name; connections are kept alive by name', async () => {
    const { port, seen } = await secure()
    for (const name of ['a', 'b', 'a', 'b'])
      expect(text(await forward(new URL(`https://${name}.test:${port}`), { options }))).toBe('ok')
    expect(seen).toEqual([
      '1 a.test a.test',
      '2 b.test b.test',
      '1 a.test a.test',
      '2 b.test b.test',
    ])
  })

  test('error: a certificate of another name, or of an unknown authority, is a connect error', async () => {
    const { port, seen } = await secure()
    const other = await failure(forward(new URL(`https://c.test:${port}`), { options }))
    expect([other.kind, other.code]).toEqual(['connect', 'ERR_TLS_CERT_ALTNAME_INVALID'])
    const { resolve } = options
    const unknown = await failure(
      forward(new URL(`https://a.test:${port}`), { options: { resolve } }),
    )
    expect(unknown.kind).toBe('connect')
    expect(seen).toEqual([])
  })
})
