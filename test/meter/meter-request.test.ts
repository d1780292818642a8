import { describe, expect, test } from 'bun:test'
import * as Quote from '../../src/meter/Quote'
import { bytes, meterOf, paths, quote, text, units } from '../harness/meter'

/** What a request costs at most, what of it is refused, and what of it the upstream gets. */

const limited = `preset = "openai"\nbase = "0.0005"\n${units}
[merchants.routes.meter.models."cheap"]
input = "0.1"
output = "1"
[merchants.routes.meter.models."dear"]
input = "100"
output = "1000"
[merchants.routes.meter.limits]
models_only = true
max_output = 100
max_choices = 2`
const openai = meterOf(limited, '1000')
const free = meterOf(`preset = "openai"\n${units}`, '1000')

const faultsOf = (body: string, path?: string) => quote(openai, body, path).faults
const forwarded = (body: string, path?: string) => text(quote(openai, body, path).body)

test('attack: a name that the table lacks has the ceiling of the dearest model', () => {
  const open = meterOf(limited.replace('models_only = true', ''), '1000')
  const ceiling = (name: string) =>
    quote(open, `{"model":"${name}","max_tokens":100,"messages":[]}`).ceilingAtomic
  for (const name of ['Dear', 'Cheap', 'other'])
    expect([name, ceiling(name) >= ceiling('dear')]).toEqual([name, true])
  expect(ceiling('cheap')).toBeLessThan(ceiling('dear') / 10n)
})

