import { describe, expect, test } from 'bun:test'
import type { Route } from '../../src/config/Config'
import { validateParams } from '../../src/gateway/validate'
import { param, route } from '../harness/merchants'

const bytes = (text: string) => new TextEncoder().encode(text)
const none = bytes('')

function query(fields: Partial<Route>, search: string, body = ''): string[] {
  return validateParams(route('/r', fields), search, '', bytes(body)).map(
    ({ name, in: place, reason }) => `${place} ${name} ${reason}`,
  )
}

describe('query parameters', () => {
  const latitude = param('latitude', {
    required: true,
    schema: { type: 'number', minimum: -90, maximum: 90 },
  })
  test('a number may be written in any form of a number', () => {
    for (const text of ['1', '-1', '52.52', '.5', '5.', '1e1', '%2B3', '-0', '007'])
      expect(query({ params: [latitude] }, `?latitude=${text}`)).toEqual([])
  })

  test('error: a value that is not a number in range is named', () => {
    for (const text of [
      'x',
      '1,2',
      '0x10',
      'NaN',
      'Infinity',
      '1e999',
      '1 2',
      '--1',
      '91',
      '-91',
      '%00',
    ])
      expect(query({ params: [latitude] }, `?latitude=${text}`)).toEqual([
        expect.stringMatching(/^query latitude (?:is|must be) /),
      ])
  })

  test('error: a required parameter that is missing or empty is named', () => {
    const expected = ['query latitude is required']
    for (const search of ['', '?', '?latitude', '?latitude=', '?Latitude=1', '?a=latitude=1'])
      expect(query({ params: [latitude] }, search)).toEqual(expected)
  })

  test('error: every value of a repeated name is checked', () => {
    expect(query({ params: [latitude] }, '?latitude=1&latitude=x')).toHaveLength(1)
    expect(query({ params: [latitude] }, '?latitude=1&latitude=2')).toEqual([])
  })

  const limited = {
    params: [
      param('limit', { schema: { type: 'integer', maximum: 100 } }),
      param('page', { schema: { type: 'integer', maximum: 9 } }),
      param('page[size]', { schema: { type: 'integer', maximum: 50 } }),
    ],
  }
  test('attack: a value is checked under every name that an upstream may take for the described one', () => {
    for (const name of [
      'LIMIT',
      'limit[]',
      'limit%5Ba%5D',
      'Limit.x',
      '+limit',
      'x;limit',
      'x=1;limit',
    ])
      expect(query(limited, `?limit=1&${name}=9999`)).toEqual([
        expect.stringMatching(/^query limit must be at most 100/),
      ])
    for (const name of ['PAGE[size]', 'page.size', 'page[size][]'])
      expect(query(limited, `?${name}=51`)).toEqual([
        expect.stringMatching(/^query page\[size\] must be at most 50/),
      ])
  })

  test('other names, and good values under such a name, pass', () => {
    for (const search of [
      '?LIMIT=100&limit[]=1&limit[]=2',
      '?page[size]=50&PAGE[SIZE]=50&page=9',
      '?limits=9999&x.limit=9999&limit_to=9999&a;b=9999',
      '?limit=&limit[]=',
    ])
      expect(query(limited, search)).toEqual([])
  })

  test('error: all invalid parameters are named at once, and none of their values', () => {
    const params = [
      latitude,
      param('count', { schema: { type: 'integer', minimum: 1 } }),
      param('prices', { schema: { type: 'boolean' } }),
      param('unit', { schema: { type: 'string', enum: ['c', 'f'] } }),
      param('date', { schema: { type: 'string', pattern: '^\\d{4}-\\d\\d-\\d\\d$' } }),
      param('list', { schema: { type: 'array', items: { type: 'string', minLength: 1 } } }),
    ]
    const found = query({ params }, '?count=1.5&prices=yes&unit=secret-k&date=secret-2024&list=a,')
    expect(found.map((text) => text.split(' ')[1])).toEqual([
      'latitude',
      'count',
      'prices',
      'unit',
      'date',
      'list',
    ])
    expect(found.join()).not.toContain('secret')
    const good = '?latitude=1&count=3&prices=true&unit=c&date=2024-01-01&list=a,b&other=x'
    expect(query({ params }, good)).toEqual([])
  })

  test('a comma list of a string schema stays one string', () => {
    const current = param('current', { schema: { type: 'string', pattern: '^[a-z0-9_,]+$' } })
    expect(query({ params: [current] }, '?current=pm2_5,us_aqi')).toEqual([])
    expect(query({ params: [current] }, '?current=pm2_5%2Cus_aqi')).toEqual([])
  })

  test('parts of a comma list are numbers where the schema says so', () => {
    const ids = param('ids', { schema: { type: 'array', items: { type: 'integer', minimum: 1 } } })
    expect(query({ params: [ids] }, '?ids=1,20')).toEqual([])
    for (const wrong of ['1,x', '1,2.5', '0,1', '1,,2'])
      expect(query({ params: [ids] }, `?ids=${wrong}`)).toEqual([
        expect.stringMatching(/^query ids /),
      ])
  })

  test('error: a value that is too long is not matched against a pattern', () => {
    const slow = param('x', { schema: { type: 'string', pattern: '^(a+)+$' } })
    expect(query({ params: [slow] }, `?x=${'a'.repeat(5_000)}!`)).toEqual([
      'query x is longer than 4096 characters',
    ])
  })

  test('a required parameter may be a member of the body', () => {
    const symbol = param('symbol', { required: true })
    const fields = { params: [symbol], body: { type: 'object' } }
    expect(query(fields, '', '{"symbol":"NVDA"}')).toEqual([])
    const inherited = {
      params: [param('constructor', { required: true })],
      body: { type: 'object' },
    }
    expect(query(inherited, '', '{}')).toEqual(['query constructor is required'])
    expect(query(fields, '', '{"__proto__":{"symbol":"NVDA"}}')).toEqual([
      'query symbol is required',
      'body __proto__ is not allowed',
    ])
  })
})

