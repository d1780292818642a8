import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import type { Browser, CDPSession, Page } from 'playwright-core'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import {
  chromiumPath,
  colourRules,
  complaintsOf,
  startBrowser,
  violationsOf,
} from '../harness/browser'
import { installWallet } from '../harness/wallet'
import { testWorld } from '../harness/world'

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
  ;[world, browser] = await Promise.all([
    testWorld({ exchange: true, baseUrl: 'https://pay.example.com' }),
    startBrowser(),
  ])
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

const paths = ['/', '/?q=nothing-like-it', '/merchants/assistant', '/stocks', '/admin'] as const

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

const forecast = '/merchants/weather?route=/forecast'

/** Requests the price of what the fields of a merchant's page say. */
async function tryOut(page: Page) {
  await page.getByRole('button', { name: 'Ask for the price' }).click()
  const answer = page.locator('.answer')
  await answer.locator('h4').first().waitFor()
  return answer
}

/** Chromium itself reports every answer of 400 or more; here the 402 is expected. */
const isOwn402 = (text: string) => text.includes('status of 402')

describe.skipIf(isMissing)('every page', () => {
  for (const path of paths)
    test(`${path} has no fault in light, in dark, wide and at 360 pixels`, () =>
      look({ viewport: { width: 1200, height: 900 } }, path, async (page, found) => {
        await expectNoViolations(page)
        await page.setViewportSize({ width: 360, height: 740 })
        await page.evaluate(openAll)
        expect(await widthOf(page)).toBe(360)
        expect(found).toEqual([])
      }))
})

