// `bun run pictures` takes the pictures of docs/pages.md.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { account } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402 } from '../../src/demo/buyers'
import { startBrowser } from './browser'
import { installWallet } from './wallet'
import { testWorld } from './world'

const directory = join(import.meta.dir, '../../docs/images')
/** Most bytes of a picture: a clone fetches all of them. */
const maxBytes = 120_000

type Picture = {
  name: string
  path: string
  /** In CSS pixels. */
  size: readonly [width: number, height: number]
  scheme?: 'dark'
  /** What is done before the picture. */
  prepare?: (page: Page) => Promise<unknown>
}

const wide = [1280, 640] as const
const phone = [390, 844] as const
const forecast = '/m/weather/forecast?latitude=52.52&longitude=13.41&current=temperature_2m'
const merchant = '/merchants/weather?route=/forecast'

const pictures: readonly Picture[] = [
  { name: 'catalogue', path: '/', size: wide },
  { name: 'merchant', path: merchant, size: wide },
  { name: 'paid', path: forecast, size: wide, prepare: pay },
  { name: 'stocks', path: '/stocks', size: wide, prepare: seePrices },
  { name: 'admin', path: '/admin', size: wide, prepare: signIn },
  { name: 'admin-merchants', path: '/admin/merchants', size: wide, prepare: visit },
  { name: 'admin-funnel', path: '/admin/funnel?by=client', size: wide },
  { name: 'admin-sales', path: '/admin/sales?by=route', size: wide },
  { name: 'admin-payments-phone', path: '/admin/payments', size: phone, scheme: 'dark' },
  { name: 'catalogue-phone', path: '/', size: phone, scheme: 'dark' },
  { name: 'merchant-phone', path: merchant, size: phone, scheme: 'dark' },
]

async function pay(page: Page): Promise<void> {
  await page.getByRole('button', { name: 'Pay with Demo Wallet' }).click()
  await page.getByText('Paid and delivered.').waitFor()
}

function seePrices(page: Page): Promise<unknown> {
  return page.locator('[data-symbol=NVDA] .badge').waitFor()
}

/** Purchases and visits of several kinds of clients. */
async function visit(page: Page): Promise<void> {
  const url = world.url + forecast
  const network = 'eip155:8453'
  for (let index = 2; index < 8; index++) {
    const method = 'eip3009'
    await buyWithX402(world, url, account(2 + (index % 3)), { network, method })
  }
  await buyWithMppx(world, `${world.url}/m/wiki/summary/Ada_Lovelace`, account(2), { network })
  const agents = ['Mozilla/5.0 Firefox/140.0', 'GPTBot/1.2', 'curl/8.14.1', 'python-httpx/0.28.1']
  for (const [index, agent] of agents.entries())
    for (let times = index; times < 6; times++)
      await fetch(url, { headers: { 'user-agent': agent } })
  await fetch(url, { headers: { 'user-agent': 'python-httpx/0.28.1', 'payment-signature': 'no' } })
  await page.reload()
}

async function signIn(page: Page): Promise<void> {
  await page.getByLabel('Token').fill(world.adminToken)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
}

const logo =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="15" fill="#0b6060"/>' +
  '<path d="M9 22V10l14 12V10" fill="none" stroke="#fff" stroke-width="3"/></svg>'
const temporary = mkdtempSync(join(tmpdir(), 'turnpike-pictures-'))
const logoFile = join(temporary, 'logo.svg')
const brand = `title = "Northwind Data"
lead = "Live data for agents: weather, markets and filings, from half a cent."
logo = "${logoFile}"`

mkdirSync(directory, { recursive: true })
writeFileSync(logoFile, logo)
const [world, browser] = await Promise.all([
  testWorld({
    exchange: true,
    baseUrl: 'https://api.northwind.example',
    edit: (text) => text.replace('title = "Turnpike"', brand),
  }),
  startBrowser(),
])
try {
  const page = await (await browser.newContext()).newPage()
  await installWallet(page, Object.values(world.chains), account(1).local())
  for (const { name, path, size, scheme, prepare } of pictures) {
    const [width, height] = size
    await page.setViewportSize({ width, height })
    await page.emulateMedia({ colorScheme: scheme ?? 'light' })
    await page.goto(world.url + path)
    await prepare?.(page)
    const bytes = await page.screenshot({ path: join(directory, `${name}.png`) })
    if (bytes.length > maxBytes) throw new Error(`${name}.png has ${bytes.length} bytes`)
  }
} finally {
  await browser.close()
  await world.stop()
  rmSync(temporary, { recursive: true })
}