describe('tail parameters', () => {
  const filings = route('/filings', {
    tail: 'required',
    params: [param('{cik}.json', { in: 'tail', required: true, schema: { pattern: '^\\d{10}$' } })],
  })
  const indicator = route('/indicator', {
    tail: 'required',
    params: [
      param('iso', {
        in: 'tail',
        required: true,
        schema: { type: 'string', pattern: '^[A-Z]{2}$' },
      }),
      param('indicator', { in: 'tail', required: true, schema: { const: 'indicator' } }),
      param('code', { in: 'tail', required: true }),
    ],
  })
  const tx = route('/tx', {
    params: [
      param('hash', { in: 'tail', required: true, schema: { pattern: '^0x' } }),
      param('part', { in: 'tail', schema: { enum: ['logs', 'token-transfers'] } }),
    ],
  })
  const rest = route('/rest', {
    params: [
      param('first', { in: 'tail' }),
      param('tail', { in: 'tail', schema: { pattern: '^b/c$' } }),
    ],
  })
  const cases: [Route, string, string[]][] = [
    [filings, '0000320193.json', []],
    [filings, '320193.json', ['cik']],
    [filings, '0000320193.xml', ['cik']],
    [filings, '.json', ['cik']],
    [indicator, 'US/indicator/NY.GDP', []],
    [indicator, 'US/indicator/NY.GDP/further', []],
    [indicator, 'US/indicators/NY.GDP', ['indicator']],
    [indicator, 'us', ['iso', 'indicator', 'code']],
    [tx, '', []],
    [tx, '0xabc', []],
    [tx, '0xabc/logs', []],
    [tx, '0xabc/other', ['part']],
    [tx, '%30xabc', []],
    [tx, 'abc', ['hash']],
    [rest, 'a/b/c', []],
    [rest, 'a/b', ['tail']],
  ]
  test('segments are checked in order, with literals and the text around values', () => {
    for (const [sold, tail, names] of cases) {
      const found = validateParams(sold, '', tail, none)
      expect(found.map(({ name }) => name)).toEqual(names)
      expect(found.every((invalid) => invalid.in === 'tail')).toBe(true)
    }
  })
})

