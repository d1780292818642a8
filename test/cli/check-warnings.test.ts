import { afterAll, expect, test } from 'bun:test'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { check } from '../../src/cli/sell/check'
import { salesOf } from '../../src/cli/words'
import { exposuresOf } from '../../src/config/warnings'
import { exitCode } from '../harness/command'
import { configOf, edited, env, lineWith, small } from '../harness/config'
import { temporary } from '../harness/settlement'

const directory = temporary()
afterAll(directory.remove)
const file = join(directory.path, 'check.toml')

async function run(text: string, own: Record<string, string> = {}) {
  writeFileSync(file, text)
  const lines: string[] = []
  const options = {
    file,
    env: { ...env, ...own },
    online: false,
    dataDir: directory.path,
    now: Date.now,
  }
  const code = await exitCode(check, { ...options, out: (line) => void lines.push(line) })
  return { code, warnings: lines.filter((line) => line.startsWith('warning')), last: lines.at(-1) }
}

const own = 'pay_to = "own"'
/** With a real contact address, behind a proxy, and no route that reaches another. */
const reachable = (text: string) =>
  text
    .replace('[service]', '[service]\ntrust_proxy = 1\ncontact = "me@pay.test"')
    .replace('path = "/a"\n', 'path = "/a"\ntail = "none"\n')
const facilitator = (more: string) => reachable(edited(own, `${own}\n${more}`))
const plain = reachable(small)

