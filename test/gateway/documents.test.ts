import { describe, expect, test } from 'bun:test'
import { exampleOfSchema } from '../../src/gateway/documents/Catalogue'
import { createDocuments, type Serve } from '../../src/gateway/documents/documents'
import type * as Network from '../../src/protocol/Network'
import { ProblemError } from '../../src/protocol/Problem'
import { config, merchant, param, route } from '../harness/merchants'

const receiptAddress = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const title = param('title', { in: 'tail', required: true, example: 'AC/DC' })
const configuration = config([
  merchant('weather', { title: 'Weather', routes: [route('/forecast'), route('/history')] }),
  merchant('wiki', {
    networks: ['eip155:8453'],
    routes: [route('/summary', { tail: 'required', params: [title] })],
  }),
  merchant('closed', { outOfService: 'KEY', routes: [route('/x')] }),
])

/** Documents, and the networks that can settle, which a test may change. */
function documents() {
  const ready = new Set<Network.Id>(['eip155:4663', 'eip155:8453'])
  const made = createDocuments(configuration, {
    receiptAddress,
    isReady: (network) => ready.has(network),
    facilitators: () => [],
    updatedAt: 1_763_000_000_500,
  })
  return { ...made, ready }
}

const get = (serve: Serve, query = '', headers: Record<string, string> = {}) =>
  serve(new Request(`http://localhost/document${query}`, { headers }))
const text = (serve: Serve) => get(serve).text()

describe('a document', () => {
  test('a document may be cached for five minutes and is 304 while it is unchanged', async () => {
    const { aggregate } = documents()
    const first = get(aggregate)
    const etag = first.headers.get('etag') ?? ''
    expect(first.status).toBe(200)
    expect(first.headers.get('content-type')).toBe('application/json')
    expect(first.headers.get('cache-control')).toBe('public, max-age=300')
    expect(etag).toMatch(/^"[\w-]{43}"$/)
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
      const again = get(aggregate, '', { 'if-none-match': known })
      expect(again.status).toBe(304)
      expect(again.headers.get('etag')).toBe(etag)
      expect(await again.text()).toBe('')
    }
    expect(get(aggregate, '', { 'if-none-match': '"other"' }).status).toBe(200)
  })

  test('a document is built once, and again when a network becomes ready or stops being ready', async () => {
    const { aggregate, wellKnown, ready } = documents()
    const both = await text(aggregate)
    const tags = [get(aggregate), get(aggregate)].map(({ headers }) => headers.get('etag'))
    expect(tags[0]).toBe(tags[1] ?? '')
    ready.delete('eip155:4663')
    const partial = get(aggregate)
    expect(partial.headers.get('etag')).not.toBe(tags[0])
    expect(partial.headers.get('cache-control')).toBe('public, max-age=10')
    const one = await partial.text()
    expect(one).not.toContain('eip155:4663')
    expect(one).toContain('eip155:8453')
    ready.add('eip155:4663')
    ready.delete('eip155:8453')
    // wiki is sold on 8453 only.
    expect(await text(aggregate)).not.toContain('wiki')
    expect(await text(wellKnown)).not.toContain('wiki')
    ready.add('eip155:8453')
    expect(await text(aggregate)).toBe(both)
  })

  test('error: a document is 405 for other methods, and a preflight is answered', () => {
    const { aggregate, resources } = documents()
    for (const serve of [aggregate, resources]) {
      const ask = (method: string) => serve(new Request('http://localhost/document', { method }))
      expect(() => ask('POST')).toThrow('GET, HEAD, OPTIONS')
      expect(ask('OPTIONS').status).toBe(204)
      expect(ask('HEAD').headers.get('etag')).toBe(get(serve).headers.get('etag'))
    }
  })

  test('while no network can settle, all prices stay listed', () => {
    const { aggregate, find, ready } = documents()
    const wiki = find('/m/wiki/openapi.json')
    if (wiki === undefined) throw new Error('no document')
    const whole = [get(aggregate).headers.get('etag'), get(wiki).headers.get('etag')]
    ready.clear()
    const now = [get(aggregate), get(wiki)]
    expect(now.map(({ headers }) => headers.get('etag'))).toEqual(whole)
    for (const { headers } of now) expect(headers.get('cache-control')).toBe('public, max-age=10')
  })

  test('error: a merchant out of service is 503, so that no indexer removes it', () => {
    const { find } = documents()
    const closed = find('/m/closed/openapi.json')
    if (closed === undefined) throw new Error('no document')
    expect(() => get(closed)).toThrow(ProblemError)
    expect(() => get(closed)).toThrow('Nothing can be bought')
    expect(find('/m/none/openapi.json')).toBeUndefined()
  })
})

