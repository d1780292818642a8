import { afterAll, beforeAll, beforeEach, expect, test } from 'bun:test'
import { type AppPair, startAppPair } from '../harness/app-pair'
import { ask } from '../harness/buyer'
import {
  type BuyersChannel,
  type ChannelShop,
  correctionOf,
  settledOf,
  startChannelShop,
} from '../harness/channel-shop'
import type { Reply } from '../harness/upstream'
import { until } from '../harness/world'

/** One payment channel at two gateways over one database. */

let shop: ChannelShop
let pair: AppPair
let one: string
let other: string
beforeAll(async () => {
  shop = await startChannelShop()
  pair = await startAppPair(shop.config)
  const [first, second] = pair.apps
  one = first.url
  other = second.url
})
afterAll(async () => {
  await pair?.stop()
  await shop?.stop()
})
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const mismatch = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'

/** A channel of which the first gateway has charged 5000 of 80000. */
async function opened(): Promise<BuyersChannel> {
  const channel = await shop.channel({ url: one })
  await until('the contracts are seen', async () =>
    JSON.stringify((await ask(`${other}/m/one/item`)).whole).includes('batch-settlement'),
  )
  const response = await channel.deposit({ amount: 80_000n, url: one })
  expect(response.status).toBe(200)
  return channel
}

test('vouchers of one channel pay at either gateway, each once', async () => {
  const channel = await opened()
  for (const [base, url] of [
    [5_000n, other],
    [10_000n, one],
    [15_000n, one],
    [20_000n, other],
  ] as const) {
    const response = await channel.pay({ base, url })
    expect(response.status).toBe(200)
    expect(settledOf(response)).toMatchObject({
      extra: { channelState: { chargedCumulativeAmount: String(base + 5_000n) } },
    })
  }
  // The first gateway remembers less than the other one has charged.
  for (const url of [one, other])
    expect(await correctionOf(await channel.pay({ base: 20_000n, url }))).toMatchObject({
      ...{ error: mismatch, charged: '25000' },
    })
  expect(shop.upstream.requests).toHaveLength(5)
})

test('attack: one voucher at both gateways at once buys one answer', async () => {
  const channel = await opened()
  const signature = await channel.sign({ base: 5_000n, url: one })
  const replies: Reply[] = []
  shop.upstream.script = (_, reply) => void replies.push(reply)
  const first = channel.send(signature, { url: one })
  await until('it is forwarded', () => replies.length === 1)
  const second = await correctionOf(await channel.send(signature, { url: other }))
  expect(second).toMatchObject({ error: mismatch, charged: '5000' })
  replies[0]?.send(200, '{"n":1}')
  expect((await first).status).toBe(200)
  expect(replies).toHaveLength(1)
  shop.upstream.script = undefined
  expect((await channel.pay({ base: 10_000n, url: other })).status).toBe(200)
})
