import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { inSeconds, settlementOf } from '../harness/buyer'
import type { Script } from '../harness/upstream'
import {
  answering,
  body,
  costOf,
  event,
  events,
  json,
  type ModelShop,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Answers by the x402 scheme `upto` that are held: in messages, and those that come slowly. */

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels()
})
afterAll(() => shop.stop())
beforeEach(async () => {
  shop.clear()
  payer = await shop.wallet()
})

type Answer = {
  result: {
    isError?: boolean
    content: { text: string }[]
    structuredContent?: Record<string, unknown>
    _meta?: Record<string, Record<string, unknown>>
  }
}

/** Calls the tool of the route with a payment. */
async function call(credential: Record<string, string>, meta: object = {}): Promise<Answer> {
  const payment = JSON.parse(atob(credential['payment-signature'] ?? ''))
  const params = {
    name: 'model-chat',
    arguments: { body: JSON.parse(body) },
    _meta: { 'x402/payment': payment, ...meta },
  }
  const response = await fetch(`${shop.url}/mcp`, {
    method: 'POST',
    headers: { ...json, accept: 'application/json, text/event-stream' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params }),
  })
  return (await response.json()) as Answer
}

const paid = async () => 10_000_000n - (await shop.tokensOf(payer.address))
const delivered = (truncated: number) =>
  until('it is recorded', () => {
    const row = shop.payment()
    return row.delivery === 'delivered' && row.truncated === truncated && row.attempts === 1
  })

describe('a call of a tool', () => {
  const answers: readonly (readonly [string, Script, string])[] = [
    ['a whole answer', answering(usage(7, 20)), usage(7, 20)],
    ['a stream', answering(event(usage(7, 20)), 200, events), event(usage(7, 20))],
  ]
  for (const [name, script, text] of answers)
    test(`${name} is charged by its usage before it is sent`, async () => {
      shop.upstream.script = script
      const credential = await shop.sign({ signer: payer })
      const { result } = await call(credential)
      expect(result.content).toEqual([expect.objectContaining({ text })])
      const cost = String(costOf(7, 20))
      expect(result._meta?.['x402/payment-response']).toMatchObject({ success: true, amount: cost })
      expect(await paid()).toBe(BigInt(cost))
      await delivered(0)
      const again = await call(credential)
      expect(again.result.isError).toBe(true)
      expect(shop.upstream.requests).toHaveLength(1)
      expect(await paid()).toBe(BigInt(cost))
    })

  test('an answer that is cut at the length of a message costs missing, and is not stored', async () => {
    const long = `{"text":"${'x'.repeat(5 * 1024 * 1024)}",${usage(7, 20).slice(1)}`
    shop.upstream.script = answering(long)
    const key = { 'turnpike/idempotency-key': 'a-long-answer' }
    const { result } = await call(await shop.sign({ signer: payer }), key)
    expect(result.content[0]?.text.length).toBe(4 * 1024 * 1024)
    expect(result._meta).toMatchObject({ 'turnpike/truncated': true })
    expect(await paid()).toBe(BigInt(String(shop.authorization().ceiling_atomic)))
    await delivered(1)
  })

  test('an answer that fails costs nothing', async () => {
    shop.upstream.script = (_, reply) => {
      reply.head(200, events)
      reply.chunk(event(usage(7, 20)))
      reply.cut()
    }
    const { result } = await call(await shop.sign({ signer: payer }))
    expect(result.isError).toBe(true)
    expect(JSON.stringify(result)).not.toContain('completion_tokens')
    expect(shop.authorization().state).toBe('void')
    expect(await paid()).toBe(0n)
  })

  test('attack: a call of a payer that drains its wallet gets no answer', async () => {
    shop.upstream.script = async (_, reply) => {
      await shop.setBalance(payer.address, 1n)
      reply.send(200, usage(7, 20), json)
    }
    const { result } = await call(await shop.sign({ signer: payer }))
    expect(result.isError).toBe(true)
    expect(JSON.stringify(result)).not.toContain('completion_tokens')
    expect(shop.authorization().state).toBe('failed')
  })
})

describe('memory for held answers', () => {
  const long = `{"text":"${'x'.repeat(1024 * 1024)}",${usage(7, 20).slice(1)}`

  test('without memory for held answers a message is not charged, and other answers pass as streams', async () => {
    const { service } = shop.config
    await shop.restart({ ...shop.config, service: { ...service, bufferedMaxBytes: 300_000 } })
    try {
      shop.upstream.script = answering(long)
      const { result } = await call(await shop.sign({ signer: payer }))
      expect(result.structuredContent).toMatchObject({ code: 'not-ready' })
      expect(shop.authorization().state).toBe('void')
      const response = await shop.buy({ signer: payer })
      expect(response.headers.has('payment-response')).toBe(false)
      expect((await response.text()).length).toBe(long.length)
      await shop.settles()
      expect(await paid()).toBe(BigInt(costOf(7, 20)))
    } finally {
      await shop.restart(shop.config)
    }
  })

  test('the memory for held answers is free again after each answer', async () => {
    const { service } = shop.config
    await shop.restart({ ...shop.config, service: { ...service, bufferedMaxBytes: 2_000_000 } })
    try {
      shop.upstream.script = answering(long)
      for (let count = 0; count < 4; count++) {
        const response = await shop.buy({ signer: payer })
        expect(settlementOf(response)).toMatchObject({ amount: String(costOf(7, 20)) })
      }
    } finally {
      await shop.restart(shop.config)
    }
  })
})

test('attack: a whole answer that comes slowly is given up before its charge could not be settled', async () => {
  const credential = await shop.sign({ signer: payer, slug: 'brief', deadline: inSeconds(33) })
  const replied = shop.nextReply()
  const bought = shop.pay(credential, { slug: 'brief' })
  const upstream = await replied
  upstream.head(200, json)
  const writing = setInterval(() => upstream.chunk(' '), 50)
  const response = await bought
  clearInterval(writing)
  expect([response.status, settlementOf(response)]).toEqual([
    504,
    expect.objectContaining({ success: false, transaction: '' }),
  ])
  expect(shop.authorization().state).toBe('void')
  expect(await paid()).toBe(0n)
})
