import { afterAll, beforeAll, expect, test } from 'bun:test'
import { account, type DemoAccount } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402, type Purchase } from '../../src/demo/buyers'
import { mine } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { payee, type Shop, startShop } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({ ...config, service: { ...config.service, settleWaitSeconds: 1.5 } }),
  })
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`

/** A demo account that counts what it signs. */
function counting(index: number): { buyer: DemoAccount; signed: () => number } {
  const demo = account(index)
  let signed = 0
  const buyer: DemoAccount = {
    ...demo,
    local: () => {
      const local = demo.local()
      const signTypedData: typeof local.signTypedData = (parameters) => {
        signed++
        return local.signTypedData(parameters)
      }
      return { ...local, signTypedData }
    },
  }
  return { buyer, signed: () => signed }
}

const base = 'eip155:8453'
const robinhood = 'eip155:4663'
type Buy = (url: string, buyer: DemoAccount) => Promise<Purchase>
const clients: [name: string, network: typeof base | typeof robinhood, buy: Buy][] = [
  ['mppx', base, (url, buyer) => buyWithMppx(shop, url, buyer, { network: base })],
  [
    '@x402/fetch with eip3009',
    base,
    (url, buyer) => buyWithX402(shop, url, buyer, { network: base, method: 'eip3009' }),
  ],
  [
    '@x402/fetch with permit2',
    robinhood,
    (url, buyer) => buyWithX402(shop, url, buyer, { network: robinhood, method: 'permit2' }),
  ],
]

for (const [name, network, buy] of clients)
  test(`${name} signs once while the chain does not mine, and gets its answer later`, async () => {
    const chain = shop.chains[network]
    if (!chain) throw new Error(`no ${network}`)
    const before = await shop.balance(network, payee)
    const payments = shop.counts().payments ?? 0
    const { buyer, signed } = counting(1)
    await setAutomine(chain, false)
    const purchase = await buy(item(), buyer)
    expect(purchase.response.status).toBe(503)
    expect(JSON.parse(purchase.body)).toMatchObject({ code: 'settlement-pending' })
    expect(signed()).toBe(1)
    const paid = purchase.requests.filter(
      ({ headers }) => headers.has('authorization') || headers.has('payment-signature'),
    )
    expect(paid).toHaveLength(1)
    expect(shop.counts().payments).toBe(payments + 1)

    await mine(chain)
    await setAutomine(chain, true)
    const [first] = paid
    if (!first) throw new Error('nothing was paid')
    let answer = purchase.response
    await until('the same credential is answered', async () => {
      answer = await fetch(item(), { headers: first.headers })
      return answer.status !== 503 && answer.status !== 409
    })
    expect(answer.status).toBe(200)
    expect(await shop.balance(network, payee)).toBe(before + 5000n)
    expect(shop.counts().payments).toBe(payments + 1)
    expect(signed()).toBe(1)
  })
