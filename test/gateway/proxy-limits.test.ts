import { describe, expect, test } from 'bun:test'
import { originOf, serveBuiltin } from '../../src/gateway/builtin/serve'
import { createBreaker } from '../../src/gateway/upstream/breaker'
import { createConcurrency } from '../../src/gateway/upstream/concurrency'
import { type Budget, createBudget, readBody } from '../../src/http/body'
import type { ProblemError } from '../../src/protocol/Problem'
import { merchant, route } from '../harness/merchants'
import { outcomeOf } from '../harness/outcome'

describe('breaker', () => {
  const policy = { threshold: 3, payersMin: 2, coolDownMs: 1_000, coolDownMaxMs: 3_000 }
  type Breaker = ReturnType<typeof createBreaker>
  const failing = (breaker: Breaker, ...times: number[]) => {
    for (const now of times) breaker.failure('https://a', { kind: 'connect', payer: '0xa' }, now)
  }
  const silent = (breaker: Breaker, payer: string, ...times: number[]) => {
    for (const now of times) breaker.failure('https://a', { kind: 'silence', payer }, now)
  }
  const answering = (breaker: Breaker, ...times: number[]) => {
    for (const now of times) breaker.success('https://a', now)
  }

  test('a breaker opens after failed connections in a row, for that origin only', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 1)
    answering(breaker, 1)
    failing(breaker, 2, 3)
    expect(breaker.isOpen('https://a', 3)).toBe(false)
    failing(breaker, 4)
    expect(breaker.isOpen('https://a', 4)).toBe(true)
    expect(breaker.retryAfterMs('https://a', 5)).toBe(999)
    expect(breaker.isOpen('https://b', 4)).toBe(false)
  })

  test('after the cool-down one success closes a breaker, and one failure opens it for longer', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 0, 0)
    expect([breaker.isOpen('https://a', 999), breaker.isOpen('https://a', 1_000)]).toEqual([
      true,
      false,
    ])
    failing(breaker, 1_000)
    expect([breaker.isOpen('https://a', 2_999), breaker.isOpen('https://a', 3_000)]).toEqual([
      true,
      false,
    ])
    failing(breaker, 3_000)
    expect(breaker.retryAfterMs('https://a', 3_000)).toBe(3_000)
    answering(breaker, 3_000)
    expect(breaker.isOpen('https://a', 3_000)).toBe(false)
    failing(breaker, 3_001, 3_002)
    expect(breaker.isOpen('https://a', 3_002)).toBe(false)
  })

  test('attack: one payer whose requests time out does not open a breaker, several payers do', () => {
    const breaker = createBreaker(policy)
    silent(breaker, '0xa', 0, 1, 2, 3, 4, 5)
    expect(breaker.isOpen('https://a', 5)).toBe(false)
    silent(breaker, '0xb', 6)
    expect(breaker.isOpen('https://a', 6)).toBe(true)
  })

  test('attack: several payers that fail less often than others are served do not open a breaker', () => {
    const breaker = createBreaker(policy)
    for (let now = 0; now < 1_000; now++) {
      answering(breaker, now, now)
      silent(breaker, `0x${now % 7}`, now)
    }
    expect(breaker.isOpen('https://a', 1_000)).toBe(false)
  })

  test('the last ten seconds count for a busy upstream, the last results for one with few requests', () => {
    const busy = createBreaker(policy)
    for (let now = 0; now < 100; now++) answering(busy, now)
    silent(busy, '0xa', 10_200, 10_201)
    silent(busy, '0xb', 10_202)
    expect(busy.isOpen('https://a', 10_202)).toBe(false)
    for (const payer of ['0xa', '0xb', '0xc', '0xd', '0xe', '0xf', '0xg'])
      silent(busy, payer, 10_203)
    expect(busy.isOpen('https://a', 10_203)).toBe(true)

    const quiet = createBreaker(policy)
    for (const [i, now] of [0, 30_000, 60_000].entries()) silent(quiet, `0x${i}`, now)
    expect(quiet.isOpen('https://a', 60_000)).toBe(true)
  })

  test('attack: one payer whose request times out does not open a half-open breaker again', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 0, 0)
    silent(breaker, '0xa', 1_000, 1_001)
    expect(breaker.isOpen('https://a', 1_001)).toBe(false)
    silent(breaker, '0xb', 1_002)
    expect(breaker.isOpen('https://a', 1_002)).toBe(true)
  })

  test('late failures of earlier requests do not keep a breaker open', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 0, 0, 500, 600, 999)
    expect(breaker.isOpen('https://a', 1_000)).toBe(false)
  })
})

