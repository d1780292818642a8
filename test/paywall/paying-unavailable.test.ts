import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Credential from '../../src/protocol/Credential'
import * as Transfer from '../../src/protocol/Transfer'
import { settlementOf } from '../harness/buyer'
import { buy, payee, type Shop, sign, startShop, type Terms } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  // A public name that resolves to this machine must give no access to private paths.
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      merchants: config.merchants.map((merchant) =>
        merchant.slug === 'hasty'
          ? { ...merchant, allowPrivate: false, upstream: new URL('http://localhost:9') }
          : merchant,
      ),
    }),
  })
})
afterAll(() => shop.stop())
afterEach(() => {
  for (const tap of Object.values(shop.taps)) tap.intercept = undefined
})

const item = () => `${shop.url}/m/shop/item`
const base = 'eip155:8453'
const x402: Terms = { scheme: 'x402-eip3009' }
const down = () => new Response('down', { status: 500 })
const ways: [name: string, network: typeof base | 'eip155:4663', terms: Terms][] = [
  ['mpp', base, {}],
  ['mpp permit2', 'eip155:4663', { scheme: 'mpp-permit2' }],
  ['x402 eip3009', base, x402],
  ['x402 permit2', 'eip155:4663', { scheme: 'x402-permit2' }],
]

describe('a chain that cannot be reached', () => {
  test('an unreachable chain is 503, nothing is written, and the credential works when the chain is back', async () => {
    for (const [name, network, terms] of ways) {
      const credential = await sign(item(), terms)
      const counts = shop.counts()
      const tap = shop.taps[network]
      if (tap === undefined) throw new Error(`no ${network}`)
      tap.intercept = down
      const refused = await fetch(item(), { headers: credential })
      tap.intercept = undefined
      expect(refused.status).toBe(503)
      expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
      expect(refused.headers.has('www-authenticate')).toBe(false)
      expect(await refused.json()).toMatchObject({ code: 'not-ready' })
      if (name.startsWith('x402'))
        expect(settlementOf(refused)).toMatchObject({ success: false, transaction: '' })
      expect(shop.counts()).toEqual(counts)
      expect((await fetch(item(), { headers: credential })).status).toBe(200)
    }
  })

  test('a lost answer to the broadcast is not a failure', async () => {
    const credential = await sign(item())
    const tap = shop.taps[base]
    if (tap === undefined) throw new Error('no tap')
    tap.intercept = async (call, forward) => {
      if (!call.method.startsWith('eth_sendRawTransaction')) return undefined
      tap.intercept = undefined
      await forward()
      return down()
    }
    const before = await shop.balance(base, payee)
    const statuses: number[] = []
    await until('it is answered', async () => {
      const { status } = await fetch(item(), { headers: credential })
      statuses.push(status)
      return status === 200
    })
    expect(statuses.filter((status) => status !== 503 && status !== 200)).toEqual([])
    expect(await shop.balance(base, payee)).toBe(before + 5000n)
  })
})

