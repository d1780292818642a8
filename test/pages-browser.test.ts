import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from 'bun:test'
import type { Browser, CDPSession, Page } from 'playwright-core'
import {
  chromiumPath,
  colourRules,
  complaintsOf,
  startBrowser,
  violationsOf,
} from './harness/browser'
import { testWorld } from './harness/world'

setDefaultTimeout(60_000)

const isMissing = chromiumPath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the browser tests need Chromium (apt-get install chromium)\n')

type World = Awaited<ReturnType<typeof testWorld>>
let world: World
let browser: Browser
/** One page with and without scripts: each further one costs a second of processor time. */
let page: Page
let devtools: CDPSession
/** What the pages complained about since a test began to look. */
let complaints: string[] = []
beforeAll(async () => {
  if (isMissing) return
  ;[world, browser] = await Promise.all([testWorld({ exchange: true }), startBrowser()])
  const context = await browser.newContext()
  page = await context.newPage()
  devtools = await context.newCDPSession(page)
  complaintsOf(page, (text) => complaints.push(text))
})
afterAll(async () => {
  if (isMissing) return
  await browser.close()
  await world.stop()
})

const paths = ['/', '/stocks', '/admin', '/?q=weather&page=1'] as const

type Visit = {
  viewport?: { width: number; height: number }
  javaScriptEnabled?: boolean
}

/** Opens a path as a visitor that was never here: on a new document, and without cookies. */
async function look<T>(
  { viewport, javaScriptEnabled = true }: Visit,
  path: string,
  see: (page: Page, complaints: string[]) => Promise<T>,
): Promise<T> {
  // As `javaScriptEnabled` of a context does.
  await devtools.send('Emulation.setScriptExecutionDisabled', { value: !javaScriptEnabled })
  await page.context().clearCookies()
  await page.setViewportSize(viewport ?? { width: 1280, height: 720 })
  await page.emulateMedia({ colorScheme: 'light' })
  complaints = []
  await page.goto(world.url + path)
  return see(page, complaints)
}

async function expectNoViolations(page: Page, within = 'body'): Promise<void> {
  expect(await violationsOf(page, within === 'body' ? {} : { within })).toEqual([])
  await page.emulateMedia({ colorScheme: 'dark' })
  expect(await violationsOf(page, { within, rules: colourRules })).toEqual([])
}

const routeOf = (page: Page, path: string) =>
  page.locator('details.route').filter({ has: page.locator(`summary code:text-is("${path}")`) })

/** Opens a route and requests its price. */
async function tryOut(page: Page, path: string) {
  const route = routeOf(page, path)
  await route.locator('summary').first().click()
  await route.getByRole('button', { name: 'Ask for the price' }).click()
  await route.locator('.answer h4').first().waitFor()
  return route
}

/** Chromium itself reports every answer of 400 or more; here the 402 is expected. */
const isOwn402 = (text: string) => text.includes('status of 402')

describe.skipIf(isMissing)('every page', () => {
  for (const path of paths)
    test(`behavior: ${path} has no fault in light, in dark, wide and at 360 pixels`, () =>
      look({ viewport: { width: 1200, height: 900 } }, path, async (page, found) => {
        await expectNoViolations(page)
        await page.setViewportSize({ width: 360, height: 740 })
        await page.evaluate(openAll)
        expect(await widthOf(page)).toBe(360)
        expect(found).toEqual([])
      }))
})

/** Words of up to 20 characters, outside of code, that are broken over two lines. */
const brokenWords = `(() => {
  const broken = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const node = walker.currentNode
    if (node.parentElement.closest('code, pre, script, template')) continue
    for (const { 0: word, index } of node.data.matchAll(/(?<!\\S)[\\w$%.,:()]{2,20}(?!\\S)/g)) {
      const range = document.createRange()
      range.setStart(node, index)
      range.setEnd(node, index + word.length)
      const tops = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)))
      if (tops.size > 1) broken.push(word)
    }
  }
  return broken
})()`

