import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { createHash, createHmac } from 'node:crypto'
import { join } from 'node:path'
import * as Offer from '../../src/protocol/Offer'
import * as Permit from '../../src/protocol/Permit'
import { type Asked, ask } from '../harness/buyer'
import { payee, type Shop, startShop } from '../harness/shop'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) => text.replace('unpaid_body_max = "1MiB"', 'unpaid_body_max = "1KiB"'),
  })
})
afterAll(() => shop.stop())

const usdc = '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'
const testUsdc = '0x036CbD53842c5426634e7929541eC2318f3dCF7e'
const usdg = '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'
const item = () => `${shop.url}/m/shop/item`
const chainIds = (asked: Asked) =>
  asked.challenges.map(({ request }) => request.methodDetails.chainId)
const opaqueOf = (raw: Record<string, string>) =>
  JSON.parse(Buffer.from(raw.opaque ?? '', 'base64url').toString())

describe('a request without a credential', () => {
  test('a request without a credential gets a 402 with both challenges and is not stored', async () => {
    const { response, challenges, required } = await ask(item())
    expect(response.status).toBe(402)
    expect(response.headers.get('cache-control')).toBe('no-store')
    expect(response.headers.get('content-type')).toBe('application/problem+json')
    expect(response.headers.get('x-request-id')).toMatch(/^[a-z0-9]+-[a-z0-9]+$/)
    expect(challenges).toHaveLength(3)
    expect(required.x402Version).toBe(2)
    expect(response.headers.has('payment-receipt')).toBe(false)
    expect(response.headers.has('payment-response')).toBe(false)
  })

  test('the body is a problem that mirrors the x402 challenge, and offers what version 1 can pay', async () => {
    const { body, required } = await ask(`${item()}?a=b`)
    const { type, title, status, detail, code, ...x402 } = body
    expect({ type, title, status, code }).toEqual({
      type: 'https://paymentauth.org/problems/payment-required',
      title: 'Payment Required',
      status: 402,
      code: 'payment-required',
    })
    expect(detail).toBeString()
    const offer = (network: string, asset: string, name: string) => ({
      scheme: 'exact',
      network,
      maxAmountRequired: '5000',
      resource: 'http://localhost:4020/m/shop/item?a=b',
      description: '',
      mimeType: 'application/json',
      payTo: payee,
      maxTimeoutSeconds: 300,
      asset,
      extra: { name, version: '2' },
    })
    const { x402: mirror, x402Version, error, accepts, ...beside } = x402
    expect(beside).not.toContainAnyKeys(['resource', 'extensions'])
    expect({ x402Version, error, accepts }).toEqual({
      x402Version: 1,
      error: 'Payment required',
      accepts: [offer('base', usdc, 'USD Coin'), offer('base-sepolia', testUsdc, 'USDC')],
    })
    expect(mirror).toMatchObject({
      x402Version: 2,
      error: 'Payment required',
      resource: required.resource,
      accepts: expect.arrayContaining(required.accepts),
      extensions: { mppx: { info: { method: 'GET' } } },
    })
  })

  test('POST and HEAD cost what GET costs', async () => {
    const get = await ask(item())
    const post = await ask(item(), { method: 'POST', body: '{"a":1}' })
    const head = await fetch(item(), { method: 'HEAD' })
    expect(post.response.status).toBe(402)
    expect(post.required.accepts).toEqual(get.required.accepts)
    const pricesOf = ({ challenges }: Asked) =>
      challenges.map(({ request: { amount, currency, recipient } }) => [
        amount,
        currency,
        recipient,
      ])
    expect(pricesOf(post)).toEqual(pricesOf(get))
    expect(head.status).toBe(402)
    expect(await head.text()).toBe('')
    const accepts = JSON.parse(atob(head.headers.get('payment-required') ?? '')).accepts
    expect(accepts).toEqual(get.required.accepts)
    expect(head.headers.get('www-authenticate')).toStartWith('Payment id="')
  })

  test('an Authorization of another scheme is not a credential', async () => {
    const asked = await ask(item(), { headers: { authorization: 'Bearer abc' } })
    expect(asked.body.code).toBe('payment-required')
  })

  test('a request whose Accept-Payment names another method gets every challenge', async () => {
    const ranges = ['evm/charge', '*/*', 'tempo/charge', 'evm/charge;q=0', 'x', '', '*/*;q=9']
    for (const accept of ranges)
      expect(chainIds(await ask(item(), { headers: { 'accept-payment': accept } }))).toEqual([
        8453, 4663, 84532,
      ])
  })

  test('an invalid parameter is named beside the price', async () => {
    const url = `${shop.url}/m/shop/form`
    const missing = await ask(url)
    expect(missing.response.status).toBe(402)
    expect(missing.challenges).toHaveLength(3)
    expect(missing.required.accepts[0]?.amount).toBe('20000')
    expect(missing.body.invalidParams).toMatchObject([{ name: 'symbol', in: 'query' }])
    const long = await ask(`${url}?symbol=TOOLONG`)
    expect(long.body.invalidParams).toMatchObject([{ name: 'symbol' }])
    const wrong = await ask(url, { method: 'POST', body: '{"symbol":"A","more":1}' })
    expect(wrong.response.status).toBe(402)
    expect(wrong.body.invalidParams).toContainEqual(
      expect.objectContaining({ in: 'body', name: 'more' }),
    )
    expect((await ask(`${url}?symbol=AAPL`)).body).not.toHaveProperty('invalidParams')
  })

  test('a 402 writes nothing, and calls neither a chain nor an upstream', async () => {
    const database = new Database(join(shop.dataDir, 'turnpike.sqlite'), { readonly: true })
    // This value changes whenever another connection has committed.
    const version = () => database.query('PRAGMA data_version').values()[0]
    const before = { version: version(), counts: shop.counts(), calls: shop.calls() }
    const form = `${shop.url}/m/shop/form`
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        await ask(item())
        await ask(item(), { method: 'POST', body: 'x'.repeat(500) })
        await ask(item(), { method: 'HEAD' })
        await ask(item(), { method: 'OPTIONS' })
        await ask(form)
        await ask(`${shop.url}/m/nothing/here`)
      }),
    )
    expect({ version: version(), counts: shop.counts(), calls: shop.calls() }).toEqual(before)
    expect(shop.upstream.requests).toHaveLength(0)
    database.close()
  })
})

