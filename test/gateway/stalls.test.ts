import { expect, spyOn, test } from 'bun:test'
import * as Route from '../../src/gateway/Route'
import { createStalls } from '../../src/gateway/upstream/stalls'
import { createUpstream, forward } from '../../src/gateway/upstream/upstream'
import { merchant, route } from '../harness/merchants'
import { outcomeOf } from '../harness/outcome'
import { until } from '../harness/world'

/** The names of the answers that were given up, and an answer for each name. */
function watched(names: readonly string[], max: number, graceMs: number) {
  const shed: string[] = []
  const stalls = createStalls({ max, graceMs })
  return { shed, answers: names.map((name) => stalls.watch(() => shed.push(name))) }
}

test('attack: of answers that are not read those that wait longest are cut', async () => {
  const { shed, answers } = watched(['first', 'second', 'third', 'fourth'], 2, 1)
  for (const answer of answers) answer.put()
  await until('two are given up', () => shed.length === 2)
  expect(shed).toEqual(['first', 'second'])
  // Their answers use no memory now, so the others stay.
  answers[0]?.taken()
  answers[3]?.put()
  await until('time passes', laterThan(20))
  expect(shed).toEqual(['first', 'second'])
})

test('an answer is given up neither while its buyer reads nor after a short wait', async () => {
  const { shed, answers } = watched(['reading', 'still', 'ended'], 1, 100)
  const [reading, still, ended] = answers
  reading?.put()
  still?.put()
  ended?.put()
  ended?.taken()
  expect(shed).toEqual([])
  const timer = setInterval(() => {
    reading?.taken()
    reading?.put()
  }, 1)
  await until('one is given up', () => shed.length > 0)
  clearInterval(timer)
  expect(shed).toEqual(['still'])
})

test('attack: an answer that is given up ends its request to the upstream and fails for its buyer', async () => {
  const aborted: string[] = []
  using _ = spyOn(globalThis, 'fetch').mockImplementation(
    Object.assign(
      async (_url: unknown, init?: RequestInit) => {
        const id = new Headers(init?.headers).get('idempotency-key') ?? ''
        init?.signal?.addEventListener('abort', () => aborted.push(id))
        const source = new ReadableStream({
          pull: (controller) => controller.enqueue(new Uint8Array(600 * 1024)),
        })
        return new Response(source)
      },
      { preconnect: () => {} },
    ),
  )
  const seller = merchant('m', {
    upstream: new URL('http://127.0.0.1:1'),
    allowPrivate: true,
    routes: [route('/r')],
  })
  const match = Route.match(Route.compile([seller]), '/m/m/r')
  if (match === undefined) throw new Error('no match')
  const upstream = createUpstream({ now: Date.now, stalledMax: 1 })
  const buy = async (paymentId: string) => {
    const headers = new Headers()
    const request = { match, method: 'GET', search: '', headers, body: new Uint8Array(0) }
    const { body } = await forward(upstream, { ...request, paymentId })
    if (body instanceof Uint8Array) throw new Error('not a stream')
    const reader = body.getReader()
    await reader.read()
    return reader
  }
  const first = await buy('first')
  const second = await buy('second')
  await until('one is given up', () => aborted.length > 0)
  expect(aborted).toEqual(['first'])
  expect(await outcomeOf(first.read())).toThrow('upstream cut')
  expect((await second.read()).value?.byteLength).toBe(600 * 1024)
  await second.cancel()
})

/** True from `ms` from now on. */
function laterThan(ms: number): () => boolean {
  let isLater = false
  setTimeout(() => {
    isLater = true
  }, ms)
  return () => isLater
}
