import { expect, test } from 'bun:test'
import { max } from '../../src/protocol/Amount'
import * as Json from '../../src/protocol/Json'

test('ordinary objects parse as JSON.parse does', () => {
  for (const text of [
    '{}',
    ' {"a":1,"b":[{"a":2},{"a":3}],"c":"x:y{[","d":null}\n',
    '{"a":"\\"b\\":","c":"\\\\","d\\"":true,"\\u0065":{"e":-1.5e3}}',
  ]) {
    expect(Json.parse(text)).toEqual(JSON.parse(text))
  }
})

test('error: a member that appears twice is refused at every level and in every spelling', () => {
  for (const text of [
    '{"a":1,"a":1}',
    '{"a":1,"\\u0061":2}',
    '{"x":{"a":1,"b":2,"a":3}}',
    '{"x":[{"a":1,"a":2}]}',
    '{"a":{"a":{"a":1,"a":2}}}',
    '{"":1,"":2}',
  ]) {
    expect(() => Json.parse(text)).toThrow('twice')
  }
})

test('error: __proto__ is refused, other inherited names are only names', () => {
  expect(() => Json.parse('{"__proto__":{"x":1}}')).toThrow('__proto__')
  expect(() => Json.parse('{"a":{"\\u005f_proto__":1}}')).toThrow('__proto__')
  const json = Json.parse('{"a":{}}')
  expect(Json.member(json, 'constructor')).toBeUndefined()
  expect(Json.member(json, 'toString')).toBeUndefined()
})

test('error: a text that needs far more memory than its length is refused', () => {
  const wide = (part: string, count: number) => `{"a":[${part.repeat(count - 1)}1]}`
  for (const part of ['[],', '{},']) {
    expect(Json.parse(wide(part, 16_000))).toBeDefined()
    expect(() => Json.parse(wide(part, 20_000))).toThrow('too many')
  }
  expect(Json.parse(wide('1,', 100_000))).toBeDefined()
  expect(Json.parse(JSON.stringify({ a: '['.repeat(100_000) }))).toBeDefined()
})

test('error: depth, junk and other kinds of values are refused', () => {
  const deep = (levels: number) => `{"a":${'['.repeat(levels - 1)}${']'.repeat(levels - 1)}}`
  expect(Json.parse(deep(16))).toBeDefined()
  expect(() => Json.parse(deep(17))).toThrow('levels')
  expect(() => Json.parse('['.repeat(16000))).toThrow('levels')
  expect(() => Json.parse('{"a":'.repeat(3000))).toThrow('levels')
  for (const text of [
    '',
    'null',
    '1',
    '"a"',
    '[]',
    '{',
    '{"a"}',
    '{"a":1}x',
    '{a:1}',
    '{"a":NaN}',
  ]) {
    expect(() => Json.parse(text)).toThrow(Json.JsonError)
  }
  expect(() => Json.parse('{"a":"\u0000"}')).toThrow(Json.JsonError)
  expect(() => Json.parse('\ufeff{}')).toThrow(Json.JsonError)
  expect(() => Json.parse('{"a":"unterminated')).toThrow(Json.JsonError)
})

test('readers accept what they name', () => {
  const json = Json.parse('{"n":5,"s":"6","t":"x","nil":null,"o":{},"one":[{}],"w":"0x00"}')
  expect(Json.read(json, 'n', 'uint')).toBe(5n)
  expect(Json.read(json, 's', 'uint')).toBe(6n)
  expect(Json.read(json, 't', 'text')).toBe('x')
  expect(Json.optional(json, 'nil', 'text')).toBeUndefined()
  expect(Json.optional(json, 'absent', 'object')).toBeUndefined()
  expect(Json.read(json, 'one', 'single')).toEqual({})
  expect(() => Json.read(json, 'n', 'text')).toThrow('n is not a string')
  expect(() => Json.read(json, 'one', 'object')).toThrow(Json.JsonError)
  expect(() => Json.read(json, 'o', 'single')).toThrow(Json.JsonError)
  expect(() => Json.read(json, 'w', 'word')).toThrow(Json.JsonError)
})

const uintOf = (value: unknown) => Json.read({ value: value as Json.Json }, 'value', 'uint')

test('unsigned integers are plain decimal digits or safe integers', () => {
  expect(uintOf('0')).toBe(0n)
  expect(uintOf('10000')).toBe(10000n)
  expect(uintOf(10000)).toBe(10000n)
  expect(uintOf(Number.MAX_SAFE_INTEGER)).toBe(9007199254740991n)
  expect(uintOf(max.toString())).toBe(max)
})

test('error: every other spelling of a number is refused', () => {
  const hostile = [
    ...[
      '',
      '00',
      '01',
      '+1',
      '-1',
      '-0',
      '1.0',
      '1e4',
      '0x2710',
      ' 1',
      '1 ',
      '1\n',
      '1_000',
      '\u0661',
    ],
    ...[(max + 1n).toString(), '9'.repeat(78), '9'.repeat(5000)],
    ...[-1, -0, 1.5, 2 ** 53, Number.NaN, Number.POSITIVE_INFINITY],
    ...[null, undefined, true, {}, ['1'], 10n],
  ]
  for (const value of hostile) expect(() => uintOf(value)).toThrow('is not an unsigned integer')
})

test('error: signatures are whole bytes of bounded hex', () => {
  for (const value of ['0x', '0x1', 'ab', '0xgg', '0X11', `0x${'11'.repeat(4097)}`, '0x11 ']) {
    expect(() => Json.read({ value }, 'value', 'signature')).toThrow(Json.JsonError)
  }
  expect(Json.read({ value: `0x${'11'.repeat(300)}` }, 'value', 'signature')).toHaveLength(602)
})

test('canonical JSON sorts by UTF-16 code units (RFC 8785 section 3.2.3)', () => {
  const value = {
    '\u20ac': 'Euro Sign',
    '\r': 'Carriage Return',
    '\ufb33': 'Hebrew Letter Dalet With Dagesh',
    '1': 'One',
    '\ud83d\ude00': 'Emoji: Grinning Face',
    '\u0080': 'Control',
    '\u00f6': 'Latin Small Letter O With Diaeresis',
  }
  expect(Object.keys(JSON.parse(Json.canonicalize(value))).slice(1)).toEqual([
    '\r',
    '\u0080',
    '\u00f6',
    '\u20ac',
    '\ud83d\ude00',
    '\ufb33',
  ])
  expect(Json.canonicalize({ b: [1, { d: null, c: 1e21 }], a: '\u000f"' })).toBe(
    '{"a":"\\u000f\\"","b":[1,{"c":1e+21,"d":null}]}',
  )
})
