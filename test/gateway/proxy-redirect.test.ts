import { afterEach, describe, expect, test } from 'bun:test'
import type { Merchant, Route as RouteConfig } from '../../src/config/Config'
import * as Route from '../../src/gateway/Route'
import {
  createUpstream,
  forward as send,
  type UpstreamAnswer,
} from '../../src/gateway/upstream/upstream'
import { UpstreamError } from '../../src/net/watch'
import { merchant, route } from '../harness/merchants'
import { type Arrived, type Reply, type ScriptedUpstream, startScripted } from '../harness/upstream'

const started: ScriptedUpstream[] = []
afterEach(() => {
  for (const upstream of started.splice(0)) upstream.stop()
})

/** An upstream with scripted paths; for other paths it returns the request that arrived. */
async function serve(paths: Record<string, (reply: Reply, request: Arrived) => void>) {
  const upstream = await startScripted()
  started.push(upstream)
  upstream.script = (request, reply) => {
    const answer = paths[request.target.split('?')[0] ?? '']
    if (answer === undefined) reply.send(200, JSON.stringify(request))
    else answer(reply, request)
  }
  return upstream
}

const to =
  (status: number, location: string) =>
  (reply: Reply): void =>
    reply.send(status, 'moved', { location })

type Asked = {
  method?: string
  search?: string
  body?: string
  merchant?: Partial<Merchant>
  route?: Partial<RouteConfig>
}

function forward(upstream: ScriptedUpstream, asked: Asked = {}): Promise<UpstreamAnswer> {
  const seller = merchant('m', {
    upstream: upstream.url,
    allowPrivate: true,
    headers: { Authorization: 'Bearer upstream-s3cret-key' },
    routes: [route('/r', asked.route)],
    ...asked.merchant,
  })
  const match = Route.match(Route.compile([seller]), '/m/m/r')
  if (match === undefined) throw new Error('no match')
  return send(createUpstream({ now: () => 0 }), {
    match,
    method: asked.method ?? 'GET',
    search: asked.search ?? '',
    headers: new Headers({ 'content-type': 'application/json' }),
    body: new TextEncoder().encode(asked.body ?? ''),
    paymentId: 'pay_1',
  })
}

function arrivedIn(answer: UpstreamAnswer): Arrived {
  if (!(answer.body instanceof Uint8Array)) throw new Error('a stream')
  return JSON.parse(new TextDecoder().decode(answer.body))
}

const targets = (upstream: ScriptedUpstream) =>
  upstream.requests.map(({ method, target }) => `${method} ${target}`)

describe('a redirect of an upstream within its own origin', () => {
  for (const status of [301, 302, 303, 307, 308])
    test(`${status} of a GET is followed with all headers of the first request`, async () => {
      const upstream = await serve({ '/r': to(status, '/r/other?x=1') })
      const answer = await forward(upstream, { search: '?a=b' })
      expect(answer.status).toBe(200)
      expect(targets(upstream)).toEqual(['GET /r?a=b', 'GET /r/other?x=1'])
      const [first, second] = upstream.requests
      const headers = second?.headers ?? {}
      expect(headers).toEqual(first?.headers ?? {})
      expect(headers.authorization).toBe('Bearer upstream-s3cret-key')
      expect(headers.host).toBe(upstream.url.host)
      expect(headers['idempotency-key']).toBe('pay_1')
    })

  test('a relative location and one with the origin are followed, HEAD as HEAD', async () => {
    const upstream = await serve({ '/r': to(302, 'r/A_title#part') })
    expect((await forward(upstream, { method: 'HEAD' })).status).toBe(200)
    upstream.script = (request, reply) =>
      request.target === '/r'
        ? to(301, `${upstream.url.origin.toUpperCase()}/R/whole`)(reply)
        : reply.send(200)
    expect((await forward(upstream)).status).toBe(200)
    expect(targets(upstream)).toEqual(['HEAD /r', 'HEAD /r/A_title', 'GET /r', 'GET /R/whole'])
  })

  for (const status of [307, 308])
    test(`${status} of a POST is followed with its body`, async () => {
      const upstream = await serve({ '/r': to(status, '/r/other') })
      const answer = await forward(upstream, { method: 'POST', body: '{"a":1}' })
      expect(arrivedIn(answer)).toMatchObject({
        method: 'POST',
        target: '/r/other',
        body: '{"a":1}',
      })
    })

  for (const status of [301, 302, 303])
    test(`error: ${status} of a POST is not followed: it would become another request`, async () => {
      const upstream = await serve({ '/r': to(status, '/r/other') })
      const answer = await forward(upstream, { method: 'POST', body: '{"a":1}' })
      expect([answer.status, answer.headers.has('location')]).toEqual([status, false])
      expect(targets(upstream)).toEqual(['POST /r'])
    })

  test('error: at most three redirects are followed', async () => {
    const upstream = await serve({
      '/r': to(302, '/r/1'),
      '/r/1': to(302, '/r/2'),
      '/r/2': to(302, '/r/3'),
      '/r/3': to(302, '/r/4'),
    })
    expect((await forward(upstream)).status).toBe(302)
    expect(targets(upstream)).toEqual(['GET /r', 'GET /r/1', 'GET /r/2', 'GET /r/3'])
  })

  test('the fixed query is in each request, whatever the location has', async () => {
    const upstream = await serve({ '/r': to(302, '/r/other?key=theirs&x=1') })
    const own = { fixedQuery: { key: 'a-s3cret-value' }, query: { lang: 'en' } }
    await forward(upstream, { route: own, search: '?key=mine' })
    expect(targets(upstream)).toEqual([
      'GET /r?lang=en&key=a-s3cret-value',
      'GET /r/other?x=1&key=a-s3cret-value',
    ])
  })

  test('error: the whole chain has one time limit', async () => {
    let hops = 0
    const upstream = await serve({ '/r/1': () => {} })
    const script = upstream.script
    upstream.script = (request, reply) => {
      hops++
      if (request.target === '/r') to(302, '/r/1')(reply)
      else script?.(request, reply)
    }
    const error = await forward(upstream, { merchant: { timeoutMs: 200 } }).catch((e) => e)
    expect(error).toBeInstanceOf(UpstreamError)
    expect([error.kind, hops]).toEqual(['timeout', 2])
  })
})