describe('MPP challenge', () => {
  test('there is one MPP challenge per network in mpp_order, with price, contract, payee and types', async () => {
    const { challenges } = await ask(item())
    const terms = { amount: '5000', recipient: payee }
    const expected: unknown[] = [
      {
        ...terms,
        currency: usdc,
        methodDetails: { chainId: 8453, credentialTypes: ['authorization'] },
      },
      {
        ...terms,
        currency: usdg,
        methodDetails: {
          chainId: 4663,
          credentialTypes: ['permit2', 'authorization'],
          spender: Permit.proxyAddress,
        },
      },
      {
        ...terms,
        currency: testUsdc,
        methodDetails: { chainId: 84532, credentialTypes: ['authorization'] },
      },
    ]
    expect(challenges.map(({ request }) => request as unknown)).toEqual(expected)
  })

  test('an MPP challenge also has the members with defaults in the draft where there is room', async () => {
    const { challenges } = await ask(`${shop.url}/m/away/item`)
    expect(challenges.map(({ request }) => request.methodDetails as unknown)).toEqual([
      { chainId: 8453, credentialTypes: ['authorization'], decimals: 6 },
    ])
  })

  test('an MPP challenge has method, intent, and the host name of base_url as realm', async () => {
    for (const { raw } of (await ask(item())).challenges)
      expect(raw).toMatchObject({ realm: 'localhost', method: 'evm', intent: 'charge' })
  })

  test('request is JCS in base64url', async () => {
    const sort = (value: unknown): unknown =>
      typeof value !== 'object' || value === null || Array.isArray(value)
        ? value
        : Object.fromEntries(
            Object.entries(value)
              .sort(([a], [b]) => (a < b ? -1 : 1))
              .map(([name, member]) => [name, sort(member)]),
          )
    for (const { raw, request } of (await ask(item())).challenges)
      expect(Buffer.from(raw.request ?? '', 'base64url').toString()).toBe(
        JSON.stringify(sort(request)),
      )
  })

  test('id is the HMAC of the seven slots under the first secret', async () => {
    const asked = await ask(item(), { method: 'POST', body: 'a body' })
    const [secret = new Uint8Array()] = shop.secrets.challengeSecrets
    for (const { raw } of asked.challenges) {
      const slots = ['realm', 'method', 'intent', 'request', 'expires', 'digest', 'opaque']
      const text = slots.map((slot) => raw[slot] ?? '').join('|')
      expect(raw.digest).toBeString()
      expect(raw.id ?? '').toBe(createHmac('sha256', secret).update(text).digest('base64url'))
    }
  })

  test('a challenge is valid for 300 seconds', async () => {
    const before = Math.floor(Date.now() / 1000)
    const { challenges } = await ask(item())
    const after = Math.floor(Date.now() / 1000)
    for (const { raw } of challenges) {
      expect(raw.expires).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/)
      const expires = Date.parse(raw.expires ?? '') / 1000
      expect(expires).toBeGreaterThanOrEqual(before + 300)
      expect(expires).toBeLessThanOrEqual(after + 300)
    }
  })

  test('opaque binds route and method', async () => {
    const routes = async (path: string, method: string) =>
      (await ask(shop.url + path, { method })).challenges.map(({ raw }) => opaqueOf(raw).route)
    expect(await routes('/m/shop/item', 'GET')).toEqual(Array(3).fill('shop:GET /item'))
    expect(await routes('/m/shop/item/tail', 'GET')).toEqual(Array(3).fill('shop:GET /item'))
    expect(await routes('/m/shop/item', 'POST')).toEqual(Array(3).fill('shop:POST /item'))
    expect(await routes('/m/shop/other', 'GET')).toEqual(Array(3).fill('shop:GET /other'))
  })

  test('no two challenges are equal, also across a restart', async () => {
    const many = async () =>
      (await Promise.all(Array.from({ length: 200 }, () => ask(item())))).flatMap(
        (asked) => asked.challenges,
      )
    const first = await many()
    await shop.restart()
    const all = [...first, ...(await many())]
    expect(new Set(all.map(({ id }) => id)).size).toBe(1200)
    // The challenges of one answer share it, because their requests differ.
    expect(new Set(all.map(({ raw }) => opaqueOf(raw).n)).size).toBe(400)
  })

  test('digest is that of the body, and is omitted without a body or above the limit', async () => {
    const digests = async (body?: string) =>
      (
        await ask(item(), { method: 'POST', ...(body === undefined ? {} : { body }) })
      ).challenges.map(({ raw }) => raw.digest)
    const hash = createHash('sha256').update('a body').digest('base64')
    expect(await digests('a body')).toEqual(Array(3).fill(`sha-256=:${hash}:`))
    expect(await digests()).toEqual(Array(3).fill(undefined))
    expect(await digests('x'.repeat(1024))).toEqual(Array(3).fill(expect.any(String)))
    expect(await digests('x'.repeat(1025))).toEqual(Array(3).fill(undefined))
  })
})

