import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Config } from '../../src/config/Config'
import { errors } from '../../src/http/problem'
import { createRateLimit } from '../../src/http/rate-limit'
import { silent } from '../../src/log'
import { assetsOf } from '../../src/web/assets'
import { publicFacts } from '../../src/web/chains'
import { escaped } from '../../src/web/html'
import { priceFrom } from '../../src/web/parts'
import { linkOf } from '../../src/web/public/catalogue'
import { elsewhere } from '../../src/web/public/Elsewhere'
import { orderStates } from '../../src/web/public/OrderState'
import { createPages, type PagesOptions, sitemapOf } from '../../src/web/public/pages'
import * as SaleState from '../../src/web/public/SaleState'
import { configOf, small } from '../harness/config'
import { merchant, param, route } from '../harness/merchants'
import { testWorld } from '../harness/world'

type World = Awaited<ReturnType<typeof testWorld>>
let world: World
beforeAll(async () => {
  world = await testWorld()
})
afterAll(() => world.stop())

/** The pages alone, over a configuration of the test. */
function pages(options: Partial<PagesOptions> = {}) {
  const config = options.config ?? configOf(small)
  const { baseUrl } = config.service
  const made = createPages({
    config,
    hasMarket: false,
    pricesOf: () => [],
    toolOf: () => undefined,
    isReady: () => true,
    hasChannels: () => false,
    isDeskReady: () => true,
    readOrder: undefined,
    healthOf: () => 'available',
    faultOf: () => undefined,
    rateLimit: createRateLimit(),

    addressOf: () => '192.0.2.1',
    now: () => Date.now(),
    ...options,
  })
  const app = errors({ baseUrl, log: silent, requestId: () => 'id' })
    .get('/', ({ request }) => made.home(request))
    .get('/merchants/:slug', ({ request, params }) => made.merchant(request, params.slug))
    .get('/stocks', ({ request }) => made.stocks(request))
    .get('/orders/:id', ({ request, params }) => made.order(request, params.id))
  return {
    get: (path: string, headers: Record<string, string> = {}) =>
      Promise.resolve(app.fetch(new Request(`http://localhost${path}`, { headers }))),
    post: (path: string, body: string, headers: Record<string, string> = {}) =>
      Promise.resolve(
        app.fetch(new Request(`http://localhost${path}`, { method: 'POST', body, headers })),
      ),
  }
}

