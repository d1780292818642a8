import { afterAll, beforeEach, describe, expect, test } from 'bun:test'
import { readFileSync } from 'node:fs'
import { account } from '../../src/demo/accounts'
import { samplePrice } from '../../src/demo/exchange'
import { operatorOf } from '../harness/admin'
import { countSql } from '../harness/costs'
import { movePrice } from '../harness/exchange'
import { units } from '../harness/meter'
import { type Received, secret, startReceiver, verify } from '../harness/receiver'
import { buy, type Scheme } from '../harness/shop'
import {
  before,
  buyStock,
  network,
  type OrderJson,
  signOrder,
  startStockShop,
} from '../harness/stock-shop'
import { signUpto } from '../harness/upto'
import { until } from '../harness/world'

/** What a receiver gets while the gateway and the stock desk sell. */

const receiver = startReceiver()
const url = `${receiver.url}/in/url-s3cret?token=hook-s3cret`
const webhooks = `
[[webhooks]]
url = "${url}"
events = ["*"]
secret = "${secret}"
allow_private = true

[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
`
const sql = countSql()
const shop = await startStockShop({
  edit: (text) => text + webhooks,
  openDatabase: sql.openDatabase,
  refundsMax: 100,
  posting: { alertAfterMs: 0 },
})
afterAll(async () => {
  await shop.stop()
  await receiver.stop()
})
beforeEach(() => {
  shop.upstream.script = undefined
  shop.tap.intercept = undefined
  receiver.answer = undefined
  receiver.received.length = 0
})

const of = (subject: unknown): Received[] =>
  receiver.received.filter(({ body: { data } }) =>
    [data.payment, data.order, data.network].includes(subject),
  )
const newest = () => shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')[0] ?? {}
const never = (): never => {
  throw new Error('there is none')
}
const waiting = () => shop.rows("SELECT 1 FROM webhooks WHERE state = 'waiting'").length
const arrived = (count: number) =>
  until(`${count} messages arrived`, () => receiver.received.length >= count)

