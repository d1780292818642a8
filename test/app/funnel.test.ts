import { afterAll, beforeAll, expect, test } from 'bun:test'
import { Client as McpClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { sales } from '../../src/cli/operate/sales'
import { account } from '../../src/demo/accounts'
import { buyWithMppx, buyWithX402 } from '../../src/demo/buyers'
import * as Client from '../../src/protocol/Client'
import { dayMs, hourMs } from '../../src/protocol/Time'
import { insertPayment, operatorOf } from '../harness/admin'
import { exitCode } from '../harness/command'
import { payee, type Shop, sign, startShop } from '../harness/shop'

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop.stop())

type Line = {
  client?: string
  route?: string
  asked: number
  tried: Record<string, number>
  refused: Record<string, number>
  paid: number
  buyers: number
  again: number
  own: number
}

/** What `turnpike sales --funnel` says beside the service. */
async function funnel(by: string, since = '0d'): Promise<{ lines: Line[]; total: Line }> {
  let json = ''
  const out = (more: string) => {
    json += more
  }
  const options = { dataDir: shop.dataDir, since, by, funnel: true, json: true, out }
  expect(await exitCode(sales, { ...options, now: shop.now })).toBe(0)
  return JSON.parse(json)
}

const agents = {
  browser: 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0',
  crawler: 'Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)',
  curl: 'curl/8.14.1',
  python: 'python-httpx/0.28.1',
}

test('the funnel counts what was answered to each kind of client, and what the chain has', async () => {
  const item = `${shop.url}/m/shop/item`
  const before = await shop.balance('eip155:8453', payee)
  const told: [client: Client.Kind, presented: string, answer: string][] = []
  /** Requests as a client of this name, and notes the answer. */
  const request = async (client: keyof typeof agents, more: Record<string, string> = {}) => {
    const answer = await fetch(item, { headers: { 'user-agent': agents[client], ...more } })
    const { code, reason } = (await answer.json()) as { code?: string; reason?: string }
    const presented = Object.keys(more).length === 0 ? '' : 'x402'
    told.push([client, presented, answer.ok ? 'paid' : (reason ?? code ?? '')])
    return answer.status
  }
  for (const client of ['browser', 'browser', 'crawler', 'curl'] as const) await request(client)
  const good = await sign(item, { scheme: 'x402-eip3009', buyer: 3 })
  const forged = await sign(item, {
    ...{ scheme: 'x402-eip3009', buyer: 3 },
    signature: (signature) => `0x${'1b'.repeat(20)}${signature.slice(42)}`,
  })
  const credentials = [forged, good, good, { 'payment-signature': 'not a payment' }]
  const statuses: number[] = []
  for (const credential of credentials) statuses.push(await request('python', credential))
  expect(statuses.filter((status) => status === 200)).toHaveLength(1)
  // The price that was signed, by Bun.
  told.push(['javascript', '', 'payment-required'], ['javascript', '', 'payment-required'])
  const network = 'eip155:8453'
  await shop.ledger.sales.describe({ accounts: [account(1).address], assets: [], now: shop.now() })
  const stock = [
    await buyWithX402(shop, item, account(2), { network, method: 'eip3009' }),
    await buyWithX402(shop, item, account(2), { network, method: 'eip3009' }),
    await buyWithMppx(shop, item, account(4), { network }),
    // An account of the service.
    await buyWithX402(shop, item, account(1), { network, method: 'eip3009' }),
  ]
  for (const { requests } of stock)
    for (const { headers, status } of requests) {
      const kind = headers.has('accept-payment') ? 'mppx' : 'javascript'
      const isX402 = headers.has('payment-signature')
      const presented = headers.has('authorization') ? 'mpp' : isX402 ? 'x402' : ''
      told.push([kind, presented, status === 200 ? 'paid' : 'payment-required'])
    }
  const mcp = new McpClient({ name: 'test', version: '1' })
  const transport = new StreamableHTTPClientTransport(new URL(`${shop.url}/mcp`))
  await mcp.connect(transport as Parameters<McpClient['connect']>[0])
  const { tools } = await mcp.listTools()
  const tool = tools.find(({ name }) => /shop.*item/.test(name))?.name ?? ''
  await mcp.callTool({ name: tool, arguments: {} }).catch(() => undefined)
  await mcp.close()
  told.push(['mcp', '', 'payment-required'])
  // Its payer has paid on an earlier day, too.
  insertPayment(shop.db, { at: shop.now() - 2 * dayMs, payer: account(2).address })

  const { read } = await operatorOf(shop.url, shop.secrets.adminToken)
  const metrics = await (
    await fetch(`${shop.url}/metrics`, {
      headers: { authorization: `Bearer ${shop.secrets.adminToken}` },
    })
  ).text()
  const page = await read('/admin/funnel?by=client')
  const { lines, total } = await funnel('client')
  const count = (fits: (each: (typeof told)[number]) => boolean) => told.filter(fits).length
  for (const client of new Set(told.map(([kind]) => kind))) {
    const line = lines.find((each) => each.client === client)
    const own = client === 'javascript' ? 1 : 0
    expect({ client, ...line }).toMatchObject({
      asked: count(([kind, presented]) => kind === client && presented === ''),
      paid: count(([kind, , answer]) => kind === client && answer === 'paid') - own,
      own,
    })
    const tries = told.filter(([kind, presented]) => kind === client && presented !== '')
    const sumsOf = (names: readonly string[]) => {
      const sums: Record<string, number> = {}
      for (const name of names) sums[name] = (sums[name] ?? 0) + 1
      return sums
    }
    expect([client, line?.tried]).toEqual([client, sumsOf(tries.map(([, presented]) => presented))])
    const refused = tries.filter(([, , answer]) => answer !== 'paid')
    expect([client, line?.refused]).toEqual([client, sumsOf(refused.map(([, , answer]) => answer))])
    const asked = `turnpike_funnel_total{merchant="shop",client="${client}",step="asked"} ${line?.asked}`
    if (line?.asked !== 0) expect(metrics).toContain(asked)
    expect(page).toContain(`<th scope="row">${client}</th>`)
  }
  // account 2 came again; account 3 by Python and account 4 by mppx are new.
  expect([total.buyers, total.again, total.own]).toEqual([3, 1, 1])
  const [{ payments = 0 } = {}] = shop.rows(
    `SELECT count(*) AS payments FROM payments WHERE state = 'confirmed'
     AND created_at > ${shop.now() - dayMs}`,
  ) as { payments?: number }[]
  expect(total.paid + total.own).toBe(payments)
  const received = (await shop.balance('eip155:8453', payee)) - before
  expect(received).toBe(5_000n * BigInt(payments))
  // Every grouping has the same sums.
  for (const by of ['route', 'merchant', 'day']) expect((await funnel(by)).total).toEqual(total)
  for (const [reason, times] of Object.entries(total.refused))
    expect(metrics).toContain(`turnpike_refusals_total{reason="${reason}"} ${times}`)
})