describe('the catalogue', () => {
  test('every merchant is on it with its lowest price, and every route on its page', async () => {
    const text = await (await fetch(`${world.url}/`)).text()
    for (const merchant of world.config.merchants) {
      const { slug, title, routes } = merchant
      const [, card = ''] = text.split(
        `<h3 id="m-${slug}"><a href="/merchants/${slug}">${escaped(title)}</a></h3>`,
      )
      expect(card).toStartWith(`<span class="price">${priceFrom(routes)}</span>`)
      const page = await (await fetch(`${world.url}/merchants/${slug}`)).text()
      for (const route of routes) expect(page + card).toContain(escaped(linkOf(merchant, route)))
      for (const { summary } of routes) expect(page).toContain(escaped(summary))
      // The page has no element that is hidden from buyers.
      for (const shown of [text, page]) {
        expect(shown).not.toContain(world.upstreams.url)
        expect(shown).not.toContain('open-meteo.com/v1')
      }
    }
    for (const { name, asset } of world.config.networks)
      expect(text).toContain(`<li>${asset.symbol} on ${name}`)
  })

  test('the command is the cheapest GET that can be bought now', async () => {
    const cheap = merchant('cheap', {
      routes: [route('/post', { methods: ['POST'], priceAtomic: 1n }), route('/a-long-path')],
    })
    const short = merchant('b', { routes: [route('/a'), route('/b', { priceAtomic: 6_000n })] })
    const config = { ...configOf(small), merchants: [cheap, short] }
    const commandOf = async (options: Partial<PagesOptions>) => {
      const text = await (await pages({ config, ...options }).get('/')).text()
      return /<code>curl -i &#39;([^<]*)&#39;<\/code>/.exec(text)?.[1]
    }
    expect(await commandOf({})).toBe('https://pay.example.com/m/b/a')
    const onlyCheap: PagesOptions['healthOf'] = ({ slug }) =>
      slug === 'cheap' ? 'available' : 'unavailable'
    expect(await commandOf({ healthOf: onlyCheap })).toBe(
      'https://pay.example.com/m/cheap/a-long-path',
    )
    expect(await commandOf({ isReady: () => false })).toBeUndefined()
  })

  test('a network that is not ready is named, and nothing ready at all is said', async () => {
    const one = pages({ isReady: ({ id }) => id === 'eip155:8453' })
    const text = await (await one.get('/')).text()
    expect(text).toContain('USDC on Base Sepolia (test money) <span class="badge bad">not ready')
    expect(text).not.toContain('Nothing can be paid')
    const none = await (await pages({ isReady: () => false }).get('/')).text()
    expect(none).toContain('Nothing can be paid at the moment.')
  })

  const config = { ...configOf(small), merchants: [merchant('one', { routes: [route('/a')] })] }
  const facts: Record<SaleState.SaleState, Partial<PagesOptions>> = {
    available: {},
    partly: { healthOf: () => 'partly' },
    // Each also has the faults of the states below it, which count less.
    'out-of-service': { healthOf: () => 'out-of-service', isReady: () => false },
    paused: { healthOf: () => 'paused', isReady: () => false },
    unavailable: { healthOf: () => 'unavailable', isReady: () => false },
    'not-ready': { healthOf: () => 'partly', isReady: () => false, faultOf: () => 'unavailable' },
    'key-refused': { healthOf: () => 'partly', faultOf: () => 'key-refused' },
  }
  for (const [state, given] of Object.entries(facts) as [
    SaleState.SaleState,
    typeof facts.paused,
  ][])
    test(`a merchant that is ${state} is named so, and has a way to pay only where it sells`, async () => {
      const { sells, text, badge } = SaleState.states[state]
      const app = pages({ config, ...given })
      const [home, page] = await Promise.all(
        ['/', '/merchants/one'].map(async (path) => (await app.get(path)).text()),
      )
      const shown = state === 'key-refused' ? SaleState.states.partly.badge : badge
      expect(home).toContain(`>${shown}</span>`)
      // A route may sell nothing while others of its merchant do.
      expect([home?.includes('Or try it in a terminal'), state]).toEqual([
        state === 'available',
        state,
      ])
      expect(page).toContain(`data-closed="${sells ? '' : text}"`)
      expect(page?.includes(`<p class="notice bad">${text}</p>`)).toBe(!sells)
      for (const pays of ['href="#try"', 'class="elsewhere"', 'class="funds"'])
        expect([pays, page?.includes(pays)]).toEqual([pays, sells])
    })

  test('a page of the stocks whose desk takes no order says so, and has no way to pay', async () => {
    for (const isReady of [true, false]) {
      const app = pages({ hasMarket: true, isDeskReady: () => isReady })
      const text = await (await app.get('/stocks')).text()
      expect(text.includes(SaleState.states['not-ready'].text)).toBe(!isReady)
      expect(text.includes('Buy a stock</a>')).toBe(isReady)
      expect(text.includes('class="elsewhere"')).toBe(isReady)
      // Seller, restrictions and risk come before the panel with the button.
      const order = ['<dt>Seller</dt>', '<dt>Not for</dt>', '<dt>Risk</dt>', 'class="wallet"']
      const places = order.map((part) => text.indexOf(part))
      expect(places).toEqual(places.toSorted((a, b) => a - b))
      expect(places).not.toContain(-1)
    }
  })

  test('the page of an order has its state, and reads it again only while it may change', async () => {
    const order = { id: 'ord_1', symbol: 'NVDA', usdgAtomic: '1000000', usdg: '1.000000' }
    for (const [status, { text, tone }] of Object.entries(orderStates)) {
      const app = pages({ readOrder: async () => Response.json({ ...order, status }) })
      const html = await (await app.get('/orders/ord_1', { accept: 'text/html' })).text()
      expect(html).toContain(`<p class="lead" role="status">${text}</p>`)
      expect([status, html.includes(' data-open>')]).toEqual([status, tone === undefined])
      expect(html).toMatch(/<dd>1\.00 USDC/)
    }
    const none = await pages().get('/orders/ord_1')
    expect(none.status).toBe(404)
  })

  test('a page that sells links its own address for wallets of a phone, and shows it as a code', async () => {
    const text = await (await pages({ config }).get('/merchants/one?route=/a')).text()
    const address = 'https://pay.example.com/merchants/one?route=%2Fa'
    const links = [...text.matchAll(/href="(https:[^"]+)"/g)].map(([, href = '']) => href)
    expect(links).toEqual([
      `https://metamask.app.link/dapp/${address.slice('https://'.length)}`,
      `https://go.cb-w.com/dapp?cb_url=${encodeURIComponent(address)}`,
    ])
    expect(text).toContain('<svg class="qr"')
    expect(text).toContain('You need at least 0.005 USDC here.')
    // A wallet opens only https, and no phone reaches a private address.
    for (const baseUrl of [
      'http://pay.example.com',
      'https://localhost:4020',
      'https://10.0.0.1',
    ]) {
      const service = { ...config.service, baseUrl }
      const local = pages({ config: { ...config, service } })
      expect(await (await local.get('/merchants/one')).text()).not.toContain('class="elsewhere"')
    }
    const long = `/m/one/a?x=${'y'.repeat(150)}`
    expect(elsewhere(config.service.baseUrl, long)).toMatchObject({
      markup: expect.not.stringContaining('<svg'),
    })
    expect(elsewhere(config.service.baseUrl, `${long}${'y'.repeat(2000)}`)).toBe(false)
  })

  test('a second request is a 304, until something changes', async () => {
    let isReady = true
    const app = pages({ isReady: () => isReady })
    const first = await app.get('/')
    const etag = first.headers.get('etag') ?? ''
    expect(first.headers.get('cache-control')).toBe('no-cache')
    expect((await app.get('/', { 'if-none-match': `"x", W/${etag}` })).status).toBe(304)
    isReady = false
    expect((await app.get('/', { 'if-none-match': etag })).status).toBe(200)
  })

  test('a large catalogue and a large merchant have pages and a search', async () => {
    const config = {
      ...configOf(small),
      merchants: [
        merchant('big', { routes: Array.from({ length: 250 }, (_, i) => route(`/r${i}`)) }),
        ...Array.from({ length: 60 }, (_, i) => merchant(`m${i}`, { routes: [route('/x')] })),
        merchant('other', { routes: [route('/needle', { summary: 'Find & keep' })] }),
      ],
    }
    const app = pages({ config })
    const textOf = async (path: string) => (await app.get(path)).text()
    const first = await textOf('/')
    expect(first.split('<li class="card">')).toHaveLength(31)
    expect(first).toContain('62 merchants, 311 routes')
    expect(first).toContain('247 more</a>')
    expect(first).toContain('href="/?page=2#merchants"')
    expect(await textOf('/?page=3')).toContain('/merchants/other?route=%2Fneedle#route')
    for (const page of ['0', '-4', '99', 'x', '1e9', '2.5'])
      expect(await textOf(`/?page=${page}`)).toContain(' of 3</li>')
    const found = await textOf('/?q=FIND+keep')
    expect(found).toContain('1 of 311 routes')
    expect(found).toContain('/merchants/other?route=%2Fneedle#route')
    const nothing = await textOf('/?q=nothing-like-it')
    expect(nothing).toContain('0 of 311 routes')
    expect(nothing).toContain('No route matches <strong>nothing-like-it</strong>.')
    expect(await textOf('/?q=merchant&page=2')).toContain(
      'href="/?q=merchant&amp;page=3#merchants"',
    )
    const big = await textOf('/merchants/big')
    expect(big.split('<span class="what">')).toHaveLength(101)
    expect(big).toContain('href="/merchants/big?page=2"')
    expect(await textOf('/merchants/big?page=3')).toContain('>Summary of /r249</span>')
    const matching = await textOf('/merchants/big?q=r249')
    expect(matching).toContain('1 of 250 routes')
    expect(matching).toContain('<h2 id="what">Summary of /r249</h2>')
  })

  test('ten routes need no search', async () => {
    for (const [routes, isSearched] of [
      [10, false],
      [11, true],
    ] as const) {
      const list = Array.from({ length: routes }, (_, i) => route(`/r${i}`))
      const config = { ...configOf(small), merchants: [merchant('one', { routes: list })] }
      const text = await (await pages({ config }).get('/')).text()
      expect(text.includes('role="search"')).toBe(isSearched)
    }
  })

  test('error: searches of one address are limited, the page itself is not', async () => {
    const at = Date.now()
    const app = pages({ now: () => at })
    for (let i = 0; i < 120; i++) expect((await app.get('/?q=a')).status).toBe(200)
    const refused = await app.get('/?q=a')
    expect(refused.status).toBe(429)
    expect(refused.headers.get('retry-after')).not.toBeNull()
    expect((await app.get('/')).status).toBe(200)
  })
})