/** Words of up to 20 characters, also of commands, that are broken over two lines. */
const brokenWords = `(() => {
  const broken = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const node = walker.currentNode
    if (node.parentElement.closest('script, template, :not(pre) > code')) continue
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
  const widths = [1600, 1280, 768, 390] as const
  const brokenAt = async (page: Page, width: number) => {
    await page.setViewportSize({ width, height: 900 })
    const broken = (await page.evaluate(brokenWords)) as string[]
    const overflow = (await widthOf(page)) - width
    return { width, broken, overflow: Math.max(0, overflow) }
  }
  const whole = widths.map((width) => ({ width, broken: [], overflow: 0 }))

  for (const path of ['/', forecast, '/merchants/chain-stocks', '/stocks'])
    test(`no word breaks at ${path}, wide, on a tablet and on a phone`, () =>
      look({}, path, async (page) => {
        if (path === '/stocks') await page.locator('[data-symbol=NVDA]').getByText('open').waitFor()
        const found = []
        for (const width of widths) found.push(await brokenAt(page, width))
        expect(found).toEqual(whole)
      }))

  test('an address is short, takes one line on every screen, and is copied whole', () =>
    look({}, '/stocks', async (page) => {
      const lines = `[...document.querySelectorAll('.address code')].map((code) =>
        Math.round(code.getBoundingClientRect().height / parseFloat(getComputedStyle(code).lineHeight)))`
      for (const width of [1280, 390]) {
        await page.setViewportSize({ width, height: 800 })
        expect(await page.evaluate(lines)).toEqual(Array(14).fill(1))
      }
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
      const [token] = world.config.stock?.tokens ?? []
      await page.locator('tr[data-symbol=NVDA] .copy').click()
      await page.getByText('Copied').waitFor()
      expect(await page.evaluate('navigator.clipboard.readText()')).toBe(token?.address ?? '')
    }))
})

describe.skipIf(isMissing)('the first look', () => {
  test('a price, the command and the first merchant are visible without scrolling', () =>
    look({}, '/', async (page) => {
      for (const [width, height] of [
        [1280, 720],
        [390, 844],
      ] as const) {
        await page.setViewportSize({ width, height })
        for (const selector of ['.sample .price', '.sample pre', '.card .price']) {
          const box = await page.locator(selector).first().boundingBox()
          expect([selector, box !== null && box.y + box.height <= height]).toEqual([selector, true])
        }
      }
    }))

  test('a merchant and the stocks have one thing to press, which leads to the order', () =>
    look({}, '/', async (page) => {
      for (const [path, selector] of [
        [forecast, '#try'],
        ['/stocks', '#buy'],
      ] as const) {
        await page.goto(world.url + path)
        for (const [width, height] of [
          [1280, 640],
          [390, 844],
        ] as const) {
          await page.setViewportSize({ width, height })
          // As it was before a press: at the top, and without the fragment.
          await page.evaluate(`history.replaceState(null, '', '${path}'); scrollTo(0, 0)`)
          const button = page.locator('.head .button')
          expect(await button.count()).toBe(1)
          const box = await button.boundingBox()
          expect([path, width, (box?.y ?? height) < height - 40]).toEqual([path, width, true])
          await button.click()
          expect(page.url()).toEndWith(selector)
          expect(await page.locator(selector).getByRole('heading').first().isVisible()).toBe(true)
        }
      }
    }))

  test('nothing moves while a page loads', () =>
    look({}, '/', async (page) => {
      for (const width of [1600, 390])
        for (const path of ['/', forecast, '/stocks']) {
          await page.setViewportSize({ width, height: 844 })
          await page.goto(world.url + path)
          if (path === '/stocks') await page.locator('[data-symbol=NVDA] .badge').waitFor()
          const moved = await page.evaluate(shifts)
          // Later rows of a table may widen a column by pixels, where the document arrives in parts.
          expect([path, width, Number(moved) < 0.01, moved]).toEqual([path, width, true, moved])
        }
    }))
})

/** Layout shift of the page until now. https://web.dev/articles/cls */
const shifts = `new Promise((resolve) => {
  new PerformanceObserver((list) => {
    resolve(list.getEntries().reduce((sum, { value }) => sum + value, 0))
  }).observe({ type: 'layout-shift', buffered: true })
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(0)))
})`

const openAll = `for (const each of document.querySelectorAll('details')) each.open = true`

function widthOf(page: Page): Promise<number> {
  return page.evaluate('document.documentElement.scrollWidth')
}

describe.skipIf(isMissing)('the page of a merchant', () => {
  test('the page of a merchant shows the live 402 of both protocols, decoded', () =>
    look({ viewport: { width: 360, height: 740 } }, forecast, async (page, found) => {
      const answer = await tryOut(page)
      const text = await answer.textContent()
      expect(text).toContain('402 Payment Required')
      expect(text).toContain('MPP: WWW-Authenticate')
      expect(text).toContain('0.005 USDC on Base')
      expect(text).toContain('x402: PAYMENT-REQUIRED')
      expect(text).toContain('0.005 USDG on Robinhood Chain')
      expect(text).toContain('permit2')
      const [payout] = world.config.merchants.map((merchant) => merchant.payout)
      expect(await answer.locator(`[data-copy="${payout}" i]`).count()).toBeGreaterThan(0)
      await answer.getByText('The whole PAYMENT-REQUIRED').click()
      expect(await answer.textContent()).toContain('"x402Version": 2')
      await expectNoViolations(page)
      expect(await widthOf(page)).toBe(360)
      expect(found.filter((text) => !isOwn402(text))).toEqual([])
    }))

  test('the entered values are those of the request, of the commands and of the wallet', () =>
    look({}, forecast, async (page, found) => {
      await page.getByLabel('latitude').fill("1'5")
      await page.getByLabel('longitude').fill('')
      await page.getByLabel('daily').fill('')
      const target = "/m/weather/forecast?latitude=1'5&current=temperature_2m,wind_speed_10m"
      expect(await page.locator('[name=target]').inputValue()).toStartWith(target)
      expect(await page.locator('.wallet').getAttribute('data-target')).toStartWith(target)
      const entered = new URLSearchParams({ route: '/forecast', 'p.latitude': "1'5" })
      entered.set('p.current', 'temperature_2m,wind_speed_10m')
      entered.set('p.forecast_days', '7')
      const codes = await page.locator('[data-templates]').allTextContents()
      const answer = await tryOut(page)
      expect(await answer.locator('.fault').first().textContent()).toContain('latitude')
      // The server makes the same from the form without scripts.
      await page.goto(`${world.url}/merchants/weather?${entered}`)
      expect(await page.locator('[data-templates]').allTextContents()).toEqual(codes)
      expect(found.filter((text) => !isOwn402(text))).toEqual([])
    }))

  test('a route of two methods is asked by the chosen one, with its body', () =>
    look({}, '/merchants/chain-stocks?route=/quote', async (page) => {
      expect(await page.locator('#body').isVisible()).toBe(false)
      await page.getByLabel('Method').selectOption('POST')
      await page.getByLabel('Body').fill('{"symbol":"AMZN"}')
      expect(await page.locator('[data-templates]').first().textContent()).toContain(
        `-d '{"symbol":"AMZN"}'`,
      )
      expect(await page.locator('[name=target]').inputValue()).toBe('/m/chain-stocks/quote')
      expect(await page.getByLabel('symbol').isVisible()).toBe(false)
      const answer = await tryOut(page)
      expect(await answer.locator('.fault').count()).toBe(0)
      expect(await page.locator('.wallet').getAttribute('data-body')).toBe('{"symbol":"AMZN"}')
    }))

  test('error: only what is sold here is requested', () =>
    look({}, forecast, async (page) => {
      const asked: string[] = []
      page.on('request', (request) => {
        if (!request.url().includes('/assets/')) asked.push(request.url())
      })
      const paid = await page.locator('.wallet').getAttribute('data-target')
      for (const target of [
        'https://example.com/m/',
        '//example.com/m/',
        '/admin',
        'javascript:1',
      ]) {
        await page.locator('[name=target]').fill(target)
        await page.getByRole('button', { name: 'Ask for the price' }).click()
        await page.locator('.answer .fault').waitFor()
        expect(await page.locator('.wallet').getAttribute('data-target')).toBe(paid)
      }
      expect(asked).toEqual([])
    }))

  test('the tools are tabs for the keyboard, and a command is copied unchanged', () =>
    look({}, '/merchants/catjoke', async (page) => {
      // Without a wallet they are how to pay.
      expect(await page.locator('.progress').textContent()).toContain('has no wallet')
      await page.getByRole('link', { name: 'pay from a program' }).click()
      expect(page.url()).toEndWith('#programs')
      const shown = () => page.locator('[role=tabpanel]:visible').getAttribute('id')
      expect(await shown()).toBe('code-curl')
      await page.getByRole('tab', { name: 'curl' }).focus()
      const keys = [
        ['ArrowRight', 'code-mppx'],
        ['End', 'code-mcp'],
        ['ArrowRight', 'code-curl'],
        ['ArrowLeft', 'code-mcp'],
        ['Home', 'code-curl'],
      ] as const
      for (const [key, panel] of keys) {
        await page.keyboard.press(key)
        expect([key, await shown()]).toEqual([key, panel])
      }
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
      await page.getByRole('button', { name: 'Copy curl' }).click()
      await page.getByText('Copied').waitFor()
      const copied: string = await page.evaluate('navigator.clipboard.readText()')
      expect(copied).toStartWith(`curl -i '${world.config.service.baseUrl}/m/catjoke/joke`)
      expect(copied).toBe((await page.locator('#code-curl code').textContent()) ?? '')
    }))
})

