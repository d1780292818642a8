import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Browser, Page } from 'playwright-core'
import { type Address, encodeFunctionData, parseAbi } from 'viem'
import { verifyReceipt } from '../../src/cli/buy/receipt'
import type { Config } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import {
  chromiumPath,
  colourRules,
  complaintsOf,
  startBrowser,
  violationsOf,
} from '../harness/browser'
import { setAutomine } from '../harness/chains'
import { exitCode } from '../harness/command'
import { payee, type Shop, startShop } from '../harness/shop'
import { type BrowserWallet, installWallet } from '../harness/wallet'
import { until } from '../harness/world'

const isMissing = chromiumPath === undefined
if (isMissing)
  process.stderr.write('SKIPPED: the tests of wallets need Chromium (apt-get install chromium)\n')

const [base, robinhood, sepolia] = ['eip155:8453', 'eip155:4663', 'eip155:84532'] as const
const path = '/m/shop/item'
const price = 5_000n

let shop: Shop
let browser: Browser
let page: Page
let wallet: BrowserWallet
let complaints: string[] = []
beforeAll(async () => {
  if (isMissing) return
  // Permit2 is the only way on one network.
  const adjust = (config: Config): Config => ({
    ...config,
    merchants: config.merchants.flatMap((each) => {
      const [first] = each.routes
      if (each.slug !== 'shop' || first === undefined) return [each]
      const any = { ...first, path: '', upstreamPath: '', tail: 'optional', params: [] } as const
      return [each, { ...each, slug: 'open', title: 'Open', routes: [any] }]
    }),
    networks: config.networks.map((network) =>
      network.id === robinhood
        ? { ...network, asset: { ...network.asset, transfer: ['permit2'] } }
        : network,
    ),
  })
  ;[shop, browser] = await Promise.all([startShop({ adjust }), startBrowser()])
  page = await (await browser.newContext()).newPage()
  complaintsOf(page, (text) => complaints.push(text))
  wallet = await installWallet(page, Object.values(shop.chains), account(1).local())
})
afterAll(async () => {
  if (isMissing) return
  await browser.close()
  await shop.stop()
})
beforeEach(async () => {
  if (isMissing) return
  Object.assign(wallet, { account: account(1).local(), chainId: 8453, asked: [], signed: [] })
  wallet.refused.clear()
  wallet.unknown.clear()
  shop.upstream.script = undefined
  // The next page finds nothing of the test before.
  if (page.url() !== 'about:blank') await page.evaluate('localStorage.clear()')
})

async function open(target = path) {
  const visit = await page.goto(shop.url + target)
  complaints = []
  return visit
}

const progress = () => page.locator('.progress')
const said = async () => (await progress().textContent()) ?? ''
const payButton = () => page.getByRole('button', { name: 'Pay with Demo Wallet' })
const titleOfPanel = () => page.locator('#pay').textContent()
const again = () => page.getByRole('button', { name: 'Fetch the answer' })
const signatures = () => wallet.asked.filter((method) => method === 'eth_signTypedData_v4').length
const kept = () => page.evaluate('JSON.stringify(Object.keys(localStorage))')

const abi = parseAbi(['function mint(address to, uint256 value)'])

async function mint(network: typeof sepolia, to: Address, value: bigint): Promise<void> {
  const asset = shop.config.networks.find(({ id }) => id === network)?.asset.address
  const data = encodeFunctionData({ abi, functionName: 'mint', args: [to, value] })
  const call = { from: account(9).address, to: asset, data }
  await shop.chains[network]?.rpc('eth_sendTransaction', [call])
  await until('the money arrives', async () => (await shop.balance(network, to)) >= value)
}

/** Whether the upper edge of each element is in the window. */
function inView(...selectors: string[]): Promise<boolean[]> {
  return page.evaluate(`${JSON.stringify(selectors)}.map((selector) => {
    const { top } = document.querySelector(selector).getBoundingClientRect()
    return top >= 0 && top < innerHeight
  })`)
}

/** Presses a button and waits for the end of what it starts. */
async function press(button = payButton()): Promise<string> {
  await button.click()
  await page.locator('.wallet[data-busy=false]').waitFor()
  return said()
}

