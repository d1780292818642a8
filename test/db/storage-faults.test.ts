import { afterAll, afterEach, beforeEach, expect, test } from 'bun:test'
import { mine } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { makeBody, post } from '../harness/facilitation'
import { until } from '../harness/settlement'
import { type Scheme, sign } from '../harness/shop'
import { signOrder, startStockShop } from '../harness/stock-shop'

/** The database cannot be written for a while: no money is lost and no payment is accepted. */

const shop = await startStockShop()
afterAll(() => shop.stop())
const network = 'eip155:8453'
const item = `${shop.url}/m/shop/item`
const chain = shop.chains[network]
if (chain === undefined) throw new Error(`no ${network}`)
const schemes: readonly Scheme[] = ['mpp', 'x402-eip3009']

/** Every write of the gateway fails from now on. */
const breakDisk = () => shop.db.sqlite.run('PRAGMA query_only = ON')
const mendDisk = () => shop.db.sqlite.run('PRAGMA query_only = OFF')
const isFaulty = () => shop.db.storage.fault() !== undefined
const get = (headers: Record<string, string> = {}) => fetch(item, { headers })
const logged = (event: string) =>
  shop.logged.map((line) => JSON.parse(line)).filter((line) => line.event === event)

/** Checks that the problem asks for the same credential, for people and for programs. */
async function isRetryable(response: Response): Promise<string> {
  const problem = (await response.json()) as { code: string; detail: string }
  const said = expect.stringMatching(/(?:recorded|network cannot settle).*same/)
  expect([response.status, problem.detail]).toEqual([503, said])
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0)
  expect(response.headers.get('payment-required')).toBeNull()
  return problem.code
}

beforeEach(() => {
  shop.logged.length = 0
  shop.upstream.requests.length = 0
})
afterEach(async () => {
  shop.upstream.script = undefined
  mendDisk()
  await setAutomine(chain, true)
  await mine(chain)
  await until(() => !isFaulty())
})

test('error: while the database cannot be written no price is offered, and logs, metrics and readyz report it', async () => {
  const credential = await sign(item)
  breakDisk()
  expect(await isRetryable(await get(credential))).toBe('not-ready')
  const faults = () => shop.db.storage.counts().get('SQLITE_READONLY')
  const before = faults()
  expect(await isRetryable(await get(credential))).toBe('not-ready')
  // A known fault is not tested again at each payment.
  expect(faults()).toBe(before)
  expect((await get()).status).toBe(503)
  expect((await fetch(`${shop.url}/healthz`)).status).toBe(503)
  const ready = await (await fetch(`${shop.url}/readyz`)).json()
  expect(ready).toMatchObject({
    notReady: {
      storage: [{ file: 'turnpike.sqlite', reason: 'SQLITE_READONLY' }],
      networks: expect.arrayContaining([
        {
          network,
          reason: 'the database cannot be written (SQLITE_READONLY)',
          remedy: expect.stringContaining('make it writable'),
        },
      ]),
    },
  })
  const metrics = await (await fetch(`${shop.url}/metrics`)).text()
  expect(metrics).toContain('turnpike_storage_ready 0')
  expect(metrics).toMatch(/turnpike_storage_faults_total\{code="SQLITE_READONLY"\} [1-9]/)
  expect(metrics).toContain(`turnpike_network_ready{network="${network}"} 0`)
  expect(logged('storage-fault')).toMatchObject([
    { level: 'error', file: shop.db.file, code: 'SQLITE_READONLY' },
  ])
  mendDisk()
  await until(() => !isFaulty())
  expect(logged('storage-recovered')).toHaveLength(1)
  expect((await get(credential)).status).toBe(200)
  expect((await get()).status).toBe(402)
  expect(await (await fetch(`${shop.url}/metrics`)).text()).toContain('turnpike_storage_ready 1')
})

