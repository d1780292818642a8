import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { account } from '../../src/demo/accounts'
import {
  challengesOf,
  type ParsedChallenge,
  payMpp,
  payX402,
  type Required,
} from '../harness/buyer'
import { runs } from '../harness/samples'
import { type Shop, startShop } from '../harness/shop'

const club = `
[[merchants]]
slug = "club"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
[[merchants.routes]]
path = "/item"
price = "0.005"
again = "24h"
again_max = 1
`

let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) =>
      text
        .replace('unpaid_body_max = "1MiB"', 'unpaid_body_max = "16KiB"')
        .replace('trust_proxy = 0', 'trust_proxy = 1')
        .concat(club),
  })
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
})

type Message = Record<string, unknown>
type Content = {
  type: string
  text: string
  data: string
  mimeType: string
  resource: Record<string, string>
}
type Answer = {
  id: unknown
  error?: { code: number; message: string; data: Record<string, unknown> }
  result?: {
    isError?: boolean
    content: Content[]
    structuredContent: Record<string, unknown>
    _meta: Record<string, Record<string, unknown>>
    tools: { name: string }[]
    nextCursor?: string
  }
}

const accept = 'application/json, text/event-stream'
/** A client that declares MPP. */
const mpp = { 'accept-payment': 'evm/charge' }
const post = (body: unknown, headers: Record<string, string> = {}) =>
  fetch(`${shop.url}/mcp`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept, ...headers },
    body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body),
  })
const send = async (body: unknown, headers: Record<string, string> = {}) =>
  (await (await post(body, headers)).json()) as Answer

const call = (name: string, args: Message = {}, meta?: Message, id: unknown = 1): Message => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args, ...(meta === undefined ? {} : { _meta: meta }) },
})

/** The `_meta` that pays for a call of a tool by x402. */
async function paymentFor(name: string, index: number): Promise<Message> {
  const { result } = await send(call(name))
  const required = result?.structuredContent as unknown as Required
  const way = { network: 'eip155:8453', method: 'eip3009' } as const
  const header = await payX402(required, account(index).local(), way)
  return { 'x402/payment': JSON.parse(atob(header)) }
}

/** The credential that pays a tool's challenge for the network, in the form of `_meta`. */
async function credential(name: string, args: Message = {}): Promise<Message> {
  const { error } = await send(call(name, args), mpp)
  const challenges = error?.data.challenges as (Message & { request: ParsedChallenge['request'] })[]
  const chosen = challenges.find(({ request }) => request.methodDetails.chainId === 8453)
  if (chosen === undefined) throw new Error('no challenge')
  const { request, ...rest } = chosen
  const parsed = { id: chosen.id, realm: chosen.realm, request, raw: rest } as ParsedChallenge
  const value = await payMpp(parsed, account(1).local())
  const json = JSON.parse(Buffer.from(value.slice('Payment '.length), 'base64url').toString())
  return { ...json, challenge: chosen }
}

const buy = async (name: string, args: Message = {}) => {
  const meta = { 'org.paymentauth/credential': await credential(name, args) }
  return send(call(name, args, meta))
}

describe('the allowed clients', () => {
  test('our own pages, pages of this machine, and clients without an Origin may connect', async () => {
    for (const origin of [undefined, 'http://localhost:6274', 'http://127.0.0.1', shop.url]) {
      const response = await post(call('shop-item'), origin === undefined ? {} : { origin })
      expect(response.status).toBe(200)
      expect(response.headers.get('access-control-allow-origin')).toBe(origin ?? null)
      expect(response.headers.get('cache-control')).toBe('no-store')
    }
    const preflight = await fetch(`${shop.url}/mcp`, {
      method: 'OPTIONS',
      headers: { origin: 'http://localhost:6274', 'access-control-request-method': 'POST' },
    })
    expect(preflight.status).toBe(204)
    expect(preflight.headers.get('access-control-allow-headers')).toContain('Mcp-Protocol-Version')
  })

  test('error: a page of another origin, or a rebound host name, is 403', async () => {
    for (const headers of [
      { origin: 'https://evil.example.com' },
      { origin: 'null' },
      { origin: 'https://localhost.evil.example.com' },
      { host: 'evil.example.com' },
    ]) {
      const response = await post(call('shop-item'), headers)
      expect(response.status).toBe(403)
      expect(response.headers.has('access-control-allow-origin')).toBe(false)
    }
  })

  test('error: there is no stream and no session: 405 with Allow', async () => {
    for (const method of ['GET', 'DELETE', 'PUT']) {
      const response = await fetch(`${shop.url}/mcp`, { method, headers: { accept } })
      expect(response.status).toBe(405)
      expect(response.headers.get('allow')).toBe('POST, OPTIONS')
    }
  })
})