describe('limits', () => {
  const faults: readonly (readonly [body: string, name: string, reason: RegExp])[] = [
    ['{}', 'model', /must be a model that is sold here: cheap, dear/],
    ['{"model":"other"}', 'model', /must be a model that is sold here/],
    ['{"model":"__proto__"}', 'model', /must be a model that is sold here/],
    ['{"model":"constructor"}', 'model', /must be a model that is sold here/],
    ['{"model":5}', 'model', /must be a string/],
    ['{"model":null}', 'model', /must be a model that is sold here/],
    ['{"model":"cheap","models":["cheap","other"]}', 'model', /must be a model that is sold here/],
    ['{"model":"cheap","models":"dear"}', 'models', /must be an array/],
    ['{"model":"cheap","models":[1]}', 'models', /must be a string/],
    [`{"models":[${'"cheap",'.repeat(100)}"cheap"]}`, 'models', /must have at most 100 entries/],
    ['{"model":"cheap","model":"dear"}', 'model', /is there twice/],
    [String.raw`{"model":"cheap","mod\u0065l":"dear"}`, 'model', /is there twice/],
    [
      '{"model":"cheap","messages":[{"content":[{"type":"file","type":"text"}]}]}',
      'messages/0/content/0/type',
      /is there twice/,
    ],
    ['{"model":"cheap","Model":"dear"}', 'Model', /must be written model/],
    ['{"model":"cheap","max_to\u212aens":1}', 'max_to\u212aens', /must be written max_tokens/],
    ['{"model":"cheap","\u017ftream":true}', '\u017ftream', /must be written stream/],
    ['{"model":"cheap","stream":1}', 'stream', /must be true, false or null/],
    ['{"model":"cheap","stream":"true"}', 'stream', /must be true, false or null/],
    ['{"model":"cheap","stream":[true]}', 'stream', /must be true, false or null/],
    ['{"model":"cheap","stream_options":1}', 'stream_options', /must be an object or null/],
    ['{"model":"cheap","stream_options":[]}', 'stream_options', /must be an object or null/],
    ['{"model":"cheap","max_tokens":101}', 'max_tokens', /must be at most 100/],
    ['{"model":"cheap","max_completion_tokens":101}', 'max_completion_tokens', /at most 100/],
    ['{"model":"cheap","max_output_tokens":101}', 'max_output_tokens', /at most 100/],
    ['{"model":"cheap","max_tokens":0}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":-1}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":1.5}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":1e400}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":1e30}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":"50"}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":true}', 'max_tokens', /integer from 1/],
    ['{"model":"cheap","max_tokens":[50]}', 'max_tokens', /integer from 1/],
    [
      '{"model":"cheap","max_tokens":5,"max_completion_tokens":6}',
      'max_completion_tokens',
      /and max_tokens exclude each other/,
    ],
    ['{"model":"cheap","n":3}', 'n', /must be at most 2/],
    ['{"model":"cheap","best_of":3}', 'best_of', /must be at most 2/],
    ['{"model":"cheap","n":0}', 'n', /integer from 1/],
    ['{"model":"cheap","n":"1"}', 'n', /integer from 1/],
    ['', 'body', /is required/],
    ['[]', 'body', /must be a JSON object/],
    ['"model"', 'body', /must be a JSON object/],
    ['{"model":"cheap"} x', 'body', /must be a JSON object/],
    ['{"model":"cheap",}', 'body', /must be a JSON object/],
    [`{"model":"cheap","x":[${'[],'.repeat(70_000)}0]}`, 'body', /has too many parts/],
  ]
  for (const [body, name, reason] of faults)
    test(`error: ${body.slice(0, 70)} is refused, naming ${name}`, () => {
      expect(faultsOf(body)).toEqual([{ name, reason: expect.stringMatching(reason) }])
      expect(quote(openai, body).ceilingAtomic).toBe(openai.priceAtomic)
    })

  test('error: a body that is not UTF-8 is refused', () => {
    const body = new Uint8Array([...bytes('{"model":"cheap","x":"'), 0xff, ...bytes('"}')])
    const [fault] = Quote.of(openai, { path: paths.openai, body }).faults
    expect(fault?.reason).toBe('must be a JSON object')
  })

  test('error: several faults are named at once', () => {
    const names = faultsOf('{"model":"x","max_tokens":0,"n":9}').map(({ name }) => name)
    expect(names).toEqual(['model', 'max_tokens', 'n'])
  })

  test('a request within the limits is not refused', () => {
    for (const body of [
      '{"model":"cheap"}',
      '{"model":"dear","max_tokens":100,"n":2}',
      '{"model":"cheap","models":["dear"],"max_tokens":1e2,"n":null}',
      ' \n{"model" : "cheap" , "max_tokens" : 100.0 }\n',
    ])
      expect([body, faultsOf(body)]).toEqual([body, []])
  })

  test('error: Gemini: the limits are kept in both spellings, and the model of the path', () => {
    const gemini = meterOf(
      limited.replace('"openai"', '"gemini"').replace('"cheap"', '"gemini-flash"'),
    )
    const faults = (body: string, path = paths.gemini) => quote(gemini, body, path).faults
    expect(faults('{}')).toEqual([])
    expect(faults('{}', '/v1beta/models/gemini%2Dflash:generateContent')).toEqual([])
    expect(faults('{}', '/v1beta/models/gemini-pro:generateContent')[0]).toMatchObject({
      name: 'path',
      reason: expect.stringContaining('gemini-flash'),
    })
    for (const path of [
      '/v1beta/models/gemini-flash:countTokens',
      '/v1beta/models/gemini-flash',
      '/v1beta/models/gemini-flash:generateContent/x',
    ])
      expect([path, faults('{}', path)[0]?.name]).toEqual([path, 'path'])
    for (const [body, name] of [
      ['{"generationConfig":{"maxOutputTokens":101}}', 'generationConfig/maxOutputTokens'],
      ['{"generation_config":{"max_output_tokens":101}}', 'generation_config/max_output_tokens'],
      ['{"generationConfig":{"candidateCount":3}}', 'generationConfig/candidateCount'],
      ['{"generationConfig":{},"generation_config":{}}', 'generation_config'],
      ['{"generationConfig":{},"GenerationConfig":{}}', 'GenerationConfig'],
      ['{"generationConfig":{"a":1,"maxOutputTokens":5,"maxOutputTokens":6}}', ''],
    ] as const)
      expect([body, faults(body).some((fault) => fault.name.startsWith(name))]).toEqual([
        body,
        true,
      ])
  })
})

