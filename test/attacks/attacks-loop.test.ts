import { describe, expect, test } from 'bun:test'
import * as Messages from '../../src/gateway/mcp/Messages'
import * as Matcher from '../../src/gateway/Route'
import { toUpstream } from '../../src/gateway/upstream/headers'
import { rewriteBody } from '../../src/gateway/upstream/metering'
import { validateParams } from '../../src/gateway/validate'
import { clientOf } from '../../src/http/client'
import { isKnown } from '../../src/http/document'
import { searchOf, withPlainPath } from '../../src/http/url'
import { scrub } from '../../src/log'
import { idempotencyKey } from '../../src/paywall/checkout'
import { extract } from '../../src/paywall/credential'
import * as Credential from '../../src/protocol/Credential'
import * as Facilitation from '../../src/protocol/Facilitation'
import * as Receipt from '../../src/protocol/Receipt'
import * as X402 from '../../src/protocol/X402'
import * as Pattern from '../../src/schema/Pattern'
import { readTerms } from '../../src/stock/Instrument'
import { entriesOf, find } from '../../src/web/public/Search'
import { merchant, param, route } from '../harness/merchants'
import { bytes, meterOf, paths, quote, units } from '../harness/meter'

/**
 * Every check that a client without a payment reaches, with the longest input that it takes. None may
 * hold the event loop for longer than this: other requests wait for it. A fault takes seconds, and a
 * slow machine twice the 50 ms that are allowed.
 */
const boundMs = 100

/**
 * The time of a synchronous call. Another process on a busy machine adds to the time of a clock, and
 * the threads of the collector and the compiler add to that of the process, so the smaller one counts.
 * The first call also compiles the code, so a long one is called again.
 */
function heldMs(work: () => unknown, runs = 20): number {
  let best = Number.POSITIVE_INFINITY
  for (let run = 0; run < runs && best >= boundMs; run++) {
    const startedAt = performance.now()
    const used = process.cpuUsage()
    try {
      work()
    } catch {
      // A refusal may be thrown.
    }
    const { user, system } = process.cpuUsage(used)
    best = Math.min(best, performance.now() - startedAt, (user + system) / 1000)
  }
  return best
}

function expectShort(name: string, work: () => unknown): void {
  const held = heldMs(work)
  expect([name, held < boundMs ? 'short' : `${held.toFixed(0)} ms`]).toEqual([name, 'short'])
}

/** Parts that a text of a stranger repeats, and what it may end with. */
const parts = [
  ...[
    'a',
    '0',
    ' ',
    '\t',
    ',',
    ';',
    ':',
    '.',
    '-',
    '/',
    '=',
    '&',
    '?',
    '%',
    '[',
    ']',
    '(',
    '"',
    '\\',
  ],
  ...[
    'a,',
    'a ',
    ', ',
    '; ',
    'a.',
    'a=',
    'a&',
    'a;',
    'a/',
    '%25',
    '%2',
    '%2F',
    '%C3',
    'a[',
    '..',
    '/.',
  ],
  ...[
    '{"',
    '\\"',
    '@a.',
    '-a',
    '=,',
    '=a,',
    'ey',
    '0x',
    '://',
    'https://',
    'payment ',
    ',payment',
    '[::1]',
  ],
  ...['\u0301', 'e\u0301', '\u00ad', '\u212a'],
]
const ends = ['', '!']

function* pumped(length: number): Generator<[name: string, text: string]> {
  for (const part of parts)
    for (const end of ends)
      yield [
        JSON.stringify(part + end),
        part.repeat(Math.floor((length - end.length) / part.length)) + end,
      ]
}

/** Texts that a header can have. */
function* headers(length: number): Generator<[name: string, text: string]> {
  for (const [name, text] of pumped(length))
    if (/^[\x20-\x7e]*$/.test(text) || /^[\x80-\xff]*$/.test(text)) yield [name, text.trim()]
}

const headerMax = 16 * 1024
const urlMax = 8 * 1024

