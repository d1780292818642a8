import { afterAll, beforeAll, expect, test } from 'bun:test'
import { type Address, type Hex, pad } from 'viem'
import { sales } from '../../src/cli/operate/sales'
import { account } from '../../src/demo/accounts'
import type { Id } from '../../src/protocol/Network'
import { exitCode } from '../harness/command'
import { drain } from '../harness/exchange'
import { makeBody, post } from '../harness/facilitation'
import { buy, payee, type Scheme, sign } from '../harness/shop'
import { setTokens } from '../harness/sponsor'
import { before, buyStock, openStock, type StockShop } from '../harness/stock-shop'
import { commandEnv } from '../harness/test-ledger'
import { answering, type ModelShop, startModels, usage } from '../harness/upto-shop'
import { until } from '../harness/world'

/** The figures of `turnpike sales` beside the running service, compared with the chains. */

const base: Id = 'eip155:8453'
const robinhood: Id = 'eip155:4663'

let shop: ModelShop & StockShop

beforeAll(async () => {
  shop = await openStock(await startModels({ exchange: true, orderRetryMs: 50 }))
  await trade()
})
afterAll(() => shop?.stop())

const item = () => `${shop.url}/m/shop/item`
const networkOf = (id: Id) => {
  const found = shop.config.networks.find((each) => each.id === id)
  if (found === undefined) throw new Error(`no ${id}`)
  return found
}

/** One of everything that moves money, or fails to. */
async function trade(): Promise<void> {
  const schemes: readonly Scheme[] = ['mpp', 'mpp-permit2', 'x402-eip3009', 'x402-permit2']
  for (const [index, scheme] of schemes.entries()) {
    for (const buyer of [1, 2]) {
      const isPermit = scheme.endsWith('permit2')
      const network = isPermit || (index + buyer) % 2 === 0 ? robinhood : base
      const response = await buy(`${shop.url}/m/shop/other`, { scheme, buyer, network })
      expect([scheme, response.status]).toEqual([scheme, 200])
    }
  }
  await tradeByUse()
  await fail()
  await tradeTogether()
  await tradeStock()
  // An own account, and the sale of another server.
  expect((await buy(item(), { scheme: 'x402-eip3009', buyer: 7 })).status).toBe(200)
  const settled = await post(`${shop.url}/facilitator/settle`, await makeBody(networkOf(base)))
  expect(settled.json.success).toBe(true)
  await until('all is delivered', () => {
    const open = "SELECT 1 FROM payments WHERE state = 'broadcast' OR delivery = 'delivering'"
    return shop.rows(open).length === 0
  })
}

async function tradeByUse(): Promise<void> {
  shop.upstream.script = answering(usage(100, 20))
  const wallet = await shop.wallet()
  expect((await shop.buy({ signer: wallet })).status).toBe(200)
  await shop.settles()
  // A charge of nothing is no payment.
  shop.upstream.script = answering('{}', 500)
  expect((await shop.buy({ signer: wallet })).status).toBeGreaterThanOrEqual(500)
  shop.upstream.script = undefined
}

async function fail(): Promise<void> {
  shop.upstream.script = answering('no', 500)
  expect((await buy(item())).status).toBe(502)
  shop.upstream.script = undefined
  const credential = await sign(item(), { scheme: 'x402-eip3009', buyer: 2 })
  const { address } = account(2)
  const balance = await shop.balance(base, address)
  const [tap, chain] = [shop.taps[base], shop.chains[base]]
  if (tap === undefined || chain === undefined) throw new Error(`no ${base}`)
  const set = (atomic: bigint) => setTokens(chain, networkOf(base).asset.address, [address], atomic)
  tap.intercept = async ({ method }) => {
    if (method !== 'eth_sendRawTransactionSync') return undefined
    tap.intercept = undefined
    await set(0n)
    return undefined
  }
  expect((await fetch(item(), { headers: credential })).status).toBe(503)
  await set(balance)
}