describe.skipIf(isMissing)('the page of a paid address', () => {
  test('the page of a paid address has the status and the headers of the 402 that a program gets', async () => {
    const program = await fetch(shop.url + path)
    const visit = await open()
    const headers = await visit?.allHeaders()
    expect(visit?.status()).toBe(402)
    const ofPage = ['content-security-policy', 'content-type', 'content-length', 'referrer-policy']
    for (const [name, value] of program.headers) {
      if (ofPage.includes(name)) continue
      // Challenges differ in each answer.
      const sent = headers?.[name] ?? ''
      const isSame = name === 'cache-control' || name.startsWith('access-') ? sent === value : true
      expect([name, sent !== '', isSame]).toEqual([name, true, true])
    }
    expect(program.headers.get('content-type')).toBe('application/problem+json')
    expect(headers?.['content-type']).toBe('text/html; charset=utf-8')
    const html = { accept: 'text/html', 'sec-fetch-mode': 'cors' }
    const script = await fetch(shop.url + path, { headers: html })
    expect(script.headers.get('content-type')).toBe('application/problem+json')
  })

  test('the page of a paid address has no fault in light, in dark and at 360 pixels, before and after a payment', async () => {
    await open()
    for (const isPaid of [false, true]) {
      if (isPaid) expect(await press()).toBe('Paid and delivered.')
      expect(await violationsOf(page)).toEqual([])
      await page.emulateMedia({ colorScheme: 'dark' })
      expect(await violationsOf(page, { rules: colourRules })).toEqual([])
      await page.emulateMedia({ colorScheme: 'light' })
      await page.setViewportSize({ width: 360, height: 740 })
      expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(360)
      await page.setViewportSize({ width: 1280, height: 720 })
    }
  })

  test('the page of a paid address names the parameters that would be refused, and offers no payment', async () => {
    await open('/m/shop/form?symbol=toolong')
    expect(await page.locator('main').textContent()).toContain('symbol')
    const form = page.getByRole('link', { name: 'Correct the values in a form' })
    await form.waitFor()
    expect(await payButton().count()).toBe(0)
    expect(await page.getByText('Or pay from a program').count()).toBe(0)
    await form.click()
    expect(await page.getByLabel('symbol').inputValue()).toBe('toolong')
    // The form offers to pay, and the fault is found before anything is signed.
    expect(await press()).toContain('Nothing was paid.')
    expect(signatures()).toBe(0)
  })

  test('an address where nothing is sold is a page with its problem', async () => {
    const visit = await open('/m/nothing')
    expect(visit?.status()).toBe(404)
    expect(await page.locator('h1').textContent()).toBe('Not Found')
    expect(await violationsOf(page)).toEqual([])
  })
})

describe.skipIf(isMissing)('paying on the page of a merchant', () => {
  test('the form of a merchant comes back for another request, not beside an answer', async () => {
    await open('/merchants/shop?route=/item')
    await page.locator('.compose').waitFor({ state: 'attached' })
    const parts = ['.compose', '.asking', '.programs', '.wallet select']
    const seen = async () => {
      const found = await Promise.all(parts.map((part) => page.locator(part).isVisible()))
      return parts.filter((_, at) => found[at])
    }
    const before = await seen()
    expect(await press()).toBe('Paid and delivered.')
    expect(await seen()).toEqual([])
    await page.getByRole('button', { name: 'Make another request' }).click()
    expect(await seen()).toEqual(before)
    expect(before.length).toBeGreaterThan(2)
    expect(await payButton().count()).toBe(1)
    expect(signatures()).toBe(1)
  })

  test('a route of any path asks for the path before it sells', async () => {
    await open('/m/open')
    expect(new URL(page.url()).pathname).toBe('/merchants/open')
    const named = page.getByText('Name the path that you want to buy.')
    await named.waitFor()
    expect(await payButton().count()).toBe(0)
    const path = page.getByLabel('path required')
    await path.fill('/')
    expect(await page.locator('.wallet').getAttribute('data-target')).toBe('/m/open/')
    await path.fill('')
    await named.waitFor()
    await path.fill('/item/')
    expect(await page.locator('.wallet').getAttribute('data-target')).toBe('/m/open/item')
    expect(await press()).toBe('Paid and delivered.')
    expect(await violationsOf(page)).toEqual([])
  })
})