describe('what is not ready', () => {
  test('networks that cannot settle are omitted; without any other, 503 before payment', async () => {
    const credential = await sign(item(), x402)
    for (const id of [base, 'eip155:84532'] as const) {
      const tap = shop.taps[id]
      if (tap !== undefined) tap.intercept = down
    }
    await shop.restart()
    const asked = await fetch(item())
    expect(asked.status).toBe(402)
    expect(asked.headers.get('www-authenticate')?.match(/Payment id=/g)).toHaveLength(1)
    const { accepts } = JSON.parse(atob(asked.headers.get('payment-required') ?? ''))
    expect(accepts.map(({ network }: { network: string }) => network)).toEqual([
      'eip155:4663',
      'eip155:4663',
    ])
    const counts = shop.counts()
    const refused = await fetch(item(), { headers: credential })
    expect(refused.status).toBe(503)
    expect(settlementOf(refused)).toMatchObject({ success: false })
    // Sold on 8453 only.
    const away = await fetch(`${shop.url}/m/away/item`)
    expect(away.status).toBe(503)
    expect(away.headers.get('retry-after')).toMatch(/^\d+$/)
    expect(away.headers.has('www-authenticate')).toBe(false)
    expect(await away.json()).toMatchObject({ code: 'not-ready' })
    expect(shop.counts()).toEqual(counts)

    for (const tap of Object.values(shop.taps)) tap.intercept = undefined
    await shop.restart()
    expect((await fetch(item(), { headers: credential })).status).toBe(200)
  })

  test('a merchant without its secret is 503, the others sell', async () => {
    const closed = await fetch(`${shop.url}/m/closed/item`)
    expect(closed.status).toBe(503)
    expect(await closed.json()).toMatchObject({ code: 'not-ready' })
    expect(closed.headers.has('www-authenticate')).toBe(false)
    expect((await buy(item())).status).toBe(200)
  })

  test('an open circuit is 503 before a payment, until it is half open', async () => {
    const away = `${shop.url}/m/away/item`
    const credential = await sign(away, x402)
    for (let failure = 0; failure < 5; failure++) {
      const response = await buy(away)
      expect(response.status).toBe(502)
      expect(await response.json()).toMatchObject({ code: 'upstream-unreachable' })
    }
    const counts = shop.counts()
    const asked = await fetch(away)
    expect(asked.status).toBe(503)
    expect(asked.headers.has('www-authenticate')).toBe(false)
    const refused = await fetch(away, { headers: credential })
    expect(refused.status).toBe(503)
    expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
    expect(settlementOf(refused)).toMatchObject({ success: false, transaction: '' })
    const malformed = await fetch(away, { headers: { authorization: 'Payment x' } })
    expect(malformed.status).toBe(503)
    expect(shop.counts()).toEqual(counts)
    // The page is public: it names the merchant, and not its upstream.
    const ready = await (await fetch(`${shop.url}/readyz`)).text()
    expect(JSON.parse(ready)).toMatchObject({ notReady: { circuits: ['away'] } })
    const upstreams = shop.config.merchants.flatMap(({ upstream }) => upstream?.host ?? [])
    expect(upstreams.length).toBeGreaterThan(0)
    for (const host of upstreams) expect(ready).not.toContain(host)
    // Other upstreams are not affected.
    expect((await fetch(item())).status).toBe(402)
    shop.advance(6_000)
    expect((await fetch(away)).status).toBe(402)
    shop.advance(-6_000)
  })

  test('error: a route whose upstream refuses our key sells nothing, until our own request passes', async () => {
    const { upstream } = shop
    const isOurs = ({ headers }: (typeof upstream.requests)[number]) =>
      `${headers['idempotency-key']}`.startsWith('probe-')
    upstream.script = (_, reply) => reply.send(401, '{"error":"key"}')
    upstream.requests.length = 0
    for (let i = 0; i < 3; i++) expect((await buy(item())).status).toBe(502)
    await until('the route', async () => (await fetch(item())).status === 503)
    const counts = shop.counts()
    const refused = await fetch(item())
    expect(await refused.json()).toMatchObject({ code: 'not-ready' })
    expect(refused.headers.has('www-authenticate')).toBe(false)
    const ready = (await (await fetch(`${shop.url}/readyz`)).json()) as { notReady: object }
    expect(ready.notReady).toMatchObject({
      merchants: [
        {},
        {
          merchant: 'shop',
          reason: 'the upstream answers 401 to /item: is its key right?',
        },
      ],
    })
    // Other routes sell, and our own request has no buyer.
    expect((await fetch(`${shop.url}/m/shop/other`)).status).toBe(402)
    expect(upstream.requests.map(isOurs)).toEqual([false, false, false, true])
    expect(shop.counts()).toEqual(counts)

    upstream.script = undefined
    shop.advance(6_000)
    await until('the route', async () => (await fetch(item())).status === 402)
    shop.advance(-6_000)
    expect((await buy(item())).status).toBe(200)
  })

  test('attack: requests that the upstream refuses close no route whose example it answers', async () => {
    const { upstream } = shop
    upstream.script = (request, reply) =>
      reply.send(request.target.includes('forbidden') ? 403 : 200, '{}')
    upstream.requests.length = 0
    for (let i = 0; i < 4; i++) expect((await buy(`${item()}?x=forbidden`)).status).toBe(502)
    await until('our request', () => upstream.requests.length === 5)
    expect((await buy(item())).status).toBe(200)
    upstream.script = undefined
  })

  test('an external settlement after such a 503 counts', async () => {
    const away = `${shop.url}/m/away/item`
    shop.advance(6_000)
    const credential = await sign(away)
    // The circuit of the upstream was open and is half open now.
    expect((await buy(away, { buyer: 3 })).status).toBe(502)
    expect((await fetch(away, { headers: credential })).status).toBe(503)
    const parsed = Credential.parse(credential.authorization ?? '')
    const chain = shop.chains[base]
    if (!('transfer' in parsed) || chain === undefined) throw new Error('no transfer')
    await chain.rpc('evm_increaseTime', [10])
    const call = Transfer.call(parsed.transfer)
    await execute(chain, [{ from: account(8).address, ...call, gas: 500_000n }])
    shop.advance(60_000)
    try {
      const response = await fetch(away, { headers: credential })
      // It was paid, and is redeemed when its upstream is back.
      expect(response.status).toBe(502)
      expect(await response.json()).toMatchObject({ code: 'upstream-unreachable' })
    } finally {
      shop.advance(-66_000)
    }
  })

  test('attack: an upstream whose name leads to a private address is 503 before a payment', async () => {
    const hidden = `${shop.url}/m/hasty/item`
    // The 402 does not wait for the lookup, the payment does.
    const credential = await sign(hidden)
    const counts = shop.counts()
    const refused = await fetch(hidden, { headers: credential })
    expect([refused.status, await refused.json()]).toMatchObject([503, { code: 'not-ready' }])
    expect(shop.counts()).toEqual(counts)
    expect((await fetch(hidden)).status).toBe(503)
  })
})