/** More payments than fit beside each other: some share a transaction. */
async function tradeTogether(): Promise<void> {
  const signed = await Promise.all(
    Array.from({ length: 16 }, (_, index) =>
      sign(item(), { scheme: 'x402-eip3009', buyer: 1 + (index % 4) }),
    ),
  )
  const answers = await Promise.all(signed.map((headers) => fetch(item(), { headers })))
  expect(answers.map(({ status }) => status)).toEqual(signed.map(() => 200))
  expect(shop.rows("SELECT 1 FROM transactions WHERE kind = 'batch'").length).toBeGreaterThan(0)
}

async function tradeStock(): Promise<void> {
  expect((await buyStock(shop.buyUrl(), { buyer: 3 })).status).toBe(200)
  const [, , , other] = shop.stock.tokens
  if (other === undefined) throw new Error('no other token')
  const chain = shop.chains[robinhood]
  if (chain === undefined) throw new Error('no chain')
  before(shop, 'quote', 3, () => drain(chain, other, 999_999))
  const refunded = await buyStock(shop.buyUrl({ symbol: other.symbol, usdg: '30' }), { buyer: 4 })
  const { orderStatus } = (await refunded.json()) as { orderStatus: string }
  expect(orderStatus).toBe('refunded')
}

type Line = Record<string, string> & { payments: number; undelivered: number; pending: number }
type Json = {
  sales: Line[]
  totals: Line[]
  ownPayments: Line[]
  facilitator: Line[]
  otherGas: Line[]
  requests: {
    merchant: string
    route: string
    asked: number
    paid: number
    failed: number
    free: Record<string, number>
  }[]
  unknownGas: number
}

async function books(by: string): Promise<Json> {
  let text = ''
  const out = (more: string) => {
    text += more
  }
  const env = commandEnv(shop.dataDir)
  const options = { dataDir: shop.dataDir, env, by, json: true, now: shop.now, out }
  expect(await exitCode(sales, { ...options, since: '24h' })).toBe(0)
  return JSON.parse(text)
}

type Log = { topics: Hex[]; data: Hex; transactionHash: Hex }
const transferTopic = '0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef'
const wordOf = (address: Address) => pad(address).toLowerCase() as Hex

/** Sum of the Transfer logs of a network's asset, by the account at the other end. */
async function transfers(
  network: Id,
  { from, to }: { from?: Address; to?: Address },
): Promise<Map<string, bigint>> {
  const logs = (await shop.chains[network]?.rpc('eth_getLogs', [
    {
      address: networkOf(network).asset.address,
      fromBlock: '0x0',
      topics: [transferTopic, from ? wordOf(from) : null, to ? wordOf(to) : null],
    },
  ])) as Log[]
  const sums = new Map<string, bigint>()
  for (const { topics, data } of logs) {
    const other = `0x${topics[from ? 2 : 1]?.slice(26)}`
    sums.set(other, (sums.get(other) ?? 0n) + BigInt(data))
  }
  return sums
}

function sumOf(lines: readonly Line[], name: string): bigint {
  return lines.reduce((sum, line) => sum + BigInt(line[name] ?? 0), 0n)
}

test('paid and refunded by payer are the Transfer logs to and from our payees', async () => {
  const report = await books('payer')
  for (const network of [base, robinhood]) {
    const of = (lines: readonly Line[]) => lines.filter((line) => line.network === network)
    const [gateway, desk] = [
      await transfers(network, { to: payee }),
      network === robinhood ? await transfers(network, { to: shop.desk }) : new Map(),
    ]
    // The facilitator's settlement went to the same payee, for another server.
    const byOthers = new Map(of(report.facilitator).map((line) => [line.payer, line.paidAtomic]))
    const payers = new Set([...gateway.keys(), ...desk.keys()])
    const lines = new Map(
      [...of(report.sales), ...of(report.ownPayments)].map((line) => [
        line.payer?.toLowerCase(),
        line,
      ]),
    )
    expect(payers.size).toBeGreaterThan(1)
    for (const payer of payers) {
      const line = lines.get(payer)
      const other = [...byOthers].find(([of]) => of?.toLowerCase() === payer)?.[1] ?? '0'
      const paid = BigInt(line?.paidAtomic ?? 0)
      const onChain = (gateway.get(payer) ?? 0n) + (desk.get(payer) ?? 0n)
      expect([network, payer, paid + BigInt(other)]).toEqual([network, payer, onChain])
    }
    const back = network === robinhood ? await transfers(network, { from: shop.desk }) : new Map()
    for (const [payer, line] of lines) {
      expect([payer, line.refundedAtomic]).toEqual([payer, String(back.get(payer) ?? 0n)])
      const parts = ['deliveredAtomic', 'undeliveredAtomic', 'refundedAtomic']
      expect(parts.reduce((sum, name) => sum + BigInt(line[name] ?? 0), 0n)).toBe(
        BigInt(line.paidAtomic ?? 0),
      )
    }
  }
})

