import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import * as Quote from '../../src/meter/Quote'
import { ask, settlementOf, wholeOf } from '../harness/buyer'
import { bytes, units } from '../harness/meter'
import { buy, type Scheme, type Shop, sign, startShop, type Terms } from '../harness/shop'

/** A route with a meter, sold by `exact`: each request has its own price. */

const merchant = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
pass_headers = ["x-passed"]
rewrite = { model = { fast = "small-1" } }
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
[merchants.routes.meter.models."small-1"]
output = "10"
[merchants.routes.meter.limits]
models_only = true
max_output = 4000
max_choices = 2

[[merchants.routes]]
path = "/named"
methods = ["GET", "POST"]
price = "0.05"
[merchants.routes.meter]
preset = "header"
`
let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text + merchant })
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
  expect(await shop.app.reload(shop.config)).toEqual([])
})

const otherPayout = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'
const chat = () => `${shop.url}/m/model/chat`
const small = '{"model":"fast","max_tokens":10,"messages":[]}'
const large = '{"model":"fast","max_tokens":3000,"messages":[]}'
const posting = (body: string): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body,
})
const schemes: readonly Scheme[] = ['mpp', 'mpp-permit2', 'x402-eip3009', 'x402-permit2']

/** What the meter says that a body costs, once its alias is replaced. */
function ceilingOf(body: string): string {
  const routes = shop.config.merchants.find(({ slug }) => slug === 'model')?.routes
  const meter = routes?.[0]?.meter
  if (meter === undefined) throw new Error('no meter')
  const asked = { path: '/v1/chat/completions', body: bytes(body.replace('fast', 'small-1')) }
  return String(Quote.of(meter, asked).ceilingAtomic)
}

async function pricesOf(init?: RequestInit) {
  const { challenges, required, whole } = await ask(chat(), init)
  const { accepts = [] } = whole
  return new Set([
    ...(required.accepts ?? []).map(({ amount }) => amount),
    ...accepts.map(({ amount }) => amount),
    ...challenges.map(({ request }) => request.amount),
  ])
}

const pay = async (credential: Record<string, string>, body: string) =>
  fetch(chat(), {
    ...posting(body),
    headers: { 'content-type': 'application/json', ...credential },
  })

describe('the price of a request', () => {
  test('every offer has the ceiling of the request, or without a body the price of the route', async () => {
    expect(Number(ceilingOf(small))).toBeLessThan(2000)
    expect(await pricesOf(posting(small))).toEqual(new Set([ceilingOf(small)]))
    expect(await pricesOf(posting(large))).toEqual(new Set([ceilingOf(large)]))
    expect(await pricesOf({ method: 'POST' })).toEqual(new Set(['50000']))
    // Longer than what is read without a credential.
    const long = `{"model":"fast","max_tokens":1,"x":"${'x'.repeat(1_100_000)}"}`
    expect(await pricesOf(posting(long))).toEqual(new Set(['50000']))
  })

  for (const scheme of schemes)
    test(`${scheme} pays the ceiling and gets the answer to the limited request`, async () => {
      const response = await buy(chat(), { scheme, init: posting(small) })
      expect([response.status, await response.json()]).toEqual([200, { ok: true }])
      const [row] = shop.rows('SELECT amount_atomic FROM payments ORDER BY rowid DESC LIMIT 1')
      expect(row?.amount_atomic).toBe(ceilingOf(small))
      expect(shop.upstream.requests.map(({ body, target }) => [target, body])).toEqual([
        ['/v1/chat/completions', '{"model":"small-1","max_completion_tokens":10,"messages":[]}'],
      ])
    })

  test('the body is forwarded as the JSON in UTF-8 that it was quoted as', async () => {
    // Some upstreams decode UTF-7, in which this text has another output limit.
    const body = '{"model":"fast","max_tokens":10,"x":"+ACI-,+ACI-max+AF8-completion..."}'
    for (const type of ['application/json; charset=utf-7', 'application/x-www-form-urlencoded']) {
      const init = { ...posting(body), headers: { 'content-type': type } }
      const credential = await sign(chat(), { init })
      const headers = { ...credential, 'content-type': type }
      expect((await fetch(chat(), { ...init, headers })).status).toBe(200)
    }
    const types = shop.upstream.requests.map(({ headers }) => headers['content-type'])
    expect(types).toEqual(['application/json', 'application/json'])
  })

  test('a request for a stream reports its usage', async () => {
    const body = '{"model":"fast","stream":true,"n":2,"messages":[]}'
    expect((await buy(chat(), { init: posting(body) })).status).toBe(200)
    expect(JSON.parse(shop.upstream.requests[0]?.body ?? '')).toEqual({
      model: 'small-1',
      stream: true,
      n: 2,
      messages: [],
      max_completion_tokens: 4000,
      stream_options: { include_usage: true },
    })
  })

  test('many ceilings are offered one after the other, and an old one again', async () => {
    const prices = new Set<string>()
    for (let most = 1; most <= 4000; most += 20) {
      const body = `{"model":"fast","max_tokens":${most},"messages":[]}`
      const [price = ''] = await pricesOf(posting(body))
      expect(price).toBe(ceilingOf(body))
      prices.add(price)
    }
    expect(prices.size).toBeGreaterThan(100)
    expect(await pricesOf(posting(small))).toEqual(new Set([ceilingOf(small)]))
    expect((await buy(chat(), { init: posting(small) })).status).toBe(200)
  })
})

describe('a payment of another amount', () => {
  for (const scheme of schemes)
    test(`error: ${scheme}: the price of a small request does not buy a large one`, async () => {
      const before = shop.counts()
      const credential = await sign(chat(), { scheme, init: posting(small) })
      const response = await pay(credential, large)
      expect(response.status).toBe(402)
      const body = (await response.json()) as Record<string, unknown>
      const { reason, code } = body
      expect([reason ?? code]).toEqual([
        scheme.startsWith('x402') ? 'invalid_payment_requirements' : 'invalid-challenge',
      ])
      expect(wholeOf(body).accepts).toContainEqual(
        expect.objectContaining({ amount: ceilingOf(large) }),
      )
      expect([shop.counts(), shop.upstream.requests.length]).toEqual([before, 0])
      // The money has not moved: it still buys what it was signed for.
      expect((await pay(credential, small)).status).toBe(200)
    })

  for (const scheme of schemes)
    test(`${scheme}: the price of the route buys any request`, async () => {
      const credential = await sign(chat(), { scheme, init: { method: 'POST' } })
      const response = await pay(credential, small)
      expect(response.status).toBe(200)
      const [row] = shop.rows('SELECT amount_atomic FROM payments ORDER BY rowid DESC LIMIT 1')
      expect(row?.amount_atomic).toBe('50000')
    })

  test('error: an MPP challenge without a digest is held to the amount, too', async () => {
    // A URL of this length leaves no room for the digest in the header.
    const url = await urlWithoutDigest()
    const before = shop.counts()
    const credential = await sign(url, { init: posting(small) })
    const response = await fetch(url, { ...posting(large), headers: credential })
    const { detail } = (await response.json()) as { detail: string }
    expect([response.status, detail]).toEqual([
      402,
      expect.stringContaining('is not the price of this request'),
    ])
    expect([shop.counts(), shop.upstream.requests.length]).toEqual([before, 0])
    const paid = await fetch(url, { ...posting(small), headers: credential })
    expect(paid.status).toBe(200)
  })
})

/** A URL with which the challenges of the small body have no digest. */
async function urlWithoutDigest(): Promise<string> {
  for (let length = 500; length < 8000; length += 250) {
    const url = `${chat()}?x=${'x'.repeat(length)}`
    const { challenges } = await ask(url, posting(small))
    if (challenges.length > 0 && challenges.every(({ raw }) => raw.digest === undefined)) return url
  }
  throw new Error('every challenge has a digest')
}

describe('limits', () => {
  const bodies: readonly (readonly [body: string, name: string])[] = [
    ['{"model":"large-9","messages":[]}', 'model'],
    ['{"messages":[]}', 'model'],
    ['{"model":"fast","model":"large-9"}', 'model'],
    ['{"model":"fast","max_tokens":4001}', 'max_tokens'],
    ['{"model":"fast","n":3}', 'n'],
    ['not json', 'body'],
  ]
  for (const [body, name] of bodies)
    test(`error: ${body} is refused before payment, naming ${name}`, async () => {
      const before = shop.counts()
      const named = { invalidParams: [{ name, in: 'body', reason: expect.any(String) }] }
      const asked = await fetch(chat(), posting(body))
      expect([asked.status, await asked.json()]).toMatchObject([402, named])
      const response = await buy(chat(), { init: posting(body) })
      expect([response.status, await response.json()]).toMatchObject([400, named])
      expect([shop.counts(), shop.upstream.requests.length]).toEqual([before, 0])
    })
})

describe('a payment that is known', () => {
  const dearer = () =>
    shop.edited((text) => text.replace('base = "0.0005"\nunits', 'base = "0.03"\nunits'))

  for (const terms of [{ scheme: 'mpp' }, { scheme: 'x402-eip3009' }] as const satisfies Terms[])
    test(`${terms.scheme}: a known payment is delivered after the meter became dearer`, async () => {
      shop.upstream.script = (_, reply) => reply.cut()
      const credential = await sign(chat(), { ...terms, init: posting(small) })
      const failed = await pay(credential, small)
      const { redeem } = (await failed.json()) as { redeem?: { token: string } | string }
      expect(failed.status).toBe(502)
      shop.upstream.script = undefined
      expect(await shop.app.reload(dearer())).toEqual([])
      expect(await pricesOf(posting(small))).not.toEqual(new Set([ceilingOf(small)]))
      const token = typeof redeem === 'string' ? redeem : redeem?.token
      const header = failed.headers.get('payment-redeem') ?? token ?? ''
      const again =
        terms.scheme === 'mpp'
          ? await pay(credential, small)
          : await pay({ 'payment-redeem': header }, small)
      expect(again.status).toBe(200)
    })

  for (const scheme of ['mpp', 'mpp-permit2'] as const)
    test(`${scheme}: a known payment is delivered after the payout changed`, async () => {
      shop.upstream.script = (_, reply) => reply.cut()
      const credential = await sign(chat(), { scheme, init: posting(small) })
      expect((await pay(credential, small)).status).toBe(502)
      const unpaid = await sign(chat(), { scheme, init: posting(small) })
      shop.upstream.script = undefined
      const moved = shop.edited((text) =>
        text.replace('slug = "model"\n', `slug = "model"\npayout = "${otherPayout}"\n`),
      )
      expect(await shop.app.reload(moved)).toEqual([])
      expect((await pay(credential, small)).status).toBe(200)
      // No new money goes to the payee before.
      const before = shop.counts()
      expect((await pay(unpaid, small)).status).toBe(402)
      expect(shop.counts()).toEqual(before)
    })

  test('a known payment keeps its output limit after its model is no longer sold', async () => {
    const body = '{"model":"fast","messages":[]}'
    shop.upstream.script = (_, reply) => reply.cut()
    const credential = await sign(chat(), { init: posting(body) })
    expect((await pay(credential, body)).status).toBe(502)
    shop.upstream.script = undefined
    const without = shop.edited((text) => text.replace('models."small-1"', 'models."small-2"'))
    expect(await shop.app.reload(without)).toEqual([])
    expect((await pay(credential, body)).status).toBe(200)
    const [first, again] = shop.upstream.requests
    expect(first?.body).toContain('"max_completion_tokens":4000')
    expect(again?.body).toBe(first?.body ?? '')
  })

  test('an x402 payment is replayed after the meter became a flat one', async () => {
    const credential = await sign(chat(), { scheme: 'x402-eip3009', init: posting(small) })
    const keyed = { ...credential, 'idempotency-key': 'flat' }
    expect((await pay(keyed, small)).status).toBe(200)
    const flat = shop.edited((text) => {
      const from = text.indexOf('[merchants.routes.meter]', text.indexOf('slug = "model"'))
      const to = text.indexOf('[[merchants.routes]]', from)
      const meter = '[merchants.routes.meter]\npreset = "none"\nbase = "0.05"\n'
      return text.slice(0, from) + meter + text.slice(to)
    })
    expect(await shop.app.reload(flat)).toEqual([])
    expect(await pricesOf(posting(small))).toEqual(new Set(['50000']))
    const again = await pay(keyed, small)
    expect([again.status, again.headers.get('idempotency-replayed')]).toEqual([200, 'true'])
  })

  test('error: a new payment of the price before is refused', async () => {
    const credential = await sign(chat(), { scheme: 'x402-eip3009', init: posting(small) })
    expect(await shop.app.reload(dearer())).toEqual([])
    const before = shop.counts()
    expect((await pay(credential, small)).status).toBe(402)
    expect(shop.counts()).toEqual(before)
  })
})

describe('an upstream that names its charge', () => {
  test('the header reaches no buyer, and the price of the route is paid', async () => {
    for (const [path, init] of [
      ['model/named', undefined],
      ['model/chat', posting(small)],
      ['shop/item', undefined],
    ] as const) {
      shop.upstream.script = (_, reply) =>
        reply.send(200, '{}', {
          'content-type': 'application/json',
          'Settlement-Overrides': '{"amount":"1"}',
          'x-passed': 'yes',
        })
      const scheme = 'x402-eip3009'
      const terms = { scheme, ...(init && { init }) } as const
      const response = await buy(`${shop.url}/m/${path}`, terms)
      expect([path, response.status]).toEqual([path, 200])
      expect(JSON.stringify([...response.headers]).toLowerCase()).not.toContain('settlement-')
      expect(settlementOf(response)).toMatchObject({ success: true })
    }
  })
})

describe('documents', () => {
  const json = async (path: string) => (await fetch(shop.url + path)).json()

  test('x-payment-info says up to, base and units', async () => {
    const { paths } = (await json('/m/model/openapi.json')) as {
      paths: Record<string, { post: { 'x-payment-info': object } }>
    }
    expect(paths['/chat']?.post['x-payment-info']).toMatchObject({
      price: {
        mode: 'dynamic',
        currency: 'USD',
        min: '0.000500',
        max: '0.050000',
        description: expect.stringMatching(/^Up to 0\.050000 USD per request: base 0\.000500 USD/),
        units: { input: { price: '1', per: 1_000_000 }, output: { price: '10', per: 1_000_000 } },
        models: { 'small-1': { input: { price: '1', per: 1_000_000 } } },
      },
    })
  })

  test('llms.txt and the page say up to, and fixed prices stay as they are', async () => {
    const llms = await (await fetch(`${shop.url}/llms.txt`)).text()
    expect(llms).toMatch(/POST \S+\/m\/model\/chat - up to \$0\.05 - Up to 0\.050000 USD/)
    expect(llms).toMatch(/\/m\/shop\/item - \$0\.005 - $/m)
    const page = await (
      await fetch(`${shop.url}/?q=model`, { headers: { accept: 'text/html' } })
    ).text()
    expect(page).toContain('up to $0.05')
  })

  test('an MCP tool says up to, and a call costs what its body costs', async () => {
    const call = async (method: string, params: object) => {
      const response = await fetch(`${shop.url}/mcp`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          accept: 'application/json, text/event-stream',
        },
        body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
      })
      return JSON.stringify(await response.json())
    }
    expect(await call('tools/list', {})).toContain('Up to 0.050000 USD per request')
    const result = await call('tools/call', {
      name: 'model-chat',
      arguments: { body: JSON.parse(small) },
    })
    expect(result).toContain(`\\"amount\\":\\"${ceilingOf(small)}\\"`)
    expect(result).not.toContain('50000')
  })
})
