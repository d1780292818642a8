import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { ask } from '../harness/buyer'
import { channelOffer } from '../harness/channel'
import { depositBy3009, settlementAddress } from '../harness/channel-contract'
import {
  type BuyersChannel,
  base,
  type ChannelShop,
  correctionOf,
  settledOf,
  startChannelShop,
} from '../harness/channel-shop'
import { untilEnded } from '../harness/shop'
import type { Reply } from '../harness/upstream'
import { costOf, json, openBuyer, usage } from '../harness/upto-shop'
import { until } from '../harness/world'

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

const prefix = 'invalid_batch_settlement_evm_'
const mismatch = `${prefix}cumulative_amount_mismatch`
const posted = { path: '/m/one/posted', init: { method: 'POST' } }

/** A channel after its first request, of which 5000 of 50000 is charged. */
async function opened(of: Parameters<ChannelShop['channel']>[0] = {}): Promise<BuyersChannel> {
  const channel = await shop.channel(of)
  const response = await channel.deposit({ amount: 50_000n })
  expect(response.status).toBe(200)
  await untilEnded(shop)
  shop.upstream.requests.length = 0
  return channel
}

/** The reply to the next request of the upstream. */
const nextReply = () =>
  new Promise<Reply>((resolve) => {
    shop.upstream.script = (_, reply) => resolve(reply)
  })

/** The same signature with the other s, which recovers the same key. */
const withHighS = (signature: Hex): Hex => {
  const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
  const s = order - BigInt(`0x${signature.slice(66, 130)}`)
  const v = signature.endsWith('1b') ? '1c' : '1b'
  return `${signature.slice(0, 66)}${s.toString(16).padStart(64, '0')}${v}` as Hex
}

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
    ...{ success: true, network: base, payer: channel.payer, amount: '50000' },
    extra: { chargedAmount: '5000', channelState: { ...state, chargedCumulativeAmount: '5000' } },
  })
  await untilEnded(shop)
  const signature = await channel.sign({ base: 5_000n, path: '/m/one/other' })
  const calls = shop.calls()
  const second = await channel.send(signature, { path: '/m/one/other' })
  expect([second.status, await second.text()]).toEqual([200, '{"ok":true}'])
  expect(shop.calls()).toBe(calls)
  expect(settledOf(second)).toEqual({
    ...{ success: true, transaction: '', network: base, payer: channel.payer, amount: '' },
    extra: { chargedAmount: '2000', channelState: { ...state, chargedCumulativeAmount: '7000' } },
  })
  await untilEnded(shop)
  expect(channel.row()).toMatchObject({ charged_atomic: '7000', reserved_id: null })
  expect(shop.payment()).toMatchObject({
    ...{ state: 'confirmed', delivery: 'delivered', method: 'channel', amount_atomic: '2000' },
    ...{ transaction_hash: channel.id, payer: channel.payer },
  })
})

