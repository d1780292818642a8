import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { sales } from '../../src/cli/operate/sales'
import { isIn, operatorOf } from '../harness/admin'
import { ask } from '../harness/buyer'
import { exitCode } from '../harness/command'
import { exchange } from '../harness/raw'
import { buy, type Shop, sign, startShop } from '../harness/shop'
import { until } from '../harness/world'

/** What an operator does at `/admin` of a running service. */

let shop: Shop
beforeAll(async () => {
  shop = await startShop({ adjust: (config) => ({ ...config, stock: undefined }) })
})
afterAll(() => shop.stop())
afterEach(() => {
  shop.upstream.script = undefined
})

const item = () => `${shop.url}/m/shop/item`
const base = 'eip155:8453'
/** A session in this process. */
async function signIn() {
  const operator = await operatorOf(shop.url, shop.secrets.adminToken)
  const act = async (action: string, subject: string) => {
    expect([action, subject, await operator.act(action, subject)]).toEqual([action, subject, 303])
  }
  return { ...operator, act }
}

const codeOf = async (response: Response) => ((await response.json()) as { code?: string }).code
const networksOf = async () =>
  new Set((await ask(item())).required.accepts?.map(({ network }) => network))

describe('a merchant that is paused', () => {
  test('a paused merchant sells nothing, and paid requests are completed', async () => {
    const { act, read } = await signIn()
    shop.upstream.script = (_, reply) => reply.send(500, '{}')
    const failed = await buy(item())
    const { redeem } = (await failed.json()) as { redeem: { token: string } }
    shop.upstream.script = undefined
    const signed = await sign(item())
    const signedOther = await sign(`${shop.url}/m/catjoke/joke`)
    await act('pause', 'merchant:shop')
    expect(await read('/admin')).toContain('You paused this merchant.')
    const page = await (await fetch(`${shop.url}/merchants/shop?route=/item`)).text()
    expect(page).toContain('data-closed="The operator has paused this sale.')
    const before = shop.counts()
    for (const headers of [{}, signed]) {
      const answer = await fetch(item(), { headers })
      expect([answer.status, await codeOf(answer)]).toEqual([503, 'paused'])
    }
    expect(shop.counts()).toEqual(before)
    const fetched = await fetch(item(), { headers: { 'payment-redeem': redeem.token } })
    expect(fetched.status).toBe(200)
    // Other routes still sell.
    const other = await fetch(`${shop.url}/m/catjoke/joke`, { headers: signedOther })
    expect(other.status).toBe(200)
    await act('resume', 'merchant:shop')
    expect((await fetch(item(), { headers: signed })).status).toBe(200)
  })
})

describe('a network that is paused', () => {
  test('a paused network is in no price and takes no credential, also after a restart', async () => {
    const { act } = await signIn()
    const signed = await sign(item(), { validBefore: BigInt(Math.floor(shop.now() / 1000) + 200) })
    expect(await networksOf()).toContain(base)
    await act('pause', `network:${base}`)
    const refused = async () => {
      expect(await networksOf()).not.toContain(base)
      const page = await (await fetch(`${shop.url}/merchants/shop?route=/item`)).text()
      expect(page).toContain('data-closed=""')
      expect(page).not.toContain(`<option value="${base}">`)
      const only = await (await fetch(`${shop.url}/merchants/hasty`)).text()
      expect(only).toContain('data-closed="No network is ready')
      const before = shop.counts()
      const answer = await fetch(item(), { headers: signed })
      expect([answer.status, await codeOf(answer)]).toEqual([503, 'not-ready'])
      expect(shop.counts()).toEqual(before)
      const supported = await (await fetch(`${shop.url}/supported`)).text()
      expect(supported).not.toContain(`"${base}"`)
    }
    await refused()
    // Other networks still sell.
    expect((await buy(item(), { scheme: 'x402-permit2' })).status).toBe(200)
    shop.logged.length = 0
    await shop.restart()
    await until('the other networks are ready', async () => (await networksOf()).size > 0)
    expect(shop.logged.join('\n')).toContain('"event":"sales-paused","kind":"network"')
    await refused()
    // The restart has ended the session.
    const again = await signIn()
    await again.act('resume', `network:${base}`)
    expect((await fetch(item(), { headers: signed })).status).toBe(200)
  })
})

