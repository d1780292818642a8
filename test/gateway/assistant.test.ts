import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import zlib from 'node:zlib'
import { startUpstreams } from '../../src/demo/upstreams'
import { buy, type Shop, sign, startShop, type Terms } from '../harness/shop'
import type { Reply } from '../harness/upstream'

// The shop sets it for the assistant of the shipped file.
const key = 'assistant-s3cret-key'
let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    edit: (text) => text.replaceAll('"~moonshotai/kimi-latest"', '"own/model-8b"'),
  })
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const chat = () => `${shop.url}/m/assistant/chat`
const messages = [{ role: 'user', content: 'a joke' }]
const model = 'assistant-fast'
const asking = (body: unknown): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: typeof body === 'string' ? body : JSON.stringify(body),
})

async function ask(body: unknown, terms: Terms = {}, headers: Record<string, string> = {}) {
  const init = asking(body)
  const credential = await sign(chat(), { ...terms, init })
  return fetch(chat(), { ...init, headers: { ...init.headers, ...credential, ...headers } })
}

/** The upstream's handler of the next request. */
function nextReply(): Promise<Reply> {
  return new Promise((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })
}

/** Everything of an answer that a buyer can read. */
async function seen(response: Response): Promise<string> {
  return JSON.stringify([response.status, [...response.headers], await response.text()])
}

describe('models', () => {
  for (const [alias, model] of [
    ['assistant-fast', '~google/gemini-flash-latest'],
    ['assistant-balanced', '~anthropic/claude-sonnet-latest'],
    ['assistant-deep', '~openai/gpt-latest'],
    // The operator chooses these models in the file.
    ['assistant-open', 'own/model-8b'],
    ['~openai/gpt-latest', '~openai/gpt-latest'],
  ] as const)
    test(`${alias} asks the upstream for ${model}`, async () => {
      const text = (name: string) =>
        `"seed":12345678901234567890, "model":"${name}","messages":${JSON.stringify(messages)}}`
      expect((await ask(`{${text(alias)}`)).status).toBe(200)
      const [arrived] = shop.upstream.requests
      expect(arrived).toMatchObject({ method: 'POST', target: '/api/v1/chat/completions' })
      // Everything but the output limit is unchanged.
      expect(arrived?.body).toBe(`{"max_completion_tokens":2000,${text(model)}`)
      expect(arrived?.headers).toMatchObject({
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
      })
      expect(Object.keys(arrived?.headers ?? {})).not.toContain('payment-signature')
    })

  test('a request with further members is forwarded', async () => {
    expect((await ask({ model, messages, tools: [{ type: 'function' }], top_p: 1 })).status).toBe(
      200,
    )
    expect(shop.upstream.requests.map(({ body }) => body.includes('top_p'))).toEqual([true])
  })

  test('error: a request without its required body is refused before payment, with the missing members', async () => {
    const before = shop.counts()
    const missing = {
      invalidParams: [
        { name: 'model', in: 'body', reason: 'is required' },
        { name: 'messages', in: 'body', reason: 'is required' },
      ],
    }
    const asked = await fetch(chat(), { method: 'POST' })
    expect([asked.status, await asked.json()]).toMatchObject([402, missing])
    const response = await buy(chat(), { scheme: 'x402-permit2', init: { method: 'POST' } })
    expect([response.status, await response.json()]).toMatchObject([400, missing])
    expect([shop.counts(), shop.upstream.requests.length]).toEqual([before, 0])
    // A body that is too long to be read without payment is not checked.
    const long = await fetch(chat(), asking({ messages, x: 'x'.repeat(1_100_000) }))
    expect([long.status, await long.json()]).not.toMatchObject([402, missing])
  })
})

describe('streaming', () => {
  const events = { 'content-type': 'text/event-stream; charset=utf-8' }

  test('each event arrives before the next is sent', async () => {
    const reply = nextReply()
    const bought = ask({ model: 'assistant-fast', messages, stream: true })
    const upstream = await reply
    upstream.head(200, events)
    upstream.chunk(': PROCESSING\n\n')
    const response = await bought
    expect(response.headers.get('content-type')).toBe(events['content-type'])
    expect(response.headers.get('payment-receipt')).not.toBeNull()
    const reader = response.body?.getReader()
    const read = async () => new TextDecoder().decode((await reader?.read())?.value)
    expect(await read()).toBe(': PROCESSING\n\n')
    for (const event of [
      'data: {"choices":[{"delta":{"content":"Why"}}]}\n\n',
      'data: [DONE]\n\n',
    ]) {
      upstream.chunk(event)
      expect(await read()).toBe(event)
    }
    upstream.end()
    expect((await reader?.read())?.done).toBe(true)
  })

  test('error: the key in an event stream is redacted, also between two chunks', async () => {
    const reply = nextReply()
    const bought = ask({ model, messages, stream: true })
    const upstream = await reply
    upstream.head(200, { ...events, 'x-debug': key })
    upstream.chunk(`data: {"error":"bad key ${key.slice(0, 7)}`)
    const response = await bought
    upstream.chunk(`${key.slice(7)}"}\n\n`)
    upstream.chunk(`data: ${key}\n\n`)
    upstream.end()
    const all = await seen(response)
    expect(all).not.toContain(key)
    expect(JSON.parse(all)[2]).toBe('data: {"error":"bad key [redacted]"}\n\ndata: [redacted]\n\n')
  })
})

