import { afterAll, describe, expect, test } from 'bun:test'
import { Elysia } from 'elysia'
import { startingRoutes } from '../../src/app/base'
import { once } from '../../src/app/handlers'
import { createRoutes } from '../../src/app/routes'
import { account } from '../../src/demo/accounts'
import { createMiddleware } from '../../src/http/middleware'
import { handlersWith } from '../harness/api-reference'
import { ask } from '../harness/buyer'
import { makeBody } from '../harness/facilitation'
import { buy, sign } from '../harness/shop'
import { buyStock, type OrderJson, startStockShop } from '../harness/stock-shop'

// Methods, preconditions, encodings and other origins at every path, and where the paths are.

const facilitatorUrl = 'https://api.example.com/x402'
const stockUrl = 'https://api.example.com/shop/eu'

const shop = await startStockShop({
  edit: (text) =>
    text
      .replace('facilitator_url = ""', `facilitator_url = "${facilitatorUrl}/"`)
      .replace('stock_base_url = ""', `stock_base_url = "${stockUrl}"`),
})
afterAll(() => shop.stop())

const at = (path: string, init?: RequestInit) => fetch(shop.url + path, init)
const codeOf = async (response: Response) => ((await response.json()) as { code: string }).code
const entranceOf = () =>
  createMiddleware({ baseUrl: 'http://localhost', requestId: () => 'id', now: () => 0 })
const quoted = 'symbol=NVDA&usdg=25'

/** Paths that are read, and whether pages of other origins may read them. */
const read: readonly (readonly [path: string, isOpen: boolean])[] = [
  ['/', false],
  ['/stocks', false],
  ['/admin', false],
  ['/robots.txt', false],
  ['/sitemap.xml', false],
  ['/favicon.svg', false],
  ['/healthz', false],
  ['/readyz', false],
  ['/metrics', false],
  ['/problems', false],
  ['/problems/not-found', false],
  ['/openapi.json', true],
  ['/m/shop/openapi.json', true],
  ['/llms.txt', true],
  ['/.well-known/x402', true],
  ['/discovery/resources', true],
  ['/facilitator/discovery/resources', true],
  ['/supported', true],
  ['/facilitator/supported', true],
  ['/api/stock/list', true],
  [`/api/stock/quote?${quoted}`, true],
  ['/api/stock/orders', true],
]
/** Paths that accept only POST. */
const written: readonly string[] = [
  '/verify',
  '/settle',
  '/facilitator/verify',
  '/api/gas/sponsor',
  `/api/stock/buy?${quoted}`,
  '/m/assistant/chat',
]
const json = { 'content-type': 'application/json' }

describe('methods', () => {
  /** Headers that differ between two answers, whatever the method is. */
  const changing = /^(?:date|x-request-id|www-authenticate|ratelimit-.*)$/

  const isVarying = /^(content-length|payment-required)$/
  const headOf = (response: Response) =>
    Object.fromEntries(
      [...response.headers]
        .filter(([name]) => !changing.test(name))
        // The length of /metrics and the salt of a 402 change with each request.
        .map(([name, value]) => [name, isVarying.test(name) ? value.length : value]),
    )

  for (const path of [...read.map(([each]) => each), '/m/shop/item', '/m/shop/form?symbol=X'])
    test(`HEAD ${path} has the header fields of GET`, async () => {
      const [got, headed] = [await at(path), await at(path, { method: 'HEAD' })]
      const body = await got.text()
      expect(body.length).toBeGreaterThan(0)
      expect(headed.status).toBe(got.status)
      expect(headOf(headed)).toEqual(headOf(got))
      expect(Number(headed.headers.get('content-length'))).toBeGreaterThan(0)
      expect(headed.headers.has('date')).toBe(true)
      expect(await headed.text()).toBe('')
    })

  for (const [path] of read)
    test(`error: DELETE ${path} is 405 with all methods that work`, async () => {
      const response = await at(path, { method: 'DELETE' })
      const allow = path === '/admin' ? 'GET, POST, HEAD, OPTIONS' : 'GET, HEAD, OPTIONS'
      expect([response.status, response.headers.get('allow')]).toEqual([405, allow])
      expect(await codeOf(response)).toBe('method-not-allowed')
      const asked = await at(path, { method: 'OPTIONS' })
      expect([asked.status, asked.headers.get('allow')]).toEqual([204, allow])
      if (path !== '/admin') expect((await at(path, { method: 'POST' })).status).toBe(405)
    })

  for (const path of written)
    test(`error: GET ${path} is 405 with all methods that work`, async () => {
      for (const method of ['GET', 'HEAD', 'PUT']) {
        const response = await at(path, { method })
        expect([response.status, response.headers.get('allow')]).toEqual([405, 'POST, OPTIONS'])
      }
      expect((await at(path, { method: 'OPTIONS' })).headers.get('allow')).toBe('POST, OPTIONS')
    })

  test('error: an unknown path is 404 for every method', async () => {
    for (const method of ['GET', 'POST', 'OPTIONS', 'DELETE'])
      for (const path of ['/nothing', '/api/stock', '/api/stock/none', '/x402', '/shop/eu/api'])
        expect([method, path, (await at(path, { method })).status]).toEqual([method, path, 404])
  })
})

