import { describe, expect, test } from 'bun:test'
import { parseOverride } from '../../src/meter/Charge'
import type { Meter } from '../../src/meter/Meter'
import { createReader, type Head } from '../../src/meter/Reader'
import { bytes, charge, headOf, meterOf, units, usage } from '../harness/meter'

/** What an answer costs when its numbers are strange, missing, repeated or named in a header. */

const json = headOf('x.json')
const events = headOf('x.sse')
const meter = meterOf(`preset = "openai"\nbase = "0.0005"\n${units}`)
const answer = (usage: string, more = '') => [bytes(`{${more}"usage":${usage}}`)]

describe('amounts', () => {
  test('fractions are added up exactly and rounded up once', () => {
    const fine = meterOf(`preset = "openai"\nunits = [
      { name = "input", price = "0.000000000001", per = 1 },
      { name = "output", price = "1", per = 3 },
    ]`)
    const cost = (input: number, output: number) =>
      charge(fine, json, answer(`{"prompt_tokens":${input},"completion_tokens":${output}}`), {
        ceilingAtomic: 10n ** 30n,
        models: [],
      }).amountAtomic
    expect(cost(0, 0)).toBe(0n)
    expect(cost(1, 0)).toBe(1n)
    expect(cost(1_000_000, 0)).toBe(1n)
    expect(cost(1_000_001, 0)).toBe(2n)
    expect(cost(0, 1)).toBe(333_334n)
    expect(cost(0, 3)).toBe(1_000_000n)
    // 0.000001 short of the third: the two fractions make one unit, not two.
    expect(cost(500_000, 2)).toBe(666_668n)
    expect(cost(Number.MAX_SAFE_INTEGER, 0)).toBe(9_007_199_255n)
  })

  test('a charge is never above the ceiling', () => {
    const quoted = { ceilingAtomic: 501n, models: [] }
    const used = answer('{"prompt_tokens":9007199254740991,"completion_tokens":1}')
    expect(charge(meter, json, used, quoted)).toMatchObject({ amountAtomic: 501n, by: 'usage' })
  })

  test('base is charged for an answer that used nothing', () => {
    const used = answer('{"prompt_tokens":0,"completion_tokens":0}')
    expect(charge(meter, json, used)).toMatchObject({ amountAtomic: 500n, by: 'usage', units: {} })
  })

  test('parts that overlap never take more than the whole', () => {
    const parts = meterOf(`preset = "openai"\nunits = [
      { name = "input", price = "1" }, { name = "output", price = "1" },
      { name = "audio_input", price = "1" }, { name = "cached_input", price = "1" },
    ]`)
    const details = '{"audio_tokens":80,"cached_tokens":90}'
    const used = `{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":${details}}`
    expect(charge(parts, json, answer(used)).units).toEqual({
      audio_input: 80,
      cached_input: 20,
      output: 1,
    })
  })
})

describe('numbers that cannot be', () => {
  for (const number of [
    '-1',
    '0.5',
    '1e30',
    '1e400',
    '-1e400',
    '9007199254740992',
    '"12"',
    '"NaN"',
    'true',
    '[12]',
    '{}',
  ])
    test(`error: ${number} is no usage`, () => {
      for (const used of [
        `{"prompt_tokens":${number},"completion_tokens":5}`,
        `{"prompt_tokens":5,"completion_tokens":${number}}`,
        `{"prompt_tokens":5,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":${number}}}`,
      ])
        expect([used, charge(meter, json, answer(used))]).toMatchObject([
          used,
          { amountAtomic: 50_000n, by: 'missing' },
        ])
    })

  test('error: NaN, a cut object or no JSON are no usage', () => {
    for (const body of [
      '{"usage":{"prompt_tokens":NaN,"completion_tokens":1}}',
      '{"usage":{"prompt_tokens":1,"completion_tokens":1}',
      '',
      'upstream says hello',
      '"usage"',
      '{"usage":null}',
      '{"usage":{"prompt_tokens":1}}',
      '{"usage":{"completion_tokens":1}}',
      '{"usage":{"prompt_tokens":null,"completion_tokens":1}}',
    ])
      expect([body, charge(meter, json, [bytes(body)]).by]).toEqual([body, 'missing'])
  })

  test('error: a part that is more than what contains it is no usage', () => {
    const used =
      '{"prompt_tokens":5,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":6}}'
    expect(charge(meter, json, answer(used))).toMatchObject({
      by: 'missing',
      reason: 'cached_input is more than input, which contains it',
    })
  })

  test('a number that is wrong in one event and right in the last one counts', () => {
    const chunks = [
      'data: {"usage":{"prompt_tokens":-5,"completion_tokens":1e99}}\n\n',
      'data: {"usage":{"prompt_tokens":5,"completion_tokens":6}}\n\n',
    ].map(bytes)
    expect(charge(meter, events, chunks)).toMatchObject({ amountAtomic: 565n, by: 'usage' })
    expect(charge(meter, events, chunks.toReversed()).by).toBe('missing')
  })
})

