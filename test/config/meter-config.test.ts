import { describe, expect, test } from 'bun:test'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { toBuyer } from '../../src/gateway/upstream/headers'
import { read } from '../harness/config'
import { meterOf, units, withMeter } from '../harness/meter'

/** What `check` says of a meter, with its line. */

const price = '{ name = "input", price = "1" }, { name = "output", price = "1" }'
const own = `preset = "none"
units = [${price}]
answer = { input = "/in", output = "/out", cached = "/cached" }`

/** One fault each: the meter, a text of the line at fault, and the pattern of its message. */
const faults: readonly (readonly [meter: string, line: string, message: RegExp])[] = [
  ['base = "0.01"', '[merchants.routes.meter]', /^preset is missing; write preset = "openai"/],
  [
    'preset = "gpt"',
    'preset =',
    /must be one of "openai", "anthropic", "gemini", "header", "none"/,
  ],
  [`preset = "openai"\nprize = 1\n${units}`, 'prize', /^unknown key prize/],
  [`preset = "openai"\nbase = 0.01\n${units}`, 'base =', /must be a string/],
  [`preset = "openai"\nbase = "0.06"\n${units}`, 'base =', /above price/],
  [`preset = "openai"\nmissing = "none"\n${units}`, 'missing =', /"max", "base"/],
  [`preset = "openai"\nunits = 5`, 'units =', /array of tables/],
  [
    `preset = "openai"\nunits = [{ name = "in", price = "1" }, ${price}]`,
    'units =',
    /^in is no unit of the preset; known here: input/,
  ],
  [
    `preset = "openai"\nunits = [{ name = "input", price = "2" }, ${price}]`,
    'units =',
    /^input is there twice/,
  ],
  [`preset = "openai"\nunits = [{ price = "1" }, ${price}]`, 'units =', /^name is missing/],
  [`preset = "openai"\nunits = [{ name = "reasoning" }, ${price}]`, 'units =', /^price is missing/],
  [
    `preset = "openai"\nunits = [{ name = "reasoning", price = 0.25 }, ${price}]`,
    'units =',
    /must be a string/,
  ],
  [
    `preset = "openai"\nunits = [{ name = "reasoning", price = "-1" }, ${price}]`,
    'units =',
    /decimal number/,
  ],
  [
    `preset = "openai"\nunits = [{ name = "reasoning", price = "0.0000000000001" }, ${price}]`,
    'units =',
    /at most 12 decimals/,
  ],
  [
    `preset = "openai"\nunits = [{ name = "reasoning", price = "1", per = 0 }, ${price}]`,
    'units =',
    /^per must be an integer/,
  ],
  [
    `preset = "openai"\nunits = [{ name = "input", price = "1" }]`,
    'units =',
    /no price for output/,
  ],
  [
    `preset = "openai"\nmodels = { a = { input = "1" } }\nlimits = { models_only = true }`,
    'models =',
    /^a has no price for output/,
  ],
  [
    `preset = "openai"\nmodels = { a = { input = "1", output = "1", x = "1" } }\nlimits = { models_only = true }`,
    'models =',
    /^x is no unit/,
  ],
  [
    `preset = "openai"\nmodels = { a = { input = 1, output = "1" } }\nlimits = { models_only = true }`,
    'models =',
    /input must be a string/,
  ],
  [
    `preset = "openai"\nmodels = { a = { input = "1", output = "1" } }`,
    '[merchants.routes.meter]',
    /^units has no price for input, output.*models_only/,
  ],
  [
    `preset = "openai"\n${units}\nlimits = { models_only = true }`,
    'limits =',
    /models_only needs models/,
  ],
  [
    `preset = "openai"\n${units}\nlimits = { max_output = "5" }`,
    'limits =',
    /max_output must be an integer/,
  ],
  [
    `preset = "openai"\n${units}\nlimits = { max_choices = 0 }`,
    'limits =',
    /max_choices must be an integer/,
  ],
  [
    `preset = "openai"\n${units}\nlimits = { max_tokens = 5 }`,
    'limits =',
    /unknown key max_tokens/,
  ],
  [`preset = "openai"\n${units}\nanswer = { input = "/a" }`, 'answer =', /needs preset = "none"/],
  [`preset = "header"\n${units}`, 'units =', /is no unit|no meaning/],
  ['preset = "header"\nlimits = { max_output = 5 }', 'limits =', /no meaning with preset "header"/],
  [
    `preset = "none"\nunits = [${price}]\nanswer = { input = "usage", output = "/a" }`,
    'answer =',
    /must be a JSON pointer/,
  ],
  [`${own}\nevents = { other = "/a" }`, 'events =', /no unit of answer/],
  [`${own}\npart_of = { cached = "other" }`, 'part_of =', /must be units of answer/],
  [`${own}\npart_of = { cached = "input", input = "cached" }`, 'part_of =', /part of no other/],
  [`${own}\npart_of = { cached = "cached" }`, 'part_of =', /part of no other/],
  [
    'preset = "none"\nbase = "0.01"\npart_of = { a = "b" }',
    'part_of =',
    /needs pointers in answer/,
  ],
  [
    `${own}\npart_of = { cached = "input" }\nlimits = { max_output = 5 }`,
    'limits =',
    /needs max_output in request/,
  ],
  [
    `${own}\npart_of = { cached = "input" }\nlimits = { max_choices = 5 }`,
    'limits =',
    /needs choices in request/,
  ],
  [
    `${own}\npart_of = { cached = "input" }\nmodels = { a = { input = "1" } }`,
    'models =',
    /needs model in request/,
  ],
  [
    `${own}\npart_of = { cached = "input" }\nrequest = { max_output = ["/a", "/b/c"] }`,
    'request =',
    /members of one object/,
  ],
  [
    `${own}\npart_of = { cached = "input" }\nrequest = { models = "/a" }`,
    'request =',
    /unknown key models/,
  ],
]