describe('preconditions', () => {
  for (const path of ['/openapi.json', '/m/shop/openapi.json', '/llms.txt', '/', '/sitemap.xml'])
    test(`error: ${path} is 412 when the client names another version`, async () => {
      const tag = (await at(path)).headers.get('etag') ?? ''
      const status = async (headers: Record<string, string>, method = 'GET') =>
        (await at(path, { method, headers })).status
      for (const other of ['"other"', `W/${tag}`, '"a", "b"', '']) {
        const response = await at(path, { headers: { 'if-match': other } })
        expect([other, response.status]).toEqual([other, other === '' ? 200 : 412])
        if (other !== '') expect(await codeOf(response)).toBe('precondition-failed')
      }
      expect(await status({ 'if-match': '"other"' }, 'HEAD')).toBe(412)
      for (const own of [tag, `"other", ${tag}`, '*'])
        expect([own, await status({ 'if-match': own })]).toEqual([own, 200])
      // RFC 9110 section 13.2.2: If-Match comes first.
      expect(await status({ 'if-match': '"other"', 'if-none-match': tag })).toBe(412)
      expect(await status({ 'if-match': tag, 'if-none-match': tag })).toBe(304)
      expect(await status({ 'if-none-match': '*' })).toBe(304)
    })
})

describe('compressed request bodies', () => {
  const packed = Bun.gzipSync(new TextEncoder().encode('{"symbol":"X"}'))
  const paths = [
    '/verify',
    '/settle',
    '/api/gas/sponsor',
    '/mcp',
    '/m/shop/item',
    '/m/shop/form',
    `/api/stock/buy?${quoted}`,
  ]

  for (const path of paths)
    test(`error: ${path} refuses a compressed body, and nothing is written for it`, async () => {
      const before = shop.counts()
      for (const encoding of ['gzip', 'br', 'deflate', 'identity, gzip', 'GZIP', 'aes128gcm']) {
        const headers = { ...json, accept: 'application/json, text/event-stream' }
        const response = await at(path, {
          method: 'POST',
          headers: { ...headers, 'content-encoding': encoding },
          body: packed,
        })
        expect([encoding, response.status]).toEqual([encoding, 415])
        expect(response.headers.get('accept-encoding')).toBe('identity')
      }
      expect(shop.counts()).toEqual(before)
    })

  test('error: with a credential it is refused before anything is paid', async () => {
    const url = `${shop.url}/m/shop/item`
    const init = {
      method: 'POST',
      headers: { ...json, 'content-encoding': 'gzip' },
      body: packed,
    }
    const before = shop.counts()
    const plain = { method: 'POST', body: '{}' }
    const credential = await sign(url, { init: plain })
    const response = await fetch(url, { ...init, headers: { ...init.headers, ...credential } })
    expect([response.status, await codeOf(response)]).toEqual([415, 'unsupported-media-type'])
    expect(shop.counts()).toEqual(before)
    expect((await fetch(url, { ...plain, headers: credential })).status).toBe(200)
  })

  test('identity is accepted, and without a body any Content-Encoding is ignored', async () => {
    const headers = { ...json, 'content-encoding': 'identity' }
    const init = { method: 'POST', headers, body: '{}' }
    expect((await at('/m/shop/item', init)).status).toBe(402)
    expect((await at('/m/shop/item', { headers: { 'content-encoding': 'gzip' } })).status).toBe(402)
  })
})