describe('bad messages', () => {
  const deep = `${'['.repeat(40)}${']'.repeat(40)}`
  const bodies: readonly (readonly [string, string | Uint8Array, number, number])[] = [
    ['no JSON', 'x', 400, -32700],
    ['no UTF-8', new Uint8Array([0x22, 0xff, 0x22]), 400, -32700],
    ['a member twice', '{"id":1,"id":2}', 400, -32700],
    ['__proto__', '{"__proto__":{}}', 400, -32700],
    ['too deep', deep, 400, -32700],
    ['a number', '1', 400, -32600],
    ['an empty batch', '[]', 400, -32600],
    ['a long batch', `[${Array(17).fill('{}').join(',')}]`, 400, -32600],
    ['an id twice', JSON.stringify([call('x'), call('x')]), 400, -32600],
    ['no JSON-RPC', '{}', 400, -32700],
    ['too large', JSON.stringify('x'.repeat(17_000)), 413, -32000],
  ]
  for (const [name, body, status, code] of bodies)
    test(`error: ${name} is ${status} with ${code}`, async () => {
      const response = await post(body)
      expect(response.status).toBe(status)
      expect(await response.json()).toMatchObject({ jsonrpc: '2.0', error: { code }, id: null })
    })

  test('error: without both media types it is 406, without JSON 415', async () => {
    expect((await post(call('shop-item'), { accept: 'application/json' })).status).toBe(406)
    expect((await post(call('shop-item'), { 'content-type': 'text/plain' })).status).toBe(415)
    expect((await post(call('shop-item'), { 'mcp-protocol-version': '1999' })).status).toBe(400)
  })

  test('error: no message is answered by a 5xx or writes a row', async () => {
    const before = shop.counts()
    const key = fc.constantFrom('jsonrpc', 'id', 'method', 'params', 'name', 'arguments', '_meta')
    const value = fc.oneof(
      fc.jsonValue(),
      fc.constantFrom('2.0', 'tools/call', 'tools/list', 'initialize', 'shop-item', 1),
    )
    const whole = fc.record({
      jsonrpc: fc.constant('2.0'),
      id: fc.oneof(fc.integer(), fc.string(), fc.constant(null)),
      method: fc.constantFrom('tools/call', 'tools/list', 'initialize', 'ping', 'x'),
      params: fc.dictionary(key, value),
    })
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.dictionary(key, value), whole), async (message) => {
        const response = await post(message)
        expect(response.status).toBeLessThan(500)
        const text = await response.text()
        expect(text).not.toContain('"code":-32603')
      }),
      runs(200),
    )
    expect(shop.counts()).toEqual(before)
  })
})

