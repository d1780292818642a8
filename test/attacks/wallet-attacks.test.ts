import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Browser, Page, Route } from 'playwright-core'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { orderStates } from '../../src/web/public/OrderState'
import { chromiumPath, startBrowser } from '../harness/browser'
import { payee, type Shop, startShop } from '../harness/shop'
import { type BrowserWallet, installWallet } from '../harness/wallet'
import { until } from '../harness/world'

const isMissing = chromiumPath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: attacks on the page need Chromium (apt-get install chromium)\n')

const base = 'eip155:8453'
const path = '/m/shop/item'
const price = 5_000n
const buyer = account(1).local()

let shop: Shop
let browser: Browser
let page: Page
let wallet: BrowserWallet
beforeAll(async () => {
  if (isMissing) return
  ;[shop, browser] = await Promise.all([startShop(), startBrowser()])
  page = await (await browser.newContext()).newPage()
  wallet = await installWallet(page, Object.values(shop.chains), buyer)
})
afterAll(async () => {
  if (isMissing) return
  await browser.close()
  await shop.stop()
})
/** Makes the wallet and the upstream as they are at first; the page stays. */
async function reset(): Promise<void> {
  Object.assign(wallet, { account: buyer, chainId: 8453, asked: [], signed: [] })
  shop.upstream.script = undefined
  await page.unrouteAll()
}

/** A new page, which finds nothing of the test before. */
async function open(): Promise<void> {
  if (isMissing) return
  await reset()
  if (page.url() !== 'about:blank') await page.evaluate('localStorage.clear()')
  await page.goto(shop.url + path)
}

const progressOf = (from: Page) => from.locator('.progress').textContent()
const payButton = (from = page) => from.getByRole('button', { name: 'Pay with Demo Wallet' })
const again = (from = page) => from.getByRole('button', { name: 'Fetch the answer' })
const shown = () => page.locator('.result pre').first().textContent()
const kept = () => page.evaluate<string>('JSON.stringify(Object.keys(localStorage))')
const idle = (from = page) => from.locator('.wallet[data-busy=false]').waitFor()

async function press(button = payButton()): Promise<string> {
  await button.click()
  await idle(button.page())
  return (await progressOf(button.page())) ?? ''
}

/** A second window with the same storage. */
async function openWindow(): Promise<{ other: Page; second: BrowserWallet }> {
  const other = await page.context().newPage()
  const second = await installWallet(other, Object.values(shop.chains), buyer)
  await other.goto(shop.url + path)
  return { other, second }
}

/** An account whose user signs when `sign` is called. */
function slowSigner() {
  const gate = Promise.withResolvers<void>()
  const asked: number[] = []
  const signTypedData: typeof buyer.signTypedData = async (typed) => {
    asked.push(1)
    await gate.promise
    return buyer.signTypedData(typed)
  }
  return { asked, account: { ...buyer, signTypedData }, sign: gate.resolve }
}

/** Answers requests of the page in the place of the network; undefined lets them through. */
async function intercept(
  act: (route: Route, isPaid: boolean) => Promise<void> | undefined,
): Promise<void> {
  await page.route(`**${path}`, async (route) => {
    const headers = route.request().headers()
    const isPaid = 'payment-signature' in headers || 'payment-redeem' in headers
    await (act(route, isPaid) ?? route.continue())
  })
}

type Json = Record<string, unknown>

/** Changes the offers that the page gets. */
async function changeOffers(change: (accepted: Json) => Json): Promise<void> {
  const changed = async (route: Route) => {
    const response = await route.fetch()
    const headers = response.headers()
    const required = JSON.parse(atob(headers['payment-required'] ?? ''))
    const body = await response.json()
    const { accepts = required.accepts, ...whole } = body.x402 ?? body
    const changedWhole = { ...whole, accepts: accepts.map(change) }
    const encoded = btoa(JSON.stringify({ ...required, accepts: required.accepts.map(change) }))
    await route.fulfill({
      response,
      headers: { ...headers, 'payment-required': encoded },
      body: JSON.stringify(body.x402 ? { ...body, x402: changedWhole } : changedWhole),
    })
  }
  await intercept((route, isPaid) => (isPaid ? undefined : changed(route)))
}

const broken = () => {
  shop.upstream.script = (_, reply) => reply.send(500, 'broken')
}

