import { expect, test } from 'bun:test'
import { readdirSync } from 'node:fs'
import fc from 'fast-check'
import * as Charge from '../../src/meter/Charge'
import * as Quote from '../../src/meter/Quote'
import * as Usage from '../../src/meter/Usage'
import { bytes, fixture, fixtures, headOf, meterOf, paths, units, usage } from '../harness/meter'
import { runs } from '../harness/samples'

const names = readdirSync(fixtures)
const answers = new Map(await Promise.all(names.map(async (n) => [n, await fixture(n)] as const)))
const meters = {
  openai: meterOf(`preset = "openai"\n${units}`),
  anthropic: meterOf(`preset = "anthropic"\n${units}`),
  gemini: meterOf(`preset = "gemini"\n${units}`),
}
const meterFor = (name: string) => meters[name.split('-')[0]?.split('.')[0] as keyof typeof meters]

/** The bytes cut at these places, in a buffer that is written over after each chunk. */
function* cut(all: Uint8Array, places: readonly number[]): Generator<Uint8Array> {
  const ends = [...new Set(places.map((place) => place % (all.byteLength + 1)))].sort(
    (a, b) => a - b,
  )
  const buffer = new Uint8Array(all.byteLength)
  let from = 0
  for (const end of [...ends, all.byteLength]) {
    buffer.set(all.subarray(from, end))
    yield buffer.subarray(0, end - from)
    buffer.fill(0x78)
    from = end
  }
}

const ofLines = (body: Uint8Array, end: string) =>
  bytes(new TextDecoder().decode(body).replaceAll(/\r\n|\n/g, end))

test('where chunks end changes no usage, with each end of line', () => {
  const places = fc.array(fc.nat(), { maxLength: 40 })
  const ends = fc.constantFrom('\n', '\r\n', '\r')
  const property = fc.property(fc.constantFrom(...names), places, ends, (name, cuts, end) => {
    const body = ofLines(answers.get(name) ?? new Uint8Array(), end)
    const whole = usage(meterFor(name), headOf(name), [body])
    expect(usage(meterFor(name), headOf(name), cut(body, cuts))).toEqual(whole)
  })
  fc.assert(property, runs(600))
})

test('single bytes give the usage of the whole', () => {
  for (const name of names) {
    const body = answers.get(name) ?? new Uint8Array()
    const single = cut(
      body,
      Array.from(body, (_, i) => i),
    )
    const whole = usage(meterFor(name), headOf(name), [body])
    expect([name, usage(meterFor(name), headOf(name), single)]).toEqual([name, whole])
  }
})

test('events that are passed over change no usage, whatever lines a stream has', () => {
  const count = fc.nat({ max: 99 })
  const text = fc.oneof(
    fc.constantFrom(
      'data: {"choices":[{"delta":{"content":"word"}}],"usage":null}',
      `data: {"choices":[{"delta":{"content":"${'long '.repeat(150)}"}}]}`,
      'data: {"error":{"message":"no"}}',
      'data: {"usage":{"prompt_tokens":3,',
      'data: "completion_tokens":4}}',
      'data: [DONE]',
      'event: message',
      ': a comment that names prompt_tokens"',
      '',
    ),
    fc
      .tuple(count, count)
      .map(
        ([input, output]) =>
          `data: {"usage":{"prompt_tokens":${input},"completion_tokens":${output}}}`,
      ),
  )
  const end = fc.constantFrom('\n\n', '\n', '\r\n\r\n', '\r\n', '\r', '\n\n\n')
  const line = fc
    .tuple(fc.constantFrom('', '', '', '\ufeff'), text, end)
    .map((parts) => parts.join(''))
  const places = fc.array(fc.nat(), { maxLength: 6 })
  const property = fc.property(fc.array(line, { maxLength: 12 }), places, (lines, cuts) => {
    const body = bytes(lines.join(''))
    // In chunks of one byte no part can be skipped.
    const each = Array.from(body, (_, i) => i)
    const read = usage(meters.openai, headOf('openai.sse'), cut(body, each))
    expect(usage(meters.openai, headOf('openai.sse'), [body])).toEqual(read)
    expect(usage(meters.openai, headOf('openai.sse'), cut(body, cuts))).toEqual(read)
  })
  fc.assert(property, { numRuns: 300 })
})

test('an answer has the usage that JSON.parse finds, wherever its chunks end', () => {
  const name = fc.constantFrom('usage', 'prompt_tokens', 'completion_tokens', 'error', 'model', 'x')
  const leaf = fc.oneof(
    fc.constantFrom<unknown>(0, 7, -1, 1.5, 1e30, null, true, false, '', '"', '\\', 'a\n{', [], {}),
    fc.string({ maxLength: 600 }),
  )
  const { value } = fc.letrec<{ value: unknown }>((tie) => ({
    value: fc.oneof(
      { maxDepth: 4 },
      leaf,
      fc.dictionary(name, tie('value'), { maxKeys: 5, noNullPrototype: true }),
      fc.array(tie('value'), { maxLength: 3 }),
    ),
  }))
  const choices = fc.array(fc.dictionary(name, value, { noNullPrototype: true }), { maxLength: 2 })
  const answer = fc.record(
    { usage: value, error: value, model: value, choices, x: value },
    {
      requiredKeys: ['usage'],
    },
  )
  const places = fc.array(fc.nat(), { maxLength: 9 })
  const property = fc.property(
    answer,
    fc.nat(2),
    fc.boolean(),
    places,
    (value, indent, isEscaped, cuts) => {
      const plain = JSON.stringify(value, null, indent)
      const text = isEscaped ? plain.replaceAll('prompt_', '\\u0070rompt_') : plain
      const { plan } = meters.openai
      const seen = Usage.nothing()
      Usage.collect(seen, plan, JSON.parse(text), 'answer')
      const { kind, ...expected } = Usage.conclude(seen, plan.counters)
      const read = usage(meters.openai, headOf('openai.json'), cut(bytes(text), cuts))
      expect(read.kind).toBe(kind)
      // The reason shows a strange value, which may be too long to be kept.
      if (kind === 'used') expect(read).toMatchObject(expected)
    },
  )
  fc.assert(property, runs(600))
})