describe('the body that is forwarded', () => {
  const bodies: readonly (readonly [body: string, forwarded: string, path?: string])[] = [
    ['{"model":"cheap"}', '{"max_completion_tokens":100,"model":"cheap"}'],
    ['{"model":"cheap"}', '{"max_output_tokens":100,"model":"cheap"}', paths.responses],
    [
      '{"model":"cheap","seed":12345678901234567890,"x":1e400,"max_tokens":7}',
      '{"model":"cheap","seed":12345678901234567890,"x":1e400,"max_completion_tokens":7}',
    ],
    [
      '{"model":"cheap","max_tokens":null}',
      '{"max_completion_tokens":100,"model":"cheap","max_tokens":null}',
    ],
    [
      '{"model":"cheap","max_completion_tokens" : null }',
      '{"model":"cheap","max_completion_tokens" : 100 }',
    ],
    [
      '{"model":"cheap","max_completion_tokens":null,"max_tokens":7}',
      '{"model":"cheap","max_completion_tokens":7,"max_tokens":null}',
    ],
    [
      '{"model":"cheap","max_completion_tokens":5,"stream":true}',
      '{"stream_options":{"include_usage":true},"model":"cheap","max_completion_tokens":5,"stream":true}',
    ],
    [
      '{"model":"cheap","stream":true,"stream_options":{"include_usage":false,"x":1}}',
      '{"max_completion_tokens":100,"model":"cheap","stream":true,"stream_options":{"include_usage":true,"x":1}}',
    ],
    [
      '{"model":"cheap","stream":true,"stream_options":{ },"max_completion_tokens":5}',
      '{"model":"cheap","stream":true,"stream_options":{"include_usage":true },"max_completion_tokens":5}',
    ],
    [
      '{"model":"cheap","stream":true,"stream_options":null,"max_completion_tokens":5}',
      '{"model":"cheap","stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":5}',
    ],
    // Only what is asked for at the top counts.
    [
      '{"model":"cheap","max_completion_tokens":5,"x":{"stream":true,"max_tokens":9,"model":"z"}}',
      '{"model":"cheap","max_completion_tokens":5,"x":{"stream":true,"max_tokens":9,"model":"z"}}',
    ],
  ]
  for (const [body, expected, path] of bodies)
    test(`${body} is forwarded with its limits${path ? ` to ${path}` : ''}`, () => {
      expect(faultsOf(body, path)).toEqual([])
      expect(forwarded(body, path)).toBe(expected)
      JSON.parse(forwarded(body, path))
    })

  test('Gemini: the limit goes into the object that is there', () => {
    const gemini = meterOf(`preset = "gemini"\n${units}
[merchants.routes.meter.limits]
max_output = 100`)
    for (const [body, expected] of [
      ['{"contents":[]}', '{"generationConfig":{"maxOutputTokens":100},"contents":[]}'],
      ['{"generationConfig":{"a":1}}', '{"generationConfig":{"maxOutputTokens":100,"a":1}}'],
      ['{"generation_config":{}}', '{"generation_config":{"maxOutputTokens":100}}'],
      ['{"generationConfig":null}', '{"generationConfig":{"maxOutputTokens":100}}'],
      [
        '{"generation_config":{"max_output_tokens":5}}',
        '{"generation_config":{"maxOutputTokens":5}}',
      ],
    ] as const)
      expect(text(quote(gemini, body, paths.gemini).body)).toBe(expected)
  })

  test('without limits nothing is changed', () => {
    const body = bytes('{"model":"x","messages":[], "max_completion_tokens":5}')
    expect(Quote.of(free, { path: paths.openai, body }).body).toBe(body)
  })
})