describe.skipIf(isMissing)('paying twice', () => {
  beforeEach(open)

  test('attack: while one window asks for a signature, another one does not', async () => {
    const { other, second } = await openWindow()
    const slow = slowSigner()
    wallet.account = slow.account
    await payButton().click()
    await until('the first asks', () => slow.asked.length === 1)
    expect(await press(payButton(other))).toContain('Another window of this browser')
    expect(second.signed).toEqual([])
    slow.sign()
    await idle()
    expect(await progressOf(page)).toBe('Paid and delivered.')
    await other.close()
  })

  test('attack: without locks, two windows sign, and one payment is sent', async () => {
    const before = await shop.balance(base, payee)
    const { other, second } = await openWindow()
    for (const each of [page, other])
      await each.evaluate("Object.defineProperty(navigator, 'locks', { value: undefined })")
    const slow = slowSigner()
    wallet.account = second.account = slow.account
    broken()
    // Each window asks for a signature before either of them stores a payment.
    for (const [at, each] of [page, other].entries()) {
      await payButton(each).click()
      await until('the window asks', () => slow.asked.length === at + 1)
    }
    slow.sign()
    await Promise.all([idle(), idle(other)])
    shop.upstream.script = undefined
    expect(await press(again())).toBe('Paid and delivered.')
    expect(await shop.balance(base, payee)).toBe(before + price)
    await other.close()
  })

  test('attack: without locks, a refusal in one window does not remove a payment that another one can fetch', async () => {
    const before = await shop.balance(base, payee)
    broken()
    const refused = Promise.withResolvers<void>()
    await intercept((route) => {
      if (!('payment-signature' in route.request().headers())) return undefined
      return refused.promise.then(() =>
        route.fulfill({ status: 402, json: { code: 'invalid-challenge', detail: 'Used.' } }),
      )
    })
    const { other } = await openWindow()
    for (const each of [page, other])
      await each.evaluate("Object.defineProperty(navigator, 'locks', { value: undefined })")
    await payButton().click()
    await again(other).click()
    await idle(other)
    expect(await progressOf(other)).toContain('The seller answered 500')
    refused.resolve()
    await idle()
    expect(await progressOf(page)).toContain('The seller answered 500')
    shop.upstream.script = undefined
    expect(await press(again())).toBe('Paid and delivered.')
    expect(await shop.balance(base, payee)).toBe(before + price)
    await other.close()
  })

  test('attack: a window offers nothing of a payment that another one has finished', async () => {
    broken()
    await press()
    const { other } = await openWindow()
    await again(other).waitFor()
    shop.upstream.script = undefined
    expect(await press(again())).toBe('Paid and delivered.')
    await payButton(other).waitFor()
    expect(await again(other).count()).toBe(0)
    await other.close()
  })

  test('attack: after a change of the price a lost answer is fetched, and not paid again', async () => {
    const before = await shop.balance(base, payee)
    let lost = 0
    await intercept((route, isPaid) =>
      isPaid && lost++ === 0 ? route.fetch().then(() => route.abort()) : undefined,
    )
    expect(await press()).toContain('The connection failed.')
    await shop.app.reload(dearer())
    try {
      expect(await press(again())).toBe('Paid and delivered.')
    } finally {
      await shop.app.reload(shop.config)
    }
    expect(await shop.balance(base, payee)).toBe(before + price)
  })
})

const dearer = (): Config =>
  shop.edited((text) => text.replaceAll('price = "0.005"', 'price = "0.5"'))

