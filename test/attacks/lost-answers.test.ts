import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { buy, openConnection, type Shop, sign, startShop, type Terms } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import { until } from '../harness/world'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())
let serial = 0
beforeEach(() => {
  serial++
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const item = () => `${shop.url}/m/shop/item`
const x402: Terms = { scheme: 'x402-eip3009' }
const both: readonly Terms[] = [{}, x402]
const events = { 'content-type': 'text/event-stream' }
const key = () => `lost-${serial}-${'x'.repeat(16)}`

/** The upstream's handler of the next request. */
function nextReply(): Promise<Reply> {
  return new Promise((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })
}

/** The upstream's handler of the next request, after the head and the first event of a stream. */
async function nextStream(): Promise<Reply> {
  const reply = await nextReply()
  reply.head(200, events)
  reply.chunk('data: 1\n\n')
  return reply
}

const fetchKeyed = (headers: Record<string, string>, url = item(), init: RequestInit = {}) =>
  fetch(url, { ...init, headers: { ...headers, 'idempotency-key': key() } })

function delivery(): Record<string, unknown> {
  const [row] = shop.rows('SELECT * FROM payments ORDER BY rowid DESC LIMIT 1')
  const { delivery, truncated, attempts } = row ?? {}
  return { delivery, truncated, attempts }
}
const becomes = (expected: object) =>
  until(JSON.stringify(expected), () => Bun.deepEquals(delivery(), expected))
const whole = { delivery: 'delivered', truncated: 0, attempts: 1 }
const lost = { delivery: 'none', truncated: 0, attempts: 1 }

/** Buys with a key, reads the first event and disconnects. */
async function leaveMidway(credential: Record<string, string>, url = item()): Promise<Reply> {
  const stream = nextStream()
  const leave = new AbortController()
  const response = await fetchKeyed(credential, url, { signal: leave.signal })
  const reader = response.body?.getReader()
  expect(new TextDecoder().decode((await reader?.read())?.value)).toBe('data: 1\n\n')
  leave.abort()
  return stream
}

/** Repeats the key until its payment is no longer in progress. */
async function repeat(credential: Record<string, string>): Promise<Response> {
  let answer = await fetchKeyed(credential)
  await until('it is at work no longer', async () => {
    if (answer.status === 409) answer = await fetchKeyed(credential)
    return answer.status !== 409
  })
  return answer
}

describe('with a key', () => {
  for (const terms of both)
    test(`the key returns the whole of a stream from which its buyer disconnected, by ${terms.scheme ?? 'mpp'}`, async () => {
      const [credential, other] = await Promise.all([sign(item(), terms), sign(item(), terms)])
      const upstream = await leaveMidway(credential)
      upstream.chunk('data: 2\n\n')
      // While the remaining stream is read, the payment is in progress.
      expect((await fetchKeyed(credential)).status).toBe(409)
      upstream.end()
      const counts = shop.counts()
      for (const again of [credential, other]) {
        const response = await repeat(again)
        expect(response.status).toBe(200)
        expect(response.headers.get('idempotency-replayed')).toBe('true')
        expect(await response.text()).toBe('data: 1\n\ndata: 2\n\n')
      }
      expect(delivery()).toEqual(whole)
      expect(shop.upstream.requests).toHaveLength(1)
      expect(shop.counts()).toEqual({ ...counts, answers: shop.counts().answers ?? 0 })
      // It was delivered: without the key the credential is spent.
      expect((await fetch(item(), { headers: credential })).status).toBe(402)
    })

  test('the key returns an answer whose buyer disconnected before its first byte, once', async () => {
    for (const isStream of [true, false]) {
      serial++
      const reply = nextReply()
      const credential = await sign(item())
      const connection = openConnection(item(), { ...credential, 'Idempotency-Key': key() })
      const upstream = await reply
      await connection.leave()
      if (isStream) {
        upstream.head(200, events)
        upstream.chunk('data: 1\n\n')
        upstream.end()
      } else {
        upstream.send(200, '{"n":1}')
      }
      await becomes(whole)
      const response = await repeat(credential)
      expect(response.headers.get('idempotency-replayed')).toBe('true')
      expect(await response.text()).toBe(isStream ? 'data: 1\n\n' : '{"n":1}')
      expect((await fetch(item(), { headers: credential })).status).toBe(402)
    }
    expect(shop.upstream.requests).toHaveLength(2)
  })

  test('error: a stream that breaks off, stalls or is too long after the disconnection is truncated, and nothing is stored', async () => {
    const hasty = `${shop.url}/m/hasty/item`
    for (const [url, end] of [
      [item(), (upstream: Reply) => upstream.cut()],
      [item(), (upstream: Reply) => upstream.chunk('x'.repeat(1024 * 1024))],
      [hasty, () => {}],
    ] as const) {
      serial++
      const credential = await sign(url)
      const upstream = await leaveMidway(credential, url)
      end(upstream)
      await upstream.left
      await becomes({ ...whole, truncated: 1 })
      const again = await fetchKeyed(credential, url)
      expect([402, 409]).toContain(again.status)
      expect(again.headers.has('idempotency-replayed')).toBe(false)
    }
  })

  test('attack: at most four abandoned streams of one payer are read at once, and another payer has its own', async () => {
    const reading: Reply[] = []
    for (let count = 0; count < 4; count++) {
      serial++
      reading.push(await leaveMidway(await sign(item())))
    }
    serial++
    const fifth = await leaveMidway(await sign(item()))
    await fifth.left
    serial++
    const credential = await sign(item(), { buyer: 2 })
    const other = await leaveMidway(credential)
    other.end()
    expect(await (await repeat(credential)).text()).toBe('data: 1\n\n')
    for (const upstream of reading) upstream.end()
    await until('all have been read', async () => {
      const kept = shop.rows(
        "SELECT id FROM payments WHERE delivery = 'delivered' AND NOT truncated",
      )
      return kept.length >= 5
    })
  })

  test('a stop waits for the remaining stream', async () => {
    const stream = nextStream()
    const credential = await sign(item())
    const connection = openConnection(item(), { ...credential, 'Idempotency-Key': key() })
    const upstream = await stream
    await becomes(whole)
    // The gateway has noticed the disconnection.
    await connection.leave()
    const restarted = shop.restart()
    upstream.chunk('data: 2\n\n')
    upstream.end()
    await restarted
    const response = await fetchKeyed(credential)
    expect(response.headers.get('idempotency-replayed')).toBe('true')
    expect(await response.text()).toBe('data: 1\n\ndata: 2\n\n')
  })

  test('a stop drops the remaining stream after its time limit', async () => {
    const stream = nextStream()
    const credential = await sign(item())
    const connection = openConnection(item(), { ...credential, 'Idempotency-Key': key() })
    const upstream = await stream
    await becomes(whole)
    await connection.leave()
    const restarted = shop.restart()
    shop.advance(60_000)
    await upstream.left
    await restarted
    shop.advance(-60_000)
    expect(delivery()).toEqual({ ...whole, truncated: 1 })
  })
})

type Result = {
  isError?: boolean
  content: { text: string }[]
  structuredContent: Record<string, unknown>
  _meta: Record<string, unknown>
}

/** Payment headers in the form of `_meta`. */
function metaOf(headers: Record<string, string>): Record<string, unknown> {
  const { authorization, 'payment-signature': payment } = headers
  if (payment !== undefined) return { 'x402/payment': JSON.parse(atob(payment)) }
  const text = Buffer.from(authorization?.slice('Payment '.length) ?? '', 'base64url').toString()
  return { 'org.paymentauth/credential': JSON.parse(text) }
}

const call = (meta: Record<string, unknown>, init: RequestInit = {}) => {
  const params = { name: 'shop-item', arguments: {}, _meta: meta }
  return fetch(`${shop.url}/mcp`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params }),
    ...init,
  })
}
const callFor = async (meta: Record<string, unknown>): Promise<Result> =>
  ((await (await call(meta)).json()) as { result: Result }).result

