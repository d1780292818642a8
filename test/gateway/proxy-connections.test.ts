import { afterEach, describe, expect, test } from 'bun:test'
import net, { type AddressInfo } from 'node:net'
import type { Merchant } from '../../src/config/Config'
import * as Route from '../../src/gateway/Route'
import { createUpstream, forward } from '../../src/gateway/upstream/upstream'
import { merchant, route } from '../harness/merchants'
import { until } from '../harness/world'

const cleanups: (() => void)[] = []
afterEach(() => {
  for (const cleanup of cleanups.splice(0)) cleanup()
})

const late = 'HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers'

/**
 * An upstream that sends the body of its first answer after the next request has arrived. Below
 * `/plain` it answers correctly.
 */
async function serveLate(first: string, fields: Partial<Merchant> = {}) {
  const seen: string[] = []
  let connections = 0
  let isLate = true
  let closed = 0
  let push = () => {}
  const server = net.createServer((socket) => {
    const number = ++connections
    let isOwed = false
    cleanups.push(() => socket.destroy())
    socket.on('error', () => {})
    socket.on('close', () => closed++)
    push = () => socket.write(late)
    socket.on('data', (data) => {
      const path = data.toString('latin1').split(' ')[1] ?? ''
      seen.push(`${number} ${path}`)
      if (isOwed && isLate) socket.write(late)
      isOwed = path !== '/plain'
      socket.write(isOwed ? first : 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine')
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => server.close())
  const origin = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  const routes = [route('/late'), route('/plain')]
  const sold = { upstream: origin, allowPrivate: true, routes, ...fields }
  const matcher = Route.compile([merchant('m', sold)])
  let now = 0
  const upstream = createUpstream({ now: () => now })
  return {
    seen,
    /** Sends an answer without a request on the newest connection. */
    push: () => push(),
    closed: () => closed,
    /** Advances the clock until no kept-alive connection is withheld. */
    pass: (ms: number) => {
      now += ms
      isLate = false
    },
    async buy(path: string, method = 'GET') {
      const match = Route.match(matcher, `/m/m${path}`)
      if (match === undefined) throw new Error('no match')
      const headers = new Headers()
      const body = new Uint8Array(0)
      const input = { match, method, search: '', headers, body, paymentId: 'p' }
      const answer = await forward(upstream, input)
      if (!(answer.body instanceof Uint8Array)) throw new Error('a stream')
      return `${answer.status} ${new TextDecoder().decode(answer.body)}`
    },
  }
}

describe('attack: an answer that is followed by further bytes', () => {
  test('HEAD has a connection of its own', async () => {
    const { buy, seen } = await serveLate('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
    expect(await buy('/late', 'HEAD')).toBe('200 ')
    expect(await buy('/plain')).toBe('200 mine')
    expect(seen).toEqual(['1 /late', '2 /plain'])
  })

  for (const status of ['204 No Content', '304 Not Modified'])
    test(`after ${status} the next buyer has a new connection`, async () => {
      const { buy, seen, pass } = await serveLate(`HTTP/1.1 ${status}\r\n\r\n`)
      const code = status.slice(0, 3)
      expect(await buy('/plain')).toBe('200 mine')
      expect(await buy('/late')).toBe(`${code} `)
      expect(await buy('/plain')).toBe('200 mine')
      expect(await buy('/plain')).toBe('200 mine')
      expect(seen).toEqual(['1 /plain', '1 /late', '2 /plain', '3 /plain'])
      // By then the runtime has ended the first connection. The route without a body is not
      // affected.
      pass(6 * 60_000)
      expect(await buy('/plain')).toBe('200 mine')
      expect(await buy('/late')).toBe(`${code} `)
      expect(await buy('/plain')).toBe('200 mine')
      expect(seen.slice(4)).toEqual(['1 /plain', '4 /late', '1 /plain'])
    })

  test('after bytes beyond an answer the next buyer has a new connection', async () => {
    const { buy, seen } = await serveLate(`HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok${late}`)
    expect(await buy('/late')).toBe('200 ok')
    expect(await buy('/plain')).toBe('200 mine')
    expect(seen).toEqual(['1 /late', '2 /plain'])
  })

  test('bytes that arrive on an idle connection end it', async () => {
    const { buy, seen, push, closed } = await serveLate('')
    expect(await buy('/plain')).toBe('200 mine')
    expect(await buy('/plain')).toBe('200 mine')
    push()
    await until('the connection is closed', () => closed() === 1)
    expect(await buy('/plain')).toBe('200 mine')
    expect(seen).toEqual(['1 /plain', '1 /plain', '2 /plain'])
  })

  test('with keep_alive = false each request has a connection of its own', async () => {
    const first = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
    const { buy, seen } = await serveLate(first, { ownConnections: true })
    expect(await buy('/late')).toBe('200 ok')
    expect(await buy('/plain')).toBe('200 mine')
    expect(await buy('/late', 'POST')).toBe('200 ok')
    expect(await buy('/plain')).toBe('200 mine')
    expect(seen).toEqual(['1 /late', '2 /plain', '3 /late', '4 /plain'])
  })
})
