import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from 'bun:test'
import type * as App from '../../src/app'
import { type AppPair, startAppPair } from '../harness/app-pair'
import { ask } from '../harness/buyer'
import { hasPostgres } from '../harness/postgres'
import { type Shop, sign, startShop, type Terms } from '../harness/shop'
import { until } from '../harness/world'

/** Two gateways over one database, of which one after the other gets another price. */

setDefaultTimeout(60_000)

const x402: Terms = { scheme: 'x402-eip3009' }
let pair: AppPair
let shop: Shop
/** How far the clock of the first gateway is ahead, ms. */
let aheadMs = 0

const at = ({ url }: App.App) => `${url}/m/shop/item`
const dearer = () =>
  shop.edited((text) =>
    text.replace(
      'path = "/item"\nmethods = ["GET", "POST"]\nprice = "0.005"',
      'path = "/item"\nmethods = ["GET", "POST"]\nprice = "0.007"',
    ),
  )

async function priceAt(gateway: App.App): Promise<string | undefined> {
  return (await ask(at(gateway))).required.accepts?.[0]?.amount
}

describe.skipIf(!hasPostgres)('two gateways with different files', () => {
  beforeAll(async () => {
    // A refused credential is presented again until it is accepted.
    const edit = (text: string) =>
      text.replace(/^#? ?paid_per_minute = .*$/m, 'paid_per_minute = 1000000')
    shop = await startShop({ edit })
    pair = await startAppPair(shop.config, () => aheadMs)
  })
  afterAll(async () => {
    await pair?.stop()
    await shop?.stop()
  })

  test('the offers of each gateway are accepted at the other, at their own price', async () => {
    const [a, b] = pair.apps
    const earlier = await sign(at(a), x402)
    expect(await b.reload(dearer())).toEqual([])
    expect([await priceAt(a), await priceAt(b)]).toEqual(['5000', '7000'])
    // What the old gateway offers is accepted at the new one, from before its reload and after it.
    const later = await sign(at(a), { ...x402, buyer: 2 })
    for (const headers of [earlier, later])
      expect((await fetch(at(b), { headers })).status).toBe(200)
    // A challenge of MPP names its price.
    const challenge = await sign(at(b), { buyer: 3 })
    expect((await fetch(at(a), { headers: challenge })).status).toBe(200)
    // An x402 offer of the new one is refused until the old one has heard of it, and then accepted.
    const fresh = await sign(at(b), { ...x402, buyer: 4 })
    await until('the offer of the other gateway is accepted', async () => {
      const { status } = await fetch(at(a), { headers: fresh })
      expect([200, 402]).toContain(status)
      return status === 200
    })
    expect(await priceAt(a)).toBe('5000')
    // The last offers of the old file are accepted after its own reload.
    const last = await sign(at(a), { ...x402, buyer: 2 })
    expect(await a.reload(dearer())).toEqual([])
    expect(await priceAt(a)).toBe('7000')
    expect((await fetch(at(a), { headers: last })).status).toBe(200)
  })

  test('error: a gateway whose clock comes to differ is not ready, and the other one is', async () => {
    const [a, b] = pair.apps
    const readyz = async ({ url }: App.App) => {
      const answer = await fetch(`${url}/readyz`)
      const { notReady, database } = (await answer.json()) as {
        notReady: { database: { reason: string }[] }
        database: { clockAheadMs: number }
      }
      return { status: answer.status, reasons: notReady.database, ...database }
    }
    for (const [ms, word] of [
      [8_000, 'behind'],
      [-8_000, 'ahead of'],
    ] as const) {
      aheadMs = ms
      await until('it is not ready', async () => (await readyz(a)).reasons.length > 0)
      const seen = await readyz(a)
      expect(seen.status).toBe(503)
      const reason = expect.stringContaining(`s ${word} the clock of this machine`)
      expect(seen.reasons).toEqual([{ reason }])
      expect(Math.sign(seen.clockAheadMs)).toBe(-Math.sign(ms))
      expect(await readyz(b)).toMatchObject({ reasons: [] })
      aheadMs = 0
      await until('it is ready again', async () => (await readyz(a)).reasons.length === 0)
    }
    expect(pair.apps.map((gateway) => gateway.settlement.isReady('eip155:8453'))).toEqual([
      true,
      true,
    ])
  })
})
