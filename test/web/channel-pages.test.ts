import { describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { hourMs } from '../../src/protocol/Time'
import type { AdminSources } from '../../src/web/admin/sources'
import { merchantPage, readQuery } from '../../src/web/public/merchant'
import type * as SaleState from '../../src/web/public/SaleState'
import { adminPages, describeAsset, insertChannel, insertPayment } from '../harness/admin'
import { configOf, small } from '../harness/config'
import { merchant, route } from '../harness/merchants'

/** What operators and visitors see of payment channels. */

const now = Date.parse('2026-11-20T10:30:00Z')
const plain = configOf(small)
const channels = {
  ...{ withdrawDelayMs: 24 * hourMs, minDepositAtomic: 500_000n, claimEveryMs: hourMs / 4 },
  ...{ claimAboveAtomic: 1_000_000n, unclaimedMaxAtomic: 50_000_000n },
}
const config = {
  ...plain,
  networks: plain.networks.map((network) => ({ ...network, channels })),
}

/** The pages of a signed-in operator over a ledger with these sources. */
async function signedIn(claims?: ReturnType<AdminSources['claimsOf']>) {
  const app = adminPages({ config, sources: { claimsOf: () => claims } })
  await describeAsset(app.ledger, now)
  const session = await app.signIn()
  const read = async (path: string) => (await app.get(path, session)).text()
  return { ...app, read, add: (of: Parameters<typeof insertChannel>[1]) => insertChannel(app, of) }
}

/** Text without its tags. */
function textOf(html: string): string {
  return html.replace(/<[^>]+>/g, ' ').replace(/\s+/g, ' ')
}

describe('the page of channels', () => {
  test('withdrawals come first with their deadline, then the sums, then all, the newest first', async () => {
    const { add, read } = await signedIn({ nextAt: now + 5 * 60_000, late: undefined })
    const withdrawAt = now - hourMs
    const ending = await add({ salt: 1, charged: 40_000n, at: now - 3, withdrawAt })
    const open = await add({ salt: 2, charged: 250_000n, claimedAtomic: 100_000n, at: now - 2 })
    const empty = await add({
      ...{ salt: 3, charged: 7_000n, at: now - 1 },
      ...{ balanceAtomic: 7_000n, claimedAtomic: 7_000n },
    })
    const page = await read('/admin/channels')
    const at = (text: string) => page.indexOf(text)
    expect(at('id="withdrawals"')).toBeGreaterThan(0)
    expect(at('id="withdrawals"')).toBeLessThan(at('By network'))
    const [first = '', sums = '', all = ''] = page
      .split(/(?=<h2)/)
      .filter((part) => part.startsWith('<h2'))
    expect(textOf(first)).toContain('withdrawal until 2026- 11-21 09:30 :00 , for 23 h')
    expect(first).toContain(ending)
    expect(textOf(sums)).toMatch(/Base 2 0\.19 USDC 1 in 5 min/)
    expect([empty, open, ending].map((id) => all.indexOf(id)).every((place) => place > 0)).toBe(
      true,
    )
    expect(all.indexOf(empty)).toBeLessThan(all.indexOf(open))
    expect(textOf(all)).toMatch(/open 1\.00 USDC 0\.25 USDC 0\.10 USDC 0\.15 USDC Base/)
    expect(textOf(all)).toMatch(/empty 0\.007 USDC 0\.007 USDC 0\.007 USDC 0\.00 USDC Base/)
  })

  test('an operator claims at once, only where the file has channels', async () => {
    const app = adminPages({ config })
    const session = await app.signIn()
    const act = (subject: string) =>
      app.post('/admin/actions/claim', { csrf: session.csrf, subject }, session)
    expect((await act(`network:${plain.networks[0]?.id}`)).headers.get('location')).toBe(
      '/admin/channels',
    )
    const done = await (await app.get('/admin/channels', session)).text()
    expect(done).toContain(`${plain.networks[0]?.id} is claimed`)
    expect((await act('network:eip155:1')).status).toBe(404)
    const none = adminPages({ config: plain })
    const other = await none.signIn()
    const path = `/admin/actions/claim?subject=network:${plain.networks[0]?.id}`
    expect((await none.get(path, other)).status).toBe(404)
  })

  test('it has pages, which follow each other without a gap', async () => {
    const { add, read } = await signedIn()
    const ids: Hex[] = []
    for (let salt = 1; salt <= 51; salt++)
      ids.push(await add({ salt, charged: 0n, at: now + salt }))
    const first = await read('/admin/channels')
    const [oldest = '0x', ...others] = ids
    expect(others.filter((id) => !first.includes(`title="${id}"`))).toEqual([])
    expect(first).not.toContain(`title="${oldest}"`)
    const [, before = ''] = /channels\?before=(0x[0-9a-f]{64})"/.exec(first) ?? []
    const second = await read(`/admin/channels?before=${before}`)
    expect(second).toContain(`title="${oldest}"`)
    expect(second).not.toContain('Older</a>')
    // Another text is no place in the list.
    expect(await read('/admin/channels?before=0x00')).toContain(`title="${ids[50]}"`)
  })

  test('the overview names withdrawals with unclaimed money, and claims that are late', async () => {
    const calm = await signedIn({ nextAt: now + 1, late: undefined })
    await calm.add({ salt: 1, charged: 5_000n, at: now })
    expect(await calm.read('/admin')).not.toContain('/admin/channels">See')
    await calm.add({ salt: 2, charged: 5_000n, claimedAtomic: 5_000n, withdrawAt: now, at: now })
    expect(textOf(await calm.read('/admin'))).toContain('1 channel on Base: 0.00 USDC not claimed')
    const reason = 'no relayer has gas'
    const late = await signedIn({ nextAt: now, late: { reason, since: now - hourMs } })
    await late.add({ salt: 3, charged: 5_000n, withdrawAt: now, at: now })
    const text = textOf(await late.read('/admin'))
    expect(text).toContain('1 channel on Base: 0.005 USDC not claimed yet The first ends in 24 h.')
    expect(text).toContain('Vouchers on Base are not claimed for 60 min no relayer has gas.')
    expect(textOf(await late.read('/admin/channels'))).toContain(`late: ${reason}`)
  })
})

describe('a payment by a channel', () => {
  test('its page has the channel with its state, and no transaction, block or link to an explorer', async () => {
    const { add, read, db } = await signedIn()
    const channel = await add({ salt: 1, charged: 10_000n, at: now })
    const other = await add({ salt: 2, charged: 5_000n, at: now })
    const paid = [0n, 5_000n].map((from) =>
      insertPayment(db, { at: now, channel: { id: channel, base: from } }),
    )
    const [first, second] = paid
    insertPayment(db, { at: now, channel: { id: other, base: 0n } })
    const page = await read(`/admin/payments/${first?.id}`)
    expect(textOf(page)).toContain('x402, channel')
    expect(textOf(page)).toContain(`Channel ${channel} State open Balance 1.00 USDC Charged 0.01`)
    expect(textOf(page)).toContain('The voucher of the channel is claimed later, with others.')
    expect(page).not.toMatch(/in block|\/tx\/|<h2>Transactions|Nonce<|Valid until/)
    const found = await read(`/admin/payments?q=${channel.toUpperCase().replace('X', 'x')}`)
    expect(found.match(/payments\/pay_[0-9a-f]+/g)).toEqual([
      `payments/${second?.id}`,
      `payments/${first?.id}`,
    ])
    const [head = '', row = ''] = (await read('/admin/payments.csv')).split('\r\n')
    const cellOf = (name: string) => row.split(',')[head.split(',').indexOf(name)]
    expect([cellOf('transaction'), cellOf('channel')]).toEqual(['', other])
  })
})

describe('the page of a merchant', () => {
  const bulk = route('/bulk', { schemes: ['channel'], priceAtomic: 2_000_000n })
  const shop = {
    ...config,
    merchants: [
      merchant('shop', {
        networks: ['eip155:8453'],
        routes: [route('/a'), route('/b', { schemes: ['exact'] }), bulk],
      }),
    ],
  }
  const facts: SaleState.Facts = {
    ...{ isReady: () => true, hasChannels: () => true },
    ...{ healthOf: () => 'available', faultOf: () => undefined },
  }
  const pageOf = (path: string, live = facts) => {
    const [own] = shop.merchants
    if (own === undefined) throw new Error('no merchant')
    const query = readQuery(new URLSearchParams({ route: path }))
    return merchantPage({ config: shop, toolOf: () => undefined }, live, own, query).markup
  }

  test('a route with channels says so, with the command; another one, or without the contracts, does not', () => {
    const page = pageOf('/a')
    expect(page).toContain('one deposit (from 0.50 USDC on Base, withdrawal in 24 hours)')
    expect(page).toContain('/m/shop/a&#39; --scheme channel --deposit 0.50</code>')
    for (const other of [pageOf('/b'), pageOf('/a', { ...facts, hasChannels: () => false })])
      expect(other).not.toMatch(/channel/i)
  })

  test('a route that takes channels alone has no panel that pays, and no command of exact', () => {
    const page = pageOf('/bulk')
    expect(page).toContain('A wallet in a browser cannot pay for this. A program can.')
    expect(page).toContain('--scheme channel --deposit 2.00 --max 2.00')
    expect(page).not.toMatch(/npx mppx|@x402\/fetch|Go to payment|Fill in and pay/)
  })
})