describe('a voucher that is out of step', () => {
  for (const [name, terms] of [
    ['has paid already', { base: 0n }],
    ['is lower', { base: 3_000n }],
    ['is higher', { base: 10_000n }],
  ] as const)
    test(`a voucher that ${name} gets the state of its channel, and no answer`, async () => {
      const channel = await opened()
      const { asked, ...correction } = await correctionOf(await channel.pay(terms))
      expect(correction).toEqual({
        ...{ status: 402, error: mismatch, charged: '5000', signed: '5000', response: null },
      })
      // The head has this entry alone, and room for what proxies take.
      expect(asked.required.accepts).toHaveLength(1)
      expect(asked.response.headers.get('payment-required')?.length).toBeLessThan(3_000)
      expect(channelOffer(asked.whole, base)).toEqual(asked.required.accepts[0])
      expect(asked.whole.accepts.length).toBeGreaterThan(1)
      expect(channel.row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
      expect(shop.upstream.requests).toEqual([])
      expect((await channel.pay({ base: 5_000n })).status).toBe(200)
    })

  for (const [name, terms] of [
    ['of another key', { voucherSigner: account(2).local() }],
    ['with a high s', { signature: withHighS }],
  ] as const)
    test(`attack: a voucher ${name} is refused, and learns nothing`, async () => {
      const channel = await opened()
      const response = await channel.pay({ base: 0n, ...terms })
      const { asked, ...correction } = await correctionOf(response)
      expect(correction).toMatchObject({ status: 402, error: `${prefix}voucher_signature` })
      expect(correction).not.toHaveProperty('charged')
      expect(settledOf(asked.response)).toMatchObject({ success: false, payer: channel.payer })
      expect((await channel.pay({ base: 5_000n, ...terms })).status).toBe(402)
      expect(channel.row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
      expect(shop.upstream.requests).toEqual([])
    })

  test('attack: what a voucher allows above its charge pays for no other request', async () => {
    const chat = (tokens: number, text = '') => {
      const body = JSON.stringify({ model: 'm', max_tokens: tokens, messages: [], text })
      return { path: '/m/model/chat', init: { method: 'POST', headers: json, body } }
    }
    shop.upstream.script = (_, reply) => reply.send(200, usage(100, 10))
    const channel = await shop.channel()
    expect((await channel.deposit({ amount: 200_000n, ...chat(1000) })).status).toBe(200)
    await untilEnded(shop)
    const { charged_atomic: charged, signed_atomic: signed } = channel.row()
    expect(charged).toBe(String(costOf(100, 10)))
    const amount = String(BigInt(String(signed)) - BigInt(String(charged)))
    const replay = { max: BigInt(String(signed)), accepted: { amount }, ...chat(100) }
    // The state shows its signature, as a claim does.
    expect(await correctionOf(await channel.pay({ base: 1n, ...chat(100) }))).toMatchObject({
      ...{ status: 402, error: mismatch, charged, signed },
    })
    for (const kind of ['voucher', 'deposit'] as const)
      expect(await correctionOf(await channel.pay({ ...replay, kind }))).toMatchObject({
        ...{ status: 402, error: mismatch, charged, signed },
      })
    // A lower one that has paid for nothing is taken, and the greater one still is not.
    const next = BigInt(String(charged))
    expect((await channel.pay({ base: next, ...chat(100) })).status).toBe(200)
    await untilEnded(shop)
    expect(channel.row()).toMatchObject({
      charged_atomic: String(2n * next),
      signed_atomic: signed,
    })
    const less = { amount: String(BigInt(amount) - next) }
    const again = await channel.pay({ ...replay, accepted: less })
    expect(await correctionOf(again)).toMatchObject({ status: 402, error: mismatch })
    expect(shop.upstream.requests).toHaveLength(2)
  })

  test('a voucher above the balance is refused', async () => {
    const channel = await opened()
    for (let charged = 5_000n; charged < 50_000n; charged += 5_000n)
      expect((await channel.pay({ base: charged })).status).toBe(200)
    const { error, charged } = await correctionOf(await channel.pay({ base: 50_000n }))
    expect([error, charged]).toEqual([`${prefix}cumulative_exceeds_balance`, '50000'])
  })

  test('a channel without money is not found', async () => {
    const channel = await shop.channel()
    const { error, response } = await correctionOf(await channel.pay())
    expect([error, response === null]).toEqual([`${prefix}channel_not_found`, false])
    expect(channel.row()).toEqual({})
  })

  test('a channel that the ledger has lost is known again, with what the chain shows', async () => {
    const signer = account(1).local()
    const channel = await shop.channel({ signer })
    const data = await depositBy3009(channel.config, 50_000n)
    const chain = shop.chains[base]
    if (chain === undefined) throw new Error('no chain')
    await execute(chain, [{ from: account(9).address, to: settlementAddress, data }])
    const response = await channel.pay({ base: 15_000n })
    const { asked, ...correction } = await correctionOf(response)
    expect(correction).toEqual({ status: 402, error: mismatch, charged: '0', response: null })
    expect(asked.body).toMatchObject({ code: 'channel-unknown', reason: mismatch })
    expect((await channel.pay({ base: 0n })).status).toBe(200)
    expect(channel.row()).toMatchObject({ charged_atomic: '5000', balance_atomic: '50000' })
  })
})

describe('one request at a time', () => {
  test('two requests by one voucher at once get one answer, and the other one is corrected', async () => {
    const channel = await opened()
    const signature = await channel.sign({ base: 5_000n })
    const reply = nextReply()
    const one = channel.send(signature)
    const other = reply.then(() => channel.send(signature))
    const answer = await reply
    // The second request is waiting once the gateway has answered a later one.
    await ask(shop.at())
    answer.send(200, '{"n":1}')
    expect([await (await one).text(), (await other).status]).toEqual(['{"n":1}', 402])
    expect(await correctionOf(await other)).toMatchObject({
      ...{ error: mismatch, charged: '10000', signed: '10000', response: null },
    })
    expect(shop.upstream.requests).toHaveLength(1)
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
  })

  test('the next voucher waits for the answer before it', async () => {
    const channel = await opened()
    const reply = nextReply()
    const one = channel.pay({ base: 5_000n })
    const answer = await reply
    shop.upstream.script = undefined
    const other = channel.pay({ base: 10_000n })
    // The second request is waiting once the gateway has answered a later one.
    await ask(shop.at())
    answer.send(200, '{"n":1}')
    expect([(await one).status, (await other).status]).toEqual([200, 200])
    expect(channel.row()).toMatchObject({ charged_atomic: '15000' })
  })
})

describe('a request that fails', () => {
  /** A voucher whose buyer has left while the upstream works. */
  const leftBuyer = async (channel: BuyersChannel) => {
    const signature = await channel.sign({ base: 5_000n, ...posted })
    const reply = nextReply()
    const buyer = openBuyer(shop.at(posted.path), { 'payment-signature': signature }, '')
    const answer = await reply
    await buyer.leave()
    return { signature, answer }
  }

  test('an answer that fails costs nothing, and its voucher pays for another request', async () => {
    const channel = await opened()
    const signature = await channel.sign({ base: 5_000n })
    shop.upstream.script = (_, reply) => reply.send(500, 'broken')
    const failed = await channel.send(signature)
    expect([failed.status, settledOf(failed)]).toMatchObject([
      502,
      { success: false, payer: channel.payer },
    ])
    expect(channel.row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
    shop.upstream.script = undefined
    expect((await channel.send(signature, posted)).status).toBe(200)
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
  })

  test('a lost answer is charged, and the same voucher gets it once', async () => {
    const channel = await opened()
    const { signature, answer } = await leftBuyer(channel)
    // The gateway knows that the buyer has left once it has answered a later request.
    await ask(shop.at())
    shop.upstream.script = undefined
    answer.send(200, '{"n":1}')
    await until('it is charged', () => channel.row().charged_atomic === '10000')
    expect(shop.payment()).toMatchObject({ state: 'confirmed', delivery: 'none' })
    const again = await channel.send(signature, posted)
    expect([again.status, await again.text()]).toEqual([200, '{"ok":true}'])
    expect(settledOf(again)).toMatchObject({
      extra: { chargedAmount: '5000', channelState: { chargedCumulativeAmount: '10000' } },
    })
    await untilEnded(shop)
    expect(await correctionOf(await channel.send(signature, posted))).toMatchObject({
      error: mismatch,
    })
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
    expect(shop.upstream.requests).toHaveLength(2)
  })

  test('attack: a voucher whose answer is being made again is not asked for another one', async () => {
    const channel = await opened()
    const { signature, answer } = await leftBuyer(channel)
    // The gateway knows that the buyer has left once it has answered a later request.
    await ask(shop.at())
    const next = nextReply()
    answer.send(200, '{"n":1}')
    await until('it is charged', () => channel.row().charged_atomic === '10000')
    const again = channel.send(signature, posted)
    const second = await next
    const meanwhile = await channel.send(signature, posted)
    expect(meanwhile.status).toBe(409)
    expect(await meanwhile.json()).toMatchObject({ code: 'payment-in-progress' })
    // By another request the voucher has paid for nothing.
    expect(await correctionOf(await channel.send(signature))).toMatchObject({ error: mismatch })
    second.send(200, '{"n":2}')
    expect(await (await again).text()).toBe('{"n":2}')
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
  })

  test('a client that left and waits by the same voucher gets the answer for one charge', async () => {
    const channel = await opened()
    const { signature, answer } = await leftBuyer(channel)
    const again = channel.send(signature, posted)
    // The second request is waiting once the gateway has answered a later one.
    await ask(shop.at())
    shop.upstream.script = undefined
    answer.send(200, '{"n":1}')
    expect([(await again).status, await (await again).text()]).toEqual([200, '{"ok":true}'])
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
    expect(shop.upstream.requests).toHaveLength(2)
  })
})

describe('work of an upstream for nothing', () => {
  const failing = (_: unknown, reply: Reply) => reply.send(500, 'broken')

  test('attack: a payer whose requests fail waits, as by upto', async () => {
    const channel = await opened()
    shop.upstream.script = failing
    for (let failed = 0; failed < 5; failed++)
      expect((await channel.pay({ base: 5_000n })).status).toBe(502)
    const waits = await channel.pay({ base: 5_000n })
    expect([waits.status, await waits.json()]).toMatchObject([
      429,
      { code: 'rate-limited', reason: 'upto_often_unpaid' },
    ])
    expect(waits.headers.get('retry-after')).toMatch(/^[0-9]+$/)
    expect(channel.row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
  })

  test('attack: what failed requests lose of a merchant is limited, and a payer that paid goes on', async () => {
    const path = '/m/careful/item'
    const paid = await shop.channel()
    expect((await paid.deposit({ amount: 80_000n, path })).status).toBe(200)
    const bad = await opened()
    shop.upstream.script = failing
    expect((await bad.pay({ base: 5_000n, path })).status).toBe(502)
    shop.upstream.script = undefined
    const fresh = await opened()
    const { error } = await correctionOf(await fresh.pay({ base: 5_000n, path }))
    expect(error).toBe('upto_losses_spent')
    expect((await paid.pay({ base: 10_000n, path })).status).toBe(200)
  })
})

test('where a transfer costs too much gas for a price, the channel alone is offered', async () => {
  const dear = await startChannelShop({
    adjust: (config) => ({
      ...config,
      networks: config.networks.map((network) => ({ ...network, gasRatioMax: 0.000001 })),
    }),
  })
  try {
    const asked = await ask(dear.at())
    expect(asked.required.accepts.map(({ scheme }) => scheme)).toEqual(['batch-settlement'])
    const channel = await dear.channel()
    expect((await channel.deposit({ amount: 50_000n })).status).toBe(200)
    expect((await channel.pay({ base: 5_000n })).status).toBe(200)
    expect((await ask(dear.at('/m/one/plain'), { method: 'POST' })).response.status).toBe(503)
  } finally {
    await dear.stop()
  }
})

describe('keys and entitlements', () => {
  const keyed = (key: string) => ({ init: { headers: { 'idempotency-key': key } } })

  test('a key replays its answer to another voucher, which stays unspent', async () => {
    const channel = await opened()
    shop.upstream.script = (_, reply) => reply.send(200, '{"n":1}')
    expect((await channel.pay({ base: 5_000n, ...keyed('channel-1') })).status).toBe(200)
    await untilEnded(shop)
    shop.upstream.script = undefined
    const again = await channel.pay({ base: 10_000n, ...keyed('channel-1') })
    expect([again.status, await again.text()]).toEqual([200, '{"n":1}'])
    expect(again.headers.get('idempotency-replayed')).toBe('true')
    expect(settledOf(again)).toMatchObject({
      extra: { chargedAmount: '5000', channelState: { chargedCumulativeAmount: '10000' } },
    })
    expect(channel.row()).toMatchObject({ charged_atomic: '10000', reserved_id: null })
    expect((await channel.pay({ base: 10_000n })).status).toBe(200)
  })

  test('one key buys once, though its payer has two channels', async () => {
    const channel = await opened()
    const other = await shop.channel({ signer: channel.signer })
    await other.deposit({ amount: 50_000n })
    await untilEnded(shop)
    shop.upstream.requests.length = 0
    const reply = nextReply()
    const one = channel.pay({ base: 5_000n, ...keyed('channel-2') })
    const answer = await reply
    const refused = await other.pay({ base: 5_000n, ...keyed('channel-2') })
    expect([refused.status, await refused.json()]).toMatchObject([
      409,
      { code: 'payment-in-progress' },
    ])
    answer.send(200, '{"n":1}')
    expect((await one).status).toBe(200)
    await untilEnded(shop)
    const again = await other.pay({ base: 5_000n, ...keyed('channel-2') })
    expect([again.status, await again.text()]).toEqual([200, '{"n":1}'])
    expect(other.row()).toMatchObject({ charged_atomic: '5000', reserved_id: null })
    expect(shop.upstream.requests).toHaveLength(1)
  })

  test('attack: a stranger that pays into a channel of a payer gets no key and no entitlement of it', async () => {
    const victim = await opened()
    shop.upstream.script = (_, reply) => reply.send(200, '{"secret":1}')
    expect((await victim.pay({ base: 5_000n, ...keyed('victim-1') })).status).toBe(200)
    await untilEnded(shop)
    const stranger = account(2).local()
    const config = { payerAuthorizer: stranger.address }
    const channel = await shop.channel({ signer: victim.signer, config })
    const { id, config: whole } = channel
    const state = { balanceAtomic: 50_000n, claimedAtomic: 0n, withdrawAt: undefined }
    await shop.ledger.channels.insert(
      { id, network: base, config: whole },
      { ...state, refundNonce: 0n },
      shop.now(),
    )
    const own = { voucherSigner: stranger }
    const read = await channel.pay({ ...own, ...keyed('victim-1') })
    expect([read.status, await read.json()]).toMatchObject([
      400,
      { code: 'bad-request', field: 'Idempotency-Key' },
    ])
    const kept = await correctionOf(await channel.pay({ ...own, path: '/m/one/kept' }))
    expect(kept.error).toBe(`${prefix}authorizer_address_mismatch`)
    expect(shop.rows(`SELECT id FROM entitlements WHERE wallet = '${victim.payer}'`)).toEqual([])
    expect((await channel.pay(own)).status).toBe(200)
  })

  test('a route whose answers may be fetched again gives its token to a buyer by channel', async () => {
    const channel = await opened()
    const response = await channel.pay({ base: 5_000n, path: '/m/one/kept' })
    const token = response.headers.get('payment-redeem') ?? ''
    expect([response.status, token]).toEqual([200, expect.stringMatching(/^pay_/)])
    await untilEnded(shop)
    const again = await fetch(shop.at('/m/one/kept'), { headers: { 'payment-redeem': token } })
    expect(again.status).toBe(200)
    expect(channel.row()).toMatchObject({ charged_atomic: '10000' })
  })
})

describe('schemes of a route', () => {
  test('a route with exact alone offers no channel, and one with channel alone nothing else', async () => {
    const plain = await ask(shop.at('/m/one/plain'), { method: 'POST' })
    expect(plain.whole.accepts.map(({ scheme }) => scheme)).toEqual(['exact'])
    const only = await ask(shop.at('/m/one/only'))
    expect(only.required.accepts.map(({ scheme }) => scheme)).toEqual(['batch-settlement'])
    expect(only.response.headers.has('www-authenticate')).toBe(false)
    const channel = await opened()
    expect((await channel.pay({ base: 5_000n, path: '/m/one/only' })).status).toBe(200)
    const other = await channel.sign({ base: 10_000n })
    const refused = await channel.send(other, { path: '/m/one/plain', init: { method: 'POST' } })
    expect(await correctionOf(refused)).toMatchObject({ error: 'unsupported_scheme' })
  })
})
