import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { settlementOf } from './harness/buyer'
import { units } from './harness/meter'
import { payee, type Shop, startShop } from './harness/shop'
import { signUpto } from './harness/upto'

/** A route with a meter, paid by the x402 scheme `upto`: each answer is charged by what it used. */

const merchant = `
[[merchants]]
slug = "model"
upstream = "https://shop.example.com"
networks = ["eip155:4663", "eip155:8453"]
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
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const chat = () => `${shop.url}/m/model/chat`
const body = '{"model":"m","max_tokens":1000,"messages":[]}'
const posting: RequestInit = {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body,
}
const pay = (credential: Record<string, string>) =>
  fetch(chat(), {
    ...posting,
    headers: { 'content-type': 'application/json', ...credential },
  })

const usage = (input: number, output: number) =>
  JSON.stringify({ usage: { prompt_tokens: input, completion_tokens: output } })

describe('a whole answer', () => {
  test('behavior: is held until its charge is settled', async () => {
    shop.upstream.script = (_, reply) => reply.send(200, usage(7, 20))
    const before = await shop.balance('eip155:8453', payee)
    const credential = await signUpto(chat(), posting)
    const response = await pay(credential)
    expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
    const cost = 500 + 7 + 200
    const settled = settlementOf(response)
    expect(settled).toMatchObject({ success: true, amount: String(cost) })
    expect(await shop.balance('eip155:8453', payee)).toBe(before + BigInt(cost))
  })
})
