import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { settlementOf } from '../harness/buyer'
import { buy, openConnection, type Shop, sign, startShop, type Terms } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import { until, whenFree } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const events = { 'content-type': 'text/event-stream' }

/** The upstream's handler of the next request. */
function nextReply(): Promise<Reply> {
  return new Promise((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })
}

function readerOf(response: Response): () => Promise<string> {
  const reader = response.body?.getReader()
  const decoder = new TextDecoder()
  return async () => decoder.decode((await reader?.read())?.value)
}

function lastPayment(): Record<string, unknown> {
  return shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')[0] ?? {}
}

function delivery(): unknown {
  const { delivery, truncated, attempts } = lastPayment()
  return { delivery, truncated, attempts }
}

const whole = { delivery: 'delivered', truncated: 0, attempts: 1 }
const cut = { delivery: 'delivered', truncated: 1, attempts: 1 }
const becomes = (expected: object) =>
  until(JSON.stringify(expected), () => Bun.deepEquals(delivery(), expected))

describe('an event stream', () => {
  for (const terms of [{}, x402] as Terms[])
    test(`chunks arrive as they are sent, by ${terms.scheme ?? 'mpp'}`, async () => {
      const reply = nextReply()
      const bought = buy(item(), terms)
      const upstream = await reply
      upstream.head(200, events)
      upstream.chunk('data: 1\n\n')
      const response = await bought
      expect(response.status).toBe(200)
      expect(response.headers.get('content-type')).toBe('text/event-stream')
      expect(response.headers.get('cache-control')).toBe('private, no-store')
      // The receipt is in the head, before the end of the stream.
      if (terms.scheme === undefined) expect(response.headers.has('payment-receipt')).toBe(true)
      else expect(settlementOf(response)).toMatchObject({ success: true })
      const read = readerOf(response)
      expect(await read()).toBe('data: 1\n\n')
      // It is delivered from its first byte on.
      await becomes(whole)
      upstream.chunk('data: 2\n\n')
      expect(await read()).toBe('data: 2\n\n')
      upstream.chunk('data: 3\n\n')
      expect(await read()).toBe('data: 3\n\n')
      upstream.end()
      expect(await read()).toBe('')
      await becomes(whole)
    })

  test('an event stream that ends at once is delivered', async () => {
    for (let count = 0; count < 5; count++) {
      shop.upstream.script = (_, reply) => {
        reply.head(200, events)
        reply.chunk('data: 1\n\n')
        reply.end()
      }
      const credential = await sign(item())
      const response = await fetch(item(), { headers: credential })
      expect(await response.text()).toBe('data: 1\n\n')
      await becomes(whole)
      expect((await fetch(item(), { headers: credential })).status).toBe(402)
    }
  })

  test('a stream that the upstream cuts after its first byte is delivered, truncated', async () => {
    const reply = nextReply()
    const credential = await sign(item())
    const bought = fetch(item(), { headers: credential })
    const upstream = await reply
    upstream.head(200, events)
    upstream.chunk('data: 1\n\n')
    const read = readerOf(await bought)
    expect(await read()).toBe('data: 1\n\n')
    upstream.cut()
    // The buyer must be able to see the cut.
    expect(await read().then(String, () => 'broken')).toBe('broken')
    await becomes(cut)
    const again = await fetch(item(), { headers: credential })
    expect(again.status).toBe(402)
    expect(await again.json()).toMatchObject({ code: 'invalid-challenge' })
  })

  test('an upstream that sends nothing is cut after idle_ms', async () => {
    const reply = nextReply()
    const bought = buy(`${shop.url}/m/hasty/item`)
    const upstream = await reply
    upstream.head(200, events)
    upstream.chunk('data: 1\n\n')
    const read = readerOf(await bought)
    expect(await read()).toBe('data: 1\n\n')
    expect(await read().then(String, () => 'broken')).toBe('broken')
    await becomes(cut)
  })

  for (const terms of [{}, x402] as Terms[])
    test(`a stream whose buyer disconnects after the first byte is delivered, by ${terms.scheme ?? 'mpp'}`, async () => {
      const reply = nextReply()
      const credential = await sign(item(), terms)
      const leave = new AbortController()
      const bought = fetch(item(), { headers: credential, signal: leave.signal })
      const upstream = await reply
      upstream.head(200, events)
      upstream.chunk('data: 1\n\n')
      const read = readerOf(await bought)
      expect(await read()).toBe('data: 1\n\n')
      // While it streams, the same credential is in progress.
      expect((await fetch(item(), { headers: credential })).status).toBe(409)
      leave.abort()
      await upstream.left
      await becomes(cut)
      const again = await fetch(item(), { headers: credential })
      expect(again.status).toBe(402)
      expect(await again.json()).toMatchObject({ code: 'invalid-challenge' })
      expect(shop.upstream.requests).toHaveLength(1)
    })

  for (const terms of [{}, x402] as Terms[])
    test(`a buyer that disconnects before the first byte can repeat the request, by ${terms.scheme ?? 'mpp'}`, async () => {
      const reply = nextReply()
      const credential = await sign(item(), terms)
      const connection = openConnection(item(), credential)
      const upstream = await reply
      await connection.leave()
      upstream.head(200, events)
      upstream.chunk('data: 1\n\n')
      // The body is not read.
      await upstream.left
      await until('it is recorded', () => lastPayment().delivery === 'none')
      shop.upstream.script = undefined
      const counts = shop.counts()
      const again = await whenFree(() => fetch(item(), { headers: credential }))
      expect(again.status).toBe(200)
      expect(shop.counts()).toEqual(counts)
      await becomes({ delivery: 'delivered', truncated: 0, attempts: 2 })
    })
})

