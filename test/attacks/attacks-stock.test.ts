import { afterAll, afterEach, describe, expect, test } from 'bun:test'
import { decodeFunctionData, type Hex, parseAbi } from 'viem'
import * as Token from '../../src/chain/token'
import { account } from '../../src/demo/accounts'
import { samplePrice } from '../../src/demo/exchange'
import * as Abi from '../../src/protocol/Abi'
import * as Permit from '../../src/protocol/Permit'
import { movePrice } from '../harness/exchange'
import {
  before,
  buyStock,
  type OrderJson,
  type StockShop,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { sqlBeside, tamper } from '../harness/test-ledger'

// Attacks 38 and 39 of the catalogue: refunds, and the price of a swap.

const shop = await startStockShop({
  adjust: (config) => {
    const { stock } = config
    const [first, second] = stock?.tokens ?? []
    if (!stock || !first || !second) throw new Error('no stocks')
    // The factory has the second token's pool under another fee.
    const tokens = [first, { ...second, fee: second.fee === 500 ? 3_000 : 500 }]
    return { ...config, stock: { ...stock, tokens: [...tokens, ...stock.tokens.slice(2)] } }
  },
})
afterAll(() => shop.stop())
const { chain, asset, nvda, stock } = shop
const price = samplePrice('NVDA')
const buyer = account(1).address
const thief = account(6).address
/** In every call that settles by Permit2. */
const proxy = Permit.proxyAddress.slice(2).toLowerCase()
let isMoved = false
afterEach(async () => {
  shop.tap.intercept = undefined
  if (isMoved) await movePrice(chain, asset, nvda, price)
  isMoved = false
})

function move(to: number): Promise<void> {
  isMoved = true
  return movePrice(chain, asset, nvda, to)
}
const post = (url: string, headers: Record<string, string>) =>
  fetch(url, { method: 'POST', headers })
const refunds = (id: string) =>
  shop.rows(`SELECT * FROM jobs WHERE kind = 'refund' AND id LIKE '%${id}%'`)
/** What the pool gives for 25 USDG. */
async function quoted({ buyUrl }: Pick<StockShop, 'buyUrl'>): Promise<string> {
  const { quote } = (await (await post(buyUrl(), {})).json()) as {
    quote: { estimatedShares: string }
  }
  return quote.estimatedShares
}
const written = () => shop.rows('SELECT * FROM payments').length

// This test is first: later ones use up the limit of an address.
test('error: forged credentials in the name of a payer do not stop it from naming a minimum', async () => {
  const victim = account(4).address
  const urlOf = (usdg: string) => shop.buyUrl({ usdg, minimumShares: '0.0001' })
  const forge = (headers: Record<string, string>) =>
    Object.fromEntries(
      Object.entries(headers).map(([name, value]) => {
        const payment = JSON.parse(Buffer.from(value, 'base64').toString())
        payment.payload.permit2Authorization.from = victim
        return [name, Buffer.from(JSON.stringify(payment)).toString('base64')]
      }),
    )
  const junk = await Promise.all(
    Array.from({ length: 10 }, async (_, at) => {
      const url = urlOf(`${27 + at}`)
      return { url, headers: forge(await signOrder(url, { buyer: 5 })) }
    }),
  )
  const [own, other] = await Promise.all(
    [4, 3].map(async (from) => ({
      url: urlOf('41'),
      headers: await signOrder(urlOf('41'), { buyer: from }),
    })),
  )
  if (!own || !other) throw new Error('no payment was sent')
  // A node that answers slowly for another payer's payment keeps the relayer busy.
  const held = Promise.withResolvers<void>()
  const free = Promise.withResolvers<void>()
  const payer = account(3).address.slice(2).toLowerCase()
  shop.tap.intercept = async ({ method, params }) => {
    const text = JSON.stringify(params).toLowerCase()
    if (method !== 'eth_call' || !text.includes(proxy) || !text.includes(payer)) return undefined
    held.resolve()
    await free.promise
    return undefined
  }
  const first = post(other.url, other.headers)
  await held.promise
  const refusing = junk.map(({ url, headers }) => post(url, headers))
  // When later requests were answered, these had been accepted.
  for (let look = 0; look < 5; look++) await fetch(`${shop.url}/healthz`)
  const buying = post(own.url, own.headers)
  for (let look = 0; look < 5; look++) await fetch(`${shop.url}/healthz`)
  free.resolve()
  expect([(await buying).status, (await first).status]).toEqual([200, 200])
  for (const refused of refusing) expect((await refused).status).toBe(402)
})

describe('attack 38: refunds', () => {
  test('attack 38: the money goes back to the payer of record, whichever recipient was named', async () => {
    const url = shop.buyUrl({ recipient: thief })
    const headers = await signOrder(url)
    const start = { buyer: await shop.usdg(buyer), thief: await shop.usdg(thief) }
    before(shop, 'quote', 2, () => move(price * 1.02))
    const response = await post(url, headers)
    const { order } = (await response.json()) as { order: OrderJson }
    expect([response.status, order.status, order.payer]).toEqual([502, 'refunded', buyer])
    expect(await shop.usdg(buyer)).toBe(start.buyer)
    expect(await shop.usdg(thief)).toBe(start.thief)
    expect(await shop.shares(thief)).toBe(0n)
  })

  test('attack 38: a refund is paid once, however often and by whichever client it is requested', async () => {
    const url = shop.buyUrl({ usdg: '26' })
    const headers = await signOrder(url)
    const start = await shop.usdg(buyer)
    before(shop, 'quote', 2, () => move(price * 1.02))
    const answers = await Promise.all(Array.from({ length: 10 }, () => post(url, headers)))
    const bodies = (await Promise.all(answers.map((each) => each.json()))) as {
      refundTx: string
      order: OrderJson
    }[]
    expect(answers.map((each) => each.status)).toEqual(Array(10).fill(502))
    expect(new Set(bodies.map((each) => each.refundTx)).size).toBe(1)
    await shop.restart()
    const later = await post(shop.buyUrl({ usdg: '26' }), headers)
    expect(later.status).toBe(502)
    expect(await shop.usdg(buyer)).toBe(start)
    expect(await shop.usdg(shop.desk)).toBe(0n)
    expect(refunds(bodies[0]?.order.id ?? '')).toHaveLength(1)
  })

  test('attack 38: a retry of the operator cannot refund what was delivered', async () => {
    const order = (await (await buyStock(shop.buyUrl())).json()) as OrderJson
    const other = sqlBeside(shop.dataDir)
    try {
      const set = (text: string) => other.run(`UPDATE orders SET ${text} WHERE id = ?`, [order.id])
      expect(() => set('retry_at = 1')).toThrow()
      expect(() => set("state = 'refunding', refund_reason = 'no-quote'")).toThrow()
      expect(() => set("state = 'held', held_reason = 'refund-failed'")).toThrow()
    } finally {
      other.close()
    }
    expect(refunds(order.id)).toEqual([])
  })
})

describe('attack 38: refund loops', () => {
  test('attack 38: a payer whose orders keep being refunded must wait, before money moves', async () => {
    const insist = async (usdg: string, buyer: number) => {
      const headers = await signOrder(shop.buyUrl({ usdg }), { buyer })
      before(shop, 'quote', 2, () => move(price * 1.02))
      const response = await post(shop.buyUrl({ usdg }), headers)
      shop.tap.intercept = undefined
      if (isMoved) await movePrice(chain, asset, nvda, price)
      isMoved = false
      return response.status
    }
    const statuses: number[] = []
    for (let turn = 0; turn < 11; turn++) statuses.push(await insist(`${50 + turn}`, 2))
    expect(statuses).toEqual([...Array(10).fill(502), 429])
    const count = written()
    expect(await insist('70', 2)).toBe(429)
    expect(written()).toBe(count)
    // The limit applies to that payer only.
    expect((await buyStock(shop.buyUrl({ usdg: '71' }), { buyer: 3 })).status).toBe(200)
  })

  test('attack 38: concurrent orders with a minimum are limited to the number that may be refunded', async () => {
    const insist = async (usdg: string) => {
      const { quote } = (await (await post(shop.buyUrl({ usdg }), {})).json()) as {
        quote: { estimatedShares: string }
      }
      const url = shop.buyUrl({ usdg, minimumShares: quote.estimatedShares })
      return { url, headers: await signOrder(url, { buyer: 4 }) }
    }
    const count = written()
    // No earlier test has asked for these amounts: a quote of the last second is given again.
    const orders = await Promise.all(Array.from({ length: 14 }, (_, i) => insist(`${80 + i}`)))
    // The first filled order moves the price below the minimum of all others.
    const answers = await Promise.all(orders.map(({ url, headers }) => post(url, headers)))
    const statuses = answers.map(({ status }) => status)
    const counts = (status: number) => statuses.filter((each) => each === status).length
    expect(counts(429)).toBeGreaterThan(0)
    expect(counts(502)).toBeGreaterThan(0)
    expect(counts(502)).toBeLessThanOrEqual(10)
    expect(written() - count).toBe(counts(200) + counts(502))
    expect(await shop.usdg(shop.desk)).toBe(0n)
  })

  test('attack 38: concurrent orders without a minimum are limited, too', async () => {
    const urls = Array.from({ length: 14 }, (_, index) => shop.buyUrl({ usdg: `${20 + index}` }))
    const orders = await Promise.all(
      urls.map(async (url) => ({ url, headers: await signOrder(url, { buyer: 5 }) })),
    )
    const count = written()
    // None is filled before the last one was refused: a price that moves now makes all others refunds.
    const refused = Promise.withResolvers<void>()
    shop.tap.intercept = async ({ method }) => {
      if (method.startsWith('eth_sendRawTransaction')) await refused.promise
      return undefined
    }
    let limited = 0
    const answers = orders.map(async ({ url, headers }) => {
      const { status } = await post(url, headers)
      if (status === 429 && ++limited === 4) refused.resolve()
      return status
    })
    await Promise.race([refused.promise, Promise.all(answers)])
    refused.resolve()
    const statuses = (await Promise.all(answers)).toSorted()
    expect(statuses).toEqual([...Array(10).fill(200), ...Array(4).fill(429)])
    expect(written()).toBe(count + 10)
  })

  test("attack 38: the day's gas budget refuses new orders, and paid orders are completed", async () => {
    const poor = await startStockShop({
      adjust: (config) => ({
        ...config,
        networks: config.networks.map((network) => ({
          ...network,
          gasPerDayWei: { ...network.gasPerDayWei, desk: 1n },
        })),
      }),
    })
    try {
      const price = samplePrice('NVDA')
      const headers = await signOrder(poor.buyUrl())
      // Refunds may cost a share of the budget. Beyond it no order may have a tighter minimum than
      // usual, because its payer can cause the refund.
      const insisting = poor.buyUrl({ minimumShares: await quoted(poor) })
      const refused = await post(insisting, {})
      const { code, detail } = (await refused.json()) as { code: string; detail: string }
      expect([refused.status, code]).toEqual([503, 'not-ready'])
      expect(detail).toContain('minimumShares')
      const usual = poor.buyUrl({ minimumShares: '0.0001' })
      expect((await post(usual, {})).status).toBe(402)
      const later = poor.buyUrl({ usdg: '31' })
      const signed = await signOrder(later)
      const start = await poor.usdg(buyer)
      before(poor, 'quote', 2, () => movePrice(poor.chain, poor.asset, poor.nvda, price * 1.02))
      const first = await post(poor.buyUrl(), headers)
      expect(first.status).toBe(502)
      expect(await poor.usdg(buyer)).toBe(start)
      await movePrice(poor.chain, poor.asset, poor.nvda, price)
      const payments = poor.rows('SELECT * FROM payments').length
      for (const credential of [{}, signed]) {
        const second = await post(later, credential)
        expect(second.status).toBe(503)
        expect(JSON.stringify(await second.json())).toContain('gas budget of today is spent')
      }
      expect(poor.rows('SELECT * FROM payments')).toHaveLength(payments)
    } finally {
      await poor.stop()
    }
  })
})

describe('attack 39: the price', () => {
  const abi = parseAbi([
    'function multicall(uint256 deadline, bytes[] data) payable returns (bytes[])',
    'function sweepToken(address token, uint256 amountMinimum, address recipient) payable',
    'function exactInputSingle((address tokenIn, address tokenOut, uint24 fee, address recipient, uint256 amountIn, uint256 amountOutMinimum, uint160 sqrtPriceLimitX96) params) payable returns (uint256)',
  ])

  test('attack 39: a pool that was moved before the payment is refused by its feed', async () => {
    const url = shop.buyUrl({ usdg: '35' })
    const headers = await signOrder(url)
    await move(price * 1.05)
    const count = written()
    const asked = await post(shop.buyUrl({ usdg: '36' }), {})
    expect([asked.status, ((await asked.json()) as { reason: string }).reason]).toEqual([
      503,
      'feed-distance',
    ])
    const paid = await post(url, headers)
    expect(paid.status).toBe(503)
    expect(written()).toBe(count)
  })

  test('attack 39: the swap has minimum, amount, recipient, payer and a deadline', async () => {
    const order = (await (await buyStock(shop.buyUrl({ recipient: thief }))).json()) as OrderJson
    const { input, to } = (await chain.rpc('eth_getTransactionByHash', [order.swapTx])) as {
      input: Hex
      to: string | null
    }
    // The code makes three calls: it takes the money, sends it to the router, swaps.
    expect(to).toBeNull()
    const funding = Token.transfer(asset, stock.router, 25_000_000n).data.slice(2)
    expect(input).toContain(`ef55bec6${Abi.address(shop.desk)}`)
    expect(input).toContain(funding)
    const data: Hex = `0x${input.slice(input.indexOf(funding) + funding.length)}`
    const outer = decodeFunctionData({ abi, data })
    if (outer.functionName !== 'multicall') throw new Error('no multicall')
    const [deadline, calls] = outer.args
    const seconds = Number(deadline) - Date.now() / 1000
    expect(seconds).toBeGreaterThan(0)
    expect(seconds).toBeLessThanOrEqual(120)
    const inner = calls.map((data) => decodeFunctionData({ abi, data }))
    expect(inner.map((call) => call.functionName)).toEqual(['exactInputSingle', 'sweepToken'])
    const shares = BigInt(order.minimumShares.replace('.', ''))
    expect(inner.map((call) => call.args)).toEqual([
      [
        {
          tokenIn: asset,
          tokenOut: nvda.address,
          fee: nvda.fee,
          recipient: thief,
          // The router's whole balance: the amount that it just received.
          amountIn: 0n,
          amountOutMinimum: shares,
          sqrtPriceLimitX96: 0n,
        },
      ],
      // The part that the pool does not take belongs to the payer.
      [asset, 0n, buyer],
    ])
    expect(shares).toBeGreaterThan(0n)
  })

  test('attack 39: a pool that is not the one of the factory takes no money', async () => {
    const [, spoofed] = stock.tokens
    const count = written()
    const response = await post(shop.buyUrl({ symbol: spoofed?.symbol ?? '' }), {})
    const { reason } = (await response.json()) as { reason: string }
    expect([response.status, reason]).toEqual([503, 'pool-mismatch'])
    expect(written()).toBe(count)
  })

  test('attack 39: a credential for one order pays for no other at a worse price', async () => {
    const url = shop.buyUrl({ minimumShares: '0.12', usdg: '25' })
    const headers = await signOrder(url)
    await post(url, headers)
    const worse = await post(shop.buyUrl({ usdg: '25' }), headers)
    expect([worse.status, ((await worse.json()) as { code: string }).code]).toEqual([
      409,
      'payment-mismatch',
    ])
  })
})

test('attack: a credential rebuilt from the chain does not show what the buyer bought', async () => {
  let url = shop.buyUrl({ usdg: '26' })
  const own = await signOrder(url)
  const key = { 'idempotency-key': 'a-secret-of-the-buyer' }
  const bought = await Promise.all([post(url, { ...own, ...key }), post(url, { ...own, ...key })])
  const orders = await Promise.all(bought.map(async (each) => (await each.json()) as OrderJson))
  expect(bought.map(({ status }) => status)).toEqual([200, 200])
  expect(orders[0]?.id).toBe(orders[1]?.id as string)
  // All signed fields, in a form that the buyer has not sent.
  const sent = JSON.parse(atob(own['payment-signature'] ?? ''))
  const { x402Version, payload } = sent
  const stolen = { 'payment-signature': btoa(JSON.stringify({ payload, x402Version })) }
  const expectNothing = async (thefts: readonly Record<string, string>[]) => {
    for (const headers of thefts) {
      const theft = await post(url, headers)
      const told = (await theft.json()) as { code: string; order?: unknown }
      expect([theft.status, told.code, told.order]).toEqual([409, 'payment-mismatch', undefined])
      expect(theft.headers.has('payment-response')).toBe(true)
    }
  }
  const expectOrder = async (credentials: readonly Record<string, string>[]) => {
    for (const headers of credentials) {
      const again = await post(url, headers)
      expect([again.status, ((await again.json()) as OrderJson).id]).toEqual([
        200,
        `${orders[0]?.id}`,
      ])
    }
  }
  const guess = { ...stolen, 'idempotency-key': 'a-guess' }
  await expectNothing([stolen, guess])
  await expectOrder([own, { ...stolen, ...key }])

  // An earlier version stored no credential bytes. Then only the key is secret to the buyer.
  await shop.app.stop()
  tamper(shop.dataDir, 'UPDATE payments SET credential_hash = NULL')
  await shop.restart()
  url = shop.buyUrl({ usdg: '26' })
  await expectNothing([stolen, guess, own])
  await expectOrder([{ ...stolen, ...key }])
})