/** The row is seen before it is on the disk, and until then the payment is in progress. */
async function repeated(repeat: () => Promise<Result>): Promise<Result> {
  let result = await repeat()
  await until('the first call has ended', async () => {
    const isRunning = result.content[0]?.text.startsWith('Payment In Progress') ?? false
    if (isRunning) result = await repeat()
    return !isRunning
  })
  return result
}

describe('over MCP', () => {
  for (const terms of both)
    test(`a client that closes the connection has not used its payment and can repeat the call, by ${terms.scheme ?? 'mpp'}`, async () => {
      const stream = nextStream()
      const meta = metaOf(await sign(item(), terms))
      const leave = new AbortController()
      const given = call(meta, { signal: leave.signal }).catch(() => undefined)
      const upstream = await stream
      // No byte of the message has been sent.
      await becomes({ ...lost, delivery: 'delivering' })
      leave.abort()
      await given
      await upstream.left
      await becomes(lost)
      shop.upstream.script = (_, reply) => reply.send(200, 'data: 1\n\ndata: 2\n\n', events)
      const counts = shop.counts()
      const result = await repeated(() => callFor(meta))
      expect(result.content[0]?.text).toBe('data: 1\n\ndata: 2\n\n')
      await becomes({ ...whole, attempts: 2 })
      expect(shop.counts()).toEqual(counts)
    })

  test('the key returns the answer of a call that its client abandoned', async () => {
    const stream = nextStream()
    const meta = { ...metaOf(await sign(item(), x402)), 'turnpike/idempotency-key': key() }
    const leave = new AbortController()
    const given = call(meta, { signal: leave.signal }).catch(() => undefined)
    const upstream = await stream
    leave.abort()
    await given
    upstream.chunk('data: 2\n\n')
    upstream.end()
    await becomes(whole)
    const result = await callFor(meta)
    expect(result.content[0]?.text).toBe('data: 1\n\ndata: 2\n\n')
    expect(result._meta['turnpike/idempotency-replayed']).toBe(true)
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('a client of the SDK after its timeout has not used its payment and can repeat the call', async () => {
    const client = new Client({ name: 'impatient', version: '1' })
    const transport = new StreamableHTTPClientTransport(new URL(`${shop.url}/mcp`))
    // The SDK declares its optional members without undefined.
    await client.connect(transport as Parameters<Client['connect']>[0])
    const stream = nextStream()
    const params = { name: 'shop-item', arguments: {}, _meta: metaOf(await sign(item(), x402)) }
    const leave = new AbortController()
    const given = client.callTool(params, undefined, { signal: leave.signal }).catch(String)
    const upstream = await stream
    leave.abort()
    expect(await given).toContain('AbortError')
    // It keeps its connection open and sends a cancellation.
    await upstream.left
    await becomes(lost)
    shop.upstream.script = undefined
    const result = await repeated(async () => (await client.callTool(params)) as unknown as Result)
    expect(result.content).toEqual([expect.objectContaining({ text: '{"ok":true}' })])
    await becomes({ ...whole, attempts: 2 })
    await client.close()
  })

  test('attack: a client cannot cancel the call of another', async () => {
    const stream = nextStream()
    const given = callFor(metaOf(await sign(item())))
    const upstream = await stream
    for (const session of [undefined, 'mcp-00000000000000000000000000000000', 'undefined', ''])
      await fetch(`${shop.url}/mcp`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          accept: 'application/json, text/event-stream',
          ...(session === undefined ? {} : { 'mcp-session-id': session }),
        },
        body: JSON.stringify({
          jsonrpc: '2.0',
          method: 'notifications/cancelled',
          params: { requestId: 1 },
        }),
      })
    upstream.end()
    expect((await given).content[0]?.text).toBe('data: 1\n\n')
  })

  test('an answer that the upstream cuts off is not delivered and can be redeemed', async () => {
    const stream = nextStream()
    const given = sign(item(), x402).then((headers) => callFor(metaOf(headers)))
    const upstream = await stream
    upstream.cut()
    const failed = await given
    expect(failed.isError).toBe(true)
    expect(failed.structuredContent).toMatchObject({ code: 'upstream-failed' })
    expect(failed._meta['x402/payment-response']).toMatchObject({ success: false })
    await becomes(lost)
    shop.upstream.script = undefined
    const { token } = failed.structuredContent.redeem as { token: string }
    const redeemed = await callFor({ 'turnpike/redeem': token })
    expect(redeemed.content[0]?.text).toBe('{"ok":true}')
    await becomes({ ...whole, attempts: 2 })
  })

  test('an answer above 4 MiB is truncated and marked', async () => {
    shop.upstream.script = (_, reply) =>
      reply.send(200, 'x'.repeat(5 * 1024 * 1024), { 'content-type': 'text/plain' })
    const result = await callFor(metaOf(await sign(item())))
    expect(result.content[0]?.text).toHaveLength(4 * 1024 * 1024)
    expect(result._meta['turnpike/truncated']).toBe(true)
    await becomes({ ...whole, truncated: 1 })
  })

  test('the calls of one batch run one after the other', async () => {
    const replies: Reply[] = []
    shop.upstream.script = (_, reply) => void replies.push(reply)
    const paid = await Promise.all([sign(item()), sign(item())])
    const batch = paid.map((headers, id) => ({
      jsonrpc: '2.0',
      id,
      method: 'tools/call',
      params: { name: 'shop-item', arguments: {}, _meta: metaOf(headers) },
    }))
    const given = call({}, { body: JSON.stringify(batch) })
    await until('the first is asked for', () => replies.length === 1)
    // The second call of the batch does not run meanwhile.
    await (await fetch(`${shop.url}/m/shop/other`)).text()
    expect(replies).toHaveLength(1)
    // The message is not complete, so none of its answers has been delivered.
    replies[0]?.send(200, '{"n":1}')
    await until('the second is asked for', () => replies.length === 2)
    const rows = shop.rows("SELECT id FROM payments WHERE delivery = 'delivering'")
    expect(rows).toHaveLength(2)
    replies[1]?.send(200, '{"n":2}')
    const answers = (await (await given).json()) as { result: Result }[]
    expect(answers.map(({ result }) => result.content[0]?.text)).toEqual(['{"n":1}', '{"n":2}'])
    await until('both are delivered', () => {
      const open = shop.rows("SELECT id FROM payments WHERE delivery = 'delivering'")
      return open.length === 0
    })
  })

  test('over HTTP the first byte still delivers', async () => {
    const stream = nextStream()
    const response = await buy(item())
    const upstream = await stream
    await becomes(whole)
    upstream.end()
    await response.text()
  })
})
