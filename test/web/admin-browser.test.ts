import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Browser, Page } from 'playwright-core'
import { webhookTest } from '../../db/WebhookEvent'
import type { Config } from '../../src/config/Config'
import type { Details } from '../../src/settlement/state/availability'
import { findAsset } from '../../src/web/assets'
import { adminPages, describeAsset, insertPayment, token } from '../harness/admin'
import {
  chromiumPath,
  colourRules,
  complaintsOf,
  startBrowser,
  violationsOf,
} from '../harness/browser'
import { configOf, small } from '../harness/config'
import { merchant } from '../harness/merchants'
import { countsOf } from '../harness/requests'

const isMissing = chromiumPath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the browser tests need Chromium (apt-get install chromium)\n')

const relayer = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
const network = {
  network: 'eip155:8453',
  ready: false,
  relayer,
  reason: `relayer ${relayer} holds 0 wei, too little for gas`,
  clockAheadMs: { min: 0, max: 0 },
  relayers: [
    {
      ...{ relayer, ready: false, inFlight: 0, balanceWei: 0n, fundWei: 2n * 10n ** 16n },
      reason: `relayer ${relayer} holds 0 wei, too little for gas`,
    },
  ],
  cost: { gas: 100_000n, priceWei: 1_000_000_000n },
  hosts: ['rpc.example.com'],
  block: 1_234_567n,
  blockAgeMs: 2_000,
  baseFeeWei: 1_000_000_000n,
  tipWei: 1_000_000n,
  newHeads: true,
  waiting: 0,
  gas: [{ product: 'gateway', spentWei: 9n * 10n ** 15n, budgetWei: 10n ** 16n }],
} as unknown as Details

const endpoint = {
  id: '0123456789abcdef',
  url: new URL('https://hooks.example.com/s3cret'),
  events: ['payment.confirmed', 'order.*'],
  secret: new Uint8Array(24),
} as unknown as Config['webhooks'][number]

let browser: Browser
let page: Page
let server: Bun.Server<undefined>
let url = ''
let paymentId = ''
const complaints: string[] = []

beforeAll(async () => {
  if (isMissing) return
  const config = {
    ...configOf(small),
    merchants: [merchant('one'), merchant('two')],
    webhooks: [endpoint],
  }
  const [one, two] = config.merchants
  const app = adminPages({
    config,
    baseUrl: 'http://localhost',
    sources: {
      networks: () => [network],
      merchants: () =>
        [one, two].flatMap((each) =>
          each
            ? [
                {
                  merchant: each,
                  health: 'available',
                  times: { medianMs: 120, p95Ms: 480, answers: 20 },
                },
              ]
            : [],
        ),
      openCircuits: () => ['https://up.example.com'],
      heldOrders: async () => [],
    },
  })
  app.state.address = '127.0.0.1'
  await describeAsset(app.ledger, app.state.now)
  for (let day = 0; day < 30; day++)
    for (let index = 0; index <= (day * 7) % 5; index++)
      insertPayment(app.db, {
        at: app.state.now - day * 86_400_000 - index * 1_000,
        merchant: 'one',
      })
  const { webhooks, sales } = app.ledger
  const origin = endpoint.url.origin
  webhooks.subscribe({ endpoints: [{ endpoint: endpoint.id, origin, types: [] }], gasPerDay: [] })
  await webhooks.add(webhookTest(endpoint.id, app.state.now))
  await sales.addRequests(Date.parse('2026-11-20'), countsOf(40, 12, 3), 0)
  paymentId = insertPayment(app.db, { at: app.state.now, isDelivered: false }).id
  server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    fetch: async (request) => findAsset(config.service, request) ?? (await app.fetch(request)),
  })
  url = `http://127.0.0.1:${server.port}`
  browser = await startBrowser()
  const context = await browser.newContext({ javaScriptEnabled: false })
  page = await context.newPage()
  complaintsOf(page, (text) => complaints.push(text))
})
afterAll(async () => {
  if (isMissing) return
  await browser.close()
  await server.stop(true)
})

/** A page that may run the scripts of a test, with the session of the other one. */
async function scripted<T>(see: (page: Page) => Promise<T>): Promise<T> {
  const context = await browser.newContext({ bypassCSP: true })
  try {
    await context.addCookies(await page.context().cookies())
    return await see(await context.newPage())
  } finally {
    await context.close()
  }
}

/**
 * Opens a path in the window that is already open, which keeps axe: to load and compile it takes
 * longer than to run it. The pages have no scripts that would see the difference.
 */
async function replace(own: Page, path: string): Promise<void> {
  const answer = await own.request.get(url + path)
  expect([path, answer.status()]).toEqual([path, 200])
  const text = await answer.text()
  await own.evaluate(replaceDocument, { path, text })
  expect(text).toContain(`<title>${await own.title()}</title>`)
}