describe.skipIf(isMissing)('a browser without a wallet', () => {
  const joke = '/m/catjoke/joke'
  const seenIn = async (page: Page) => {
    const parts = ['.qr', '.on-phone a', '.funds summary', '.wallets button']
    const seen = await Promise.all(parts.map((part) => page.locator(part).first().isVisible()))
    return parts.filter((_, at) => seen[at])
  }

  test('a phone gets links into wallets, a desktop a code, and a browser without scripts both', async () => {
    for (const [width, javaScriptEnabled, parts] of [
      [1280, true, ['.qr', '.funds summary']],
      [390, true, ['.on-phone a', '.funds summary']],
      [1280, false, ['.qr', '.on-phone a', '.funds summary']],
      [390, false, ['.qr', '.on-phone a', '.funds summary']],
    ] as const)
      await look({ viewport: { width, height: 800 }, javaScriptEnabled }, joke, async (page) => {
        expect([width, await seenIn(page)]).toEqual([width, [...parts]])
        expect(await widthOf(page)).toBe(width)
        if (!javaScriptEnabled) return
        await page.evaluate(openAll)
        await expectNoViolations(page)
      })
  })

  test('a browser with a wallet gets neither', async () => {
    const own = await page.context().newPage()
    try {
      await installWallet(own, [], account(1).local())
      await own.goto(world.url + joke)
      expect(await seenIn(own)).toEqual(['.funds summary', '.wallets button'])
    } finally {
      await own.close()
    }
  })
})

