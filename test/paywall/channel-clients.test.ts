import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { toClientEvmSigner } from '@x402/evm'
import {
  BatchSettlementEvmScheme,
  InMemoryClientChannelStorage,
} from '@x402/evm/batch-settlement/client'
import { wrapFetchWithPayment, x402Client } from '@x402/fetch'
import { createPublicClient, http } from 'viem'
import { ask } from '../harness/buyer'
import { channelOffer } from '../harness/channel'
import {
  base,
  type ChannelShop,
  correctionOf,
  freshBuyer,
  settledOf,
  startChannelShop,
} from '../harness/channel-shop'
import { untilEnded } from '../harness/shop'
import { answering, body, costOf, event, events, json, usage } from '../harness/upto-shop'

/** Payment channels with the stock client, and their refunds. */

let shop: ChannelShop
beforeAll(async () => {
  shop = await startChannelShop()
})
afterAll(() => shop.stop())
beforeEach(() => {
  shop.upstream.script = undefined
  shop.upstream.requests.length = 0
})

const prefix = 'invalid_batch_settlement_evm_'

/** The stock client with its defaults. `storage`: what it remembers. */
async function stock(
  signer?: Awaited<ReturnType<typeof freshBuyer>>,
  storage = new InMemoryClientChannelStorage(),
) {
  const account = signer ?? (await freshBuyer(shop))
  const chain = createPublicClient({ transport: http(shop.chains[base]?.url) })
  const scheme = new BatchSettlementEvmScheme(toClientEvmSigner(account, chain), { storage })
  const pay = wrapFetchWithPayment(fetch, new x402Client().register(base, scheme))
  return { account, scheme, pay, storage }
}

/** The row of the only channel of a payer. */
const rowOf = (payer: string) =>
  shop.rows(`SELECT * FROM channels WHERE payer = '${payer}'`)[0] ?? {}

describe('the stock client', () => {
  test('@x402/fetch deposits once, pays by vouchers, and gets the rest back', async () => {
    const { account, scheme, pay } = await stock()
    const whole = await shop.balance(base, account.address)
    for (let request = 0; request < 5; request++) {
      const response = await pay(shop.at())
      expect([response.status, await response.text()]).toEqual([200, '{"ok":true}'])
    }
    const posted = await pay(shop.at('/m/one/posted'), { method: 'POST' })
    expect(posted.status).toBe(200)
    await untilEnded(shop)
    const deposit = whole - (await shop.balance(base, account.address))
    expect(rowOf(account.address)).toMatchObject({
      ...{ charged_atomic: '30000', balance_atomic: String(deposit), reserved_id: null },
    })
    // At a route that takes no GET: the client asks for a refund by GET all the same.
    const refunded = await scheme.refund(shop.at('/m/one/posted'))
    expect(refunded).toMatchObject({ success: true, amount: String(deposit - 30_000n) })
    expect(await shop.balance(base, account.address)).toBe(whole - 30_000n)
    expect(rowOf(account.address)).toMatchObject({
      ...{ charged_atomic: '30000', claimed_atomic: '30000', balance_atomic: '30000' },
    })
  })

  test('@x402/fetch corrects itself when it has forgotten what was charged', async () => {
    const { account, pay } = await stock()
    for (let request = 0; request < 2; request++) expect((await pay(shop.at())).status).toBe(200)
    await untilEnded(shop)
    const forgetful = await stock(account)
    const response = await forgetful.pay(shop.at())
    expect([response.status, await response.text()]).toEqual([200, '{"ok":true}'])
    expect(rowOf(account.address)).toMatchObject({ charged_atomic: '15000' })
  })

  test('@x402/fetch pays for answers and streams by their use', async () => {
    const { account, pay } = await stock()
    const chat = { method: 'POST', headers: json, body }
    const at = shop.at('/m/model/chat')
    shop.upstream.script = answering(usage(7, 20))
    expect((await pay(at, chat)).status).toBe(200)
    shop.upstream.script = (_, reply) => reply.send(200, event(usage(1, 2)), events)
    const stream = await pay(at, chat)
    expect([stream.status, await stream.text()]).toEqual([200, event(usage(1, 2))])
    shop.upstream.script = answering(usage(7, 20))
    expect((await pay(at, chat)).status).toBe(200)
    const charged = 2 * costOf(7, 20) + costOf(1, 2)
    expect(rowOf(account.address)).toMatchObject({ charged_atomic: String(charged) })
  })
})

describe('a refund', () => {
  test('a GET at a route for POST has its offers, and buys nothing', async () => {
    const { response, whole } = await ask(shop.at('/m/one/posted'))
    expect([response.status, channelOffer(whole, base)?.scheme]).toEqual([402, 'batch-settlement'])
    const channel = await shop.channel()
    const signature = await channel.sign({ kind: 'deposit', amount: 50_000n })
    const bought = await channel.send(signature, { path: '/m/one/posted' })
    expect([bought.status, bought.headers.get('allow')]).toEqual([405, 'POST, OPTIONS'])
    expect((await fetch(shop.at('/m/one/plain'))).status).toBe(405)
    expect(shop.upstream.requests).toEqual([])
  })

  test('a refund needs the newest voucher, and pays back the part that is asked for', async () => {
    const channel = await shop.channel()
    expect((await channel.deposit({ amount: 50_000n })).status).toBe(200)
    await untilEnded(shop)
    const old = await channel.pay({ kind: 'refund', base: 0n, path: '/m/one/posted' })
    expect(await correctionOf(old)).toMatchObject({
      ...{ error: `${prefix}cumulative_amount_mismatch`, charged: '5000', response: null },
    })
    const dear = await channel.pay({ kind: 'refund', base: 5_000n, amount: 45_001n })
    expect((await correctionOf(dear)).error).toBe(`${prefix}refund_amount_invalid`)
    const part = await channel.pay({ kind: 'refund', base: 5_000n, amount: 20_000n })
    expect([part.status, await part.json()]).toMatchObject([
      200,
      { refund: { channelId: channel.id, amount: '0.020000', amountAtomic: '20000' } },
    ])
    expect(settledOf(part)).toMatchObject({
      ...{ success: true, payer: channel.payer, amount: '20000' },
      extra: { channelState: { balance: '30000', totalClaimed: '5000', refundNonce: '1' } },
    })
    expect((await channel.pay({ base: 5_000n })).status).toBe(200)
    expect(shop.upstream.requests).toHaveLength(2)
  })

  test('attack: another key gets no refund', async () => {
    const channel = await shop.channel()
    expect((await channel.deposit({ amount: 50_000n })).status).toBe(200)
    const { account } = await stock()
    const refused = await channel.pay({ kind: 'refund', base: 5_000n, voucherSigner: account })
    expect((await correctionOf(refused)).error).toBe(`${prefix}voucher_signature`)
  })
})
