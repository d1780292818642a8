import { afterEach, describe, expect, test } from 'bun:test'
import * as Route from '../../src/gateway/Route'
import {
  createUpstream,
  type ForwardInput,
  forward,
  isReachable,
} from '../../src/gateway/upstream/upstream'
import { proxyFor } from '../../src/net/environment-proxy'
import { merchant, route } from '../harness/merchants'
import { until } from '../harness/settlement'

/** The proxy of a request to an upstream, by the environment and by host names. */

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup()
})

function serve(answer: string) {
  const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: () => new Response(answer) })
  cleanups.push(() => server.stop(true))
  return server
}

function matchOf(url: string, allowPrivate: boolean): Route.Match {
  const seller = merchant('m', { upstream: new URL(url), allowPrivate, routes: [route('/r')] })
  const match = Route.match(Route.compile([seller]), '/m/m/r')
  if (match === undefined) throw new Error('no match')
  return match
}

function inputFor(url: string, allowPrivate: boolean): ForwardInput {
  const match = matchOf(url, allowPrivate)
  const headers = new Headers()
  return { match, method: 'GET', search: '', headers, body: new Uint8Array(0), paymentId: 'p' }
}

describe('a proxy of the environment', () => {
  const names = ['HTTP_PROXY', 'http_proxy', 'NO_PROXY', 'no_proxy'] as const
  const before = names.map((name) => process.env[name])
  afterEach(() => {
    for (const [index, name] of names.entries()) {
      const value = before[index]
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  })

  test('attack: NO_PROXY excludes a host from the proxy, though the connection is made to its address', async () => {
    const proxy = serve('proxy')
    const upstream = serve('direct')
    process.env.HTTP_PROXY = process.env.http_proxy = proxy.url.href
    process.env.NO_PROXY = process.env.no_proxy = 'a.test, .b.test,c.test:1'
    const resolve = async () => ['127.0.0.1']
    const shared = createUpstream({ now: () => 0, resolve })
    const ask = async (host: string) => {
      const { body } = await forward(shared, inputFor(`http://${host}:${upstream.port}`, true))
      return new TextDecoder().decode(body as Uint8Array)
    }
    for (const host of ['a.test', 'x.a.test', 'b.test', 'x.b.test'])
      expect([host, await ask(host)]).toEqual([host, 'direct'])
    for (const host of ['ya.test', 'c.test', 'd.test'])
      expect([host, await ask(host)]).toEqual([host, 'proxy'])
  })

  test('exceptions are names, addresses, ports and the asterisk', () => {
    const proxyOf = (url: string, no_proxy: string) =>
      proxyFor(new URL(url), { https_proxy: 'http://p', no_proxy })
    expect(proxyOf('https://a.test', '')).toBe('http://p')
    expect(proxyOf('http://a.test', '')).toBe(false)
    for (const exception of ['*', 'A.test', '*.test', 'a.test:443', 'x a.test'])
      expect([exception, proxyOf('https://a.test', exception)]).toEqual([exception, false])
    for (const exception of ['a.test:80', 'b.a.test', 'st', ','])
      expect([exception, proxyOf('https://a.test', exception)]).toEqual([exception, 'http://p'])
    expect(proxyOf('https://[2001:db8::1]', '2001:db8::1')).toBe(false)
    expect(proxyOf('https://[2001:db8::1]', '[2001:db8::1]:443')).toBe(false)
  })
})

describe('a name that is resolved before a charge', () => {
  test('the first lookup is waited for, later ones use the cache, and an old answer is renewed', async () => {
    let now = 0
    const answers: (readonly string[])[] = [
      ['8.8.8.8'],
      ['10.0.0.1', '::1'],
      ['10.0.0.1', '8.8.8.8'],
    ]
    let asked = 0
    const upstream = createUpstream({
      now: () => now,
      resolve: async () => answers[asked++] ?? [],
    })
    const open = matchOf('https://a.test', false)
    expect(await isReachable(upstream, open)).toBe(true)
    expect([isReachable(upstream, open), asked]).toEqual([true, 1])
    now = 30_000
    expect(isReachable(upstream, open)).toBe(true)
    await until(() => isReachable(upstream, open) === false)
    expect(asked).toBe(2)
    // A merchant that allows private addresses may use this one.
    expect(isReachable(upstream, matchOf('http://a.test', true))).toBe(true)
    now = 60_000
    expect(isReachable(upstream, open)).toBe(false)
    await until(() => isReachable(upstream, open) === true)
  })

  test('error: a name that does not resolve is not reachable until it does', async () => {
    let now = 0
    let isUp = false
    const upstream = createUpstream({
      now: () => now,
      resolve: async () => {
        if (isUp) return ['8.8.8.8']
        throw new Error('ENOTFOUND')
      },
    })
    const match = matchOf('https://a.test', false)
    expect(await isReachable(upstream, match)).toBe(false)
    isUp = true
    now = 2_000
    await until(() => isReachable(upstream, match) === true)
  })
})