const query = {
  tail: 'optional',
  params: [
    // Each of these held the loop for seconds.
    param('mail', { schema: { pattern: '^\\w+([.-]?\\w+)*@\\w+([.-]?\\w+)*(\\.\\w{2,3})+$' } }),
    param('code', { schema: { maxLength: 20, pattern: '^[a-z]+[a-z0-9]*[a-z]+$' } }),
    param('words', { schema: { pattern: '^([a-zA-Z]+ ?)+$' } }),
    param('any', { schema: { pattern: '(.*)(.*)(.*)(.*)(.*)[^a]$' } }),
    param('blank', { schema: { pattern: '\\s+$' } }),
    param('list', { schema: { type: 'array', uniqueItems: true, items: { type: 'number' } } }),
    ...[
      'date',
      'time',
      'date-time',
      'duration',
      'email',
      'hostname',
      'ipv4',
      'ipv6',
      'uri',
      'url',
    ].map((format) => param(format, { schema: { format } })),
    ...['uri-reference', 'uri-template', 'uuid', 'json-pointer', 'relative-json-pointer'].map(
      (format) => param(format, { schema: { format } }),
    ),
    param('tail', { in: 'tail', schema: { pattern: '^(a|a)*$' } }),
  ],
} as const
const sold = route('/r', query)
const matcher = Matcher.compile([merchant('m', { routes: [sold, route('/r/further')] })])
const shop = entriesOf({ merchants: [merchant('m', { routes: Array(300).fill(sold) })] })
const stocks = { tokens: [], minAtomic: 1n, maxAtomic: 10n }

const meter = meterOf(`preset = "openai"\n${units}`, '1000')