describe('messages', () => {
  test('each message of a batch is answered, a cancelled one too', async () => {
    const cancel = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 2 } }
    const batch = [call('shop-item', {}, {}, 1), call('shop-other', {}, {}, 2), cancel]
    const response = await post(batch, { ...mpp, 'mcp-protocol-version': '2025-03-26' })
    const answers = (await response.json()) as Answer[]
    expect(answers.map(({ id, error }) => [id, error?.code])).toEqual([
      [1, -32042],
      [2, -32042],
    ])
  })

  test('a call that is a notification buys nothing', async () => {
    const meta = { 'org.paymentauth/credential': await credential('shop-item') }
    const before = shop.counts()
    const { id: _, ...notification } = call('shop-item', {}, meta)
    const response = await post(notification)
    expect(response.status).toBe(202)
    expect(shop.counts()).toEqual(before)
    expect(shop.upstream.requests.length).toBe(0)
  })

  test('a credential at the root of the message counts too', async () => {
    const _meta = { 'org.paymentauth/credential': await credential('shop-item') }
    const { result } = await send({ ...call('shop-item'), _meta })
    expect(result?.content).toEqual([
      expect.objectContaining({ type: 'text', text: '{"ok":true}' }),
    ])
    expect(result?._meta['org.paymentauth/receipt']).toMatchObject({ status: 'success' })
  })

  test('error: too many messages of one client are 429, and other clients are not affected', async () => {
    const batch = Array.from({ length: 16 }, (_, id) => ({ jsonrpc: '2.0', id, method: 'ping' }))
    const from = (address: string) => post(batch, { 'x-forwarded-for': address })
    // Each message counts: 800, of which 600 are allowed.
    await shop.still(async () => {
      const answers = await Promise.all(Array.from({ length: 50 }, () => from('192.0.2.1')))
      const refused = answers.filter(({ status }) => status === 429)
      expect(refused.length).toBeGreaterThan(0)
      expect(answers.length - refused.length).toBe(Math.floor(600 / 16))
      expect(refused[0]?.headers.get('retry-after')).toMatch(/^\d+$/)
    })
    expect((await from('192.0.2.2')).status).toBe(200)
  })

  test('error: an invalid message counts too, before it is read', async () => {
    const from = (address: string) => post('{"no":', { 'x-forwarded-for': address })
    const count = async (times: number) => {
      const answers = await Promise.all(Array.from({ length: times }, () => from('192.0.2.9')))
      return answers.filter(({ status }) => status === 429).length
    }
    await shop.still(async () => {
      let refused = 0
      for (let round = 0; round < 7; round++) refused += await count(100)
      expect(refused).toBe(100)
    })
    expect((await from('192.0.2.10')).status).toBe(400)
  })
})

test('error: invalid credentials of one client are 429 to it, as over HTTP, and to no other', async () => {
  const meta = { 'org.paymentauth/credential': { challenge: {}, payload: {} } }
  const batch = Array.from({ length: 16 }, (_, id) => call('shop-item', {}, meta, id))
  const from = async (address: string) =>
    (await (await post(batch, { 'x-forwarded-for': address })).json()) as Answer[]
  // A tenth of the 600 credentials a minute may be refused.
  await shop.still(async () => {
    const answers = (await Promise.all(Array.from({ length: 6 }, () => from('192.0.2.3')))).flat()
    const codes = answers.map(({ result, error }) => result?.structuredContent.code ?? error?.code)
    expect(new Set(codes)).toEqual(new Set([-32602, 'rate-limited']))
  })
  expect((await from('192.0.2.4'))[0]?.error?.code).toBe(-32602)
})

