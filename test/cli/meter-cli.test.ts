import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { meterAnswer } from '../../src/cli/sell/meter'
import { exitCode } from '../harness/command'
import { env } from '../harness/config'
import { executable } from '../harness/executable'
import { fixtures, units, withMeter } from '../harness/meter'

/** `turnpike meter`. */

const directory = mkdtempSync(join(tmpdir(), 'turnpike-meter-'))
const file = join(directory, 'merchants.toml')
const request = join(directory, 'request.json')
const gemini = `
[[merchants]]
slug = "gemini"
upstream = "https://gemini.example.com"
[[merchants.routes]]
path = "/v1beta/models"
methods = ["POST"]
price = "0.05"
tail = "required"
[merchants.routes.meter]
preset = "gemini"
${units}
`
beforeAll(async () => {
  const meter = `preset = "openai"\nbase = "0.0005"\n${units}
[merchants.routes.meter.models."gpt"]
input = "2"
[merchants.routes.meter.limits]
models_only = true
max_output = 500`
  await Bun.write(file, withMeter(meter).replace('[stock]', `${gemini}\n[stock]`))
  await Bun.write(request, '{"model":"gpt","max_tokens":100}')
})
afterAll(() => rmSync(directory, { recursive: true }))

async function run(route: string | undefined, answer: string, body?: string) {
  const lines: string[] = []
  const options = { file, env, operand: join(fixtures, answer), out: lines.push.bind(lines) }
  const code = await exitCode(meterAnswer, {
    ...options,
    ...(route !== undefined && { route }),
    ...(body !== undefined && { request: body }),
  })
  return [code, ...lines.flatMap((line) => line.split('\n'))]
}

describe('the charge of a stored answer', () => {
  test('the charge of a stored answer is computed with its request', async () => {
    const ceiling = 'ceiling  0.003648 USD (3648 atomic)'
    for (const [answer, input, output, reasoning] of [
      ['openai-chat.json', 19, 10, 0],
      ['openai-chat-stream.sse', 31, 14, 8],
    ] as const) {
      const atomic = 500 + 2 * input + 10 * output
      expect(await run('one/chat', answer, request)).toEqual([
        0,
        'route    one/chat, preset openai',
        'models   gpt',
        ceiling,
        `usage    input ${input}, audio_input 0, cached_input 0, output ${output}, audio_output 0, reasoning ${reasoning}`,
        `charged  input ${input}, output ${output}`,
        `charge   0.000${atomic} USD (${atomic} atomic) by usage`,
      ])
    }
  })

  test('without a request the dearest model counts, up to the price', async () => {
    expect(await run('one/chat', 'openai-chat.json')).toContain(
      'charge   0.000638 USD (638 atomic) by usage',
    )
    expect(await run('one/chat', 'openai-chat-stream-cut.sse')).toContain(
      'charge   0.050000 USD (50000 atomic) by missing: the answer has no usage',
    )
  })

  test('the charge of a stored answer is computed for a route with a tail', async () => {
    const lines = await run('gemini/v1beta/models/x:streamGenerateContent', 'gemini-stream.json')
    expect(lines).toContain('charge   0.000368 USD (368 atomic) by usage')
  })

  test('error: a faulty file, route or request is named', async () => {
    const bad = join(directory, 'bad.json')
    await Bun.write(bad, '{"model":"other","max_tokens":501}')
    expect(await run('one/chat', 'openai-chat.json', bad)).toEqual([
      1,
      'turnpike: model must be a model that is sold here: gpt',
      'turnpike: max_tokens must be at most 500',
    ])
    expect(await run('one/other', 'openai-chat.json')).toEqual([
      1,
      `turnpike: ${file} sells no route "one/other"`,
    ])
    expect(await run(undefined, 'openai-chat.json')).toEqual([
      1,
      `turnpike: ${file} sells no route ""`,
    ])
    expect(await run('one/a', 'openai-chat.json')).toEqual([
      1,
      'turnpike: one/a has a fixed price and no meter',
    ])
    expect(await run('one/chat', 'no-such-file')).toEqual([
      1,
      expect.stringMatching(/^turnpike: .*no-such-file cannot be read$/),
    ])
  })

  test('the program takes the options', async () => {
    const args = ['meter', join(fixtures, 'openai-chat.json'), '--route', 'one/chat']
    const options = ['--config', file, '--request', request]
    const child = Bun.spawn([executable, ...args, ...options], {
      env: { ...env, PATH: process.env.PATH ?? '' },
    })
    const out = await new Response(child.stdout).text()
    expect([await child.exited, out]).toEqual([0, expect.stringContaining('638 atomic')])
  })
})