describe('x402 challenge', () => {
  test('accepts has every network and transfer method, in file order', async () => {
    const { whole } = await ask(item())
    const offer = (network: string, asset: string, extra: object): unknown => ({
      scheme: 'exact',
      network,
      amount: '5000',
      asset,
      payTo: payee,
      maxTimeoutSeconds: 300,
      extra,
    })
    const upfront = { paymentFlow: 'upfront' }
    const dollar = { name: 'Global Dollar', version: '1', ...upfront }
    const expected = [
      offer('eip155:4663', usdg, {
        assetTransferMethod: 'permit2',
        spender: Permit.proxyAddress,
        ...dollar,
      }),
      offer('eip155:4663', usdg, { assetTransferMethod: 'eip3009', ...dollar }),
      offer('eip155:8453', usdc, {
        assetTransferMethod: 'eip3009',
        name: 'USD Coin',
        version: '2',
        ...upfront,
      }),
      offer('eip155:84532', testUsdc, {
        assetTransferMethod: 'eip3009',
        name: 'USDC',
        version: '2',
        ...upfront,
      }),
    ]
    expect(whole.accepts as unknown[]).toEqual(expected)
  })

  test('resource.url is the absolute requested URL', async () => {
    const { required } = await ask(`${item()}/tail?q=%201&a=b`)
    expect(required.resource.url).toBe('http://localhost:4020/m/shop/item/tail?q=%201&a=b')
  })

  test('every extension has info and schema, and that of mppx has the method', async () => {
    const { required, whole } = await ask(item(), { method: 'POST' })
    const full = whole.extensions
    const sponsoring = ['eip2612GasSponsoring', 'erc20ApprovalGasSponsoring']
    const names = ['bazaar', ...sponsoring, 'mppx', 'offer-receipt', 'payment-identifier']
    expect(Object.keys(full).sort()).toEqual(names)
    for (const { info, schema } of [
      ...Object.values(full),
      ...Object.values(required.extensions),
    ]) {
      expect(info).toBeObject()
      expect(schema).toBeObject()
    }
    expect(required.extensions.mppx?.info).toEqual({
      method: 'POST',
      salt: expect.stringMatching(/^[\w-]{15}$/),
    })
  })

  test('each offer is signed by the receipt key, once a minute', async () => {
    const signed = async () => {
      const extension = (await ask(item())).whole.extensions['offer-receipt']
      return extension?.info.offers as (Offer.SignedOffer & { acceptIndex: number })[]
    }
    const required = (await ask(item())).whole
    const offers = await signed()
    expect(offers).toHaveLength(required.accepts.length)
    for (const [index, offer] of offers.entries()) {
      const { scheme, network, asset, payTo, amount } = required.accepts[index] ?? {}
      expect(Offer.verify(offer)).toBe(shop.app.receiptAddress)
      expect(offer.acceptIndex).toBe(index)
      expect(offer.payload as unknown).toEqual({
        version: 1,
        resourceUrl: required.resource.url,
        scheme,
        network,
        asset,
        payTo,
        amount,
        validUntil: expect.any(Number),
      })
      expect(offer.payload.validUntil).toBeGreaterThanOrEqual(Date.now() / 1000 + 300)
    }
    shop.advance(60_000 - (Date.now() % 60_000))
    const early = await signed()
    expect(await signed()).toEqual(early)
    shop.advance(60_000)
    expect((await signed())[0]?.signature).not.toBe(early[0]?.signature)
  })
})

