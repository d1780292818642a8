import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { ask } from '../harness/buyer'
import { connect, request } from '../harness/raw'
import {
  effects,
  merchantSecret,
  mppPermit,
  mppUsdc,
  nothing,
  startTarget,
  type Target,
  type Way,
  x402Usdc,
} from '../harness/target'
import { until } from '../harness/world'

let target: Target
beforeAll(async () => {
  target = await startTarget()
})
afterAll(() => target?.stop())
beforeEach(() => {
  target.upstream.answer = undefined
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const linesOf = (headers: Record<string, string>) =>
  Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
const pay = async (way: Way, path = 'a/get') => way.pay(await ask(at(path)), buyer)
const bought = async (way: Way, path = 'a/get') =>
  fetch(at(path), { headers: await pay(way, path) })

describe('what the buyer sees', () => {
  test('attack: a problem of the upstream that a browser has paid for is no page of ours', async () => {
    const offers = { title: 'Pay', accepts: [{ scheme: 'exact', network: 'eip155:8453' }] }
    for (const text of ['{"cut', JSON.stringify(offers)]) {
      const headers = { 'content-type': 'application/problem+json' }
      target.upstream.answer = () => new Response(text, { status: 404, headers })
      const navigation = { accept: 'text/html', 'sec-fetch-mode': 'navigate' }
      const paid = { ...navigation, ...(await pay(x402Usdc)) }
      const answer = await fetch(at('a/get'), { headers: paid })
      expect(answer.status).toBe(404)
      expect(answer.headers.get('content-type')).toBe('application/problem+json')
      expect(await answer.text()).toBe(text)
    }
  })

  test("attack 26: the merchant's key is redacted from every answer of the upstream", async () => {
    for (const [status, type] of [
      [200, 'application/json'],
      [404, 'text/html'],
      [400, 'text/plain'],
    ] as const) {
      for (const encoding of [undefined, 'gzip'] as const) {
        target.upstream.answer = ({ headers }) => {
          const text = `you sent ${JSON.stringify(headers)} ${merchantSecret} and more`
          return new Response(encoding === undefined ? text : Bun.gzipSync(text), {
            status,
            headers: {
              'content-type': type,
              'x-total': `Bearer ${merchantSecret}`,
              etag: `"${merchantSecret}"`,
              ...(encoding === undefined ? {} : { 'content-encoding': encoding }),
            },
          })
        }
        const response = await bought(mppUsdc, 'a/both')
        expect(response.status).toBe(status)
        const all = JSON.stringify([[...response.headers], await response.text()])
        expect(all).not.toContain(merchantSecret)
        expect(all).toContain('[redacted]')
      }
    }
    for (const status of [401, 403, 500, 503]) {
      target.upstream.answer = () => new Response(`key ${merchantSecret}`, { status })
      const response = await bought(mppUsdc, 'a/both')
      expect(response.status).toBe(502)
      expect(await response.text()).not.toContain(merchantSecret)
    }
    expect(target.logged.join('\n')).not.toContain(merchantSecret)
  })

  test('attack 27: no header of a merchant affects the origin that all merchants share', async () => {
    const dangerous = {
      'set-cookie': 'session=1',
      'content-security-policy': "default-src 'self' *",
      'strict-transport-security': 'max-age=1; includeSubDomains',
      'service-worker-allowed': '/',
      'clear-site-data': '"*"',
      'access-control-allow-origin': 'https://evil.example',
      'access-control-allow-credentials': 'true',
      'www-authenticate': 'Payment id="x", realm="evil"',
      'payment-required': 'e30=',
      'payment-response': 'e30=',
      'x-payment-response': 'e30=',
      'payment-receipt': 'e30',
      'proxy-authenticate': 'Basic',
      'alt-svc': 'h3="evil.example:443"',
      link: '<https://evil.example>; rel=preload',
      'reporting-endpoints': 'x="https://evil.example"',
      'x-frame-options': 'ALLOWALL',
      'x-content-type-options': 'none',
      'permissions-policy': 'camera=*',
      'origin-agent-cluster': '?1',
      server: 'secret/1.0',
      'x-powered-by': 'secret',
      'x-request-id': 'theirs',
      'idempotency-replayed': 'true',
      via: '1.1 inner',
    }
    const html = '<script>navigator.serviceWorker.register("x")</script>'
    target.upstream.answer = () =>
      new Response(html, { headers: { ...dangerous, 'content-type': 'text/html' } })
    for (const way of [mppUsdc, x402Usdc]) {
      const response = await bought(way)
      expect(await response.text()).toBe(html)
      const { headers } = response
      for (const [name, value] of Object.entries(dangerous))
        expect([name, headers.get(name) === value]).toEqual([name, false])
      expect(headers.get('content-security-policy')).toBe('sandbox')
      expect(headers.get('x-content-type-options')).toBe('nosniff')
      expect(headers.get('access-control-allow-origin')).toBe('*')
      expect(headers.get('access-control-allow-credentials')).toBeNull()
      expect(headers.getSetCookie()).toEqual([])
      expect(headers.get('www-authenticate')).toBeNull()
    }
  })

  test('attack 28: no cache may store a challenge, an answer or a problem', async () => {
    target.upstream.answer = () =>
      new Response('goods', {
        headers: {
          'cache-control': 'public, max-age=31536000, immutable',
          expires: 'Thu, 01 Jan 2099 00:00:00 GMT',
          age: '1',
          'cdn-cache-control': 'public',
          'surrogate-control': 'max-age=1',
        },
      })
    const paid = await bought(mppUsdc)
    expect(paid.status).toBe(200)
    expect(paid.headers.get('cache-control')).toBe('private, no-store')
    for (const name of ['expires', 'age', 'cdn-cache-control', 'surrogate-control', 'pragma'])
      expect(paid.headers.get(name)).toBeNull()
    const others = [
      await fetch(at('a/get')),
      await fetch(at('a/get'), { headers: await pay(x402Usdc), method: 'OPTIONS' }),
      await fetch(at('a/get'), { headers: { 'payment-signature': 'x' } }),
      await fetch(at('nobody/get')),
      await fetch(at('a/post')),
    ]
    for (const response of others)
      expect([response.status, response.headers.get('cache-control')]).toEqual([
        response.status,
        'no-store',
      ])
  })
})

describe('streams', () => {
  /** An event stream that sends one event on request. */
  function startStream() {
    let controller: ReadableStreamDefaultController<Uint8Array> | undefined
    let cancelled = false
    target.upstream.answer = () =>
      new Response(
        new ReadableStream<Uint8Array>({
          start: (given) => {
            controller = given
            given.enqueue(new TextEncoder().encode('data: one\n\n'))
          },
          cancel: () => {
            cancelled = true
          },
        }),
        { headers: { 'content-type': 'text/event-stream' } },
      )
    return {
      fail: () => controller?.error(new Error('cut')),
      isCancelled: () => cancelled,
    }
  }

  for (const way of [mppUsdc, mppPermit, x402Usdc]) {
    test(`attack 45: a stream left after its first event is not delivered again, ${way.name}`, async () => {
      const stream = startStream()
      const headers = await pay(way)
      const socket = connect(target.url, request('/m/a/get', linesOf(headers)))
      let text = ''
      socket.on('data', (chunk) => {
        text += chunk
      })
      await until('the first event is there', () => text.includes('data: one'))
      const meanwhile = await fetch(at('a/get'), { headers })
      expect(meanwhile.status).toBe(409)
      socket.destroy()
      await until('it is recorded', () => target.payments().at(-1)?.truncated === 1)
      await until('the upstream is free', () => stream.isCancelled())
      target.upstream.answer = undefined
      for (const path of ['a/get', 'a/get', 'a/get?x=1']) {
        const { result, ...caused } = await effects(target, () => fetch(at(path), { headers }))
        expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
        expect(await result.text()).not.toContain('redeem')
      }
      expect(target.payments().at(-1)).toMatchObject({ delivery: 'delivered', attempts: 1 })
    })
  }

  test('attack 45: a stream that the upstream cuts in the middle is not delivered again', async () => {
    const stream = startStream()
    const headers = await pay(x402Usdc)
    const response = await fetch(at('a/get'), { headers })
    const reader = response.body?.getReader()
    await reader?.read()
    stream.fail()
    const rest = async () => {
      for (;;) if ((await reader?.read())?.done !== false) return 'ended'
    }
    await rest().catch(() => 'cut')
    await until('it is recorded', () => target.payments().at(-1)?.truncated === 1)
    target.upstream.answer = undefined
    const { result, ...caused } = await effects(target, () => fetch(at('a/get'), { headers }))
    expect({ status: result.status, ...caused }).toEqual({ status: 402, ...nothing })
  })
})

describe('connections that close early', () => {
  for (const way of [mppUsdc, x402Usdc]) {
    test(`attack 44: one payment gives one answer, however the connection is closed, ${way.name}`, async () => {
      for (const bytes of [20, 900_000, 3_000_000]) {
        target.upstream.answer = () => new Response('x'.repeat(bytes))
        for (const isHalfClosed of [true, false]) {
          const lines = linesOf(await pay(way))
          let heads = 0
          for (let visit = 0; visit < 4; visit++) {
            const socket = connect(target.url, request('/m/a/get', lines))
            socket.on('data', (chunk) => {
              if (String(chunk).startsWith('HTTP/1.1 200')) heads++
              socket.resetAndDestroy()
            })
            if (isHalfClosed) socket.end()
            await new Promise((resolve) => socket.once('close', resolve))
            await until('it is recorded', () => target.payments().at(-1)?.delivery !== 'delivering')
          }
          const seen = isHalfClosed ? Math.max(heads, 1) : heads
          expect([bytes, isHalfClosed, seen]).toEqual([bytes, isHalfClosed, 1])
        }
      }
    })
  }
})
