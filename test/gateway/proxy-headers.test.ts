import { describe, expect, test } from 'bun:test'
import { toBuyer, toUpstream } from '../../src/gateway/upstream/headers'

const fixed = { meter: undefined, body: undefined }

describe('toUpstream', () => {
  const stays = [
    ['authorization', 'Payment abc'],
    ['authorization', 'Bearer buyer'],
    ['payment-signature', 'abc'],
    ['payment-redeem', 'abc'],
    ['payment-anything', 'abc'],
    ['x-payment', 'abc'],
    ['x-payment-response', 'abc'],
    ['accept-payment', 'evm'],
    ['idempotency-key', 'buyer'],
    ['cookie', 'a=b'],
    ['host', 'evil.example'],
    ['connection', 'keep-alive, x-api-key'],
    ['keep-alive', 'timeout=5'],
    ['proxy-authorization', 'Basic x'],
    ['te', 'trailers'],
    ['trailer', 'x-y'],
    ['transfer-encoding', 'chunked'],
    ['content-length', '7'],
    ['expect', '100-continue'],
    ['upgrade', 'websocket'],
    ['forwarded', 'for=1.2.3.4'],
    ['x-forwarded-for', '1.2.3.4'],
    ['x-forwarded-host', 'evil.example'],
    ['x-forwarded-prefix', '/admin'],
    ['x-real-ip', '1.2.3.4'],
    ['via', '1.1 x'],
    ['cf-connecting-ip', '1.2.3.4'],
    ['true-client-ip', '1.2.3.4'],
    ['x-client-ip', '1.2.3.4'],
    ['x-http-method-override', 'DELETE'],
    ['x-http-method', 'DELETE'],
    ['x-method-override', 'DELETE'],
    ['x-original-url', '/admin'],
    ['x-rewrite-url', '/admin'],
    ['x-api-key', 'buyer'],
    ['x-payer', '0xabc'],
    ['x-paid', 'true'],
    ['access-control-expose-headers', '*'],
    ['origin', 'https://evil.example'],
    ['referer', 'https://evil.example'],
    ['range', 'bytes=0-1'],
    ['if-none-match', '"x"'],
  ] as const
  test.each(stays)('%s: %s is not forwarded', (name, value) => {
    expect(
      toUpstream(new Headers({ [name]: value }), { headers: {} }, fixed, false).has(name),
    ).toBe(false)
  })

  test('headers that describe the request are forwarded, unless Connection lists them', () => {
    const given = {
      accept: 'a/b',
      'accept-language': 'de',
      'content-type': 'c/d',
      connection: 'Accept',
    }
    const headers = toUpstream(new Headers(given), { headers: {} }, fixed, false)
    expect([...headers]).toEqual([
      ['accept-encoding', 'identity'],
      ['accept-language', 'de'],
      ['content-type', 'c/d'],
      ['user-agent', 'turnpike'],
    ])
  })

  test("the merchant's headers replace the buyer's and ours", () => {
    const buyer = new Headers({
      accept: 'text/html',
      authorization: 'Bearer buyer',
      'user-agent': 'x',
    })
    const own = {
      Accept: 'application/json',
      Authorization: 'Bearer own',
      'User-Agent': 'Me/1 (me@x.org)',
    }
    const headers = toUpstream(buyer, { headers: own }, fixed, false)
    expect(headers.get('accept')).toBe('application/json')
    expect(headers.get('authorization')).toBe('Bearer own')
    expect(headers.get('user-agent')).toBe('Me/1 (me@x.org)')
  })

  test('attack: a body that a schema was checked with is forwarded as JSON, whatever the buyer calls it', () => {
    const typeOf = (type: string, route: Parameters<typeof toUpstream>[2], hasBody = true) =>
      toUpstream(new Headers({ 'content-type': type }), { headers: {} }, route, hasBody).get(
        'content-type',
      )
    const checked = { ...fixed, body: { type: 'object' } }
    for (const type of [
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
      'application/json; charset=utf-7',
      'text/xml',
    ])
      expect(typeOf(type, checked)).toBe('application/json')
    // A server such as Fastify refuses a request of this type without a body.
    expect(typeOf('text/plain', checked, false)).toBe('text/plain')
    expect(typeOf('text/plain', fixed)).toBe('text/plain')
    const own = { headers: { 'Content-Type': 'application/vnd.api+json' } }
    expect(toUpstream(new Headers(), own, checked, true).get('content-type')).toBe(
      'application/vnd.api+json',
    )
  })

  test('only encodings that the buyer names are requested', () => {
    const asked = (value: string) =>
      toUpstream(new Headers({ 'accept-encoding': value }), { headers: {} }, fixed, false).get(
        'accept-encoding',
      )
    expect(asked('gzip, br;q=0.5, made-up, identity;q=0')).toBe('gzip, br;q=0.5, identity;q=0')
    expect(asked('made-up')).toBe('identity')
    expect(asked('')).toBe('identity')
  })
})

describe('toBuyer', () => {
  const stays = [
    'set-cookie',
    'location',
    'refresh',
    'www-authenticate',
    'proxy-authenticate',
    'payment-receipt',
    'payment-required',
    'payment-response',
    'x-payment-response',
    'clear-site-data',
    'service-worker-allowed',
    'alt-svc',
    'strict-transport-security',
    'access-control-allow-origin',
    'content-length',
    'transfer-encoding',
    'connection',
    'content-security-policy-report-only',
    'x-accel-redirect',
  ]
  test.each(stays)('%s is not forwarded, even when the route lists it', (name) => {
    const headers = toBuyer(new Headers({ [name]: 'x' }), { passHeaders: [name] })
    expect(headers.has(name)).toBe(false)
  })

  test('headers that are not allowed are not forwarded', () => {
    const upstream = new Headers({
      server: 'x',
      'x-powered-by': 'y',
      link: '</x>',
      via: 'z',
      date: 'd',
    })
    const names = [...toBuyer(upstream, { passHeaders: [] }).keys()]
    expect(names).toEqual(['cache-control', 'content-security-policy', 'x-content-type-options'])
  })

  test('content headers, validators and listed headers are forwarded; our policy replaces theirs', () => {
    const upstream = new Headers({
      'content-type': 'application/json',
      'content-language': 'en',
      'content-disposition': 'inline',
      'content-encoding': 'gzip',
      etag: '"e"',
      'last-modified': 'x',
      'x-ratelimit-remaining': '4',
      'cache-control': 'public, max-age=999',
      'content-security-policy': "default-src 'self'",
    })
    const headers = toBuyer(upstream, { passHeaders: ['x-ratelimit-remaining', 'cache-control'] })
    expect(Object.fromEntries(headers)).toEqual({
      'content-type': 'application/json',
      'content-language': 'en',
      'content-disposition': 'inline',
      'content-encoding': 'gzip',
      etag: '"e"',
      'last-modified': 'x',
      'x-ratelimit-remaining': '4',
      'cache-control': 'private, no-store',
      'content-security-policy': 'sandbox',
      'x-content-type-options': 'nosniff',
    })
  })

  test('a header that Connection lists is not forwarded', () => {
    const upstream = new Headers({ connection: 'close, X-Hop', 'x-hop': '1' })
    expect(toBuyer(upstream, { passHeaders: ['x-hop'] }).has('x-hop')).toBe(false)
  })
})
