import { afterAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parseConfig } from '../../src/config/merchants'
import { startUpstreams } from '../../src/demo/upstreams'
import * as Route from '../../src/gateway/Route'
import * as Tail from '../../src/gateway/Tail'
import * as Example from '../../src/web/public/Example'
import { payout } from '../harness/config'
import { misfitsOf } from '../harness/shape'

const file = 'merchants.toml'
const text = await Bun.file(join(import.meta.dir, '../..', file)).text()
const env = { PAYOUT: payout, ASSISTANT_KEY: 'key' }
const { config, faults } = parseConfig(text, { file, env })
if (!config) throw new Error(JSON.stringify(faults))
const matcher = Route.compile(config.merchants)

const upstreams = await startUpstreams({ merchants: config.merchants, eventGapMs: 1 })
afterAll(() => upstreams.stop())

async function get(path: string, headers: Record<string, string> = {}) {
  const response = await fetch(upstreams.url + path, { headers })
  return { status: response.status, headers: response.headers, text: await response.text() }
}

function exampleOf({ param, prefix, suffix }: Tail.Segment): string {
  return `${prefix}${param.example}${suffix}`
}

describe('upstreams', () => {
  for (const { slug, headers, routes: sold } of config.merchants.filter((one) => one.upstream)) {
    test(`every route of ${slug} is answered with the examples of its parameters`, async () => {
      for (const route of sold) {
        const query = new URLSearchParams()
        for (const { name, in: place, example } of route.params) {
          if (place === 'query' && example !== undefined) query.set(name, String(example))
        }
        const segments = Tail.segmentsOf(route)
        const least = segments.filter(({ param }) => param.required)
        // The required parameters, and all optional ones.
        const tails = new Set([least, segments].map((some) => some.map(exampleOf).join('/')))
        for (const tail of tails) {
          const path = `/m/${slug}${route.path}${tail && `/${tail}`}`
          const found = Route.match(matcher, path)
          if (!found?.target) throw new Error(`nothing is sold at ${path}`)
          const url = Route.upstreamUrl(found.target, found.tail, `?${query}`)
          const method = route.methods[0] ?? 'GET'
          const body = method === 'POST' ? '{"messages":[{"role":"user","content":"x"}]}' : null
          const target = upstreams.url + url.pathname + url.search
          const answered = await fetch(target, { method, headers, body })
          expect(`${path} ${url} ${answered.status}`).toBe(`${path} ${url} 200`)
          expect(answered.headers.get('Content-Type')).toContain('json')
          const example = JSON.parse(Example.answerOf(route) ?? '"no example"')
          expect([path, misfitsOf(example, await answered.json())]).toEqual([path, []])
        }
      }
    })
  }

  test('an answer has what the request names, and the same every time', async () => {
    const at = async (latitude: number) =>
      (await get(`/v1/forecast?latitude=${latitude}&longitude=1&current=temperature_2m`)).text
    expect(await at(10)).toBe(await at(10))
    const [one, other] = [JSON.parse(await at(10)), JSON.parse(await at(11))]
    expect([one.latitude, other.latitude, one.longitude]).toEqual([10, 11, 1])
    expect(one.current.temperature_2m).not.toBe(other.current.temperature_2m)
    const { coins } = JSON.parse((await get('/prices/current/coingecko:ethereum')).text)
    expect(Object.keys(coins)).toEqual(['coingecko:ethereum'])
  })

  test('an answer is compressed only when asked', async () => {
    const path = '/v2/chains'
    const plain = await get(path, { 'Accept-Encoding': 'identity' })
    expect(plain.headers.get('Content-Encoding')).toBeNull()
    const packed = await get(path, { 'Accept-Encoding': 'gzip' })
    expect(packed.headers.get('Content-Encoding')).toBe('gzip')
    expect(packed.text).toBe(plain.text)
  })

  test('error: a path that no route forwards to is 404', async () => {
    for (const path of ['/nothing/here', '/v1', '/tvl', '/api/v1/chat/completions'])
      expect([path, (await get(path)).status]).toEqual([path, 404])
    expect((await get('/tvl/%ff')).status).toBe(200)
  })

  test('requests are recorded as they arrived', async () => {
    const init = { method: 'POST', body: 'x', headers: { 'User-Agent': 'agent' } }
    await fetch(`${upstreams.url}/words?a=%2F&b[c]=1`, init)
    expect(upstreams.requests.at(-1)).toMatchObject({
      method: 'POST',
      target: '/words?a=%2F&b[c]=1',
      body: 'x',
      headers: { 'user-agent': 'agent' },
    })
  })
})

describe('chat', () => {
  const ask = (body: unknown, headers: Record<string, string> = { Authorization: 'Bearer k' }) =>
    fetch(`${upstreams.url}/api/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify(body),
      headers,
    })
  const messages = [{ role: 'user', content: 'a joke' }]

  test('a completion echoes the model and the last message', async () => {
    const response = await ask({ model: 'vendor/model', messages })
    expect(await response.json()).toMatchObject({
      object: 'chat.completion',
      model: 'vendor/model',
      choices: [{ message: { role: 'assistant', content: expect.stringContaining('a joke') } }],
    })
  })

  test('a stream arrives event by event and ends with [DONE]', async () => {
    const response = await ask({ messages, stream: true })
    expect(response.headers.get('Content-Type')).toBe('text/event-stream')
    const pieces: string[] = []
    for await (const piece of response.body ?? []) pieces.push(new TextDecoder().decode(piece))
    expect(pieces.length).toBeGreaterThan(3)
    const events = pieces
      .join('')
      .split('\n\n')
      .filter((event) => event.startsWith('data: '))
    expect(events.pop()).toBe('data: [DONE]')
    const deltas = events.map((event) => JSON.parse(event.slice(6)).choices[0].delta.content)
    expect(deltas.join('')).toContain('has read "a joke"')
  })

  test('usage is reported as OpenAI does, whole and in a stream that asks for it', async () => {
    const asked = { messages, max_completion_tokens: 3 }
    const whole = await (await ask(asked)).json()
    expect(whole).toMatchObject({
      choices: [{ finish_reason: 'length', message: { content: 'A sample model ' } }],
      usage: { completion_tokens: 3, prompt_tokens: expect.any(Number) },
    })
    const read = async (body: object) =>
      (await (await ask(body)).text())
        .split('\n\n')
        .filter((event) => event.startsWith('data: {'))
        .map((event) => JSON.parse(event.slice(6)))
    const chunks = await read({ ...asked, stream: true, stream_options: { include_usage: true } })
    const last = chunks.pop()
    expect(last).toMatchObject({ choices: [], usage: { completion_tokens: 3 } })
    expect(chunks).toHaveLength(4)
    expect(chunks.every((chunk) => chunk.usage === null)).toBe(true)
    const silent = await read({ ...asked, stream: true })
    expect(silent).toHaveLength(4)
    expect(silent.some((chunk) => 'usage' in chunk)).toBe(false)
  })

  test('error: without a bearer key 401, without messages 400', async () => {
    const refused = await ask({ messages }, {})
    expect(refused.status).toBe(401)
    expect(await refused.json()).toEqual({
      error: { code: 401, message: 'No auth credentials found' },
    })
    expect((await ask({})).status).toBe(400)
  })
})
