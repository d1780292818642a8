import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import {
  base,
  type ChannelShop,
  correctionOf,
  settledOf,
  startChannelShop,
} from '../harness/channel-shop'
import { untilEnded } from '../harness/shop'

/** Requests that are paid by payment channels (x402 batch-settlement). */

let shop: ChannelShop
beforeAll(async () => {
  shop = await startChannelShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const payer = account(1).address
const mismatch = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'

test('a deposit and vouchers pay for requests, the vouchers without a node', async () => {
  const channel = await shop.channel()
  const first = await channel.deposit({ amount: 50_000n })
  expect([first.status, await first.text()]).toEqual([200, '{"ok":true}'])
  const state = {
    channelId: channel.id,
    ...{ balance: '50000', totalClaimed: '0', withdrawRequestedAt: 0, refundNonce: '0' },
  }
  const { transaction, ...settled } = settledOf(first)
  expect(transaction).toMatch(/^0x[0-9a-f]{64}$/)
  expect(settled).toEqual({
    ...{ success: true, network: base, payer, amount: '50000' },
    extra: { chargedAmount: '5000', channelState: { ...state, chargedCumulativeAmount: '5000' } },
  })
  await untilEnded(shop)
  const calls = shop.calls()
  const second = await channel.pay({ base: 5_000n, path: '/m/one/other' })
  expect([second.status, await second.text()]).toEqual([200, '{"ok":true}'])
  expect(shop.calls()).toBe(calls)
  expect(settledOf(second)).toEqual({
    ...{ success: true, transaction: '', network: base, payer, amount: '' },
    extra: { chargedAmount: '2000', channelState: { ...state, chargedCumulativeAmount: '7000' } },
  })
  await untilEnded(shop)
  expect(channel.row()).toMatchObject({ charged_atomic: '7000', reserved_id: null })
  expect(shop.payment()).toMatchObject({
    ...{ state: 'confirmed', delivery: 'delivered', method: 'channel', amount_atomic: '2000' },
    ...{ transaction_hash: channel.id, payer },
  })
})
