import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { ask, askedOf, payX402 } from '../harness/buyer'
import { untilFree } from '../harness/shop'
import { isPostgres } from '../harness/test-ledger'
import type { Reply } from '../harness/upstream'
import { uptoOffer } from '../harness/upto'
import {
  answering,
  base,
  body,
  costOf,
  event,
  events,
  json,
  long,
  type ModelShop,
  openBuyer,
  readerOf,
  route,
  startModels,
  type Terms,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** What a merchant may lose to payers that are new to it. */

const slug = 'wary'
const lossesPerDay = 100_000n
const merchant = (name: string, more: string) => `
[[merchants]]
slug = "${name}"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
${more}
${route('base = "0.0005"\ntimeouts = "base"')}
`
const merchants =
  merchant('few', 'payer_credit = "0.03"\nlosses_per_day = "0.1"') +
  merchant(slug, 'payer_credit = "0.03"') +
  merchant('brisk', 'timeout_ms = 300')

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels({ edit: (text) => text + merchants })
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

const buy = (signer: Wallet, terms: Terms = {}) => shop.buy({ slug, signer, ...terms })

/** Pays by `exact`. */
async function buyExact(signer: Wallet, from = slug): Promise<Response> {
  const init = { method: 'POST', headers: json, body }
  const { required } = await ask(shop.chat(from), init)
  const value = await payX402(required, signer, { network: base, method: 'eip3009' })
  return fetch(shop.chat(from), { ...init, headers: { ...json, 'payment-signature': value } })
}

async function refusalOf(response: Response) {
  const { reason } = (await response.json()) as { reason?: string }
  return [response.status, reason]
}

/** What the requests that were forwarded and not paid are worth, atomic. */
const unpaid = () =>
  shop
    .rows(`SELECT coalesce(nullif(charge_atomic, '0'), ceiling_atomic) AS atomic FROM authorizations WHERE merchant = 'few' AND NOT EXISTS (
        SELECT 1 FROM payments WHERE payments.id = authorizations.id AND state = 'confirmed')`)
    .reduce((sum, { atomic }) => sum + BigInt(String(atomic)), 0n)

describe('an answer that is made again', () => {
  test('attack: without credit it is sent for no more than its charge, and made at most twice', async () => {
    const credential = await shop.sign({ slug, signer: payer })
    const replied = shop.nextReply()
    const buyer = openBuyer(shop.chat(slug), credential)
    const upstream = await replied
    await buyer.leave()
    upstream.send(200, long(usage(7, 20)), json)
    await shop.settles()
    // Requests for nothing use the credit up.
    shop.upstream.script = (_, reply) => reply.send(500)
    const shorter = body.replace('1000', '520')
    for (const sent of [body, body, shorter])
      expect((await buy(payer, { body: sent })).status).toBe(502)
    shop.upstream.script = answering(usage(7, 1000))
    const pay = (presented: Record<string, string>) =>
      untilFree(() => shop.pay(presented, { slug }))
    const dear = await pay(credential)
    expect(dear.status).toBe(502)
    const { redeem } = (await dear.json()) as { redeem: { token: string } }
    const redeeming = { 'payment-redeem': redeem.token }
    expect((await pay(redeeming)).status).toBe(502)
    shop.upstream.script = answering(usage(1, 1))
    const spent = await pay(redeeming)
    expect([spent.status, await spent.text()]).toEqual([
      410,
      expect.stringContaining('made again twice'),
    ])
    expect(await shop.tokensOf(payer.address)).toBe(10_000_000n - BigInt(costOf(7, 20)))
  })
})

describe('a fleet of new wallets', () => {
  test('attack: a fleet of new wallets costs a merchant no more than losses_per_day, also after a restart', async () => {
    const wallets = await Promise.all(Array.from({ length: 24 }, () => shop.wallet(20_000n)))
    const credentials = await Promise.all(
      wallets.map((signer) => shop.sign({ slug: 'few', signer })),
    )
    const replies: Reply[] = []
    shop.upstream.script = (_, reply) => void replies.push(reply)
    const asked = credentials.map((credential) => shop.pay(credential, { slug: 'few' }))
    const first = await Promise.race(asked)
    expect(first.status).toBe(503)
    await until('all others are refused', async () => {
      const rest = await Promise.all(asked.map((each) => Promise.race([each, undefined])))
      return rest.filter(Boolean).length + replies.length === wallets.length
    })
    expect(replies.length).toBeGreaterThan(3)
    expect(unpaid()).toBeLessThanOrEqual(lossesPerDay)
    // They take their money away before the charge, then ask again.
    await Promise.all(wallets.map(({ address }) => shop.setBalance(address, 0n)))
    for (const reply of replies) reply.send(200, usage(7, 1000))
    const answers = await Promise.all(asked)
    expect(answers.every(({ status }) => status === 402 || status === 503)).toBe(true)
    const fresh = await Promise.all(Array.from({ length: 8 }, () => shop.wallet()))
    shop.upstream.script = answering('{}', 500)
    for (const signer of fresh) await buy(signer, { slug: 'few' })
    expect(unpaid()).toBeLessThanOrEqual(lossesPerDay)
    const { response, body: spent, required } = await askedOf(await buy(payer, { slug: 'few' }))
    expect([response.status, spent.reason]).toEqual([402, 'upto_losses_spent'])
    // The refusal offers `exact` alone.
    expect(required.accepts?.map(({ scheme }) => scheme)).toEqual(['exact'])
    expect(uptoOffer(required, base)).toBeUndefined()
    expect(shop.events('losses-spent')).toMatchObject([{ merchant: 'few', level: 'warn' }])
    await shop.restart()
    expect(await refusalOf(await buy(payer, { slug: 'few' }))).toEqual([402, 'upto_losses_spent'])
    const text = await (await fetch(`${shop.url}/metrics`)).text()
    const [, risk] = /^turnpike_merchant_losses_usd\{merchant="few"\} (\S+)$/m.exec(text) ?? []
    expect(Number(risk)).toBeGreaterThan(0.08)
    expect(Number(risk)).toBeLessThanOrEqual(0.1)
    // One purchase by exact is credit enough.
    shop.upstream.script = answering(usage(7, 20))
    expect((await buyExact(payer, 'few')).status).toBe(200)
    expect((await buy(payer, { slug: 'few' })).status).toBe(200)
  })

  test('attack: one new wallet has no more open than payer_credit, until it has paid', async () => {
    const dear = '{"model":"m","max_tokens":4000,"messages":[]}'
    expect(await refusalOf(await buy(payer, { body: dear }))).toEqual([402, 'upto_credit_exceeded'])
    shop.upstream.script = answering(usage(7, 1000))
    expect((await buyExact(payer)).status).toBe(200)
    expect((await buyExact(payer)).status).toBe(200)
    expect((await buy(payer, { body: dear })).status).toBe(200)
    const replies: Reply[] = []
    shop.upstream.script = (_, reply) => void replies.push(reply)
    const signer = await shop.wallet()
    const credentials = await Promise.all([1, 2, 3, 4].map(() => shop.sign({ slug, signer })))
    const asked = credentials.map((credential) => shop.pay(credential, { slug }))
    expect((await Promise.race(asked)).status).toBe(503)
    await until('two are forwarded', () => replies.length === 2)
    for (const reply of replies) reply.send(200, usage(7, 20))
    const statuses = (await Promise.all(asked)).map(({ status }) => status)
    expect(statuses.toSorted()).toEqual([200, 200, 503, 503])
  })
})

describe('a stream to a payer that never paid to the merchant', () => {
  const stream = (_: unknown, reply: Reply) => {
    reply.head(200, events)
    reply.chunk(event('{"n":1}'))
    reply.chunk(event(usage(7, 20)))
    reply.end()
  }

  test('attack: a stream to a new payer is held until its charge is confirmed, and the next one passes', async () => {
    shop.upstream.script = stream
    const held = await buy(payer)
    expect(held.headers.get('content-type')).toBe('text/event-stream')
    expect(shop.payment()).toMatchObject({ state: 'confirmed', amount_atomic: `${costOf(7, 20)}` })
    expect(await held.text()).toContain('{"n":1}')
    const replied = shop.nextReply()
    const passing = buy(payer)
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event('{"n":2}'))
    const response = await passing
    const read = readerOf(response)
    expect(await read()).toBe(event('{"n":2}'))
    expect(shop.authorization().state).toBe('authorized')
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await until('it has ended', async () => (await read()) === '')
    await shop.settles()
  })

  test('attack: a new payer that takes its money away gets nothing of its stream', async () => {
    const replied = shop.nextReply()
    const buying = buy(payer)
    const upstream = await replied
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    await shop.setBalance(payer.address, 0n)
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    const response = await buying
    expect(response.status).toBe(402)
    expect(await response.text()).not.toContain('{"n":1}')
  })
})