test('a payer that pays for two routes on one day, hours apart, has come again to neither', async () => {
  const day = shop.now() - (shop.now() % dayMs) - dayMs
  const payer = account(6).address
  for (const [route, hour] of [
    ['/first', 1],
    ['/second', 5],
  ] as const)
    insertPayment(shop.db, { at: day + hour * hourMs, payer, route })
  const { lines } = await funnel('route', '1d')
  const of = (route: string) => lines.find((each) => each.route === route)
  for (const route of ['/first', '/second'])
    expect(of(route)).toMatchObject({ paid: 1, buyers: 1, again: 0 })
})

test('the kind of a client is one of a closed set, whatever its header says', () => {
  const of = (text: string, more: Record<string, string> = {}) =>
    Client.kindOf(new Headers({ 'user-agent': text, ...more }))
  const cases: readonly (readonly [string, Client.Kind])[] = [
    ...Object.entries(agents).map(([kind, text]) => [text, kind as Client.Kind] as const),
    ['node', 'javascript'],
    ['axios/1.13.2', 'javascript'],
    ['Wget/1.25.0', 'curl'],
    ['agentcash/1.0.0 node', 'agentcash'],
    ['GPTBot/1.2', 'crawler'],
    ['Mozilla/5.0 AppleWebKit/537.36; compatible; ChatGPT-User/1.0', 'crawler'],
    ['python-requests/2.32', 'python'],
    ['', 'other'],
    ['x'.repeat(8_000), 'other'],
    ['__proto__', 'other'],
  ]
  expect(cases.map(([text]) => of(text))).toEqual(cases.map(([, kind]) => kind))
  expect(of('node', { 'accept-payment': 'evm/charge' })).toBe('mppx')
  expect(Client.kindOf(new Headers())).toBe('other')
})