test('a facilitator that settles any amount for any payee causes a warning at its line', async () => {
  const said = 'min_amount is 0: anyone can spend'
  for (const [text, at] of [
    [facilitator('min_amount = "0"'), 'min_amount'],
    [plain, '[facilitator]'],
    [reachable(edited(own, `pay_to = ["${env.PAYOUT}"]`)), '[facilitator]'],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('a facilitator that settles upto for any caller causes a warning at its line', async () => {
  const open = facilitator('min_amount = "0.001"\nupto_without_keys = true')
  const { warnings } = await run(open)
  expect(warnings).toHaveLength(1)
  const line = lineWith(open, 'upto_without_keys')
  expect(warnings[0]).toStartWith(`warning: ${file}:${line}: upto_without_keys is true: a buyer`)
  const keyed = facilitator(`upto_without_keys = true\napi_keys = ["${'ab'.repeat(32)}"]`)
  expect((await run(keyed)).warnings).toEqual([])
})

test('a least amount, API keys or a budget of zero cause no warning', async () => {
  const noGas = 'gas_per_day_wei = { facilitator = "0" }'
  for (const text of [
    facilitator('min_amount = "0.001"'),
    facilitator(`api_keys = ["${'ab'.repeat(32)}"]`),
    plain.replaceAll(/^rpc_urls/gm, `${noGas}\nrpc_urls`),
  ]) {
    expect(await run(text)).toEqual({ code: 0, warnings: [], last: 'ok' })
  }
})

test('a sample contact address causes a warning at its place in the file', async () => {
  const quiet = facilitator('min_amount = "0.001"')
  const agent = 'headers = { "User-Agent" = "Shop/1.0 (ops@example.com)" }'
  for (const [text, at, said] of [
    [quiet.replace('me@pay.test', 'ops@example.com'), 'contact', 'contact ops@example.com is'],
    [quiet.replace('slug = "two"', `slug = "two"\n${agent}`), 'User-Agent', 'User-Agent is a'],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('a secret that is too short to be redacted causes a warning without its value', async () => {
  const quiet = facilitator('min_amount = "0.001"')
  const { code, warnings, last } = await run(quiet, { ONE_KEY: 'q7z' })
  expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
  const at = lineWith(quiet, '"X-Key"')
  expect(warnings[0]).toStartWith(`warning: ${file}:${at}: a value from the environment has fewer`)
  expect(warnings[0]).not.toContain('q7z')
  expect(await run(quiet, { ONE_KEY: 'q7z9' })).toEqual({ code: 0, warnings: [], last: 'ok' })
})

/** The quiet file with one more merchant, whose route has a meter. */
const metered = (price: string, more = '') =>
  facilitator('min_amount = "0.001"').replace(
    '[stock]',
    `[[merchants]]
slug = "model"
upstream = "https://model.example.com"
${more}
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "${price}"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
units = [{ name = "input", price = "1" }, { name = "output", price = "10" }]

[stock]`,
  )

test('a metered route that cannot be sold by upto causes a warning at its line', async () => {
  const slow = metered('0.05', 'timeout_ms = 255001')
  const late = 'timeout_ms of model is 255001: above 255000 its metered routes are not sold by upto'
  const dear = metered('1.000001')
  const above =
    'the price of model/chat is above unsettled_max (1.000000): a request with a ceiling'
  for (const [text, at, said] of [
    [slow, 'timeout_ms = 255001', late],
    [dear, 'price = "1.000001"', above],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('a metered route that is sold by upto, and a slow flat one, cause no warning', async () => {
  const quiet = { code: 0, warnings: [], last: 'ok' }
  expect(await run(metered('1', 'timeout_ms = 255000'))).toEqual(quiet)
  const raised = metered('1.000001').replace('[service]', '[service]\nunsettled_max = "2"')
  expect(await run(raised)).toEqual(quiet)
  const flat = facilitator('min_amount = "0.001"').replace(
    'slug = "two"',
    'slug = "two"\ntimeout_ms = 300000',
  )
  expect(await run(flat)).toEqual(quiet)
})

test('a model that is dearer than unknown names causes a warning, unless only the table is sold', async () => {
  const table = '[merchants.routes.meter.models."dear"]\noutput = "11"'
  const text = metered('0.05').replace('\n\n[stock]', `\n${table}\n\n[stock]`)
  const { warnings, last } = await run(text)
  const said = 'dear of model/chat is dearer than a model that the table lacks'
  expect([warnings.length, last]).toEqual([1, 'ok'])
  expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, '"dear"')}: ${said}`)
  const quiet = { code: 0, warnings: [], last: 'ok' }
  expect(await run(text.replace('"11"', '"10"'))).toEqual(quiet)
  const only = `${table}\n[merchants.routes.meter.limits]\nmodels_only = true`
  expect(await run(text.replace(table, only))).toEqual(quiet)
})

test('check names the pointers to errors, which make an answer free', async () => {
  writeFileSync(file, metered('0.05'))
  const lines: string[] = []
  const options = { file, env, online: false, dataDir: directory.path, now: Date.now }
  await exitCode(check, { ...options, out: (line) => void lines.push(line) })
  expect(lines).toContain(
    'free       answers of preset openai with a value at /error or /response/error or /choices/0/error',
  )
})

test('check says what a wallet has without a further payment, and counts passes', async () => {
  const given = `path = "/a"
again = "30d"
again_max = 1
trial = { requests = 3, total_per_day = 500, min_balance = "0.5" }
pass = { price = "1.00", period = "24h", requests = 500 }`
  writeFileSync(file, plain.replace('path = "/a"', given))
  const lines: string[] = []
  const options = { file, env, online: false, dataDir: directory.path, now: Date.now }
  await exitCode(check, { ...options, out: (line) => void lines.push(line) })
  expect(lines).toContain('merchants  2 merchants sell 3 routes and 1 pass: one, two')
  const at = lines.findIndex((line) => line.startsWith('trial'))
  expect(lines.slice(at, at + 4)).toEqual([
    'trial      one/a: 3 free requests for a wallet with 0.50 USDC, held for 50 blocks (500 a day for all wallets)',
    'pass       one/a: 1.00 USDC for 500 requests in 24 hours',
    'again      one/a: the same answer for 30 days, once',
    expect.not.stringContaining('one/a'),
  ])
})

test('without a contact no sample address is warned of', async () => {
  const quiet = facilitator('min_amount = "0.001"').replace('contact = "me@pay.test"\n', '')
  expect(await run(quiet)).toEqual({ code: 0, warnings: [], last: 'ok' })
})

test('a public base URL without TLS causes a warning, one of this machine none', async () => {
  const quiet = facilitator('min_amount = "0.001"')
  const at = (url: string) => quiet.replace('https://pay.example.com', url)
  const { code, warnings, last } = await run(at('http://pay.test:8080'))
  expect([code, warnings, last]).toEqual([
    0,
    [
      `warning: ${file}:${lineWith(quiet, 'base_url')}: base_url http://pay.test:8080 is public and ` +
        'not encrypted: anyone on the way can read and change answers; serve it by TLS, and write ' +
        'https://pay.test:8080',
    ],
    'ok',
  ])
  for (const url of [
    'http://localhost:4020',
    'http://127.0.0.1',
    'http://192.168.0.7',
    'http://[::1]',
  ])
    expect(await run(at(url))).toEqual({ code: 0, warnings: [], last: 'ok' })
})

test('a private address behind an https URL needs trust_proxy', async () => {
  const behind = facilitator('min_amount = "0.001"').replace('trust_proxy = 1\n', '')
  const listening = (listen: string) => behind.replace('127.0.0.1:4020', listen)
  for (const listen of ['127.0.0.1:4020', '0.0.0.0:80', '10.0.0.4:80', '[::1]:80', '[::]:80']) {
    const { code, warnings, last } = await run(listening(listen))
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    const at = lineWith(behind, '[service]')
    expect(warnings[0]).toStartWith(
      `warning: ${file}:${at}: trust_proxy is 0, but base_url is https`,
    )
  }
  const quiet = { code: 0, warnings: [], last: 'ok' }
  expect(await run(listening('203.0.113.7:443'))).toEqual(quiet)
  expect(await run(behind.replace('https://pay.example.com', 'http://localhost'))).toEqual(quiet)
  const config = configOf(behind)
  expect(exposuresOf(config, { hasOwnTls: false })).toHaveLength(1)
  expect(exposuresOf(config, { hasOwnTls: true })).toEqual([])
})

test('one merchant with one route is counted in the singular', () => {
  expect(salesOf([{ routes: [] }, { routes: [] }])).toBe('2 merchants sell 0 routes')
  const { merchants } = configOf(small)
  expect(salesOf(merchants)).toBe('2 merchants sell 3 routes')
  expect(salesOf(merchants.slice(1))).toBe('1 merchant sells 1 route')
})

/** The quiet file with these routes as those of a merchant "shop", by path: keys besides the path. */
function withRoutes(routes: Record<string, string>, more = ''): string {
  const tables = Object.entries(routes).map(
    ([path, keys]) => `[[merchants.routes]]\npath = "${path}"\n${keys}\n`,
  )
  const head = '[[merchants]]\nslug = "shop"\nupstream = "https://shop.example.com"\n'
  return `${facilitator('min_amount = "0.001"')}\n${head}${tables.join('')}${more}`
}

const everyPath = 'price = "0.001"'
const forecast = 'price = "5"\nupstream_path = "/v1/forecast"\ntail = "none"'

test('a route that reaches the upstream path of a dearer one causes a warning at its line', async () => {
  const reaches = (cheap: string, dear: string) =>
    `${cheap} forwards to paths that cost more at ${dear}: `
  const other = (upstream: string, price: string) =>
    `[[merchants]]\nslug = "other"\nupstream = "${upstream}"\n[[merchants.routes]]\npath = "/x"\nprice = "${price}"\n`
  for (const [text, at, said] of [
    [
      withRoutes({ '/': everyPath, '/premium': 'price = "5"' }),
      'path = "/"',
      reaches('shop/', 'shop/premium'),
    ],
    [withRoutes({ '/': everyPath, '/f': forecast }), 'path = "/"', reaches('shop/', 'shop/f')],
    [
      withRoutes({ '/v2': `${everyPath}\nupstream_path = "/v1"`, '/f': forecast }),
      'path = "/v2"',
      reaches('shop/v2', 'shop/f'),
    ],
    [
      withRoutes({ '/g': `${everyPath}\nupstream_path = "/v1/forecast"`, '/f': forecast }),
      'path = "/g"',
      reaches('shop/g', 'shop/f'),
    ],
    [
      withRoutes({
        '/v': everyPath,
        '/v/b': 'price = "1"',
        '/v/c': 'price = "1"',
        '/v/d': 'price = "1"',
        '/v/e': 'price = "1"',
      }),
      'path = "/v"',
      reaches('shop/v', 'shop/v/b, shop/v/c, shop/v/d and 1 more'),
    ],
    [
      withRoutes({ '/': everyPath }, other('https://shop.example.com', '0.002')),
      'path = "/"',
      reaches('shop/', 'other/x'),
    ],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
  const quiet = [
    withRoutes({ '/': 'price = "5"', '/status': everyPath }),
    withRoutes({ '/': everyPath, '/same': everyPath }),
    withRoutes({ '/a': `${everyPath}\ntail = "none"`, '/a/b': 'price = "5"' }),
    withRoutes({ '/a': everyPath, '/ab': 'price = "5"' }),
    withRoutes({
      '/few': `${everyPath}\nupstream_path = "/rows"\nfixed_query = { limit = "10" }`,
      '/many': 'price = "5"\nupstream_path = "/rows"\nfixed_query = { limit = "1000" }',
    }),
    withRoutes({
      '/read': `${everyPath}\nupstream_path = "/rows"`,
      '/write': 'price = "5"\nupstream_path = "/rows"\nmethods = ["POST"]',
    }),
    withRoutes({
      '/list': 'price = "5"\nupstream_path = "/items"\ntail = "none"',
      '/item': `${everyPath}\nupstream_path = "/items"\ntail = "required"`,
    }),
    withRoutes({ '/': everyPath }, other('https://other.example.com', '5')),
  ]
  for (const text of quiet) expect(await run(text)).toEqual({ code: 0, warnings: [], last: 'ok' })
})
