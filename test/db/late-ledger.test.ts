import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { answerOf, type Made, startLatePaywall } from '../harness/late-paywall'
import { type Shop, startShop } from '../harness/shop'
import { until } from '../harness/world'

// A ledger that answers late: other requests in the meantime must not cost any buyer money or an
// answer.

let shop: Shop
let late: Awaited<ReturnType<typeof startLatePaywall>>
beforeAll(async () => {
  shop = await startShop()
  late = await startLatePaywall(shop)
})
afterAll(() => shop.stop())
beforeEach(() => {
  late.forwards = 0
  late.upstream = () => answerOf('goods')
})

let serial = 0
const newKey = () => ({ 'idempotency-key': `late-${++serial}` })
const statuses = (answers: readonly { status: number }[]) =>
  answers.map(({ status }) => status).toSorted()
const paymentsOf = (key: Record<string, string>) =>
  shop.rows(`SELECT * FROM payments WHERE idempotency_key = '${key['idempotency-key']}'`)
const newest = () => shop.rows('SELECT * FROM payments ORDER BY id DESC LIMIT 1')[0]
/** Waits until this paywall has only so many requests in progress. */
const untilOnly = (count: number) =>
  until(`only ${count} are under way`, () => late.paywall.inFlight() === count)

test('of many requests with one credential one is answered', async () => {
  const credential = await late.sign()
  const answers = await Promise.all(Array.from({ length: 8 }, () => late.buy(credential)))
  expect(statuses(answers)).toEqual([200, ...Array(7).fill(409)])
  expect(late.forwards).toBe(1)
  await untilOnly(0)
  expect((await late.buy(credential)).code).toBe('invalid-challenge')
  expect(late.forwards).toBe(1)
})

test('of two credentials with one key one pays, and then the key brings its answer', async () => {
  const key = newKey()
  const credentials = await Promise.all([late.sign(), late.sign()])
  const answers = await Promise.all(credentials.map((each) => late.buy({ ...each, ...key })))
  expect(statuses(answers)).toEqual([200, 409])
  await untilOnly(0)
  for (const credential of credentials) {
    const again = await late.buy({ ...credential, ...key })
    expect(again).toEqual({ status: 200, text: 'goods', isReplay: true })
  }
  expect(paymentsOf(key)).toHaveLength(1)
  expect(late.forwards).toBe(1)
})

test('an answer that is stored while a repeat looks for it is replayed', async () => {
  const key = newKey()
  const upstream = Promise.withResolvers<Made>()
  late.upstream = () => upstream.promise
  const first = late.buy({ ...(await late.sign()), ...key })
  await until('it is forwarded', () => late.forwards === 1)
  const search = late.hold('answers.find')
  const repeat = late.buy({ ...(await late.sign()), ...key })
  await search.arrives
  upstream.resolve(answerOf('goods'))
  expect((await first).status).toBe(200)
  await untilOnly(1)
  search.open()
  expect(await repeat).toEqual({ status: 200, text: 'goods', isReplay: true })
  expect(late.forwards).toBe(1)
  expect(paymentsOf(key)).toHaveLength(1)
})

test('a credential is spent whose token was given out while its payment was read', async () => {
  const credential = await late.sign()
  late.upstream = () => ({
    delivered: false,
    upstreamStatus: 500,
    code: 'upstream-failed',
    detail: 'It failed.',
  })
  const mark = late.hold('markAnswered')
  expect((await late.buy(credential)).status).toBe(502)
  await mark.arrives
  const read = late.hold('find')
  const again = late.buy(credential)
  await read.arrives
  mark.open()
  await until('the answer is marked', () => newest()?.answered === 1)
  // Whatever follows the commit has run.
  await new Promise((resolve) => setImmediate(resolve))
  read.open()
  expect(await again).toMatchObject({ status: 402, code: 'invalid-challenge' })
  expect(late.forwards).toBe(1)
})

test('a buyer that leaves while its answer is stored has had it, once', async () => {
  const key = newKey()
  const credential = await late.sign()
  late.upstream = () => answerOf('goods', true)
  const before = late.passed('answers.store')
  const store = late.hold('answers.store')
  const reader = (await late.serve({ ...credential, ...key })).body?.getReader()
  expect((await reader?.read())?.value).toEqual(new TextEncoder().encode('goods'))
  await store.arrives
  await reader?.cancel()
  store.open()
  await untilOnly(0)
  expect(late.passed('answers.store')).toBe(before + 1)
  expect(paymentsOf(key)).toMatchObject([{ delivery: 'delivered', truncated: 0, attempts: 1 }])
  expect((await late.buy(credential)).code).toBe('invalid-challenge')
  expect(await late.buy({ ...credential, ...key })).toMatchObject({ status: 200, isReplay: true })
  expect(late.forwards).toBe(1)
})

test('a key whose answer another gateway delivers meanwhile brings it at the next request', async () => {
  const other = await startLatePaywall(shop, { isOther: true })
  const failed = { delivered: false, code: 'upstream-failed', detail: 'It failed.' } as const
  late.upstream = () => ({ ...failed, upstreamStatus: 500 })
  const key = newKey()
  const credential = { ...(await late.sign()), ...key }
  expect((await late.buy(credential)).status).toBe(502)
  await untilOnly(0)
  late.upstream = () => answerOf('goods')
  const search = other.hold('answers.find')
  const asked = other.buy(credential)
  await search.arrives
  expect((await late.buy(credential)).text).toBe('goods')
  await untilOnly(0)
  search.open()
  // Clients take `redeem-exhausted` for the end of a payment, and stop asking.
  expect(await asked).toMatchObject({ status: 409, code: 'payment-in-progress' })
  expect(await other.buy(credential)).toEqual({ status: 200, text: 'goods', isReplay: true })
  expect([late.forwards, other.forwards]).toEqual([2, 0])
})