test('the end of an event that is too long is still found', () => {
  const long = bytes(`data: ${'x'.repeat(5_000_000)}\n`)
  const rest = bytes('data: y\n\ndata: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n')
  const read = usage(meters.openai, headOf('openai.sse'), [long, rest])
  expect(read).toMatchObject({ kind: 'used', counts: { input: 3, output: 4 } })
})

const amount = fc.bigInt({ min: 0n, max: 10n ** 9n })
const decimal = (atomic: bigint) =>
  `${atomic / 1_000_000n}.${`${atomic % 1_000_000n}`.padStart(6, '0')}`

test('no charge is above its ceiling, and no ceiling above the price', () => {
  const count = fc.oneof(fc.nat(), fc.constantFrom(0, Number.MAX_SAFE_INTEGER, -1, 0.5, 1e30))
  const property = fc.property(
    fc.record({
      price: amount,
      base: amount,
      input: amount,
      output: amount,
      missing: fc.constantFrom('max', 'base'),
      maxTokens: fc.option(fc.integer({ min: 1, max: 100_000 }), { nil: undefined }),
      n: fc.option(fc.integer({ min: 1, max: 9 }), { nil: undefined }),
      content: fc.string({ unit: 'binary', maxLength: 200 }),
      used: fc.record({ prompt_tokens: count, completion_tokens: count }, { requiredKeys: [] }),
    }),
    ({ price, base, input, output, missing, maxTokens, n, content, used }) => {
      const least = price > base ? price : base + 1n
      const meter = meterOf(
        `preset = "openai"
base = "${decimal(base)}"
missing = "${missing}"
units = [{ name = "input", price = "${decimal(input)}" }, { name = "output", price = "${decimal(output)}" }]`,
        decimal(least),
      )
      const body = bytes(JSON.stringify({ max_tokens: maxTokens, n, messages: [{ content }] }))
      const quote = Quote.of(meter, { path: paths.openai, body })
      const answer = bytes(JSON.stringify({ usage: used }))
      const charge = Charge.of(meter, quote, usage(meter, headOf('x.json'), [answer]))
      expect(quote.faults).toEqual([])
      expect(charge.amountAtomic).toBeLessThanOrEqual(quote.ceilingAtomic)
      expect(quote.ceilingAtomic).toBeLessThanOrEqual(meter.priceAtomic)
      expect(charge.amountAtomic).toBeGreaterThanOrEqual(0n)
    },
  )
  fc.assert(property, runs(300))
})

test('an answer within its limits never reaches beyond the uncapped ceiling', () => {
  // A dollar a token, so that a token too few would show.
  const own = `preset = "openai"\nunits = [
    { name = "input", price = "1", per = 1 }, { name = "output", price = "1", per = 1 },
    { name = "cached_input", price = "2", per = 1 }, { name = "reasoning", price = "3", per = 1 }]`
  const meter = meterOf(own, '1000000000')
  const property = fc.property(
    fc.string({ unit: 'grapheme', maxLength: 100 }),
    fc.integer({ min: 1, max: 10_000 }),
    fc.integer({ min: 1, max: 5 }),
    (content, most, n) => {
      const body = bytes(JSON.stringify({ max_tokens: most, n, messages: [{ content }] }))
      const { ceilingAtomic, models } = Quote.of(meter, { path: paths.openai, body })
      expect(ceilingAtomic).toBeLessThan(meter.priceAtomic)
      const input = bytes(content).byteLength
      const counts = { input, cached_input: input, output: most * n, reasoning: most * n }
      const usage = { kind: 'used', counts, model: undefined } as const
      const free = { ceilingAtomic: 10n ** 30n, models }
      expect(Charge.of(meter, free, usage).amountAtomic).toBeLessThanOrEqual(ceilingAtomic)
    },
  )
  fc.assert(property, runs(300))
})

test('only the limits and the usage fields of a body change', () => {
  const limited = meterOf(`preset = "openai"\n${units}
[merchants.routes.meter.limits]
max_output = 500`)
  const property = fc.property(
    fc.dictionary(fc.string(), fc.json(), { noNullPrototype: true }),
    fc.boolean(),
    fc.option(fc.integer({ min: 1, max: 500 }), { nil: undefined }),
    (members, stream, most) => {
      const asked = { stream, ...(most && { max_tokens: most }) }
      const others = Object.entries(members).map(([k, v]) => `${JSON.stringify(`x${k}`)}: ${v}`)
      const own = Object.entries(asked).map(([k, v]) => `"${k}":${v}`)
      const body = `{${[...others, ...own].join(' ,\n')}}`
      const quote = Quote.of(limited, { path: paths.openai, body: bytes(body) })
      const forwarded = new TextDecoder().decode(quote.body)
      expect(quote.faults).toEqual([])
      for (const other of others) expect(forwarded).toContain(other)
      const { max_tokens, ...rest } = JSON.parse(body)
      expect(JSON.parse(forwarded)).toEqual({
        ...rest,
        max_completion_tokens: max_tokens ?? 500,
        ...(stream && { stream_options: { include_usage: true } }),
      })
    },
  )
  fc.assert(property, runs(300))
})