describe('the list of resources', () => {
  const page = async (query: string, serve = documents().resources) =>
    (await get(serve, query).json()) as {
      x402Version: number
      items: { resource: string; [member: string]: unknown }[]
      pagination: object
    }

  test('entries have the members of section 8 of x402 v2', async () => {
    const { x402Version, items, pagination } = await page('')
    expect(x402Version).toBe(2)
    expect(pagination).toEqual({ limit: 20, offset: 0, total: 3 })
    expect(items[0]).toMatchObject({
      resource: 'http://localhost:4020/m/weather/forecast',
      type: 'http',
      x402Version: 2,
      lastUpdated: 1_763_000_000,
      description: 'Description of /forecast',
      metadata: { category: 'Data', provider: 'Turnpike' },
    })
    expect(items[0]?.accepts).toHaveLength(3)
    // A route with a required tail is listed with an example, and with the key of all its URLs.
    expect(items[2]).toMatchObject({
      resource: 'http://localhost:4020/m/wiki/summary/AC%2FDC',
      extensions: { bazaar: { routeTemplate: '/m/wiki/summary/:title' } },
    })
    expect(items[2]?.accepts).toHaveLength(1)
  })

  test('limit and offset select a page, and a type other than http selects nothing', async () => {
    const { items, pagination } = await page('?type=http&limit=1&offset=1')
    expect(items.map(({ resource }) => resource)).toEqual([
      'http://localhost:4020/m/weather/history',
    ])
    expect(pagination).toEqual({ limit: 1, offset: 1, total: 3 })
    expect((await page('?offset=9007199254740991')).items).toEqual([])
    expect(await page('?type=mcp')).toMatchObject({ items: [], pagination: { total: 0 } })
  })

  test('error: an invalid limit or offset is refused by its name', () => {
    const { resources } = documents()
    for (const query of ['limit=0', 'limit=101', 'limit=x', 'limit=', 'offset=-1', 'offset=1.5']) {
      const ask = () => get(resources, `?${query}`)
      expect(ask).toThrow(`Invalid: ${query.split('=')[0]}.`)
      expect(ask).toThrow(ProblemError)
    }
  })
})

test('llms.txt describes what is sold and how it is paid for', async () => {
  const { llms } = documents()
  const said = await text(llms)
  expect(get(llms).headers.get('content-type')).toBe('text/plain; charset=utf-8')
  expect(said).toStartWith('# Turnpike\n\n> Each path is an independent paid endpoint.\n')
  expect(said).toContain('USDG on Robinhood Chain (eip155:4663), USDC on Base (eip155:8453)')
  expect(said).toContain('- GET http://localhost:4020/m/wiki/summary/{title} - $0.005 - Summary')
  expect(said).toContain('http://localhost:4020/mcp')
  expect(said).toContain('(http://localhost:4020/api/openapi.json)')
  expect(said).not.toContain('closed')
})

test('the example of a schema is its own, a known one, or the simplest of its type', () => {
  const schema = {
    type: 'object',
    required: ['symbol', 'count', 'tags'],
    properties: {
      symbol: { type: 'string' },
      count: { type: 'integer', minimum: 3 },
      tags: { type: 'array', items: { enum: ['a', 'b'] } },
      model: { type: 'string', examples: ['fast'] },
      extra: { type: 'boolean' },
      messages: { type: 'array', items: { type: 'object', required: ['role'], properties: {} } },
    },
  }
  expect(exampleOfSchema(schema, { symbol: 'NVDA' })).toEqual({
    symbol: 'NVDA',
    count: 3,
    tags: ['a'],
    model: 'fast',
    messages: [{}],
  })
  // A recursive schema ends at the depth limit.
  const endless: Record<string, unknown> = { type: 'array' }
  endless.items = endless
  expect(JSON.stringify(exampleOfSchema(endless))).toBe('[[[[[[]]]]]]')
})