describe('the pages over a running service', () => {
  test('the figures are those of turnpike sales beside it', async () => {
    expect((await buy(item(), { scheme: 'x402-eip3009' })).status).toBe(200)
    const { read } = await signIn()
    const text = await read('/admin')
    let json = ''
    const out = (more: string) => {
      json += more
    }
    const options = { dataDir: shop.dataDir, since: '0d', by: 'day', json: true, out }
    expect(await exitCode(sales, { ...options, now: shop.now })).toBe(0)
    const { totals, requests } = JSON.parse(json) as Record<string, Record<string, number>[]>
    const sum = (rows: Record<string, number>[] = [], name: string) =>
      String(rows.reduce((total, row) => total + Number(row[name]), 0))
    const first = (name: string) =>
      new RegExp(`<th scope="row">${name}</th><td class="number"[^>]*><data value="([^"]*)">`).exec(
        text,
      )?.[1]
    expect(first('Paid')).toBe(sum(totals, 'paidAtomic'))
    expect(first('Payments')).toBe(sum(totals, 'payments'))
    expect(Number(first('Payments'))).toBeGreaterThan(2)
    expect(first('Paid requests')).toBe(sum(requests, 'paid'))
    expect(first('Requests answered 402')).toBe(sum(requests, 'asked'))
    expect(first('Failed requests')).toBe(sum(requests, 'failed'))
  })

  test('a payment is found by its transaction, and its story has no secret', async () => {
    expect((await buy(item())).status).toBe(200)
    const [row] = shop.rows('SELECT * FROM payments ORDER BY id DESC LIMIT 1')
    const { read, cookie } = await signIn()
    const list = await read(`/admin/payments?q=${row?.transaction_hash}`)
    expect(list).toContain(`/admin/payments/${row?.id}`)
    const story = await read(`/admin/payments/${row?.id}`)
    for (const name of ['id', 'payer', 'payee', 'nonce', 'transaction_hash'])
      expect(story).toContain(String(row?.[name]))
    const { adminToken, relayerKeys, receiptKey } = shop.secrets
    const secrets = [
      String(row?.signature),
      ...[...relayerKeys, receiptKey].map((key) => Buffer.from(key).toString('hex')),
      ...[adminToken, cookie.split('=')[1] ?? '', 'upstream-s3cret-key', shop.dataDir],
    ]
    const pages = ['', '/configuration', '/networks', '/merchants', '/payments', '/facilitator']
    const shown = await Promise.all(pages.map((page) => read(`/admin${page}`)))
    for (const text of [story, ...shown])
      expect(secrets.filter((secret) => text.includes(secret))).toEqual([])
    expect(shop.logged.join('\n')).not.toContain(cookie.split('=')[1] ?? '')
  })

  test('error: tricks with paths and methods show nothing without a session', async () => {
    const targets = [
      '/admin/../admin/payments',
      '/admin/payments/..',
      '/admin/%2e%2e/admin/payments',
      '/%61dmin/payments',
      '/admin/./payments',
      '/admin//payments',
      '//admin/payments',
      '/m/../admin/payments',
      '/admin/payments/',
      '/admin/payments;x=1',
      '/admin/payments%00',
      '/admin\\payments',
      '/ADMIN/payments',
      '/admin/payments.csv/',
      '/admin/payments?x=/../',
      'http://evil.example/admin/payments',
      '/admin/actions/pause?subject=merchant:shop',
    ]
    const extra = ['X-Original-URL: /admin/payments', 'X-HTTP-Method-Override: POST']
    for (const target of targets)
      for (const method of ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'TRACE']) {
        const lines = [`${method} ${target} HTTP/1.1`, 'Host: localhost', ...extra]
        const text = `${lines.join('\r\n')}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`
        const [answer] = await exchange(shop.url, text)
        expect([target, method, answer?.body ?? '']).not.toEqual([
          target,
          method,
          expect.stringMatching(/<h1>(Payments|Overview|Pause)|received,id,state/),
        ])
        expect(answer?.status).not.toBe(500)
      }
    expect(await isIn(await fetch(`${shop.url}/admin`))).toBe(false)
  })
})
