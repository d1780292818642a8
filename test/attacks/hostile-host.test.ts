import { afterAll, beforeAll, expect, test } from 'bun:test'
import { connect } from 'node:net'
import { type Shop, startShop } from '../harness/shop'

/** The URL that a request with a given Host header has. */

let shop: Shop
beforeAll(async () => {
  shop = await startShop()
})
afterAll(() => shop?.stop())

/** Status of a hand-written request, because clients refuse to send it. */
function statusOf(line: string, host: string | undefined): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  let answer = ''
  const socket = connect(Number(new URL(shop.url).port), '127.0.0.1', () => {
    const hosts = host === undefined ? '' : `Host: ${host}\r\n`
    socket.write(`${line}\r\n${hosts}Content-Length: 0\r\nConnection: close\r\n\r\n`)
  })
  socket.on('data', (bytes) => {
    answer += bytes.toString('latin1')
    if (answer.includes('\r\n')) socket.destroy()
  })
  socket.on('close', () => resolve(Number(answer.split(' ', 2)[1])))
  socket.on('error', reject)
  return promise
}

const targets = [
  'GET /?q=a&page=2',
  'GET /admin?x=1',
  'GET /merchants/shop?route=/item',
  'GET /assets/none?x=1',
  'GET /discovery/resources?limit=1',
  'GET /m/shop/item?q=1',
  'GET /m/shop/item?q=\u65e5\u672c',
  'GET /m/shop/\u65e5/item?q=1',
  'GET /m/shop/item/\u65e5',
  'GET /m/shop/openapi.json?x=1',
  'GET /api/stock/list?x=1',
  'GET /api/stock/quote?symbol=NVDA&usdg=1',
  'POST /api/stock/buy?symbol=NVDA&usdg=1',
  'GET /api/stock/orders?limit=1',
  'GET /supported?x=1',
  'POST /mcp?x=1',
  'POST /api/gas/sponsor?x=1',
]
const hosts = ['', 'x', 'x:99999', '[::', 'a b', 'x?y', 'x#y', 'a/b', '%', '\xe9']

const doubles = [
  'a.com\r\nHost: b.com',
  'a.com\r\nhost: a.com',
  '\r\nHost: a.com',
  'a.com\r\nHost:',
]
for (const target of targets)
  test(`attack: ${JSON.stringify(target)} with two Host fields is refused`, async () => {
    for (const host of doubles) expect(await statusOf(`${target} HTTP/1.1`, host)).toBe(400)
  })

for (const target of targets)
  test(`error: ${JSON.stringify(target)} is never a 5xx, with any Host`, async () => {
    for (const host of hosts) {
      const status = await statusOf(`${target} HTTP/1.1`, host)
      expect([host, status < 500 || status === 503]).toEqual([host, true])
    }
    expect(await statusOf(`${target} HTTP/1.0`, undefined)).not.toBe(500)
  })

test('without a usable Host a request is answered as with one', async () => {
  for (const [line, status] of [
    ['GET /healthz', 200],
    ['GET /supported', 200],
    ['GET /m/shop/item', 402],
    ['GET /openapi.json', 200],
    ['GET /stocks/healthz', 404],
    ['DELETE /discovery/resources', 405],
  ] as const) {
    expect([line, await statusOf(`${line} HTTP/1.0`, undefined)]).toEqual([line, status])
    for (const host of ['', 'x?y', 'a/b'])
      expect([line, host, await statusOf(`${line} HTTP/1.1`, host)]).toEqual([line, host, status])
  }
})
