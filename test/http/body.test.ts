import { describe, expect, test } from 'bun:test'
import { createBudget, createReaders, readBody } from '../../src/http/body'
import type { ProblemError } from '../../src/protocol/Problem'
import { until } from '../harness/world'

type Given = { client?: string; isPaid?: boolean; isSlow?: boolean }

/** Enters bodies one after the other. `entered` says which got a place, `givenUp` which lost it. */
function bodies(max: number) {
  const readers = createReaders(max)
  const givenUp: string[] = []
  const enter = (name: string, { client, isPaid = false, isSlow = false }: Given = {}) =>
    readers.enter({
      client,
      isPaid,
      isSlow: () => isSlow,
      giveUp: () => void givenUp.push(name),
    })
  return { enter, givenUp }
}

describe('places for bodies that are read in pieces', () => {
  test('attack: bodies without a credential take half of the places, one client a few', () => {
    const { enter } = bodies(64)
    const own = Array.from({ length: 18 }, (_, i) => enter(`${i}`, { client: 'a' }))
    expect(own.filter((leave) => leave !== undefined).length).toBe(16)
    const others = Array.from({ length: 40 }, (_, i) => enter(`${i}`, { client: `c${i}` }))
    expect(others.filter((leave) => leave !== undefined).length).toBe(16)
    expect(enter('paid', { client: 'a', isPaid: true })).toBeDefined()
    own[0]?.()
    expect(enter('next', { client: 'a' })).toBeDefined()
    expect(enter('one more', { client: 'b' })).toBeUndefined()
  })

  test('attack: with all places taken the oldest slow body is given up, and never a fast one', () => {
    const { enter, givenUp } = bodies(8)
    enter('in time')
    const slow = enter('slow', { isSlow: true })
    enter('slow, too', { isSlow: true })
    enter('last')
    expect(givenUp).toEqual([])
    expect(enter('next')).toBeDefined()
    expect(givenUp).toEqual(['slow'])
    // Its read ends later; the place is taken by then.
    slow?.()
    expect(enter('after')).toBeDefined()
    expect(enter('none')).toBeUndefined()
    expect(givenUp).toEqual(['slow', 'slow, too'])
  })

  test('attack: a paid body takes the place of a slow one, of an unpaid one first', () => {
    const { enter, givenUp } = bodies(4)
    enter('paid', { isPaid: true, isSlow: true })
    enter('unpaid', { isSlow: true })
    enter('paid, too', { isPaid: true })
    enter('third', { isPaid: true })
    expect(enter('next', { isPaid: true })).toBeDefined()
    expect(enter('another', { isPaid: true })).toBeDefined()
    expect(givenUp).toEqual(['unpaid', 'paid'])
    expect(enter('none', { isPaid: true })).toBeUndefined()
  })
})

describe('idle uploads', () => {
  const never = () =>
    new Request('http://localhost/', {
      method: 'POST',
      body: new ReadableStream<Uint8Array>({ pull: () => new Promise(() => {}) }),
    })
  const status = (promise: Promise<unknown>) =>
    promise.then(
      () => 200,
      (error: ProblemError) => error.status,
    )

  test('attack: a body that never comes makes room for one that does', async () => {
    // 16 places, 8 of them for bodies without a credential.
    const budget = createBudget(1_000)
    const options = { graceMs: 1, rateCheckMs: 60_000 }
    const idle = Array.from({ length: 8 }, (_, i) =>
      status(readBody(never(), 100, budget, { ...options, client: `c${i}` })),
    )
    const hello = () => {
      const request = new Request('http://localhost/', { method: 'POST', body: 'hello' })
      return status(readBody(request, 100, budget, options))
    }
    await until('they are too slow', async () => (await hello()) === 200)
    expect(await Promise.race(idle)).toBe(408)
  })

  test('attack: a client that has its places is refused before its body is looked at', async () => {
    const budget = createBudget(64 * 2 ** 20)
    const own = { client: 'a', rateCheckMs: 60_000 }
    for (let body = 0; body < 16; body++) void status(readBody(never(), 100, budget, own))
    const request = never()
    expect(await status(readBody(request, 100, budget, own))).toBe(503)
    expect(request.bodyUsed).toBe(false)
    expect(
      await status(readBody(never(), 100, budget, { ...own, client: 'b', rateCheckMs: 1 })),
    ).toBe(408)
  })
})