describe('percent-encoded unreserved characters', () => {
  const same: readonly (readonly [string, string])[] = [
    ['/m/shop/%69tem', '/m/shop/item'],
    ['/%6d/shop/item', '/m/shop/item'],
    ['/m/shop/openapi%2Ejson', '/m/shop/openapi.json'],
    ['/openapi%2ejson', '/openapi.json'],
    ['/%2Ewell-known/x402', '/.well-known/x402'],
    ['/api/stock/%6Cist', '/api/stock/list'],
    [`/%61pi/stock/quote?${quoted}`, `/api/stock/quote?${quoted}`],
    ['/%73upported', '/supported'],
    ['/%78402/%73upported', '/supported'],
    ['/health%7A', '/healthz'],
    ['/st%6Fcks', '/stocks'],
  ]
  for (const [path, plain] of same)
    test(`${path} is ${plain}`, async () => {
      const [one, other] = [await at(path), await at(plain)]
      expect(one.status).toBe(other.status)
      expect([200, 402]).toContain(one.status)
      expect(one.headers.get('content-type')).toBe(other.headers.get('content-type'))
    })

  test('the decoded request keeps its body and the address of the client', async () => {
    const response = await at('/%61pi/gas/%73ponsor', {
      method: 'POST',
      headers: json,
      body: JSON.stringify({ address: 'none', more: 1 }),
    })
    expect([response.status, await codeOf(response)]).toEqual([400, 'bad-request'])
    const verified = await at('/%76erify', { method: 'POST', headers: json, body: '{"x":1}' })
    expect([verified.status, await verified.json()]).toMatchObject([400, { isValid: false }])
    const middleware = entranceOf()
    const seen: Request[] = []
    const app = new Elysia()
      .wrap(middleware.wrapRoutes)
      .all('/a', ({ request }) => void seen.push(middleware.originalOf(request)), { parse: 'none' })
    const request = new Request('http://localhost/%61?b=%63', { method: 'POST', body: 'text' })
    expect((await app.fetch(request)).status).toBe(200)
    expect(seen).toEqual([request])
  })

  test('error: a request before the service is ready gets 503 with Retry-After', async () => {
    const response = await startingRoutes(entranceOf()).fetch(new Request('http://localhost/'))
    expect([response.status, response.headers.get('retry-after')]).toEqual([503, '1'])
  })

  test('error: reserved characters are not decoded', async () => {
    for (const path of [
      '/api%2Fstock/list',
      '/openapi.json%3F',
      '/%2Fsupported',
      '/supporte%64%zz',
    ])
      expect([path, (await at(path)).status]).toEqual([path, 404])
  })
})

describe('pages of other origins', () => {
  const wanted = [
    'Authorization',
    'Content-Type',
    'Accept-Payment',
    'Payment-Signature',
    'Payment-Redeem',
    'X-Payment',
    'Idempotency-Key',
    'X-API-Key',
    'If-None-Match',
    'X-Of-Its-Own',
  ]
  const open = [...read.filter(([, isOpen]) => isOpen).map(([path]) => path), ...written]
  for (const path of [...open, '/m/shop/item', '/shop/eu/api/stock/list', '/x402/settle'])
    test(`${path} allows the headers of buyers in browsers, and exposes those of the answer`, async () => {
      const method = written.includes(path) || path === '/x402/settle' ? 'POST' : 'GET'
      const { status, headers } = await at(path, {
        method: 'OPTIONS',
        headers: {
          origin: 'https://app.example.com',
          'access-control-request-method': method,
          'access-control-request-headers': 'accept-payment, payment-signature, x-of-its-own',
        },
      })
      expect([status, headers.get('access-control-allow-origin')]).toEqual([204, '*'])
      const listOf = (name: string) =>
        (headers.get(name) ?? '').split(/, */).map((each) => each.toLowerCase())
      expect(listOf('access-control-allow-headers')).toEqual(
        expect.arrayContaining(wanted.map((name) => name.toLowerCase())),
      )
      expect(listOf('access-control-allow-methods')).toContain(method.toLowerCase())
      const answered = await at(path, { method, headers: { origin: 'https://app.example.com' } })
      expect(answered.headers.get('access-control-allow-origin')).toBe('*')
      const exposed = answered.headers.get('access-control-expose-headers') ?? ''
      for (const name of ['WWW-Authenticate', 'PAYMENT-REQUIRED', 'PAYMENT-RESPONSE'])
        expect(exposed).toContain(name)
      expect(/(^|, )(\*|ETag)(,|$)/.test(exposed)).toBe(true)
    })

  for (const [path, isOpen] of read)
    if (!isOpen)
      test(`${path} is readable by its own origin only`, async () => {
        const { status, headers } = await at(path, { method: 'OPTIONS' })
        expect([status, headers.has('access-control-allow-origin')]).toEqual([204, false])
      })
})

