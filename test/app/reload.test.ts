import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Config } from '../../src/config/Config'
import { ask, settlementOf } from '../harness/buyer'
import { buy, payee, type Shop, sign, startShop, type Terms } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())
beforeEach(async () => {
  // Far enough that new payments remove every offer of the previous test.
  shop.advance(400_000)
  shop.upstream.script = undefined
  expect(await shop.app.reload(shop.config)).toEqual([])
  shop.advance(400_000)
})

const item = () => `${shop.url}/m/shop/item`
const other = { path: '/other', price: '0.005' }
const x402: Terms = { scheme: 'x402-eip3009' }
const permit2: Terms = { scheme: 'x402-permit2' }
const wallet = '0x1111111111111111111111111111111111111111'

const routeText = (path: string, price: string) =>
  `path = "${path}"\nmethods = ["GET", "POST"]\nprice = "${price}"`
const shopOrigin = 'upstream = "https://shop.example.com"\nnetworks = ['
const shopHead = `${shopOrigin}"eip155:4663", `

/** The file with one text of the shop's replaced. */
function changed(from: string, to: string): Config {
  return shop.edited((text) => {
    expect(text.split(from)).toHaveLength(2)
    return text.replace(from, () => to)
  })
}

const dearer = () => changed(routeText('/item', '0.005'), routeText('/item', '0.007'))
const paidToWallet = () => changed(shopHead, `payout = "${wallet}"\n${shopHead}`)
const withoutOther = () =>
  changed(`[[merchants.routes]]\n${routeText(other.path, other.price)}\n`, '')

/** A signature that is still valid after the gateway's clock has moved that far. */
function validAfter(ms: number): Terms {
  return { validBefore: BigInt(Math.floor((shop.now() + ms) / 1000) + 300) }
}

async function pricesOf(url: string): Promise<string[]> {
  const { required } = await ask(url)
  return [...new Set(required.accepts?.map(({ amount }) => amount))]
}

const pay = (headers: Record<string, string>, url = item()) => fetch(url, { headers })

function amountPaid(response: Response): unknown {
  const { transaction } = settlementOf(response)
  return shop.rows(
    `SELECT amount_atomic FROM payments WHERE transaction_hash = '${transaction}'`,
  )[0]?.amount_atomic
}

describe('a price that changes', () => {
  test('earlier challenges keep their price, later ones have the new price', async () => {
    const signed = await Promise.all(
      [{}, { scheme: 'mpp-permit2' as const }, x402, permit2, { ...x402, bare: true }].map(
        (terms) => sign(item(), { ...terms, ...validAfter(0) }),
      ),
    )
    expect(await shop.app.reload(dearer())).toEqual([])
    expect(await pricesOf(item())).toEqual(['7000'])
    for (const headers of signed) expect((await pay(headers)).status).toBe(200)
    const answer = await buy(item(), { ...x402, ...validAfter(0) })
    expect(answer.status).toBe(200)
    expect(amountPaid(answer)).toBe('7000')
  })

  test('an x402 offer is accepted for 360 seconds and not longer', async () => {
    const early = await sign(item(), { ...x402, ...validAfter(359_000) })
    const late = await sign(item(), { ...permit2, ...validAfter(361_000) })
    await shop.app.reload(dearer())
    shop.advance(359_000)
    const honoured = await pay(early)
    expect(honoured.status).toBe(200)
    expect(amountPaid(honoured)).toBe('5000')
    shop.advance(2_000)
    const refused = await pay(late)
    expect(refused.status).toBe(402)
    expect(settlementOf(refused)).toMatchObject({
      success: false,
      errorReason: 'invalid_payment_requirements',
    })
  })

  test('an amount that was never offered is refused', async () => {
    await shop.app.reload(dearer())
    const response = await buy(item(), { ...x402, ...validAfter(0), value: 6000n, bare: true })
    expect(response.status).toBe(402)
  })

  test('a payment that was not delivered is delivered after its offer was removed', async () => {
    shop.upstream.script = (_, reply) => reply.send(500)
    const headers = await sign(item(), validAfter(0))
    const failed = await pay(headers)
    expect(failed.status).toBe(502)
    await shop.app.reload(paidToWallet())
    shop.advance(500_000)
    shop.upstream.script = undefined
    expect((await pay(headers)).status).toBe(200)
  })

  test('retired offers are accepted after a restart, also with another file', async () => {
    const first = await sign(item(), { ...x402, ...validAfter(0) })
    const second = await sign(item(), { ...permit2, ...validAfter(0) })
    const third = await sign(item(), { ...x402, ...validAfter(400_000) })
    await shop.app.reload(dearer())
    await shop.restart(dearer())
    const afterReload = await pay(first)
    expect(afterReload.status).toBe(200)
    expect(amountPaid(afterReload)).toBe('5000')
    await shop.restart(shop.config)
    const dear = await pricesOf(item())
    expect(dear).toEqual(['5000'])
    await shop.restart(dearer())
    expect((await pay(second)).status).toBe(200)
    shop.advance(361_000)
    expect((await pay(third)).status).toBe(402)
    await shop.restart(shop.config)
  })
})