describe('concurrency', () => {
  test('a merchant has its own limit of concurrent sales, and all merchants share one', () => {
    const concurrency = createConcurrency()
    const acquire = (slug: string) => concurrency.acquire({ slug, concurrencyMax: 2 }, 3)
    const refusal = 'Too many requests for this merchant are in progress'
    const first = acquire('a')
    acquire('a')
    expect(() => acquire('a')).toThrow(refusal)
    acquire('b')
    expect(() => acquire('b')).toThrow(refusal)
    first()
    first()
    expect(concurrency.used()).toBe(2)
    acquire('b')
    expect(() => acquire('a')).toThrow(refusal)
  })
})

describe('shares of the budget', () => {
  const open = (budget: Budget, client: string, isPaid = false) => budget.open({ client, isPaid })

  test('attack: bodies without a credential fill their own share only', () => {
    const budget = createBudget(1_600)
    const held = Array.from({ length: 8 }, (_, i) => open(budget, `c${i}`))
    expect(held.map((share) => share.acquire(100))).toEqual([
      ...Array<boolean>(4).fill(true),
      ...Array<boolean>(4).fill(false),
    ])
    expect(open(budget, 'c9', true).acquire(400)).toBe(true)
    held[0]?.release()
    held[0]?.release()
    expect(budget.usedBytes()).toBe(700)
    expect(open(budget, 'c9').acquire(100)).toBe(true)
  })

  test('attack: one client fills its own share only, with or without credentials', () => {
    const budget = createBudget(1_600)
    for (const [isPaid, part] of [
      [false, 100],
      [true, 400],
    ] as const) {
      expect(open(budget, 'a', isPaid).acquire(part)).toBe(true)
      expect(open(budget, 'a', isPaid).acquire(1)).toBe(false)
      expect(open(budget, 'b', isPaid).acquire(part)).toBe(true)
    }
  })

  test('a single body may be larger than a share, but not than all', () => {
    const budget = createBudget(1_600)
    const only = open(budget, 'a')
    expect([only.acquire(1_000), only.acquire(500), only.acquire(101)]).toEqual([true, true, false])
    expect(open(budget, 'b').acquire(1)).toBe(false)
    only.release()
    expect(budget.usedBytes()).toBe(0)
  })
})

