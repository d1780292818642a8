import { describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import manifest from '../package.json'
import { type Import, isRelative, packageOf, read, type Source } from './harness/sources'

const root = join(import.meta.dir, '..')
const sources = await read(root)

/** A folder may import lower ranks and itself, and no other folder of its rank. */
const ranks: Readonly<Record<string, number>> = {
  protocol: 0,
  net: 0,
  schema: 0.5,
  meter: 0.5,
  config: 1,
  log: 1,
  chain: 2,
  db: 2,
  settlement: 3,
  books: 3,
  http: 4,
  paywall: 5,
  acme: 5,
  gateway: 6,
  facilitator: 6,
  stock: 6,
  sponsor: 6,
  web: 6,
  webhooks: 4.5,
  refunds: 4.5,
  app: 7,
  demo: 8,
  cli: 9,
  main: 10,
  build: 10,
  release: 10.5,
  test: 11,
}

const entries =
  /^(src\/(main|build|release|release\/launcher)\.ts|(src|db)\/.*\b(build|config)\.ts|test\/.*)$/
const unicode = /^(src\/gateway\/builtin\/|test\/)/
const clockOwners =
  /^(src\/(app|main|log|cli\/run)\.ts|db\/postgres\/beside\.ts|src\/demo\/.*|test\/.*)$/
const elysiaOwners = /^(src\/app\/routes\.ts|src\/http\/problem\.ts|test\/.*)$/
const drizzleOwners = /^(db|test)\//
/** What opens the database or copies its file; all others are given a ledger. */
const sqliteOwners =
  /^(db\/sqlite\/.*|db\/postgres\/(admit|move)\.ts|src\/app\/(base|options)\.ts|src\/cli\/(operate\/(backup|database|move)|sell\/serve)\.ts|test\/.*)$/
const clientOwners = /^(src\/(chain|demo)\/.*|test\/.*)$/
const clients = /\b(create\w*Client|http|webSocket|fallback|custom)\b/

/** The layer of a file of ours: its folder, or its own name directly below src. */
function layerOf(path: string): string {
  const [top = '', next = ''] = path.split('/')
  return top === 'src' ? next.replace(/\.ts$/, '') : top
}

function each(all: readonly Source[], fault: (source: Source, link: Import) => string | false) {
  return all.flatMap((source) =>
    source.imports.flatMap((link) => {
      const found = fault(source, link)
      return found ? [`${source.path}: ${found}`] : []
    }),
  )
}

/** Cycles of imports; `counts` selects the imports. */
function cyclesOf(all: readonly Source[], counts: (link: Import) => boolean): string[] {
  const byPath = new Map(all.map((source) => [source.path, source]))
  const done = new Set<string>()
  const found: string[] = []
  const visit = (path: string, trail: readonly string[]) => {
    if (trail.includes(path)) {
      found.push([...trail.slice(trail.indexOf(path)), path].join(' -> '))
      return
    }
    if (done.has(path)) return
    for (const link of byPath.get(path)?.imports ?? []) {
      if (link.target && counts(link)) visit(link.target, [...trail, path])
    }
    done.add(path)
  }
  for (const { path } of all) visit(path, [])
  return found
}

const rules: Readonly<Record<string, (all: readonly Source[]) => string[]>> = {
  directions: (all) =>
    each(all, ({ path }, { target }) => {
      if (!target?.endsWith('.ts')) return false
      const [from, to] = [layerOf(path), layerOf(target)]
      const [upper, lower] = [ranks[from], ranks[to]]
      if (upper === undefined || lower === undefined) return `no layer for ${from} or ${to}`
      if (from === to || upper > lower) return false
      return `${from} must not import ${to}`
    }),

  sqlite: (all) =>
    each(all, ({ path }, { target }) => {
      if (!target?.startsWith('db/sqlite/') || sqliteOwners.test(path)) return false
      return `${target} is behind db/Ledger.ts`
    }),

  missing: (all) =>
    each(all, (_, { specifier, target }) =>
      isRelative(specifier) && target === undefined ? `nothing at ${specifier}` : false,
    ),

  packages: (all) =>
    each(all, ({ path }, { specifier, clause, typeOnly, dynamic }) => {
      if (typeOnly || isRelative(specifier)) return false
      const name = packageOf(specifier)
      if (name === 'elysia' && !elysiaOwners.test(path)) return 'Elysia outside the table of routes'
      if (name === 'drizzle-orm' && !drizzleOwners.test(path)) return 'drizzle outside db/'
      const isClient = name === 'viem' && (specifier === 'viem/actions' || clients.test(clause))
      if (isClient && !clientOwners.test(path)) return 'a viem client outside chain/'
      const shipped = path.startsWith('src/') && !entries.test(path.replace('main.ts', 'x'))
      if (name in manifest.devDependencies && shipped && !dynamic) return `${name} is dev-only`
      if (/^(node:)?(fs|net|http|child_process)\b/.test(name) && layerOf(path) === 'protocol') {
        return `protocol/ is pure, not ${name}`
      }
      return false
    }),

  cycles: (all) => cyclesOf(all, ({ typeOnly }) => !typeOnly),

  typeCycles: (all) => cyclesOf(all, () => true),

  dead: (all) => {
    const byPath = new Map(all.map((source) => [source.path, source]))
    const reached = new Set(all.map(({ path }) => path).filter((path) => entries.test(path)))
    // The iteration also visits entries that are added to the set meanwhile.
    for (const path of reached) {
      for (const { target } of byPath.get(path)?.imports ?? []) if (target) reached.add(target)
    }
    const dead = all.filter(({ path }) => !reached.has(path) && !path.endsWith('.d.ts'))
    return dead.map(({ path }) => `${path}: nothing imports it`)
  },

  clock: (all) =>
    all
      .filter(({ path, code }) => {
        if (clockOwners.test(path)) return false
        return /\bDate\.now\b|\bnew Date\(\)|\bperformance\.now\b|\bBun\.nanoseconds\b/.test(code)
      })
      .map(({ path }) => `${path}: reads the clock`),

  purity: (all) =>
    all
      .filter(({ path, code }) => {
        if (layerOf(path) !== 'protocol') return false
        return /\bMath\.random\b|\bgetRandomValues\b|\brandomUUID\b|\brandomBytes\b|\bprocess\.env\b|\bBun\.env\b|\bfetch\(/.test(
          code,
        )
      })
      .map(
        ({ path }) => `${path}: protocol/ takes randomness, environment and network as arguments`,
      ),

  form: (all) =>
    all.flatMap(({ path, text, code }) => {
      const lines = text.split('\n')
      const strange = unicode.test(path)
        ? -1
        : lines.findIndex((line) => /[^\x20-\x7e\t]/.test(line))
      return [
        strange >= 0 && `line ${strange + 1} is not ASCII`,
        /^export default\b/m.test(code) && !path.endsWith('.config.ts') && 'a default export',
        /^export\s+(\*|(type\s+)\*|\{[^}]*\})\s*(as \w+\s*)?from\b/m.test(code) && 'a barrel',
        /\/index\.ts$/.test(path) && 'an index file',
        /^(export )?(const )?enum\b/m.test(code) && 'an enum',
        /^(export )?(declare )?namespace\b/m.test(code) && 'a namespace',
        /\bas (never|any)\b/.test(code) && 'a cast to any or never',
        /\)\s*\.(rejects|resolves)\b/.test(code) && 'a matcher that runs the event loop',
        /^(export )?(abstract )?class (?!\w+ extends (\w*Error)\b)/m.test(code) && 'a class',
      ]
        .filter((fault) => fault !== false)
        .map((fault) => `${path}: ${fault}`)
    }),
}

