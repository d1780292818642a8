import { heapStats } from 'bun:jsc'
import { expect, spyOn, test } from 'bun:test'
import { collect } from '../../src/app/parts'
import { serveMessage } from '../../src/gateway/mcp/server'
import * as Route from '../../src/gateway/Route'
import { createUpstream, forward } from '../../src/gateway/upstream/upstream'
import { createBudget, readBody } from '../../src/http/body'
import { createReclaim } from '../../src/paywall/answer/transfer-rate'
import { merchant, route } from '../harness/merchants'
import { until } from '../harness/world'

/** Memory that peers of a process can occupy. */

/** Bytes outside of the heap that belong to reachable objects. */
function heldBytes(): number {
  Bun.gc(true)
  return heapStats().extraMemorySize
}

test('attack: bodies of which one byte has arrived take no block of memory each', async () => {
  const bodies = 400
  const controllers: ReadableStreamDefaultController<Uint8Array>[] = []
  const budget = createBudget(bodies * 2 ** 20)
  const before = heldBytes()
  const reading = Array.from({ length: bodies }, () => {
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        controllers.push(controller)
        controller.enqueue(new Uint8Array(1))
      },
    })
    return readBody(new Request('http://localhost/', { method: 'POST', body }), 200_000, budget)
  })
  while (budget.usedBytes() < bodies) await Bun.sleep(1)
  expect(heldBytes() - before).toBeLessThan(bodies * 8 * 1024)
  for (const controller of controllers) controller.close()
  const whole = await Promise.all(reading)
  expect(whole.every(({ bytes }) => bytes.byteLength === 1)).toBe(true)
})

test('attack: the buffer of a cut stream is freed at once', async () => {
  const chunks = Array.from({ length: 20 }, () => new Uint8Array(64 * 1024))
  const seller = merchant('m', {
    upstream: new URL('http://127.0.0.1:1'),
    allowPrivate: true,
    routes: [route('/r')],
  })
  const match = Route.match(Route.compile([seller]), '/m/m/r')
  if (match === undefined) throw new Error('no match')
  let next = 0
  const source = new ReadableStream({
    pull: (controller) => controller.enqueue(chunks[next++]),
  })
  // The chunks of a real answer could not be observed.
  using _ = spyOn(globalThis, 'fetch').mockResolvedValue(new Response(source))
  const { body } = await forward(createUpstream({ now: Date.now }), {
    match,
    method: 'GET',
    search: '',
    headers: new Headers(),
    body: new Uint8Array(0),
    paymentId: 'pay_1',
  })
  if (body instanceof Uint8Array) throw new Error('not a stream')
  const reader = body.getReader()
  const { value } = await reader.read()
  await reader.cancel()
  // 1 MiB was read ahead, of which the buyer has the first chunk. The runtime has the next one.
  expect(chunks.slice(1, 17).map(({ byteLength }) => byteLength)).toEqual(Array(16).fill(0))
  expect(value?.byteLength).toBe(64 * 1024)
})

test('attack: members that a call may not have are never copied', async () => {
  let reads = 0
  const params = Object.defineProperty({}, 'many', {
    enumerable: true,
    get: () => ++reads,
  })
  const headers = {
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
  }
  const request = new Request('http://localhost/mcp', { method: 'POST', headers })
  const answer = await serveMessage(
    request,
    { jsonrpc: '2.0', id: 1, method: 'tools/list', params },
    { title: 'a', instructions: '', list: () => ({ tools: [] }), call: () => Promise.reject() },
  )
  expect(await answer.json()).toEqual({ jsonrpc: '2.0', id: 1, result: { tools: [] } })
  expect(reads).toBe(0)
})

test('attack: the garbage of cut streams is collected together, less often when a collection takes longer', async () => {
  let collections = 0
  const { after } = createReclaim(() => {
    collections++
    // The next collection would be after 1,000 s.
    return 10_000
  }, 1)
  for (let stream = 0; stream < 100; stream++) after()
  await until('what was cut is collected', () => collections > 0)
  after()
  let isLater = false
  setTimeout(() => {
    isLater = true
  }, 20)
  await until('more than the shortest wait is over', () => isLater)
  expect(collections).toBe(1)
})

test('a collection that waits for a busy machine does not delay the next one', () => {
  // The process is off the CPU for as long.
  expect(collect(() => Bun.sleepSync(100))).toBeLessThan(100)
})
