import { describe, expect, test } from 'bun:test'
import { readdirSync } from 'node:fs'
import { charge, fixture, fixtures, headOf, meterOf, units } from '../harness/meter'

/** Stored answers in the shapes of the three vendors, and what is counted in each. */

const price = '10'
const plain = {
  openai: meterOf(`preset = "openai"\n${units}`, price),
  anthropic: meterOf(`preset = "anthropic"\n${units}`, price),
  gemini: meterOf(`preset = "gemini"\n${units}`, price),
}
/** Each unit of a preset with a price of its own. */
const split = (name: keyof typeof plain) =>
  meterOf(
    `preset = "${name}"\nunits = [${plain[name].plan.counters
      .map(({ unit }) => `{ name = "${unit}", price = "1" }`)
      .join(', ')}]`,
    price,
  )
const own = { openai: split('openai'), anthropic: split('anthropic'), gemini: split('gemini') }

type Counts = Readonly<Record<string, number>>
type Row = readonly [file: string, input: number, output: number, split?: Counts]

/** Tokens that are charged as input and as output, and by unit when each has a price. */
const used: readonly Row[] = [
  ['openai-chat.json', 19, 10],
  ['openai-chat-tools.json', 82, 17],
  ['openai-chat-choices.json', 12, 9],
  [
    'openai-chat-cached-reasoning.json',
    2048,
    900,
    { input: 128, cached_input: 1920, output: 260, reasoning: 640 },
  ],
  ['openai-chat-stream.sse', 31, 14, { input: 31, output: 6, reasoning: 8 }],
  ['openai-chat-stream-crlf.sse', 31, 14, { input: 31, output: 6, reasoning: 8 }],
  // The numbers are totals so far: adding them up would charge 155 and 15.
  ['openai-chat-stream-repeated.sse', 31, 5],
  ['openai-responses.json', 120, 210, { input: 56, cached_input: 64, output: 18, reasoning: 192 }],
  [
    'openai-responses-stream.sse',
    120,
    210,
    { input: 56, cached_input: 64, output: 18, reasoning: 192 },
  ],
  ['openai-responses-stream-incomplete.sse', 120, 500],
  // JSON over several data lines, with other fields between them.
  ['openai-chat-stream-lines.sse', 31, 14],
  ['anthropic-message.json', 12, 6],
  [
    'anthropic-cached-thinking.json',
    20_521,
    503,
    { input: 21, cached_input: 18_000, cache_write: 1500, cache_write_1h: 1000, output: 503 },
  ],
  ['anthropic-tools.json', 385, 58, { input: 385, output: 58, web_search: 2 }],
  ['anthropic-stream.sse', 1025, 15, { input: 25, cached_input: 1000, output: 15 }],
  ['anthropic-stream-totals.sse', 11_682, 510],
  ['gemini.json', 4, 3],
  [
    'gemini-cached-thoughts.json',
    5150,
    720,
    { input: 1000, cached_input: 4000, tool_input: 150, output: 20, reasoning: 700 },
  ],
  ['gemini-only-thoughts.json', 9, 64],
  ['gemini-blocked.json', 7, 0],
  ['gemini-choices.json', 4, 2],
  ['gemini-stream.sse', 8, 36, { input: 8, output: 6, reasoning: 30 }],
  ['gemini-stream.json', 8, 36, { input: 8, output: 6, reasoning: 30 }],
  // What came before the cut is what was delivered.
  ['gemini-stream-cut.sse', 8, 5],
]

const failed = [
  'openai-chat-error.json',
  'openai-chat-stream-error.sse',
  'openai-responses-stream-failed.sse',
  'anthropic-error.json',
  'anthropic-stream-error.sse',
  'gemini-error.json',
  'gemini-stream-error.json',
]

const missing = [
  'openai-chat-stream-cut.sse',
  'openai-chat-stream-without-usage.sse',
  // message_start has a first count of the output only.
  'anthropic-stream-cut.sse',
]

function presetOf(file: string): keyof typeof plain {
  return file.split('-')[0]?.split('.')[0] as keyof typeof plain
}

describe('an answer with usage', () => {
  for (const [file, input, output, counts] of used)
    test(`${file} costs its input and output, each token once`, async () => {
      const chunks = [await fixture(file)]
      const charged = charge(plain[presetOf(file)], headOf(file), chunks)
      expect(charged).toMatchObject({ amountAtomic: BigInt(input + 10 * output), by: 'usage' })
      if (counts === undefined) return
      const parts = charge(own[presetOf(file)], headOf(file), chunks)
      expect(parts.units).toEqual(counts)
    })
})

describe('an answer that failed', () => {
  for (const file of failed)
    test(`${file} costs nothing`, async () => {
      const charged = charge(plain[presetOf(file)], headOf(file), [await fixture(file)])
      expect(charged).toMatchObject({ amountAtomic: 0n, by: 'failed' })
    })
})

describe('an answer without usage', () => {
  for (const file of missing)
    test(`${file} costs the ceiling, or base where the file says so`, async () => {
      const chunks = [await fixture(file)]
      const quoted = { ceilingAtomic: 777n, models: [] }
      const preset = presetOf(file)
      expect(charge(plain[preset], headOf(file), chunks, quoted)).toMatchObject({
        amountAtomic: 777n,
        by: 'missing',
      })
      const base = meterOf(`preset = "${preset}"\nbase = "0.0005"\nmissing = "base"\n${units}`)
      expect(charge(base, headOf(file), chunks, quoted).amountAtomic).toBe(500n)
      // The base is limited by the ceiling, too.
      const small = { ceilingAtomic: 20n, models: [] }
      expect(charge(base, headOf(file), chunks, small).amountAtomic).toBe(20n)
    })
})

test('every stored answer is in one of the tables', () => {
  const listed = [...used.map(([file]) => file), ...failed, ...missing]
  expect(listed.toSorted()).toEqual(readdirSync(fixtures).toSorted())
})