for (const scheme of schemes) {
  test(`error: a payment by ${scheme} when the disk fills is pending, then delivered once`, async () => {
    const credential = await sign(item, { scheme, network })
    await setAutomine(chain, false)
    const going = get(credential)
    await until(() => shop.rows("SELECT 1 FROM payments WHERE state = 'broadcast'").length === 1)
    breakDisk()
    await setAutomine(chain, true)
    await mine(chain)
    expect(await retryableCode(await going)).toBe('settlement-pending')
    expect(await retryableCode(await get(credential))).toBe('settlement-pending')
    expect(shop.upstream.requests).toHaveLength(0)
    mendDisk()
    await until(() => !isFaulty())
    expect((await get(credential)).status).toBe(200)
    expect((await get(credential)).status).toBe(402)
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test(`error: a payment by ${scheme} whose redeem token cannot be stored is continued by the same credential`, async () => {
    const credential = await sign(item, { scheme, network })
    shop.upstream.script = (_, reply) => {
      breakDisk()
      reply.send(500, '{}')
    }
    expect(await isRetryable(await get(credential))).toBe('not-ready')
    shop.upstream.script = undefined
    expect(await isRetryable(await get(credential))).toBe('not-ready')
    mendDisk()
    expect((await get(credential)).status).toBe(200)
    await until(() => !isFaulty())
    expect((await get(credential)).status).toBe(402)
  })

  test(`attack: a payment by ${scheme} that was answered while the disk was full gets no second answer`, async () => {
    const credential = await sign(item, { scheme, network })
    shop.upstream.script = (_, reply) => {
      breakDisk()
      reply.send(200, '{"n":1}')
    }
    expect(await (await get(credential)).json()).toEqual({ n: 1 })
    shop.upstream.script = undefined
    await until(isFaulty)
    expect((await get(credential)).status).toBe(409)
    mendDisk()
    await until(() => !isFaulty())
    await until(async () => (await get(credential)).status === 402)
    expect(shop.upstream.requests).toHaveLength(1)
    expect(shop.rows('SELECT delivery FROM payments ORDER BY created_at DESC LIMIT 1')).toEqual([
      { delivery: 'delivered' },
    ])
  })
}

test('error: the facilitator reports pending, never used, for a success that it cannot record yet', async () => {
  const config = shop.config.networks.find(({ id }) => id === network)
  if (config === undefined) throw new Error(`no ${network}`)
  const settle = (body: unknown) => post(`${shop.url}/settle`, body)
  const body = await makeBody(config, { requirements: { maxTimeoutSeconds: 1 } })
  await setAutomine(chain, false)
  expect((await settle(body)).json).toMatchObject({ success: false, status: 'pending' })
  await setAutomine(chain, true)
  await mine(chain)
  const state = "SELECT 1 FROM payments WHERE product = 'facilitator' AND state = 'confirmed'"
  await until(() => shop.rows(state).length === 1)
  breakDisk()
  expect((await settle(body)).json).toMatchObject({ success: false, status: 'pending' })
  const other = await settle(await makeBody(config))
  expect(other.status).toBe(503)
  expect(other.json).not.toHaveProperty('success')
  const verdict = await post(`${shop.url}/verify`, await makeBody(config))
  expect(verdict.status).toBe(503)
  expect(verdict.json).not.toHaveProperty('isValid')
  mendDisk()
  await until(() => !isFaulty())
  expect((await settle(body)).json).toMatchObject({ success: true })
  expect((await settle(body)).json).toMatchObject({ success: false })
})

test('error: a stock order is refused as retryable before a payment, and later accepted', async () => {
  const url = shop.buyUrl()
  const credential = await signOrder(url, { buyer: 3 })
  const before = await shop.usdg(shop.desk)
  const pay = () => fetch(url, { method: 'POST', headers: credential })
  breakDisk()
  expect(await retryableCode(await pay())).toBe('not-ready')
  // The first request may be the one that finds the fault.
  expect(await retryableCode(await pay())).toBe('not-ready')
  expect(await shop.usdg(shop.desk)).toBe(before)
  mendDisk()
  await until(() => !isFaulty())
  expect(await (await pay()).json()).toMatchObject({ status: 'delivered' })
})

async function retryableCode(response: Response): Promise<string> {
  expect(response.status).toBe(503)
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0)
  return ((await response.json()) as { code: string }).code
}