/** A merchant with the text in every member that can have it. */
function merchantOf(text: string) {
  return merchant('one', {
    title: text,
    tag: text,
    description: text,
    routes: [
      route('/a', {
        summary: text,
        description: text,
        methods: ['POST'],
        params: [
          param(text, {
            in: 'tail',
            description: text,
            example: text,
            schema: { type: 'string', enum: [text] },
          }),
          param(text, { description: text, example: text, required: true }),
        ],
        body: { properties: { text: { type: 'string', example: text } } },
      }),
    ],
  })
}

describe('what a buyer is told of a network', () => {
  test('the public RPC and the explorer of a known network, and never an RPC of the file', async () => {
    const [base] = configOf(small).networks
    if (base === undefined) throw new Error('the small file has a network')
    const keyed = { ...base, rpcUrls: ['https://rpc.example.com/v2/s3cret-key'] }
    expect(publicFacts(keyed)).toEqual({
      explorer: 'https://basescan.org',
      rpc: 'https://mainnet.base.org',
    })
    for (const url of ['http://127.0.0.1:8545', 'http://localhost:8545', 'http://[::1]:8545'])
      expect(publicFacts({ ...base, rpcUrls: [url] })).toEqual({})
    expect(publicFacts({ ...base, id: 'eip155:1' })).toEqual({})
    const config = configOf(small)
    const networks = config.networks.map((network) => ({ ...network, rpcUrls: keyed.rpcUrls }))
    const one = merchant('one', { routes: [route('/a')], networks: [base.id] })
    const app = pages({ config: { ...config, networks, merchants: [one] } })
    const text = await (await app.get('/merchants/one')).text()
    expect(text).toContain('https://basescan.org')
    expect(text).not.toContain('s3cret-key')
  })
})