describe('faults', () => {
  for (const [meter, where, message] of faults) {
    test(`error: ${meter.replaceAll('\n', ' ').slice(0, 110)} is a fault at ${where}`, () => {
      const text = withMeter(meter)
      const { faults: found } = read(text)
      expect(found.map((each) => each.message)).toContainEqual(expect.stringMatching(message))
      const at = found.find((each) => message.test(each.message))
      expect(text.split('\n')[(at?.line ?? 0) - 1]).toContain(where)
    })
  }

  test('error: a preset without prices has the fault at the meter', () => {
    for (const [meter, message] of [
      ['preset = "openai"', /^units has no price for input, output; write units = /],
      ['preset = "none"', /^base is missing/],
    ] as const) {
      const text = withMeter(meter)
      const [fault] = read(text).faults
      expect(fault?.message).toMatch(message)
      expect(text.split('\n')[(fault?.line ?? 0) - 1]).toBe('[merchants.routes.meter]')
    }
  })

  test('error: all faults of a meter are named at once', () => {
    const text = withMeter(
      'preset = "openai"\nbase = 1\nmissing = 2\nunits = 3\nlimits = { a = 4 }',
    )
    expect(read(text).faults.length).toBeGreaterThanOrEqual(4)
  })

  test('error: a meter is refused for a route with GET only, and for one that the program serves itself', () => {
    const text = withMeter(`preset = "openai"\n${units}`)
    const get = text.replace('methods = ["POST"]\n', 'methods = ["GET", "POST"]\n')
    expect(read(get).faults.map(({ message }) => message)).toEqual([
      'preset "openai" reads bodies: methods must be POST, PUT or PATCH',
    ])
    const builtin = text
      .replace('upstream = "https://two.example.com"', 'builtin = "catjoke"')
      .replace(
        'path = "/c"\nprice = "1"',
        'path = "/joke"\nprice = "1"\nmeter = { preset = "none", base = "1" }',
      )
    expect(read(builtin).faults.map(({ message }) => message)).toEqual([
      'a builtin merchant has fixed prices: remove the meter',
    ])
  })
})

describe('what is read', () => {
  test('the example of the documentation is read', () => {
    const page = readFileSync(join(import.meta.dir, '../../docs/pricing.md'), 'utf8')
    const [, block = ''] = /```toml\n([\s\S]*?)```/.exec(page) ?? []
    const meter = meterOf(block.slice(block.indexOf('preset =')))
    expect(meter).toMatchObject({ preset: 'openai', baseAtomic: 500n, missing: 'max' })
    expect(Object.keys(meter.models).length).toBeGreaterThan(0)
  })

  test('a model keeps the prices that it does not name, and the per of the units', () => {
    const meter = meterOf(`preset = "openai"
units = [{ name = "input", price = "1", per = 1000 }, { name = "output", price = "2" }]
models = { a = { input = "3", reasoning = "4" } }`)
    expect(meter.models.a).toEqual({
      input: { priceScaled: 3_000_000_000_000n, per: 1000 },
      output: { priceScaled: 2_000_000_000_000n, per: 1_000_000 },
      reasoning: { priceScaled: 4_000_000_000_000n, per: 1_000_000 },
    })
  })
})

describe('the header that names a charge', () => {
  test('error: a route cannot list the header that names a charge', () => {
    for (const name of ['Settlement-Overrides', 'settlement-overrides']) {
      const text = withMeter('preset = "header"').replace(
        'path = "/c"',
        `path = "/c"\npass_headers = ["${name}"]`,
      )
      expect(read(text).faults.map(({ message }) => message)).toEqual([
        expect.stringContaining('is never forwarded'),
      ])
    }
  })

  test('error: the header that names a charge does not reach a buyer, even where a route lists it', () => {
    const upstream = new Headers({ 'settlement-overrides': '{"amount":"5"}', 'x-a': '1' })
    const crossed = toBuyer(upstream, { passHeaders: ['settlement-overrides', 'x-a'] })
    expect([crossed.get('settlement-overrides'), crossed.get('x-a')]).toEqual([null, '1'])
  })
})
