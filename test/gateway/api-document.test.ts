import { afterAll, beforeAll, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parseConfig } from '../../src/config/merchants'
import { payout, small } from '../harness/config'
import { type StockShop, startStockShop } from '../harness/stock-shop'

/** Compares the OpenAPI document of our own endpoints with what they do. */

type Parameter = { name: string; in: string; required: boolean; schema: { pattern?: string } }
type Operation = {
  parameters: Parameter[]
  requestBody?: { content: Record<string, { schema: { properties: object; required?: string[] } }> }
}
type Paths = Record<string, { servers: { url: string }[]; get?: Operation; post?: Operation }>

let shop: StockShop
let paths: Paths
beforeAll(async () => {
  shop = await startStockShop()
  const document = (await (await fetch(`${shop.url}/api/openapi.json`)).json()) as { paths: Paths }
  paths = document.paths
})
afterAll(() => shop?.stop())

const operations = () =>
  Object.entries(paths).flatMap(([path, { servers, ...methods }]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, servers, method, operation })),
  )

test('each path of the document is served, by its method and no other', async () => {
  expect(operations().length).toBe(22)
  for (const { path, method, servers } of operations()) {
    const at = new URL(servers[0]?.url ?? '').pathname.replace(/\/$/, '')
    const values = { id: `ord_${'0'.repeat(32)}`, code: 'not-found', action: 'reload' }
    const filled = path.replace(/\{(\w+)\}/, (_, name: keyof typeof values) => values[name])
    const url = shop.url + at + filled
    const asked = await fetch(url, { method: 'OPTIONS' })
    expect([path, asked.status]).toEqual([path, 204])
    expect([path, asked.headers.get('allow')]).toEqual([
      path,
      expect.stringContaining(method.toUpperCase()),
    ])
    expect([path, (await fetch(url, { method: 'PATCH' })).status]).toEqual([path, 405])
  }
})

test('error: an invalid value of each parameter of the document is refused by name', async () => {
  for (const path of ['/api/stock/quote', '/api/stock/orders', '/api/stock/buy']) {
    const [method = 'get', operation] =
      Object.entries(paths[path] ?? {}).find(([name]) => name !== 'servers') ?? []
    const { parameters } = operation as Operation
    const names = parameters.map(({ name }) => name)
    const query = new URLSearchParams([...names, 'stranger'].map((name) => `${name}=?`).join('&'))
    const response = await fetch(`${shop.url}${path}?${query}`, { method: method.toUpperCase() })
    const { invalidParams } = (await response.json()) as { invalidParams: { name: string }[] }
    // A quote ignores parameters that do not affect the price.
    const refused = path === '/api/stock/quote' ? names : [...names, 'stranger']
    expect([path, invalidParams.map(({ name }) => name).toSorted()]).toEqual([
      path,
      refused.toSorted(),
    ])
  }
})

test('the document has no keyword of ours in its schemas, and has an ETag', async () => {
  const first = await fetch(`${shop.url}/api/openapi.json`)
  expect(await first.text()).not.toContain('"fault"')
  const headers = { 'if-none-match': first.headers.get('etag') ?? '' }
  expect((await fetch(`${shop.url}/api/openapi.json`, { headers })).status).toBe(304)
})

test('bodies name their members', () => {
  const members = (path: string, type = 'application/json') => {
    const schema = paths[path]?.post?.requestBody?.content[type]?.schema
    return [Object.keys(schema?.properties ?? {}), schema?.required ?? []]
  }
  expect(members('/api/gas/sponsor')).toEqual([['address', 'network', 'signature'], ['address']])
  expect(members('/admin', 'application/x-www-form-urlencoded')).toEqual([['token'], ['token']])
  expect(members('/settle')).toEqual(members('/verify'))
  for (const scheme of ['exact', 'upto']) {
    expect(JSON.stringify(paths['/settle'])).toContain(`"const":"${scheme}"`)
  }
})

test('error: a configured path below a path of the service is refused, for every path of the table', async () => {
  const table = await Bun.file(join(import.meta.dir, '../../src/app/routes.ts')).text()
  const firsts = new Set(
    [...table.matchAll(/\(\s*['`](?:\$\{at\})?\/([\w.-]+)/g)].map(([, first = '']) => first),
  )
  expect(firsts.size).toBeGreaterThan(12)
  for (const first of firsts) {
    const at = `base_url = "https://pay.example.com"\nfacilitator_url = "https://pay.example.com/${first}/x"`
    const { faults } = parseConfig(small.replace('base_url = "https://pay.example.com"', at), {
      file: 'merchants.toml',
      env: { PAYOUT: payout, ONE_KEY: 'a-key' },
    })
    expect([first, faults.map(({ message }) => message)]).toEqual([
      first,
      [expect.stringContaining('which is taken')],
    ])
  }
})
