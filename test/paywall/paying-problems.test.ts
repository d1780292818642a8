import { afterAll, beforeAll, expect, test } from 'bun:test'
import { Glob } from 'bun'
import { settlementOf } from '../harness/buyer'
import { type Shop, sign, startShop, type Terms } from '../harness/shop'
import type { Reply } from '../harness/upstream'

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      service: { ...config.service, paidPerMinute: 12, bufferedMaxBytes: 64 * 1024 },
    }),
  })
})
afterAll(() => shop.stop())

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }

test('error: request bodies above the common limit are 503 before payment', async () => {
  const post = (letter: string) => ({ method: 'POST', body: letter.repeat(40 * 1024) })
  const [first, second] = await Promise.all([
    sign(item(), { ...x402, init: post('a') }),
    sign(item(), { ...x402, init: post('b') }),
  ])
  const replied = new Promise<Reply>((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })
  const bought = fetch(item(), { ...post('a'), headers: first })
  const reply = await replied
  const counts = shop.counts()
  const refused = await fetch(item(), { ...post('b'), headers: second })
  expect(refused.status).toBe(503)
  expect(refused.headers.get('retry-after')).toBe('1')
  expect(await refused.json()).toMatchObject({ code: 'not-ready' })
  expect(settlementOf(refused)).toMatchObject({ success: false, transaction: '' })
  expect(shop.counts()).toEqual(counts)
  reply.send(200, '{}')
  expect((await bought).status).toBe(200)
  shop.upstream.script = undefined
  // The bytes return to the budget with the answer.
  expect((await fetch(item(), { ...post('b'), headers: second })).status).toBe(200)
})

test('error: too many paid requests of one address are 429, its unpaid ones are not', async () => {
  const credential = await sign(item(), x402)
  const counts = shop.counts()
  let limited: Response | undefined
  await shop.still(async () => {
    for (let count = 0; count < 13 && limited === undefined; count++) {
      const response = await fetch(item(), { headers: { authorization: 'Payment x' } })
      if (response.status !== 402) limited = response
    }
    const refused = await fetch(item(), { headers: credential })
    expect(refused.status).toBe(429)
    expect(settlementOf(refused)).toMatchObject({ success: false, errorReason: 'rate-limited' })
    expect((await fetch(item())).status).toBe(402)
  })
  expect(limited?.status).toBe(429)
  expect(Number(limited?.headers.get('retry-after'))).toBeGreaterThan(0)
  expect(limited?.headers.get('ratelimit-remaining')).toBe('0')
  expect(await limited?.json()).toMatchObject({ code: 'rate-limited' })
  expect(shop.counts()).toEqual(counts)
  shop.advance(60_000)
  expect((await fetch(item(), { headers: credential })).status).toBe(200)
})

test('every problem type that a client can receive is expected by a test', async () => {
  const source = await Bun.file(`${import.meta.dir}/../../src/protocol/Problem.ts`).text()
  const codes = [...source.matchAll(/^ {2}'([a-z-]+)': \{ status/gm)].map(([, code = '']) => code)
  expect(codes.length).toBeGreaterThan(25)
  let tests = ''
  for await (const path of new Glob('**/*.test.ts').scan(`${import.meta.dir}/..`))
    if (!import.meta.path.endsWith(path))
      tests += await Bun.file(`${import.meta.dir}/../${path}`).text()
  tests += "'rate-limited' 'not-ready'"
  const missing = codes.filter((code) => !tests.includes(`'${code}'`))
  expect(missing).toEqual([])
})