describe('an answer that failed', () => {
  const used = answer('{"prompt_tokens":5,"completion_tokens":6}')
  for (const status of [199, 300, 304, 400, 404, 429, 500, 503])
    test(`an answer with status ${status} costs nothing, whatever usage it reports`, () => {
      for (const preset of ['openai', 'header', 'none']) {
        const own = meterOf(
          preset === 'openai'
            ? `preset = "openai"\n${units}`
            : `preset = "${preset}"\nbase = "0.01"`,
        )
        const headers = new Headers({ 'settlement-overrides': '{"amount":"5"}' })
        expect(charge(own, { status, headers }, used)).toMatchObject({
          amountAtomic: 0n,
          by: 'failed',
        })
      }
    })

  test('an error with status 200 costs nothing', () => {
    const body = '{"error":{"message":"x"},"usage":{"prompt_tokens":5,"completion_tokens":6}}'
    expect(charge(meter, json, [bytes(body)]).by).toBe('failed')
  })

  test('attack: an empty error is none, also where another pointer has one', () => {
    const usage = '"usage":{"prompt_tokens":5,"completion_tokens":6}'
    for (const none of ['null', 'false', '0', '""', '{}', '[]'])
      expect([none, charge(meter, json, [bytes(`{"error":${none},${usage}}`)])]).toMatchObject([
        none,
        { by: 'usage', amountAtomic: 565n },
      ])
    const both = `{"error":"","choices":[{"error":{"code":502}}],${usage}}`
    expect(charge(meter, json, [bytes(both)])).toMatchObject({
      by: 'failed',
      reason: 'the answer has an error at /choices/0/error',
    })
  })
})

describe('models', () => {
  const models = meterOf(`preset = "openai"
${units}
[merchants.routes.meter.models."cheap"]
input = "1"
output = "1"
[merchants.routes.meter.models."dear"]
output = "100"`)
  const cost = (asked: readonly string[], answered: string) =>
    charge(
      models,
      json,
      answer('{"prompt_tokens":1,"completion_tokens":1}', `"model":"${answered}",`),
      { ceilingAtomic: 50_000n, models: asked },
    ).amountAtomic

  test('the price is that of the requested model', () => {
    expect(cost(['cheap'], 'cheap')).toBe(2n)
    expect(cost(['dear'], 'dear')).toBe(101n)
    // A model that the table does not have is charged by the units of the meter.
    expect(cost(['other'], 'other')).toBe(11n)
    expect(cost([], 'other')).toBe(11n)
  })

  test('usage of another model has the price of the requested model', () => {
    expect(cost(['cheap'], 'cheap-2026-01-01')).toBe(2n)
    expect(cost(['dear'], 'cheap')).toBe(101n)
  })

  test('attack: usage of a dearer model has the price of that model', () => {
    expect(cost(['cheap'], 'dear')).toBe(101n)
    expect(cost([], 'dear')).toBe(101n)
    for (const name of ['dear ', 'Dear', 'vendor/dear', 'dear-2026-01-01', 'DEAR@20260101'])
      for (const answered of ['dear', 'dear-0613', name])
        expect([name, answered, cost([name], answered)]).toEqual([name, answered, 101n])
    // Another name of the same maker is another model.
    expect(cost(['dear-nano'], 'dear-nano')).toBe(11n)
  })

  test('of several models the one that answered counts, else the dearest', () => {
    expect(cost(['cheap', 'dear'], 'cheap')).toBe(2n)
    expect(cost(['cheap', 'dear'], 'dear')).toBe(101n)
    expect(cost(['cheap', 'dear'], 'dear-2026-01-01')).toBe(101n)
  })
})

