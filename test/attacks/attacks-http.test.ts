import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import net, { type AddressInfo } from 'node:net'
import os from 'node:os'
import { account } from '../../src/demo/accounts'
import { ask, challengesOf } from '../harness/buyer'
import { close, exchange, request } from '../harness/raw'
import {
  effects,
  merchantSecret,
  mppUsdc,
  nothing,
  price,
  startTarget,
  type Target,
  type Way,
  x402Usdc,
} from '../harness/target'
import { until } from '../harness/world'

/** Listens at an address that the gateway must not connect to, and counts connections. */
const trap = net.createServer()
let trapped = 0
trap.on('connection', (socket) => {
  trapped++
  socket.destroy()
})

let target: Target
beforeAll(async () => {
  await new Promise<void>((resolve) => trap.listen(0, resolve))
  const { port } = trap.address() as AddressInfo
  // The name of this machine is public; its addresses are not.
  target = await startTarget({
    more: () => `
[[merchants]]
slug = "inside"
upstream = "https://${os.hostname()}:${port}"
[[merchants.routes]]
path = "/get"
price = "0.005"
`,
  })
})
afterAll(async () => {
  await target?.stop()
  trap.close()
})
beforeEach(() => {
  target.upstream.answer = undefined
  target.upstream.requests.length = 0
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const linesOf = (headers: Record<string, string>) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
const pay = async (way: Way, path = 'a/get', init?: RequestInit) =>
  way.pay(await ask(at(path), init), buyer)

/** Buys once and returns the whole answer. */
async function bought(way: Way, path = 'a/get', init?: RequestInit): Promise<Response> {
  return fetch(at(path), { ...init, headers: await pay(way, path, init) })
}

type Problem = { code: string; redeem?: { token: string; attempts: number } }

describe('what the upstream sees', () => {
  const hostile = [
    'X-Payer: 0x0000000000000000000000000000000000000001',
    'X-Paid: true',
    'X-Api-Key: mine',
    'X-Upstream: mine',
    'x-forwarded-for: 127.0.0.1',
    'X-Forwarded-Host: evil.example',
    'X-Forwarded-Proto: https',
    'Forwarded: for=127.0.0.1',
    'X-Real-IP: 127.0.0.1',
    'X-Original-URL: /admin',
    'X-Rewrite-URL: /admin',
    'X-HTTP-Method-Override: DELETE',
    'X-HTTP-Method: DELETE',
    'X-Method-Override: DELETE',
    'Cookie: session=1',
    'Proxy-Authorization: Basic eDp5',
    'Payment-Receipt: x',
    'Accept-Payment: evm/charge',
    'Range: bytes=0-0',
    'If-None-Match: *',
    'If-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT',
    'Via: 1.1 evil',
    'Max-Forwards: 0',
    'Origin: https://evil.example',
    'Referer: https://evil.example',
    'User-Agent: evil',
    'TE: trailers',
    'Trailer: X-Api-Key',
    'Keep-Alive: timeout=1',
    'Upgrade: h2c',
    'HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA',
    'Connection: X-Upstream, Authorization, Host, Accept',
    'Accept: text/plain',
    'Accept-Language: de',
  ]

  test('attack 21: only allowed headers are forwarded, and those that Connection lists are not', async () => {
    for (const way of [mppUsdc, x402Usdc]) {
      target.upstream.requests.length = 0
      const key = `Idempotency-Key: ${crypto.randomUUID()}`
      const lines = [...linesOf(await pay(way)), ...hostile, key, close]
      const [answer] = await exchange(target.url, request('/m/a/get', lines))
      expect(answer?.status).toBe(200)
      const [seen] = target.upstream.requests
      expect(target.upstream.requests).toHaveLength(1)
      expect(seen).toMatchObject({ method: 'GET', target: '/base/get', body: '' })
      const { host, connection, 'idempotency-key': sent, ...headers } = seen?.headers ?? {}
      expect(`http://${host}`).toBe(target.upstream.url)
      expect(connection).toBe('keep-alive')
      expect(sent).toMatch(/^pay_/)
      expect(headers).toEqual({
        'accept-encoding': 'identity',
        'accept-language': 'de',
        authorization: `Bearer ${merchantSecret}`,
        'user-agent': 'turnpike',
        'x-upstream': 'a',
        accept: '*/*',
      })
    }
  })

  const health = request('/healthz', [close])
  const framings: [string, (lines: string[]) => string][] = [
    ['CL and TE', (l) => `${post([...l, 'Content-Length: 4', chunked])}0\r\n\r\n${health}`],
    ['TE and CL', (l) => `${post([...l, chunked, 'Content-Length: 4'])}0\r\n\r\n${health}`],
    ['two TE', (l) => `${post([...l, chunked, 'Transfer-Encoding: x'])}0\r\n\r\n${health}`],
    ['TE of two', (l) => `${post([...l, 'Transfer-Encoding: x, chunked'])}0\r\n\r\n${health}`],
    ['TE behind', (l) => `${post([...l, 'Transfer-Encoding: chunked, x'])}0\r\n\r\n${health}`],
    ['TE unknown', (l) => `${post([...l, 'Transfer-Encoding: xchunked'])}0\r\n\r\n${health}`],
    ['TE with tab', (l) => `${post([...l, 'Transfer-Encoding:\tchunked\v'])}0\r\n\r\n${health}`],
    ['TE spaced', (l) => `${post([...l, 'Transfer-Encoding : chunked'])}0\r\n\r\n${health}`],
    ['two CL', (l) => `${post([...l, 'Content-Length: 3', 'Content-Length: 40'])}abc${health}`],
    ['CL list', (l) => `${post([...l, 'Content-Length: 3, 40'])}abc${health}`],
    ['CL negative', (l) => `${post([...l, 'Content-Length: -3'])}abc${health}`],
    ['CL with sign', (l) => `${post([...l, 'Content-Length: +3'])}abc${health}`],
    ['CL in hex', (l) => `${post([...l, 'Content-Length: 0x3'])}abc${health}`],
    ['CL too large', (l) => `${post([...l, 'Content-Length: 99999999999999999999'])}abc`],
    ['a bad chunk', (l) => `${post([...l, chunked])}zz\r\nabc\r\n0\r\n\r\n${health}`],
    ['a signed chunk', (l) => `${post([...l, chunked])}-1\r\nabc\r\n0\r\n\r\n${health}`],
    ['a folded line', (l) => `${post([...l, 'X-A: b\r\n Content-Length: 3'])}abc${health}`],
    ['a bare CR', (l) => `${post([...l, 'X-A: b\rContent-Length: 3'])}abc${health}`],
    ['a NUL', (l) => `${post([...l, 'X-A: b\0c', 'Content-Length: 3'])}abc${health}`],
    ['HTTP/2', () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
    ['TLS', () => '\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03\r\n\r\n'],
    ['a pseudo header', (l) => `${post([...l, ':path: /admin', 'Content-Length: 0'])}${health}`],
  ]
  const chunked = 'Transfer-Encoding: chunked'
  const post = (lines: readonly string[]) => request('/m/a/both', lines, 'POST')

  test('attack 22: a request with two interpretations is refused', async () => {
    const lines = linesOf(await pay(x402Usdc, 'a/both', { method: 'POST' }))
    for (const [name, build] of framings) {
      const { result, ...caused } = await effects(target, () => exchange(target.url, build(lines)))
      const statuses = result.map(({ status }) => status)
      expect({ name, ...caused }).toEqual({ name, ...nothing })
      expect([name, statuses.length <= 1, statuses[0] ?? 400]).toEqual([name, true, 400])
    }
  })

  test('attack 22: bodies, expectations and upgrades do not affect the next request', async () => {
    const inner = request('/m/b/get', ['X-Inner: yes'])
    const sent: [string, string, string][] = [
      ['GET', '', `Content-Length: ${inner.length}\r\n\r\n${inner}`],
      ['GET', '', `${chunked}\r\n\r\n${inner.length.toString(16)}\r\n${inner}\r\n0\r\n\r\n`],
      ['POST', inner, `Content-Length: ${inner.length}\r\n\r\n${inner}`],
      [
        'POST',
        inner,
        `${chunked}\r\n\r\n${inner.length.toString(16)};ext=1\r\n${inner}\r\n0\r\n\r\n`,
      ],
      ['POST', 'abc', 'Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc'],
      [
        'GET',
        '',
        'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n',
      ],
      [
        'GET',
        '',
        'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n',
      ],
    ]
    for (const [method, body, rest] of sent) {
      target.upstream.requests.length = 0
      const init = { method, ...(body === '' ? {} : { body }) }
      const head = request('/m/a/both', linesOf(await pay(mppUsdc, 'a/both', init)), method)
      const answers = await exchange(target.url, head.slice(0, -2) + rest, health)
      expect([rest, answers.map(({ status }) => status)]).toEqual([rest, [200, 200]])
      expect(answers[1]?.body).toContain('ok')
      const seen = target.upstream.requests
      expect(seen.map((each) => [each.method, each.target, each.body])).toEqual([
        [method, '/base/both', body],
      ])
      for (const name of ['upgrade', 'expect', 'http2-settings', 'trailer', 'x-api-key', 'te'])
        expect(seen[0]?.headers[name]).toBeUndefined()
    }
  })

  test('attack 22: a trailer is not read as a second request, and costs the buyer nothing', async () => {
    const init = { method: 'POST', body: 'abc' }
    for (const trailer of ['X-Api-Key: trailer', 'GET /m/b/get HTTP/1.1\r\nHost: localhost']) {
      const headers = await pay(mppUsdc, 'a/both', init)
      const text = post([...linesOf(headers), chunked]).replace('/m/a/get', '/m/a/both')
      const answers = await exchange(target.url, `${text}3\r\nabc\r\n0\r\n${trailer}\r\n\r\n`)
      expect(answers.map(({ status }) => status)).toEqual([400])
      let again: Response | undefined
      await until('the money is free', async () => {
        again = await fetch(at('a/both'), { ...init, headers })
        return again.status !== 409
      })
      expect(again?.status).toBe(200)
      const seen = target.upstream.requests.map((each) => `${each.method} ${each.target}`)
      expect(new Set(seen)).toEqual(new Set(['POST /base/both']))
    }
  })
})

describe('paths', () => {
  /** Paths as they appear in the request line. */
  const tricks = [
    '/m/a/get/../../admin',
    '/m/a/get/..',
    '/m/a/get/.',
    '/m/a/get/./x',
    '/m/a/get/%2e%2e/admin',
    '/m/a/get/%2E%2E/%2E%2E/admin',
    '/m/a/get/.%2e/admin',
    '/m/a/get/..%2fadmin',
    '/m/a/get/%2e%2e%2fadmin',
    '/m/a/get/..%5cadmin',
    '/m/a/get/..\\admin',
    '/m/a/get\\..\\admin',
    '/m/a/get/%252e%252e/admin',
    '/m/a/get/%252e%252e%252fadmin',
    '/m/a/get/..;/admin',
    '/m/a/get/..;x=1/admin',
    '/m/a/get;x/../admin',
    '/m/a/get/%u002e%u002e/admin',
    '/m/a/get/\xef\xbc\x8e\xef\xbc\x8e/admin',
    '/m/a/get/%ef%bc%8e%ef%bc%8e/admin',
    '/m/a/get/%c0%ae%c0%ae/admin',
    '/m/a/get//admin',
    '/m/a/get//evil.example/x',
    '/m/a/get/\\evil.example',
    '/m/a/get///evil.example',
    '//evil.example/m/a/get',
    '/m//a/get',
    '/m/a//get',
    '//m/a/get',
    '/\\m/a/get',
    '/m/a/get/http://evil.example/',
    '/m/a/get/https:%2f%2fevil.example',
    '/m/a/get/@evil.example',
    '/m/a/get/:80@evil.example/',
    '/m/a/get/evil.example:80',
    '/m/a/get@evil.example',
    '/m/a/get/%00',
    '/m/a/get/x%00.json',
    '/m/a/get/%0d%0aX-Injected:%201',
    '/m/a/get/%0a',
    '/m/a/get/%09',
    '/m/a/get/%7f',
    '/m/a/get/%e2%80%a8',
    '/m/a/get/%ff',
    '/m/a/get/%',
    '/m/a/get/%2',
    '/m/a/get/%zz',
    '/m/a/get/%2f',
    '/m/a/get%2fx',
    '/m/a%2fget',
    '/m%2fa/get',
    '/m/a/%67et',
    '/m/a/GET',
    '/M/a/get',
    '/m/A/get',
    '/m/a/get/',
    '/m/a/get/x/',
    '/m/a/get?/../admin',
    '/m/a/get#/../admin',
    '/m/a/get?x=%0d%0aX-Injected:%201',
    '/m/a/getx',
    '/m/a/ge',
    '/m/a',
    '/m/',
    '/m',
    '/m/a/__proto__',
    '/m/__proto__/get',
    '/m/constructor/get',
    '/m/a/base/get',
    '/x/../m/a/get',
    '/m/b/../a/get',
    'http://evil.example/m/a/get',
    'http://evil.example/admin',
    'https://127.0.0.1/m/a/get',
    'http://localhost@evil.example/m/a/get',
    'm/a/get',
    '*',
    '?',
    '/m/a/get/a%2Fb',
    '/m/a/get/caf%c3%a9',
    '/m/a/get/caf\xe9',
    '/m/a/get/x;y=1',
    '/m/a/get/a:b@c',
    '/m/a/get/..a',
    '/m/a/get/a..',
    '/m/a/get/...',
  ]

  test('attack 23: no path is served without payment, and none leaves the configured prefix', async () => {
    const credentials = new Set<string>()
    const served: string[] = []
    for (const path of tricks) {
      const { result, ...caused } = await effects(target, () =>
        exchange(target.url, request(path, [close])),
      )
      expect({ path, ...caused }).toEqual({ path, ...nothing })
      const [answer] = result
      // The pages for people are free.
      if (answer === undefined || `${answer.body}`.startsWith('<!doctype html>')) continue
      expect([path, answer.status < 200 || answer.status >= 400]).toEqual([path, true])
      expect([path, answer.status < 500]).toEqual([path, true])
      if (answer.status !== 402) continue
      const response = new Response(null, { headers: answer.headers })
      const required = JSON.parse(atob(answer.headers.get('payment-required') ?? ''))
      const challenges = challengesOf(response)
      const asked = { response, body: {}, required, whole: required, challenges }
      const headers = await mppUsdc.pay(asked, buyer)
      credentials.add(headers.authorization ?? '')
      const paid = await effects(target, () =>
        exchange(target.url, request(path, [...linesOf(headers), close])),
      )
      expect([path, paid.result[0]?.status, paid.forwarded]).toEqual([path, 200, 1])
      served.push(path)
    }
    const targets = target.upstream.requests.map((seen) => seen.target)
    expect(targets).toHaveLength(served.length)
    for (const [index, seen] of targets.entries()) {
      expect(seen).toMatch(/^\/base\/get(?:[/?]|$)/)
      // An upstream that decodes once or twice more still gets a path inside its prefix.
      let decoded = seen.split('?')[0] ?? ''
      for (let round = 0; round < 3; round++) {
        const url = new URL(`http://localhost${decoded.replaceAll('\\', '/')}`)
        expect([served[index], url.pathname.startsWith('/base/get')]).toEqual([served[index], true])
        decoded = decoded.replace(/%[0-7][0-9a-f]/gi, (escaped) => decodeURIComponent(escaped))
      }
    }
    const injected = target.upstream.requests.filter((seen) => 'x-injected' in seen.headers)
    expect(injected).toEqual([])
    expect(served).toContain('/m/a/get/a%2Fb')
    expect(served).toContain('/m/a/get/x;y=1')
  })
})

describe('where it connects', () => {
  test('attack 24: a name that leads to a private address is not connected to', async () => {
    const headers = await pay(x402Usdc, 'inside/get')
    const { result, ...caused } = await effects(target, () => fetch(at('inside/get'), { headers }))
    const problem = (await result.json()) as Problem
    // Refused before a charge; the answer shows nothing about the address.
    expect([result.status, problem.code]).toEqual([503, 'not-ready'])
    expect(caused).toMatchObject({ forwarded: 0, paidAtomic: 0n })
    // A host name may occur by chance in a random token: with its port it cannot.
    const { port } = trap.address() as AddressInfo
    const told = JSON.stringify([problem, [...result.headers]])
    expect(told).not.toContain(`${os.hostname()}:${port}`)
    expect(told).not.toContain(`//${os.hostname()}`)
    expect(trapped).toBe(0)
  })

  test('attack 25: redirects to other origins, and to paths that the route does not sell, are neither followed nor shown', async () => {
    const { port } = trap.address() as AddressInfo
    const places = [
      `http://127.0.0.1:${port}/`,
      `https://${os.hostname()}:${port}/`,
      'http://169.254.169.254/latest/meta-data/',
      '//evil.example/',
      `${target.upstream.url.replace('http:', 'https:')}/other`,
      '/internal/keys',
    ]
    for (const [index, location] of places.entries()) {
      const status = [301, 302, 303, 307, 308][index] ?? 307
      target.upstream.answer = () =>
        new Response(`go to ${merchantSecret}`, {
          status,
          headers: { location, refresh: `0;url=${location}`, 'content-location': location },
        })
      const init = { method: 'POST', body: '{}' }
      const headers = await pay(mppUsdc, 'a/both', init)
      const { result, ...caused } = await effects(target, () =>
        fetch(at('a/both'), { ...init, headers, redirect: 'manual' }),
      )
      expect([status, result.status, caused.forwarded]).toEqual([status, 502, 1])
      const all = JSON.stringify([[...result.headers], await result.text()])
      expect(all).not.toContain(location)
      expect(all).not.toContain(merchantSecret)
      for (const name of ['location', 'refresh', 'content-location'])
        expect(result.headers.get(name)).toBeNull()
      expect(trapped).toBe(0)
    }
  })

  test('attack 25: a redirect within the route is followed, and its location is never shown', async () => {
    const place = '/base/get/session-0123456789'
    target.upstream.answer = ({ target: asked }) =>
      asked === place
        ? new Response(JSON.stringify({ ok: merchantSecret }))
        : new Response(null, { status: 302, headers: { location: place } })
    const { result, ...caused } = await effects(target, () => bought(mppUsdc, 'a/get'))
    expect([result.status, caused.forwarded, caused.paidAtomic]).toEqual([200, 2, price])
    const all = JSON.stringify([[...result.headers], await result.text()])
    expect(all).not.toContain(place)
    expect(all).not.toContain(merchantSecret)
  })
})

describe('methods', () => {
  test('attack 29: HEAD is paid, OPTIONS forwards nothing, method overrides are ignored', async () => {
    const head = await fetch(at('a/get'), { method: 'HEAD' })
    expect(head.status).toBe(402)
    expect(challengesOf(head)).toHaveLength(2)
    const paid = await effects(target, () => bought(mppUsdc, 'a/get', { method: 'HEAD' }))
    expect([paid.result.status, paid.paidAtomic, paid.forwarded]).toEqual([200, price, 1])
    expect(target.upstream.requests.at(-1)?.method).toBe('HEAD')

    const headers = await pay(mppUsdc)
    const methods = ['OPTIONS', 'PUT', 'PATCH', 'DELETE', 'TRACE', 'PROPFIND', 'QUERY', 'CONNECT']
    for (const method of [...methods, 'get', 'FOO', 'POST']) {
      const { result, ...caused } = await effects(target, () =>
        exchange(target.url, request('/m/a/get', [...linesOf(headers), close], method)),
      )
      expect({ method, ...caused }).toEqual({ method, ...nothing })
      const status = result[0]?.status ?? 405
      const expected = method === 'OPTIONS' ? [204] : [404, 405]
      expect([method, expected.includes(status)]).toEqual([method, true])
    }
    const overrides = [
      'X-HTTP-Method-Override: POST',
      'X-HTTP-Method: HEAD',
      'X-Method-Override: PUT',
    ]
    const [free] = await exchange(
      target.url,
      request('/m/a/both', [...overrides, close], 'OPTIONS'),
    )
    expect(free?.status).toBe(204)
    const [unpaid] = await exchange(target.url, request('/m/a/get', [...overrides, close]))
    expect(unpaid?.status).toBe(402)
    const lines = [...linesOf(headers), ...overrides, close]
    const [served] = await exchange(target.url, request('/m/a/get?_method=DELETE', lines))
    expect(served?.status).toBe(200)
    expect(target.upstream.requests.at(-1)?.method).toBe('GET')
  })
})
