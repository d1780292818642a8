import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import {
  checkEndpointSchema,
  getWarningsForL3,
  validatePaymentRequiredDetailed,
} from '@agentcash/discovery'
import { HTTPFacilitatorClient } from '@x402/core/http'
import {
  validateDiscoveryExtension,
  validateDiscoveryExtensionSpec,
  withBazaar,
} from '@x402/extensions/bazaar'
import { validate } from 'mppx/discovery'
import { ask } from '../harness/buyer'
import { mppx } from '../harness/mppx'
import { type TestWorld, testWorld } from '../harness/world'

// Stock programs start in some tests, perhaps beside other work.
let world: TestWorld
beforeAll(async () => {
  world = await testWorld()
})
afterAll(() => world?.stop())

const discovery = join(import.meta.dir, '../../node_modules/.bin/discovery')

async function run(program: string, ...args: string[]) {
  const child = Bun.spawn([process.execPath, program, ...args], {
    env: { PATH: process.env.PATH ?? '', HOME: world.dataDir, NO_COLOR: '1' },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems, code] = await Promise.all([
    child.stdout.text(),
    child.stderr.text(),
    child.exited,
  ])
  return { out, problems, code }
}

describe('mppx discover validate', () => {
  test('mppx accepts the document of all merchants', async () => {
    const url = `${world.url}/openapi.json`
    const { out, problems, code } = await run(mppx, 'discover', 'validate', url)
    expect(out + problems).toContain('Discovery document is valid')
    expect(out + problems).not.toMatch(/warning/i)
    expect(code).toBe(0)
  })

  test('the validator of mppx accepts the document of each merchant', async () => {
    for (const slug of ['weather', 'assistant']) {
      const document = (await (await fetch(`${world.url}/m/${slug}/openapi.json`)).json()) as object
      expect(validate(document)).toEqual([])
      expect(validate({ ...document, openapi: 1 })).not.toEqual([])
    }
  })
})

describe('discovery discover', () => {
  test('every route is found, priced and callable, live 402 included', async () => {
    const { out, code } = await run(discovery, 'discover', world.url, '--json')
    expect(code).toBe(0)
    const report = JSON.parse(out) as {
      ok: boolean
      resources: { authHint: string; priceHint: string; protocols: string[] }[]
      warnings: { code: string; severity: string }[]
    }
    expect(report.ok).toBe(true)
    for (const resource of report.resources)
      expect(resource).toMatchObject({ authHint: 'paid', protocols: ['mpp', 'x402'] })
    // The specification lists more routes than the tool recommends for one document (40). It also
    // requires `intent` beside the price, which the tool takes for an older format. There is no
    // other warning.
    const said = report.warnings.map(({ severity, code }) => `${severity} ${code}`)
    expect(report.resources.length).toBeGreaterThan(40)
    // The tool reads only the header of a live 402, which has no room for that with three networks.
    const crowded = world.config.merchants.filter(({ networks }) => networks.length > 2)
    const missing = crowded.flatMap(({ routes }) => routes.map(() => 'SCHEMA'))
    expect(crowded.map(({ slug }) => slug)).toEqual(['catjoke'])
    expect(said.sort()).toEqual([
      ...missing.map((name) => `error ${name}_INPUT_MISSING`),
      ...missing.map((name) => `error ${name}_OUTPUT_MISSING`),
      'info L2_PAYMENT_INFO_LEGACY',
      'warn L2_ROUTE_COUNT_HIGH',
    ])
  })

  test('a document of a single route causes no warning', async () => {
    for (const path of ['/m/fx/latest', '/m/wiki/summary/Ada_Lovelace', '/m/assistant/chat']) {
      const found = await checkEndpointSchema({ url: world.url + path, probe: true })
      if (!found.found) throw new Error(`${path} was not found`)
      expect(found.advisories.flatMap((advisory) => getWarningsForL3(advisory))).toEqual([])
    }
  })
})

describe('the bazaar', () => {
  test('the stock client lists every route, page by page', async () => {
    const { bazaar } = withBazaar(new HTTPFacilitatorClient({ url: world.url })).extensions
    const first = await bazaar.listResources({ type: 'http', limit: 30 })
    const second = await bazaar.listResources({ type: 'http', limit: 30, offset: 30 })
    const { total } = first.pagination
    const items = [...first.items, ...second.items]
    expect(first.items).toHaveLength(30)
    expect(second.pagination).toEqual({ limit: 30, offset: 30, total })
    expect(items).toHaveLength(total)
    expect(new Set(items.map(({ resource }) => resource)).size).toBe(total)
    expect((await bazaar.listResources({ type: 'mcp' })).items).toEqual([])
  })

  test('each entry is the live 402, whose extension the stock validator accepts', async () => {
    const url = `${world.url}/facilitator/discovery/resources?limit=100`
    const { items } = (await (await fetch(url)).json()) as {
      items: { resource: string; accepts: unknown; extensions: { bazaar: Extension } }[]
    }
    // Those in headers are short, and the same for many routes. The validator compiles each schema
    // and the schema of schemas.
    const extensionsOf = new Map<string, Extension>()
    for (const { resource, accepts, extensions } of items) {
      const { method } = extensions.bazaar.info.input
      const { required, whole } = await ask(resource.replace('http://localhost', world.url), {
        method,
      })
      expect(whole.accepts as unknown, resource).toEqual(accepts)
      const full = whole.extensions.bazaar
      expect(full as unknown).toEqual(extensions.bazaar)
      expect(validatePaymentRequiredDetailed(whole).issues, resource).toEqual([])
      const told = required.extensions.bazaar
      if (told === undefined) {
        expect(resource).toEndWith('/m/catjoke/joke')
        continue
      }
      for (const extension of [full, told] as Extension[])
        extensionsOf.set(JSON.stringify(extension), extension)
      expect(validatePaymentRequiredDetailed(required).issues, resource).toEqual([])
    }
    for (const [text, extension] of extensionsOf) {
      expect(validateDiscoveryExtension(extension as Stock), text).toEqual({ valid: true })
      expect(validateDiscoveryExtensionSpec(extension), text).toEqual({ valid: true })
    }
  })
})

type Stock = Parameters<typeof validateDiscoveryExtension>[0]
type Extension = { info: { input: { type: 'http'; method: string } }; schema: object }
