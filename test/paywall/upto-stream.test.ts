import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { inSeconds, settlementOf } from '../harness/buyer'
import { untilEnded, untilFree } from '../harness/shop'
import { failWrites, sqlBeside } from '../harness/test-ledger'
import { signUpto } from '../harness/upto'
import {
  answering,
  costOf,
  event,
  events,
  type ModelShop,
  openBuyer,
  readerOf,
  startModels,
  usage,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Event streams that are paid by the x402 scheme `upto`: they pass while they come. */

let shop: ModelShop
beforeAll(async () => {
  shop = await startModels({
    edit: (text) => {
      const [, merchant = ''] =
        /(\[\[merchants\]\]\nslug = "brief"[\s\S]*?)(?=\[\[merchants\]\])/.exec(text) ?? []
      const early = merchant
        .replace('"brief"', '"early"')
        .replace('base =', 'missing = "base"\nbase =')
      return text.replace('[service]', '[service]\nstalled_streams_max = 1') + early
    },
    transferRateMin: { stepMs: 5_000, stalledMax: 100 },
  })
})
afterAll(() => shop.stop())
beforeEach(() => shop.clear())

const delivery = () => {
  const { state, amount_atomic, delivery, truncated, attempts } = shop.payment()
  return { state, amount_atomic, delivery, truncated, attempts }
}
const settled = (amount: number, truncated = 0) => ({
  state: 'confirmed',
  amount_atomic: String(amount),
  delivery: 'delivered',
  truncated,
  attempts: 1,
})
const ceiling = () => Number(shop.authorization().ceiling_atomic)
/** How often the payee was paid for the newest authorization. */
const nothingSent = () => {
  const { id } = shop.authorization()
  expect(shop.rows(`SELECT id FROM payments WHERE id = '${id}'`)).toEqual([])
}

/** A bought stream whose buyer has its first chunk. */
async function opened(terms: Parameters<ModelShop['sign']>[0] = {}, headers = {}) {
  const slug = terms.slug === undefined ? {} : { slug: terms.slug }
  const credential = await shop.sign(terms)
  const replied = shop.nextReply()
  const bought = shop.pay(credential, { ...slug, headers })
  const upstream = await replied
  upstream.head(200, events)
  upstream.chunk(event('{"n":1}'))
  const response = await bought
  const read = readerOf(response)
  expect([response.status, await read()]).toEqual([200, event('{"n":1}')])
  return { upstream, response, read, credential }
}

/** The same, of a buyer that can leave. */
async function watched(slug = 'model') {
  const credential = await shop.sign({ slug })
  const replied = shop.nextReply()
  const buyer = openBuyer(shop.chat(slug), credential)
  const upstream = await replied
  return { upstream, buyer, credential }
}

describe('an event stream', () => {
  test('an event stream passes while it comes, and is settled at its end', async () => {
    const before = await shop.paid()
    const { upstream, response, read } = await opened()
    expect(shop.authorization().state).toBe('authorized')
    expect(response.headers.has('payment-response')).toBe(false)
    expect(response.headers.get('payment-id')).toBe(String(shop.authorization().id))
    expect(response.headers.get('payment-token')).toMatch(/^[\w-]{43}$/)
    upstream.chunk(event('{"n":2}'))
    expect(await read()).toBe(event('{"n":2}'))
    expect(await shop.paid()).toBe(before)
    upstream.chunk(event(usage(7, 20)))
    expect(await read()).toBe(event(usage(7, 20)))
    expect(shop.authorization().state).toBe('authorized')
    upstream.end()
    expect(await read()).toBe('')
    // Its end says that the charge is on the disk.
    expect(shop.authorization().state).not.toBe('authorized')
    await shop.settles()
    expect(delivery()).toEqual(settled(costOf(7, 20)))
    expect(await shop.paid()).toBe(before + BigInt(costOf(7, 20)))
  })

  test('an event stream is charged by its last usage, or by missing without usage', async () => {
    const chunks = [[usage(1, 1), usage(2, 2), usage(7, 20)], ['{"n":2}'], [usage(-1, 2)]]
    for (const texts of chunks) {
      const { upstream, read } = await opened()
      for (const text of texts) upstream.chunk(event(text))
      upstream.end()
      await until('it has ended', async () => (await read()) === '')
      await shop.settles()
      const cost = texts.length === 3 ? costOf(7, 20) : ceiling()
      expect(delivery()).toEqual(settled(cost))
    }
  })

  test('an error in the stream, or an upstream that breaks off, costs nothing', async () => {
    const before = await shop.paid()
    for (const isCut of [false, true]) {
      const { upstream, read, credential } = await opened()
      if (isCut) {
        upstream.chunk(event(usage(7, 20)))
        upstream.cut()
      } else {
        upstream.chunk(event('{"error":{"message":"no"}}'))
        upstream.end()
      }
      const end = isCut ? 'broken' : ''
      await until('it has ended', async () => (await read()) === end)
      await shop.becomes('void')
      nothingSent()
      const again = await shop.pay(credential)
      expect(settlementOf(again)).toMatchObject({ errorReason: 'permit2_invalid_nonce' })
      expect(again.status).toBe(402)
    }
    expect(await shop.paid()).toBe(before)
  })

  test('HEAD is settled before its head is sent', async () => {
    const named = { 'settlement-overrides': '{"amount":"1000"}' }
    shop.upstream.script = (_, reply) => {
      reply.head(200, { ...events, ...named })
      reply.cut()
    }
    const init = { method: 'HEAD' }
    const url = shop.chat('named')
    const before = await shop.paid()
    const response = await fetch(url, { ...init, headers: await signUpto(url, init) })
    expect([response.status, await response.text()]).toEqual([200, ''])
    expect(settlementOf(response)).toMatchObject({ success: true, amount: '1000' })
    expect(shop.upstream.requests.map(({ method }) => method)).toEqual(['HEAD'])
    expect(await shop.paid()).toBe(before + 1000n)
  })
})

describe('a buyer that leaves', () => {
  test('a buyer that leaves before the first byte pays by usage, and can fetch the answer once', async () => {
    const { upstream, buyer, credential } = await watched()
    await buyer.leave()
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await shop.settles()
    expect(delivery()).toEqual({ ...settled(costOf(7, 20)), delivery: 'none', attempts: 0 })
    shop.upstream.script = answering(event('{"n":9}'), 200, events)
    const before = await shop.paid()
    const again = await untilFree(() => shop.pay(credential))
    expect([again.status, await again.text()]).toEqual([200, event(usage(7, 20))])
    await until('it is recorded', () => shop.payment().delivery === 'delivered')
    expect((await shop.pay(credential)).status).toBe(402)
    expect(await shop.paid()).toBe(before)
  })

  for (const [slug, whenBroken] of [
    ['model', undefined],
    // What it used so far is more than base.
    ['patient', costOf(7, 20)],
  ] as const)
    test(`when a buyer leaves in the middle (${slug}) the rest is read; a stream that breaks off then costs missing, or what it used so far`, async () => {
      for (const isCut of [false, true]) {
        const { upstream, buyer, credential } = await watched(slug)
        upstream.head(200, events)
        upstream.chunk(event(usage(7, 20)))
        await until('it has a chunk', () => buyer.got().includes(usage(7, 20)))
        await buyer.leave()
        for (let n = 0; n < 3; n++) upstream.chunk(event(usage(7, 20)))
        if (isCut) upstream.cut()
        else upstream.end()
        await shop.settles()
        const cost = isCut ? (whenBroken ?? ceiling()) : costOf(7, 20)
        expect(delivery()).toEqual(settled(cost, 1))
        await untilEnded(shop)
        expect((await untilFree(() => shop.pay(credential, { slug }))).status).toBe(402)
      }
    })

  test('a buyer that leaves at the end of a stream pays by usage', async () => {
    const { upstream, buyer } = await watched()
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    await until('it has all', () => buyer.got().includes(usage(7, 20)))
    await buyer.leave()
    upstream.end()
    await shop.settles()
    expect(delivery()).toEqual(settled(costOf(7, 20), 1))
  })

  test('an upstream that sends nothing for idle_ms after the buyer left costs missing', async () => {
    const { upstream, buyer } = await watched('quick')
    upstream.head(200, events)
    upstream.chunk(event(usage(7, 20)))
    await until('it has a chunk', () => buyer.got().includes(usage(7, 20)))
    await buyer.leave()
    await upstream.left
    await shop.settles()
    expect(delivery()).toEqual(settled(ceiling(), 1))
  })
})

describe('a buyer that hardly reads', () => {
  const large = event(`{"text":"${'x'.repeat(1_000_000)}"}`)

  test('attack: a stream that stood still and was given up for others is charged', async () => {
    const before = await shop.paid()
    const stalled: Awaited<ReturnType<typeof watched>>[] = []
    for (let n = 0; n < 3; n++) {
      const one = await watched()
      stalled.push(one)
      one.buyer.stall()
      one.upstream.head(200, events)
      for (let count = 0; count < 16; count++) one.upstream.chunk(large)
    }
    const [first] = stalled
    const [row] = shop.rows('SELECT * FROM authorizations ORDER BY rowid DESC LIMIT 1 OFFSET 2')
    await first?.upstream.left
    first?.buyer.readOn()
    const charged = () => shop.events('charge').find(({ payment }) => payment === row?.id)
    await until('it is charged', () => charged() !== undefined)
    expect(charged()).toMatchObject({ amountAtomic: row?.ceiling_atomic, outcome: 'truncated' })
    for (const { upstream, buyer } of stalled) {
      await buyer.leave()
      upstream.cut()
    }
    const open = "SELECT id FROM authorizations WHERE state IN ('authorized', 'metered')"
    await until('all are charged', () => shop.rows(open).length === 0)
    await until('it is settled', async () => (await shop.paid()) > before)
  })

  test('attack: a stream below the minimum rate is cut and charged', async () => {
    // One period of the rate: no other test takes as long without reading.
    const { upstream, buyer } = await watched()
    buyer.stall()
    upstream.head(200, events)
    for (let count = 0; count < 16; count++) upstream.chunk(large)
    upstream.chunk(event(usage(7, 20)))
    upstream.end()
    await shop.settles()
    expect(delivery()).toEqual(settled(costOf(7, 20), 1))
    await buyer.leave()
  })
})

describe('the end of the authorization', () => {
  test('a stream is cut half a minute before its authorization ends, and charged', async () => {
    const { upstream, read } = await opened({ slug: 'brief', deadline: inSeconds(33) })
    const writing = setInterval(() => upstream.chunk(event('{"n":2}')), 50)
    await until('it is cut', async () => (await read()) === 'broken')
    clearInterval(writing)
    await upstream.left
    await shop.settles()
    expect(delivery()).toEqual(settled(ceiling(), 1))
    expect(Number(shop.authorization().valid_before)).toBeGreaterThan(Date.now() / 1000 + 20)
  })
})

describe('a reload while a stream runs', () => {
  test('a stream continues after its route was removed, and is charged as quoted', async () => {
    const { upstream, read } = await opened()
    const gone = shop.edited((text) => text.replace('slug = "model"', 'slug = "other"'))
    expect(await shop.app.reload(gone)).toEqual([])
    try {
      expect((await fetch(shop.chat(), { method: 'POST' })).status).toBe(404)
      upstream.chunk(event(usage(7, 20)))
      upstream.end()
      await until('it has ended', async () => (await read()) === '')
      await shop.settles()
      expect(delivery()).toEqual(settled(costOf(7, 20)))
    } finally {
      expect(await shop.app.reload(shop.config)).toEqual([])
    }
  })

  test('a stream whose meter becomes dearer is charged by the quote of its request', async () => {
    const { upstream, read } = await opened()
    const dearer = shop.edited((text) => text.replaceAll('price = "10"', 'price = "40"'))
    expect(await shop.app.reload(dearer)).toEqual([])
    try {
      upstream.chunk(event(usage(7, 20)))
      upstream.end()
      await until('it has ended', async () => (await read()) === '')
      await shop.settles()
      expect(delivery()).toEqual(settled(costOf(7, 20)))
    } finally {
      expect(await shop.app.reload(shop.config)).toEqual([])
    }
  })
})

describe('an answer that is too long to be held', () => {
  test('an answer that is too long to be held passes as a stream and is settled at its end', async () => {
    const text = `{"text":"${'x'.repeat(17 * 1024 * 1024)}",${usage(7, 20).slice(1)}`
    shop.upstream.script = answering(text)
    const response = await shop.buy()
    expect(response.headers.has('payment-response')).toBe(false)
    expect(response.headers.has('payment-id')).toBe(true)
    expect((await response.text()).length).toBe(text.length)
    await shop.settles()
    expect(delivery()).toEqual(settled(costOf(7, 20)))
  })
})

test('error: a stream with a key that cannot be stored is settled, and logged as a settlement fault', async () => {
  const database = sqlBeside(shop.dataDir)
  const repair = failWrites(database, 'INSERT', 'answers')
  const { upstream, response, read } = await opened({}, { 'idempotency-key': 'disk-full' })
  upstream.chunk(event(usage(7, 20)))
  expect(await read()).toBe(event(usage(7, 20)))
  upstream.end()
  expect(await read()).toBe('')
  await until('the fault is logged', () => shop.events('settlement-fault').length > 0)
  repair()
  database.close()
  expect(delivery()).toEqual(settled(costOf(7, 20)))
  expect(shop.events('settlement-fault')).toEqual([
    expect.objectContaining({ payment: response.headers.get('payment-id') }),
  ])
  expect(shop.events('answer-not-kept')).toEqual([])
})

test('attack: a stream that its buyer lets end early costs the output that it had, and is not stored for its key', async () => {
  const key = { 'idempotency-key': 'cut-once' }
  const slug = 'early'
  const said = '{"messages":[{"content":"twelve bytes"}],"max_tokens":1000}'
  const credential = await shop.sign({ slug, deadline: inSeconds(33), body: said })
  const replied = shop.nextReply()
  const bought = shop.pay(credential, { slug, headers: key, body: said })
  const upstream = await replied
  upstream.head(200, events)
  const writing = setInterval(
    () => upstream.chunk(event('{"choices":[{"delta":{"content":"eight by"}}]}')),
    50,
  )
  const read = readerOf(await bought)
  let got = ''
  let part = ''
  await until('it is cut', async () => {
    got += part
    part = await read()
    return part === 'broken'
  })
  clearInterval(writing)
  await shop.settles()
  const tokens = 2 * (got.split('eight by').length - 1)
  expect(tokens).toBeGreaterThan(10)
  // The input is three tokens. The last event may be read and not be passed on.
  expect(Number(shop.payment().amount_atomic) - costOf(3, tokens)).toBeOneOf([0, 20])
  const again = await shop.pay(await shop.sign({ slug, body: said }), {
    slug,
    headers: key,
    body: said,
  })
  expect([again.status, await again.text()]).toEqual([409, expect.stringContaining('no longer')])
})