describe.skipIf(isMissing)('paying and getting nothing', () => {
  beforeEach(open)

  test('attack: a storage that is full after the payment does not hide the answer', async () => {
    await page.evaluate(`Storage.prototype.setItem = (set => function (key, value) {
      if (key === 'turnpike:receipts') throw new DOMException('full', 'QuotaExceededError')
      return set.call(this, key, value)
    })(Storage.prototype.setItem)`)
    expect(await press()).toBe('Paid and delivered.')
    expect(await shown()).toContain('"ok": true')
  })

  test('attack: nothing is signed in a browser that cannot keep a payment', async () => {
    await page.evaluate(`Storage.prototype.setItem = () => {
      throw new DOMException('refused', 'QuotaExceededError')
    }`)
    expect(await press()).toContain('Nothing was paid.')
    expect(wallet.signed).toEqual([])
  })

  test('attack: proxies that answer in the place of the service do not end a payment', async () => {
    const before = await shop.balance(base, payee)
    const answers = [
      { status: 403, body: '<h1>Blocked</h1>' },
      { status: 404, body: '{"message":"no such site"}' },
      { status: 200, body: '<h1>Log in to the network</h1>' },
      { status: 402, body: 'null' },
    ]
    let sent = 0
    await intercept((route, isPaid) => {
      if (!isPaid) return undefined
      sent++
      if (sent === 1) return route.fetch().then(() => route.abort())
      const answer = answers[sent - 2]
      return answer && route.fulfill(answer)
    })
    expect(await press()).toContain('The connection failed.')
    for (const { status } of answers) {
      expect(await press(again())).toContain(`The answer was ${status}`)
      expect(await kept()).toContain(path)
    }
    expect(await press(again())).toBe('Paid and delivered.')
    expect(await shop.balance(base, payee)).toBe(before + price)
  })

  test('attack: a stream that does not end is shown, and can be stopped', async () => {
    let end = (): void => undefined
    shop.upstream.script = (_, reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' })
      reply.chunk('data: first\n\n')
      end = reply.end
    }
    await payButton().click()
    const stream = page.locator('.result pre', { hasText: 'data: first' })
    await stream.waitFor()
    await page.getByRole('button', { name: 'Stop here' }).click()
    await idle()
    expect(await progressOf(page)).toBe('Paid and delivered.')
    expect(await shown()).toBe('data: first\n\n')
    expect(await page.locator('.result h2').allTextContents()).toEqual(['The answer', 'Receipt'])
    end()
  })

  test('attack: of an answer that is cut, the first part and the receipt are shown', async () => {
    const before = await shop.balance(base, payee)
    await page.evaluate(`window.fetch = (fetch => async (target, init) => {
      const whole = await fetch(target, init)
      if (init.headers['payment-signature'] === undefined) return whole
      window.fetch = fetch
      const pull = (stream) => stream.error(new TypeError('cut'))
      const start = (stream) => stream.enqueue(new TextEncoder().encode('the first part'))
      return new Response(new ReadableStream({ start, pull }), { headers: whole.headers })
    })(window.fetch)`)
    expect(await press()).toContain('The answer was cut off.')
    expect(await shown()).toBe('the first part')
    expect(await page.locator('.result h2').allTextContents()).toEqual(['The answer', 'Receipt'])
    expect(await press(again())).toBe('Paid and delivered.')
    expect(await shown()).toContain('"ok": true')
    expect(await shop.balance(base, payee)).toBe(before + price)
  })

  for (const hours of [-1, 1])
    test(`attack: a clock of the browser that is off by ${hours} h does not matter`, async () => {
      await page.evaluate(`Date.now = (now => () => now() + ${hours} * 3600000)(Date.now)`)
      expect(await press()).toBe('Paid and delivered.')
      const validBefore = Number(wallet.signed[0]?.message.validBefore)
      expect(validBefore).toBeLessThan(Date.now() / 1000 + 301)
    })

  for (const [name, answer, end, meaning] of [
    [
      'is busy',
      { status: 429, json: { code: 'rate-limited' } },
      'delivered',
      'The order is delivered: the tokens are at your address.',
    ],
    [
      'starts again',
      { status: 503, body: 'The service is starting.' },
      'refunded',
      'The order was not filled, and the whole amount came back to you.',
    ],
    [
      'is away',
      undefined,
      'held',
      'The order is held until its operator decides. You need not pay again.',
    ],
  ] as const)
    test(`attack: an order is followed to its end while the service ${name}`, async () => {
      await page.route('**/api/stock/buy?**', async (route) => {
        if (route.request().headers()['payment-signature'] === undefined)
          return route.fulfill({ response: await page.request.fetch(shop.url + path) })
        const headers = {
          location: 'http://localhost:4020/api/stock/order/o1',
          'payment-response': btoa('{"success":true}'),
        }
        return route.fulfill({ status: 202, headers, json: { status: 'settling' } })
      })
      let asked = 0
      await page.route('**/api/stock/order/o1', (route) => {
        asked++
        if (asked === 2) return answer === undefined ? route.abort() : route.fulfill(answer)
        return route.fulfill({ json: { status: asked === 1 ? 'swapping' : end } })
      })
      await page.evaluate(`(({ dataset }) => {
        dataset.target = '/api/stock/buy?symbol=A&usdg=1'
        dataset.orders = ${JSON.stringify(JSON.stringify(orderStates))}
      })(document.querySelector('.wallet'))`)
      expect(await press()).toBe(meaning)
      expect(await shown()).toContain(end)
    })

  test('attack: an order that was refunded is no longer offered', async () => {
    const problem = { code: 'delivery-failed', detail: 'Refunded.', orderStatus: 'refunded' }
    await intercept((route, isPaid) =>
      isPaid ? route.fulfill({ status: 502, json: problem }) : undefined,
    )
    expect(await press()).toBe('Refunded.')
    expect(await kept()).toBe('[]')
  })
})