describe('a paid request', () => {
  for (const scheme of ['mpp', 'mpp-permit2', 'x402-eip3009', 'x402-permit2'] satisfies Scheme[])
    test(`a paid request by ${scheme} is one message, which the verifier accepts`, async () => {
      const response = await buy(`${shop.url}/m/shop/item?q=query-s3cret`, { scheme })
      expect(response.status).toBe(200)
      await arrived(1)
      const row = newest()
      const [message, ...others] = of(row.id)
      expect(others).toEqual([])
      expect(verify(message as Received)).toEqual(message?.body)
      expect(message?.body).toEqual({
        type: 'payment.confirmed',
        timestamp: new Date(Number(row.confirmed_at)).toISOString(),
        data: {
          payment: row.id,
          product: 'gateway',
          protocol: row.protocol,
          scheme: 'exact',
          merchant: 'shop',
          route: '/item',
          network: row.network,
          asset: row.asset,
          amountAtomic: '5000',
          payer: account(1).address,
          payee: row.payee,
          transaction: row.transaction_hash,
          logIndex: row.log_index,
          blockNumber: row.block_number,
        },
      })
      expect(message?.text).not.toContain('s3cret')
    })

  test('a charge by use is a message with the charge and the ceiling', async () => {
    const usage = JSON.stringify({ usage: { prompt_tokens: 7, completion_tokens: 20 } })
    shop.upstream.script = (_, reply) => reply.send(200, usage)
    const chat = `${shop.url}/m/model/chat`
    const request = {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"model":"m","max_tokens":1000,"messages":[]}',
    }
    const credential = await signUpto(chat, request)
    const headers = { ...request.headers, ...credential }
    expect((await fetch(chat, { ...request, headers })).status).toBe(200)
    await arrived(1)
    const { id, ceiling_atomic } = newest()
    expect(of(id)[0]?.body).toMatchObject({
      type: 'payment.confirmed',
      data: { scheme: 'upto', amountAtomic: '707', ceilingAtomic: ceiling_atomic, route: '/chat' },
    })
  })

  test('an upstream that fails is a second message, after the first', async () => {
    shop.upstream.script = (_, reply) => reply.send(503)
    const response = await buy(`${shop.url}/m/shop/item`)
    expect(response.status).toBe(502)
    const failure = (await response.json()) as { redeem: { token: string; until: string } }
    await arrived(2)
    const { id } = newest()
    expect(of(id).map(({ body }) => body.type)).toEqual(['payment.confirmed', 'delivery.failed'])
    const last = of(id)[1]
    expect(verify(last as Received)).toMatchObject({
      data: {
        payment: id,
        merchant: 'shop',
        amountAtomic: '5000',
        attempts: 1,
        upstreamStatus: 503,
        redeemableUntil: failure.redeem.until,
      },
    })
    expect(last?.text).not.toContain(failure.redeem.token)
  })

  test('an operator sends a test to one endpoint, whatever it takes, and sees the answer', async () => {
    const { act, read } = await operatorOf(shop.url, shop.secrets.adminToken)
    const [endpoint] = shop.config.webhooks
    if (endpoint === undefined) throw new Error('no endpoint')
    expect(await act('test', `webhook:${endpoint.id}`)).toBe(303)
    await arrived(1)
    const [message, ...others] = receiver.received
    expect(others).toEqual([])
    expect(verify(message as Received)).toMatchObject({ type: 'webhook.test' })
    await until('its end is written', () => waiting() === 0)
    const id = message?.id ?? ''
    const page = await read('/admin/webhooks')
    for (const part of ['webhook.test', `/admin/actions/resend?subject=${id}`, endpoint.url.origin])
      expect(page).toContain(part)
    expect(page).not.toContain(endpoint.url.pathname)
    expect(await act('resend', id)).toBe(303)
    await arrived(2)
    expect(receiver.ids()).toEqual([id, id])
    for (const [action, subject] of [
      ['test', 'webhook:0000000000000000'],
      ['resend', 'x'],
    ] as const)
      expect(await act(action, subject)).toBe(404)
  })

  test('an endpoint costs a payment one insert more in its own commit, and no further commit', async () => {
    const endings = () => shop.rows("SELECT 1 FROM payments WHERE delivery <> 'delivered'").length
    const open = endings()
    await buy(`${shop.url}/m/shop/other`)
    await until('it is delivered', () => endings() === open)
    await until('all is sent', () => waiting() === 0)
    // The answer of the receiver must not be recorded while the payment is measured.
    const gate = Promise.withResolvers<undefined>()
    receiver.answer = () => gate.promise
    let bought = 1
    do {
      sql.reset()
      await buy(`${shop.url}/m/shop/other`)
      await until('it is delivered', () => endings() === open)
      bought++
      // The counts of the day are written from time to time, also beside a payment.
    } while (sql.statements('insert requests') > 0)
    const { statements, commits, laterCommits } = sql.costs()
    gate.resolve(undefined)
    const writes = Object.entries(statements).filter(([kind]) => !kind.startsWith('select'))
    expect(Object.fromEntries(writes)).toEqual({
      'insert gas_spent': 1,
      'insert payments': 1,
      'insert transaction_members': 1,
      'insert transactions': 1,
      'insert webhooks': 1,
      'update payments': 2,
      'update transactions': 2,
    })
    // Beside the payment the sender syncs once more, before it sends.
    expect(commits + laterCommits).toBe(3)
    await arrived(bought)
  })

  test('a receiver that never answers delays no buyer', async () => {
    const gate = Promise.withResolvers<undefined>()
    receiver.answer = () => gate.promise
    for (let i = 0; i < 3; i++) expect((await buy(`${shop.url}/m/shop/item`)).status).toBe(200)
    await arrived(3)
    expect(waiting()).toBeGreaterThanOrEqual(3)
    gate.resolve(undefined)
  })
})

describe('an order', () => {
  const types = (id: string) => of(id).map(({ body }) => body.type)
  const orderOf = async (response: Response) => {
    const body = (await response.json()) as OrderJson & { order?: OrderJson }
    return body.order ?? body
  }

  test('each state of a delivered order is a message, in their order', async () => {
    const { id, settlementTx, swapTx } = await orderOf(await buyStock(shop.buyUrl()))
    await until('all arrived', () => types(id).includes('order.delivered'))
    expect(types(id)).toEqual(['order.settled', 'order.swapping', 'order.delivered'])
    const row = shop.rows(`SELECT * FROM orders WHERE id = '${id}'`)[0] ?? {}
    const last = of(id).at(-1) as Received
    expect(verify(last)).toMatchObject({
      type: 'order.delivered',
      data: {
        order: id,
        payment: row.payment_id,
        state: 'delivered',
        network,
        asset: shop.asset,
        amountAtomic: '25000000',
        swapAtomic: '25000000',
        symbol: 'NVDA',
        token: shop.nvda.address,
        deliveredTokenAtomic: row.delivered_atomic,
        recipient: account(1).address,
        settlementTransaction: settlementTx,
        swapTransaction: swapTx,
        refundTransaction: null,
      },
    })
    const paid = of(row.payment_id).find(({ body }) => body.type === 'payment.confirmed')
    expect(paid?.body.data).toMatchObject({ product: 'desk', merchant: null })
  })

  test('a refund is shown with its reason and its transaction', async () => {
    const price = samplePrice(shop.nvda.symbol)
    const purchase = shop.buyUrl({ usdg: '41' })
    const headers = await signOrder(purchase)
    before(shop, 'quote', 2, () => movePrice(shop.chain, shop.asset, shop.nvda, price * 1.02))
    const response = await fetch(purchase, { method: 'POST', headers })
    const { id, refundTx } = await orderOf(response)
    await until('all arrived', () => types(id).includes('order.refunded'))
    expect(types(id)).toEqual(['order.settled', 'order.refunding', 'order.refunded'])
    expect(of(id).at(-1)?.body.data).toMatchObject({
      state: 'refunded',
      refundReason: 'below-floor',
      refundTransaction: refundTx,
      amountAtomic: '41000000',
    })
    await movePrice(shop.chain, shop.asset, shop.nvda, price)
  })
})

