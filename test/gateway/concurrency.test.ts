import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { ask } from '../harness/buyer'
import { connect, request } from '../harness/raw'
import { effects, mppUsdc, nothing, startTarget, type Target, x402Usdc } from '../harness/target'
import { until } from '../harness/world'

let target: Target
beforeAll(async () => {
  target = await startTarget({
    // A buyer that does not read fills the system's buffers first.
    transferRateMin: { stepBytes: 1024 * 1024, stepMs: 500 },
    idleSeconds: 1,
    more: (upstreamUrl) =>
      ['narrow', 'slow', 'patient']
        .map(
          (slug) => `
[[merchants]]
slug = "${slug}"
upstream = "${upstreamUrl}"
allow_private = true
concurrency_max = 1
timeout_ms = 600000
idle_ms = 600000
[[merchants.routes]]
path = "/get"
price = "0.005"
`,
        )
        .join(''),
  })
})
afterAll(() => target?.stop())
const reset = () => {
  target.upstream.answer = undefined
}

const buyer = account(1).local()
const at = (path: string) => `${target.url}/m/${path}`
const headersFor = async (path: string) => x402Usdc.pay(await ask(at(path)), buyer)

/** Delays the upstream's answers to `slug` until `open` is called. */
function hold(path: string) {
  const gate = Promise.withResolvers<Response>()
  let isHeld = false
  target.upstream.answer = (seen) => {
    if (!seen.target.includes(path)) return new Response('goods')
    isHeld = true
    return gate.promise
  }
  return {
    arrives: () => until('the upstream is asked', () => isHeld),
    open: (answer = new Response('goods')) => gate.resolve(answer),
  }
}

describe('concurrency', () => {
  afterEach(reset)

  test('without a free slot nothing is charged, and the same credential is accepted later', async () => {
    const gate = hold('first')
    const first = fetch(at('narrow/get?first'), { headers: await headersFor('narrow/get?first') })
    await gate.arrives()
    const headers = await headersFor('narrow/get')
    const { result, ...caused } = await effects(target, async () => {
      const refused = await fetch(at('narrow/get'), { headers })
      // Another merchant has its own.
      const other = await fetch(at('a/get'), { headers: await headersFor('a/get') })
      gate.open()
      expect((await first).status).toBe(200)
      await until('the place is free', () => target.payments().every(isDelivered))
      return { refused, other }
    })
    expect([result.refused.status, result.refused.headers.get('retry-after')]).toEqual([503, '2'])
    expect(result.refused.headers.get('payment-response')).toBeTruthy()
    expect(await result.refused.json()).toMatchObject({ code: 'not-ready' })
    expect(result.other.status).toBe(200)
    // The slot of the other merchant.
    expect(caused).toMatchObject({ forwarded: 1, paidAtomic: 5_000n })
    expect((await fetch(at('narrow/get'), { headers })).status).toBe(200)
  })

  test('all merchants share one limit', async () => {
    await target.reload({ concurrencyMax: 1 })
    const gate = hold('total')
    const first = fetch(at('a/get?total'), { headers: await headersFor('a/get?total') })
    await gate.arrives()
    const headers = await headersFor('b/get')
    const { result, ...caused } = await effects(target, async () => {
      const refused = await fetch(at('b/get'), { headers })
      gate.open()
      expect((await first).status).toBe(200)
      return refused
    })
    await target.reload({})
    expect([result.status, await result.json()]).toMatchObject([503, { code: 'not-ready' }])
    expect(caused.forwarded).toBe(0)
    expect(caused.paidAtomic).toBe(0n)
    expect((await fetch(at('b/get'), { headers })).status).toBe(200)
  })

  test('a redemption without a free slot uses none of its attempts', async () => {
    target.upstream.answer = () => new Response('', { status: 500 })
    const paid = await mppUsdc.pay(await ask(at('narrow/get?again')), buyer)
    const failed = await fetch(at('narrow/get?again'), { headers: paid })
    const { redeem } = (await failed.json()) as { redeem: { token: string; attempts: number } }
    const gate = hold('first')
    const first = fetch(at('narrow/get?first'), { headers: await headersFor('narrow/get?first') })
    await gate.arrives()
    const headers = { 'payment-redeem': redeem.token }
    const { result, ...caused } = await effects(target, async () => {
      const refused = await fetch(at('narrow/get?again'), { headers })
      gate.open()
      await first
      return refused
    })
    expect(result.status).toBe(503)
    expect(caused).toEqual(nothing)
    expect((await fetch(at('narrow/get?again'), { headers })).status).toBe(200)
    expect(target.payments().find(({ attempts }) => attempts > 1)?.attempts).toBe(2)
  })
})