test('each grouping has the same sums, and own payments and the facilitator are apart', async () => {
  const [first, ...others] = await Promise.all(
    ['merchant', 'route', 'payer', 'network', 'day'].map(books),
  )
  for (const other of others) expect(other.totals).toEqual(first?.totals ?? [])
  expect(first?.ownPayments).toMatchObject([{ merchant: 'shop', network: base, payments: 1 }])
  expect(first?.facilitator).toMatchObject([{ network: base, payments: 1, paidAtomic: '5000' }])
  const stock = first?.sales.find(({ merchant }) => merchant === 'stock')
  const paid = sumOf(stock ? [stock] : [], 'paidAtomic')
  expect(stock).toMatchObject({ payments: 2, undelivered: 0 })
  expect(BigInt(stock?.swappedAtomic ?? 0)).toBe(25_000_000n)
  expect(paid - BigInt(stock?.refundedAtomic ?? 0)).toBe(BigInt(stock?.deliveredAtomic ?? 0))
  // The principal is no revenue: of 25 USD for shares without a fee nothing is earned.
  expect(stock).toMatchObject({ revenueUsd: '0.000000', swappedUsd: '25.000000' })
  // The failed delivery, and the payment that reverted.
  const seller = first?.sales.find((line) => line.merchant === 'shop' && line.network === base)
  expect(seller).toMatchObject({
    undelivered: 1,
    undeliveredAtomic: '5000',
    redeemable: 1,
    pending: 1,
    pendingAtomic: '5000',
  })
})

test('the gas of all lines is what the receipts of our transactions say', async () => {
  const report = await books('route')
  expect(report.unknownGas).toBe(0)
  for (const network of [base, robinhood]) {
    const of = (lines: readonly Line[]) => lines.filter((line) => line.network === network)
    const all = [report.sales, report.ownPayments, report.facilitator, report.otherGas]
    const gas = all.reduce((sum, lines) => sum + sumOf(of(lines), 'gasWei'), 0n)
    const sent = shop.rows(
      `SELECT hash, kind FROM transactions WHERE network = '${network}' AND state IN ('mined', 'failed')`,
    )
    let spent = 0n
    for (const { hash, kind } of sent) {
      expect(kind).not.toBe('grant')
      const receipt = await shop.chains[network]?.rpc('eth_getTransactionReceipt', [hash])
      const { gasUsed, effectiveGasPrice } = receipt as Record<string, Hex>
      spent += BigInt(gasUsed ?? 0) * BigInt(effectiveGasPrice ?? 0)
    }
    expect([network, gas]).toEqual([network, spent])
    expect(spent).toBeGreaterThan(0n)
  }
})

test('requests are counted by route, and survive a restart', async () => {
  await shop.restart()
  const count = async (merchant: string, route: string) =>
    (await books('route')).requests.find(
      (line) => line.merchant === merchant && line.route === route,
    )
  // 402s: the failed delivery, the reverted payment, 16 together, the own account.
  expect(await count('shop', '/item')).toEqual({
    merchant: 'shop',
    route: '/item',
    asked: 19,
    paid: 18,
    failed: 2,
    free: {},
  })
  expect(await count('model', '/chat')).toMatchObject({ asked: 2, paid: 1, failed: 1 })
  expect(await count('stock', '/api/stock/buy')).toMatchObject({ asked: 2, paid: 2 })
  expect((await fetch(item())).status).toBe(402)
  await shop.restart()
  expect(await count('shop', '/item')).toMatchObject({ asked: 20 })
})
