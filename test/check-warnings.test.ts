import { afterAll, expect, test } from 'bun:test'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { check } from '../src/cli/check'
import { edited, env, lineWith, small } from './harness/config'
import { temporary } from './harness/settlement'

const directory = temporary()
afterAll(directory.remove)
const file = join(directory.path, 'check.toml')

async function run(text: string, own: Record<string, string> = {}) {
  writeFileSync(file, text)
  const lines: string[] = []
  const options = {
    file,
    env: { ...env, ...own },
    online: false,
    dataDir: directory.path,
    now: Date.now,
  }
  const code = await check({ ...options, out: (line) => void lines.push(line) })
  return { code, warnings: lines.filter((line) => line.startsWith('warning')), last: lines.at(-1) }
}

const own = 'pay_to = "own"'
/** With a real contact address. */
const reachable = (text: string) => text.replace('[service]', '[service]\ncontact = "me@pay.test"')
const facilitator = (more: string) => reachable(edited(own, `${own}\n${more}`))
const plain = reachable(small)

test('behavior: a facilitator that settles any amount for any payee causes a warning at its line', async () => {
  const said = 'min_amount is 0: anyone can spend'
  for (const [text, at] of [
    [facilitator('min_amount = "0"'), 'min_amount'],
    [plain, '[facilitator]'],
    [reachable(edited(own, `pay_to = ["${env.PAYOUT}"]`)), '[facilitator]'],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('behavior: a least amount, API keys or a budget of zero cause no warning', async () => {
  const noGas = 'gas_per_day_wei = { facilitator = "0" }'
  for (const text of [
    facilitator('min_amount = "0.001"'),
    facilitator(`api_keys = ["${'ab'.repeat(32)}"]`),
    plain.replaceAll(/^rpc_urls/gm, `${noGas}\nrpc_urls`),
  ]) {
    expect(await run(text)).toEqual({ code: 0, warnings: [], last: 'ok' })
  }
})

test('behavior: a sample contact address causes a warning at its place in the file', async () => {
  const quiet = facilitator('min_amount = "0.001"')
  const agent = 'headers = { "User-Agent" = "Shop/1.0 (ops@example.com)" }'
  for (const [text, at, said] of [
    [quiet.replace('me@pay.test', 'ops@example.com'), 'contact', 'contact ops@example.com is'],
    // The default of a file without a contact.
    [quiet.replace('contact = "me@pay.test"', ''), '[service]', 'contact ops@example.com is'],
    [quiet.replace('slug = "two"', `slug = "two"\n${agent}`), 'User-Agent', 'User-Agent is a'],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('behavior: a secret that is too short to be redacted causes a warning without its value', async () => {
  const quiet = facilitator('min_amount = "0.001"')
  const { code, warnings, last } = await run(quiet, { ONE_KEY: 'q7z' })
  expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
  const at = lineWith(quiet, '"X-Key"')
  expect(warnings[0]).toStartWith(`warning: ${file}:${at}: a value from the environment has fewer`)
  expect(warnings[0]).not.toContain('q7z')
  expect(await run(quiet, { ONE_KEY: 'q7z9' })).toEqual({ code: 0, warnings: [], last: 'ok' })
})

/** The quiet file with one more merchant, whose route has a meter. */
const metered = (price: string, more = '') =>
  facilitator('min_amount = "0.001"').replace(
    '[stock]',
    `[[merchants]]
slug = "model"
upstream = "https://model.example.com"
${more}
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "${price}"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
units = [{ name = "input", price = "1" }, { name = "output", price = "10" }]

[stock]`,
  )

test('behavior: a metered route that cannot be sold by upto causes a warning at its line', async () => {
  const slow = metered('0.05', 'timeout_ms = 255001')
  const late = 'timeout_ms of model is 255001: above 255000 its metered routes are not sold by upto'
  const dear = metered('1.000001')
  const above =
    'the price of model/chat is above unsettled_max (1.000000): a request with a ceiling'
  for (const [text, at, said] of [
    [slow, 'timeout_ms = 255001', late],
    [dear, 'price = "1.000001"', above],
  ] as const) {
    const { code, warnings, last } = await run(text)
    expect([code, warnings.length, last]).toEqual([0, 1, 'ok'])
    expect(warnings[0]).toStartWith(`warning: ${file}:${lineWith(text, at)}: ${said}`)
  }
})

test('behavior: a metered route that is sold by upto, and a slow flat one, cause no warning', async () => {
  const quiet = { code: 0, warnings: [], last: 'ok' }
  expect(await run(metered('1', 'timeout_ms = 255000'))).toEqual(quiet)
  const raised = metered('1.000001').replace('[service]', '[service]\nunsettled_max = "2"')
  expect(await run(raised)).toEqual(quiet)
  const flat = facilitator('min_amount = "0.001"').replace(
    'slug = "two"',
    'slug = "two"\ntimeout_ms = 300000',
  )
  expect(await run(flat)).toEqual(quiet)
})
