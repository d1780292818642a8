import { describe, expect, test } from 'bun:test'
import * as JsonSchema from '../../src/schema/JsonSchema'
import * as Pattern from '../../src/schema/Pattern'

type Case = readonly [schema: unknown, fits: readonly unknown[], fails: readonly unknown[]]

const tree = {
  $ref: '#/$defs/tree',
  $defs: { tree: { properties: { next: { $ref: '#/$defs/tree' }, size: { type: 'integer' } } } },
}

const cases: readonly Case[] = [
  [true, [1, null], []],
  [false, [], [1, null, {}]],
  [{}, [1, 'a', null], []],
  [{ type: 'integer' }, [1, 1e3, -0], [1.5, '1', null, true]],
  [{ type: ['number', 'null'] }, [1.5, null], ['1', [], {}]],
  [{ type: 'object' }, [{}], [[], null, 'a']],
  [{ const: { a: [1, { b: null }] } }, [{ a: [1, { b: null }] }], [{ a: [1, {}] }, { a: [1] }, 1]],
  [{ enum: ['a', 1, [2], null] }, ['a', 1, [2], null], ['b', 2, [1], [2, 3], {}]],
  [{ minimum: 1, maximum: 3 }, [1, 3, 'x'], [0.9, 3.1]],
  [{ exclusiveMinimum: 1, exclusiveMaximum: 3 }, [2], [1, 3]],
  [{ multipleOf: 0.01 }, [19.99, 0, -0.07, 1e300], [0.001, 1e-300]],
  [{ multipleOf: 3 }, [9, 'x'], [10, 1.5]],
  [
    { minLength: 2, maxLength: 3 },
    ['ab', '\u{1F600}\u{1F600}', 'abc', 5],
    ['a', '\u{1F600}', 'abcd'],
  ],
  [{ pattern: '^a+$' }, ['a', 1], ['b', '']],
  [{ items: { type: 'string' } }, [[], ['a'], 1], [[1], ['a', 1]]],
  [{ prefixItems: [{ const: 1 }], items: false }, [[], [1]], [[2], [1, 2]]],
  [{ items: [{ const: 1 }], additionalItems: { type: 'string' } }, [[1, 'a']], [[1, 2], [2]]],
  [{ minItems: 1, maxItems: 2 }, [[1], [1, 2], {}], [[], [1, 2, 3]]],
  [{ contains: { const: 1 } }, [[2, 1]], [[], [2]]],
  [{ contains: { const: 1 }, minContains: 0, maxContains: 1 }, [[], [1, 2]], [[1, 1]]],
  [
    { uniqueItems: true },
    [
      [1, '1', true, null],
      [
        { a: 1, b: 2 },
        { a: 2, b: 1 },
      ],
      ['{}', {}],
      [[1], ['1']],
      ['[1]', [1]],
    ],
    [
      [1, 1],
      [
        { a: 1, b: [2] },
        { b: [2], a: 1 },
      ],
      [null, null],
      ['a', 'a'],
      [0, -0],
    ],
  ],
  [{ required: ['a', 'constructor'] }, [{ a: 1, constructor: 2 }, 'x'], [{ a: 1 }, {}]],
  [{ minProperties: 1, maxProperties: 1 }, [{ a: 1 }], [{}, { a: 1, b: 2 }]],
  [
    { properties: { a: false }, patternProperties: { '^x': { type: 'null' } } },
    [{ x1: null }],
    [{ a: 1 }, { x1: 1 }],
  ],
  [
    { properties: { a: {} }, patternProperties: { '^x': {} }, additionalProperties: false },
    [{ a: 1, x: 1 }],
    [{ b: 1 }],
  ],
  [{ additionalProperties: { type: 'number' } }, [{ a: 1 }], [{ a: '1' }]],
  [{ propertyNames: { maxLength: 1 } }, [{ a: 1 }], [{ ab: 1 }]],
  [{ dependentRequired: { a: ['b'] } }, [{ a: 1, b: 1 }, { c: 1 }], [{ a: 1 }]],
  [{ dependentSchemas: { a: { required: ['b'] } } }, [{ a: 1, b: 1 }], [{ a: 1 }]],
  [
    { dependencies: { a: ['b'], c: { maxProperties: 1 } } },
    [{ a: 1, b: 1 }, { c: 1 }],
    [{ a: 1 }, { c: 1, d: 1 }],
  ],
  [{ allOf: [{ minimum: 1 }, { maximum: 2 }] }, [1], [0, 3]],
  [{ anyOf: [{ type: 'string' }, { minimum: 5 }] }, ['a', 5], [4]],
  [{ oneOf: [{ minimum: 1 }, { maximum: 3 }] }, [0, 4], [2]],
  [{ not: { type: 'string' } }, [1], ['a']],
  [
    JSON.parse('{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}}'),
    [{ a: 1, b: 1 }, { c: 1 }],
    [{ a: 1 }, {}],
  ],
  [tree, [{ next: { next: { size: 1 } } }], [{ next: { next: { size: 'x' } } }]],
  [{ $defs: { a: { $anchor: 'here', type: 'null' } }, $ref: '#here' }, [null], [1]],
  [{ $defs: { 'a/b~%': { type: 'null' } }, $ref: '#/$defs/a~1b~0%25' }, [null], [1]],
  [
    {
      allOf: [{ properties: { a: {} } }],
      anyOf: [{ required: ['b'], properties: { b: {} } }, true],
      unevaluatedProperties: false,
    },
    [{ a: 1 }, { a: 1, b: 1 }],
    [{ c: 1 }, { a: 1, c: 1 }],
  ],
  [{ allOf: [{ properties: { a: {} } }, { unevaluatedProperties: false }] }, [{}], [{ a: 1 }]],
  [
    { prefixItems: [{}], contains: { const: 2 }, unevaluatedItems: false },
    [[1, 2], [2]],
    [
      [1, 2, 3],
      [2, 1],
    ],
  ],
  [{ format: 'date' }, ['2024-02-29', 1], ['2023-02-29', '2024-1-1', '2024-01-01x', '']],
  [{ format: 'time' }, ['23:59:60Z', '01:02:03.5+05:30'], ['24:00:00Z', '01:02:03']],
  [
    { format: 'date-time' },
    ['2024-02-29T01:02:03Z', '2024-02-29t01:02:03.5-01:00'],
    ['2024-02-29', '2024-02-30T01:02:03Z'],
  ],
  [{ format: 'duration' }, ['P1Y2M3DT4H5M6S', 'P4W', 'PT36H'], ['P', 'PT', 'P1D2H', '1D']],
  [
    { format: 'email' },
    ['some.one+x@example.com', '"a b"@example.com'],
    ['a', '@b.c', 'a@', 'a..b@c.d', 'a@-b.c', 'a b@c.d'],
  ],
  [
    { format: 'hostname' },
    ['a.example', 'x'],
    ['-a', 'a..b', 'a_b', '', `${'a'.repeat(64)}.b`, 'a.b\n'],
  ],
  [{ format: 'ipv4' }, ['127.0.0.1'], ['256.1.1.1', '1.1.1', '1.1.1.1.1']],
  [
    { format: 'ipv6' },
    ['::1', '1:2:3:4:5:6:7:8', '::ffff:1.2.3.4'],
    ['1.2.3.4', ':::', '1:2', 'fe80::1%a', '::1]/['],
  ],
  [{ format: 'uri' }, ['https://a.b/c?d=e#f', 'mailto:a@b'], ['/a', 'a b:c', 'a:%2', 'a:#b#c']],
  [{ format: 'uri-reference' }, ['/a?b#c', '', '../x'], ['a b', '\\x', '#a#b']],
  [{ format: 'uri-template' }, ['/a/{b}{?c,d*}'], ['/a/{b', '/a}']],
  [{ format: 'url' }, ['https://a.b/c'], ['ftp//a', 'javascript:x']],
  [
    { format: 'uuid' },
    ['123e4567-e89b-12d3-a456-42661417400F'],
    ['123e4567e89b12d3a456426614174000'],
  ],
  [{ format: 'json-pointer' }, ['', '/a/~0~1'], ['a', '/~2']],
  [{ format: 'json-pointer-uri-fragment' }, ['#/a'], ['/a']],
  [{ format: 'relative-json-pointer' }, ['0#', '1/a'], ['/a', '01/a']],
  [{ format: 'of-the-merchant' }, ['anything'], []],
]