describe('the sources', () => {
  for (const [name, rule] of Object.entries(rules)) {
    test(`the rule ${name} finds nothing`, () => expect(rule(sources)).toEqual([]))
  }

  test('all source files were read', () => {
    expect(sources.length).toBeGreaterThan(40)
    const linked = sources.flatMap(({ imports }) => imports.filter(({ target }) => target))
    expect(linked.length).toBeGreaterThan(80)
  })
})

describe('the rules', () => {
  const find = async (rule: string, files: Record<string, string>) =>
    rules[rule]?.(await read('/nowhere', files)) ?? []

  const broken: readonly (readonly [string, Record<string, string>, number])[] = [
    [
      'directions',
      {
        'src/protocol/A.ts': "import type { B } from '../db/b'",
        'db/b.ts': '',
      },
      0,
    ],
    [
      'directions',
      {
        'src/chain/a.ts': "import { b } from '../config/B'",
        'src/config/B.ts': '',
      },
      0,
    ],
    [
      'directions',
      {
        'src/config/a.ts': "import { b } from '../chain/b'",
        'src/chain/b.ts': '',
      },
      1,
    ],
    ['directions', { 'src/chain/a.ts': "import { b } from '../../db/b'", 'db/b.ts': '' }, 1],
    [
      'directions',
      {
        'src/stock/a.ts': "import type { B } from '../gateway/B'",
        'src/gateway/B.ts': '',
      },
      1,
    ],
    [
      'directions',
      {
        'src/http/a.ts': "import {\n  b,\n} from '../paywall/b'",
        'src/paywall/b.ts': '',
      },
      1,
    ],
    ['missing', { 'src/http/a.ts': "import { b } from './b'" }, 1],
    ['packages', { 'src/paywall/a.ts': "import { Elysia } from 'elysia'" }, 1],
    ['packages', { 'src/gateway/routes.ts': "import { Elysia } from 'elysia'" }, 1],
    ['packages', { 'src/app/routes.ts': "import { Elysia } from 'elysia'" }, 0],
    ['packages', { 'src/settlement/a.ts': "import { eq } from 'drizzle-orm'" }, 1],
    ['packages', { 'src/stock/store.ts': "import { eq } from 'drizzle-orm'" }, 1],
    ['packages', { 'db/sqlite/a.ts': "import { eq } from 'drizzle-orm'" }, 0],
    [
      'sqlite',
      {
        'src/stock/a.ts': "import type { Db } from '../../db/sqlite/open'",
        'db/sqlite/open.ts': '',
      },
      1,
    ],
    ['sqlite', { 'db/Ledger.ts': "import { a } from './sqlite/a'", 'db/sqlite/a.ts': '' }, 1],
    ['sqlite', { 'db/sqlite/b.ts': "import { a } from './a'", 'db/sqlite/a.ts': '' }, 0],
    [
      'sqlite',
      { 'src/app/base.ts': "import { a } from '../../db/sqlite/a'", 'db/sqlite/a.ts': '' },
      0,
    ],
    ['packages', { 'src/settlement/a.ts': "import { createPublicClient } from 'viem'" }, 1],
    ['packages', { 'src/settlement/a.ts': "import { keccak256 } from 'viem'" }, 0],
    ['packages', { 'src/cli/a.ts': "import { x } from '@x402/core/client'" }, 1],
    ['packages', { 'src/cli/a.ts': "const x = await import('@x402/core/client')" }, 0],
    ['packages', { 'src/cli/a.ts': "import x from '../../node_modules/@x402/core/x.wasm'" }, 1],
    ['missing', { 'src/cli/a.ts': "import x from '../../node_modules/viem/x.wasm'" }, 0],
    ['packages', { 'src/protocol/A.ts': "import { readFileSync } from 'node:fs'" }, 1],
    [
      'cycles',
      {
        'src/a/a.ts': "import { b } from './b'",
        'src/a/b.ts': "import { a } from './a'",
      },
      1,
    ],
    [
      'cycles',
      {
        'src/a/a.ts': "import { b } from './b'",
        'src/a/b.ts': "import type { A } from './a'",
      },
      0,
    ],
    [
      'typeCycles',
      {
        'src/settlement/a.ts': "import { b } from './b'",
        'src/settlement/b.ts': "import type { A } from './a'",
      },
      1,
    ],
    [
      'typeCycles',
      {
        'src/protocol/A.ts': "import type { B } from './B'",
        'src/protocol/B.ts': "import type { C } from './C'",
        'src/protocol/C.ts': "import type { A } from './A'",
      },
      1,
    ],
    [
      'typeCycles',
      { 'test/a.ts': "import type { B } from './b'", 'test/b.ts': "import type { A } from './a'" },
      1,
    ],
    ['typeCycles', { 'src/cli/a.ts': "import type { B } from './b'", 'src/cli/b.ts': '' }, 0],
    ['dead', { 'src/main.ts': "import './a'", 'src/a.ts': '', 'src/b.ts': '' }, 1],
    ['clock', { 'src/gateway/a.ts': 'const now = Date.now()' }, 1],
    ['clock', { 'src/gateway/a.ts': "// Date.now() is text\nconst a = 'new Date()'" }, 0],
    ['purity', { 'src/protocol/A.ts': 'const n = Math.random()' }, 1],
    ['form', { 'test/a.ts': 'await expect(failing()).rejects.toThrow()' }, 1],
    ['form', { 'src/a.ts': '// \u2013' }, 1],
    ['form', { 'src/a.ts': 'export default 1\nexport enum A {}\nclass B {}' }, 3],
    ['form', { 'src/a.ts': "export * from './b'\nexport { b } from './b'" }, 1],
    ['form', { 'src/a.ts': 'export class AError extends Error {}' }, 0],
  ]
  for (const [rule, files, faults] of broken) {
    const shown = Object.entries(files).map(([path, text]) => {
      const start = JSON.stringify(text.replace(/([^\n]*\n)\1+/g, '$1').slice(0, 50))
      return `${path}, ${start}`
    })
    test(`error: ${rule} finds ${faults} in ${shown.join(' and ')}`, async () => {
      expect(await find(rule, files)).toHaveLength(faults)
    })
  }
})
