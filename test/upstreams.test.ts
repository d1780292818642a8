import { afterAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parse } from '../src/config/merchants'
import { routes, startUpstreams } from '../src/demo/upstreams'
import * as Route from '../src/gateway/Route'
import * as Tail from '../src/gateway/Tail'
import * as Example from '../src/web/public/Example'
import { payout } from './harness/config'
import { misfitsOf } from './harness/shape'

const upstreams = await startUpstreams({ eventGapMs: 1 })
afterAll(() => upstreams.stop())

const file = 'merchants.toml'
const text = await Bun.file(join(import.meta.dir, '..', file)).text()
const env = { PAYOUT: payout, ASSISTANT_KEY: 'key' }
const { config, faults } = parse(text, { file, env })
if (!config) throw new Error(JSON.stringify(faults))
const matcher = Route.compile(config.merchants)

const treasury = '/services/api/fiscal_service'
const address = '0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC'
const hash = `0x${'1f'.repeat(32)}`
const agent = { 'User-Agent': 'turnpike (ops@example.com)' }

/** Every upstream path of the shipped merchants, with a member that its answer must have. */
const samples: readonly (readonly [string, string])[] = [
  ['/v1/forecast?latitude=52.52&longitude=13.41&current=temperature_2m', 'current.temperature_2m'],
  ['/v1/forecast?latitude=1&longitude=1&daily=temperature_2m_max,sunrise', 'daily.sunrise.6'],
  ['/v1/forecast?latitude=1&longitude=1&hourly=rain&forecast_days=16', 'hourly.rain.383'],
  ['/v1/air-quality?latitude=52.5&longitude=13.4&current=us_aqi,pm2_5', 'current.pm2_5'],
  ['/v1/search?name=Berlin&count=1', 'results.0.timezone'],
  ['/v1/latest?base=USD&symbols=EUR,GBP', 'rates.GBP'],
  ['/v1/currencies', 'USD'],
  ['/v1/2024-11-25?base=USD', 'rates.EUR'],
  ['/v1/2000-01-01..2000-01-31', 'rates.2000-01-31.USD'],
  ['/v1/2026-11-01..', 'end_date'],
  ['/prices/current/coingecko:bitcoin,base:0x833589fcd6edb6e08f4c7c32d4f71b54bda02913', 'coins'],
  ['/prices/historical/1648680149/coingecko:bitcoin', 'coins.coingecko:bitcoin.price'],
  ['/chart/coingecko:bitcoin?period=2d&span=5', 'coins.coingecko:bitcoin.prices.4.timestamp'],
  ['/v2/chains', '0.tvl'],
  ['/protocols', '419.chainTvls'],
  ['/stablecoins?includePrices=true', 'peggedAssets.0.price'],
  ['/w/rest.php/v1/search/page?q=earth&limit=3', 'pages.0.excerpt'],
  ['/api/rest_v1/page/summary/Alan_Turing', 'content_urls.desktop.page'],
  ['/api/rest_v1/page/summary/AC%2FDC', 'extract'],
  ['/api/v2/entries/en/toll', '0.meanings.0.definitions.0.example'],
  ['/words?ml=toll&max=5', '4.score'],
  ['/api/v1/search?tags=front_page', 'hits.0.title'],
  ['/api/v1/search?query=sqlite&hitsPerPage=3', 'hits.2.objectID'],
  ['/v2/country/US?format=json', '1.0.capitalCity'],
  ['/v2/country?format=json&per_page=2', '1.1.id'],
  ['/v2/country/US/indicator/NY.GDP.PCAP.CD?format=json&date=2015:2023', '1.8.value'],
  ['/api/v2/stats', 'total_transactions'],
  [`/api/v2/addresses/${address}`, 'token.symbol'],
  [`/api/v2/addresses/${address}/transactions`, 'items.0.hash'],
  [`/api/v2/addresses/${address}/token-balances`, '0.value'],
  ['/api/v2/tokens?q=nvda', 'items.0.address_hash'],
  [`/api/v2/tokens/${address}`, 'holders_count'],
  [`/api/v2/tokens/${address}/holders`, 'items.0.address.hash'],
  ['/api/v2/transactions', 'items.49.fee.value'],
  [`/api/v2/transactions/${hash}`, 'block_number'],
  [`/api/v2/transactions/${hash}/logs`, 'items.0.topics.0'],
  [`/api/v2/transactions/${hash}/token-transfers`, 'items.0.total.value'],
  ['/search.json?q=dune&limit=2', 'docs.1.author_name.0'],
  ['/works/OL893415W.json', 'authors.0.author.key'],
  ['/files/company_tickers.json', '0.ticker'],
  ['/submissions/CIK0000320193.json', 'filings.recent.accessionNumber.0'],
  ['/submissions/CIK0000320193-submissions-001.json', 'accessionNumber.599'],
  ['/api/xbrl/companyfacts/CIK0000320193.json', 'facts.us-gaap.Assets.units.USD.0.val'],
  [
    `${treasury}/v2/accounting/od/debt_to_penny?sort=-record_date&page[size]=1`,
    'data.0.record_date',
  ],
  [`${treasury}/v1/accounting/od/rates_of_exchange`, 'data.0.exchange_rate'],
  [`${treasury}/v2/accounting/od/avg_interest_rates`, 'data.0.avg_interest_rate_amt'],
  ['/api/v3/global', 'data.market_cap_percentage.btc'],
  ['/api/v3/coins/bitcoin', 'market_data.current_price.usd'],
  ['/api/v3/coins/markets?vs_currency=usd', '0.market_cap'],
  ['/rhj/assets', 'assets.13.deployments.0.contractAddress'],
  ['/rhj/prices/NVDA', 'quotes.0.bid'],
]