describe('what a page may do', () => {
  test('the policy allows our scripts by their hashes and nothing inline', async () => {
    for (const path of ['/', '/merchants/weather', '/stocks']) {
      const response = await fetch(world.url + path)
      expect(response.status).toBe(200)
      const policy = response.headers.get('content-security-policy') ?? ''
      expect(policy).toContain("default-src 'none'")
      expect(policy).toMatch(/script-src( 'sha256-[A-Za-z0-9+/]{43}='){3}(;|$)/)
      expect(policy).not.toContain('unsafe')
      expect(response.headers.get('x-content-type-options')).toBe('nosniff')
      const text = withoutOwn(await response.text(), world.config)
      expect(text.match(/<style|\sstyle="|\son[a-z]+="|<script>|(src|href)="https?:/g)).toBeNull()
    }
  })

  test('paths of assets have the hash of their content, and may be cached for a year', async () => {
    const text = await (await fetch(`${world.url}/merchants/weather`)).text()
    const paths = [...text.matchAll(/\/assets\/[a-z]+-[0-9a-f]{16}\.[a-z]+/g)].map(([path]) => path)
    expect(new Set(paths).size).toBe(4)
    for (const path of paths) {
      const response = await fetch(world.url + path)
      expect(response.status).toBe(200)
      expect(response.headers.get('cache-control')).toContain('immutable')
    }
    expect((await fetch(`${world.url}/assets/script.js`)).status).toBe(404)
    expect((await fetch(`${world.url}/assets/..%2fconfig`)).status).toBe(404)
  })

  test('a page is small on the wire, also for a client that takes no gzip', async () => {
    const sizeOf = async (path: string, encoding: string) => {
      const headers = { 'accept-encoding': encoding }
      const response = await fetch(world.url + path, { headers, decompress: false })
      expect(response.status).toBe(200)
      return (await response.arrayBuffer()).byteLength
    }
    const total = async (path: string, encoding: string) => {
      const text = await (await fetch(world.url + path)).text()
      const assets = [...text.matchAll(/(?:src|href)="(\/assets\/[^"]+)"/g)]
      const sizes = [path, ...assets.map(([, asset = '']) => asset)].map((each) =>
        sizeOf(each, encoding),
      )
      return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
    }
    expect(await total('/', 'gzip')).toBeLessThan(20_000)
    expect(await total('/merchants/weather', 'gzip')).toBeLessThan(25_000)
    expect(await total('/', 'identity')).toBeLessThan(60_000)
    const page = await (await fetch(`${world.url}/stocks`)).text()
    const [wallet = ''] = /\/assets\/wallet-[0-9a-f]{16}\.js/.exec(page) ?? []
    expect(await sizeOf(wallet, 'identity')).toBeLessThan(20_000)
  })

  test('hostile texts of the configuration are escaped', async () => {
    const hostile = `</code></title><script>alert(1)</script><img src=x onerror=alert(1)>"' onfocus=alert(1) ${controlCharacter}`
    const base = configOf(small)
    const one = merchantOf(hostile)
    const { stock } = base
    if (stock === undefined) throw new Error('the small file has stocks')
    const config = {
      ...base,
      service: { ...base.service, title: hostile, guidance: hostile, contact: hostile },
      networks: base.networks.map((network) => ({ ...network, name: hostile })),
      merchants: [{ ...one, networks: base.networks.map(({ id }) => id) }],
      stock: {
        ...stock,
        tokens: stock.tokens.map((each) => ({ ...each, name: hostile, symbol: hostile })),
      },
    }
    const app = pages({
      config,
      hasMarket: true,
      toolOf: () => hostile,
    })
    for (const path of [
      '/',
      `/?q=${encodeURIComponent('"><script>alert(1)')}`,
      '/merchants/one',
      `/merchants/one?${new URLSearchParams({ [`p.${hostile}`]: hostile, body: hostile, q: hostile })}`,
      '/stocks',
    ]) {
      const text = withoutOwn(await (await app.get(path)).text(), config)
      expect(text).toContain('&lt;script&gt;')
      expect(text.match(/<script>|<img|<\/code><\/title>/g)).toBeNull()
      expect(text).not.toContain(controlCharacter)
      expect(withoutTags(text).match(/.{0,40}[<>].{0,40}/)).toBeNull()
    }
  })
})

describe('crawlers', () => {
  /** Whether crawlers may read a path: of the rules that match, the longest counts. RFC 9309. */
  const isAllowed = (robots: string, path: string) => {
    const rules = [...robots.matchAll(/^(Allow|Disallow): (\S+)$/gm)].map(([, kind, rule = '']) => {
      const parts = rule.split('*').map((part) => part.replace(/[.?]/g, '\\$&'))
      return { kind, rule, isMatch: new RegExp(`^${parts.join('.*')}`).test(path) }
    })
    const [longest] = rules
      .filter(({ isMatch }) => isMatch)
      .sort((a, b) => b.rule.length - a.rule.length)
    return longest?.kind !== 'Disallow'
  }

  test('crawlers may read each page of the sitemap and the documents, and nothing that is sold', async () => {
    const read = async (path: string, type: string) => {
      const response = await fetch(world.url + path)
      expect([response.status, response.headers.get('content-type')]).toEqual([200, type])
      const tag = response.headers.get('etag') ?? ''
      const again = await fetch(world.url + path, { headers: { 'if-none-match': tag } })
      expect([again.status, again.headers.get('cache-control')]).toEqual([304, 'no-cache'])
      return response.text()
    }
    const robots = await read('/robots.txt', 'text/plain; charset=utf-8')
    const sitemap = await read('/sitemap.xml', 'application/xml')
    const { service, merchants } = world.config
    expect(robots).toContain(`\nSitemap: ${service.baseUrl}/sitemap.xml\n`)
    const listed = [...sitemap.matchAll(/^<url><loc>(.*)<\/loc><\/url>$/gm)].map(
      ([, url = '']) => url,
    )
    const slugs = merchants.map(({ slug }) => `/merchants/${slug}`)
    expect(listed).toEqual(
      ['/', '/stocks', ...slugs, '/problems'].map((path) => service.baseUrl + path),
    )
    for (const url of listed) {
      const path = url.slice(service.baseUrl.length)
      const { status, headers } = await fetch(world.url + path, {
        headers: { accept: 'text/html' },
      })
      expect([path, status, headers.get('content-type')]).toEqual([
        path,
        200,
        'text/html; charset=utf-8',
      ])
      expect([path, isAllowed(robots, path)]).toEqual([path, true])
    }
    const documents = ['/openapi.json', '/llms.txt', '/.well-known/x402', '/m/weather/openapi.json']
    for (const path of [...documents, '/api/openapi.json', '/problems/paused', '/assets/a.js'])
      expect([path, isAllowed(robots, path)]).toEqual([path, true])
    const sold = merchants.flatMap(({ slug, routes }) =>
      routes.map(({ path }) => `/m/${slug}${path}`),
    )
    const programs = ['/mcp', '/api/stock/quote?symbol=A', '/metrics', '/healthz', '/readyz']
    for (const path of [...sold, ...programs, '/admin', '/admin/payments'])
      expect([path, isAllowed(robots, path)]).toEqual([path, false])
  })

  test('without stocks the sitemap lists no page of them', () => {
    expect(sitemapOf({ ...configOf(small), stock: undefined })).not.toContain('/stocks')
    expect(sitemapOf(configOf(small))).toContain('<loc>https://pay.example.com/stocks</loc>')
  })
})

const controlCharacter = String.fromCharCode(7)

/** A page without the style and the script of ours that it contains. */
function withoutOwn(text: string, { service }: Config): string {
  const { style, copy } = assetsOf(service)
  return text
    .replace(`<style>${style.text}</style>`, '')
    .replace(`<script>${copy.text}</script>`, '')
}

/** The text that remains without every well-formed tag. */
function withoutTags(text: string): string {
  return text.replace(
    /<!doctype html>|<\/?[a-z][a-z0-9]*(?:\s+[a-zA-Z-]+(?:="[^"<>]*")?)*\s*\/?>/g,
    '',
  )
}
