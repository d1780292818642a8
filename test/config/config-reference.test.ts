import { describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { parse as parseToml, stringify } from 'smol-toml'
import * as keys from '../../src/config/keys'
import { keyNameOf, tableOf } from '../../src/config/kinds'
import { parseConfig } from '../../src/config/merchants'
import * as JsonSchema from '../../src/schema/JsonSchema'
import { payout } from '../harness/config'
import { isTable, type Node, renderReference, tablesOf } from '../harness/config-reference'

/** Compares the schema of the file with its readers. */

const root = join(import.meta.dir, '../..')
const shipped = await Bun.file(join(root, 'merchants.toml')).text()
type Raw = Record<string, unknown>

/** A place of alerts has the keys of its kind; the one of `everything` is mail. */
const alertsWith: Readonly<Record<string, string>> = {
  url: 'slack',
  token: 'telegram',
  chat: 'telegram',
}

/** The shipped file with every possible table. */
function everything(): Raw {
  const raw = parseToml(shipped) as Raw
  // Built-in merchants have no meter, so another one comes first.
  const merchants = raw.merchants as Raw[]
  merchants.sort((a, b) => Number(b.slug === 'weather') - Number(a.slug === 'weather'))
  const price = { input: '1', output: '1' }
  const meter = {
    preset: 'none',
    units: [
      { name: 'input', price: '1' },
      { name: 'output', price: '1' },
    ],
    models: { 'a-model': price },
    answer: { input: '/in', output: '/out' },
    request: { model: '/model', max_output: ['/max'], choices: ['/n'], stream: '/stream' },
    limits: { models_only: false, max_output: 10, max_choices: 1 },
  }
  const entitlements = {
    again: '24h',
    trial: { requests: 3, total_per_day: 500 },
    pass: { price: '1000', period: '24h', requests: 500 },
  }
  const route = { rewrite: { units: { a: 'b' } }, methods: ['POST'], meter, ...entitlements }
  Object.assign(tableAt(raw, '[[merchants.routes]]'), route)
  const secret = `whsec_${Buffer.alloc(32, 7).toString('base64')}`
  tableAt(raw, '[networks."ID"]').channels = {}
  raw.webhooks = [{ url: 'https://hooks.example.com/a', events: ['*'], secret }]
  raw.alerts = [{ kind: 'mail', host: 'smtp.example.com', from: 'a@b.test', to: ['c@d.test'] }]
  return raw
}

const whole = everything()

/** A copy with one table of each kind: hundreds of them are read. */
function file(heading = ''): Raw {
  const raw = structuredClone(whole)
  const [merchant = {}] = raw.merchants as Raw[]
  const [route = {}] = merchant.routes as Raw[]
  // A route has one or the other.
  const isMetered = heading.includes('merchants.routes.meter')
  for (const key of isMetered ? ['again', 'trial', 'pass'] : ['meter']) delete route[key]
  const stock = raw.stock as Raw
  const [token] = stock.tokens as Raw[]
  return {
    ...raw,
    stock: { ...stock, tokens: [token] },
    merchants: [{ ...merchant, routes: [route] }],
  }
}

/** The first table of a heading: `[[merchants.routes]]` is that of the first merchant. */
function tableAt(raw: Raw, heading: string): Raw {
  let at: unknown = raw
  for (const key of heading.replace(/[[\]]/g, '').split('.')) {
    const name = key === '"ID"' ? 'eip155:4663' : key
    at = (at as Raw)[name]
    if (Array.isArray(at)) at = at[0]
  }
  return at as Raw
}

const read = (raw: Raw) =>
  parseConfig(stringify(raw), {
    file: 'merchants.toml',
    env: { PAYOUT: payout, ASSISTANT_KEY: 'a-key' },
  })
const messages = (heading: string, change: (table: Raw) => void) => {
  const raw = file(heading)
  change(tableAt(raw, heading))
  return read(raw).faults.map(({ message }) => message)
}
const leaves = ({ node }: { node: Node }) =>
  Object.entries(node.properties ?? {}).filter(([, each]) => !isTable(each))

test('the shipped file has the shape of the schema', () => {
  const check = JsonSchema.compile(tableOf(keys.file))
  expect(check(parseToml(shipped), 10)).toEqual([])
  expect(check({ ...parseToml(shipped), unknown: true }, 10)).toHaveLength(1)
  expect(read(file('[merchants.routes.meter]')).faults).toEqual([])
  expect(read(file()).faults).toEqual([])
})

test('the page of all keys is generated from the schema', async () => {
  expect(await Bun.file(join(root, 'docs/configuration.md')).text()).toBe(renderReference())
})

test('a reader names only keys of the schema, and each that has no value of its own', async () => {
  const asked = new Set<string>()
  const ask =
    /\b(?:field|required|optional|list|child|children|childrenUpTo|record|readNetwork(?:Id|List)|readPreference|otherUrl|readSource|readSchema)\(\s*\w+,\s*'(\w+)'|\bcontract\('(\w+)'\)/g
  for await (const path of new Bun.Glob('src/config/*.ts').scan(root))
    for (const [, key, other] of (await Bun.file(join(root, path)).text()).matchAll(ask))
      asked.add(key ?? other ?? '')
  const stated = new Set(tablesOf().flatMap(({ node }) => Object.keys(node.properties ?? {})))
  for (const key of Object.keys(keys.file)) stated.add(key)
  expect([...asked].filter((key) => !stated.has(key))).toEqual([])
  const source = await Bun.file(join(root, 'src/config/keys.ts')).text()
  const parts = [...source.matchAll(/(\w+): (?:K\.restart\(\s*)?K\.own<never>\(/g)]
  expect(parts.length).toBeGreaterThan(8)
  const names = parts.map(([, property = '']) => keyNameOf(property, undefined))
  expect(names.filter((name) => !asked.has(name))).toEqual([])
})

describe('each table', () => {
  for (const table of tablesOf()) {
    const { heading } = table
    test(`error: ${heading} refuses a key that the schema lacks, and accepts all keys of the schema`, () => {
      expect(messages(heading, (raw) => Object.assign(raw, { stranger: 1 }))).toContainEqual(
        expect.stringContaining('unknown key stranger'),
      )
      for (const [key] of leaves(table)) {
        const kind = heading === '[[alerts]]' ? alertsWith[key] : undefined
        const change = { ...(kind && { kind }), [key]: new Date(0) }
        expect(messages(heading, (raw) => Object.assign(raw, change))).not.toContainEqual(
          expect.stringContaining(`unknown key ${key}`),
        )
      }
    })

    const integers = leaves(table).filter(([, { type }]) => type === 'integer')
    if (integers.length > 0)
      test(`error: ${heading} refuses integers beyond their limits, and accepts the limits`, () => {
        for (const [key, { minimum = 0, maximum = 0 }] of integers) {
          const faults = (value: number) =>
            messages(heading, (raw) => Object.assign(raw, { [key]: value })).filter((message) =>
              message.startsWith(`${key} must be`),
            )
          expect([key, faults(minimum), faults(maximum)]).toEqual([key, [], []])
          for (const value of [minimum - 1, maximum + 1])
            expect([key, value, faults(value).length]).toEqual([key, value, 1])
        }
      })

    const defaults = leaves(table).filter(([, node]) => node.default !== undefined)
    if (defaults.length > 0)
      test(`${heading} without a key is ${heading} with its default`, () => {
        for (const [key, { default: value }] of defaults) {
          const [without, written] = [file(heading), file(heading)]
          delete tableAt(without, heading)[key]
          tableAt(written, heading)[key] = value
          const [one, other] = [read(without), read(written)].map(({ config, faults }) =>
            JSON.stringify([config, faults], (name, part) =>
              name === 'hash' || name === 'line'
                ? ''
                : typeof part === 'bigint'
                  ? `${part}n`
                  : part,
            ),
          )
          expect([key, read(written).faults, other === one]).toEqual([key, [], true])
        }
      })
  }
})
