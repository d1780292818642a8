import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type net from 'node:net'
import { account } from '../../src/demo/accounts'
import { ask } from '../harness/buyer'
import { connect } from '../harness/raw'
import {
  mppUsdc,
  type Networks,
  startNetworks,
  startTarget,
  type Target,
  x402Usdc,
} from '../harness/target'
import { until } from '../harness/world'

/** Bodies that fill the budget, so that other bodies do not fit. */

const bufferedMaxBytes = 4 * 1024 ** 2
/** Larger than the remainder that bodies of 200,000 bytes leave. */
const large = 'x'.repeat(250_000)
let networks: Networks
let target: Target
let sockets: net.Socket[] = []

beforeAll(async () => {
  networks = await startNetworks()
})
afterAll(() => Promise.all(networks.map((network) => network.stop())))
beforeEach(async () => {
  target = await startTarget({
    networks,
    // Each request names its client address.
    service: { bufferedMaxBytes, trustProxy: 1 },
    more: (upstreamUrl) => `
[[merchants]]
slug = "closed"
upstream = "${upstreamUrl}"
allow_private = true
headers = { X-Key = "\${NOT_SET}" }
[[merchants.routes]]
path = "/post"
methods = ["POST"]
price = "0.005"
`,
  })
})
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy()
  await target.stop()
})

const buyer = account(1).local()
const at = (path: string) => `${target.url}${path}`

/** Sends bodies from one address each and keeps them open, until one does not fit. */
async function fill(path: string, bytes: number, lines: readonly string[] = []): Promise<void> {
  let refused = 0
  const head = (index: number) =>
    [
      `POST ${path} HTTP/1.1`,
      'Host: localhost',
      'Content-Type: application/json',
      `X-Forwarded-For: 203.0.113.${index}`,
      `Content-Length: ${bytes + 1}`,
      ...lines,
      '',
      '',
    ].join('\r\n')
  sockets = Array.from({ length: 60 }, (_, index) => {
    const socket = connect(target.url, head(index) + 'x'.repeat(bytes))
    socket.on('data', (data) => {
      if (data.toString('latin1').startsWith('HTTP/1.1 503')) refused++
    })
    return socket
  })
  await until('a body finds no room', () => refused > 0)
}

async function buy(body: string, pay = x402Usdc.pay): Promise<number> {
  const init = { method: 'POST', body }
  const headers = await pay(await ask(at('/m/a/post'), init), buyer)
  return (await fetch(at('/m/a/post'), { ...init, headers })).status
}

const verify = async () =>
  (await fetch(at('/verify'), { method: 'POST', body: JSON.stringify({ x: large }) })).status

describe('attack: bodies with junk as a credential, from many addresses,', () => {
  for (const line of [
    'Authorization: Payment junk',
    'Payment-Signature: e30=',
    `Payment-Redeem: ${'a'.repeat(43)}`,
    'Payment-Redeem: short',
  ])
    test(`${line.slice(0, 24)}: leave room for the facilitator and for paid requests`, async () => {
      await fill('/m/a/post', 200_000, [line])
      expect(await verify()).toBe(400)
      expect(await buy(large)).toBe(200)
      expect(await buy(large, mppUsdc.pay)).toBe(200)
      const headers = await x402Usdc.pay(await ask(at('/m/a/get')), buyer)
      expect((await fetch(at('/m/a/get'), { headers })).status).toBe(200)
    })
})

test('attack: a challenge of another service does not count as a credential', async () => {
  const { authorization = '' } = Object.fromEntries(
    new Headers(await mppUsdc.pay(await ask(at('/m/a/get')), buyer)),
  )
  const parsed = JSON.parse(Buffer.from(authorization.slice(8), 'base64url').toString())
  parsed.challenge.id = 'A'.repeat(43)
  const forged = Buffer.from(JSON.stringify(parsed)).toString('base64url')
  await fill('/m/a/post', 200_000, [`Authorization: Payment ${forged}`])
  expect(await buy(large)).toBe(200)
})

test('attack: bodies for the facilitator leave room for paid requests', async () => {
  await fill('/verify', 200_000)
  expect(await buy(large)).toBe(200)
})

test('a redemption uses the share of paid requests', async () => {
  target.upstream.answer = () => new Response('down', { status: 500 })
  const init = { method: 'POST', body: large }
  const headers = await x402Usdc.pay(await ask(at('/m/a/post'), init), buyer)
  const failed = await fetch(at('/m/a/post'), { ...init, headers })
  const { redeem } = (await failed.json()) as { redeem: { token: string } }
  target.upstream.answer = undefined
  await fill('/m/a/post', 200_000, ['Authorization: Payment junk'])
  const redeemed = await fetch(at('/m/a/post'), {
    ...init,
    headers: { 'payment-redeem': redeem.token },
  })
  expect([failed.status, redeemed.status]).toEqual([502, 200])
})

test('attack: unpaid bodies for a merchant that is out of service return their bytes to the budget', async () => {
  const init = (address: string) => ({
    method: 'POST',
    headers: { 'x-forwarded-for': address },
    body: 'x'.repeat(60_000),
  })
  const isDigested = async () => {
    const { challenges } = await ask(at('/m/a/post'), init('198.51.100.1'))
    return challenges.every(({ raw }) => raw.digest !== undefined)
  }
  expect(await isDigested()).toBe(true)
  for (let index = 0; index < 40; index++) {
    const refused = await fetch(at('/m/closed/post'), init(`203.0.113.${index}`))
    expect(refused.status).toBe(503)
  }
  expect(await isDigested()).toBe(true)
})
