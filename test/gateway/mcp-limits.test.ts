import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { connect } from '../harness/raw'
import { type Shop, sign, startShop } from '../harness/shop'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text.replace('trust_proxy = 0', 'trust_proxy = 1') })
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const accept = 'application/json, text/event-stream'
const post = (body: string, from: string) =>
  fetch(`${shop.url}/mcp`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept, 'x-forwarded-for': from },
    body,
  })
const message = (params: unknown) =>
  JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params })

describe('a message', () => {
  test('error: a message with more than 4,096 members is refused before it is parsed', async () => {
    const few = Object.fromEntries(Array.from({ length: 4000 }, (_, at) => [`a${at}`, 1]))
    const many = Object.fromEntries(Array.from({ length: 5000 }, (_, at) => [`a${at}`, 1]))
    const lists = Array.from({ length: 500 }, () => [1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    const nests = Array.from({ length: 2500 }, () => [{}])
    for (const [body, status] of [
      [{ name: 'shop-item', arguments: { body: few } }, 200],
      [{ name: 'shop-item', arguments: { body: ',:[{'.repeat(20_000) } }, 200],
      [{ name: 'shop-item', arguments: { body: many } }, 400],
      [{ name: 'shop-item', arguments: { body: lists } }, 400],
      [{ name: 'shop-item', arguments: { body: nests } }, 400],
    ] as const) {
      const response = await post(message(body), '192.0.2.1')
      expect(response.status).toBe(status)
      if (status === 400)
        expect(await response.json()).toMatchObject({
          error: { code: -32700, message: 'Parse error: more than 4096 members.' },
        })
    }
  })

  test('error: a message above 256 KiB is 413', async () => {
    const body = message({ name: 'shop-item', arguments: { body: 'x'.repeat(256 * 1024) } })
    const response = await post(body, '192.0.2.2')
    expect(response.status).toBe(413)
    expect(await response.json()).toMatchObject({ error: { code: -32000 } })
  })

  test('error: more than 16 MiB of one address in a minute are 429, and those of another address are not', async () => {
    const size = 255 * 1024
    const long = message({ name: 'shop-item', arguments: { body: 'x'.repeat(size - 200) } })
    await shop.still(async () => {
      const answers: number[] = []
      for (let count = 0; count < 70; count++) answers.push((await post(long, '192.0.2.3')).status)
      expect(answers.slice(0, 60)).toEqual(Array(60).fill(200))
      expect(answers.at(-1)).toBe(429)
      const refused = await post(long, '192.0.2.3')
      expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
    })
    expect((await post(long, '192.0.2.4')).status).toBe(200)
    // Short messages count by their bytes.
    const short = message({ name: 'shop-item' })
    for (let count = 0; count < 100; count++)
      expect((await post(short, '192.0.2.5')).status).toBe(200)
  })
})

describe('answers that wait for their clients', () => {
  const item = () => `${shop.url}/m/shop/item`
  const paid = async () => {
    const { authorization } = await sign(item())
    const text = Buffer.from(authorization?.slice('Payment '.length) ?? '', 'base64url').toString()
    const _meta = { 'org.paymentauth/credential': JSON.parse(text) }
    return message({ name: 'shop-item', arguments: {}, _meta })
  }
  const states = () =>
    shop.rows('SELECT delivery, count(*) AS n FROM payments GROUP BY 1 ORDER BY 1')

  test('attack: one batch returns 8 MiB of stored answers, and the others later', async () => {
    const long = 'x'.repeat(1000 * 1000)
    shop.upstream.script = (_, reply) => reply.send(200, long, { 'content-type': 'text/plain' })
    const one = JSON.parse(await paid())
    one.params._meta['turnpike/idempotency-key'] = 'a-key-for-a-batch'
    type Answer = { result: { isError?: boolean; structuredContent?: { code: string } } }
    const first = (await (await post(JSON.stringify(one), '192.0.2.7')).json()) as Answer
    expect(first.result.isError).toBeUndefined()
    const batch = Array.from({ length: 12 }, (_, id) => ({ ...one, id }))
    let codes: unknown[] = []
    await until('the first is recorded', async () => {
      const response = await post(JSON.stringify(batch), '192.0.2.7')
      const answers = (await response.json()) as Answer[]
      codes = answers.map(({ result }) => result.structuredContent?.code)
      return !codes.includes('payment-in-progress')
    })
    const served = codes.filter((code) => code === undefined)
    expect(served.length).toBeGreaterThan(3)
    expect(served.length).toBeLessThanOrEqual(8)
    expect(new Set(codes)).toEqual(new Set([undefined, 'not-ready']))
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('attack: of a batch of paid calls those beyond 8 MiB of answers are not charged', async () => {
    const long = '\n'.repeat(4 * 1024 * 1024)
    shop.upstream.script = (_, reply) => reply.send(200, long, { 'content-type': 'text/plain' })
    const calls = await Promise.all([paid(), paid(), paid()])
    const batch = calls.map((call, id) => ({ ...JSON.parse(call), id }))
    const before = shop.counts()
    const response = await post(JSON.stringify(batch), '192.0.2.8')
    type Answer = { id: number; result: { structuredContent?: { code: string } } }
    const answers = ((await response.json()) as Answer[]).toSorted((a, b) => a.id - b.id)
    const codes = answers.map(({ result }) => result.structuredContent?.code)
    expect(codes).toEqual([undefined, undefined, 'not-ready'])
    expect(shop.upstream.requests).toHaveLength(2)
    expect(shop.counts().payments).toBe((before.payments ?? 0) + 2)
    // The third payment can be used in the next message.
    shop.upstream.script = undefined
    const again = await post(calls[2] ?? '', '192.0.2.8')
    expect(await again.json()).toMatchObject({ result: { content: [{ text: '{"ok":true}' }] } })
  })

  test('attack: answers for clients that do not read take at most 32 MiB, and further calls are not charged', async () => {
    const long = '\n'.repeat(4 * 1024 * 1024)
    shop.upstream.script = (_, reply) => reply.send(200, long, { 'content-type': 'text/plain' })
    const idle = []
    for (let count = 0; count < 8; count++) {
      const body = await paid()
      const head = [
        'POST /mcp HTTP/1.1',
        'Host: localhost',
        'Content-Type: application/json',
        `Accept: ${accept}`,
        `Content-Length: ${Buffer.byteLength(body)}`,
      ]
      const socket = connect(shop.url, `${head.join('\r\n')}\r\n\r\n${body}`)
      socket.pause()
      idle.push(socket)
      await until('it is asked for', () => shop.upstream.requests.length === count + 1)
    }
    let body = ''
    let before = shop.counts()
    let refused = ''
    await until('there is no room', async () => {
      // The answers of the idle clients may still be on their way: then this call is sold.
      body = await paid()
      before = shop.counts()
      const response = await post(body, '192.0.2.6')
      refused = await response.text()
      return refused.includes('nothing is charged')
    })
    expect(JSON.parse(refused).result.structuredContent).toMatchObject({ code: 'not-ready' })
    expect(shop.counts()).toEqual(before)
    // None of them has been delivered; their clients can repeat the calls.
    expect(states()).toContainEqual({ delivery: 'delivering', n: 8 })
    for (const socket of idle) socket.destroy()
    // One whose last bytes the system still took counts as delivered.
    await until('their room is free', () =>
      states().every(({ delivery }) => delivery !== 'delivering'),
    )
    shop.upstream.script = undefined
    const bought = await post(body, '192.0.2.6')
    expect(await bought.json()).toMatchObject({ result: { content: [{ text: '{"ok":true}' }] } })
  })
})