describe('the key of the upstream', () => {
  const long = `${'x'.repeat(1_500_000)}${key}${'y'.repeat(1_000)}`
  const answers: readonly (readonly [
    string,
    number,
    string | Uint8Array,
    Record<string, string>,
  ])[] = [
    ['an answer', 200, `{"key":"${key}"}`, { 'content-type': 'application/json' }],
    ['a header', 200, '{}', { 'content-type': 'application/json', etag: `"${key}"` }],
    ['an error', 400, `{"error":{"message":"${key}"}}`, { 'content-type': 'application/json' }],
    ['a refusal', 401, `{"error":{"message":"${key}"}}`, { 'www-authenticate': `Bearer ${key}` }],
    ['a failure', 500, key, { 'content-type': 'text/plain' }],
    ['a redirect', 302, key, { location: `https://example.com/?key=${key}` }],
    ['a long answer', 200, long, { 'content-type': 'text/plain' }],
    [
      'a long packed answer',
      200,
      new Uint8Array(zlib.gzipSync(long, { level: 0 })),
      { 'content-type': 'text/plain', 'content-encoding': 'gzip' },
    ],
    [
      'a packed answer that grows',
      200,
      new Uint8Array(zlib.gzipSync(`${'x'.repeat(6_000_000)}${key}`)),
      { 'content-type': 'text/plain', 'content-encoding': 'gzip' },
    ],
  ]
  for (const [what, status, body, headers] of answers)
    test(`error: the key of the upstream is in no byte that a buyer gets from ${what}`, async () => {
      shop.upstream.script = (_, reply) => reply.send(status, body, headers)
      const response = await ask({ model, messages }, { scheme: 'x402-permit2' })
      expect(response.status).toBe([200, 400].includes(status) ? status : 502)
      const all = await seen(response)
      expect(all).not.toContain(key)
      if (what.includes('answer')) expect(all).toContain('[redacted]')
      expect(shop.logged.join('')).not.toContain(key)
    })

  test('error: the key of the upstream is in no challenge, document or fault', async () => {
    const urls = [
      chat(),
      `${shop.url}/openapi.json`,
      `${shop.url}/m/assistant/openapi.json`,
      `${shop.url}/.well-known/x402`,
      `${shop.url}/metrics`,
      `${shop.url}/readyz`,
      `${chat()}?key=${'x'.repeat(20)}`,
    ]
    for (const url of urls)
      for (const method of ['GET', 'POST', 'OPTIONS'])
        expect(await seen(await fetch(url, { method }))).not.toContain(key)
    shop.upstream.script = (_, reply) => reply.cut()
    const cut = await ask({ model, messages })
    expect(cut.status).toBe(502)
    expect(await seen(cut)).not.toContain(key)
    expect(shop.logged.join('')).not.toContain(key)
    expect(
      shop
        .rows('SELECT * FROM merchants')
        .map((row) => JSON.stringify(row))
        .join(),
    ).not.toContain(key)
  })
})

describe('deeply nested content', () => {
  const nested = '['.repeat(15_000) + ']'.repeat(15_000)
  const deep = `{"max_completion_tokens":9,"model":"~openai/gpt-latest","messages":[{"role":"user","content":${nested}}]}`

  test('error: deeply nested content is refused before a charge', async () => {
    const response = await ask(deep)
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({
      code: 'invalid-parameter',
      invalidParams: [{ in: 'body', reason: 'has too many parts' }],
    })
    expect(shop.upstream.requests).toEqual([])
  })

  test('the sample of a chat service answers deeply nested content', async () => {
    const samples = await startUpstreams({ merchants: [] })
    const init = { ...asking(deep), headers: { authorization: 'Bearer k' } }
    const response = await fetch(`${samples.url}/api/v1/chat/completions`, init)
    expect(response.status).toBe(200)
    await samples.stop()
  })
})