describe('work for nothing', () => {
  const ways: readonly (readonly [string, (_: unknown, reply: Reply) => void])[] = [
    ['are answered 503', answering('{}', 503)],
    [
      'are broken off',
      (_, reply) => {
        reply.head(200, json)
        reply.chunk('{"text":"'.padEnd(5_000, 'x'))
        reply.cut()
      },
    ],
    ['are answered by an error without usage', answering('{"text":"all","error":"stopped"}')],
  ]
  for (const [name, script] of ways)
    test(`attack: requests that ${name} are forwarded for nothing a few times, and not stopped for others`, async () => {
      shop.upstream.script = script
      const statuses = []
      for (let count = 0; count < 12; count++)
        statuses.push((await shop.buy({ signer: payer })).status)
      expect(shop.upstream.requests).toHaveLength(5)
      expect(statuses.slice(5)).toEqual(Array(7).fill(429))
      shop.upstream.script = answering(usage(7, 20))
      expect((await shop.buy({ signer: await shop.wallet() })).status).toBe(200)
    })

  test('an answer that fails and reports its usage costs base', async () => {
    shop.upstream.script = answering(`{"error":"stopped",${usage(1000, 1000).slice(1)}`)
    expect((await shop.buy({ signer: payer })).status).toBe(200)
    expect(shop.payment()).toMatchObject({ payer: payer.address, amount_atomic: '500' })
  })

  test('a time-out costs base where the route says so, and redeems nothing', async () => {
    shop.upstream.script = () => {}
    const credential = await shop.sign({ slug: 'brisk', signer: payer })
    const response = await shop.pay(credential, { slug: 'brisk' })
    expect(response.status).toBe(504)
    expect(await response.text()).toContain('It costs 500 atomic units.')
    await shop.settles()
    expect(shop.payment()).toMatchObject({ amount_atomic: '500', delivery: 'delivered' })
    expect((await shop.pay(credential, { slug: 'brisk' })).status).toBe(402)
    expect(shop.upstream.requests).toHaveLength(1)
  })
})

test('attack: what a payer paid to another merchant is no credit', async () => {
  shop.upstream.script = answering(usage(7, 1000))
  for (let count = 0; count < 4; count++)
    expect((await shop.buy({ signer: payer })).status).toBe(200)
  const dear = '{"model":"m","max_tokens":4000,"messages":[]}'
  expect(await refusalOf(await buy(payer, { body: dear }))).toEqual([402, 'upto_credit_exceeded'])
})

test.skipIf(isPostgres)('the reads of credit use indexes', () => {
  const plan = (sql: string) =>
    shop.rows(`EXPLAIN QUERY PLAN ${sql}`).map(({ detail }) => String(detail))
  expect(
    plan("SELECT 1 FROM payments WHERE network = '' AND asset = '' AND payer = '' LIMIT 1"),
  ).toEqual([expect.stringContaining('payments_money')])
  expect(plan("SELECT 1 FROM authorizations WHERE payer = '' AND failed_at IS NOT NULL")).toEqual([
    expect.stringContaining('authorizations_failed'),
  ])
})
