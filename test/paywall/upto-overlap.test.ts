import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { units } from '../harness/meter'
import { untilFree } from '../harness/shop'
import {
  answering,
  base,
  body,
  events,
  type ModelShop,
  startModels,
  usage,
  type Wallet,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** The gateway reads a body while a node verifies the ceiling that came with it. */

const single = `
[[merchants]]
slug = "single"
upstream = "https://shop.example.com"
networks = ["${base}"]
concurrency_max = 1
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
/** So many credentials of an address may be refused in a minute: a tenth of those that it may send. */
const refusedMax = 3

let shop: ModelShop
let payer: Wallet
beforeAll(async () => {
  shop = await startModels({
    edit: (text) => text + single,
    adjust: (config) => ({
      ...config,
      service: { ...config.service, trustProxy: 1, paidPerMinute: 10 * refusedMax },
    }),
  })
  payer = await shop.wallet()
})
afterAll(() => shop.stop())
beforeEach(() => shop.clear())

const dearer = body.replace('1000', '3000')
const invalid = body.replace('1000', '0')
const from = (address: string) => ({ 'x-forwarded-for': address })
/** Calls for this payer: two for each verification. Others belong to the checks of the network. */
const simulations = () => {
  const digits = payer.address.slice(2).toLowerCase()
  const isOfPayer = ({ method, params }: { method: string; params?: unknown }) =>
    method === 'eth_call' && JSON.stringify(params).toLowerCase().includes(digits)
  return shop.taps[base]?.calls.filter(isOfPayer).length ?? 0
}
const rows = () => shop.rows('SELECT id FROM authorizations').length

/** Holds the calls to the node until the result is called. */
function holdNode(): () => void {
  const gate = Promise.withResolvers<void>()
  const tap = shop.taps[base]
  if (tap === undefined) throw new Error(`no ${base}`)
  tap.intercept = async ({ method }) => {
    if (method === 'eth_call') await gate.promise
    return undefined
  }
  return () => {
    tap.intercept = undefined
    gate.resolve()
  }
}

test('a body that costs more than the ceiling is refused before the node has answered', async () => {
  const credential = await shop.sign({ signer: payer })
  const [known, asked] = [rows(), simulations()]
  const release = holdNode()
  const paying = shop.pay(credential, { body: dearer, headers: from('192.0.2.1') })
  await until('the node is asked', () => simulations() > asked)
  const refused = await paying
  expect(refused.status).toBe(402)
  expect(await refused.text()).toContain('is not the price of this request')
  release()
  expect(shop.upstream.requests).toHaveLength(0)
  expect(rows()).toBe(known)
  // The ceiling is not spent.
  shop.upstream.script = answering(usage(7, 20))
  expect((await shop.pay(credential, { headers: from('192.0.2.1') })).status).toBe(200)
})

for (const [name, { signed, sent }, status, address] of [
  ['costs more', { signed: body, sent: dearer }, 402, '192.0.2.2'],
  ['is not served', { signed: invalid, sent: invalid }, 400, '192.0.2.3'],
] as const)
  test(`attack: a ceiling with a body that ${name}, again and again: asks a node as often as a bad one`, async () => {
    const credential = await shop.sign({ signer: payer, body: signed })
    const statuses: number[] = []
    const pay = async () => {
      const response = await shop.pay(credential, { body: sent, headers: from(address) })
      await response.arrayBuffer()
      statuses.push(response.status)
    }
    await shop.still(async () => {
      const asked = simulations()
      for (let round = 0; round < refusedMax; round++) await pay()
      const answered = () => simulations() >= asked + 2 * refusedMax
      await until('the node was asked', answered)
      for (let round = 0; round < refusedMax; round++) await pay()
      expect(simulations()).toBe(asked + 2 * refusedMax)
    })
    expect(statuses).toEqual([...Array(refusedMax).fill(status), ...Array(refusedMax).fill(429)])
  })

test('attack: a ceiling at two requests at once asks a node once', async () => {
  const credential = await shop.sign({ signer: payer })
  shop.upstream.script = answering(usage(7, 20))
  const asked = simulations()
  const release = holdNode()
  const first = shop.pay(credential, { headers: from('192.0.2.4') })
  await until('the node is asked', () => simulations() >= asked + 2)
  expect((await shop.pay(credential, { headers: from('192.0.2.4') })).status).toBe(409)
  expect(simulations()).toBe(asked + 2)
  release()
  expect((await first).status).toBe(200)
})

test('attack: a spent ceiling asks no node', async () => {
  const credential = await shop.sign({ signer: payer })
  shop.upstream.script = answering(usage(7, 20))
  expect((await shop.pay(credential, { headers: from('192.0.2.5') })).status).toBe(200)
  const asked = simulations()
  const again = () => shop.pay(credential, { headers: from('192.0.2.5') })
  expect((await untilFree(again)).status).toBe(402)
  expect((await shop.pay(credential, { body: dearer, headers: from('192.0.2.5') })).status).toBe(
    402,
  )
  expect(simulations()).toBe(asked)
})

test('error: without a place at the upstream no node is asked, and a fault of the body is reported first', async () => {
  const slug = 'single'
  const bodies = [body, body, invalid]
  const credentials = await Promise.all(
    bodies.map((each) => shop.sign({ slug, signer: payer, body: each })),
  )
  const [one = {}, two = {}, three = {}] = credentials
  const replied = shop.nextReply()
  const first = shop.pay(one, { slug, headers: from('192.0.2.6') })
  const reply = await replied
  const asked = simulations()
  const full = await shop.pay(two, { slug, headers: from('192.0.2.6') })
  expect(full.status).toBe(503)
  const lacking = await shop.pay(three, { slug, body: invalid, headers: from('192.0.2.6') })
  expect(lacking.status).toBe(400)
  expect(simulations()).toBe(asked)
  reply.head(200, events)
  reply.chunk(`data: ${usage(7, 20)}\n\n`)
  reply.chunk('data: [DONE]\n\n')
  reply.end()
  expect((await first).status).toBe(200)
})