/** Runs in the page. */
function replaceDocument({ path, text }: { path: string; text: string }): Promise<void> {
  const { document, history, addEventListener } = globalThis as unknown as {
    document: { open(): void; write(text: string): void; close(): void }
    history: { replaceState(state: null, title: string, path: string): void }
    addEventListener(type: 'load', listener: () => void): void
  }
  return new Promise((resolve) => {
    history.replaceState(null, '', path)
    document.open()
    addEventListener('load', () => resolve())
    document.write(text)
    document.close()
  })
}

async function signIn(): Promise<void> {
  await page.context().clearCookies()
  await page.goto(`${url}/admin`)
  await page.getByLabel('Token').fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
}

const paths = () => [
  '/admin',
  '/admin/sales?by=day',
  '/admin/funnel?by=client',
  '/admin/webhooks',
  '/admin/payments',
  `/admin/payments/${paymentId}`,
  '/admin/orders',
  '/admin/merchants',
  '/admin/networks',
  '/admin/channels',
  '/admin/grants',
  '/admin/facilitator',
  '/admin/configuration',
  '/admin/actions/pause?subject=merchant:one',
]

describe.skipIf(isMissing)('without JavaScript', () => {
  test('the operator signs in, finds a payment, confirms an action and signs out', async () => {
    await signIn()
    const [cookie] = await page.context().cookies()
    expect(cookie).toMatchObject({ httpOnly: true, sameSite: 'Strict', path: '/admin' })
    await page.getByRole('link', { name: 'Payments' }).click()
    await page.getByLabel('State').selectOption('undelivered')
    await page.getByRole('button', { name: 'Search' }).click()
    expect(await page.locator('tbody tr').count()).toBe(1)
    await page.locator('tbody th a').click()
    await page.getByText('The buyer can still fetch it.').waitFor()
    await page.getByRole('link', { name: 'Merchants' }).click()
    await page.getByRole('link', { name: 'Pause' }).first().click()
    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('status').getByText('paused').waitFor()
    await page.getByRole('button', { name: 'Sign out', exact: true }).click()
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
    expect(await page.context().cookies()).toEqual([])
    await page.goto(`${url}/admin/payments`)
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
    expect(complaints).toEqual([])
  })

  test('error: the page reports a wrong token', async () => {
    await page.context().clearCookies()
    await page.goto(`${url}/admin`)
    await page.getByLabel('Token').fill('wrong')
    await page.getByRole('button', { name: 'Sign in' }).click()
    expect(await page.getByRole('alert').textContent()).toBe('This token is wrong.')
  })
})

const coloured = [
  '/admin',
  '/admin/sales?by=day',
  '/admin/webhooks',
  '/admin/payments',
  '/admin/networks',
  '/admin/channels',
  '/admin/orders',
]

describe.skipIf(isMissing)('every page', () => {
  test('no page has a fault in light or in dark, or is wider than a phone', async () => {
    await signIn()
    await scripted(async (own) => {
      await own.goto(`${url}/admin`)
      for (const path of paths()) {
        await own.emulateMedia({ colorScheme: 'light' })
        await own.setViewportSize({ width: 1280, height: 900 })
        await replace(own, path)
        expect([path, await violationsOf(own)]).toEqual([path, []])
        await own.emulateMedia({ colorScheme: 'dark' })
        // Each colour of the style is on one of these.
        if (coloured.includes(path))
          expect([path, await violationsOf(own, { rules: colourRules })]).toEqual([path, []])
        for (const width of [1600, 390, 360]) {
          await own.setViewportSize({ width, height: 740 })
          await own.evaluate(
            'for (const each of document.querySelectorAll("details")) each.open = true',
          )
          const wide = await own.evaluate('document.documentElement.scrollWidth')
          expect([path, wide]).toEqual([path, width])
        }
        // A phone shows each value of a row, with the title of its column.
        expect([path, await own.evaluate(hidden)]).toEqual([path, []])
      }
    })
  })

  test('every control of the overview is reached by Tab and shows its focus', async () => {
    await signIn()
    await scripted(async (own) => {
      await own.goto(`${url}/admin`)
      const seen: string[] = []
      // After the last one the focus leaves the document.
      for (;;) {
        await own.keyboard.press('Tab')
        const [name, hasOutline] = (await own.evaluate(focused)) as [string, boolean]
        if (name === 'BODY') break
        expect([name, hasOutline]).toEqual([name, true])
        seen.push(name)
      }
      expect(seen.length).toBeGreaterThan(12)
      expect(seen).toContain('Configuration')
      expect(seen).toContain('Sign out everywhere')
    })
  })
})

const focused = `(() => {
  const { innerText, tagName } = document.activeElement
  const style = getComputedStyle(document.activeElement)
  return [tagName === 'BODY' ? tagName : innerText || tagName, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]
})()`

/** Values of tables outside of the window, and those without a title. */
const hidden = `[...document.querySelectorAll('.cards td')].filter((cell) => {
  const { left, right } = cell.getBoundingClientRect()
  const title = getComputedStyle(cell, '::before').content
  return left < 0 || right > innerWidth || cell.scrollWidth > cell.clientWidth || title.length < 3
}).map((cell) => cell.outerHTML)`