describe.skipIf(isMissing)('the stock tokens', () => {
  test('a stock that is halted has no button, and another one of the form has', async () => {
    const own = await page.context().newPage()
    try {
      await installWallet(own, [], account(1).local())
      await own.route('**/api/stock/list', async (route) => {
        const response = await route.fetch()
        const list = await response.json()
        for (const stock of list.stocks) if (stock.symbol === 'NVDA') stock.status = 'halted'
        await route.fulfill({ response, json: list })
      })
      await own.goto(`${world.url}/stocks?symbol=NVDA`)
      await own.getByText('The issuer has halted this stock.').waitFor()
      const pays = own.getByRole('button', { name: 'Pay with' })
      const nvidia = own.getByRole('link', { name: 'Buy NVDA' })
      expect([await pays.count(), await nvidia.count()]).toEqual([0, 0])
      await own.getByLabel('Stock', { exact: true }).selectOption('AMZN')
      await pays.waitFor()
      expect(await own.getByText('The issuer has halted this stock.').count()).toBe(0)
    } finally {
      await own.close()
    }
  })

  test('prices and states equal those of the list', () =>
    look({}, '/stocks', async (page, found) => {
      const row = page.locator('tr[data-symbol=NVDA]')
      await row.getByText('open').waitFor()
      expect(await row.locator('[data-field=price]').textContent()).toMatch(/^\$\d+\.\d\d$/)
      expect(await page.locator('.live').textContent()).toContain('Prices of')
      expect(await page.locator('.scriptless').first().isVisible()).toBe(false)
      await page.getByRole('link', { name: 'Buy AMZN' }).click()
      expect(await page.getByLabel('Stock').inputValue()).toBe('AMZN')
      await page.getByText(/about [\d.]+ AMZN, and at least [\d.]+\./).waitFor()
      const target = '/api/stock/buy?symbol=AMZN&usdg=1.00'
      expect(await page.locator('.wallet').getAttribute('data-target')).toBe(target)
      expect(found).toEqual([])
    }))
})

describe.skipIf(isMissing)('buying a stock', () => {
  test('a wallet of EIP-1193 alone buys a stock, and the tokens arrive', async () => {
    const chain = world.chains['eip155:4663']
    const [token] = (world.config.stock?.tokens ?? []).filter(({ symbol }) => symbol === 'MSFT')
    if (chain === undefined || token === undefined) throw new Error('MSFT is not sold')
    const buyer = account(1).local()
    const before = await balanceOf(chain, token.address, buyer.address)
    const own = await page.context().newPage()
    try {
      await installWallet(own, Object.values(world.chains), buyer, { uuid: '' })
      await own.goto(`${world.url}/stocks?symbol=MSFT`)
      await own.getByRole('button', { name: 'Pay with Browser wallet' }).click()
      await own.locator('.wallet[data-busy=false]').waitFor()
      expect(await own.locator('.result pre').first().textContent()).toContain('"delivered"')
      expect(await own.locator('.result').textContent()).toMatch(
        /You received [\d.]+ MSFT for 1 USDG\./,
      )
      // Another order needs a press of its own before anything offers to pay.
      expect(await own.locator('.wallets button').allTextContents()).toEqual(['Make another order'])
      expect(await own.locator('.progress').getAttribute('class')).toContain('good')
      const paid = /^You paid 1\.00 USDG to Turnpike, \d{4}-\d\d-\d\d \d\d:\d\d UTC\.$/
      expect(await own.locator('.receipt p').first().textContent()).toMatch(paid)
      await own.getByRole('link', { name: 'The page of this order' }).click()
      await own.getByRole('heading', { name: 'Order of MSFT' }).waitFor()
      const order = own.locator('.receipt')
      expect(await order.textContent()).toMatch(/You received [\d.]+ MSFT for 1 USDG\./)
      expect(await order.locator('[data-open]').count()).toBe(0)
      expect(await order.getByRole('button', { name: 'Print' }).isVisible()).toBe(true)
      for (const width of [390, 1280]) {
        await own.setViewportSize({ width, height: 800 })
        expect(await widthOf(own)).toBe(width)
      }
      await expectNoViolations(own)
      // The same address answers a program as the API does.
      const [page, api] = await Promise.all(
        [own.url(), own.url().replace('/orders/', '/api/stock/order/')].map((url) => fetch(url)),
      )
      expect(page?.headers.get('content-type')).toStartWith('application/json')
      expect(page?.headers.get('vary')).toContain('Accept')
      expect(await page?.json()).toEqual(await api?.json())
      const unknown = own.url().replace(/.{4}$/, '0000')
      expect((await fetch(unknown)).status).toBe(404)
      const visit = await own.goto(unknown)
      expect([visit?.status(), await own.locator('h1').textContent()]).toEqual([404, 'Not Found'])
    } finally {
      await own.close()
    }
    const shares = (await balanceOf(chain, token.address, buyer.address)) - before
    expect(shares).toBeGreaterThan(0n)
  })
})

