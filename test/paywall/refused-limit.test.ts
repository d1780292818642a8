import { afterAll, beforeAll, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { buy, type Shop, sign, startShop, type Terms } from '../harness/shop'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      service: { ...config.service, trustProxy: 1, paidPerMinute: 60 },
    }),
  })
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`
const from = (ip: string) => ({ 'x-forwarded-for': ip })
const x402: Terms = { scheme: 'x402-eip3009' }
const victim = account(2).address

/** A credential in the victim's name, signed by another key. */
async function junk(): Promise<Record<string, string>> {
  const { 'payment-signature': signed = '' } = await sign(item(), x402)
  const payload = JSON.parse(Buffer.from(signed, 'base64').toString())
  payload.payload.authorization.from = victim
  return { 'payment-signature': Buffer.from(JSON.stringify(payload)).toString('base64') }
}

test('error: an address with refused credentials is limited; the payer that they name is not', async () => {
  const statuses: number[] = []
  await shop.still(async () => {
    for (let round = 0; round < 8; round++) {
      const response = await fetch(item(), { headers: { ...from('192.0.2.1'), ...(await junk()) } })
      statuses.push(response.status)
      if (response.status !== 429) continue
      expect(response.headers.get('retry-after')).toMatch(/^\d+$/)
      expect(response.headers.has('payment-required')).toBe(false)
    }
    expect(statuses).toEqual([...Array(6).fill(402), 429, 429])
    expect((await buy(item(), x402, from('192.0.2.1'))).status).toBe(429)
  })
  // The victim, from its own address, with both protocols.
  expect((await buy(item(), { ...x402, buyer: 2 }, from('192.0.2.2'))).status).toBe(200)
  expect((await buy(item(), { buyer: 2 }, from('192.0.2.2'))).status).toBe(200)
  shop.advance(15_000)
  expect((await buy(item(), {}, from('192.0.2.1'))).status).toBe(200)
})

test('credentials of other schemes and requests without one do not count as refused', async () => {
  for (let round = 0; round < 20; round++) {
    const headers = { ...from('192.0.2.3'), authorization: 'Bearer abc' }
    expect((await fetch(item(), { headers })).status).toBe(402)
    expect((await fetch(item(), { headers: from('192.0.2.3') })).status).toBe(402)
  }
  expect((await buy(item(), {}, from('192.0.2.3'))).status).toBe(200)
})

test('error: credentials with a request that cannot be served count as refused', async () => {
  const url = `${shop.url}/m/shop/form?symbol=toolong`
  const statuses: number[] = []
  await shop.still(async () => {
    for (let round = 0; round < 8; round++) {
      const headers = { ...from('192.0.2.4'), ...(await sign(url, x402)) }
      statuses.push((await fetch(url, { headers })).status)
    }
  })
  expect(statuses).toEqual([...Array(6).fill(400), 429, 429])
})
