import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Browser, Page } from 'playwright-core'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import * as JsonSchema from '../../src/schema/JsonSchema'
import {
  chromiumPath,
  colourRules,
  complaintsOf,
  startBrowser,
  violationsOf,
} from '../harness/browser'
import { installWallet } from '../harness/wallet'
import { type TestWorld, testWorld } from '../harness/world'

/** Trials, passes and answers again, as people read them, and what the operator sees of them. */

const isMissing = chromiumPath === undefined
const base = 'eip155:8453'
const club = `
[[merchants]]
slug = "club"
title = "Club"
upstream = "https://api.open-meteo.com"
networks = ["${base}"]
[[merchants.routes]]
path = "/data"
summary = "Data of the club"
upstream_path = "/v1/forecast"
price = "0.005"
again = "24h"
trial = { requests = 3, per = "wallet", total_per_day = 500 }
pass = { price = "0.05", period = "24h", requests = 2 }
`

let world: TestWorld
let browser: Browser
let page: Page
/** The service at its own URL, which a client compares with what it signs. */
let front: Bun.Server<undefined>
let url = ''
const complaints: string[] = []
const buyer = account(1)

beforeAll(async () => {
  if (isMissing) return
  let target = ''
  front = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    fetch: (request) => {
      const { pathname, search } = new URL(request.url)
      const init = { method: request.method, headers: request.headers, body: request.body }
      return fetch(target + pathname + search, { ...init, redirect: 'manual', decompress: false })
    },
  })
  url = `http://127.0.0.1:${front.port}`
  ;[world, browser] = await Promise.all([
    testWorld({ baseUrl: url, edit: (text) => text + club }),
    startBrowser(),
  ])
  target = world.url
  page = await (await browser.newContext()).newPage()
  complaintsOf(page, (text) => complaints.push(text))
  await installWallet(page, Object.values(world.chains), buyer.local())
})
afterAll(async () => {
  if (isMissing) return
  await browser.close()
  await world.stop()
  await front.stop(true)
})

async function balance(): Promise<bigint> {
  const chain = world.chains[base]
  const asset = world.config.networks.find(({ id }) => id === base)?.asset
  if (chain === undefined || asset === undefined) throw new Error(`no ${base}`)
  return balanceOf(chain, asset.address, buyer.address)
}

async function run(program: string): Promise<string> {
  const child = Bun.spawn([process.execPath, '-e', program], {
    cwd: `${import.meta.dir}/../..`,
    env: { PATH: process.env.PATH, HOME: world.dataDir, PAY_KEY: buyer.privateKey },
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems, code] = await Promise.all([
    child.stdout.text(),
    child.stderr.text(),
    child.exited,
  ])
  return code === 0 ? out : problems
}

/** The schema of an answer in the document of the merchant. */
async function schemaOf(path: string): Promise<unknown> {
  const { paths } = (await (await fetch(`${world.url}/m/club/openapi.json`)).json()) as {
    paths: Record<
      string,
      { get: { responses: { 200: { content: Record<string, { schema: unknown }> } } } }
    >
  }
  return paths[path]?.get.responses[200].content['application/json']?.schema
}

const ofOperator = async (path: string) =>
  (
    await fetch(world.url + path, { headers: { authorization: `Bearer ${world.adminToken}` } })
  ).text()

describe.skipIf(isMissing)('a route with a trial, a pass and answers again', () => {
  test('its page says what a wallet has, sells the pass in the browser, and its program then uses it', async () => {
    await page.setViewportSize({ width: 390, height: 844 })
    await page.goto(`${url}/merchants/club?route=/data`)
    expect(await page.locator('dl.given').locator('dt, dd').allTextContents()).toEqual([
      'Trial',
      '3 free requests for a wallet with 0.10 USDC, held for 50 blocks (500 a day for all wallets)',
      'Pass',
      '0.05 USDC for 2 requests in 24 hours',
      'Again',
      'the same answer for 24 hours, up to 5 times',
    ])
    expect(await violationsOf(page, { within: '.ask' })).toEqual([])
    await page.emulateMedia({ colorScheme: 'dark' })
    expect(await violationsOf(page, { within: '.ask', rules: colourRules })).toEqual([])
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(390)
    await page.getByRole('button', { name: 'Ask for the price' }).click()
    await page.getByText('Or sign in: SIGN-IN-WITH-X').waitFor()
    expect(await page.locator('.answer').textContent()).toContain(`domain127.0.0.1:${front.port}`)
    const program = (await page.locator('#code-x402fetch code').textContent()) ?? ''

    await page.getByText('0.05 USDC for 2 requests in 24 hours').click()
    await page.getByText('$0.05 for 2 requests in 24 hours, in USDC on Base.').waitFor()
    expect(await page.locator('.ask').textContent()).toContain('belongs to the wallet that pays')
    await page.getByRole('button', { name: 'Pay with Demo Wallet' }).click()
    await page.getByText('Paid and delivered.').waitFor()
    const bought = JSON.parse((await page.locator('.result pre').first().textContent()) ?? '')
    const terms = { route: '/data', url: `${url}/m/club/data`, requests: 2, period: 'PT24H' }
    expect(bought.pass).toEqual({ ...terms, until: expect.any(String) })
    const check = JsonSchema.compile(await schemaOf('/data/pass'))
    expect([check(bought, 9).length, check({ pass: {} }, 9).length]).toEqual([0, 6])

    const before = await balance()
    expect(await run(program)).toContain('latitude')
    expect(await balance()).toBe(before)
    expect(complaints.filter((text) => !text.includes('status of 402'))).toEqual([])
  })

  test('the operator sees the use in the story of the payment, in the figures and in the file', async () => {
    const [, id] =
      /\/admin\/payments\/(pay_[0-9a-f]+)/.exec(await ofOperator('/admin/payments')) ?? []
    const story = await ofOperator(`/admin/payments/${id}`)
    expect(story).toContain('<h2>Pass</h2>')
    expect(story).toContain('<dt>Used</dt><dd>1 of 2</dd>')
    expect(await ofOperator('/admin/sales')).toContain('<dt>Answers by a pass</dt>')
    expect(await ofOperator('/admin/configuration')).toContain('trial: 3 free requests')
  })

  test('the address of a pass in a browser says what it is for', async () => {
    await page.goto(`${url}/m/club/data/pass`)
    const head = await page.locator('.head').textContent()
    expect(head).toContain('Club sells this pass')
    expect(head).toContain('$0.05 for 2 requests in 24 hours, in USDC on Base.')
    await page.goto(`${url}/m/club/data?latitude=1&longitude=1`)
    expect(await page.locator('dl.given').textContent()).toContain('3 free requests')
  })
})