describe.skipIf(isMissing)('a merchant that cannot be paid', () => {
  test('a merchant without its key has no button in a browser with a wallet', async () => {
    await open('/merchants/closed')
    await page.locator('.wallet').getByText('This merchant is out of service').waitFor()
    expect(await page.locator('#try :is(button, select, .button):visible').count()).toBe(0)
    expect(await page.locator('.head .button').count()).toBe(0)
    expect(await violationsOf(page)).toEqual([])
  })
})

describe.skipIf(isMissing)('paying with a wallet', () => {
  beforeEach(() => open())

  for (const [network, methods] of [
    [base, ['TransferWithAuthorization']],
    [sepolia, ['TransferWithAuthorization']],
    [robinhood, ['PermitWitnessTransferFrom']],
  ] as const)
    test(`a wallet buys on ${network}, and the page shows the answer and the receipt`, async () => {
      const before = await shop.balance(network, payee)
      await page.selectOption('.wallet select', network)
      expect(await press()).toBe('Paid and delivered.')
      expect(await shop.balance(network, payee)).toBe(before + price)
      expect(wallet.signed.map(({ primaryType }) => primaryType)).toEqual([...methods])
      expect(await page.locator('.result h2').allTextContents()).toEqual(['The answer', 'Receipt'])
      expect(
        await page.locator('.result dd [data-copy]').first().getAttribute('data-copy'),
      ).toMatch(/^0x[0-9a-f]{64}$/)
      expect(await titleOfPanel()).toBe('Your answer')
      expect(await page.getByText('Or pay from a program').isVisible()).toBe(false)
      for (const [name, file] of [
        ['Download the answer', /^item$/],
        ['Download the receipt', /^receipt-[0-9a-f]{8}\.json$/],
      ] as const)
        expect(await page.getByRole('link', { name }).getAttribute('download')).toMatch(file)
      // Only the receipt is kept.
      expect(await kept()).toBe('["turnpike:receipts"]')
      expect(complaints.filter((text) => !text.includes('status of 402'))).toEqual([])
    })

  test('after a payment the answer is in view, and the button says that it pays again', async () => {
    await page.setViewportSize({ width: 390, height: 700 })
    // Nothing scrolls smoothly, so the place is final at once.
    await page.emulateMedia({ reducedMotion: 'reduce' })
    try {
      expect(await press()).toBe('Paid and delivered.')
      expect(await inView('.progress', '.result pre')).toEqual([true, true])
      expect(await page.evaluate('document.activeElement.textContent')).toBe('The answer')
      const more = page.getByRole('button', { name: 'Pay again with Demo Wallet' })
      expect([await payButton().count(), await more.count()]).toEqual([0, 1])
      expect(await press(more)).toBe('Paid and delivered.')
      expect(signatures()).toBe(2)
    } finally {
      await page.emulateMedia({ reducedMotion: null })
      await page.setViewportSize({ width: 1280, height: 720 })
    }
  })

  test('a receipt says what was paid to whom and when, is printed alone, and can be verified', async () => {
    expect(await press()).toBe('Paid and delivered.')
    const receipt = page.locator('.receipt')
    expect(await receipt.locator('p').first().textContent()).toMatch(
      /^You paid 0\.005 USDC to shop, \d{4}-\d\d-\d\d \d\d:\d\d UTC\.$/,
    )
    expect(await receipt.locator(`[data-copy="${payee}"]`).count()).toBe(1)
    await page.evaluate('window.print = () => { document.title = "printed" }')
    await receipt.getByRole('button', { name: 'Print' }).click()
    expect(await page.title()).toBe('printed')
    await page.emulateMedia({ media: 'print' })
    const seen = ['.receipt dl', '.bar', 'h1', '#pay', '.result > pre', '.receipt .print']
    const isSeen = await Promise.all(seen.map((part) => page.locator(part).first().isVisible()))
    await page.emulateMedia({ media: 'screen' })
    expect(seen.filter((_, at) => isSeen[at])).toEqual(['.receipt dl'])
    const [file] = JSON.parse(await page.evaluate("localStorage.getItem('turnpike:receipts')"))
    const lines: string[] = []
    const verified = await exitCode(
      (options: Parameters<typeof verifyReceipt>[0]) => verifyReceipt(options),
      {
        operand: JSON.stringify(file),
        key: shop.app.receiptAddress,
        request: `${shop.url}${path}`,
        out: (line: string) => void lines.push(line),
      },
    )
    expect([verified, lines.at(-1)]).toEqual([0, 'valid: signed by the receipt key'])
  })

  test('a refused second payment leaves the answer of the first one', async () => {
    expect(await press()).toBe('Paid and delivered.')
    wallet.refused.add('eth_signTypedData_v4')
    const more = page.getByRole('button', { name: 'Pay again with Demo Wallet' })
    expect(await press(more)).toBe('You did not sign. Nothing was paid.')
    expect(await titleOfPanel()).toBe('Your answer')
    expect(await page.locator('.result pre').first().isVisible()).toBe(true)
    expect(await page.getByText('Or pay from a program').isVisible()).toBe(false)
  })

  test('a press reaches its button while other payments and wallets are announced', async () => {
    // What another window keeps of another purchase, and a wallet that announces itself again.
    const announced = `for (const type of ['storage', 'turnpike:wallets', 'eip6963:requestProvider'])
      dispatchEvent(new Event(type))`
    const { x = 0, y = 0 } = (await payButton().boundingBox()) ?? {}
    await page.mouse.move(x + 5, y + 5)
    await page.mouse.down()
    await page.evaluate(announced)
    await page.mouse.up()
    await page.getByText('Paid and delivered.').waitFor()
  })

  test('a refusal leaves the focus on the button', async () => {
    wallet.refused.add('eth_requestAccounts')
    await payButton().focus()
    await page.keyboard.press('Enter')
    await page.getByText('You did not connect the wallet.').waitFor()
    await page.locator('.wallets button:focus').waitFor()
  })

  test('a wallet that has not approved Permit2 signs a permit of exactly the price', async () => {
    wallet.account = account(4).local()
    wallet.chainId = 4663
    expect(await press()).toBe('Paid and delivered.')
    expect(wallet.signed.map(({ primaryType }) => primaryType)).toEqual([
      'Permit',
      'PermitWitnessTransferFrom',
    ])
    expect(wallet.signed[0]?.message.value).toBe(String(price))
  })

  test('the page pays on the network of the wallet unless another one is chosen', async () => {
    wallet.chainId = 84532
    const before = await shop.balance(sepolia, payee)
    expect(await press()).toBe('Paid and delivered.')
    expect(await shop.balance(sepolia, payee)).toBe(before + price)
    expect(wallet.asked).not.toContain('wallet_switchEthereumChain')
  })

  for (const [name, chainId, prepare] of [
    ['has nothing on its network and on another one', 4663, () => undefined],
    ['does not know the first network', 1, () => wallet.unknown.add(4663)],
  ] as const)
    test(`a wallet that ${name} pays on the one where it has the price`, async () => {
      wallet.account = account(6).local()
      wallet.chainId = chainId
      prepare()
      await mint(sepolia, wallet.account.address, price)
      const before = await shop.balance(sepolia, payee)
      expect(await press()).toBe('Paid and delivered.')
      expect(await shop.balance(sepolia, payee)).toBe(before + price)
      expect(signatures()).toBe(1)
      expect(await page.locator('.wallet select').inputValue()).toBe(sepolia)
    })

  test('error: a wallet that can pay no offer is told the balance of each network, and asked for no signature', async () => {
    wallet.account = account(6).local()
    const before = shop.counts()
    expect(await press()).toStartWith('0x976E…0aa9 has 0.00 USDC on Base, and the price is 0.005.')
    const others = await page.locator('.progress .fault').allTextContents()
    expect(others.map((text) => text.slice(0, text.indexOf(', and')))).toEqual([
      '0x976E…0aa9 has 0.00 USDG on Robinhood Chain',
      '0x976E…0aa9 has 0.00 USDC on Base Sepolia',
    ])
    expect([shop.counts(), signatures(), await kept()]).toEqual([before, 0, '[]'])
    // Each of them is asked for again, also after money arrived at one.
    expect(await page.locator('.wallet select').inputValue()).toBe('')
  })

  test('error: a wallet that is short on the chosen network is asked for no other one', async () => {
    wallet.account = account(6).local()
    await page.selectOption('.wallet select', base)
    expect(await press()).toContain('Add USDC to it, or choose another network, and try again.')
    expect(await page.locator('.progress .fault').count()).toBe(0)
    expect(wallet.asked).not.toContain('wallet_switchEthereumChain')
  })

  for (const [name, prepare, text, button] of [
    [
      'does not connect',
      () => wallet.refused.add('eth_requestAccounts'),
      'You did not connect the wallet. Nothing was paid.',
      'Pay with Demo Wallet',
    ],
    [
      'does not sign',
      () => wallet.refused.add('eth_signTypedData_v4'),
      'You did not sign. Nothing was paid.',
      'Pay with Demo Wallet',
    ],
    [
      'stays on another network',
      () => {
        wallet.chainId = 1
        wallet.refused.add('wallet_switchEthereumChain')
      },
      'The wallet stayed on another network. Nothing was paid',
      'Switch Demo Wallet to Robinhood Chain and pay',
    ],
    [
      'does not know the network',
      () => {
        wallet.chainId = 1
        for (const id of [8453, 84532, 4663]) wallet.unknown.add(id)
      },
      'The wallet does not know Robinhood Chain. Nothing was paid',
      'Switch Demo Wallet to Robinhood Chain and pay',
    ],
    [
      'has too little',
      () => {
        wallet.account = account(6).local()
      },
      'has 0.00 USDC on Base, and the price is 0.005. Nothing was paid.',
      'Try again with Demo Wallet',
    ],
  ] as const)
    test(`error: a wallet that ${name} pays nothing, and the page says so`, async () => {
      const before = shop.counts()
      prepare()
      expect(await press()).toContain(text)
      expect(shop.counts()).toEqual(before)
      expect(await kept()).toBe('[]')
      const buttons = page.locator('.wallets button')
      expect(await buttons.allTextContents()).toEqual([button])
      expect(await buttons.isEnabled()).toBe(true)
      expect(await titleOfPanel()).toBe('Pay with a wallet')
    })
})