const isDelivered = ({ delivery }: { delivery: string }) => delivery === 'delivered'

/** Presents one credential until there is a slot, which the end of an answer frees a little later. */
async function sell(path: string): Promise<Response> {
  const headers = await headersFor(path)
  let answer = await fetch(at(path), { headers })
  await until('it is sold', async () => {
    if (answer.status === 503) answer = await fetch(at(path), { headers })
    return answer.status !== 503
  })
  expect(answer.status).toBe(200)
  return answer
}

/** Sends a paid request over a connection of its own. */
async function send(path: string) {
  const headers = await headersFor(path)
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
  return connect(target.url, request(`/m/${path}`, lines))
}

describe('connections', () => {
  afterEach(reset)

  test('attack: a buyer that does not read is cut, and its slot is released', async () => {
    let isLeft = false
    target.upstream.answer = () =>
      new Response(
        new ReadableStream({
          pull: (controller) => controller.enqueue(new Uint8Array(256 * 1024)),
          cancel: () => {
            isLeft = true
          },
        }),
      )
    const before = target.payments().length
    const socket = await send('slow/get')
    socket.pause()
    await until('the buyer is cut', () => isLeft)
    await until('it is recorded', () => target.payments()[before]?.truncated === 1)
    socket.destroy()
    target.upstream.answer = undefined
    await (await sell('slow/get')).text()
  })

  test('a stream that is slow because of its upstream is not cut', async () => {
    let events = 0
    target.upstream.answer = () =>
      new Response(
        new ReadableStream({
          async pull(controller) {
            await Bun.sleep(150)
            controller.enqueue(`data: ${++events}\n\n`)
            if (events === 10) controller.close()
          },
        }),
        { headers: { 'content-type': 'text/event-stream' } },
      )
    const answer = await sell('slow/get?events')
    expect((await answer.text()).match(/\d+/g)).toHaveLength(10)
    await until('it is recorded', () => target.payments().every(isDelivered))
    expect(target.payments().at(-1)?.truncated).toBe(0)
  })
})

// They wait at the same time: the runtime looks for idle connections every four seconds.
describe.concurrent('an idle connection', () => {
  const held = new Map<string, { arrived(): void; answer: Promise<Response> }>()
  beforeAll(() => {
    target.upstream.answer = ({ target: path }) => {
      const gate = held.get(path)
      gate?.arrived()
      return gate?.answer ?? new Response('goods')
    }
  })
  afterAll(reset)

  const whole = () => new Response('goods')
  const streamed = () =>
    new Response('data: goods\n\n', { headers: { 'content-type': 'text/event-stream' } })
  for (const [name, slug, answer] of [
    ['a sale', 'patient', whole],
    ['a stream', 'narrow', streamed],
  ] as const)
    test(`the connection of ${name} has no idle timeout during the sale, and one afterwards`, async () => {
      const arrival = Promise.withResolvers<void>()
      const opening = Promise.withResolvers<Response>()
      const path = `/get?patient=${name.slice(2)}`
      held.set(path, { arrived: arrival.resolve, answer: opening.promise })
      const paid = await send(slug + path)
      let text = ''
      paid.on('data', (data) => {
        text += data
      })
      await arrival.promise
      const idle = connect(target.url, 'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
      idle.resume()
      const isClosed = () => idle.closed || idle.destroyed
      await until('the idle connection ends', isClosed)
      expect(paid.closed || paid.destroyed).toBe(false)
      opening.resolve(answer())
      await until('the sale is answered', () => text.includes('goods'))
      await until('its connection ends, too', () => paid.closed || paid.destroyed)
    })
})
