import { describe, expect, test } from 'bun:test'
import type { Order } from '../../db/Order'
import type { Config } from '../../src/config/Config'
import type { Details } from '../../src/settlement/state/availability'
import type { Actions, AdminSources } from '../../src/web/admin/sources'
import {
  type AdminOptions,
  adminPages,
  describeAsset,
  insertPayment,
  token,
} from '../harness/admin'
import { configOf, small } from '../harness/config'
import { merchant, route } from '../harness/merchants'

const now = Date.parse('2026-11-20T10:30:00Z')
const order = `ord_${'1'.repeat(32)}`
const paths = [
  '/admin',
  '/admin/sales',
  '/admin/funnel',
  '/admin/webhooks',
  '/admin/payments',
  '/admin/orders',
  '/admin/merchants',
  '/admin/networks',
  '/admin/channels',
  '/admin/grants',
  '/admin/facilitator',
  '/admin/configuration',
] as const

function networkOf(changes: Partial<Details> = {}): Details {
  const relayer = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
  const relayers = [{ relayer, ready: true, inFlight: 0, balanceWei: 42n * 10n ** 16n, nonce: 7 }]
  return {
    network: 'eip155:8453',
    ready: true,
    relayer,
    clockAheadMs: { min: 0, max: 0 },
    relayers,
    cost: { gas: 100_000n, priceWei: 1_000_000_000n },
    hosts: ['rpc.example.com'],
    block: 1_234_567n,
    blockAgeMs: 2_000,
    baseFeeWei: 1_000_000_000n,
    tipWei: 1_000_000n,
    newHeads: true,
    waiting: 0,
    gas: [{ product: 'gateway', spentWei: 0n, budgetWei: 10n ** 16n }],
    ...changes,
  } as Details
}

function orderOf(text: string): Order {
  const address = '0x70997970C51812dc3A010C7d01b50e0d17dc79C8'
  return {
    ...{ id: order, paymentId: 'pay_1', network: 'eip155:8453', symbol: text, token: address },
    ...{ pool: address, poolFee: 1, payer: address, recipient: address, usdgAtomic: 1n },
    ...{ totalAtomic: 2_000_000n, quotedAtomic: 1n, floorAtomic: 1n, state: 'held' },
    ...{ settlementTx: '0x1', refundAttempts: 0, createdAt: now, updatedAt: now, heldReason: text },
  } as unknown as Order
}

/** The pages of a signed-in operator. */
async function signedIn(options: AdminOptions = {}) {
  const app = adminPages(options)
  await describeAsset(app.ledger, now)
  const session = await app.signIn()
  const read = async (path: string) => (await app.get(path, session)).text()
  const post = (path: string, fields: Record<string, string> = {}) =>
    app.post(path, { csrf: session.csrf, ...fields }, session)
  return { app, session, read, post }
}