describe.skipIf(isMissing)('an approval of Permit2 that is missing', () => {
  beforeEach(() => open())
  test('error: a missing approval that nothing can replace is named with its amount, and nothing is signed', async () => {
    wallet.account = account(4).local()
    wallet.chainId = 4663
    await page.route(`**${path}`, async (route) => {
      const response = await route.fetch()
      const headers = response.headers()
      const required = JSON.parse(atob(headers['payment-required'] ?? ''))
      const { eip2612GasSponsoring: _, ...extensions } = required.extensions
      const changed = btoa(JSON.stringify({ ...required, extensions }))
      await route.fulfill({ response, headers: { ...headers, 'payment-required': changed } })
    })
    const before = shop.counts()
    try {
      expect(await press()).toMatch(/^Permit2 may take 0\.00 USDG of 0x.+Nothing was paid\.$/)
    } finally {
      await page.unroute(`**${path}`)
    }
    expect([shop.counts(), signatures(), await kept()]).toEqual([before, 0, '[]'])
  })
})

describe.skipIf(isMissing)('a payment whose answer does not arrive', () => {
  beforeEach(() => open())
  test('a pending payment is not signed again, also after the page was left', async () => {
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    const before = await shop.balance(base, payee)
    await setAutomine(chain, false)
    try {
      await payButton().click()
      await until(
        'it is sent',
        () => shop.rows("SELECT 1 FROM payments WHERE state = 'broadcast'").length > 0,
      )
      expect(await titleOfPanel()).toBe('Paying')
      for (const selector of ['.programs', '.wallet select', '.wallets'])
        expect([selector, await page.locator(selector).isVisible()]).toEqual([selector, false])
      await page.reload()
      expect(await page.locator('.wallets').textContent()).toContain('does not pay twice')
      expect(await titleOfPanel()).toBe('Not delivered yet: fetch it')
      for (const text of ['Or pay from a program', 'Network'])
        expect([text, await page.getByText(text).first().isVisible()]).toEqual([text, false])
      expect(await page.getByText('You may close this page.').isVisible()).toBe(true)
      expect(await progress().isVisible()).toBe(false)
      expect(await payButton().count()).toBe(0)
      const delivered = press(again())
      await mine(chain)
      expect(await delivered).toBe('Paid and delivered.')
    } finally {
      await setAutomine(chain, true)
      await mine(chain)
    }
    expect(signatures()).toBe(1)
    expect(await shop.balance(base, payee)).toBe(before + price)
  })

  test('an answer is fetched without paying again when the upstream failed', async () => {
    const before = await shop.balance(base, payee)
    shop.upstream.script = (_, reply) => reply.send(500, 'broken')
    expect(await press()).toBe('The seller answered 500.')
    expect(await page.locator('.wallets').textContent()).toContain('You paid 0.005 USDC on Base')
    await page.reload()
    shop.upstream.script = (_, reply) => reply.send(200, '{"late":true}')
    expect(await press(again())).toBe('Paid and delivered.')
    expect(await page.locator('.result pre').first().textContent()).toContain('"late": true')
    expect(signatures()).toBe(1)
    expect(await shop.balance(base, payee)).toBe(before + price)
  })

  test('an answer is requested again when the connection broke, and paid once', async () => {
    const before = await shop.balance(base, payee)
    let cuts = 0
    await page.route(`**${path}`, async (route) => {
      const isPaid = route.request().headers()['payment-signature'] !== undefined
      if (!isPaid || cuts > 0) return route.continue()
      cuts++
      // The server has the payment; its answer is lost.
      await route.fetch()
      return route.abort()
    })
    try {
      expect(await press()).toContain('The connection failed.')
      expect(await press(again())).toBe('Paid and delivered.')
    } finally {
      await page.unroute(`**${path}`)
    }
    expect([cuts, signatures()]).toEqual([1, 1])
    expect(await shop.balance(base, payee)).toBe(before + price)
  })
})