/** Checks of a text: its longest length, and the check. */
const texts: readonly [name: string, lengthMax: number, check: (text: string) => unknown][] = [
  [
    'a parameter',
    4096,
    (text) => {
      for (const { name } of query.params.slice(0, -1))
        validateParams(sold, `?${name}=${encodeURIComponent(text).slice(0, 12_288)}`, '', bytes(''))
    },
  ],
  ['a query', urlMax, (text) => validateParams(sold, `?${text}`, '', bytes(''))],
  [
    'a tail',
    urlMax,
    (text) => validateParams(sold, '', encodeURIComponent(text.slice(0, 2000)), bytes('')),
  ],
  [
    'a path',
    urlMax,
    (text) => {
      const path = Matcher.canonicalize(`/m/m/r/${text}`)
      return path !== undefined && Matcher.match(matcher, path)
    },
  ],
  [
    'a URL',
    headerMax,
    (text) =>
      withPlainPath(new Request(`http://localhost/${searchOf(`http://localhost/?${text}`)}`)),
  ],
  ['a search', headerMax, (text) => find(shop, text)],
  [
    'an order',
    headerMax,
    (text) =>
      readTerms(new URLSearchParams(`usdg=${text}&symbol=${text}&${text}`), stocks, {
        decimals: 6,
      }),
  ],
  ['a receipt', headerMax, (text) => Receipt.parse(text)],
  ['a log line', 1024 * 1024, scrub],
  ['a text in a body', 256 * 1024, (text) => quote(meter, JSON.stringify({ model: text }))],
]

/** Checks of the value of a header. */
const headerChecks: readonly [name: string, check: (text: string) => unknown][] = [
  ['Authorization', (text) => extract(new Headers({ authorization: text }))],
  ['a credential', (text) => Credential.parse(`Payment ${text}`)],
  ['Payment-Signature', (text) => X402.parsePayload(text)],
  [
    'Idempotency-Key',
    (text) => idempotencyKey(new Headers({ 'idempotency-key': text }), undefined),
  ],
  [
    'If-None-Match',
    (text) =>
      isKnown(new Request('http://localhost/', { headers: { 'if-none-match': text } }), '"a"'),
  ],
  ['X-Forwarded-For', (text) => clientOf({ headers: { get: () => text } }, '::1', 9)],
  [
    'headers to forward',
    (text) =>
      toUpstream(
        new Headers({ connection: text, 'accept-encoding': text }),
        { headers: {} },
        sold,
        true,
      ),
  ],
]

describe('a text of a stranger', () => {
  test.each(texts)('attack: %s holds the loop for a short time only', (_, lengthMax, check) => {
    for (const [name, text] of pumped(lengthMax)) expectShort(name, () => check(text))
  })

  test.each(headerChecks)('attack: %s holds the loop for a short time only', (_, check) => {
    for (const [name, text] of headers(headerMax)) expectShort(name, () => check(text))
  })
})

const many = (count: number, part: (index: number) => string) =>
  Array.from({ length: count }, (_, i) => part(i)).join()

/** JSON texts with as many parts of one kind as are read. */
const bodies: readonly [name: string, text: string][] = [
  ['objects of one member', `[${many(20_000, (i) => `{"k${i}":1}`)}]`],
  ['equal objects', `[${many(20_000, () => '{"a":1}')}]`],
  ['members', `{${many(20_000, (i) => `"k${i}":1`)}}`],
  ['numbers as names', `{${many(20_000, (i) => `"${i * 30_001}":1`)}}`],
  ['a repeated member', `{${many(20_000, (i) => `"k${i}":1`)},"k19999":1}`],
  ['texts', `[${many(48_000, (i) => `"\\u00e9${i}"`)}]`],
  ['numbers', `[${many(131_000, String)}]`],
  ['lists in lists', `[${many(500, () => '['.repeat(126) + ']'.repeat(126))}]`],
  ['objects in objects', `${'{"a":'.repeat(120)}1${'}'.repeat(120)}`],
  ['alternatives', `${'{"a":{"b":['.repeat(40)}1${']}}'.repeat(40)}`],
  ['an address', JSON.stringify({ to: `a@${'a.'.repeat(500_000)}@` })],
  ['words', JSON.stringify({ names: Array(8).fill(`${'a'.repeat(32)}!`) })],
  [
    'models',
    JSON.stringify({ max_tokens: 1, models: Array.from({ length: 48_000 }, (_, i) => `m${i}`) }),
  ],
]

/** Long texts of few parts, and texts that are refused before they are parsed. */
const long: readonly [name: string, text: string][] = [
  ['one long text', JSON.stringify('a'.repeat(10_000_000))],
  ['one escaped text', `"${'\\n'.repeat(1_000_000)}"`],
  ['blanks', `{"a":${' '.repeat(2_000_000)}1}`],
  ['too many blanks', `{"a":${' '.repeat(10_000_000)}1}`],
  ['too many members', `{${many(100_000, (i) => `"${i}":1`)}}`],
  ['too many lists', '['.repeat(3_000_000)],
  ['too many numbers', `[${'1,'.repeat(1_000_000)}1]`],
  ['too many texts', `[${'"",'.repeat(500_000)}1]`],
  ['too many escapes', `"${'\\n'.repeat(1_500_000)}"`],
  ['quotes', '"'.repeat(3_000_000)],
  ['backslashes', `"${'\\'.repeat(3_000_000)}`],
  ['digits', '1'.repeat(3_000_000)],
]

const encoded = bodies.map(([name, text]) => [name, text, bytes(text)] as const)

const tree = (...branches: object[]) => ({
  $ref: '#/$defs/tree',
  $defs: { tree: { anyOf: branches } },
})
const child = { $ref: '#/$defs/tree' }

const schemas: readonly [name: string, schema: object][] = [
  ['without rules', {}],
  [
    'with unique entries',
    { uniqueItems: true, items: { uniqueItems: true }, properties: { a: { uniqueItems: true } } },
  ],
  [
    'with patterns',
    {
      items: { pattern: '^(a+)+$', additionalProperties: { pattern: 'x' } },
      properties: {
        to: { maxLength: 2_000_000, pattern: '^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$' },
        names: { items: { maxLength: 80, pattern: '^([a-zA-Z]+ ?)+$' } },
      },
      pattern: '(x+x+)+y',
    },
  ],
  [
    'with a pattern of names',
    {
      propertyNames: { pattern: '^(a|b|k|[0-9])+$' },
      patternProperties: { '^k': {}, '9$': {} },
      items: { patternProperties: { '^k.*9$': {} } },
    },
  ],
  [
    'with alternatives at every depth',
    // Each branch looks at the children before it fails.
    tree(
      { allOf: [{ properties: { a: child, b: child }, items: child }, false] },
      { allOf: [{ properties: { a: child, b: child }, items: child }, false] },
      { allOf: [{ additionalProperties: child, items: child }, false] },
    ),
  ],
  ['that refers to itself', { allOf: [{ $ref: '#' }] }],
  [
    'with formats',
    { format: 'uri', items: { format: 'email' }, properties: { to: { format: 'email' } } },
  ],
  [
    'with many members',
    {
      properties: Object.fromEntries(
        Array.from({ length: 100 }, (_, i) => [`p${i}`, { type: 'string' }]),
      ),
      items: {
        required: ['p1', 'p2'],
        properties: Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`p${i}`, {}])),
      },
    },
  ],
  [
    'with values',
    { items: { enum: [1, 'a', { a: 1 }], not: { const: { k1: 1 } } }, const: { a: { a: 1 } } },
  ],
  [
    'with fractions',
    { items: { multipleOf: 0.000001 }, additionalProperties: { multipleOf: 1e-9 } },
  ],
  [
    'with what others leave',
    {
      anyOf: [{ properties: { k1: {} } }, { additionalProperties: { type: 'number' } }],
      contains: { const: 5 },
      unevaluatedProperties: { type: 'string' },
      unevaluatedItems: { type: 'string' },
    },
  ],
  ['with lengths', { minLength: 2, maxLength: 5, items: { maxLength: 3 } }],
]