describe('URLs with a path', () => {
  test('the facilitator answers below its path, and at its usual paths', async () => {
    const whole = await (await at('/supported')).json()
    for (const path of ['/x402/supported', '/facilitator/supported'])
      expect(await (await at(path)).json()).toEqual(whole)
    expect((await at('/x402/discovery/resources')).status).toBe(200)
    const network = shop.config.networks.find(({ id }) => id === 'eip155:8453')
    if (network === undefined) throw new Error('no network')
    const body = JSON.stringify(await makeBody(network))
    const post = async (path: string) =>
      (await at(path, { method: 'POST', headers: json, body })).json()
    expect(await post('/x402/verify')).toMatchObject({ isValid: true })
    expect(await post('/x402/settle')).toMatchObject({ success: true })
  })

  test('stocks are sold below their path, and 402 and order name it', async () => {
    const url = `${shop.url}/shop/eu/api/stock/buy?${quoted}`
    const asked = await ask(url, { method: 'POST' })
    expect(asked.response.status).toBe(402)
    expect(asked.required.resource?.url).toBe(`${stockUrl}/api/stock/buy?${quoted}`)
    const bought = await buyStock(url)
    expect(bought.status).toBe(200)
    const order = (await bought.json()) as OrderJson
    const place = `/api/stock/order/${order.id}`
    expect(bought.headers.get('location')).toBe(stockUrl + place)
    for (const path of [`/shop/eu${place}`, place])
      expect(await (await at(path)).json()).toMatchObject({ id: order.id, status: 'delivered' })
    for (const path of ['list', `quote?${quoted}`, 'orders'])
      expect((await at(`/shop/eu/api/stock/${path}`)).status).toBe(200)
    expect((await at(place, { method: 'POST' })).headers.get('allow')).toBe('GET, HEAD, OPTIONS')
  })

  test('gas is granted below the path of the stocks, too', async () => {
    const body = JSON.stringify({ address: account(0).address })
    for (const path of ['/api/gas/sponsor', '/shop/eu/api/gas/sponsor']) {
      const response = await at(path, { method: 'POST', headers: json, body })
      expect([response.status, await codeOf(response)]).toEqual([400, 'invalid-address'])
    }
    const { body: asked } = await ask(`${shop.url}/m/shop/item`)
    expect(asked.gasSponsor).toBe(`${stockUrl}/api/gas/sponsor`)
  })

  test('documents and pages name the facilitator and stock URLs', async () => {
    for (const path of [
      '/openapi.json',
      '/m/shop/openapi.json',
      '/.well-known/x402',
      '/llms.txt',
    ]) {
      const text = await (await at(path)).text()
      expect([path, text.includes(facilitatorUrl)]).toEqual([path, true])
      if (path !== '/m/shop/openapi.json')
        expect([path, text.includes(`${stockUrl}/api/stock`)]).toEqual([path, true])
    }
    expect(await (await at('/')).text()).toContain(`<code>${facilitatorUrl}</code>`)
    expect(await (await at('/stocks')).text()).toContain(`${stockUrl}/api/stock/buy`)
  })

  test('the gateway answers at base_url', async () => {
    expect((await buy(`${shop.url}/m/shop/item`)).status).toBe(200)
    expect((await at('/x402/m/shop/item')).status).toBe(404)
    expect((await at('/shop/eu/m/shop/item')).status).toBe(404)
  })
})

test('the first other host is told once, and only where base_url is on this machine', () => {
  const told: string[] = []
  const entrance = (baseUrl: string) =>
    createMiddleware({
      baseUrl,
      requestId: () => 'id',
      now: () => 0,
      onOtherHost: (host) => told.push(host),
    })
  const ask = (to: ReturnType<typeof entrance>, host: string) =>
    to.wrapRoutes(() => new Response(), new Request('http://localhost/', { headers: { host } }))
  const local = entrance('http://localhost:4020')
  for (const host of ['localhost:4020', '127.0.0.1', '[::1]:4020']) ask(local, host)
  // Not a host: nothing of it is shown.
  for (const host of ['', '<script>', 'a b', 'x'.repeat(101), 'a.example/x']) ask(local, host)
  expect([told, local.otherHost()]).toEqual([[], undefined])
  for (const host of ['shop.example', 'other.example']) ask(local, host)
  ask(entrance('https://shop.example'), 'other.example')
  expect([told, local.otherHost()]).toEqual([['shop.example'], 'shop.example'])
})

describe('parts that are loaded after the start', () => {
  test('error: MCP that cannot be loaded is a problem without the reason, which the log has', async () => {
    const logged: unknown[] = []
    const log = { child: () => (_: string, fields: unknown) => logged.push(fields) }
    const mcp = () => Promise.reject(new Error('/opt/turnpike is gone'))
    const errors = { baseUrl: 'http://localhost', requestId: () => 'id', log }
    const app = createRoutes(handlersWith({ errors, mcp }))
    for (const path of ['/mcp', '/mcp/']) {
      const answer = await app.fetch(new Request(`http://localhost${path}`, { method: 'POST' }))
      expect(answer.status).toBe(500)
      const text = await answer.text()
      expect(text).toContain('"code":"internal-error"')
      expect(text).not.toContain('turnpike is gone')
    }
    expect(logged).toHaveLength(2)
  })

  test('a part is made once, and again only after a failure', async () => {
    let makes = 0
    const part = once(async () => {
      makes++
      if (makes === 1) throw new Error('no memory')
      return makes
    })
    const first = [part(), part()]
    for (const { status } of await Promise.allSettled(first)) expect(status).toBe('rejected')
    expect(await Promise.all([part(), part(), part()])).toEqual([2, 2, 2])
  })
})
