import { afterAll, describe, expect, test } from 'bun:test'
import * as Receipt from '../../src/chain/receipt'
import * as Token from '../../src/chain/token'
import { account } from '../../src/demo/accounts'
import { isFault } from '../../src/protocol/Problem'
import * as SignedReceipt from '../../src/protocol/Receipt'
import { receiptOf, settlementOf } from '../harness/buyer'
import { block, pause } from '../harness/exchange'
import { executable } from '../harness/executable'
import type { Scheme } from '../harness/shop'
import {
  askToBuy,
  buyStock,
  mint,
  network,
  type OrderJson,
  signOrder,
  startStockShop,
  throughOf,
} from '../harness/stock-shop'
import { until } from '../harness/world'

// What a buyer sees of `POST /api/stock/buy`, on the real contracts of Uniswap.

const shop = await startStockShop()
afterAll(() => shop.stop())
const { stock, nvda, chain } = shop
const buyer = account(1).address

const json = async (response: Response) => (await response.json()) as Record<string, unknown>
const counts = () => ({
  payments: shop.rows('SELECT * FROM payments').length,
  orders: shop.rows('SELECT * FROM orders').length,
  jobs: shop.rows('SELECT * FROM jobs').length,
})

describe('the 402 of a purchase', () => {
  test('the 402 requests exactly the amount, in body and header, with the quote', async () => {
    const asked = await askToBuy(shop.buyUrl({ usdg: '25.5' }))
    expect(asked.response.status).toBe(402)
    const [first, second] = asked.required.accepts
    expect(first).toMatchObject({
      scheme: 'exact',
      network,
      asset: shop.asset,
      amount: '25500000',
      payTo: shop.desk,
      maxTimeoutSeconds: 300,
      extra: {
        assetTransferMethod: 'permit2',
        spender: '0x402085c248EeA27D92E8b30b2C58ed07f9E20001',
      },
    })
    expect(second?.extra.assetTransferMethod).toBe('eip3009')
    expect(asked.body.accepts).toEqual(asked.required.accepts)
    const [challenge] = asked.challenges
    expect(challenge?.request).toMatchObject({ amount: '25500000', recipient: shop.desk })
    const quote = asked.body.quote as Record<string, string>
    expect(quote).toMatchObject({ symbol: 'NVDA', usdg: '25.500000', totalAtomic: '25500000' })
    expect(Number(quote.estimatedShares)).toBeGreaterThan(0)
    expect(asked.response.headers.get('cache-control')).toBe('no-store')
    expect((asked.response.headers.get('payment-required') ?? '').length).toBeLessThan(4_097)
  })

  const wrong: readonly (readonly [string, Record<string, string>, string[]])[] = [
    ['no amount', { usdg: '' }, ['usdg']],
    ['an amount below the least', { usdg: '0.999999' }, ['usdg']],
    ['an amount above the most', { usdg: '1000.000001' }, ['usdg']],
    ['seven places', { usdg: '1.0000001' }, ['usdg']],
    ['an exponent', { usdg: '1e2' }, ['usdg']],
    ['a sign', { usdg: '-5' }, ['usdg']],
    ['hexadecimal', { usdg: '0x10' }, ['usdg']],
    ['a space', { usdg: ' 25' }, ['usdg']],
    ['an invalid recipient', { recipient: '0x12' }, ['recipient']],
    [
      'a recipient whose checksum is wrong',
      { recipient: buyer.replace('0x70', '0x70').replace('C', 'c') },
      ['recipient'],
    ],
    ['a minimum of zero shares', { minimumShares: '0' }, ['minimumShares']],
    ['a misspelt parameter', { recepient: buyer }, ['recepient']],
    ['everything at once', { usdg: 'x', recipient: 'y', symbol: '*' }, ['usdg', 'recipient']],
  ]
  for (const [name, query, names] of wrong) {
    test(`error: ${name} is named in a 400 before a price is offered`, async () => {
      const calls = shop.calls()
      const response = await fetch(shop.buyUrl(query), { method: 'POST' })
      const body = await json(response)
      expect([response.status, body.code]).toEqual([400, 'invalid-parameter'])
      const told = (body.invalidParams as { name: string }[]).map((each) => each.name)
      for (const expected of names) expect(told).toContain(expected)
      expect(shop.calls()).toBe(calls)
    })
  }

  test('error: a parameter that is given twice is refused', async () => {
    const response = await fetch(`${shop.buyUrl()}&usdg=30`, { method: 'POST' })
    expect(response.status).toBe(400)
  })

  test('error: an unknown symbol is 404, another method 405', async () => {
    const unknown = await fetch(shop.buyUrl({ symbol: 'GME' }), { method: 'POST' })
    expect(unknown.status).toBe(404)
    const get = await fetch(shop.buyUrl())
    expect([get.status, get.headers.get('allow')]).toEqual([405, 'POST, OPTIONS'])
  })

  const reserved = () => [
    '0x0000000000000000000000000000000000000000',
    '0x0000000000000000000000000000000000000001',
    '0x0000000000000000000000000000000000000002',
    '0x000000000000000000000000000000000000ffff',
    stock.router,
    stock.factory,
    stock.quoter,
    stock.registry,
    nvda.pool,
    nvda.address,
    stock.tokens[1]?.address ?? '',
    stock.tokens[1]?.pool ?? '',
    shop.asset,
    shop.desk,
    '0x000000000022D473030F116dDEE9F6B43aC78BA3',
    '0x402085c248EeA27D92E8b30b2C58ed07f9E20001',
    '0xcA11bde05977b3631167028862bE2a173976CA11',
  ]
  test('error: a recipient that would keep or lose the shares is refused before a price is offered', async () => {
    const calls = shop.calls()
    for (const recipient of reserved()) {
      const response = await fetch(shop.buyUrl({ recipient }), { method: 'POST' })
      expect([recipient, response.status]).toEqual([recipient, 400])
    }
    expect(shop.calls()).toBe(calls)
    // The first address without an owner.
    const free = await fetch(
      shop.buyUrl({ recipient: '0x0000000000000000000000000000000000010000' }),
      { method: 'POST' },
    )
    expect(free.status).toBe(402)
  })

  test('error: a payer to whom nothing could be refunded is refused before money moves', async () => {
    const url = shop.buyUrl({ recipient: buyer, usdg: '34' })
    const before = counts()
    const refused = await buyStock(url, { buyer: 0, scheme: 'x402-eip3009' })
    expect([refused.status, (await json(refused)).code]).toEqual([400, 'invalid-parameter'])
    expect(counts()).toEqual(before)
  })

  test('error: a halted token is 409, a paused one 503, with the reason', async () => {
    await pause(chain, nvda, { token: true })
    const halted = await fetch(shop.buyUrl({ usdg: '31' }), { method: 'POST' })
    expect([halted.status, (await json(halted)).code]).toEqual([409, 'halted'])
    await pause(chain, nvda, { everything: true })
    const paused = await fetch(shop.buyUrl({ usdg: '32' }), { method: 'POST' })
    expect([paused.status, (await json(paused)).code]).toEqual([503, 'paused'])
    await pause(chain, nvda, {})
  })

  test('error: a blocked recipient is 400, also one that is blocked later', async () => {
    const recipient = account(5).address
    const url = shop.buyUrl({ recipient, usdg: '33' })
    const credential = await signOrder(url)
    await block(chain, stock.registry, recipient)
    const before = counts()
    const paid = await fetch(url, { method: 'POST', headers: credential })
    expect([paid.status, (await json(paid)).reason]).toEqual([400, 'blocked'])
    expect(counts()).toEqual(before)
    await block(chain, stock.registry, recipient, false)
    expect((await fetch(url, { method: 'POST', headers: credential })).status).toBe(200)
  })

  test("error: fewer shares than the buyer's minimum is 409, and nothing is charged", async () => {
    const url = shop.buyUrl({ minimumShares: '1000' })
    const asked = await fetch(url, { method: 'POST' })
    expect([asked.status, (await json(asked)).code]).toEqual([409, 'below-minimum'])
  })
})