describe.skipIf(isMissing)('words', () => {
  const widths = [1280, 768, 390] as const
  const brokenAt = async (page: Page, width: number) => {
    await page.setViewportSize({ width, height: 900 })
    const broken = (await page.evaluate(brokenWords)) as string[]
    const overflow = (await widthOf(page)) - width
    return { width, broken, overflow: Math.max(0, overflow) }
  }
  const whole = widths.map((width) => ({ width, broken: [], overflow: 0 }))

  for (const path of ['/', '/stocks'])
    test(`behavior: no word breaks at ${path}, wide, on a tablet and on a phone`, () =>
      look({}, path, async (page) => {
        if (path === '/stocks') await page.locator('[data-symbol=NVDA]').getByText('open').waitFor()
        const found = []
        for (const width of widths) found.push(await brokenAt(page, width))
        expect(found).toEqual(whole)
      }))

  test('behavior: an address takes one line, on a phone two', () =>
    look({}, '/stocks', async (page) => {
      const lines = `[...document.querySelectorAll('td code')].map((code) =>
        Math.round(code.getBoundingClientRect().height / parseFloat(getComputedStyle(code).lineHeight)))`
      for (const [width, height] of [
        [1280, 1],
        [390, 2],
      ] as const) {
        await page.setViewportSize({ width, height: 800 })
        expect(await page.evaluate(lines)).toEqual(Array(14).fill(height))
      }
    }))
})

const openAll = `for (const each of document.querySelectorAll('details')) each.open = true`

function widthOf(page: Page): Promise<number> {
  return page.evaluate('document.documentElement.scrollWidth')
}

describe.skipIf(isMissing)('the try-it panel', () => {
  test('behavior: the panel shows the live 402 of both protocols, decoded', () =>
    look({ viewport: { width: 360, height: 740 } }, '/', async (page, found) => {
      const route = await tryOut(page, '/m/weather/forecast')
      const answer = route.locator('.answer')
      const text = await answer.textContent()
      expect(text).toContain('402 Payment Required')
      expect(text).toContain('MPP: WWW-Authenticate')
      expect(text).toContain('0.005 USDC on Base')
      expect(text).toContain('x402: PAYMENT-REQUIRED')
      expect(text).toContain('0.005 USDG on Robinhood Chain')
      expect(text).toContain('permit2')
      const [payout] = world.config.merchants.map((merchant) => merchant.payout)
      expect(text).toContain(payout ?? 'a payout')
      await answer.getByText('The whole PAYMENT-REQUIRED').click()
      expect(await answer.textContent()).toContain('"x402Version": 2')
      // The rest of the page is looked at above.
      await expectNoViolations(page, 'details.route[open]')
      expect(await widthOf(page)).toBe(360)
      expect(found.filter((text) => !isOwn402(text))).toEqual([])
    }))

  test('behavior: a POST is tried with its body, and a missing parameter is named', () =>
    look({}, '/', async (page, found) => {
      const chat = await tryOut(page, '/m/assistant/chat')
      expect(await chat.locator('.answer').textContent()).toContain('0.003008 USDC on Base')
      const route = routeOf(page, '/m/weather/forecast')
      await route.locator('summary').first().click()
      await route.locator('[name=target]').fill('/m/weather/forecast?longitude=1')
      await route.getByRole('button', { name: 'Ask for the price' }).click()
      await route.locator('.answer .fault').waitFor()
      expect(await route.locator('.answer .fault').textContent()).toContain('latitude')
      expect(found.filter((text) => !isOwn402(text))).toEqual([])
    }))

  test('error: the panel requests only what is sold here', () =>
    look({}, '/', async (page) => {
      const asked: string[] = []
      page.on('request', (request) => {
        if (!request.url().includes('/assets/')) asked.push(request.url())
      })
      const route = routeOf(page, '/m/weather/forecast')
      await route.locator('summary').first().click()
      for (const target of [
        'https://example.com/m/',
        '//example.com/m/',
        '/admin',
        'javascript:1',
      ]) {
        await route.locator('[name=target]').fill(target)
        await route.getByRole('button', { name: 'Ask for the price' }).click()
        await route.locator('.answer .fault').waitFor()
      }
      expect(asked).toEqual([])
    }))

  test('behavior: commands are copied unchanged', () =>
    look({}, '/', async (page) => {
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
      const route = routeOf(page, '/m/catjoke/joke')
      await route.locator('summary').first().click()
      await route.getByRole('button', { name: 'Copy curl' }).click()
      await route.getByText('Copied').waitFor()
      const copied: string = await page.evaluate('navigator.clipboard.readText()')
      expect(copied).toStartWith(`curl -i '${world.config.service.baseUrl}/m/catjoke/joke`)
      expect(copied).toBe((await route.locator('pre').first().textContent()) ?? '')
    }))
})