describe.skipIf(isMissing)('a wallet in a window of its own', () => {
  beforeEach(() => open())
  test('a wallet in a window of its own can answer to our page, and a page that opens ours cannot', async () => {
    const told = "if (opener) opener.postMessage('from the wallet', '*')"
    const opening = `<a href="${shop.url}${path}" target="_blank" rel="opener">Open</a>`
    const other = Bun.serve({
      port: 0,
      hostname: '127.0.0.1',
      fetch: ({ url }) =>
        new Response(url.endsWith('/wallet') ? `<script>${told}</script>` : opening, {
          headers: { 'content-type': 'text/html' },
        }),
    })
    try {
      const answered = page.evaluate<string>(`new Promise((resolve) => {
        addEventListener('message', ({ data }) => resolve(data))
        open('${other.url}wallet')
      })`)
      expect(await answered).toBe('from the wallet')
      const visitor = await page.context().newPage()
      await visitor.goto(other.url.href)
      const opened = visitor.waitForEvent('popup')
      await visitor.getByText('Open').click()
      const ours = await opened
      await ours.waitForLoadState()
      expect(await ours.evaluate('window.opener === null')).toBe(true)
      for (const each of page.context().pages()) if (each !== page) await each.close()
    } finally {
      await other.stop(true)
    }
  })
})

