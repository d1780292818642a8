import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { encodeAbiParameters, getCreate2Address, keccak256 } from 'viem/utils'
import { check } from '../../src/cli/sell/check'
import { developmentAccounts } from '../../src/config/cross-checks'
import { index, lineOf } from '../../src/config/lines'
import type { Options } from '../../src/config/merchants'
import * as Route from '../../src/gateway/Route'
import { segmentsOf } from '../../src/gateway/Tail'
import { validateParams } from '../../src/gateway/validate'
import { exitCode } from '../harness/command'
import { configOf, edited, env, linesOf, lineWith, named, payout, small } from '../harness/config'

const shipped = readFileSync(join(import.meta.dir, '../..', 'merchants.toml'), 'utf8')
const directory = mkdtempSync(join(tmpdir(), 'turnpike-config-'))
afterAll(() => rmSync(directory, { recursive: true }))

// Specification 4.2, row by row, and crypto-markets/global.
const table = `
/m/chain-stocks/quote | GET, POST | 0.01
/m/chain-stocks/report | GET, POST | 1.00
/m/chain-stocks/stocks | GET, POST | 0.02
/m/chain-stocks/token | GET, POST | 0.01
/m/catjoke/joke | GET | 0.01
/m/assistant/chat | POST | 0.05
/m/weather/air-quality | GET | 0.005
/m/weather/forecast | GET | 0.005
/m/weather/geocode | GET | 0.005
/m/fx/currencies | GET | 0.005
/m/fx/historical/{date} | GET | 0.005
/m/fx/latest | GET | 0.005
/m/crypto-prices/chart/{coins} | GET | 0.01
/m/crypto-prices/current/{coins} | GET | 0.01
/m/crypto-prices/historical/{timestamp}/{coins} | GET | 0.01
/m/defi/chains | GET | 0.01
/m/defi/protocols | GET | 0.01
/m/defi/stablecoins | GET | 0.01
/m/defi/tvl/{protocol_slug} | GET | 0.01
/m/wiki/search | GET | 0.005
/m/wiki/summary/{title} | GET | 0.005
/m/words/define/{word} | GET | 0.005
/m/words/related | GET | 0.005
/m/tech-news/front-page | GET | 0.005
/m/tech-news/search | GET | 0.005
/m/world-data/country[/{iso}] | GET | 0.005
/m/world-data/indicator/{iso}/indicator/{code} | GET | 0.005
/m/chainscan/address/{address} | GET | 0.01
/m/chainscan/stats | GET | 0.01
/m/chainscan/token[/{address}[/holders]] | GET | 0.01
/m/chainscan/tx[/{hash}[/logs or /token-transfers]] | GET | 0.01
/m/books/search | GET | 0.005
/m/books/work/works/{id}.json | GET | 0.005
/m/company-filings/facts/{padded_cik}.json | GET | 0.01
/m/company-filings/filings/{padded_cik}.json | GET | 0.01
/m/company-filings/tickers | GET | 0.005
/m/us-treasury/debt | GET | 0.005
/m/us-treasury/exchange-rates | GET | 0.005
/m/us-treasury/interest-rates | GET | 0.005
/m/crypto-markets/coin/{coin_id} | GET | 0.005
/m/crypto-markets/global | GET | 0.005`
const rows = table
  .trim()
  .split('\n')
  .map((row) => row.split('|').map((cell) => cell.trim()))

