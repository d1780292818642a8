import { afterAll, beforeAll, expect, test } from 'bun:test'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import * as Charge from '../../src/meter/Charge'
import * as Quote from '../../src/meter/Quote'
import { bytes, meterOf } from '../harness/meter'
import { type TestWorld, testWorld } from '../harness/world'

/** The examples of docs/pricing.md are true. */

// A program starts in a test, perhaps beside other work.
const root = join(import.meta.dir, '../..')
const page = await Bun.file(join(root, 'docs/pricing.md')).text()
const block = (language: string) =>
  new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``).exec(page)?.[1] ?? ''

let world: TestWorld
// Below the project, so that the program finds its packages.
const cache = join(root, 'node_modules', '.cache')
let directory: string
beforeAll(async () => {
  mkdirSync(cache, { recursive: true })
  directory = mkdtempSync(join(cache, 'pricing-page-'))
  world = await testWorld()
})
afterAll(async () => {
  rmSync(directory, { recursive: true, force: true })
  await world?.stop()
})

test('the worked example has the ceiling and the charge that the meter computes', () => {
  const toml = block('toml')
  const meter = meterOf(toml.slice(toml.indexOf('preset =')))
  const head = '{"model":"gpt-5-mini","max_tokens":500,"messages":[{"role":"user","content":"'
  const body = `${head}${'x'.repeat(1000 - head.length - 4)}"}]}`
  expect(body).toHaveLength(1000)
  const quote = Quote.of(meter, { path: '/v1/chat/completions', body: bytes(body) })
  expect([quote.ceilingAtomic, quote.faults]).toEqual([2016n, []])
  const counts = { input: 230, output: 180 }
  const charge = Charge.of(meter, quote, { kind: 'used', counts, model: undefined })
  expect(charge.amountAtomic).toBe(918n)
  // In cents, and what is left of the ceiling.
  for (const said of ['0.2016', '0.0918', '2,016 atomic', '918 atomic', 'other 1,098 never'])
    expect(page.replaceAll('\n', ' ')).toContain(said)
})

test('the program that registers UptoEvmScheme buys an answer by its use', async () => {
  const program = block('ts')
  expect(program).toContain('https://pay.example.com')
  const file = join(directory, 'buy.ts')
  writeFileSync(file, program.replace('https://pay.example.com', world.url))
  const buyer = account(2)
  const asset = world.config.networks.find(({ id }) => id === 'eip155:8453')?.asset.address
  const chain = world.chains['eip155:8453']
  if (!asset || !chain) throw new Error('no chain')
  const before = await balanceOf(chain, asset, buyer.address)
  const child = Bun.spawn([process.execPath, file], {
    env: { PATH: process.env.PATH ?? '', PAY_KEY: buyer.privateKey },
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  expect([code, err]).toEqual([0, ''])
  expect(out).toContain('"chat.completion"')
  const paid = before - (await balanceOf(chain, asset, buyer.address))
  expect(paid).toBeGreaterThan(500n)
  expect(out).toMatch(new RegExp(`^${paid} \\{`, 'm'))
  expect(out).toMatch(/ceiling: "\d+"/)
})