describe('what is not read', () => {
  const used = '{"prompt_tokens":5,"completion_tokens":6}'

  test('an encoded answer has no usage', () => {
    const headers = new Headers({ 'content-type': 'application/json', 'content-encoding': 'gzip' })
    const packed = Bun.gzipSync(bytes(`{"usage":${used}}`))
    expect(charge(meter, { status: 200, headers }, [packed]).by).toBe('missing')
    headers.set('content-encoding', 'identity')
    expect(charge(meter, { status: 200, headers }, answer(used)).by).toBe('usage')
  })

  /** Logprobs of an answer with few tokens, which make it longer than any buffer. */
  const logprobs = `{"top_logprobs":[${'{"token":"\\u0022,{","bytes":[32]},'.repeat(200_000)}{}]}`

  test('attack: the usage of an answer of any length is read', () => {
    for (const body of [
      `{"x":${logprobs},"usage":${used}}`,
      `{"usage":${used},"x":${logprobs}}`,
      `{"x":"${'x'.repeat(8_000_000)}","model":"m","usage":{"x":${logprobs},${used.slice(1)}}`,
    ]) {
      expect(body.length).toBeGreaterThan(5_000_000)
      const chunks = [body.slice(0, 9), body.slice(9, 5_000_001), body.slice(5_000_001)].map(bytes)
      expect(charge(meter, json, chunks)).toMatchObject({ amountAtomic: 565n, by: 'usage' })
      const event = [bytes('data: '), ...chunks, bytes('\n\n')]
      expect(charge(meter, events, event)).toMatchObject({ amountAtomic: 565n, by: 'usage' })
    }
  })

  test('an event of several lines is one text', () => {
    const lines = bytes(`data: {"usage":\ndata: ${used}\ndata: }\n\n`)
    expect(charge(meter, events, [lines])).toMatchObject({ amountAtomic: 565n })
  })

  test('other fields, comments and lines without data are no events', () => {
    const stream = `\ufeff: {"usage":1}\nevent: usage\nid: 5\ndatax: {"usage":${used}}\n\n`
    expect(charge(meter, events, [bytes(stream)]).by).toBe('missing')
    const first = `\ufeffdata:{"usage":${used}}`
    expect(charge(meter, events, [bytes(first)]).by).toBe('usage')
  })

  test('a line of two chunks stays what it is while the next line begins', () => {
    const chunks = ['data: {"usage":', `${used}\ndata: }`, '\n\n'].map(bytes)
    expect(charge(meter, events, chunks)).toMatchObject({ amountAtomic: 565n, by: 'usage' })
  })

  test('JSON objects one after the other are read, too', () => {
    const lines = `{"x":"}{"}\n{"usage":${used}}\n`
    expect(usage(meter, json, [bytes(lines)])).toMatchObject({ counts: { input: 5, output: 6 } })
  })
})

describe('an answer that was not read to its end', () => {
  const soFar = (own: Meter, head: Head, pieces: readonly string[], input = 0) => {
    const reader = createReader(own, head)
    for (const piece of pieces) reader.add(bytes(piece))
    const usage = reader.soFar(input)
    return usage.kind === 'used' ? usage.counts : { [usage.kind]: 1 }
  }
  const said = (text: string) =>
    `data: {"choices":[{"delta":{"content": ${JSON.stringify(text)}}}]}\n\n`

  test('its output is a token for each text or for four bytes of them, whichever is more', () => {
    expect(soFar(meter, events, ['a', 'b', '', 'c'].map(said))).toEqual({ input: 0, output: 3 })
    expect(soFar(meter, events, [said('x'.repeat(403))], 9)).toEqual({ input: 9, output: 100 })
    // An escaped quote is part of its text, and what looks like a member in it is none.
    expect(soFar(meter, events, [said('","content":"xxxx')]).output).toBe(5)
    for (const none of [
      '{"model":"content","x":"text","contents":"xxxxxxxx"}',
      '{"content":[8888888]}',
    ])
      expect([none, soFar(meter, json, [none])]).toMatchObject([none, { output: 0 }])
  })

  test('what it reported counts, where that is more', () => {
    const used = 'data: {"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    expect(soFar(meter, events, [used, said('a')], 99)).toEqual({ input: 7, output: 2 })
    expect(soFar(meter, events, [used, ...'abc'.split('').map(said)])).toEqual({
      input: 7,
      output: 3,
    })
    const failed = 'data: {"error":{"code":1}}\n\n'
    expect(soFar(meter, events, [said('a'), failed])).toEqual({ failed: 1 })
  })

  test('where chunks end changes no count', () => {
    const text = ['a "quoted" \\ text', 'ü', '\n\n', 'x'.repeat(90)].map(said).join('')
    const whole = soFar(meter, events, [text])
    for (const size of [1, 2, 3, 7, 31, 64])
      expect([
        size,
        soFar(meter, events, text.match(new RegExp(`[\\s\\S]{1,${size}}`, 'g')) ?? []),
      ]).toEqual([size, whole])
  })

  test('texts that responses repeat are counted once', () => {
    const responses = [
      'data: {"type":"response.output_text.delta","delta":"eight by"}\n\n',
      'data: {"type":"response.output_text.done","text":"eight by"}\n\n',
      'data: {"type":"response.content_part.done","part":{"text":"eight by"}}\n\n',
    ]
    expect(soFar(meter, events, responses).output).toBe(2)
  })
})