describe('the ceiling', () => {
  const overhead = 1024
  /** Within the step by which it is rounded up. */
  const expectCeiling = (body: string, input: number, output: number, meter = free) => {
    const exact = (input + overhead) * 1 + output * 10
    const { ceilingAtomic, faults } = quote(meter, body)
    expect(faults).toEqual([])
    expect(Number(ceilingAtomic)).toBeGreaterThanOrEqual(exact)
    expect(Number(ceilingAtomic)).toBeLessThanOrEqual(exact * (1 + 1 / 32))
  }

  test('a ceiling is input by bytes plus the output limit times the choices', () => {
    for (const [body, output] of [
      ['{"model":"x","max_tokens":500}', 500],
      ['{"model":"x","max_tokens":500,"n":3}', 1500],
      [`{"max_tokens":7,"messages":[{"role":"user","content":"${'x'.repeat(5000)}"}]}`, 7],
      // Three bytes each.
      [`{"max_tokens":7,"messages":"${'\u65e5'.repeat(500)}"}`, 7],
    ] as const)
      expectCeiling(body, bytes(body).byteLength, output)
  })

  test('a ceiling is the price of the route without an output limit, and never above that price', () => {
    expect(quote(free, '{"model":"x"}').ceilingAtomic).toBe(1_000_000_000n)
    const cheap = meterOf(`preset = "openai"\n${units}`, '0.001')
    expect(quote(cheap, '{"max_tokens":500}').ceilingAtomic).toBe(1000n)
    expect(quote(free, `{"max_tokens":${Number.MAX_SAFE_INTEGER},"n":9}`).ceilingAtomic).toBe(
      1_000_000_000n,
    )
  })

  test('a ceiling counts the dearest model that may answer', () => {
    const [cheap, dear, both] = [
      '{"model":"cheap","max_tokens":50}',
      '{"model":"dear","max_tokens":50}',
      '{"model":"cheap","models":["dear"],"max_tokens":50}',
    ].map((body) => Number(quote(openai, body).ceilingAtomic))
    expect(cheap).toBeLessThan(1000)
    expect(dear).toBeGreaterThan(100_000)
    expect(both).toBeGreaterThanOrEqual(dear ?? Number.NaN)
  })

  const unbound: readonly string[] = [
    '{"max_tokens":5,"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}',
    '{"max_tokens":5,"messages":[{"content":[{"type":"input_audio"}]}]}',
    String.raw`{"max_tokens":5,"messages":[{"content":[{"type":"im\u0061ge_url"}]}]}`,
    String.raw`{"max_tokens":5,"messages":[{"content":[{"im\u0061ge_url":"x"}]}]}`,
    '{"max_tokens":5,"tools":[{"type":"web_search"}]}',
    '{"max_tokens":5,"tools":[{"type" : "web_search_20250305"}]}',
    '{"max_tokens":5,"previous_response_id":"r"}',
    '{"max_tokens":5,"contents":[{"parts":[{"inlineData":{"data":"x"}}]}]}',
    '{"max_tokens":5,"contents":[{"parts":[{"file_data":{}}]}]}',
    '{"max_tokens":5,"tools":[{"googleSearch":{}}]}',
    '{"max_tokens":5,"cachedContent":"c"}',
    // References to stored items: their type may be left out.
    '{"max_tokens":5,"input":[{"id":"rs_1"},{"role":"user","content":"x"}]}',
    '{"max_tokens":5,"input":[{"id":"rs_1","type":null}]}',
    '{"max_tokens":5,"input":[{"id":"rs_1","x":{"type":"text"}}]}',
    '{"max_tokens":5,"input":[{"ID":"rs_1"}]}',
  ]
  for (const body of unbound)
    test(`a ceiling is the price of the route for ${body.slice(15)}, whose length does not bound its input`, () => {
      expect(quote(free, body)).toMatchObject({ ceilingAtomic: 1_000_000_000n, faults: [] })
    })

  test('text about images and schemas of tools are text', () => {
    for (const body of [
      '{"max_tokens":5,"messages":[{"role":"user","content":"an \\"image_url\\": \\"type\\":\\"x\\""}]}',
      '{"max_tokens":5,"messages":[{"content":[{"type":"text","text":"image_url"}]}]}',
      '{"max_tokens":5,"tools":[{"type":"function","function":{"parameters":{"type":"object","properties":{"a":{"type":["string","null"]}}}}}]}',
      '{"max_tokens":5,"input":[{"id":"fc_1","x":{},"type":"function_call","call_id":"c","arguments":"{}"}]}',
      '{"max_tokens":5,"tools":[{"type":"function","function":{"parameters":{"type":"object","properties":{"id":{"type":"string"}}}}}]}',
    ])
      expect(quote(free, body).ceilingAtomic).toBeLessThan(1500n)
  })

  test('a ceiling is the price of the route where a unit has no limit in requests', () => {
    const searching = meterOf(
      `preset = "anthropic"\nunits = [{ name = "input", price = "1" }, { name = "output", price = "1" }, { name = "web_search", price = "10", per = 1000 }]`,
    )
    expect(quote(searching, '{"max_tokens":5}').ceilingAtomic).toBe(50_000n)
  })

  test('a ceiling is base for a meter without units, and the price of the route for one of a header', () => {
    expect(quote(meterOf('preset = "none"\nbase = "0.002"'), 'anything')).toMatchObject({
      ceilingAtomic: 2000n,
      faults: [],
    })
    expect(quote(meterOf('preset = "header"'), 'anything').ceilingAtomic).toBe(50_000n)
  })
})