describe('an answer that is no event stream', () => {
  test('a buyer that disconnects before an answer can repeat the request', async () => {
    for (const terms of [{}, x402] as Terms[]) {
      const reply = nextReply()
      const credential = await sign(item(), terms)
      const connection = openConnection(item(), credential)
      const upstream = await reply
      await connection.leave()
      // The paid answer is still read from the upstream.
      upstream.send(200, '{"n":1}')
      await until('it is recorded', () => lastPayment().delivery === 'none')
      shop.upstream.script = undefined
      const again = await whenFree(() => fetch(item(), { headers: credential }))
      expect(again.status).toBe(200)
    }
  })

  test('an answer above 1 MiB is streamed, and a cut after that is truncated', async () => {
    const mebibyte = 'x'.repeat(1024 * 1024)
    for (const isCut of [false, true]) {
      const reply = nextReply()
      const bought = buy(item())
      const upstream = await reply
      upstream.head(200, { 'content-type': 'text/plain' })
      upstream.chunk(mebibyte)
      const response = await bought
      expect(response.status).toBe(200)
      expect(response.headers.has('payment-receipt')).toBe(true)
      upstream.chunk('the end')
      if (isCut) upstream.cut()
      else upstream.end()
      const text = await response.text().catch(() => 'broken')
      expect(text === 'broken').toBe(isCut)
      if (!isCut) expect(text).toBe(`${mebibyte}the end`)
      await becomes(isCut ? cut : whole)
    }
  })
})

describe('a purchase', () => {
  test('HEAD is paid like GET and returns the head', async () => {
    const response = await buy(item(), { init: { method: 'HEAD' } })
    expect(response.status).toBe(200)
    expect(response.headers.has('payment-receipt')).toBe(true)
    expect(await response.text()).toBe('')
    expect(shop.upstream.requests.map(({ method }) => method)).toEqual(['HEAD'])
  })

  test('query, tail and body are forwarded unchanged, and no payment header is', async () => {
    const init = { method: 'POST', body: '{"messages":["\u00fc"]}' }
    const url = `${item()}/a%2Fb?x=%20y&x=2&empty=`
    for (const terms of [{ init }, { ...x402, init }] as Terms[]) {
      shop.upstream.requests.length = 0
      const response = await buy(url, terms, {
        'content-type': 'application/json',
        'accept-payment': 'evm/charge',
        'idempotency-key': `key-${terms.scheme}`,
        cookie: 'a=b',
        'x-forwarded-for': '1.2.3.4',
        'x-api-key': 'mine',
      })
      expect(response.status).toBe(200)
      const [request] = shop.upstream.requests
      expect(request).toMatchObject({
        method: 'POST',
        target: '/item/a%2Fb?x=%20y&x=2&empty=',
        body: init.body,
      })
      const { headers = {} } = request ?? {}
      // The merchant's own, and the payment's id.
      expect(headers.authorization).toBe('Bearer upstream-s3cret-key')
      expect(headers['idempotency-key']).toStartWith('pay_')
      const names = ['payment-signature', 'x-payment', 'accept-payment', 'payment-redeem', 'cookie']
      for (const name of [...names, 'x-forwarded-for', 'x-api-key', 'origin'])
        expect(headers).not.toHaveProperty(name)
    }
  })

  test('only listed headers of the answer are forwarded, and no cache may store it', async () => {
    shop.upstream.script = (_, reply) =>
      reply.send(200, '{}', {
        'content-type': 'application/json',
        'x-passed': 'yes',
        'x-other': 'no',
        etag: '"1"',
        'www-authenticate': 'Basic realm="upstream"',
        'payment-receipt': 'forged',
        'payment-response': 'forged',
        'set-cookie': 'a=b',
        location: 'https://evil.example.com',
        'cache-control': 'public, max-age=3600',
      })
    const { headers } = await buy(item(), x402)
    expect(headers.get('x-passed')).toBe('yes')
    expect(headers.get('etag')).toBe('"1"')
    for (const name of ['x-other', 'www-authenticate', 'payment-receipt', 'set-cookie', 'location'])
      expect(headers.has(name)).toBe(false)
    expect(headers.get('payment-response')).not.toContain('forged')
    expect(headers.get('cache-control')).toBe('private, no-store')
    expect(headers.get('x-content-type-options')).toBe('nosniff')
    expect(headers.get('content-security-policy')).toBe('sandbox')
    expect(headers.get('access-control-allow-origin')).toBe('*')
    expect(headers.get('access-control-expose-headers')).toContain('PAYMENT-RESPONSE')
  })
})