describe('other origins', () => {
  const paymentHeaders = ['WWW-Authenticate', 'PAYMENT-REQUIRED', 'PAYMENT-RESPONSE']

  test('a preflight is answered without payment, for the headers that a buyer sends', async () => {
    const response = await fetch(item(), {
      method: 'OPTIONS',
      headers: {
        origin: 'https://app.example.com',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'content-type, x-own',
      },
    })
    expect(response.status).toBe(204)
    expect(response.headers.get('access-control-allow-origin')).toBe('*')
    expect(response.headers.get('access-control-allow-methods')).toBe('GET, POST, HEAD, OPTIONS')
    const allowed = response.headers.get('access-control-allow-headers')?.split(', ')
    const own = 'Authorization, Payment-Signature, X-Payment, Accept-Payment, Idempotency-Key'
    expect(allowed).toEqual(
      expect.arrayContaining([
        ...own.split(', '),
        'Payment-Redeem',
        'Access-Control-Expose-Headers',
        'content-type',
        'x-own',
      ]),
    )
    expect(response.headers.has('www-authenticate')).toBe(false)
  })

  test('a 402 and a problem can be read from any origin, payment headers included', async () => {
    for (const [path, further] of [
      // The named headers, for browsers that support the asterisk.
      ['/m/shop/item', ['*']],
      ['/m/nothing', ['Payment-Receipt', 'X-PAYMENT-RESPONSE']],
    ] as const) {
      const { headers } = await fetch(shop.url + path)
      expect(headers.get('access-control-allow-origin')).toBe('*')
      const exposed = headers.get('access-control-expose-headers')?.split(', ')
      expect(exposed).toEqual(expect.arrayContaining([...paymentHeaders, ...further]))
    }
  })

  test('error: a path or method that is not sold is 404 or 405 with Allow, without a price', async () => {
    const missing = await fetch(`${shop.url}/m/shop/nothing`)
    expect(missing.status).toBe(404)
    expect(await missing.json()).toMatchObject({
      type: 'http://localhost:4020/problems/not-found',
      code: 'not-found',
      status: 404,
    })
    const deleted = await fetch(item(), { method: 'DELETE' })
    expect(deleted.status).toBe(405)
    expect(deleted.headers.get('allow')).toBe('GET, POST, HEAD, OPTIONS')
    expect(await deleted.json()).toMatchObject({ code: 'method-not-allowed' })
    for (const path of ['/m/shop/a%5Cb', '/m/shop/a%ff']) {
      const refused = await fetch(shop.url + path)
      expect(refused.status).toBe(400)
      expect(await refused.json()).toMatchObject({ code: 'invalid-path' })
    }
    const long = await fetch(`${item()}?q=${'x'.repeat(8200)}`)
    expect(long.status).toBe(414)
    expect(await long.json()).toMatchObject({ code: 'uri-too-long' })
  })
})
