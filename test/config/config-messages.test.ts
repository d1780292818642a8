import { expect, test } from 'bun:test'
import { basename, join } from 'node:path'
import { developmentAccounts, documentedPayout } from '../../src/config/cross-checks'
import { edited, linesOf, named, payout, small } from '../harness/config'
import { cases } from '../harness/fault-cases'

/** No message of a fault without a case: each says what is wrong and what to do. */

/** Their messages have tests of their own: env, check-warnings, meter-config, alerts-config. */
const others = [
  'env.ts',
  'warnings.ts',
  'domains.ts',
  'meter.ts',
  'keys.ts',
  // A default that its own reader refuses, which no file can cause.
  'kinds.ts',
  'Config.ts',
  'builtin.ts',
  'lines.ts',
  'webhooks.ts',
  'alerts.ts',
  'logo.ts',
]
/** Texts that are no messages. */
const values = [
  'Each path is an independent paid endpoint.',
  'slug title tag description',
  // What the parser of TOML says.
  'Invalid TOML document: ',
  'expected comma or end of structure',
  'illegal character in key',
  'not allowed in strings',
  'trying to redefine an already defined table or value',
]
const literal = /'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\\n]|\\.)*)`/g
const inserted = /\$\{(?:[^{}]|\{[^{}]*\})*\}/
const comments = /\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm

/** The longest fixed part of each message in a source. */
function messagesOf(code: string): string[] {
  return [...code.replace(comments, '').matchAll(literal)].flatMap(([, quoted, template]) => {
    const parts = (quoted ?? template ?? '').split(inserted)
    const [longest = ''] = parts.toSorted((a, b) => b.length - a.length)
    // A template within a template is no longer one text.
    if (longest.includes('${')) return []
    return longest.trim().split(/\s+/).length < 3 || values.some((each) => longest.startsWith(each))
      ? []
      : [longest]
  })
}

const builtin = (merchant: string) => `[service]
payout = "${payout}"
networks = ["base"]
[[merchants]]
slug = "one"
${merchant}`

const builtins = [
  [
    'builtin = "chain-stocks"\n[[merchants.routes]]\npath = "/quote"\nprice = "1"',
    'm.toml:6: builtin chain-stocks reads the tokens of [stock], which is not in the file',
  ],
  [
    'builtin = "catjoke"\n[[merchants.routes]]\npath = "/joke"\nprice = "1"\nmeter = { preset = "header" }',
    'm.toml:10: a builtin merchant has fixed prices: remove the meter',
  ],
] as const

/** What the readers say about every case. */
function said(): string {
  const faults = [...cases.values()].flatMap(({ from, to }) => linesOf(edited(from, to)))
  const list = (networks: string, blocks = '') =>
    linesOf(`[service]\npayout = "${payout}"\nnetworks = ${networks}\n${blocks}`)
  const asPayout = [
    '0x0000000000000000000000000000000000000000',
    '0x000000000000000000000000000000000000dEaD',
    '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
    '0x000000000022D473030F116dDEE9F6B43aC78BA3',
    developmentAccounts[0],
    documentedPayout,
    'c0ffee'.padEnd(64, '0'),
  ].flatMap((value) => linesOf(edited(`"${named('PAYOUT')}"`, `"${value}"`)))
  return [
    ...faults,
    ...asPayout,
    ...linesOf(small, { relayers: () => [payout] }),
    ...linesOf(small, { relayers: () => [...developmentAccounts] }),
    ...linesOf(small, { env: {} }),
    ...['NV-1', 'RELAYER_KEYS'].flatMap((name) => linesOf(edited('"NVIDIA"', `"${named(name)}"`))),
    ...linesOf(`${small}[[alerts]]\nkind = "mail"\nhost = ":"\nfrom = "me"\nto = []`),
    ...linesOf(`${small}[[alerts]]\nkind = "telegram"\ntoken = "${named('ONE_KEY')}"`),
    ...builtins.flatMap(([merchant]) => linesOf(builtin(merchant))),
    ...linesOf('\ufffd'),
    ...linesOf(''),
    ...list('["base"]\naccent = "red"'),
    ...list('[]'),
    ...['hook', 'https://a:b@c.de/', 'https://c.de/#x'].flatMap((url) =>
      list('["base"]', `[[webhooks]]\nurl = "${url}"`),
    ),
    ...linesOf(
      builtin('[[merchants.routes]]\nmeter = { preset = "none", answer = { input = "x" } }'),
    ),
    ...list('["base", "base", "eip155:10"]'),
    ...list('["base"]', '[networks.base]\n[networks."eip155:10"]\n[networks.x]'),
  ].join('\n')
}

test('every message of the readers of merchants.toml has a case', async () => {
  const union = said()
  const without: string[] = []
  for await (const path of new Bun.Glob('src/config/*.ts').scan(join(import.meta.dir, '../..'))) {
    if (others.includes(basename(path))) continue
    const code = await Bun.file(join(import.meta.dir, '../..', path)).text()
    for (const message of messagesOf(code))
      if (!union.includes(message.replaceAll("\\'", "'")))
        without.push(`${basename(path)}: ${message}`)
  }
  expect(without.toSorted()).toEqual([])
})

test('error: a built-in merchant without its tokens, or with a meter, is refused', () => {
  for (const [merchant, fault] of builtins) expect(linesOf(builtin(merchant))).toEqual([fault])
})

test('error: a message without a case is found', () => {
  const code = "report(a, 'slug is not nice: write another')\n// 'no message at all here'\nb('x y')"
  expect(messagesOf(code)).toEqual(['slug is not nice: write another'])
  const template = `c(\`${named('a')} is wrong, because ${named('b')}\`)`
  expect(messagesOf(template)).toEqual([' is wrong, because '])
  expect(said()).not.toContain('slug is not nice')
})
