import { afterAll, beforeAll, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { units } from '../harness/meter'
import { type Shop, startShop } from '../harness/shop'
import { signUpto } from '../harness/upto'
import { until } from '../harness/world'

/** What a payment by use asks of a node, and that it is simulated again before it is sent. */

const base = 'eip155:8453'
const merchant = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["${base}"]
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
upstream_path = "/v1/chat/completions"
[merchants.routes.meter]
preset = "openai"
base = "0.0005"
${units}
`
let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text + merchant })
})
afterAll(() => shop.stop())

const posting = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: '{"model":"m","max_tokens":1000,"messages":[]}',
}
const answer = '{"usage":{"prompt_tokens":7,"completion_tokens":20}}'
const chat = () => `${shop.url}/m/model/chat`

async function pay(buyer: number): Promise<Response> {
  const credential = await signUpto(chat(), posting, { buyer })
  const headers = { ...posting.headers, ...credential }
  const response = await fetch(chat(), { ...posting, headers })
  await response.arrayBuffer()
  return response
}

const abi = parseAbi(['function transfer(address to, uint256 value) returns (bool)'])

async function move(from: number, to: number, value: bigint): Promise<void> {
  const chain = shop.chains[base]
  const token = shop.config.networks.find(({ id }) => id === base)?.asset.address
  if (chain === undefined || token === undefined) throw new Error(`no ${base}`)
  const args = [account(to).address, value] as const
  const data = encodeFunctionData({ abi, functionName: 'transfer', args })
  await execute(chain, [{ from: account(from).address, to: token, data }])
}

test('a charge is simulated once more by one call, and sent by one', async () => {
  shop.upstream.script = (_, reply) => reply.send(200, answer)
  await pay(1)
  const tap = shop.taps[base]
  const before = tap?.calls.length
  expect((await pay(1)).status).toBe(200)
  const methods = tap?.calls.slice(before).map(({ method }) => method)
  expect(methods?.filter((method) => method === 'eth_call')).toHaveLength(3)
  expect(methods?.filter((method) => method.startsWith('eth_send'))).toHaveLength(1)
})

test('while a node verifies, no row is written and the upstream gets nothing', async () => {
  shop.upstream.script = (_, reply) => reply.send(200, answer)
  await pay(1)
  const tap = shop.taps[base]
  if (tap === undefined) throw new Error(`no ${base}`)
  const ids = () => shop.rows('SELECT id FROM authorizations')
  const [known, forwarded] = [ids().length, shop.upstream.requests.length]
  const gate = Promise.withResolvers<void>()
  let isAsked = false
  tap.intercept = async ({ method }) => {
    if (method === 'eth_call') {
      isAsked = true
      await gate.promise
    }
    return undefined
  }
  const paying = pay(1)
  await until('the node is asked', () => isAsked)
  expect(ids()).toHaveLength(known)
  expect(shop.upstream.requests).toHaveLength(forwarded)
  tap.intercept = undefined
  gate.resolve()
  expect((await paying).status).toBe(200)
  const [row] = shop.rows('SELECT id FROM authorizations ORDER BY created_at DESC LIMIT 1')
  const sent = shop.upstream.requests.slice(forwarded)
  // Only the stored authorization has this id.
  expect(sent.map(({ headers }) => headers['idempotency-key'])).toEqual([String(row?.id)])
})

test('a refused ceiling was prepared for nothing: the upstream gets nothing', async () => {
  const before = shop.upstream.requests.length
  const rows = shop.rows('SELECT id FROM authorizations').length
  const asked = shop.taps[base]?.calls.length ?? 0
  // This account has no money.
  expect((await pay(8)).status).toBe(402)
  const calls = shop.taps[base]?.calls.slice(asked) ?? []
  expect(calls.some(({ method }) => method === 'eth_call')).toBe(true)
  expect(shop.upstream.requests).toHaveLength(before)
  expect(shop.rows('SELECT id FROM authorizations')).toHaveLength(rows)
})

test('error: a payer that moves its money while it is answered gets no answer, and costs no transaction', async () => {
  const balance = await shop.balance(base, account(2).address)
  shop.upstream.script = (_, reply) => {
    void move(2, 3, balance).then(() => reply.send(200, answer))
  }
  const before = shop.taps[base]?.calls.length
  const response = await pay(2)
  expect(response.status).toBe(402)
  const calls = shop.taps[base]?.calls.slice(before) ?? []
  const sent = calls.filter(({ method }) => method.startsWith('eth_sendRaw'))
  expect(sent).toEqual([])
  expect(shop.rows('SELECT state FROM authorizations ORDER BY created_at DESC LIMIT 1')).toEqual([
    { state: 'failed' },
  ])
})

test('attack: ceilings for a body that costs more ask a node a few times, then their address waits', async () => {
  await using limited = await startLimited()
  const { tap, url } = limited
  const larger = { ...posting, body: '{"model":"m","max_tokens":4000,"messages":[]}' }
  const statuses: number[] = []
  const before = tap.calls.filter(({ method }) => method === 'eth_call').length
  for (let round = 0; round < 10; round++) {
    const credential = await signUpto(url, posting, { buyer: 1 })
    const response = await fetch(url, { ...larger, headers: { ...posting.headers, ...credential } })
    await response.arrayBuffer()
    statuses.push(response.status)
  }
  expect(statuses).toEqual([...Array(6).fill(402), ...Array(4).fill(429)])
  const calls = tap.calls.filter(({ method }) => method === 'eth_call').length - before
  // Each of the six may be read and simulated, and the health check calls the node as well.
  expect(calls).toBeLessThanOrEqual(2 * 6 + 4)
  expect(limited.rows('SELECT 1 FROM authorizations')).toEqual([])
  expect(limited.upstream.requests).toEqual([])
})

/** A shop of its own, in which six credentials of an address may be refused in a minute. */
async function startLimited() {
  const own = await startShop({
    edit: (text) => text + merchant,
    adjust: (config) => ({ ...config, service: { ...config.service, paidPerMinute: 60 } }),
  })
  const tap = own.taps[base]
  if (tap === undefined) throw new Error(`no ${base}`)
  return Object.assign(own, {
    ...{ tap, url: `${own.url}/m/model/chat` },
    [Symbol.asyncDispose]: () => own.stop(),
  })
}
