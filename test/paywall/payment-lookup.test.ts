import { afterAll, beforeAll, expect, test } from 'bun:test'
import { units } from '../harness/meter'
import { until } from '../harness/settlement'
import { payee, type Shop, startShop } from '../harness/shop'
import { signUpto } from '../harness/upto'

/** `GET /api/payments/{id}`: the receipt of a stream, which is charged after its end. */

const merchant = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:8453"]
new_streams = "passed"
[[merchants.routes]]
path = "/chat"
methods = ["POST"]
price = "0.05"
[merchants.routes.meter]
preset = "openai"
${units}
`
let shop: Shop
beforeAll(async () => {
  shop = await startShop({ edit: (text) => text + merchant })
})
afterAll(() => shop.stop())

const json = { 'content-type': 'application/json' }
const chat: RequestInit = {
  method: 'POST',
  headers: json,
  body: '{"model":"m","max_tokens":100,"stream":true,"messages":[]}',
}

async function stream() {
  shop.upstream.script = (_, reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' })
    reply.chunk('data: {"choices":[]}\n\n')
    reply.chunk('data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n')
    reply.end()
  }
  const url = `${shop.url}/m/model/chat`
  const credential = await signUpto(url, chat)
  return fetch(url, { ...chat, headers: { ...json, ...credential } })
}

const lookUp = (id: string, headers: Record<string, string>) =>
  fetch(`${shop.url}/api/payments/${id}`, { headers })

test('the token of a stream shows what it has cost, with the receipt once it is settled', async () => {
  const response = await stream()
  const id = response.headers.get('payment-id') ?? ''
  const token = response.headers.get('payment-token') ?? ''
  expect(await response.text()).toContain('"completion_tokens":4')
  let settled: Record<string, unknown> = {}
  await until(async () => {
    const found = await lookUp(id, { 'payment-token': token })
    settled = (await found.json()) as Record<string, unknown>
    return settled.state === 'confirmed'
  })
  expect(settled).toMatchObject({
    id,
    network: 'eip155:8453',
    payTo: payee,
    amount: '43',
    units: { input: 3, output: 4 },
    receipt: { payload: { network: 'eip155:8453', transaction: settled.transaction } },
  })
  expect(Number(settled.ceiling)).toBeGreaterThan(43)
  const [row] = shop.rows(`SELECT amount_atomic, delivery FROM payments WHERE id = '${id}'`)
  expect(row).toEqual({ amount_atomic: '43', delivery: 'delivered' })
})

test('error: without the token, or with that of another payment, nothing is shown', async () => {
  const [one, two] = [await stream(), await stream()]
  await Promise.all([one.text(), two.text()])
  const id = one.headers.get('payment-id') ?? ''
  const asked: [Record<string, string>, number, string][] = [
    [{}, 400, 'Payment-Token is missing: send that of the answer.'],
    [{ 'payment-token': two.headers.get('payment-token') ?? '' }, 404, 'There is no payment'],
    [{ 'payment-token': 'x' }, 404, 'There is no payment'],
  ]
  for (const [headers, status, detail] of asked) {
    const response = await lookUp(id, headers)
    const problem = (await response.json()) as { detail: string }
    expect([response.status, problem.detail]).toEqual([status, expect.stringContaining(detail)])
  }
})