describe('JsonSchema', () => {
  test.each(cases)('%j separates what fits from what does not', (schema, fits, fails) => {
    const check = JsonSchema.compile(schema)
    for (const most of [1, 20]) {
      for (const value of fits) expect([value, check(value, most)]).toEqual([value, []])
      for (const value of fails) {
        const faults = check(value, most)
        expect([value, faults.length > 0 && faults.length <= most]).toEqual([value, true])
      }
    }
  })

  test('error: faults are named by their place, and at most as many as are wanted', () => {
    const check = JsonSchema.compile({
      required: ['id'],
      properties: { list: { items: { type: 'integer', maximum: 3 } }, 'a/b': { const: 'x' } },
      additionalProperties: false,
    })
    const value = { list: [1, 'secret', 9], 'a/b': 'y', more: 1 }
    const faults = [
      { name: 'id', reason: 'is required' },
      { name: 'list/1', reason: 'must be a whole number' },
      { name: 'list/2', reason: 'must be at most 3' },
      { name: 'a~1b', reason: 'must be "x"' },
      { name: 'more', reason: 'is not allowed' },
    ]
    expect(check(value, 20)).toEqual(faults)
    expect(check(value, 2)).toEqual(faults.slice(0, 2))
  })

  test('lengths and counts are checked before what costs more', () => {
    const short = JsonSchema.compile({ maxLength: 3, pattern: '^a' })
    expect(short('bbbb', 20)).toEqual([{ name: '', reason: 'must have at most 3 characters' }])
    const few = JsonSchema.compile({ maxItems: 1, uniqueItems: true, items: { const: 1 } })
    expect(few([2, 2], 20)).toEqual([{ name: '', reason: 'must have at most 1 entries' }])
    const narrow = JsonSchema.compile({ maxProperties: 1, propertyNames: { pattern: '^a' } })
    expect(narrow({ b: 1, c: 1 }, 20)).toEqual([
      { name: '', reason: 'must have at most 1 members' },
    ])
  })

  test('error: a schema with a reference to nothing or a slow pattern is refused', () => {
    for (const $ref of ['#/$defs/a', '#a', 'http://a/b', '#/constructor'])
      expect(() => JsonSchema.compile({ items: { $ref } })).toThrow(JsonSchema.SchemaError)
    expect(() => JsonSchema.compile({ items: { pattern: '(a)\\1' } })).toThrow(Pattern.PatternError)
  })
})
