import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as App from '../../src/app'
import { compose, defaults } from '../../src/cli/sell/init'
import { loadSecrets } from '../../src/config/env'
import { account } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402 } from '../../src/demo/buyers'
import { balanceOf, type Chain } from '../../src/demo/chains'
import { silent } from '../../src/log'
import { openMarket } from '../../src/stock/start'
import { startChains } from '../harness/chains'
import { configOf, payout, small } from '../harness/config'
import { until } from '../harness/settlement'

/** The file that init writes sells a local API on a local chain, as in docs/quickstart.md. */

const base = 'eip155:8453'
const directory = mkdtempSync(join(tmpdir(), 'turnpike-init-sale-'))
const asked: string[] = []
let api: ReturnType<typeof Bun.serve>
let chain: Chain
let app: App.App
let config: ReturnType<typeof configOf>
beforeAll(async () => {
  api = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    async fetch(request) {
      const { pathname, search } = new URL(request.url)
      asked.push(`${request.method} ${pathname}${search}`)
      return Response.json({ asked: pathname, body: await request.text() })
    },
  })
  const draft = configOf(compose(defaults))
  const [started] = await startChains(draft.networks)
  if (started === undefined) throw new Error('no chain')
  chain = started
  const text = compose({ ...defaults, upstream: `http://127.0.0.1:${api.port}/v1`, rpc: chain.url })
  const env = { RELAYER_KEYS: account(0).privateKey }
  config = configOf(text, { overrides: { listen: '127.0.0.1:0' } })
  app = await App.start({
    config,
    secrets: loadSecrets({ dataDir: directory, env }),
    dataDir: directory,
    log: silent,
  })
})
afterAll(async () => {
  await app?.stop()
  await chain?.stop()
  await api?.stop(true)
  rmSync(directory, { recursive: true, force: true })
})

test('stock clients of both protocols buy any path of the API', async () => {
  const before = await balanceOf(chain, config.networks[0]?.asset.address ?? '0x', payout)
  const mpp = await buyWithMppx({ config }, `${app.url}/m/api/hello/you?q=1`, account(1))
  expect([mpp.response.status, JSON.parse(mpp.body)]).toEqual([
    200,
    { asked: '/v1/hello/you', body: '' },
  ])
  const terms = { network: base, method: 'eip3009' } as const
  const x402 = await buyWithX402({ config }, `${app.url}/m/api`, account(2), terms)
  expect([x402.response.status, JSON.parse(x402.body)]).toEqual([200, { asked: '/v1', body: '' }])
  const init = { method: 'POST', body: '{"a":1}', headers: { 'content-type': 'application/json' } }
  const posted = await buyWithX402({ config }, `${app.url}/m/api/post`, account(2), {
    ...terms,
    init,
  })
  expect(JSON.parse(posted.body)).toEqual({ asked: '/v1/post', body: '{"a":1}' })
  expect(asked).toEqual(['GET /v1/hello/you?q=1', 'GET /v1', 'POST /v1/post'])
  const after = await balanceOf(chain, config.networks[0]?.asset.address ?? '0x', payout)
  expect(after - before).toBe(30_000n)
})

test('the document of the API stays free, and lists every path', async () => {
  const paths = async (path: string) => {
    const answer = await fetch(`${app.url}${path}`)
    expect([path, answer.status]).toEqual([path, 200])
    return Object.keys(((await answer.json()) as { paths: object }).paths)
  }
  expect(await paths('/m/api/openapi.json')).toEqual(['/', '/{tail}'])
  expect(await paths('/openapi.json')).toEqual(['/m/api', '/m/api/{tail}'])
  expect(asked).not.toContain('GET /v1/openapi.json')
  expect((await fetch(`${app.url}/m/api/openapi.json/more`)).status).toBe(402)
})

test('a service without a contact publishes none', async () => {
  expect(config.service.contact).toBeUndefined()
  for (const path of ['/openapi.json', '/api/openapi.json', '/m/api/openapi.json']) {
    const { info } = (await (await fetch(app.url + path)).json()) as { info: object }
    expect([path, Object.hasOwn(info, 'contact')]).toEqual([path, false])
  }
  const home = await (await fetch(app.url)).text()
  expect(home).toContain('1 merchant, 1 route')
  for (const path of ['/', '/llms.txt', '/.well-known/x402', '/discovery/resources']) {
    const text = await (await fetch(app.url + path)).text()
    expect([path, /contact|mailto|ops@|undefined/i.exec(text)?.[0]]).toEqual([path, undefined])
  }
})

test('a service without a contact asks the issuer of stocks without one', async () => {
  const agents: [path: string, agent: string | null][] = []
  const issuer = Bun.serve({
    port: 0,
    fetch(request) {
      agents.push([new URL(request.url).pathname, request.headers.get('user-agent')])
      return new Response('{}')
    },
  })
  try {
    for (const [path, text, agent] of [
      ['/without', small, 'Turnpike/1.0'],
      [
        '/with',
        small.replace('[service]', '[service]\ncontact = "me@a.test"'),
        'Turnpike/1.0 (me@a.test)',
      ],
    ] as const) {
      const read = configOf(text.replace('[stock]', '[stock]\nissuer_url = "https://i.test"'))
      if (read.stock === undefined) throw new Error('no stock')
      const stock = { ...read.stock, issuerUrl: `http://127.0.0.1:${issuer.port}${path}` }
      const opened = openMarket(
        { ...read, stock },
        { read: () => Promise.reject(new Error('no chain')), now: Date.now },
      )
      // It fails without a chain, but asks the issuer meanwhile.
      await opened?.data.stocks().catch(() => undefined)
      const own = () => agents.filter(([at]) => at.startsWith(`${path}/`))
      await until(() => own().length > 0)
      expect([...new Set(own().map(([, each]) => each))]).toEqual([agent])
    }
  } finally {
    await issuer.stop(true)
  }
})
