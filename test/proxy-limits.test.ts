import { describe, expect, test } from 'bun:test'
import { createBudget, readBody } from '../src/http/body'
import type { ProblemError } from '../src/protocol/Problem'
import { createBreaker } from '../src/proxy/breaker'
import { originOf, serveBuiltin } from '../src/proxy/builtin/serve'
import { merchant, route } from './harness/merchants'

describe('breaker', () => {
  const policy = { threshold: 3, coolDownMs: 1_000, coolDownMaxMs: 3_000 }
  const failing = (breaker: ReturnType<typeof createBreaker>, ...times: number[]) => {
    for (const now of times) breaker.failure('https://a', now)
  }

  test('behavior: opens after failures in a row, for that origin only', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 1)
    breaker.success('https://a')
    failing(breaker, 2, 3)
    expect(breaker.isOpen('https://a', 3)).toBe(false)
    failing(breaker, 4)
    expect(breaker.isOpen('https://a', 4)).toBe(true)
    expect(breaker.retryAfterMs('https://a', 5)).toBe(999)
    expect(breaker.isOpen('https://b', 4)).toBe(false)
  })

  test('behavior: half open after the cool-down: one success closes, one failure opens for longer', () => {
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
    breaker.success('https://a')
    expect(breaker.isOpen('https://a', 3_000)).toBe(false)
    failing(breaker, 3_001, 3_002)
    expect(breaker.isOpen('https://a', 3_002)).toBe(false)
  })

  test('behavior: late failures of requests from before do not keep it open', () => {
    const breaker = createBreaker(policy)
    failing(breaker, 0, 0, 0, 500, 600, 999)
    expect(breaker.isOpen('https://a', 1_000)).toBe(false)
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

  test('behavior: the body is read whole and its bytes are held until release', async () => {
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

  test('behavior: no body is no bytes', async () => {
    const body = await readBody(new Request('http://localhost/'), 0, createBudget(0))
    expect(body.bytes.byteLength).toBe(0)
    body.release()
  })

  test('error: one byte too many is 413, however it is sent, and nothing stays held', async () => {
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

  test('error: what does not fit into the budget of all requests is 503 with Retry-After', async () => {
    const budget = createBudget(10)
    const first = await readBody(post(stream(6)), 7, budget)
    const error = await readBody(post(stream(2, 3)), 7, budget).catch(
      (caught: ProblemError) => caught,
    )
    expect(error).toMatchObject({ status: 503, headers: { 'retry-after': '1' } })
    expect(budget.usedBytes()).toBe(6)
    first.release()
    const second = await readBody(post(stream(2, 3)), 7, budget)
    expect(second.bytes.byteLength).toBe(5)
  })

  test('error: a client that stops early is 400 and holds nothing', async () => {
    const budget = createBudget(10)
    expect(await refusal(readBody(post(stream(5, -1)), 7, budget))).toBe(400)
    expect(budget.usedBytes()).toBe(0)
  })
})

describe('merchants of our own', () => {
  const joke = async (search: string, now = 0) => {
    const match = { merchant: merchant('x', { builtin: 'catjoke' }), route: route('/'), tail: '' }
    const answer = await serveBuiltin({ now: () => now }, { match, search }, new Uint8Array())
    if (!answer.delivered || !(answer.body instanceof Uint8Array)) throw new Error('no joke')
    const { status, headers, body } = answer
    expect([status, headers.get('content-type')]).toEqual([200, 'application/json'])
    expect(headers.get('cache-control')).toBe('private, no-store')
    return JSON.parse(new TextDecoder().decode(body)) as { id: number; joke: string; total: number }
  }

  test('behavior: a joke by number, or another one every millisecond until all were told', async () => {
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
    const served = serveBuiltin({ now: () => 0 }, { match, search: '' }, new Uint8Array())
    await expect(served).rejects.toThrow('not configured')
  })
})