describe.skipIf(isMissing)('the stock tokens', () => {
  test('behavior: prices and states equal those of the list', () =>
    look({}, '/stocks', async (page, found) => {
      const row = page.locator('tr[data-symbol=NVDA]')
      await row.getByText('open').waitFor()
      expect(await row.locator('[data-field=price]').textContent()).toMatch(/^\d+\.\d+$/)
      expect(await page.locator('caption').textContent()).toContain('prices of')
      expect(await page.locator('.scriptless').count()).toBe(0)
      expect(found).toEqual([])
    }))
})

describe.skipIf(isMissing)('without a mouse', () => {
  test('behavior: every control is reached by Tab, shows its focus, and works by Enter', () =>
    look({ viewport: { width: 900, height: 700 } }, '/', async (page) => {
      await page.keyboard.press('Tab')
      expect(await focused(page)).toMatchObject({ text: 'Skip to the content', isVisible: true })
      await page.keyboard.press('Enter')
      expect(await page.evaluate('document.activeElement.id')).toBe('main')
      const joke = '/m/catjoke/joke'
      let last = ''
      // In the content: the search, the merchants, then their routes.
      for (let step = 0; step < 60 && !last.includes(joke); step++) {
        await page.keyboard.press('Tab')
        const now = await focused(page)
        expect(now).toMatchObject({ isVisible: true, hasOutline: true })
        last = now.text
      }
      expect(last).toContain(joke)
      await page.keyboard.press('Enter')
      const route = routeOf(page, joke)
      await route.locator('form').waitFor()
      await page.keyboard.press('Tab')
      expect((await focused(page)).text).toBe('target')
      await page.keyboard.press('Tab')
      expect((await focused(page)).text).toBe('Ask for the price')
      await page.keyboard.press('Enter')
      await route.getByText('MPP: WWW-Authenticate').waitFor()
    }))
})

type Focus = { text: string; isVisible: boolean; hasOutline: boolean }

function focused(page: Page): Promise<Focus> {
  return page.evaluate(`(() => {
    const element = document.activeElement
    const { top, bottom, left, width } = element.getBoundingClientRect()
    const style = getComputedStyle(element)
    return {
      text: element.innerText || element.name || '',
      isVisible: width > 0 && left >= 0 && bottom > 0 && top < innerHeight,
      hasOutline: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    }
  })()`)
}

describe.skipIf(isMissing)('without JavaScript', () => {
  const plain = { javaScriptEnabled: false }

  test('behavior: the catalogue can be read, opened and searched, and names what is missing', () =>
    look(plain, '/', async (page, found) => {
      const routes = world.config.merchants.flatMap((merchant) => merchant.routes)
      expect(await page.locator('details.route').count()).toBe(routes.length)
      const route = routeOf(page, '/m/weather/forecast')
      expect(await route.locator('pre').first().isVisible()).toBe(false)
      await route.locator('summary').first().click()
      expect(await route.locator('pre').first().isVisible()).toBe(true)
      expect(await page.getByText('Without JavaScript the try-it panel').isVisible()).toBe(true)
      expect(await page.getByRole('button', { name: 'Copy' }).count()).toBe(0)
      await page.getByLabel('Search the catalogue').fill('bitcoin price')
      await page.getByRole('button', { name: 'Search' }).click()
      await page.getByText(/ of \d+ routes/).waitFor()
      expect(found).toEqual([])
    }))

  test('behavior: the tokens are listed', () =>
    look(plain, '/stocks', async (page) => {
      const tokens = world.config.stock?.tokens.length ?? 0
      expect(await page.locator('tbody tr').count()).toBe(tokens)
    }))
})