async function get(path: string, headers: Record<string, string> = agent) {
  const response = await fetch(upstreams.url + path, { headers })
  const text = await response.text()
  return { status: response.status, headers: response.headers, text }
}

function exampleOf({ param, prefix, suffix }: Tail.Segment): string {
  return `${prefix}${param.example}${suffix}`
}

function member(value: unknown, path: string): unknown {
  // Ids like `coingecko:bitcoin` contain no dot.
  return path.split('.').reduce<unknown>((at, key) => Object(at)[key], value)
}

describe('upstreams', () => {
  for (const [path, expected] of samples) {
    test(`behavior: ${path.slice(0, 60)} answers in its shape, and the same every time`, async () => {
      const { status, text } = await get(path)
      expect(status).toBe(200)
      const value = member(JSON.parse(text), expected)
      expect(value).toBeDefined()
      expect(value).not.toBeNull()
      expect((await get(path)).text).toBe(text)
    })
  }

  test('behavior: no path belongs to two samples, and every sample is requested above', () => {
    const chat = ['/v1/chat/completions', '/v1/models']
    const others = [...chat, '/tvl/aave', '/api/v3/simple/price', '/submissions/CIK1.json']
    const used = new Set<RegExp>()
    for (const path of [...samples.map(([sample]) => sample), ...others]) {
      const { pathname } = new URL(path, upstreams.url)
      const fitting = routes.filter((route) => route.path.test(pathname))
      expect(`${pathname} ${fitting.length}`).toBe(`${pathname} 1`)
      for (const route of fitting) used.add(route.path)
    }
    expect(routes.filter((route) => !used.has(route.path))).toEqual([])
  })

  for (const { slug, headers, routes: sold } of config.merchants.filter((one) => one.upstream)) {
    test(`behavior: every route of ${slug} is answered with the examples of its parameters`, async () => {
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
          // The request that the page of the merchant shows has every parameter with an example.
          if (tail !== [...tails].at(-1)) continue
          const example = JSON.parse(Example.answerOf(route) ?? '"no example"')
          expect([path, misfitsOf(example, await answered.json())]).toEqual([path, []])
        }
      }
    })
  }

  test('behavior: other queries get other values', async () => {
    const at = async (latitude: number) =>
      (await get(`/v1/forecast?latitude=${latitude}&longitude=1&current=temperature_2m`)).text
    expect(await at(10)).not.toBe(await at(11))
    const names = JSON.parse((await get('/prices/current/coingecko:nothing%20here,bad')).text)
    expect(names).toEqual({ coins: {} })
  })

  test('behavior: a forecast is an object, of several places a list', async () => {
    const at = async (query: string) => {
      const { status, text } = await get(`/v1/forecast?${query}&current=temperature_2m`)
      return { status, body: JSON.parse(text) }
    }
    const one = await at('latitude=52.52&longitude=13.41')
    const { status, body } = await at('latitude=52.52,48.85&longitude=13.41,2.35')
    expect([status, body.length]).toEqual([200, 2])
    expect(body[0]).toEqual(one.body)
    expect(body[1]).toMatchObject({ latitude: 48.85, longitude: 2.35, location_id: 1 })
    for (const [query, reason] of [
      ['latitude=52.52,48.85&longitude=13.41', 'same number of elements'],
      ['latitude=52.52,&longitude=13.41,2.35', "Parameter 'latitude'"],
      ['latitude=1,2&longitude=3,181', "Parameter 'longitude'"],
    ] as const) {
      const refused = await at(query)
      expect([query, refused.status]).toEqual([query, 400])
      expect(refused.body.reason).toContain(reason)
    }
  })

  test('behavior: tvl is a bare number', async () => {
    expect((await get('/tvl/aave')).text).toMatch(/^\d+\.\d+$/)
  })

  test('error: each service has its own form of errors', async () => {
    const cases: readonly (readonly [string, number, string])[] = [
      ['/v1/forecast?longitude=1', 400, '"error":true'],
      ['/v1/forecast?latitude=1&longitude=1&forecast_days=17', 400, 'Forecast days'],
      ['/v1/search?name=Nowhereville', 200, '{"generationtime_ms":0.44}'],
      ['/v1/latest?base=XXX', 404, '{"message":"not found"}'],
      ['/v1/1998-12-31', 404, '{"message":"not found"}'],
      ['/tvl/nothing', 404, 'Protocol not found'],
      ['/api/rest_v1/page/summary/No_such_page', 404, '"title":"Not found."'],
      ['/api/v2/entries/en/is', 404, 'No Definitions Found'],
      ['/words?ml=zzzz', 200, '[]'],
      ['/v2/country/ZZ?format=json', 200, '[{"message":[{"id":"120"'],
      ['/v2/country/US/indicator/nope?format=json', 200, '[{"message":[{"id":"120"'],
      ['/v2/country/US', 200, '<?xml'],
      ['/api/v2/addresses/0x12', 422, 'Invalid parameter(s)'],
      [`/api/v2/tokens/0x${'11'.repeat(20)}`, 404, '{"message":"Not found"}'],
      ['/works/OLxW.json', 404, 'notfound'],
      ['/submissions/CIK0000000001.json', 404, 'NoSuchKey'],
      ['/submissions/CIK1.json', 404, 'NoSuchKey'],
      [`${treasury}/v2/accounting/od/debt_to_penny?filter=nope:eq:1`, 400, 'Invalid filter'],
      ['/api/v3/coins/nothing', 404, '{"error":"coin not found"}'],
      ['/nothing/here', 404, 'not found'],
      ['/tvl/%ff', 400, 'malformed path'],
    ]
    for (const [path, status, text] of cases) {
      const answered = await get(path)
      expect(`${path} ${answered.status} ${answered.text}`).toStartWith(`${path} ${status} `)
      expect(answered.text).toContain(text)
    }
    expect((await get('/files/company_tickers.json', { 'User-Agent': 'curl/8' })).status).toBe(403)
  })

  test('behavior: a title that is not in its canonical form redirects to the one that is', async () => {
    for (const [asked, location] of [
      ['Toll%20road', 'Toll_road'],
      ['toll_road', 'Toll_road'],
      ['aC%2FDC', 'AC%2FDC'],
    ] as const) {
      const path = `/api/rest_v1/page/summary/${asked}?redirect=false`
      const answered = await fetch(upstreams.url + path, { redirect: 'manual', headers: agent })
      expect(answered.status).toBe(301)
      expect(answered.headers.get('Location')).toBe(`${location}?redirect=false`)
      const followed = await (await fetch(upstreams.url + path, { headers: agent })).json()
      expect(followed).toMatchObject({ titles: { canonical: decodeURIComponent(location) } })
    }
  })

  test('behavior: a chart without span has no points', async () => {
    const pointsOf = async (query: string) => {
      const { coins } = JSON.parse((await get(`/chart/coingecko:bitcoin${query}`)).text)
      return coins['coingecko:bitcoin'].prices.length
    }
    expect(await pointsOf('?period=1d')).toBe(0)
    expect(await pointsOf('?period=1d&span=3')).toBe(3)
    expect((await get('/chart/coingecko:bitcoin?start=1&end=2&span=3')).status).toBe(400)
  })

  test('behavior: the explorer pages as its version 12 does', async () => {
    type Page = { items: { hash: string }[]; next_page_params: Record<string, string> | null }
    const list = async (path: string) => JSON.parse((await get(path)).text) as Page
    const path = '/api/v2/transactions'
    expect((await list(path)).items).toHaveLength(50)
    expect((await list(`${path}?items_count=7`)).items).toHaveLength(7)
    // A larger number is replaced by the maximum.
    expect((await list(`${path}?items_count=500`)).items).toHaveLength(100)
    const seen = new Set<string>()
    let pages = 0
    for (let next: Page['next_page_params'] = {}; next !== null; pages++) {
      const page = await list(`${path}?${new URLSearchParams(next)}`)
      for (const { hash } of page.items) seen.add(hash)
      next = page.next_page_params
      expect(Object.keys(next ?? {})).not.toContain('items_count')
    }
    expect([pages, seen.size]).toEqual([3, 120])
    for (const query of ['items_count=0', 'items_count=x', 'limit=5'])
      expect((await get(`${path}?${query}`)).status).toBe(422)
    const tokens = '/api/v2/tokens'
    expect((await list(`${tokens}?items_count=2&limit=1`)).items).toHaveLength(2)
    const first = await list(`${tokens}?items_count=2`)
    const query = new URLSearchParams(first.next_page_params ?? {})
    const second = await list(`${tokens}?items_count=2&${query}`)
    expect(second.items).not.toEqual(first.items)
    expect((await get(`${tokens}?items_count=0`)).status).toBe(422)
  })

  test('behavior: the markets accept no key, a Demo key or a Pro key, and refuse a wrong one', async () => {
    const status = async (headers: Record<string, string>) =>
      (await get('/api/v3/global', { ...agent, ...headers })).status
    expect(await status({})).toBe(200)
    expect(await status({ 'x-cg-demo-api-key': 'CG-demo' })).toBe(200)
    expect(await status({ 'x-cg-pro-api-key': 'CG-pro' })).toBe(200)
    expect(await status({ 'x-cg-demo-api-key': 'other' })).toBe(401)
    expect(await status({ 'x-cg-demo-api-key': 'CG-a', 'x-cg-pro-api-key': 'CG-b' })).toBe(400)
  })

  test('behavior: the World Bank refuses what is out of its bounds, with status 200', async () => {
    for (const query of [
      'per_page=32501',
      'per_page=0',
      'page=0',
      'date=20',
      'date=2015:2020:2021',
    ])
      for (const path of ['/v2/country/US', '/v2/country/US/indicator/SP.POP.TOTL']) {
        const { status, text } = await get(`${path}?format=json&${query}`)
        expect(`${query} ${status} ${text}`).toStartWith(`${query} 200 [{"message":[{"id":"120"`)
      }
    expect((await get('/v2/country?format=json&per_page=32500')).text).toStartWith('[{"page":1')
  })

  test('behavior: the treasury filters, sorts, pages and selects', async () => {
    const query =
      'filter=country_currency_desc:in:(Canada-Dollar,Mexico-Peso),record_date:gte:2025-01-01'
    const page = '&fields=country,record_date&sort=-record_date,country&page[size]=3&page[number]=2'
    const { text } = await get(`${treasury}/v1/accounting/od/rates_of_exchange?${query}${page}`)
    const body = JSON.parse(text)
    expect(body.data).toEqual([
      { country: 'Mexico', record_date: '2026-06-30' },
      { country: 'Canada', record_date: '2026-03-31' },
      { country: 'Mexico', record_date: '2026-03-31' },
    ])
    expect(body.meta).toMatchObject({ count: 3, 'total-count': 14, 'total-pages': 5 })
  })

  test('behavior: large answers are large, and compressed only when asked', async () => {
    for (const path of ['/protocols', '/api/xbrl/companyfacts/CIK0000320193.json']) {
      const plain = await get(path, { ...agent, 'Accept-Encoding': 'identity' })
      expect(plain.headers.get('Content-Encoding')).toBeNull()
      expect(plain.text.length).toBeGreaterThan(1 << 20)
      const packed = await fetch(upstreams.url + path, {
        headers: { ...agent, 'Accept-Encoding': 'gzip' },
        decompress: false,
      })
      expect(packed.headers.get('Content-Encoding')).toBe('gzip')
      const unpacked = Bun.gunzipSync(new Uint8Array(await packed.arrayBuffer()))
      expect(new TextDecoder().decode(unpacked)).toBe(plain.text)
    }
  })

  test('behavior: requests are recorded as they arrived, and a test may replace the answer', async () => {
    const own = await startUpstreams({
      intercept: ({ target }) =>
        target === '/v2/chains' ? new Response('gone', { status: 503 }) : undefined,
    })
    const sent = await fetch(`${own.url}/v2/chains`, { method: 'POST', body: 'x', headers: agent })
    expect(sent.status).toBe(503)
    expect((await fetch(`${own.url}/words?a=%2F&b[c]=1`)).status).toBe(200)
    expect(own.requests).toMatchObject([
      {
        method: 'POST',
        target: '/v2/chains',
        body: 'x',
        headers: { 'user-agent': agent['User-Agent'] },
      },
      { method: 'GET', target: '/words?a=%2F&b[c]=1', body: '' },
    ])
    await own.stop()
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

  test('behavior: a completion echoes the model and the last message', async () => {
    const response = await ask({ model: 'vendor/model', messages })
    expect(await response.json()).toMatchObject({
      object: 'chat.completion',
      model: 'vendor/model',
      choices: [{ message: { role: 'assistant', content: expect.stringContaining('a joke') } }],
    })
  })

  test('behavior: a stream arrives event by event and ends with [DONE]', async () => {
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

  test('behavior: usage is reported as OpenAI does, whole and in a stream that asks for it', async () => {
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
    expect((await get('/api/v1/chat/completions')).status).toBe(405)
  })
})
