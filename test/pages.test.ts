import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { account } from '../src/demo/accounts'
import { errors } from '../src/http/problem'
import { createRateLimit } from '../src/http/ratelimit'
import { silent } from '../src/log'
import * as Example from '../src/web/Example'
import { escaped } from '../src/web/html'
import { createPages, type PagesOptions } from '../src/web/pages'
import { configOf, small } from './harness/config'
import { merchant, param, route } from './harness/merchants'
import { testWorld } from './harness/world'

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
    isReady: () => true,
    healthOf: () => 'available',
    rateLimit: createRateLimit(),
    addressOf: () => '192.0.2.1',
    now: () => Date.now(),
    ...options,
  })
  const app = errors({ baseUrl, log: silent, requestId: () => 'id' })
    .get('/', ({ request }) => made.home(request))
    .get('/stocks', ({ request }) => made.stocks(request))
  return {
    get: (path: string, headers: Record<string, string> = {}) =>
      Promise.resolve(app.fetch(new Request(`http://localhost${path}`, { headers }))),
  }
}

describe('the catalogue', () => {
  test('behavior: every merchant, every route and every price is on it', async () => {
    const text = await (await fetch(`${world.url}/`)).text()
    for (const { slug, title, routes } of world.config.merchants) {
      expect(text).toContain(`<h3 id="m-${slug}">${escaped(title)}</h3>`)
      for (const { path } of routes) expect(text).toContain(`<code>/m/${slug}${path}`)
    }
    for (const { name } of world.config.networks) expect(text).toContain(name)
    expect(text).toContain('<li>0.005 USDG on Robinhood Chain</li>')
    expect(text).toContain('<li>0.005 USDC on Base</li>')
    // The page has no element that is hidden from buyers.
    expect(text).not.toContain(world.upstreams.url)
    expect(text).not.toContain('open-meteo.com/v1')
  })

  test('behavior: health follows the circuit of the upstream', async () => {
    const config = { ...configOf(small), merchants: [merchant('one', { routes: [route('/a')] })] }
    const words = {
      available: 'available',
      partly: 'partly available',
      unavailable: 'not answering, nothing is charged',
      'out-of-service': 'out of service',
    } as const
    for (const health of Object.keys(words) as (keyof typeof words)[]) {
      const text = await (await pages({ config, healthOf: () => health }).get('/')).text()
      expect(text).toContain(`>${words[health]}</span>`)
    }
  })

  test('behavior: a second request is a 304, until something changes', async () => {
    let isReady = true
    const app = pages({ isReady: () => isReady })
    const first = await app.get('/')
    const etag = first.headers.get('etag') ?? ''
    expect(first.headers.get('cache-control')).toBe('no-cache')
    expect((await app.get('/', { 'if-none-match': `"x", W/${etag}` })).status).toBe(304)
    isReady = false
    expect((await app.get('/', { 'if-none-match': etag })).status).toBe(200)
  })

  test('behavior: a large catalogue has pages and a search, which needs no script', async () => {
    const config = {
      ...configOf(small),
      merchants: [
        merchant('big', { routes: Array.from({ length: 250 }, (_, i) => route(`/r${i}`)) }),
        merchant('other', { routes: [route('/needle', { summary: 'Find & keep' })] }),
      ],
    }
    const app = pages({ config })
    const textOf = async (path: string) => (await app.get(path)).text()
    const first = await textOf('/')
    expect(first.split('<details class="route">')).toHaveLength(101)
    expect(first).toContain('251 routes, page 1 of 3')
    expect(first).toContain('href="/?page=2"')
    expect(await textOf('/?page=3')).toContain('/m/other/needle')
    for (const page of ['0', '-4', '99', 'x', '1e9', '2.5'])
      expect(await textOf(`/?page=${page}`)).toContain('of 3</p>')
    const found = await textOf('/?q=FIND+keep')
    expect(found).toContain('1 of 251 routes')
    expect(found).toContain('/m/other/needle')
    expect(await textOf('/?q=nothing-like-it')).toContain('0 of 251 routes')
    expect(await textOf('/?q=r&page=2')).toContain('href="/?q=r&amp;page=3"')
  })

  test('error: searches of one address are limited, the page itself is not', async () => {
    const app = pages()
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

describe('what a page may do', () => {
  test('behavior: the policy allows our scripts by their hashes and nothing inline', async () => {
    for (const path of ['/', '/stocks']) {
      const response = await fetch(world.url + path)
      expect(response.status).toBe(200)
      const policy = response.headers.get('content-security-policy') ?? ''
      expect(policy).toContain("default-src 'none'")
      expect(policy).toMatch(/script-src( 'sha256-[A-Za-z0-9+/]{43}='){2}(;|$)/)
      expect(policy).not.toContain('unsafe')
      expect(response.headers.get('x-content-type-options')).toBe('nosniff')
      const text = await response.text()
      expect(text.match(/<style|\sstyle="|\son[a-z]+="|<script>|(src|href)="https?:/g)).toBeNull()
    }
  })

  test('behavior: paths of assets have the hash of their content, and may be cached for ever', async () => {
    const text = await (await fetch(`${world.url}/`)).text()
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

  test('behavior: hostile texts of the configuration are escaped', async () => {
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
    })
    for (const path of ['/', `/?q=${encodeURIComponent('"><script>alert(1)')}`, '/stocks']) {
      const text = await (await app.get(path)).text()
      expect(text).toContain('&lt;script&gt;')
      expect(text.match(/<script>|<img|<\/code><\/title>/g)).toBeNull()
      expect(text).not.toContain(controlCharacter)
      expect(withoutTags(text).match(/.{0,40}[<>].{0,40}/)).toBeNull()
    }
  })
})

const controlCharacter = String.fromCharCode(7)

/** The text that remains without every well-formed tag. */
function withoutTags(text: string): string {
  return text.replace(/<!doctype html>|<\/?[a-z][a-z0-9]*(?:\s+[a-z-]+(?:="[^"<>]*")?)*\s*>/g, '')
}

describe('commands', () => {
  test('behavior: an example has the required parameters and those with an example', () => {
    const params = [
      param('iso', { in: 'tail', required: true, example: 'DE' }),
      param('indicator', { in: 'tail', required: true, schema: { const: 'indicator' } }),
      param('{code}.json', { in: 'tail', required: true, example: 'A B' }),
      param('more', { in: 'tail' }),
      param('page[size]', { example: 10 }),
      param('skipped'),
    ]
    expect(Example.from('world', route('/indicator', { params })).target).toBe(
      '/m/world/indicator/DE/indicator/A%20B.json?page%5Bsize%5D=10',
    )
  })

  test('behavior: quotes cannot leave their command', () => {
    const example = { method: 'POST', target: '/m/a/b', body: `{"a":"it's $(id)\\\\"}` } as const
    const [curl, , program] = Example.commands(example, {
      baseUrl: 'http://localhost',
      network: configOf(small).networks[0],
      priceAtomic: 5000n,
    })
    const echoed = Bun.spawnSync(['sh', '-c', `printf '%s\\n' ${curl?.text.slice('curl '.length)}`])
    expect(echoed.stdout.toString().split('\n')).toContain(example.body)
    const literal = /body: ('.*'),/.exec(program?.text ?? '')?.[1] ?? ''
    expect(new Function(`return ${literal}`)()).toBe(example.body)
  })
})

describe('the commands of the page', () => {
  const root = join(import.meta.dir, '..')
  const payKey = account(1).privateKey

  /** In the form of the demo's page, whose base_url has no port. */
  async function commandsOf(path: string): Promise<string[]> {
    const text = await (await fetch(`${world.url}/`)).text()
    const [, item = ''] = text.split(`<code>${path}`)
    return [...(item.split('</details>')[0] ?? '').matchAll(/<pre><code>([^<]*)<\/code>/g)].map(
      ([, code = '']) => unescaped(code).replaceAll('http://localhost/', `${world.url}/`),
    )
  }

  async function run(command: readonly string[]): Promise<string> {
    const child = Bun.spawn([...command], {
      cwd: root,
      env: { PATH: process.env.PATH, HOME: world.dataDir, PAY_KEY: payKey },
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
    return (await child.exited) === 0 ? out : problems
  }

  test.concurrent('behavior: curl shows the 402, mppx and @x402/fetch buy', async () => {
    const [curl = '', mppx = '', program = ''] = await commandsOf('/m/weather/forecast')
    const mppxHere = mppx.replace('npx mppx', `'${process.execPath}' node_modules/.bin/mppx`)
    const answers = await Promise.all([
      Bun.which('curl') === null ? 'HTTP/1.1 402' : run(['sh', '-c', curl]),
      run(['sh', '-c', mppxHere]),
      run([process.execPath, '-e', program]),
    ])
    expect(answers[0]).toStartWith('HTTP/1.1 402')
    expect(answers[1]).toContain('temperature_2m')
    expect(answers[2]).toContain('temperature_2m')
  })

  test.concurrent('behavior: a POST is bought with its body', async () => {
    const [, mppx = '', program = ''] = await commandsOf('/m/assistant/chat')
    const mppxHere = mppx.replace('npx mppx', `'${process.execPath}' node_modules/.bin/mppx`)
    const answers = await Promise.all([
      run(['sh', '-c', mppxHere]),
      run([process.execPath, '-e', program]),
    ])
    for (const answer of answers) expect(answer).toContain('chat.completion')
  })
})

function unescaped(text: string): string {
  const names = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'" }
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name: keyof typeof names) => names[name])
}