describe('the shipped file', () => {
  const config = configOf(shipped)

  test('sells every row of the specification at its price and nothing else', () => {
    const sold = config.merchants.flatMap(({ slug, routes }) =>
      routes.map(
        (route) => `/m/${slug}${route.path} ${route.methods.join(', ')} ${route.priceAtomic}`,
      ),
    )
    const wanted = rows.map(([path = '', methods, price]) => {
      const [literal = ''] = path.split(/\[?\/\{/)
      const route = literal === '/m/books/work/works' ? '/m/books/work' : literal
      return `${route} ${methods} ${Math.round(Number(price) * 1e6)}`
    })
    expect(sold.sort()).toEqual(wanted.sort())
  })

  test('a path with a variable needs its tail, an optional one does not', () => {
    const tails = new Map(
      config.merchants.flatMap(({ slug, routes }) =>
        routes.map((route): [string, string] => [`/m/${slug}${route.path}`, route.tail]),
      ),
    )
    for (const [path = ''] of rows) {
      const [literal = ''] = path.split(/\[?\/\{/)
      const route = literal === '/m/books/work/works' ? '/m/books/work' : literal
      if (path.includes('/{') && !path.includes('[/{')) expect(tails.get(route)).toBe('required')
      else expect(tails.get(route)).not.toBe('required')
    }
  })

  test('every route has a description, and every example is valid under its schema', () => {
    for (const merchant of config.merchants) {
      expect(merchant.description).not.toBe('')
      for (const route of merchant.routes) {
        expect([route.path, route.summary, route.description]).not.toContain('')
        const tail = route.params.find((param) => param.in === 'tail')
        if (route.tail === 'required') expect(tail?.required).toBe(true)
        for (const { name, schema, example, description } of route.params) {
          expect([name, description]).not.toContain('')
          expect(example).toBeDefined()
          if (typeof schema.pattern === 'string') {
            expect(String(example)).toMatch(new RegExp(schema.pattern, 'u'))
          }
        }
      }
    }
  })

  test('the figures beside a body_max are those of the meter of its route', () => {
    const comment = /^body_max = "(\d+)KiB" +# about ([\d,]+) tokens\D+([\d,]+) of output/gm
    const said = [...shipped.matchAll(comment)]
    expect(said.length).toBeGreaterThan(0)
    for (const { index, 1: kib, 2: input, 3: output } of said) {
      const above = [...shipped.slice(0, index).matchAll(/^(slug|path) = "(.*)"$/gm)]
      const last = (key: string) => above.findLast(([, name]) => name === key)?.[2]
      const { meter } =
        config.merchants
          .find(({ slug }) => slug === last('slug'))
          ?.routes.find(({ path }) => path === last('path')) ?? {}
      if (meter === undefined) throw new Error(`${last('slug')}${last('path')} has no meter`)
      const numberOf = (text = '') => Number(text.replace(',', ''))
      // Four bytes are about one token.
      expect(Math.abs((Number(kib) * 1024) / 4 / numberOf(input) - 1)).toBeLessThan(0.05)
      const costs = Object.values(meter.models).map((rates) =>
        [rates.input, rates.output].map(
          (rate) => Number(rate?.priceScaled) / 1e6 / (rate?.per ?? 0),
        ),
      )
      const rest = Number(meter.priceAtomic - meter.baseAtomic)
      const left = costs.map(([of = 0, out = 0]) => (rest - numberOf(input) * of) / out)
      expect(Math.abs(Math.min(...left) / numberOf(output) - 1)).toBeLessThan(0.01)
    }
  })

  test('the proxy accepts every route, and serves its examples', () => {
    const matcher = Route.compile(config.merchants)
    for (const { slug, routes } of config.merchants) {
      for (const route of routes) {
        const tail = segmentsOf(route)
          .filter(({ param }) => route.tail === 'required' || param.required)
          .map(({ param, prefix, suffix }) => `${prefix}${param.example}${suffix}`)
          .join('/')
        const path = `/m/${slug}${route.path}${tail === '' ? '' : `/${tail}`}`
        expect(Route.canonicalize(path)).toBe(path)
        expect(Route.match(matcher, path)).toMatchObject({ route, tail })
        const query = route.params.filter((param) => param.in === 'query')
        const pairs = query.map(({ name, example }): [string, string] => [name, `${example}`])
        const search = new URLSearchParams(pairs).toString()
        expect([path, validateParams(route, search, tail, new Uint8Array())]).toEqual([path, []])
      }
    }
  })

  test('upstream paths are those of the documented services', () => {
    const paths = Object.fromEntries(
      config.merchants.flatMap(({ slug, upstream, routes }) =>
        routes.map((route) => [
          slug + route.path,
          `${(route.upstream ?? upstream)?.hostname}${route.upstreamPath}`,
        ]),
      ),
    )
    expect(paths).toMatchObject({
      'weather/geocode': 'geocoding-api.open-meteo.com/v1/search',
      'fx/historical': 'api.frankfurter.dev/v1',
      'defi/stablecoins': 'stablecoins.llama.fi/stablecoins',
      'world-data/indicator': 'api.worldbank.org/v2/country',
      'chainscan/tx': 'robinhoodchain.blockscout.com/api/v2/transactions',
      'books/work': 'openlibrary.org/{tail}',
      'company-filings/facts': 'data.sec.gov/api/xbrl/companyfacts/CIK{tail}',
      'company-filings/tickers': 'www.sec.gov/files/company_tickers.json',
    })
  })

  test('holds the networks, the stock tokens and a testnet for catjoke only', () => {
    expect(config.networks.map(({ id }) => id)).toEqual([
      'eip155:4663',
      'eip155:8453',
      'eip155:84532',
    ])
    expect(config.service.mppOrder).toEqual(['eip155:8453', 'eip155:4663', 'eip155:84532'])
    expect(config.stock?.tokens).toHaveLength(14)
    expect(config.stock?.tokens.every(({ feed }) => feed !== undefined)).toBe(true)
    const onTestnet = config.merchants.filter(({ networks }) => networks.includes('eip155:84532'))
    expect(onTestnet.map(({ slug }) => slug)).toEqual(['catjoke'])
    const weather = config.merchants.find(({ slug }) => slug === 'weather')
    expect(weather?.networks).toEqual(['eip155:4663', 'eip155:8453'])
  })

  test('every pool is the one that the factory derives from its pair and fee', () => {
    // Init code hash of Uniswap V3 pools, as in UniswapV3Factory deployments.
    const bytecodeHash = '0xe34f199b19b2b4f47f68442619d555527d244f78a3297ea89325f843f87b8b54'
    const usdg = config.networks[0]?.asset.address ?? payout
    const { stock } = config
    for (const { symbol, address, fee, pool } of stock?.tokens ?? []) {
      const [token0 = usdg, token1 = usdg] = [usdg, address].sort((a, b) =>
        BigInt(a) < BigInt(b) ? -1 : 1,
      )
      const types = [{ type: 'address' }, { type: 'address' }, { type: 'uint24' }] as const
      const salt = keccak256(encodeAbiParameters(types, [token0, token1, fee]))
      const derived = getCreate2Address({ from: stock?.factory ?? usdg, salt, bytecodeHash })
      expect([symbol, pool]).toEqual([symbol, derived])
    }
  })

  test('without its key only the assistant is out of service', () => {
    const out = (text: string, own: Options['env']) =>
      configOf(text, { env: own }).merchants.flatMap(({ slug, outOfService }) =>
        outOfService ? [`${slug}: ${outOfService}`] : [],
      )
    expect(out(shipped, { PAYOUT: payout })).toEqual(['assistant: ASSISTANT_KEY'])
    expect(out(shipped, { PAYOUT: payout, ASSISTANT_KEY: 'sk' })).toEqual([])
  })

  test('the shipped file runs on local chains and upstreams with overrides only', () => {
    const local = configOf(shipped, {
      env: {},
      overrides: {
        rpcUrls: {
          'eip155:4663': 'http://127.0.0.1:8545',
          'eip155:8453': 'http://127.0.0.1:8546',
          'eip155:84532': 'http://127.0.0.1:8547',
        },
        upstream: (url) => new URL(`http://127.0.0.1:9999/${url.hostname}`),
        payout: developmentAccounts[3] ?? payout,
        baseUrl: 'http://localhost:1234',
        listen: '127.0.0.1:0',
      },
    })
    expect(local.service.baseUrl).toBe('http://localhost:1234')
    expect(local.service.listen).toEqual({ hostname: '127.0.0.1', port: 0 })
    expect(local.networks.map(({ rpcUrls }) => rpcUrls.length)).toEqual([1, 1, 1])
    const weather = local.merchants.find(({ slug }) => slug === 'weather')
    expect(weather?.allowPrivate).toBe(true)
    expect(weather?.upstream?.href).toBe('http://127.0.0.1:9999/')
    expect(weather?.routes[0]?.upstreamPath).toBe('/air-quality-api.open-meteo.com/v1/air-quality')
    expect(weather?.payout).toBe(developmentAccounts[3] ?? payout)
  })
})

describe('the parsed file', () => {
  test('defaults, atomic prices and the path of an upstream', () => {
    const config = configOf(small)
    const [one, two] = config.merchants
    expect(one?.headers).toEqual({ 'X-Key': 'key-k3y-of-one' })
    expect(one?.upstream?.href).toBe('https://one.example.com/')
    expect(one?.routes.map((route) => [route.upstreamPath, route.priceAtomic])).toEqual([
      ['/base/a', 5000n],
      ['/base/a/b', 100_000n],
    ])
    expect(two?.networks).toEqual(['eip155:8453'])
    expect(two).toMatchObject({ payout, timeoutMs: 30_000, idleMs: 60_000, allowPrivate: false })
    expect(two?.ownConnections).toBe(false)
    const own = edited('slug = "two"', 'slug = "two"\nkeep_alive = false')
    expect(configOf(own).merchants.map(({ ownConnections }) => ownConnections)).toEqual([
      false,
      true,
    ])
    expect([two?.concurrencyMax, config.service.concurrencyMax]).toEqual([512, 2_048])
    expect(config.service.stalledStreamsMax).toBe(16)
    expect(two?.routes[0]).toMatchObject({
      methods: ['GET'],
      tail: 'optional',
      query: {},
      bodyRequired: false,
      answer: undefined,
    })
    expect(config.service).toMatchObject({
      discoveryNetwork: 'eip155:8453',
      facilitatorUrl: 'https://pay.example.com',
      settleWaitSeconds: 25,
      confirmTwiceAboveAtomic: 10_000_000n,
      payoutExclusive: false,
    })
    const twice = (value: string) =>
      configOf(edited('[service]\n', `[service]\nconfirm_twice_above = ${value}\n`)).service
        .confirmTwiceAboveAtomic
    expect(['"0"', '"2.5"', '"off"'].map(twice)).toEqual([0n, 2_500_000n, undefined])
    expect(config.networks[0]).toMatchObject({ feeCapWei: 50_000_000_000n, batchMax: 64 })
    expect(config.networks[0]).toMatchObject({ gasRatioMax: 0, ethPriceUsd: 4000 })
    expect(config.facilitator).toMatchObject({ payTo: 'own', minAmountAtomic: 0n })
  })

  test('a merchant hash is that of the file, not of the environment', () => {
    const hashes = (text: string, key: string) =>
      configOf(text, { env: { ...env, ONE_KEY: key } }).merchants.map(({ hash }) => hash)
    const [one, two] = hashes(small, 'a')
    expect(hashes(small, 'b')).toEqual([one ?? '', two ?? ''])
    const moved = hashes(edited('price = "1"\n', 'price = "2"\n'), 'a')
    expect(moved[0]).toBe(one ?? '')
    expect(moved[1]).not.toBe(two ?? '')
  })

  test('an unset name takes the merchant out of service, in other tables it is a fault', () => {
    const config = configOf(small, { env: { PAYOUT: payout } })
    expect(config.merchants.map(({ outOfService }) => outOfService)).toEqual(['ONE_KEY', undefined])
    const own = edited('slug = "two"', `slug = "two"\npayout = "${named('TWO')}"`)
    expect(config.merchants[0]?.headers).toEqual({})
    expect(configOf(own).merchants[1]?.outOfService).toBe('TWO')
    const upstream = edited('"https://two.example.com"', `"${named('TWO')}"`)
    expect(configOf(upstream).merchants[1]).toMatchObject({
      outOfService: 'TWO',
      upstream: undefined,
    })
    for (const [from, to] of [
      ['"127.0.0.1:4020"', `"${named('NONE')}"`],
      ['"https://rpc.example.com"', `"${named('NONE')}"`],
      ['"NVIDIA"', `"${named('NONE')}"`],
    ] as const) {
      const text = edited(from, to)
      const line = lineWith(text, named('NONE'))
      expect(linesOf(text)).toEqual([
        `m.toml:${line}: the environment has no NONE: set NONE or NONE_FILE, or write the value here`,
      ])
    }
  })

  test('attack: no place of the file gets a secret of the service', () => {
    for (const name of ['RELAYER_KEYS', 'ADMIN_TOKEN', 'DATABASE_URL']) {
      const text = edited('"https://one.example.com/base"', `"https://x.example/${named(name)}"`)
      expect(linesOf(text, { env: { ...env, [name]: 'x' } })).toEqual([
        `m.toml:${lineWith(text, named(name))}: ${name} is a secret of the service itself: name another variable`,
      ])
    }
  })

  test('parts of a path from the environment are secrets, the host is not', () => {
    const secretsOf = (upstream: string, own: string) =>
      configOf(edited('"https://one.example.com/base"', `"${upstream}"`), {
        env: { ...env, OWN: own },
      }).merchants[0]?.routes[0]?.pathSecrets
    expect(secretsOf('https://one.example.com/base', 'x')).toEqual([])
    expect(secretsOf(`https://one.example.com/v3/${named('OWN')}`, 'a-path-key')).toEqual([
      'a-path-key',
    ])
    expect(secretsOf(`https://${named('OWN')}/base`, 'one.example.com')).toEqual([])
    expect(secretsOf(named('OWN'), 'https://one.example.com/v3/a-key')).toEqual(['/v3/a-key'])
    const text = edited('path = "/c"', `path = "/c"\nupstream_path = "/bot${named('ONE_KEY')}/c"`)
    expect(configOf(text).merchants[1]?.routes[0]?.pathSecrets).toEqual([env.ONE_KEY])
  })

  test('a name may come from a file', () => {
    const path = join(directory, 'one-key')
    writeFileSync(path, 'from-file\n')
    const config = configOf(small, { env: { PAYOUT: payout, ONE_KEY_FILE: path } })
    expect(config.merchants[0]?.headers['X-Key']).toBe('key-from-file')
  })

  test('lines are found through every kind of TOML', () => {
    const text = [
      '# [a] is no table',
      'text = """',
      'b = 1 \\" """',
      "raw = '''",
      "[x]'''''",
      '"a key".sub = { c = "#", "d.e" = [1, {f = 2}] } # [y]',
      'many = [ # one',
      '  "]", # two',
      '  { g = 1 },',
      ']',
      '[[t]]',
      'h = 1979-05-27 07:32:00',
      '[[t]]',
      '[t.sub."q\\u0061\\U00000062"]',
      'i = 1',
      '[[t.rows]]',
      '[[t.rows]]',
      'j = 2',
    ].join('\r\n')
    const lines = index(text)
    expect(lineOf(lines, ['text'])).toBe(2)
    expect(lineOf(lines, ['raw'])).toBe(4)
    expect(lineOf(lines, ['x'])).toBe(1)
    expect(lineOf(lines, ['a key', 'sub', 'd.e', 1, 'f'])).toBe(6)
    expect(lineOf(lines, ['many', 1, 'g'])).toBe(9)
    expect(lineOf(lines, ['t', 0, 'h'])).toBe(12)
    expect(lineOf(lines, ['t', 1, 'sub', 'qab', 'i'])).toBe(15)
    expect(lineOf(lines, ['t', 1, 'rows', 1, 'j'])).toBe(18)
    expect(lineOf(lines, ['t', 1, 'rows', 1, 'absent'])).toBe(17)
  })
})

describe('turnpike check', () => {
  const run = async (text: string, own: Options['env'], online = false) => {
    const file = join(directory, 'check.toml')
    writeFileSync(file, text)
    const lines: string[] = []
    const out = (line: string) => lines.push(line)
    const dataDir = join(directory, 'none')
    const code = await exitCode(check, { file, env: own, online, dataDir, now: Date.now, out })
    return { code, text: lines.join('\n').replaceAll(file, 'check.toml') }
  }

  test('summarises a valid file and lists what is out of service', async () => {
    const { code, text } = await run(shipped, { PAYOUT: payout })
    expect(code).toBe(0)
    expect(text).toMatch(/16 merchants sell 41 routes/)
    expect(text).toMatch(/^metrics +\/metrics (is for everyone|needs Authorization)/m)
    expect(text).toMatch(/out of service: assistant \(ASSISTANT_KEY is not set\)/)
  })

  test('error: prints file:line and returns 1', async () => {
    const { code, text } = await run(edited('price = "1"', 'price = 1'), env)
    expect(code).toBe(1)
    expect(text).toMatch(/^check\.toml:45: price must be a string/)
  })

  test('error: a payout that is the relayer of the environment', async () => {
    const { text } = await run(shipped, {
      PAYOUT: '0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf',
      RELAYER_KEYS: '1'.padStart(64, '0'),
    })
    expect(text).toMatch(/^check\.toml:\d+: payout is a relayer/)
  })

  test('error: a payout that is the desk of the environment', async () => {
    const { text } = await run(shipped, {
      PAYOUT: '0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf',
      RELAYER_KEYS: '2'.padStart(64, '0'),
      DESK_KEY: '1'.padStart(64, '0'),
    })
    expect(text).toMatch(/^check\.toml:\d+: payout is a relayer/)
  })

  test('it names the account of refunds, which is no payout either', async () => {
    const own = '0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf'
    const REFUND_KEY = '1'.padStart(64, '0')
    const { code, text } = await run(shipped, { PAYOUT: payout, REFUND_KEY })
    expect(code).toBe(0)
    expect(text).toContain(`refunds    from ${own}, at most 100.000000 USD a day\n`)
    const paid = await run(shipped, { PAYOUT: own, REFUND_KEY })
    expect(paid.text).toMatch(/^check\.toml:\d+: payout is a relayer.* or its account of refunds/)
    const authorizer = { RECEIVER_AUTHORIZER_KEY: REFUND_KEY }
    const claimed = await run(shipped, { PAYOUT: own, ...authorizer })
    expect(claimed.text).toMatch(/^check\.toml:\d+: payout is a relayer/)
    const twice = await run(shipped, { PAYOUT: payout, REFUND_KEY, DESK_KEY: REFUND_KEY })
    expect(twice.text).toStartWith('REFUND_KEY is a key of RELAYER_KEYS or DESK_KEY')
  })
})

test('values from the environment are secrets in every place', () => {
  const text = small
    .replace(
      'path = "/c"',
      `path = "/c"\nfixed_query = { mode = "x-${named('TWO_MODE')}" }\nquery = { lang = "en" }`,
    )
    .replace(
      'slug = "two"',
      `slug = "two"\ntitle = "${named('TWO_TITLE')}"\nheaders = { From = "${named('TWO_MAIL')}" }`,
    )
  const own = { TWO_MODE: 'a-mode', TWO_TITLE: 'A title', TWO_MAIL: 'me@example.com' }
  const { merchants } = configOf(text, { env: { ...env, ...own } })
  expect(merchants.map(({ secrets }) => secrets.toSorted())).toEqual([
    ['k3y-of-one'],
    ['a-mode', 'me@example.com'],
  ])
})

test('a route may have re-access, a trial and a pass, and the pass is a route of its own', () => {
  const { service, merchants } = configOf(
    edited(
      'price = "1"',
      `price = "1"
summary = "Answers"
again = "90min"
trial = { requests = 3, total_per_day = 500, min_balance = "0.5" }
pass = { price = "20", period = "30d", requests = 500 }`,
    ),
  )
  const [route, pass, ...others] = merchants[1]?.routes ?? []
  expect(route).toMatchObject({
    again: { forMs: 90 * 60_000, max: 5 },
    trial: { requests: 3, totalPerDay: 500, minBalanceAtomic: 500_000n },
    pass: { priceAtomic: 20_000_000n, periodMs: 30 * 86_400_000, requests: 500 },
  })
  expect([route?.trial?.minBalanceAgeBlocks, route?.passOf]).toEqual([undefined, undefined])
  expect(pass).toMatchObject({
    ...{ path: '/c/pass', passOf: '/c', methods: ['GET'], priceAtomic: 20_000_000n },
    ...{ summary: 'Pass: 500 requests of Answers in 30 days', tail: 'none', params: [] },
  })
  expect([pass?.again, pass?.trial, pass?.pass, others]).toEqual([
    ...[undefined, undefined, undefined],
    [],
  ])
  const { all } = Route.compile(merchants)
  expect(all).toHaveLength(4)
  const selected = (path: string) => Route.match(Route.compile(merchants), `/m/two${path}`)?.route
  expect(['/c', '/c/pass', '/c/other'].map(selected)).toEqual([route, pass, route])
  expect([service.refundPerDayAtomic, merchants[1]?.refund]).toEqual([100_000_000n, 'by-hand'])
})

test('a day, an hour and a minute are durations, and who promises refunds names their account', () => {
  const of = (span: string) =>
    configOf(edited('price = "1"', `price = "1"\nagain = "${span}"`)).merchants[1]?.routes[0]?.again
  expect(['1min', '24h', '366d'].map((span) => of(span)?.forMs)).toEqual([
    60_000,
    86_400_000,
    366 * 86_400_000,
  ])
  const text = edited('slug = "two"', 'slug = "two"\nrefund = "undelivered"')
  for (const name of ['REFUND_KEY', 'REFUND_KEY_FILE'])
    expect(configOf(text, { env: { ...env, [name]: 'a' } }).merchants[1]?.refund).toBe(
      'undelivered',
    )
})
