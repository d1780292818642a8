import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { type Shop, sign, startShop, untilEnded, untilFree } from '../harness/shop'

/** Money that another gateway knows. A restart stands for that gateway: both have not seen it. */

const single = `
[[merchants]]
slug = "single"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
concurrency_max = 1
[[merchants.routes]]
path = "/item"
methods = ["GET", "POST"]
price = "0.005"
`

let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text + single })
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const item = () => `${shop.url}/m/shop/item`
const x402 = { scheme: 'x402-eip3009' } as const
const present = (headers: Record<string, string>, url = item()) =>
  untilFree(() => fetch(url, { headers }))
/** Calls for the payer. Others belong to the checks of the networks. */
const simulations = () => {
  const digits = account(1).address.slice(2).toLowerCase()
  const isOfPayer = ({ method, params }: { method: string; params?: unknown }) =>
    method === 'eth_call' && JSON.stringify(params).toLowerCase().includes(digits)
  return Object.values(shop.taps).flatMap(({ calls }) => calls.filter(isOfPayer)).length
}
const payments = () => shop.rows('SELECT id FROM payments').length
/** The answer without what differs in each. */
async function bodyOf(response: Response): Promise<unknown> {
  const { status } = response
  const { detail, code } = (await response.json()) as { detail?: string; code?: string }
  return { status, detail, code }
}

for (const [name, terms] of [
  ['MPP', {}],
  ['x402', x402],
] as const)
  test(`attack: a spent credential of ${name} asks no node at any gateway, and is refused alike`, async () => {
    const credential = await sign(item(), terms)
    expect((await present(credential)).status).toBe(200)
    await untilEnded(shop)
    const asked = simulations()
    const refused = await bodyOf(await present(credential))
    expect(refused).toMatchObject({ status: 402 })
    expect(simulations()).toBe(asked)
    const known = payments()
    await shop.restart()
    for (let time = 0; time < 3; time++)
      expect(await bodyOf(await present(credential))).toEqual(refused)
    expect(simulations()).toBe(asked)
    expect(payments()).toBe(known)
    expect(shop.upstream.requests).toHaveLength(1)
  })

test('a spent credential that has expired is refused as a spent one, without a node', async () => {
  const credential = await sign(item())
  expect((await present(credential)).status).toBe(200)
  await untilEnded(shop)
  const refused = await bodyOf(await present(credential))
  await shop.restart()
  shop.advance(3_600_000)
  const asked = simulations()
  expect(await bodyOf(await present(credential))).toEqual(refused)
  shop.advance(-3_600_000)
  expect(simulations()).toBe(asked)
})

test('an answer that is missing comes at another gateway, by the only place at the upstream', async () => {
  const url = () => `${shop.url}/m/single/item`
  const credential = await sign(url())
  shop.upstream.script = (_, reply) => reply.send(500, '{}')
  expect((await present(credential, url())).status).toBe(502)
  await untilEnded(shop)
  const known = payments()
  await shop.restart()
  shop.upstream.script = undefined
  expect((await present(credential, url())).status).toBe(200)
  expect(payments()).toBe(known)
  // The place is free again.
  await untilEnded(shop)
  expect((await present(await sign(url()), url())).status).toBe(200)
})