describe('a redirect of an upstream to anywhere else', () => {
  for (const [place, routes] of [
    ['/premium', [route('/r', { tail: 'none' }), route('/premium')]],
    ['/internal/keys', [route('/r')]],
    ['/', [route('/r')]],
    ['/rest', [route('/r')]],
    ['/r/x', [route('/r', { tail: 'none' })]],
    ['/r/Premium;x', [route('/r'), route('/r/premium')]],
    ['/r/dear', [route('/r'), route('/other', { upstreamPath: '/r/dear' })]],
    ['/r/..%2fpremium', [route('/r')]],
    ['/r/%252e%252e/premium', [route('/r')]],
    ['/r//../../premium', [route('/r')]],
    ['//r', [route('/r')]],
  ] as const)
    test(`attack: ${place} is not requested by a route that does not sell it`, async () => {
      const upstream = await serve({ '/r': to(302, place) })
      const answer = await forward(upstream, { merchant: { routes } })
      expect([answer.status, targets(upstream)]).toEqual([302, ['GET /r']])
    })

  test('a route without a tail follows to a slash at its end', async () => {
    const upstream = await serve({ '/r': to(308, '/r/') })
    expect((await forward(upstream, { route: { tail: 'none' } })).status).toBe(200)
    expect(targets(upstream)).toEqual(['GET /r', 'GET /r/'])
  })

  test('attack: no request is sent to another origin, in any spelling', async () => {
    const trap = await serve({})
    const { port } = trap.url
    const upstream = await serve({})
    const own = upstream.url.port
    const places = [
      // The route sells these paths, so only the origin refuses them.
      `${trap.url.origin}/r`,
      `//127.0.0.1:${port}/r/x`,
      `http://localhost:${own}/r/x`,
      `https://127.0.0.1:${own}/r/x`,
      `http://127.0.0.1/r/x`,
      `http://user@127.0.0.1:${own}/r/x`,
      `http://user:pass@127.0.0.1:${own}/r/x`,
      `http://127.0.0.1:${own}@127.0.0.1:${port}/r`,
      `\\\\127.0.0.1:${port}\\r\\x`,
      `http:\\\\127.0.0.1:${port}\\r`,
      'http://169.254.169.254/r/meta-data',
      'javascript:alert(1)',
      'data:text/plain,x',
      'http://',
      '',
    ]
    for (const place of places) {
      upstream.requests.length = 0
      upstream.script = (_, reply) => to(302, place)(reply)
      const answer = await forward(upstream)
      expect([place, answer.status, upstream.requests.length]).toEqual([place, 302, 1])
      expect([...answer.headers.keys()]).not.toContain('location')
    }
    expect(trap.requests).toEqual([])
  })

  for (const status of [300, 304, 305, 306])
    test(`error: ${status} is not followed`, async () => {
      const upstream = await serve({ '/r': to(status, '/r/other') })
      expect((await forward(upstream)).status).toBe(status)
      expect(upstream.requests).toHaveLength(1)
    })
})
