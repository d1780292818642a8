import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import {
  type BuyersChannel,
  type ChannelShop,
  correctionOf,
  settledOf,
  startChannelShop,
} from '../harness/channel-shop'
import { untilEnded } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import {
  answering,
  body,
  costOf,
  event,
  events,
  json,
  openBuyer,
  readerOf,
  usage,
} from '../harness/upto-shop'
import { until } from '../harness/world'

/** Answers by their use that are paid by payment channels. */

let shop: ChannelShop
beforeAll(async () => {
  shop = await startChannelShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const path = '/m/model/chat'
const chat = { path, init: { method: 'POST', headers: json, body } }
const cost = costOf(7, 20)
const mismatch = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'

/** A channel after its first answer, whose use was charged. */
async function opened(): Promise<BuyersChannel> {
  shop.upstream.script = answering(usage(7, 20))
  const channel = await shop.channel()
  const response = await channel.deposit({ amount: 500_000n, ...chat })
  expect([response.status, await response.text()]).toEqual([200, usage(7, 20)])
  expect(settledOf(response)).toMatchObject({
    ...{ success: true, amount: '500000' },
    extra: {
      chargedAmount: String(cost),
      channelState: { balance: '500000', chargedCumulativeAmount: String(cost) },
    },
  })
  await untilEnded(shop)
  return channel
}

const charged = (channel: BuyersChannel) => Number(channel.row().charged_atomic)

test('a channel is refunded at a route by use', async () => {
  const channel = await opened()
  const refunded = await channel.pay({ kind: 'refund', base: BigInt(cost), path })
  expect([refunded.status, settledOf(refunded)]).toMatchObject([
    200,
    { success: true, amount: String(500_000 - cost) },
  ])
})

describe('a whole answer', () => {
  test('a whole answer is charged what it used, and the next voucher begins there', async () => {
    const channel = await opened()
    const next = await channel.pay({ base: BigInt(cost), ...chat })
    expect([next.status, charged(channel)]).toEqual([200, 2 * cost])
    expect(settledOf(next)).toMatchObject({
      ...{ transaction: '', amount: '' },
      extra: { chargedAmount: String(cost) },
    })
    expect(shop.payment()).toMatchObject({ amount_atomic: String(cost), method: 'channel' })
  })

  test('an answer that costs nothing leaves the voucher for the next one', async () => {
    const channel = await opened()
    shop.upstream.script = (_, reply) => reply.send(500, 'broken')
    const signature = await channel.sign({ base: BigInt(cost), ...chat })
    expect((await channel.send(signature, chat)).status).toBe(502)
    expect(channel.row()).toMatchObject({ charged_atomic: String(cost), reserved_id: null })
    shop.upstream.script = answering(usage(1, 1))
    expect((await channel.send(signature, chat)).status).toBe(200)
    expect(charged(channel)).toBe(cost + costOf(1, 1))
  })

  test('the buyer of a deposit whose answer fails learns of the deposit', async () => {
    shop.upstream.script = (_, reply) => reply.send(500, 'broken')
    const channel = await shop.channel()
    const failed = await channel.deposit({ amount: 500_000n, ...chat })
    expect([failed.status, settledOf(failed)]).toMatchObject([
      502,
      { success: true, amount: '500000', extra: { chargedAmount: '0' } },
    ])
    expect(channel.row()).toMatchObject({ charged_atomic: '0', balance_atomic: '500000' })
  })

  test('a lost answer is charged once, and the same voucher gets its bytes', async () => {
    const channel = await opened()
    const signature = await channel.sign({ base: BigInt(cost), ...chat })
    const reply = nextReply()
    const buyer = openBuyer(shop.at(path), { 'payment-signature': signature })
    const answer = await reply
    await buyer.leave()
    answer.send(200, usage(1, 2), json)
    await until('it is charged', () => charged(channel) === cost + costOf(1, 2))
    await until('it is kept', () => shop.rows('SELECT payment_id FROM answers').length === 1)
    shop.upstream.requests.length = 0
    const again = await channel.send(signature, chat)
    expect([again.status, await again.text()]).toEqual([200, usage(1, 2)])
    expect(shop.upstream.requests).toEqual([])
    expect(charged(channel)).toBe(cost + costOf(1, 2))
    await untilEnded(shop)
    expect(await correctionOf(await channel.send(signature, chat))).toMatchObject({
      ...{ error: mismatch, charged: String(cost + costOf(1, 2)) },
    })
  })
})

/** The reply to the next request of the upstream. */
const nextReply = () =>
  new Promise<Reply>((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })

describe('a stream', () => {
  test('a stream passes while it comes, is charged at its end, and the next voucher is corrected', async () => {
    const channel = await opened()
    const reply = nextReply()
    const asked = channel.pay({ base: BigInt(cost), ...chat })
    const upstream = await reply
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    const response = await asked
    expect(settledOf(response)).toEqual({})
    const read = readerOf(response)
    expect(await read()).toBe(event('{"n":1}'))
    expect(channel.row()).toMatchObject({ charged_atomic: String(cost) })
    upstream.chunk(event(usage(1, 2)))
    upstream.end()
    expect(await read()).toBe(event(usage(1, 2)))
    expect(await read()).toBe('')
    const after = cost + costOf(1, 2)
    expect(charged(channel)).toBe(after)
    expect(shop.payment()).toMatchObject({ state: 'confirmed', delivery: 'delivered' })
    shop.upstream.script = answering(usage(7, 20))
    expect(await correctionOf(await channel.pay({ base: BigInt(cost), ...chat }))).toMatchObject({
      ...{ error: mismatch, charged: String(after), signed: expect.any(String) },
    })
    expect((await channel.pay({ base: BigInt(after), ...chat })).status).toBe(200)
  })

  test('a buyer that leaves a stream pays for what it used', async () => {
    const channel = await opened()
    const reply = nextReply()
    const signature = await channel.sign({ base: BigInt(cost), ...chat })
    const buyer = openBuyer(shop.at(path), { 'payment-signature': signature })
    const upstream = await reply
    upstream.head(200, events)
    upstream.chunk(event('{"n":1}'))
    await until('it has the first bytes', () => buyer.got().includes('"n":1'))
    await buyer.leave()
    upstream.chunk(event(usage(3, 4)))
    upstream.end()
    await until('it is charged', () => charged(channel) === cost + costOf(3, 4))
  })
})