describe('a payout that changes', () => {
  test('offers to the old wallet end at once and nothing moves', async () => {
    const before = await shop.balance('eip155:8453', payee)
    const [mpp, offer] = [
      await sign(item(), validAfter(0)),
      await sign(item(), { ...x402, ...validAfter(0) }),
    ]
    expect(await shop.app.reload(paidToWallet())).toEqual([])
    const refused = await pay(mpp)
    expect(refused.status).toBe(402)
    expect(await refused.json()).toMatchObject({ code: 'invalid-challenge' })
    expect((await pay(offer)).status).toBe(402)
    expect(await shop.balance('eip155:8453', payee)).toBe(before)
    expect((await buy(item(), validAfter(0))).status).toBe(200)
    expect(await shop.balance('eip155:8453', wallet)).toBeGreaterThan(0n)
  })
})

describe('routes and networks that are added and removed', () => {
  test('a removed route is 404, also with an earlier challenge, until it is added again', async () => {
    const url = `${shop.url}/m/shop${other.path}`
    const mpp = await sign(url, validAfter(0))
    const offer = await sign(url, { ...x402, ...validAfter(0) })
    await shop.app.reload(withoutOther())
    expect((await pay(mpp, url)).status).toBe(404)
    expect((await fetch(url)).status).toBe(404)
    // It is back at another price: the earlier challenge keeps its price.
    await shop.app.reload(changed(routeText(other.path, '0.005'), routeText(other.path, '0.009')))
    expect(await pricesOf(url)).toEqual(['9000'])
    expect((await pay(mpp, url)).status).toBe(200)
    expect((await pay(offer, url)).status).toBe(200)
  })

  test('a new route and a new merchant are sold and listed', async () => {
    const etag = (await fetch(`${shop.url}/openapi.json`)).headers.get('etag')
    const config = shop.edited(
      (text) => `${text}
[[merchants]]
slug = "fresh"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/new"
price = "0.001"
`,
    )
    expect((await fetch(`${shop.url}/m/fresh/new`)).status).toBe(404)
    expect(await shop.app.reload(config)).toEqual([])
    expect((await buy(`${shop.url}/m/fresh/new`, validAfter(0))).status).toBe(200)
    const listed = await fetch(`${shop.url}/openapi.json`, {
      headers: { 'if-none-match': etag ?? '' },
    })
    expect(listed.status).toBe(200)
    expect(await listed.text()).toContain('/m/fresh/new')
    expect(shop.rows("SELECT slug FROM merchants WHERE slug = 'fresh'")).toHaveLength(1)
  })

  test('an offer on a network that is no longer offered is accepted until it expires', async () => {
    const testnet: Terms = { ...x402, network: 'eip155:84532' }
    const [mpp, early, late] = [
      await sign(item(), { network: 'eip155:84532', ...validAfter(0) }),
      await sign(item(), { ...testnet, ...validAfter(0) }),
      await sign(item(), { ...testnet, ...validAfter(400_000), bare: true }),
    ]
    const mainnets = '"eip155:4663", "eip155:8453"]\n'
    await shop.app.reload(
      changed(`${shopHead}"eip155:8453", "eip155:84532"]\n`, `${shopOrigin}${mainnets}`),
    )
    expect((await pay(mpp)).status).toBe(200)
    expect((await pay(early)).status).toBe(200)
    shop.advance(361_000)
    expect((await pay(late)).status).toBe(402)
  })
})