describe('readBody', () => {
  const post = (body: string | ReadableStream<Uint8Array>, headers: Record<string, string> = {}) =>
    new Request('http://localhost/', { method: 'POST', body, headers })
  const stream = (...sizes: number[]) =>
    new ReadableStream<Uint8Array>({
      pull(controller) {
        const size = sizes.shift()
        if (size === undefined) controller.close()
        else if (size < 0) controller.error(new Error('gone'))
        else controller.enqueue(new Uint8Array(size).fill(size))
      },
    })
  const refusal = (promise: Promise<unknown>) =>
    promise.catch((error: ProblemError) => error.status)

  test('the body is read whole and its bytes count until release', async () => {
    const budget = createBudget(100)
    const body = await readBody(post(stream(3, 4)), 7, budget)
    expect([...body.bytes]).toEqual([3, 3, 3, 4, 4, 4, 4])
    const other = await readBody(post(stream(5)), 7, budget)
    expect(budget.usedBytes()).toBe(12)
    body.release()
    body.release()
    expect(budget.usedBytes()).toBe(5)
    other.release()
    expect(budget.usedBytes()).toBe(0)
  })

  test('no body is no bytes', async () => {
    const body = await readBody(new Request('http://localhost/'), 0, createBudget(0))
    expect(body.bytes.byteLength).toBe(0)
    body.release()
  })

  test('error: one byte too many is 413, streamed or whole, and no byte stays counted', async () => {
    const budget = createBudget(100)
    expect(await refusal(readBody(post(stream(3, 4, 1)), 7, budget))).toBe(413)
    expect(await refusal(readBody(post('12345678'), 7, budget))).toBe(413)
    expect(budget.usedBytes()).toBe(0)
  })

  test('error: an announced size over the cap is refused before anything is read', async () => {
    let pulls = 0
    const body = new ReadableStream({ pull: () => void pulls++ }, { highWaterMark: 0 })
    const request = post(body, { 'content-length': '8' })
    expect(await refusal(readBody(request, 7, createBudget(100)))).toBe(413)
    expect(pulls).toBe(0)
  })

  test('error: a body that does not fit into the budget of all requests is 503 with Retry-After', async () => {
    const budget = createBudget(10)
    const owner = { isPaid: true }
    const first = await readBody(post(stream(6)), 7, budget, owner)
    const error = await readBody(post(stream(2, 3)), 7, budget, owner).catch(
      (caught: ProblemError) => caught,
    )
    expect(error).toMatchObject({ status: 503, headers: { 'retry-after': '1' } })
    expect(budget.usedBytes()).toBe(6)
    first.release()
    const second = await readBody(post(stream(2, 3)), 7, budget, owner)
    expect(second.bytes.byteLength).toBe(5)
  })

  test('attack: bytes that are announced and not sent take nothing of the budget', async () => {
    const budget = createBudget(1_000_000)
    const never = () => new ReadableStream<Uint8Array>({ pull: () => new Promise(() => {}) })
    const idle = [16, 100_000, 900_000].map((bytes) =>
      refusal(
        readBody(post(never(), { 'content-length': `${bytes}` }), 1_000_000, budget, {
          rateCheckMs: 50,
        }),
      ),
    )
    expect(budget.usedBytes()).toBe(0)
    expect(await Promise.all(idle)).toEqual([408, 408, 408])
  })

  test('attack: pieces of one byte are refused', async () => {
    const budget = createBudget(1_000_000)
    const ones = (count: number) => post(stream(...Array<number>(count).fill(1)))
    expect((await readBody(ones(256), 1_000_000, budget)).bytes.byteLength).toBe(256)
    expect(await refusal(readBody(ones(300), 1_000_000, budget))).toBe(400)
    const fair = post(stream(...Array<number>(300).fill(64)))
    expect((await readBody(fair, 1_000_000, budget)).bytes.byteLength).toBe(19_200)
  })

  test('pieces of all sizes are one body', async () => {
    const sizes = [1, 70_000, 3, 65_535, 2, 65_536, 200_000, 5]
    const { bytes } = await readBody(post(stream(...sizes)), 1_000_000, createBudget(4_000_000))
    const expected = sizes.map((size) => new Uint8Array(size).fill(size))
    expect(Buffer.concat(expected).equals(bytes)).toBe(true)
  })

  test('error: a client that stops early is 400, and no byte stays counted', async () => {
    const budget = createBudget(10)
    expect(await refusal(readBody(post(stream(5, -1)), 7, budget))).toBe(400)
    expect(budget.usedBytes()).toBe(0)
  })
})

describe('merchants of our own', () => {
  const joke = async (search: string, now = 0) => {
    const match = { merchant: merchant('x', { builtin: 'catjoke' }), route: route('/'), tail: '' }
    const answer = await serveBuiltin({ now: () => now }, { match, search, body: new Uint8Array() })
    if (!answer.delivered || !(answer.body instanceof Uint8Array)) throw new Error('no joke')
    const { status, headers, body } = answer
    expect([status, headers.get('content-type')]).toEqual([200, 'application/json'])
    expect(headers.get('cache-control')).toBe('private, no-store')
    return JSON.parse(new TextDecoder().decode(body)) as { id: number; joke: string; total: number }
  }

  test('a joke by number, or another one every millisecond until all were used', async () => {
    const { total } = await joke('')
    expect(total).toBe(40)
    const all = await Promise.all(Array.from({ length: total }, (_, now) => joke('?x=y', now)))
    const told = new Set(all.map((each) => each.joke))
    expect(told.size).toBe(total)
    expect((await joke('?id=7')).id).toBe(7)
    expect((await joke('?id=7', 1)).joke).toBe((await joke('?id=7', 2)).joke)
    for (const id of ['0', '41', 'x', '1.5', '-1', ''])
      expect((await joke(`?id=${id}`, 1)).id).toBe(18)
  })

  test('error: without [stock] chain-stocks cannot be served, and nothing may be charged', async () => {
    expect(originOf('chain-stocks', {})).toBeUndefined()
    const stocks = merchant('x', { builtin: 'chain-stocks' })
    const match = { merchant: stocks, route: route('/quote'), tail: '' }
    const served = serveBuiltin({ now: () => 0 }, { match, search: '', body: new Uint8Array() })
    expect(await outcomeOf(served)).toThrow('not configured')
  })
})