describe('a purchase', () => {
  const schemes: readonly Scheme[] = ['x402-permit2', 'x402-eip3009', 'mpp', 'mpp-permit2']
  for (const scheme of schemes) {
    test(`${scheme} pays, and the shares arrive`, async () => {
      const before = { shares: await shop.shares(buyer), usdg: await shop.usdg(buyer) }
      const desk = await shop.usdg(shop.desk)
      const response = await buyStock(shop.buyUrl(), { scheme })
      const order = (await response.json()) as OrderJson
      expect([response.status, order.status]).toEqual([200, 'delivered'])
      const delivered = BigInt(order.deliveredSharesAtomic ?? 0)
      expect((await shop.shares(buyer)) - before.shares).toBe(delivered)
      expect(before.usdg - (await shop.usdg(buyer))).toBe(25_000_000n)
      expect(await shop.usdg(shop.desk)).toBe(desk)
      const transaction = scheme.startsWith('mpp')
        ? receiptOf(response).reference
        : settlementOf(response).transaction
      expect(transaction).toBe(order.settlementTx)
      expect(order).toMatchObject({ symbol: 'NVDA', payer: buyer, recipient: buyer })
      expect(await shop.order(order.id)).toEqual(order)
      expect(Object.keys(order)).toEqual([
        'id',
        'status',
        'symbol',
        'token',
        'payer',
        'recipient',
        'usdg',
        'usdgAtomic',
        'quotedShares',
        'minimumShares',
        'deliveredShares',
        'deliveredSharesAtomic',
        'settlementTx',
        'swapTx',
        'createdAt',
        'updatedAt',
      ])
    })
  }

  test('the shares go to the named recipient', async () => {
    const recipient = account(6).address
    const before = await shop.shares(recipient)
    const response = await buyStock(shop.buyUrl({ recipient }))
    const order = (await response.json()) as OrderJson
    expect(order.recipient).toBe(recipient)
    expect((await shop.shares(recipient)) - before).toBe(BigInt(order.deliveredSharesAtomic ?? 0))
  })

  test('concurrent purchases spend exactly their own money', async () => {
    const amounts = ['3.1', '4.2', '5.3', '6.4', '7.5', '8.6', '9.7', '10.8', '11.9', '13']
    const urls = amounts.map((usdg) => shop.buyUrl({ usdg }))
    const signed = await Promise.all(
      urls.map((url, index) => signOrder(url, { buyer: 1 + (index % 5) })),
    )
    const before = await shop.usdg(nvda.pool)
    const answers = await Promise.all(
      urls.map((url, index) => fetch(url, { method: 'POST', headers: signed[index] ?? {} })),
    )
    const orders = (await Promise.all(answers.map((each) => each.json()))) as OrderJson[]
    expect(orders.map((order) => order.status)).toEqual(Array(10).fill('delivered'))
    expect(new Set(orders.map((order) => order.swapTx)).size).toBe(10)
    for (const [index, order] of orders.entries()) {
      const receipt = Receipt.parse(await chain.rpc('eth_getTransactionReceipt', [order.swapTx]))
      const logs = receipt?.logs ?? []
      const through = await throughOf(chain, order.swapTx ?? '0x')
      const spent = { token: shop.asset, from: shop.desk, to: through }
      const given = { token: shop.asset, from: through, to: stock.router }
      const swapped = { token: shop.asset, from: stock.router, to: nvda.pool }
      const got = { token: nvda.address, from: nvda.pool, to: order.recipient }
      const paid = BigInt(Math.round(Number(amounts[index]) * 1e6))
      expect(Receipt.transfersOf(logs, spent)).toEqual([paid])
      expect(Receipt.transfersOf(logs, given)).toEqual([paid])
      expect(Receipt.transfersOf(logs, swapped)).toEqual([paid])
      expect(Receipt.transfersOf(logs, got)).toEqual([BigInt(order.deliveredSharesAtomic ?? 0)])
    }
    expect((await shop.usdg(nvda.pool)) - before).toBe(80_500_000n)
    expect(await shop.usdg(shop.desk)).toBe(0n)
  })

  test('a wallet without gas and approval buys with signatures only', async () => {
    const fresh = account(6)
    await chain.rpc('anvil_setBalance', [fresh.address, '0x0'])
    await mint(shop, fresh.address, 5_000_000n)
    const words = ['--method', 'POST', '--max', '5', '--transfer', 'permit2', '--rpc', chain.url]
    const url = shop.buyUrl({ usdg: '5' })
    const child = Bun.spawn([executable, 'pay', url, ...words], {
      env: { PATH: process.env.PATH ?? '', PAY_KEY: fresh.privateKey },
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const order = JSON.parse(await new Response(child.stdout).text()) as OrderJson
    expect([await child.exited, order.status, order.payer]).toEqual([0, 'delivered', fresh.address])
    expect(await shop.usdg(fresh.address)).toBe(0n)
  })

  test('minimumShares raises the minimum', async () => {
    const asked = await askToBuy(shop.buyUrl())
    const { estimatedShares } = asked.body.quote as Record<string, string>
    const minimumShares = (Number(estimatedShares) * 0.995).toFixed(15)
    const response = await buyStock(shop.buyUrl({ minimumShares }))
    const order = (await response.json()) as OrderJson
    expect([response.status, Number(order.minimumShares)]).toEqual([200, Number(minimumShares)])
  })

  test('the metrics count orders that are not final', async () => {
    const text = await (await fetch(`${shop.url}/metrics`)).text()
    for (const state of ['settling', 'settled', 'swapping', 'refunding', 'held']) {
      expect(text).toContain(`turnpike_stock_orders{state="${state}"} 0`)
    }
  })

  test('the metrics count the money of orders for the merchant stock', async () => {
    const text = await (await fetch(`${shop.url}/metrics`)).text()
    const [sample, usd] = /^turnpike_paid_usd_total\{.*\} (.*)$/m.exec(text) ?? []
    expect(sample).toContain('{network="eip155:4663",merchant="stock"}')
    const amounts = shop.rows("SELECT amount_atomic FROM payments WHERE state = 'confirmed'")
    const atomic = amounts.reduce((sum, row) => sum + Number(row.amount_atomic), 0)
    expect(Number(usd) * 1e6).toBeCloseTo(atomic, 3)
  })

  test('the router never has an allowance', async () => {
    const { to, data } = Token.allowance(shop.asset, shop.desk, shop.stock.router)
    expect(BigInt(`${await shop.chain.rpc('eth_call', [{ to, data }, 'latest'])}`)).toBe(0n)
    expect(shop.rows("SELECT * FROM jobs WHERE kind = 'swap'").length).toBeGreaterThan(4)
  })

  test('error: a payment for another purpose is refused and not spent', async () => {
    const credential = await signOrder(shop.buyUrl())
    const other = await fetch(shop.buyUrl({ usdg: '26' }), { method: 'POST', headers: credential })
    // The payment is unknown yet: it does not pay for this.
    expect([other.status, (await json(other)).reason]).toEqual([
      402,
      'invalid_payment_requirements',
    ])
  })

  test('error: an MPP credential pays for no order to another recipient', async () => {
    const credential = await signOrder(shop.buyUrl(), { scheme: 'mpp' })
    const stolen = shop.buyUrl({ recipient: account(6).address })
    const response = await fetch(stolen, { method: 'POST', headers: credential })
    expect([response.status, (await json(response)).code]).toEqual([402, 'invalid-challenge'])
  })

  test('error: invalid credentials are 400 or 402 and write nothing', async () => {
    const before = counts()
    for (const [headers, status] of [
      [{ 'payment-signature': 'junk' }, 400],
      [{ authorization: 'Payment junk' }, 402],
      [{ 'payment-redeem': 'x'.repeat(43) }, 400],
      [{ 'payment-signature': 'a', authorization: 'Payment b' }, 400],
    ] as const) {
      const response = await fetch(shop.buyUrl(), { method: 'POST', headers: { ...headers } })
      expect([headers, response.status]).toEqual([headers, status])
    }
    expect(counts()).toEqual(before)
  })
})

test('every receipt of the desk names its order and its amount, also for a repeated request', async () => {
  for (const scheme of ['mpp', 'x402-eip3009'] as const) {
    const url = shop.buyUrl({ usdg: '3' })
    const headers = await signOrder(url, { scheme, buyer: 4 })
    for (let turn = 0; turn < 2; turn++) {
      const response = await fetch(url, { method: 'POST', headers })
      const { id } = (await response.json()) as OrderJson
      const value =
        response.headers.get('payment-receipt') ?? response.headers.get('payment-response') ?? ''
      const receipt = SignedReceipt.parse(value)
      if (isFault(receipt)) throw new Error(receipt.detail)
      expect(SignedReceipt.verify(receipt)).toBe(shop.app.receiptAddress)
      expect(SignedReceipt.purchaseOf(receipt)).toMatchObject({ order: id, amount: '3000000' })
    }
  }
})

describe('the same request again', () => {
  test('a repeated request is the same order, in another spelling, and after a restart', async () => {
    const url = shop.buyUrl({ usdg: '27' })
    const credential = await signOrder(url)
    const send = (to: string) => fetch(to, { method: 'POST', headers: credential })
    const first = (await (await send(url)).json()) as OrderJson
    const again = await send(url)
    expect([again.status, ((await again.json()) as OrderJson).id]).toEqual([200, first.id])
    expect(settlementOf(again)).toMatchObject({ success: true, transaction: first.settlementTx })
    const spelt = shop.buyUrl({ usdg: '27.00', symbol: 'nvda', recipient: buyer })
    expect(((await (await send(spelt)).json()) as OrderJson).id).toBe(first.id)
    await shop.restart()
    const later = await send(shop.buyUrl({ usdg: '27' }))
    expect([later.status, ((await later.json()) as OrderJson).id]).toEqual([200, first.id])
    expect(shop.rows(`SELECT * FROM jobs WHERE id LIKE '%${first.id}'`)).toHaveLength(1)
  })

  test('concurrent repetitions of a request are one order', async () => {
    for (const scheme of ['x402-permit2', 'mpp'] as const) {
      const url = shop.buyUrl({ usdg: '28' })
      const credential = await signOrder(url, { scheme })
      const before = counts()
      const answers = await Promise.all(
        Array.from({ length: 8 }, () => fetch(url, { method: 'POST', headers: credential })),
      )
      const orders = await Promise.all(answers.map((each) => each.json() as Promise<OrderJson>))
      expect(answers.map((each) => each.status)).toEqual(Array(8).fill(200))
      expect(new Set(orders.map((each) => each.id)).size).toBe(1)
      expect(counts()).toEqual({
        payments: before.payments + 1,
        orders: before.orders + 1,
        jobs: before.jobs + 1,
      })
    }
  })

  test('error: with another symbol, usdg or recipient it is 409 and moves nothing', async () => {
    for (const scheme of ['x402-permit2', 'x402-eip3009', 'mpp', 'mpp-permit2'] as const) {
      const credential = await signOrder(shop.buyUrl(), { scheme })
      const send = (query: Record<string, string>) =>
        fetch(shop.buyUrl(query), { method: 'POST', headers: credential })
      expect((await send({})).status).toBe(200)
      const before = counts()
      const others = [
        { symbol: 'TSLA' },
        { usdg: '26' },
        { recipient: account(6).address },
        { minimumShares: '0.01' },
      ]
      for (const query of others) {
        const response = await send(query)
        expect([query, response.status, (await json(response)).code]).toEqual([
          query,
          409,
          'payment-mismatch',
        ])
      }
      expect(counts()).toEqual(before)
    }
  })

  test('an Idempotency-Key finds the order for a new credential, which stays unspent', async () => {
    const url = shop.buyUrl({ usdg: '29' })
    const key = { 'idempotency-key': 'order-of-today' }
    const first = await buyStock(url, {}, key)
    const order = (await first.json()) as OrderJson
    const usdg = await shop.usdg(buyer)
    const second = await buyStock(url, {}, key)
    expect([second.status, ((await second.json()) as OrderJson).id]).toEqual([200, order.id])
    expect(second.headers.get('idempotency-replayed')).toBe('true')
    expect(await shop.usdg(buyer)).toBe(usdg)
    const other = await buyStock(shop.buyUrl({ usdg: '30' }), {}, key)
    expect([other.status, (await json(other)).code]).toEqual([409, 'idempotency-conflict'])
  })

  test('a buyer that disconnects still has its order', async () => {
    const url = shop.buyUrl({ usdg: '34' })
    const headers = await signOrder(url)
    const leave = new AbortController()
    const before = counts()
    const left = fetch(url, { method: 'POST', headers, signal: leave.signal }).catch(() => 'left')
    await until('the order is written', () => counts().orders > before.orders)
    leave.abort()
    await left
    const again = await fetch(url, { method: 'POST', headers })
    expect([again.status, ((await again.json()) as OrderJson).status]).toEqual([200, 'delivered'])
    expect(counts().orders).toBe(before.orders + 1)
  })
})

describe('the history', () => {
  type Page = { orders: OrderJson[]; next?: string }
  const page = async (query = ''): Promise<Page> =>
    (await (await fetch(`${shop.url}/api/stock/orders${query}`)).json()) as Page

  test('the history has the newest orders first, page by page, while new ones arrive', async () => {
    await buyStock(shop.buyUrl(), { buyer: 2 })
    const all = (await page('?limit=100')).orders
    expect(all.length).toBeGreaterThan(10)
    const ids = all.map((order) => order.id)
    expect(ids).toEqual(ids.toSorted().reverse())
    const seen: string[] = []
    let before = ''
    for (;;) {
      const { orders, next } = await page(`?limit=4${before}`)
      seen.push(...orders.map((order) => order.id))
      if (seen.length === 4) await buyStock(shop.buyUrl())
      if (next === undefined) break
      before = `&before=${next}`
    }
    expect(seen).toEqual(ids)
    const { orders } = await page(`?payer=${account(2).address.toLowerCase()}`)
    expect(orders.length).toBeGreaterThan(0)
    expect(orders.length).toBeLessThan(ids.length)
    expect(new Set(orders.map((order) => order.payer))).toEqual(new Set([account(2).address]))
    expect((await page()).orders).toHaveLength(Math.min(20, ids.length + 1))
  })

  test('error: invalid parameters and unknown orders are named', async () => {
    for (const query of ['limit=0', 'limit=101', 'limit=1e1', 'payer=0x', 'before=x', 'page=2']) {
      const response = await fetch(`${shop.url}/api/stock/orders?${query}`)
      const [name] = query.split('=')
      const body = await json(response)
      expect([query, response.status]).toEqual([query, 400])
      expect(body.invalidParams).toMatchObject([{ name }])
    }
    for (const id of ['x', `ord_${'0'.repeat(32)}`, '%00', 'ord_..%2f']) {
      const { status } = await fetch(`${shop.url}/api/stock/order/${id}`)
      expect([id, status]).toEqual([id, 404])
    }
  })
})