describe('what is shown', () => {
  test('metrics count messages; no page, log line or row has a secret', async () => {
    await buy(`${shop.url}/m/shop/item`)
    await arrived(1)
    const authorization = `Bearer ${shop.secrets.adminToken}`
    const pages = await Promise.all(
      ['/metrics', '/readyz', '/admin', '/openapi.json', '/'].map(async (path) =>
        (await fetch(shop.url + path, { headers: { authorization } })).text(),
      ),
    )
    expect(pages[0]).toMatch(/^turnpike_webhooks_total\{result="delivered"\} \d+$/m)
    expect(pages[0]).toMatch(/^turnpike_webhooks_waiting\{endpoint="[0-9a-f]{16}"\} \d+$/m)
    const stored = ['', '-wal'].map((end) => readFileSync(`${shop.db.file}${end}`, 'latin1'))
    expect(stored.join('')).toContain(receiver.url)
    for (const text of [...pages, ...shop.logged, ...stored]) {
      // A failure must not print a whole file.
      const found = [secret.slice(6), 'url-s3cret', 'hook-s3cret'].filter((each) =>
        text.includes(each),
      )
      expect(found).toEqual([])
    }
  })

  test('a reload changes the endpoints without a restart', async () => {
    const other = startReceiver()
    const apply = (text: (before: string) => string) => shop.app.reload(shop.edited(text))
    expect(await apply((text) => text.replace(url, `${other.url}/new`))).toEqual([])
    await buy(`${shop.url}/m/shop/item`)
    await until('the new one has it', () => other.received.length > 0)
    expect(of(newest().id)).toEqual([])
    expect(await apply((text) => text.replace(webhooks, ''))).toEqual([])
    const written = shop.rows('SELECT * FROM webhooks').length
    expect((await buy(`${shop.url}/m/shop/item`)).status).toBe(200)
    expect(shop.rows('SELECT * FROM webhooks')).toHaveLength(written)
    await other.stop()
  })

  test('a failing upstream and low gas are alerts, a restart repeats none, and no page has the secret', async () => {
    const alerted = startReceiver()
    const places = `
[[alerts]]
kind = "slack"
url = "${alerted.url}/services/\${ASSISTANT_KEY}"
allow_private = true
`
    const config = shop.edited((text) => text + places)
    expect(await shop.app.reload(config)).toEqual([])
    shop.upstream.script = (_, reply) => reply.send(503)
    expect((await buy(`${shop.url}/m/shop/item`)).status).toBe(502)
    await until('it is told', () => alerted.received.length > 0)
    expect(alerted.received[0]?.path).toBe('/services/assistant-s3cret-key')
    expect(JSON.parse(alerted.received[0]?.text ?? '').text).toMatch(
      /^1 payment to shop not delivered\. .* at \/item: the upstream answered 503\.\n/,
    )
    const { cost, relayer } =
      shop.app.settlement.details().find((each) => each.network === network) ?? never()
    const wei = 20n * cost.gas * cost.priceWei
    await shop.chain.rpc('anvil_setBalance', [relayer, `0x${wei.toString(16)}`])
    // A start reads the balances, and tells nothing again.
    await shop.restart(config)
    await until('low gas is told', () =>
      alerted.received.some(({ text }) => text.includes('Gas is low')),
    )
    const failures = alerted.received.filter(({ text }) => text.includes('not delivered'))
    expect(failures).toHaveLength(1)
    const authorization = `Bearer ${shop.secrets.adminToken}`
    const page = await fetch(`${shop.url}/admin/configuration`, { headers: { authorization } })
    expect(page.status).toBe(200)
    const texts = [
      await page.text(),
      ...shop.logged,
      JSON.stringify(shop.rows('SELECT * FROM webhooks')),
    ]
    expect(texts[0]).toContain('<h2>Alerts</h2>')
    for (const text of texts) expect(text.includes('assistant-s3cret-key')).toBe(false)
    await alerted.stop()
  })
})