describe('what is bought', () => {
  test('tail, query and body reach the upstream as over HTTP, without the payment', async () => {
    shop.upstream.requests.length = 0
    await buy('shop-item', { tail: 'a/b c', params: { q: 'x&y', 'p[0]': [1, 2] } })
    const meta = { 'org.paymentauth/credential': await credential('shop-item', { body: { a: 1 } }) }
    await send(call('shop-item', { body: { a: 1 } }, meta), { 'x-own': '1', cookie: 'c=1' })
    const [got, posted] = shop.upstream.requests
    expect(got?.target).toBe('/item/a/b%20c?q=x%26y&p%5B0%5D=1&p%5B0%5D=2')
    expect(posted).toMatchObject({ method: 'POST', target: '/item', body: '{"a":1}' })
    expect(posted?.headers['content-type']).toBe('application/json')
    const names = Object.keys({ ...got?.headers, ...posted?.headers })
    expect(names.filter((name) => /payment|cookie|x-own|forwarded/.test(name))).toEqual([])
  })

  test('an error of the upstream is an error result with the receipt of the payment', async () => {
    const offer = { x402Version: 2, accepts: [{ payTo: '0x1' }] }
    shop.upstream.script = (_, reply) => reply.send(404, JSON.stringify(offer))
    const { result } = await buy('shop-item')
    expect(result?.isError).toBe(true)
    // An upstream cannot request a payment: clients read the first text of an error.
    expect(result?.content.map(({ text }) => text)).toEqual([
      'The upstream answered 404.',
      JSON.stringify(offer),
    ])
    expect(result?.structuredContent).toBeUndefined()
    expect(result?._meta['org.paymentauth/receipt']).toMatchObject({ status: 'success' })
  })

  test('images are images, compressed text is decompressed, other data is a blob', async () => {
    const bytes = new Uint8Array([137, 80, 78, 71])
    const content = async (body: Uint8Array, headers: Record<string, string>) => {
      shop.upstream.script = (_, reply) => reply.send(200, body, headers)
      return (await buy('shop-item')).result?.content[0] as Partial<Content> | undefined
    }
    expect(await content(bytes, { 'content-type': 'image/png' })).toEqual({
      type: 'image',
      mimeType: 'image/png',
      data: 'iVBORw==',
    })
    const packed = { 'content-type': 'application/json', 'content-encoding': 'gzip' }
    expect((await content(gzipSync('[1]'), packed))?.text).toBe('[1]')
    for (const type of ['application/pdf', 'application/json; charset=utf-8'])
      expect((await content(new Uint8Array([255]), { 'content-type': type }))?.resource).toEqual({
        uri: 'http://localhost:4020/m/shop/item',
        mimeType: type.split(';')[0] ?? '',
        blob: '/w==',
      })
    // Data that is declared as gzip and cannot be decompressed is truncated data.
    expect((await content(new Uint8Array([255]), packed))?.text).toStartWith('Upstream Failed')
  })

  test('a payment that was not delivered is redeemed by the token, once', async () => {
    const payment = await paymentFor('shop-item', 2)
    shop.upstream.script = (_, reply) => reply.send(500)
    const failed = await send(call('shop-item', {}, payment))
    expect(failed.result?.isError).toBe(true)
    const { code, redeem } = (failed.result?.structuredContent ?? {}) as {
      code: string
      redeem: Message
    }
    expect(code).toBe('upstream-failed')
    shop.upstream.script = undefined
    const paid = shop.counts().payments
    const again = await send(call('shop-item', {}, { 'turnpike/redeem': redeem.token }))
    expect(again.result?.content[0]?.text).toBe('{"ok":true}')
    expect(shop.counts().payments).toBe(paid)
    const other = await send(call('shop-other', {}, { 'turnpike/redeem': redeem.token }))
    expect(other.result?.structuredContent).toMatchObject({ code: 'payment-mismatch' })
  })

  test('a paid call of an answer that may be had again has the token for it, and no call signs in', async () => {
    const { result: asked } = await send(call('club-item'))
    expect(asked?.structuredContent.extensions).not.toHaveProperty('sign-in-with-x')
    expect(asked?.content[1]?.text).toContain('again: the same answer for 24 hours, once.')
    const bought = await send(call('club-item', {}, await paymentFor('club-item', 4)))
    const { 'turnpike/redeem': token } = bought.result?._meta ?? {}
    const paid = shop.counts().payments
    const again = await send(call('club-item', {}, { 'turnpike/redeem': token }))
    expect(again.result?.content[0]?.text).toBe('{"ok":true}')
    expect(again.result?._meta['x402/payment-response']).toMatchObject({ success: true })
    const third = await send(call('club-item', {}, { 'turnpike/redeem': token }))
    expect(third.result?.structuredContent).toMatchObject({ status: 410 })
    expect(shop.counts().payments).toBe(paid)
  })

  test('a challenge of HTTP pays for the same tool, and for no other', async () => {
    const [challenge] = challengesOf(await fetch(`${shop.url}/m/shop/item`)).filter(
      ({ request }) => request.methodDetails.chainId === 8453,
    )
    if (challenge === undefined) throw new Error('no challenge')
    const value = await payMpp(challenge, account(3).local())
    const json = JSON.parse(Buffer.from(value.slice('Payment '.length), 'base64url').toString())
    const meta = { 'org.paymentauth/credential': json }
    const refused = await send(call('shop-other', {}, meta))
    expect(refused.error).toMatchObject({ code: -32043 })
    expect((await send(call('shop-item', {}, meta))).result?.content[0]?.text).toBe('{"ok":true}')
    expect((await send(call('shop-item', {}, meta))).error).toMatchObject({
      code: -32043,
      data: { failure: { reason: 'invalid-challenge' } },
    })
  })

  test('error: a merchant out of service has no tool', async () => {
    const { result } = await send({ jsonrpc: '2.0', id: 1, method: 'tools/list' })
    const names = result?.tools.map(({ name }) => name) ?? []
    expect(names).toContain('shop-item')
    expect(names).not.toContain('closed-item')
    expect((await send(call('closed-item'))).error?.code).toBe(-32602)
    const bad = { jsonrpc: '2.0', id: 1, method: 'tools/list', params: { cursor: 'x' } }
    expect((await send(bad)).error?.code).toBe(-32602)
  })
})