describe.skipIf(isMissing)('signing something else', () => {
  beforeEach(open)

  test('attack: a price above that of the page is not signed', async () => {
    expect(await shop.app.reload(dearer())).toEqual([])
    try {
      expect(await press()).toContain('The price is 0.50 USDC on Base now')
      expect(wallet.signed).toEqual([])
      await page.reload()
      expect(await press()).toBe('Paid and delivered.')
    } finally {
      await shop.app.reload(shop.config)
    }
  })

  test('attack: a wallet that gives no signature pays nothing, and the page says so', async () => {
    const signTypedData = async () => '0x' as const
    wallet.account = { ...buyer, signTypedData }
    expect(await press()).toBe('The wallet gave no signature. Nothing was paid.')
    expect(await kept()).toBe('[]')
  })
})

describe.skipIf(isMissing)('an offer of something else', () => {
  // Nothing is kept of an offer that is not signed: one page asks for each.
  beforeAll(open)
  beforeEach(async () => {
    if (!isMissing) await reset()
  })

  const permit2 = { assetTransferMethod: 'permit2' }
  for (const [name, change] of [
    ['another spender', { extra: { ...permit2, spender: account(9).address } }],
    ['no spender', { extra: { ...permit2, spender: undefined } }],
    ['another way to pay', { extra: { assetTransferMethod: 'erc7710' } }],
    ['an amount in hex', { amount: '0x1388' }],
    ['a negative amount', { amount: '-5' }],
    ['no amount', { amount: '0' }],
    ['a payee that is no address', { payTo: 'shop.eth' }],
    ['another asset', { asset: account(9).address }],
    ['another chain', { network: 'eip155:1' }],
  ] as const)
    test(`attack: an offer with ${name} is not signed`, async () => {
      await changeOffers(({ extra, ...accepted }) => ({
        ...accepted,
        ...change,
        extra: { ...(extra as Json), ...('extra' in change && change.extra) },
      }))
      // What the test before has left would be right, too.
      await page.locator('.progress').evaluate((each) => each.replaceChildren())
      expect(await press()).toContain('This network is not offered now.')
      expect(await kept()).toBe('[]')
      expect(wallet.signed).toEqual([])
    })
})

describe.skipIf(isMissing)('scripts of strangers', () => {
  beforeEach(open)

  const script = 'localStorage.setItem("ran", "1")'
  for (const [name, type, body] of [
    [
      'an SVG',
      'image/svg+xml',
      `<svg xmlns="http://www.w3.org/2000/svg"><script>${script}</script></svg>`,
    ],
    ['a page that is called an image, too,', 'image/png, text/html', `<script>${script}</script>`],
  ] as const)
    test(`attack: ${name} runs nothing on our origin in a tab of its own`, async () => {
      shop.upstream.script = (_, reply) => reply.send(200, body, { 'content-type': type })
      expect(await press()).toBe('Paid and delivered.')
      const sources = await page
        .locator('.result img')
        .evaluateAll((images) => images.map((image) => image.getAttribute('src') ?? ''))
      const tab = await page.context().newPage()
      for (const source of sources) await tab.goto(source)
      expect(await page.evaluate('localStorage.getItem("ran")')).toBe(null)
      expect(sources.every((source) => source.startsWith('data:image/svg+xml;'))).toBe(true)
      await tab.close()
    })
})