describe.skipIf(isMissing)('texts of strangers', () => {
  test('attack: an answer with markup and scripts is shown as text', async () => {
    const markup = '<!doctype html><img src=x onerror="document.title=1"><script>alert(1)</script>'
    shop.upstream.script = (_, reply) => reply.send(200, markup, { 'content-type': 'text/html' })
    await open()
    const title = await page.title()
    expect(await press()).toBe('Paid and delivered.')
    expect(await page.locator('.result pre').first().textContent()).toBe(markup)
    expect([await page.title(), await page.locator('.result img').count()]).toEqual([title, 0])
  })

  test('attack: the name and the icon of a wallet run nothing and load nothing', async () => {
    const hostile = await (await browser.newContext()).newPage()
    const requested: string[] = []
    hostile.on('request', (request) => requested.push(request.url()))
    const found: string[] = []
    complaintsOf(hostile, (text) => found.push(text))
    await installWallet(hostile, [], account(1).local(), {
      name: '<img src=x onerror=alert(1)>'.padEnd(500, 'x'),
      icon: 'https://tracker.example.com/pixel.png',
    })
    await hostile.goto(shop.url + path)
    const button = hostile.locator('.wallets button')
    await button.waitFor()
    expect(await button.textContent()).toContain('Pay with <img src=x onerror=alert(1)>')
    expect(await hostile.locator('.wallets img').count()).toBe(0)
    expect(requested.filter((url) => !url.startsWith(shop.url))).toEqual([])
    expect(found.filter((text) => !text.includes('status of 402'))).toEqual([])
    await hostile.close()
  })
})