describe('a body of a stranger', () => {
  test.each(schemas)(
    'attack: a check by a schema %s holds the loop for a short time only',
    (_, schema) => {
      const checked = route('/r', { body: schema as Record<string, unknown> })
      for (const [name, text] of bodies) {
        const body = bytes(text)
        expectShort(name, () => validateParams(checked, '', '', body.subarray()))
      }
    },
  )

  const readers: readonly [name: string, lengthMax: number, read: (body: Uint8Array) => unknown][] =
    [
      [
        'a schema',
        1e9,
        (body) => validateParams(route('/r', { body: {} }), '', '', body.subarray()),
      ],
      ['a meter', 1e9, (body) => quote(meter, new TextDecoder().decode(body))],
      [
        'a meter with references',
        1e9,
        (body) => quote(meter, new TextDecoder().decode(body), paths.responses),
      ],
      ['rewriting', 1e9, (body) => rewriteBody(body.subarray(), { model: { a: 'b' } })],
      ['MCP', Messages.messageMaxBytes, Messages.parse],
      ['the facilitator', 256 * 1024, Facilitation.parse],
    ]
  test.each(readers)('attack: %s holds the loop for a short time only', (_, lengthMax, read) => {
    for (const [name, text, whole] of [
      ...encoded,
      ...long.map(([name, text]) => [name, text, bytes(text)] as const),
    ]) {
      const body = whole.subarray(0, lengthMax)
      expectShort(name, () => read(body))
      if (text.length > lengthMax || !text.startsWith('{')) continue
      const wrapped = bytes(`{"paymentPayload":${text}}`)
      expectShort(`${name}, wrapped`, () => read(wrapped))
    }
  })
})

test('attack: making the states of a pattern takes a short time, whatever the pattern is', () => {
  for (const pattern of [
    'a.{20}b',
    '^(a|b)*a(a|b){900}$',
    '((a{1,30}){1,30}b){1}',
    '^[a-z]{1,1000}$',
  ])
    expectShort(pattern, () => Pattern.compile(pattern))
})

test('the bound notices a pattern of the engine that backtracks', () => {
  const work = () => /^([a-zA-Z]+ ?)+$/.test(`${'a'.repeat(24)}!`)
  expect(heldMs(work, 2)).toBeGreaterThan(boundMs)
})