describe('the pages', () => {
  test('each page is for operators only, and has no script', async () => {
    const { app, session } = await signedIn()
    for (const path of [...paths, '/admin/payments.csv', '/admin/actions/pause']) {
      const answer = await app.get(path)
      expect([path, answer.status]).toEqual([path, path === '/admin' ? 200 : 303])
      expect((await app.get(path, { authorization: 'Bearer wrong' })).status).toBe(401)
      app.state.now += 60_000
      for (const headers of [session, { authorization: `Bearer ${token}` }]) {
        const shown = await app.get(path, headers)
        expect(shown.headers.get('cache-control')).toBe('no-store')
        const text = await shown.text()
        expect(text).not.toMatch(/<script|<style|\sstyle="|\son[a-z]+="|javascript:/)
      }
    }
  })

  test('error: hostile texts of merchants, buyers, orders, nodes and upstreams are escaped', async () => {
    const hostile = `</code></title><script>alert(1)</script><img src=x onerror=alert(1)>"' onfocus=alert(1)`
    const base = configOf(small)
    const one = merchant('one', { title: hostile, routes: [route('/a')] })
    const config = {
      ...base,
      service: { ...base.service, title: hostile, guidance: hostile, contact: hostile },
      networks: base.networks.map((network) => ({ ...network, name: hostile })),
      merchants: [{ ...one, outOfService: hostile, headers: { [hostile]: 'secret' } }],
    }
    const pausedRelayer = { relayer: hostile, ready: false, reason: hostile, inFlight: 0 }
    const network = networkOf({ ready: false, reason: hostile, remedy: hostile })
    const [own] = config.merchants
    if (own === undefined) throw new Error('no merchant')
    const sources: Partial<AdminSources> = {
      networks: () => [
        { ...network, hosts: [hostile], relayers: [pausedRelayer] } as unknown as Details,
      ],
      merchants: () => [{ merchant: own, health: 'out-of-service', times: undefined }],
      openCircuits: () => [hostile],
      heldOrders: () => Promise.resolve([orderOf(hostile)]),
      spentBudgets: async () => [{ network: hostile, reason: hostile }],
      storageFault: () => hostile,
      pending: async () => ({
        count: 1,
        oldest: [
          {
            ...{ id: hostile, network: 'eip155:8453', merchant: hostile, route: hostile },
            ...{ amountAtomic: 1n, state: 'broadcast', transaction: '0x1', createdAt: 0 },
          },
        ],
      }),
    }
    const { app, read } = await signedIn({ config, sources })
    const { id } = insertPayment(app.db, {
      at: now,
      merchant: 'one',
      route: hostile,
      text: hostile,
    })
    insertPayment(app.db, { at: now, merchant: hostile, payer: '0x'.padEnd(42, 'a') })
    const search = `/admin/payments?${new URLSearchParams({ q: 'x', route: hostile })}`
    const confirm = '/admin/actions/pause?subject=merchant:one'
    for (const path of [
      ...paths,
      search,
      confirm,
      `/admin/payments/${id}`,
      '/admin/payments/%3Cb%3E',
    ]) {
      const text = await read(path)
      expect([path, text.includes('&lt;script&gt;')]).toEqual([path, true])
      expect(text.match(/<script|<img|<\/code><\/title>/g)).toBeNull()
      const tag = /<!doctype html>|<\/?[a-z][a-z0-9]*(?:\s+[a-zA-Z0-9-]+(?:="[^"<>]*")?)*\s*\/?>/g
      expect([path, text.replace(tag, '').match(/.{0,40}[<>].{0,40}/)]).toEqual([path, null])
    }
  })

  test('the configuration shows names of secrets and no value', async () => {
    const base = configOf(small)
    const rpc = 'https://rpc.example.com/v2/rpc-s3cret'
    const one = merchant('one', {
      headers: { Authorization: 'Bearer header-s3cret' },
      secrets: ['header-s3cret'],
      upstream: new URL('https://user:password-s3cret@up.example.com/path-s3cret'),
      routes: [
        { ...route('/a'), query: { key: 'query-s3cret' }, fixedQuery: { k: 'fixed-s3cret' } },
      ],
    })
    const config = {
      ...base,
      networks: base.networks.map((each) => ({ ...each, rpcUrls: [rpc], wsUrl: `${rpc}-ws` })),
      merchants: [one],
      webhooks: [
        {
          ...{ id: 'a'.repeat(16), url: new URL('https://hook.example.com/hook-s3cret') },
          ...{ events: [], secrets: [new TextEncoder().encode('key-s3cret')], allowPrivate: false },
        },
      ],
    }
    const text = await (await signedIn({ config })).read('/admin/configuration')
    for (const name of ['Authorization', 'rpc.example.com', 'hook.example.com', 'ADMIN_TOKEN'])
      expect(text).toContain(name)
    expect(text).not.toContain('s3cret')
    expect(text).not.toContain(token)
  })
})

describe('what needs attention', () => {
  const attention = async (sources: Partial<AdminSources>) => {
    const text = await (await signedIn({ sources })).read('/admin')
    return text.slice(text.indexOf('id="attention"'), text.indexOf('id="days"'))
  }

  test('a relayer without gas has the amount, the address and a code for wallets', async () => {
    const relayer = '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266'
    const reason = 'too little for gas'
    const paused = {
      relayer,
      ready: false,
      reason,
      inFlight: 0,
      balanceWei: 0n,
      ...{ fundWei: 2n * 10n ** 16n, topUpWei: 2n * 10n ** 16n },
      ...{ remedy: undefined, nonce: undefined },
    } as const
    const text = await attention({
      networks: () => [networkOf({ ready: false, reason, relayers: [paused] })],
    })
    expect(text).toContain('Send about 0.02 ETH ($80.00) on Base')
    expect(text).toContain(`<code>${relayer}</code>`)
    expect(text).toContain('<svg class="qr"')
    // Read by another decoder (jsQR 1.4.0) when this was written.
    const size = Number(/class="qr" viewBox="0 0 (\d+) /.exec(text)?.[1]) - 8
    const code = Array.from({ length: size }, (_, y) => {
      const runs = [...text.matchAll(new RegExp(`M(\\d+) ${y + 4}h(\\d+)`, 'g'))]
      const isDark = (x: number) =>
        runs.some(([, from, length]) => x >= Number(from) && x < Number(from) + Number(length))
      return Array.from({ length: size }, (_, x) => Number(isDark(x + 4))).join('')
    })
    expect(new Bun.CryptoHasher('sha256').update(JSON.stringify(code)).digest('hex')).toBe(
      '4f146e49f46dee4545942ad43772a0bfacb24888d404e302fe2fe4de04e24277',
    )
  })

  test('held orders, circuits, budgets near their end and faults of the disk are named', async () => {
    const gas: Details['gas'] = [
      { product: 'gateway', spentWei: 79n, budgetWei: 100n },
      { product: 'facilitator', spentWei: 80n, budgetWei: 100n },
      { product: 'desk', spentWei: 100n, budgetWei: 100n },
      { product: 'sponsor', spentWei: 0n, budgetWei: 0n },
    ]
    const text = await attention({
      networks: () => [networkOf({ gas })],
      heldOrders: () => Promise.resolve([orderOf('refund-failed')]),
      openCircuits: () => ['https://up.example.com'],
      storageFault: () => 'SQLITE_FULL',
    })
    expect(text).toContain('refund-failed')
    expect(text).toContain('https://up.example.com does not answer')
    expect(text).toContain('80.0 % of today&#39;s gas of the facilitator on Base')
    expect(text).toContain('100.0 % of today&#39;s gas of the desk on Base')
    expect(text).not.toContain('gas of the gateway')
    expect(text).toContain('SQLITE_FULL')
    // The most urgent first.
    expect(text.indexOf('SQLITE_FULL')).toBeLessThan(text.indexOf('refund-failed'))
    expect(await attention({})).toContain('Nothing: all that is configured works.')
  })

  test('another host than that of a local base_url is in the list, as a hint', async () => {
    const text = await attention({ otherHost: () => 'shop.example' })
    expect(text).toContain('a request came for another host')
    expect(text).toContain('<code>shop.example</code>, which may be invented')
  })

  test('a payment that was not delivered is in the list until the buyer has it', async () => {
    const { app, read } = await signedIn()
    const { id } = insertPayment(app.db, { at: now - 90_000, isDelivered: false })
    // This one is being delivered.
    const young = insertPayment(app.db, { at: now - 1_000, isDelivered: false })
    const list = async () => {
      const text = await read('/admin')
      return text.slice(text.indexOf('id="attention"'), text.indexOf('id="days"'))
    }
    const open = await list()
    expect(open).toContain('1 payment without an answer: the buyer can still fetch it')
    expect(open).toContain('href="/admin/payments?state=undelivered"')
    expect(open).not.toContain('Nothing: all')
    const fail = (payment: string, until: number) =>
      app.db.sqlite.run(
        `UPDATE payments SET redeem_token_hash = id, redeem_until = ? WHERE id = ?`,
        [until, payment],
      )
    fail(young.id, now + 1_000)
    expect(await list()).toContain('2 payments without an answer')
    const deliver = (payment: string) =>
      app.db.sqlite.run(
        `UPDATE payments SET delivery = 'delivered', attempts = 1, delivered_at = ? WHERE id = ?`,
        [now, payment],
      )
    deliver(young.id)
    fail(id, now - 1)
    const over = await list()
    expect(over).toContain('1 payment of the last 30 days can no longer be fetched')
    expect(over).not.toContain('without an answer')
    deliver(id)
    expect(await list()).toContain('Nothing: all that is configured works.')
  })

  test('a payment that waits long for a block is in the list, with its age', async () => {
    const one = { id: 'pay_1', network: 'eip155:8453', merchant: 'one', route: '/a' } as const
    const sent = { amountAtomic: 1n, state: 'broadcast', transaction: '0x1' } as const
    const waiting = (createdAt: number): Partial<AdminSources> => ({
      pending: async () => ({ count: 1, oldest: [{ ...one, ...sent, createdAt }] }),
    })
    expect(await attention(waiting(now - 60_000))).toContain('Nothing: all')
    const late = await attention(waiting(now - 20 * 60_000))
    expect(late).toContain('1 payment without a block for up to 20 min')
    expect(late).not.toContain('Nothing: all')
  })

  test('the gas that is left is that of the network with the least', async () => {
    const text = await (await signedIn({ sources: { networks: () => [networkOf()] } })).read(
      '/admin',
    )
    expect(text).toContain('Gas left, least on Base')
    expect(text).toContain('about 4,200 sales')
  })
})

describe('payments', () => {
  test('the list has pages, and the story has all that the ledger knows', async () => {
    const { app, read } = await signedIn()
    for (let index = 0; index < 60; index++)
      insertPayment(app.db, { at: now - index * 2_000, isDelivered: index < 59 })
    const { id, hash } = insertPayment(app.db, { at: now + 1, isDelivered: false })
    const first = await read('/admin/payments')
    expect(first.split('href="/admin/payments/pay_')).toHaveLength(51)
    const [head = '', row = ''] = first.split('<tr>').slice(1)
    const cellsOf = (part: string) =>
      [...part.matchAll(/<t[hd][^>]*>(.*?)<\/t[hd]>/g)].map(([, cell = '']) =>
        cell.replace(/<[^>]*>/g, ''),
      )
    const cells = cellsOf(row)
    expect(Object.fromEntries(cellsOf(head).map((name, at) => [name, cells[at]]))).toMatchObject({
      ...{ State: 'not delivered', Amount: '0.005 USDC', For: 'shop/item', Network: 'Base' },
      Received: expect.stringMatching(/^\d{4}-/),
    })
    expect(await read('/admin')).toContain('<a href="/admin/payments?state=undelivered">')
    const older = /href="(\/admin\/payments\?before=pay_[0-9a-f]+)"/.exec(first)?.[1] ?? ''
    expect((await read(older)).split('href="/admin/payments/pay_')).toHaveLength(12)
    const story = await read(`/admin/payments/${id}`)
    for (const part of [
      id,
      hash,
      'not delivered',
      'confirmed',
      '0.005 USDC',
      'The buyer can still',
    ])
      expect(story).toContain(part)
    expect(story).not.toContain('0x02')
    const nothing = await read('/admin/payments?route=/nothing')
    expect(nothing).toContain('No payment fits this search.')
    expect(nothing).toContain('<a class="button second" href="/admin/payments">')
  })

  test('the story of an undelivered payment begins with the reason and what to do', async () => {
    const config = { ...configOf(small), merchants: [merchant('one')] }
    const { app, read } = await signedIn({ config })
    const { id } = insertPayment(app.db, { at: now, isDelivered: false, merchant: 'one' })
    const story = async (changes: string) => {
      app.db.sqlite.run(`UPDATE payments SET ${changes} WHERE id = ?`, [id])
      const text = await read(`/admin/payments/${id}`)
      return text.slice(text.indexOf('<h1>'), text.indexOf('What happened'))
    }
    expect(await story('attempts = 0')).toContain('The upstream was not asked yet.')
    const failed = await story(
      `attempts = 2, upstream_status = 500, redeem_token_hash = 'h', answered = 1,
       redeem_until = ${now + 3_600_000}`,
    )
    expect(failed).toContain('The upstream answered the last of 2 attempts with 500.')
    expect(failed).toContain('To do: repair the upstream.')
    expect(failed).toContain('The buyer has a redeem token')
    expect(failed).toContain('up to 4 more times')
    expect(failed).toContain('href="/admin/actions/pause?subject=merchant:one"')
    expect(failed).not.toContain('by hand')
    expect(await story('upstream_status = NULL')).toContain('The upstream did not answer')
    expect(await story('upstream_status = 401')).toContain('refuses our credentials')
    for (const end of [`redeem_until = ${now}`, `redeem_until = ${now + 1}, attempts = 6`]) {
      const over = await story(end)
      expect(over).toContain('To do: send 0.005 USDC on Base back')
      expect(over).toContain('0x70997970C51812dc3A010C7d01b50e0d17dc79C8')
      expect(over).not.toContain('repair the upstream')
    }
  })

  test('the story links hashes to the explorer of a public network only', async () => {
    const { app, read } = await signedIn()
    const { id, hash } = insertPayment(app.db, { at: now })
    expect(await read(`/admin/payments/${id}`)).toContain(`href="https://basescan.org/tx/${hash}"`)
    const base = configOf(small)
    const networks = base.networks.map((each) => ({ ...each, rpcUrls: ['http://127.0.0.1:1'] }))
    const local = await signedIn({ config: { ...base, networks } })
    const other = insertPayment(local.app.db, { at: now })
    const story = await local.read(`/admin/payments/${other.id}`)
    expect(story).toContain(other.hash)
    expect(story).not.toContain('basescan')
  })

  test('error: an id that the ledger does not have is 404, and a wrong search says what to write', async () => {
    const { app, session, read } = await signedIn()
    for (const id of ['pay_0', 'x', "pay_0'%20OR%201=1", 'pay_'.padEnd(400, '0')])
      expect((await app.get(`/admin/payments/${id}`, session)).status).toBe(404)
    expect(await read('/admin/payments?q=hello')).toContain('Write an id such as pay_')
    expect(await read('/admin/payments?state=odd')).toContain('state is not a state.')
    expect(await read('/admin/payments?before=1')).toContain('is not an id of a payment')
    expect(await read(`/admin/payments?q=${'x'.repeat(100)}`)).toContain('is longer than')
    expect(await read('/admin/payments?q=&state=&route=')).toContain('There are no payments yet.')
  })

  test('the CSV has the lines of the search, and no cell is a formula', async () => {
    const { app, session } = await signedIn()
    await describeAsset(app.ledger, now + 1, '=cmd()')
    for (const text of ['=1+1', '+1', '-1', '@x', ' =1', 'a,"b"'])
      insertPayment(app.db, { at: now, route: text, merchant: text })
    insertPayment(app.db, { at: now, merchant: 'other' })
    const answer = await app.get('/admin/payments.csv', session)
    expect(answer.headers.get('content-type')).toStartWith('text/csv')
    expect(answer.headers.get('content-disposition')).toContain('attachment')
    const csv = await answer.text()
    expect(csv.trimEnd().split('\r\n')).toHaveLength(8)
    expect(csv).not.toMatch(/(^|,|\r\n)"?\s*[=+\-@]/)
    expect(csv).toContain("'=1+1")
    const some = await (await app.get('/admin/payments.csv?merchant=other', session)).text()
    expect(some.trimEnd().split('\r\n')).toHaveLength(2)
  })
})

const endpoint = {
  id: '0123456789abcdef',
  url: new URL('https://hooks.example.com/s3cret'),
  events: ['*'],
  secret: new Uint8Array(24),
} as unknown as Config['webhooks'][number]

describe('a period', () => {
  test('the page of sales has the figures of its days, by payer with a link, and names what is wrong', async () => {
    const { app, read } = await signedIn()
    await describeAsset(app.ledger, app.state.now)
    const payer = '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC'
    const dayMs = 86_400_000
    for (const days of [0, 1, 1, 40])
      insertPayment(app.db, { at: app.state.now - days * dayMs - 1_000, payer })
    insertPayment(app.db, { at: app.state.now - 1_000 })
    const path = '/admin/sales?from=2026-11-19&to=2026-11-19&by=payer'
    const text = await read(path)
    expect(text).toContain(`<a href="/admin/payments?q=${payer}">`)
    expect(text).toContain('<dt>Payments</dt><dd><data value="2">2</data>')
    // 2 x 0.005 USD less 2 x 10^12 wei at 4000 USD an ETH.
    expect(text).toContain('<dt>Net revenue, after gas</dt><dd><data value="2000">')
    expect(await read('/admin/sales')).toContain('<dt>Payments</dt><dd><data value="4">4</data>')
    const faults: readonly (readonly [string, string])[] = [
      ['from=2026-11-31', 'A day is not in the calendar'],
      ['from=2027-01-01', 'A day is not in the calendar, or in the future.'],
      ['from=yesterday', 'from is not a day such as 2026-11-20.'],
      ['from=2026-11-20&to=2026-11-19', 'The first day is after the last one.'],
      ['from=2020-01-01', 'Choose at most 400 days.'],
      ['by=colour', 'The grouping is not known'],
    ]
    for (const page of ['sales', 'funnel'])
      for (const [query, fault] of faults)
        expect(await read(`/admin/${page}?${query}`)).toContain(
          `<p class="fault" role="alert">${fault}`,
        )
  })

  test('a page refreshes itself for at most 15 minutes, by a header and when the reader wants it', async () => {
    const { app, session } = await signedIn()
    const refreshOf = async (path: string) => (await app.get(path, session)).headers.get('refresh')
    const text = await (await app.get('/admin/payments?state=delivered', session)).text()
    const [, href = ''] = /href="([^"]*live=\d+)"/.exec(text) ?? []
    expect(href).toContain('/admin/payments?state=delivered&amp;live=')
    const live = href.replaceAll('&amp;', '&')
    expect(await refreshOf('/admin/payments')).toBeNull()
    expect(await refreshOf(live)).toBe('5')
    expect(await refreshOf(`/admin/payments?live=${app.state.now + 86_400_000}`)).toBeNull()
    app.state.now += 15 * 60_000
    expect(await refreshOf(live)).toBeNull()
  })

  test('what is not configured is not in the navigation', async () => {
    const linksOf = async (config: Partial<Config>) => {
      const { read } = await signedIn({
        config: { ...configOf(small), stock: undefined, ...config },
      })
      const text = await read('/admin')
      return ['orders', 'grants', 'facilitator', 'webhooks'].filter((name) =>
        text.includes(`<li><a href="/admin/${name}"`),
      )
    }
    expect(await linksOf({})).toEqual([])
    expect(await linksOf({ webhooks: [endpoint] })).toEqual(['webhooks'])
    const { facilitator } = configOf(small)
    expect(await linksOf({ facilitator: { ...facilitator, payTo: 'any' } })).toEqual([
      'facilitator',
    ])
  })
})

describe('actions', () => {
  const subjects: readonly (readonly [name: string, subject: string])[] = [
    ['pause', 'network:eip155:8453'],
    ['resume', 'network:eip155:8453'],
    ['pause', 'merchant:one'],
    ['retry', order],
    ['test', 'webhook:0123456789abcdef'],
    ['resend', `evt_${'a1'.repeat(16)}`],
    ['reload', ''],
    ['backup', ''],
  ]
  function recording() {
    const did: string[] = []
    const done = (what: string) => async () => {
      did.push(what)
      return { ok: what !== 'reload', text: `${what} has ended` }
    }
    const actions: Actions = {
      pause: (of, isPause) => done(`${isPause ? 'pause' : 'resume'} ${of.kind}:${of.name}`)(),
      retry: (id) => done(`retry ${id}`)(),
      refund: ({ paymentId, amount }) => done(`refund ${paymentId} ${amount}`)(),
      retryRefund: (id) => done(`refund-retry ${id}`)(),
      testWebhook: (id) => done(`test webhook:${id}`)(),
      resend: (id) => done(`resend ${id}`)(),
      claim: (network) => done(`claim ${network}`)(),
      reload: done('reload'),
      backUp: done('backup'),
    }
    const config = { ...configOf(small), merchants: [merchant('one')], webhooks: [endpoint] }
    return { did, options: { config, sources: { actions } } }
  }

  test('each action is confirmed on its page, done once, logged, and its result is shown once', async () => {
    const { did, options } = recording()
    const { app, session, read, post } = await signedIn(options)
    for (const [name, subject] of subjects) {
      const confirm = await read(`/admin/actions/${name}?${new URLSearchParams({ subject })}`)
      expect(confirm).toContain(`action="/admin/actions/${name}"`)
      expect(confirm).toContain(`value="${session.csrf}"`)
      const before = did.length
      const answer = await post(`/admin/actions/${name}`, { subject })
      expect(answer.status).toBe(303)
      expect(did).toHaveLength(before + 1)
      expect(did.at(-1)).toBe(`${name} ${subject}`.trim())
      const text = `${did.at(-1)} has ended`
      expect(await read('/admin')).toContain(text)
      expect(await read('/admin')).not.toContain(text)
      const [line = ''] = app.logged.slice(-1)
      expect(JSON.parse(line)).toMatchObject({
        event: 'admin-action',
        action: name,
        subject,
        ok: name !== 'reload',
      })
    }
  })

  test('error: no action is done without the secret of the session, by a GET, a program or another site', async () => {
    const { did, options } = recording()
    const { app, session } = await signedIn(options)
    for (const [name, subject] of subjects) {
      const path = `/admin/actions/${name}`
      await app.get(`${path}?${new URLSearchParams({ subject, csrf: session.csrf })}`, session)
      const { csrf, cookie } = session
      const bearer = { authorization: `Bearer ${token}` }
      const strange = { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' }
      const refused = [
        await app.post(path, { subject, csrf: 'wrong' }, { cookie }),
        await app.post(path, { subject }, { cookie }),
        await app.post(path, { subject, csrf }, { cookie, ...strange }),
        await app.post(path, { subject, csrf }),
        await app.post(path, { subject, csrf }, bearer),
      ]
      expect(refused.map(({ status }) => status)).toEqual([403, 403, 403, 303, 303])
      expect(await refused[0]?.text()).toContain(
        '<a class="button" href="/admin">Open the page again</a>',
      )
      app.state.now += 60_000
      // A form says its method by its method alone.
      for (const more of [{ 'x-http-method-override': 'POST' }, { 'x-method-override': 'POST' }])
        await app.get(`${path}?subject=${subject}&_method=POST`, { cookie, ...more })
    }
    expect(did).toEqual([])
    const text = await (
      await app.get('/admin/actions/reload', { authorization: `Bearer ${token}` })
    ).text()
    expect(text).toContain('A token reads only')
    expect(text).not.toContain('name="csrf"')
  })

  test('error: an action that is not known, or on nothing that exists, is 404', async () => {
    const { did, options } = recording()
    const { app, session, post } = await signedIn(options)
    for (const [name, subject] of [
      ['drop', ''],
      ['constructor', ''],
      ['pause', ''],
      ['pause', 'merchant:gone'],
      ['pause', 'network:eip155:1'],
      ['pause', 'order:1'],
      ['retry', 'ord_1'],
      ['retry', `${order}'`],
    ] as const) {
      const query = new URLSearchParams({ subject })
      expect((await app.get(`/admin/actions/${name}?${query}`, session)).status).toBe(404)
      expect((await post(`/admin/actions/${name}`, { subject })).status).toBe(404)
    }
    expect(did).toEqual([])
    // Without a file, as in the demo, there is nothing to reload.
    const plain = await signedIn()
    expect((await plain.post('/admin/actions/reload')).status).toBe(404)
    expect(await plain.read('/admin/configuration')).not.toContain('Reload the file')
  })
})