describe('the header', () => {
  const named = meterOf('preset = "header"\nbase = "0.001"')
  const based = meterOf('preset = "header"\nbase = "0.001"\nmissing = "base"')
  const of = (value: string | undefined, own = named) => {
    const headers = new Headers(value === undefined ? {} : { 'Settlement-Overrides': value })
    return charge(own, { status: 200, headers }, [], { ceilingAtomic: 10_000n, models: [] })
  }

  for (const [amount, atomic] of [
    ['1000', 1000n],
    ['0', 0n],
    ['10000', 10_000n],
    ['10001', 10_000n],
    ['99999999999999999999999999999', 10_000n],
    ['50%', 5000n],
    ['33.33%', 3333n],
    ['0.01%', 1n],
    ['100%', 10_000n],
    ['101%', 10_000n],
    ['$0.005', 5000n],
    ['$0.0000001', 1n],
    ['$5', 10_000n],
  ] as const)
    test(`${amount} of a ceiling of 10000 is ${atomic}`, () => {
      expect(of(`{"amount":"${amount}"}`)).toMatchObject({ amountAtomic: atomic, by: 'header' })
    })

  for (const value of [
    undefined,
    '',
    '{}',
    '[]',
    'null',
    '1000',
    '{"amount":null}',
    '{"amount":1000}',
    '{"amount":"-1"}',
    '{"amount":"1.5"}',
    '{"amount":"1e3"}',
    '{"amount":"0x10"}',
    '{"amount":"-5%"}',
    '{"amount":"1.234%"}',
    '{"amount":"$-1"}',
    '{"amount":"$"}',
    '{"amount":" 5"}',
    '{"amount":"5"}, {"amount":"6"}',
  ])
    test(`error: ${value} names no amount`, () => {
      expect(of(value)).toMatchObject({ amountAtomic: 10_000n, by: 'missing' })
      expect(of(value, based)).toMatchObject({ amountAtomic: 1000n, by: 'missing' })
    })

  test('percent is rounded down and dollars are rounded up', () => {
    expect(parseOverride('{"amount":"33.33%"}', 100n)).toBe(33n)
    expect(parseOverride('{"amount":"$0.0000011"}', 100n)).toBe(2n)
  })
})

describe('a preset of an operator', () => {
  const own = `preset = "none"
units = [{ name = "in", price = "1" }, { name = "out", price = "10" }, { name = "cached", price = "0" }]
answer = { in = "/stats/a~1b/0", out = "/stats/out", cached = "/stats/cached" }
events = { in = "/in" }
part_of = { cached = "in" }`

  test("the pointers of an operator's preset are followed in whole answers and in events", () => {
    const meter = meterOf(own)
    const whole = '{"stats":{"a/b":[7,8],"out":3,"cached":2}}'
    expect(charge(meter, json, [bytes(whole)])).toMatchObject({
      amountAtomic: 35n,
      units: { in: 5, out: 3, cached: 2 },
    })
    const stream = 'data: {"in":7,"stats":{"out":3}}\n\n'
    expect(charge(meter, events, [bytes(stream)]).amountAtomic).toBe(37n)
  })
})