describe('bodies', () => {
  const body = {
    type: 'object',
    required: ['model', 'messages'],
    properties: {
      model: { type: 'string' },
      messages: { type: 'array', items: { type: 'object', required: ['role'] } },
    },
    additionalProperties: false,
  }
  test('a body that fits the schema, or none, is accepted', () => {
    expect(query({ body }, '', '{"model":"a","messages":[{"role":"user"}]}')).toEqual([])
    expect(query({ body }, '', '')).toEqual([])
  })

  test('error: faults are named by their place', () => {
    const found = query({ body }, '', '{"model":1,"messages":[{"role":"u"},{}],"extra":true}')
    expect(found.map((text) => text.split(' ').slice(0, 2).join(' '))).toEqual(
      expect.arrayContaining(['body model', 'body messages/1/role', 'body extra']),
    )
  })

  test('error: a missing member is named', () => {
    expect(query({ body }, '', '{"messages":[{}]}')).toEqual([
      'body model is required',
      'body messages/0/role is required',
    ])
  })

  const malformed = ['{', 'model=a', '{"a":1}}', 'NaN', '['.repeat(100), '\u0000']
  test.each(malformed)('error: a body that is not JSON is refused', (text) => {
    expect(query({ body }, '', text)).toEqual(['body  is not JSON'])
  })

  test('error: a body of very many parts is refused before it is parsed', () => {
    const many = (part: string, times: number) => `{"x":[${part.repeat(times)}1]}`
    const schema = {
      type: 'object',
      properties: { x: { type: 'array', items: { type: 'object' } } },
    }
    // None is JSON, which only a full parse would show.
    for (const text of [
      many('{"role":""},', 800_000).slice(0, -1),
      many('1,', 5_000_000).slice(0, -1),
      '['.repeat(200_000),
    ])
      expect(query({ body: schema }, '', text)).toEqual(['body  has too many parts'])
    // A vector, a conversation and a picture are below the limit.
    const free = { type: 'object' }
    expect(query({ body: free }, '', many('0.5,', 50_000))).toEqual([])
    expect(query({ body: free }, '', many('{"role":"user"},', 10_000))).toEqual([])
    expect(query({ body: free }, '', JSON.stringify({ x: '[{,"'.repeat(500_000) }))).toEqual([])
  })

  test('error: invalid UTF-8, deep nesting and __proto__ are refused, not thrown', () => {
    const found = validateParams(route('/r', { body }), '', '', new Uint8Array([0x22, 0xff, 0x22]))
    expect(found).toEqual([{ name: '', in: 'body', reason: 'is not JSON' }])
    const deep = `${'['.repeat(5_000)}${']'.repeat(5_000)}`
    expect(query({ body }, '', deep).length).toBeGreaterThan(0)
    expect(query({ body }, '', '{"__proto__":{"model":"a","messages":[]}}').length).toBeGreaterThan(
      0,
    )
  })

  test('attack: a repeated member is refused and named, at any depth and in any spelling', () => {
    const free = { type: 'object' }
    for (const [text, name] of [
      ['{"tier":"free","tier":"pro"}', 'tier'],
      [String.raw`{"tier":"free","ti\u0065r":"pro"}`, 'tier'],
      [String.raw`{"\/":1,"/":2}`, '~1'],
      ['{"":1,"":2}', ''],
      ['{"1":1,"1":2}', '1'],
      ['{"a":[{"b":{}},{"b":1,"c":[],"b":{}}]}', 'a/1/b'],
      ['[{"a":1},{"a":",\\"a\\":","b":1,"a":1}]', '1/a'],
      ['{"a":{"a":{"a":1}},"b":{"a":1},"a":2}', 'a'],
      [String.raw`{"a\"":1,"a\"":2}`, 'a"'],
      ['{"a":"x","b":"a","a":"y"}', 'a'],
    ] as const)
      expect(query({ body: free }, '', text)).toEqual([`body ${name} is there twice`])
    // A value, a name in another object, and a colon or comma in a text are no repetition.
    for (const text of [
      '{"a":"a","b":"b"}',
      '{"a":{"a":{"a":[{"a":1},{"a":2}]}}}',
      String.raw`{"a":"\",\"a\":","b":{}}`,
      '[[],{},[{}],"a:b",{"a":":"}]',
    ])
      expect(query({ body: {} }, '', text)).toEqual([])
    expect(query({ rewrite: { model: { a: 'b' } } }, '', '{"model":"a","model":"b"}')).toEqual([
      'body model is there twice',
    ])
    expect(query({ rewrite: { model: { a: 'b' } } }, '', 'model=a')).toEqual([])
  })

  test('attack: a described member in another case is refused, because several parsers ignore case', () => {
    const schema = { properties: { tier: { const: 'free' }, list: { items: body } } }
    expect(query({ body: schema }, '', '{"TIER":"pro"}')).toEqual([
      'body TIER must be written tier',
    ])
    expect(query({ body: schema }, '', '{"tier":"free","Other":1}')).toEqual([])
    expect(query({ body: schema }, '', '{"li\u017ft":1}')).toEqual([
      'body li\u017ft must be written list',
    ])
  })

  test('error: at most 20 faults are listed', () => {
    const items = JSON.stringify({ model: 'a', messages: Array(500).fill(1) })
    expect(query({ body }, '', items)).toHaveLength(20)
  })
})