describe('requests in progress', () => {
  test('a request that waits for its upstream ends under the configuration with which it started', async () => {
    let answer: (() => void) | undefined
    shop.upstream.script = (_, reply) => {
      answer = () => reply.send(200, '{"late":true}')
    }
    const url = `${shop.url}/m/shop${other.path}`
    const waiting = buy(url, validAfter(0))
    await until('the upstream is asked', () => answer !== undefined)
    await shop.app.reload(withoutOther())
    expect((await fetch(url)).status).toBe(404)
    answer?.()
    const response = await waiting
    expect(response.status).toBe(200)
    expect(await response.json()).toEqual({ late: true })
  })

  test('no request is dropped while it reloads again and again', async () => {
    const configs = [dearer(), shop.config]
    const statuses: Record<number, number> = {}
    let stopped = false
    const count = ({ status }: Response) => {
      statuses[status] = (statuses[status] ?? 0) + 1
    }
    const visitor = async () => {
      while (!stopped) {
        const response = await fetch(item())
        await response.text()
        count(response)
      }
    }
    const buyer = async (terms: Terms) => {
      for (let round = 0; round < 6; round++)
        count(await buy(item(), { ...terms, ...validAfter(0) }))
    }
    const visitors = Array.from({ length: 8 }, visitor)
    const buyers = Promise.all([
      buyer({ buyer: 1 }),
      buyer({ ...x402, buyer: 2 }),
      buyer({ ...x402, buyer: 3 }),
    ]).finally(() => {
      stopped = true
    })
    for (let turn = 0; !stopped; turn++) {
      expect(await shop.app.reload(configs[turn % 2] ?? shop.config)).toEqual([])
      await Bun.sleep(2)
    }
    await buyers
    await Promise.all(visitors)
    expect(Object.keys(statuses)).toEqual(['200', '402'])
    expect(statuses[200]).toBe(18)
  })
})

test('attack: of reloads that come together each one keeps the offers of the one before', async () => {
  const middle = changed(routeText('/item', '0.005'), routeText('/item', '0.008'))
  const early = await sign(item(), { ...x402, ...validAfter(0) })
  const before = shop.now()
  expect(await Promise.all([shop.app.reload(middle), shop.app.reload(dearer())])).toEqual([[], []])
  expect(await pricesOf(item())).toEqual(['7000'])
  // The price that a buyer was asked for between the two reloads is still stored.
  const retired =
    "SELECT DISTINCT amount_atomic FROM offers WHERE route = '/item' AND retired_at >= "
  expect(shop.rows(`${retired}${before} ORDER BY amount_atomic`)).toEqual([
    { amount_atomic: '5000' },
    { amount_atomic: '8000' },
  ])
  expect((await pay(early)).status).toBe(200)
})

describe('what a running process cannot change', () => {
  test('the facilitator and the limits can be changed', async () => {
    const config = shop.edited((text) =>
      text
        .replace('verify_per_minute = 120', 'verify_per_minute = 7')
        .replace('paid_per_minute = 600', 'paid_per_minute = 601')
        .replace('settle_wait_seconds = 25', 'settle_wait_seconds = 24'),
    )
    expect(config.facilitator.verifyPerMinute).toBe(7)
    expect(await shop.app.reload(config)).toEqual([])
  })

  const cases: readonly (readonly [string, string, string])[] = [
    ['service.connections_max', 'connections_max = 10000', 'connections_max = 99'],
    ['service.buffered_max', 'buffered_max = "256MiB"', 'buffered_max = "128MiB"'],
    ['service.stalled_streams_max', 'stop_seconds = 30', 'stalled_streams_max = 7'],
    ['networks.eip155:8453.name', 'name = "Base"', 'name = "Basis"'],
    ['stock', '\nfee_bps = 0', '\nfee_bps = 7'],
  ]
  for (const [place, from, to] of cases)
    test(`error: a change of ${place} is reported and nothing is applied`, async () => {
      const both = shop.edited((text) =>
        text.replace(from, to).replace(routeText('/item', '0.005'), routeText('/item', '0.007')),
      )
      const places = await shop.app.reload(both)
      expect(places.map((path) => path.join('.'))).toEqual([place])
      expect(await pricesOf(item())).toEqual(['5000'])
    })
})
