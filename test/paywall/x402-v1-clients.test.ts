import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import axios from 'axios'
import { useFacilitator } from 'x402/verify'
import { withPaymentInterceptor } from 'x402-axios'
import { decodeXPaymentResponse, wrapFetchWithPayment } from 'x402-fetch'
import { account, type DemoAccount } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import * as Receipt from '../../src/protocol/Receipt'
import * as Example from '../../src/web/public/Example'
import { outcomeOf } from '../harness/outcome'
import { type TestWorld, testWorld } from '../harness/world'

/** The clients of x402 version 1, unmodified, buy what the shipped file sells on Base. */

let world: TestWorld
beforeAll(async () => {
  world = await testWorld({ exchange: true })
})
afterAll(() => world?.stop())

const base = 'eip155:8453'
/** What x402-fetch pays at most without another limit, atomic. */
const defaultMaxAtomic = 100_000n

function rows() {
  return world.config.merchants
    .filter(({ networks, outOfService }) => networks.includes(base) && !outOfService)
    .flatMap(({ slug, routes }) =>
      routes.map((route) => ({ route, ...Example.from(slug, route), isMetered: !!route.meter })),
    )
}

type Row = ReturnType<typeof rows>[number]
type Bought = { status: number; text: string; settled: string }

async function byFetch(row: Row, buyer: DemoAccount): Promise<Bought> {
  const limit = row.route.priceAtomic > defaultMaxAtomic ? [row.route.priceAtomic] : []
  const pay = wrapFetchWithPayment(fetch, buyer.local(), ...limit)
  const response = await pay(world.url + row.target, {
    method: row.method,
    ...(row.body !== undefined && {
      body: row.body,
      headers: { 'content-type': 'application/json' },
    }),
  })
  const settled = response.headers.get('x-payment-response') ?? ''
  return { status: response.status, text: await response.text(), settled }
}

async function byAxios(row: Row, buyer: DemoAccount): Promise<Bought> {
  const client = withPaymentInterceptor(axios.create({ baseURL: world.url }), buyer.local())
  const { status, data, headers } = await client.request({
    method: row.method,
    url: row.target,
    ...(row.body !== undefined && {
      data: row.body,
      headers: { 'content-type': 'application/json' },
    }),
  })
  const text = typeof data === 'string' ? data : JSON.stringify(data)
  return { status, text, settled: String(headers['x-payment-response']) }
}

function chain() {
  const found = world.chains[base]
  if (found === undefined) throw new Error('no chain')
  return found
}

function usdcOf(holder: `0x${string}`) {
  const asset = world.config.networks.find(({ id }) => id === base)?.asset
  return balanceOf(chain(), asset?.address ?? '0x', holder)
}

describe.each([
  ['x402-fetch', byFetch, account(1)],
  ['x402-axios', byAxios, account(2)],
] as const)('%s', (_, buy, buyer) => {
  test('it buys every row on Base, each for its price', async () => {
    const before = await usdcOf(buyer.address)
    const sold = rows()
    expect(sold.length).toBeGreaterThanOrEqual(41)
    const bought = await Promise.all(sold.map((row) => buy(row, buyer)))
    let paidAtomic = 0n
    for (const [index, { status, text, settled }] of bought.entries()) {
      const row = sold[index]
      expect([row?.target, status]).toEqual([row?.target, 200])
      expect(text.length, row?.target).toBeGreaterThan(2)
      const { transaction, ...answer } = decodeXPaymentResponse(settled)
      expect(answer as object).toEqual({ success: true, network: 'base', payer: buyer.address })
      const mined = await chain().rpc('eth_getTransactionReceipt', [transaction])
      expect(mined).toMatchObject({ status: '0x1' })
      // A chat costs the ceiling of its request.
      if (!row?.isMetered) paidAtomic += row?.route.priceAtomic ?? 0n
    }
    const metered = sold.filter(({ isMetered }) => isMetered).length
    const spent = before - (await usdcOf(buyer.address))
    expect(metered === 0 ? spent === paidAtomic : spent > paidAtomic).toBe(true)
  })
})

test('it buys again with its key: one payment, one answer, whatever it signs', async () => {
  const [row] = rows()
  if (row === undefined) throw new Error('no row')
  const buyer = account(3)
  const pay = wrapFetchWithPayment(fetch, buyer.local())
  const init = { headers: { 'Idempotency-Key': 'a-purchase-of-mine' } }
  const before = await usdcOf(buyer.address)
  const first = await pay(world.url + row.target, init)
  const text = await first.text()
  const again = await pay(world.url + row.target, init)
  expect([first.status, again.status]).toEqual([200, 200])
  expect(again.headers.get('idempotency-replayed')).toBe('true')
  expect(await again.text()).toBe(text)
  expect(before - (await usdcOf(buyer.address))).toBe(row.route.priceAtomic)
  const signed = Receipt.parse(again.headers.get('payment-response') ?? '')
  expect('payload' in signed && Receipt.verify(signed)).toBe(world.app.receiptAddress)
})

test('error: above its limit, x402-fetch signs nothing', async () => {
  const [row] = rows()
  if (row === undefined) throw new Error('no row')
  const pay = wrapFetchWithPayment(fetch, account(3).local(), row.route.priceAtomic - 1n)
  expect(await outcomeOf(pay(world.url + row.target))).toThrow('exceeds maximum')
})

test('a resource server of version 1 verifies and settles through the facilitator', async () => {
  const { createPaymentHeader } = await import('x402/client')
  const { exact } = await import('x402/schemes')
  const facilitator = useFacilitator({ url: `${world.url}/facilitator` as `${string}://${string}` })
  const { kinds } = await facilitator.supported()
  expect(kinds as object[]).toContainEqual({ x402Version: 1, scheme: 'exact', network: 'base' })
  const asset = world.config.networks.find(({ id }) => id === base)?.asset
  const payTo = world.config.service.payout
  const terms = {
    scheme: 'exact' as const,
    network: 'base' as const,
    maxAmountRequired: '7000',
    resource: 'https://other.example.com/item' as const,
    description: '',
    mimeType: '',
    payTo,
    maxTimeoutSeconds: 60,
    asset: asset?.address ?? '',
    extra: { ...asset?.eip712 },
  }
  const payment = exact.evm.decodePayment(await createPaymentHeader(account(4).local(), 1, terms))
  const before = await usdcOf(payTo)
  const payer = account(4).address
  expect(await facilitator.verify(payment, terms)).toEqual({ isValid: true, payer })
  const dear = { ...terms, maxAmountRequired: '7001' }
  expect(await facilitator.verify(payment, dear)).toMatchObject({ isValid: false, payer })
  const settled = await facilitator.settle(payment, terms)
  expect(settled).toMatchObject({ success: true, network: 'base', payer })
  expect((await usdcOf(payTo)) - before).toBe(7000n)
  // One authorization gives one success, and no other caller can show more than the same bytes.
  const used = { success: false, errorReason: 'invalid_exact_evm_nonce_already_used' }
  expect(await facilitator.settle(payment, terms)).toMatchObject({ ...used, network: 'base' })
  expect(await facilitator.verify(payment, terms)).toMatchObject({ isValid: false })
})