describe.skipIf(isMissing)('an order whose answer was lost', () => {
  test('an order whose answer was lost is fetched on the next visit, and no payment is offered beside it', async () => {
    const own = await page.context().newPage()
    try {
      const wallet = await installWallet(own, Object.values(world.chains), account(1).local())
      let lost = 0
      await own.route('**/api/stock/buy?**', async (route) => {
        const isPaid = 'payment-signature' in route.request().headers()
        if (!isPaid || lost++ > 0) return route.continue()
        // The desk has the payment; its answer is lost.
        await route.fetch()
        return route.abort()
      })
      await own.goto(`${world.url}/stocks?symbol=MSFT`)
      await own.getByLabel('Amount in USDG').fill('1.50')
      await own.getByRole('button', { name: 'Pay with Demo Wallet' }).click()
      await own.getByText('The connection failed. Your payment is kept.').waitFor()
      await own.goto(`${world.url}/stocks`)
      await own.getByRole('button', { name: 'Fetch the answer' }).waitFor()
      expect(await own.getByLabel('Stock').inputValue()).toBe('MSFT')
      expect(await own.getByLabel('Amount in USDG').inputValue()).toBe('1.50')
      expect(await own.getByRole('button', { name: 'Pay with' }).count()).toBe(0)
      expect(await own.locator('.stocks .order:visible').count()).toBe(0)
      await own.getByRole('button', { name: 'Fetch the answer' }).click()
      await own.getByText('You received').waitFor()
      const signed = wallet.signed.filter(({ primaryType }) => primaryType !== 'Permit')
      expect(signed).toHaveLength(1)
    } finally {
      await own.close()
    }
  })
})

describe.skipIf(isMissing)('without a mouse', () => {
  test('every control is reached by Tab, shows its focus, and works by Enter', () =>
    look({ viewport: { width: 900, height: 700 } }, '/', async (page) => {
      await page.keyboard.press('Tab')
      expect(await focused(page)).toMatchObject({ text: 'Skip to the content', isVisible: true })
      await page.keyboard.press('Enter')
      expect(await page.evaluate('document.activeElement.id')).toBe('main')
      let last = ''
      // In the content: the command, the search, the merchants with their routes.
      for (let step = 0; step < 30 && last !== 'A cat joke'; step++) {
        await page.keyboard.press('Tab')
        const now = await focused(page)
        expect(now).toMatchObject({ isVisible: true, hasOutline: true })
        last = now.text
      }
      expect(last).toBe('A cat joke')
      await page.keyboard.press('Enter')
      await page.getByRole('heading', { name: 'A cat joke' }).waitFor()
      await page.getByLabel('Request').focus()
      await page.keyboard.press('Enter')
      await page.locator('.answer').getByText('MPP: WWW-Authenticate').waitFor()
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

  test('the catalogue is read and searched, and a route is composed', () =>
    look(plain, '/', async (page, found) => {
      expect(await page.locator('.card').count()).toBe(world.config.merchants.length)
      expect(await page.locator('.copy:visible').count()).toBe(0)
      await page.getByLabel('Search the catalogue').fill('bitcoin price')
      await page.getByRole('button', { name: 'Search' }).click()
      await page.getByText(/ of \d+ routes/).waitFor()
      await page.goto(world.url + forecast)
      expect(await page.locator('[role=tabpanel]:visible').count()).toBe(5)
      for (const hidden of ['.copy', '.wallet', '[role=tab]', '[name=target]'])
        expect([hidden, await page.locator(hidden).first().isVisible()]).toEqual([hidden, false])
      expect(await page.getByText('Paying in the browser needs JavaScript.').isVisible()).toBe(true)
      await page.getByLabel('latitude').fill('48.1')
      await page.getByRole('button', { name: 'Put these values into the commands' }).click()
      await page.locator('pre').getByText('latitude=48.1').first().waitFor()
      expect(await page.getByLabel('latitude').inputValue()).toBe('48.1')
      expect(found).toEqual([])
    }))

  test('the tokens are listed with their whole addresses', () =>
    look(plain, '/stocks?symbol=AMZN', async (page) => {
      const tokens = world.config.stock?.tokens ?? []
      expect(await page.locator('tbody tr').count()).toBe(tokens.length)
      expect(await page.getByText(tokens[0]?.address ?? 'an address').isVisible()).toBe(true)
      expect(await page.getByLabel('Stock').inputValue()).toBe('AMZN')
    }))
})
