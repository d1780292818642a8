import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import type { Chain } from '../../src/demo/chains'
import * as Channel from '../../src/protocol/Channel'
import { type Accept, ask } from '../harness/buyer'
import { type ChannelTerms, channelFor, channelOffer, signVoucher } from '../harness/channel'
import {
  type ChannelConfig,
  channelIdOf,
  depositCall,
  settlementAddress,
} from '../harness/channel-contract'
import {
  base,
  type ChannelTarget,
  type Opened,
  robinhood,
  startChannelTarget,
} from '../harness/channel-target'
import { connect, request } from '../harness/raw'
import { buy, sign, startShopChains, untilEnded } from '../harness/shop'
import { freshWallet, setTokens } from '../harness/sponsor'
import { until } from '../harness/world'

/**
 * Attacks on payment channels, by HTTP and by transactions of their own. Others are where the code is that
 * they attack:
 *
 * | attack | test |
 * |---|---|
 * | two requests at once, of one gateway and of two | paywall/channel, db/channels, soak/cluster |
 * | a withdrawal that starts and stays silent, also with a node that hides it | settlement/channels/watch |
 * | a deposit that is front-run, or reorganised away for good; ten in an hour | settlement/channels/deposits |
 * | another's claim first; no gas when a claim is due | settlement/channels/claims |
 * | a refund that is reorganised away, or that a crash ends | settlement/channels/refunds |
 * | another authorizer key | cli/channel-key |
 * | a restored backup | paywall/channel, db/channels |
 * | the nonce of a charge in another payment, while a request runs | db/channels |
 */

const mismatch = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
const code = (name: string) => `invalid_batch_settlement_evm_${name}`
const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n

let chains: Chain[]
let store: ChannelTarget
beforeAll(async () => {
  chains = await startShopChains()
  store = await startChannelTarget({
    chains,
    // A node that announces its blocks shows a reorganisation at once.
    adjust: (config) => ({
      ...config,
      networks: config.networks.map((network, index) => ({
        ...network,
        wsUrl: chains[index]?.wsUrl ?? '',
      })),
    }),
  })
})
afterAll(async () => {
  await store?.stop()
  await Promise.all((chains ?? []).map((chain) => chain.stop()))
})
beforeEach(() => {
  store.shop.upstream.script = undefined
  for (const tap of Object.values(store.shop.taps)) tap.intercept = undefined
})

const priceAtomic = 5_000n
/** What a refusal says of a channel. */
const stateOf = (required: Parameters<typeof channelOffer>[0], network = base) =>
  (channelOffer(required, network)?.extra ?? {}) as Record<string, unknown>
const hex = (value: bigint) => value.toString(16).padStart(64, '0')

describe('vouchers', () => {
  test('attack: a replayed, lower, higher, foreign, high-s or otherwise signed voucher', async () => {
    const { signer, config, id } = await store.open()
    const sign = (terms: ChannelTerms) => store.sign('/item', { signer, config, ...terms })
    const replayed = await sign({ base: priceAtomic })
    expect(await store.served('/item', replayed)).toBe(priceAtomic)
    for (const [what, terms] of [
      ['lower', { base: 0n, max: 5_001n }],
      ['the deposit again', { base: 0n }],
      ['of the base before', { base: 4_999n }],
      ['one more', { base: 10_001n }],
      ['all that was deposited', { max: 100_000n }],
      ['more than was deposited', { max: 200_000n }],
      ['the largest', { max: 2n ** 128n - 1n }],
    ] as const) {
      const { required, response } = await store.refused('/item', await sign(terms), {
        reason: mismatch,
      })
      // The stock client corrects itself by the first entry of channels in the head.
      const head = JSON.parse(atob(response.headers.get('payment-required') ?? ''))
      const [first] = head.accepts.filter((each: Accept) => each.scheme === 'batch-settlement')
      expect([what, first?.extra.channelState?.channelId]).toEqual([what, id])
      expect([what, stateOf(required).channelState]).toEqual([
        what,
        expect.objectContaining({ channelId: id, chargedCumulativeAmount: '10000' }),
      ])
    }
    await store.refused('/other', replayed)
    const thief = freshWallet()
    const badly: [string, ChannelTerms][] = [
      ['foreign', { voucherSigner: thief }],
      ['high s', { signature: highS }],
      ['short', { signature: (signature) => signature.slice(0, 130) as Hex }],
      ['of zeros', { signature: () => `0x${'0'.repeat(130)}` }],
      ['with v 2', { signature: (signature) => `${signature.slice(0, 130)}1d` as Hex }],
      ['of another chain', { signature: () => ofChain }],
    ]
    const ofChain = await signVoucher(signer, 4663, id, 15_000n)
    for (const [what, terms] of badly) {
      const headers = await sign({ base: 10_000n, ...terms })
      const { required, response } = await store.refused('/item', headers, {
        status: 'any',
      })
      expect([what, [400, 402]]).toEqual([what, expect.arrayContaining([response.status])])
      // Of a channel only its own key learns something.
      expect([what, JSON.stringify(required ?? '')]).toEqual([
        what,
        expect.not.stringMatching(/channelState|voucherState/),
      ])
    }
    expect(await store.served('/item', await sign({ base: 10_000n }))).toBe(priceAtomic)
  })

  test('attack: numbers that no contract holds, and texts that are no numbers', async () => {
    const { signer, config } = await store.open()
    const headers = await store.sign('/item', { signer, config, base: priceAtomic })
    const json = JSON.parse(atob(headers['payment-signature'] ?? ''))
    const voucher = json.payload.voucher
    const send = async (payload: object) => {
      const value = btoa(JSON.stringify({ ...json, payload: { ...json.payload, ...payload } }))
      const { response, problem } = await store.refused(
        '/item',
        { 'payment-signature': value },
        {
          status: 'any',
        },
      )
      const what = JSON.stringify(payload).slice(0, 200)
      expect([what, [400, 402, 431]]).toEqual([what, expect.arrayContaining([response.status])])
      return problem
    }
    for (const max of [2n ** 128n, 2n ** 128n + 10_000n, 2n ** 256n - 1n, 2n ** 256n, -1n, 0n])
      await send({ voucher: { ...voucher, maxClaimableAmount: String(max) } })
    for (const max of [null, '', '1e4', '0x2710', ' 10000', '010000', [], {}, '1.5'])
      await send({ voucher: { ...voucher, maxClaimableAmount: max } })
    for (const salt of ['0x', `0x${'0'.repeat(66)}`, `0x${'g'.repeat(64)}`, '0'.repeat(64), 7])
      await send({ channelConfig: { ...json.payload.channelConfig, salt } })
    for (const withdrawDelay of [899, -1, 2 ** 40, 1e300, '900s', null, 900.5])
      await send({ channelConfig: { ...json.payload.channelConfig, withdrawDelay } })
    for (const type of ['claim', 'settle', 'toString', '', null, 'VOUCHER', 'x'.repeat(5_000)])
      await send({ type })
    await send({ voucher: { ...voucher, signature: `0x${'1'.repeat(20_000)}` } })
    expect(await store.served('/item', headers)).toBe(priceAtomic)
  })

  test('attack: ids, addresses and salts in other cases are the same channel', async () => {
    const signer = await store.wallet()
    const salt = `0x${'AbCd'.repeat(16)}` as Hex
    const { config, id } = await store.open(signer, { config: { salt: salt.toLowerCase() as Hex } })
    const headers = await store.sign('/item', { signer, config, base: priceAtomic })
    const json = JSON.parse(atob(headers['payment-signature'] ?? ''))
    const { voucher, channelConfig } = json.payload
    const upper = (text: string) => `0x${text.slice(2).toUpperCase()}`
    const spelled = {
      ...json.payload,
      voucher: { ...voucher, channelId: upper(voucher.channelId) },
      channelConfig: {
        ...channelConfig,
        salt,
        payer: channelConfig.payer.toLowerCase(),
        payerAuthorizer: upper(channelConfig.payerAuthorizer),
      },
    }
    const value = btoa(JSON.stringify({ ...json, payload: spelled }))
    const response = await store.send('/item', { 'payment-signature': value })
    await response.text()
    // Taken as the same, or refused: never another one with books of its own.
    expect([200, 400, 402]).toContain(response.status)
    const isTaken = response.status === 200
    if (isTaken) await store.refused('/item', headers, { reason: mismatch })
    else expect(await store.served('/item', headers)).toBe(priceAtomic)
    expect(store.row(id)?.charged_atomic).toBe('10000')
    expect(
      store.shop.rows(`SELECT id FROM channels WHERE payer = '${signer.address}'`).length,
    ).toBe(1)
  })

  test('attack: a voucher for another payout, network, authorizer, delay, token or price', async () => {
    const { signer, config } = await store.open()
    const sign = (over: object, terms: ChannelTerms = {}) =>
      store.sign('/item', { signer, base: priceAtomic, config: { ...config, ...over }, ...terms })
    const cases: [string, Record<string, string>, string][] = [
      ['receiver_mismatch', await sign({ receiver: account(4).address }), '/item'],
      ['receiver_authorizer_mismatch', await sign({ receiverAuthorizer: signer.address }), '/item'],
      ['token_mismatch', await sign({ token: account(4).address }), '/item'],
      ['withdraw_delay_mismatch', await sign({ withdrawDelay: 1_000 }), '/item'],
      [
        'channel_id_mismatch',
        await sign({ salt: `0x${'1'.repeat(64)}` }, { id: `0x${'2'.repeat(64)}` }),
        '/item',
      ],
      // The rival has a payout of its own.
      ['', await sign({}), 'rival/item'],
      ['', await sign({}, { accepted: { amount: '1' } }), '/item'],
      ['', await sign({}, { accepted: { network: robinhood } }), '/item'],
      ['', await sign({}, { accepted: { payTo: signer.address } }), '/item'],
      ['', await sign({}, { accepted: { extra: {} } }), '/item'],
      // A cheap voucher for a dear route, also with the amount of that.
      ['', await sign({}), '/dear'],
      ['', await sign({}, { accepted: { amount: '20000' } }), '/dear'],
      ['', await sign({}), '/exact'],
    ]
    for (const [name, headers, path] of cases)
      await store.refused(path, headers, { reason: name === '' ? /./ : code(name) })
    // One channel pays for all routes with this payout.
    expect(
      await store.served(
        '/other',
        await store.sign('/other', { signer, config, base: priceAtomic }),
      ),
    ).toBe(priceAtomic)
  })

  test('attack: a stranger with forged vouchers does not hold the turn of a channel', async () => {
    const { signer, config } = await store.open()
    const forged = await store.sign('/item', {
      ...{ signer, config, base: priceAtomic },
      voucherSigner: freshWallet(),
    })
    const own = await store.sign('/item', { signer, config, base: priceAtomic })
    const noise = Array.from({ length: 40 }, () => store.send('/item', forged))
    // Requests whose bodies never end.
    const [name = '', value = ''] = Object.entries(forged)[0] ?? []
    const slow = Array.from({ length: 5 }, () => {
      const lines = [`${name}: ${value}`, 'content-length: 1000']
      return connect(store.shop.url, request('/m/store/item', lines, 'POST'))
    })
    expect(await store.served('/item', own)).toBe(priceAtomic)
    for (const each of slow) each.destroy()
    for (const answer of await Promise.all(noise)) expect(answer.status).toBe(402)
  })
})

describe('what others pay for', () => {
  test('attack: a channel with the victim as payer, whose vouchers the attacker signs', async () => {
    const { shop } = store
    const victim = await store.wallet()
    const key = { 'idempotency-key': `of-${victim.address}` }
    const bought = await buy(store.at('/item'), { scheme: 'x402-eip3009', signer: victim }, key)
    expect(bought.status).toBe(200)
    await bought.text()
    await untilEnded(shop)
    const thief = freshWallet()
    const asked = await ask(store.at('/item'))
    const offer = channelOffer({ ...asked.required, accepts: asked.whole.accepts }, base)
    if (offer === undefined) throw new Error('no offer of channels')
    const over = { payer: victim.address, payerAuthorizer: thief.address }
    const sign = (path: string, terms: ChannelTerms = {}) =>
      store.sign(path, { signer: thief, config: over, ...terms })
    // Without money in the channel.
    for (const kind of ['voucher', 'deposit'] as const) {
      const headers = await sign('/item', { kind })
      await store.refused('/item', { ...headers, ...key }, { status: 400 })
      await store.refused('/item', headers)
    }
    // The contract takes money from the collector of a stranger.
    const id = await fundAsStranger(channelFor(offer, thief.address, over))
    await store.refused('/item', { ...(await sign('/item')), ...key }, { status: 400 })
    for (const path of ['/again', '/data/pass'])
      await store.refused(path, await sign(path), { reason: /authorizer/ })
    expect(await store.served('/item', await sign('/item'))).toBe(priceAtomic)
    expect(store.row(id)?.charged_atomic).toBe('5000')
    // The victim's own key still gives its own answer, and nothing of it is in use.
    const again = await buy(store.at('/item'), { scheme: 'x402-eip3009', signer: victim }, key)
    expect(again.status).toBe(200)
    // Refunds of that channel go to its payer, and take nothing from what the victim may send.
    const refund = await store.send(
      '/item',
      await sign('/item', { kind: 'refund', base: priceAtomic }),
    )
    expect(refund.status).toBe(200)
    expect(await shop.balance(base, thief.address)).toBe(0n)
  })

  test('attack: a refund with an old voucher, of somebody else, or of more than is left', async () => {
    const { signer, config, id } = await store.open()
    expect(
      await store.served('/item', await store.sign('/item', { signer, config, base: priceAtomic })),
    ).toBe(priceAtomic)
    const sign = (terms: ChannelTerms) =>
      store.sign('/item', { signer, config, kind: 'refund', ...terms })
    await store.refused('/item', await sign({ base: priceAtomic }), { reason: mismatch })
    await store.refused('/item', await sign({ base: 15_000n }), { reason: mismatch })
    await store.refused('/item', await sign({ base: 10_000n, voucherSigner: freshWallet() }), {
      reason: code('voucher_signature'),
    })
    for (const amount of ['0', '90001', String(2n ** 128n - 1n)])
      await store.refused('/item', await sign({ base: 10_000n, amount: BigInt(amount) }), {
        reason: /refund_amount_invalid/,
      })
    const thief = freshWallet()
    await store.refused(
      '/item',
      await store.sign('/item', { signer: thief, config, kind: 'refund', base: 10_000n }),
      {
        reason: code('voucher_signature'),
      },
    )
    // Five at once refund once.
    const headers = await sign({ base: 10_000n })
    const refunds = await Promise.all(Array.from({ length: 5 }, () => store.send('/item', headers)))
    expect(refunds.filter(({ status }) => status === 200).length).toBeGreaterThan(0)
    expect(await store.shop.balance(base, signer.address)).toBe(990_000n)
    expect(store.row(id)).toMatchObject({
      charged_atomic: '10000',
      claimed_atomic: '10000',
      balance_atomic: '10000',
    })
    // What is left of the channel pays for nothing.
    await store.refused('/item', await store.sign('/item', { signer, config, base: 10_000n }))
  })

  test('attack: a voucher that a claim has published is no refund for a stranger', async () => {
    const { signer, config, id } = await store.open()
    const headers = await store.sign('/item', { signer, config, base: priceAtomic, kind: 'refund' })
    const before = await store.shop.balance(base, signer.address)
    // All that a reader of the chain has is what the buyer would send: it moves money to the buyer only.
    expect((await store.send('/item', headers)).status).toBe(200)
    expect(await store.shop.balance(base, signer.address)).toBe(before + 95_000n)
    // Again it says what it did, and does nothing.
    await store.refused('/item', headers, { status: 200 })
    expect(store.row(id)?.charged_atomic).toBe('5000')
  })
})

describe('deposits', () => {
  test('attack: a deposit that is too small, unsigned, of another channel, or of money that is not there', async () => {
    const signer = await store.wallet()
    const sign = (terms: ChannelTerms) => store.sign('/item', { signer, kind: 'deposit', ...terms })
    await store.refused('/item', await sign({ amount: 49_999n }), {
      reason: code('deposit_below_min_deposit'),
    })
    await store.refused('/item', await sign({ amount: 0n }))
    await store.refused('/item', await sign({ amount: 2n ** 128n - 1n }))
    await store.refused('/item', await sign({ amount: 1_000_001n }), {
      reason: code('insufficient_balance'),
    })
    await store.refused('/item', await sign({ validBefore: BigInt(Math.floor(Date.now() / 1000)) }))
    // The authorization of one channel in another.
    const json = JSON.parse(atob((await sign({}))['payment-signature'] ?? ''))
    const other = JSON.parse(
      atob((await sign({ config: { salt: `0x${'7'.repeat(64)}` } }))['payment-signature'] ?? ''),
    )
    const mixed = { ...other, payload: { ...other.payload, deposit: json.payload.deposit } }
    await store.refused('/item', { 'payment-signature': btoa(JSON.stringify(mixed)) })
    expect(await store.shop.balance(base, signer.address)).toBe(1_000_000n)
  })

  test('attack: the same deposit from ten connections moves once and buys one answer', async () => {
    const signer = await store.wallet()
    const headers = await store.sign('/item', { signer, kind: 'deposit' })
    const before = store.shop.upstream.requests.length
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => store.send('/item', headers)),
    )
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(1)
    expect(store.shop.upstream.requests.length - before).toBe(1)
    expect(await store.shop.balance(base, signer.address)).toBe(900_000n)
  })
})

describe('the chain', () => {
  const all = async ({ config, id }: Opened) => {
    const words = await store.chain().rpc('eth_call', [Channel.channelsCall(id), 'latest'])
    const [balance = 0n, claimed = 0n] = Channel.parsePair(words as Hex) ?? []
    return Channel.initiateWithdrawCall(config, balance - claimed)
  }
  const next = ({ signer, config }: Opened, base: bigint) =>
    store.sign('/item', { signer, config, base })

  test('attack: a withdrawal that starts and stays silent gets nothing that was charged', async () => {
    const opened = await store.open()
    expect(await store.served('/item', await next(opened, priceAtomic))).toBe(priceAtomic)
    await store.sendFrom(opened.signer.address, await all(opened))
    await store.look()
    await until('all is claimed', () => store.row(opened.id)?.claimed_atomic === '10000')
    await store.refused('/item', await next(opened, 10_000n), { reason: /withdraw/ })
    // Nor just before its end.
    store.shop.advance(899_000)
    const late = store.refused('/item', await next(opened, 10_000n), { reason: /withdraw/ })
    await late.finally(() => store.shop.advance(-899_000))
  })

  test('attack: a deposit that is reorganised away pays for nothing until it is back', async () => {
    const opened = await store.open()
    const [tap, chain] = [store.shop.taps[base], store.chain()]
    const held = Promise.withResolvers<void>()
    if (tap)
      tap.intercept = async ({ method }) => {
        if (method.startsWith('eth_sendRawTransaction')) await held.promise
        return undefined
      }
    await chain.rpc('anvil_reorg', [1, []])
    const deposit = () =>
      store.shop.rows(`SELECT state FROM jobs WHERE id LIKE 'deposit:${opened.id}%'`)[0]
    await until('it is noticed', () => deposit()?.state !== 'confirmed')
    await until('its end is read', () => store.row(opened.id)?.balance_atomic === '0')
    const headers = await next(opened, priceAtomic)
    const { status } = await store.send('/item', headers)
    expect([402, 503]).toContain(status)
    expect(store.row(opened.id)?.charged_atomic).toBe('5000')
    held.resolve()
    await until('it is back', () => deposit()?.state === 'confirmed')
    await until('it is read', async () => (await store.send('/item', headers)).status === 200)
    expect(store.row(opened.id)?.charged_atomic).toBe('10000')
  })
})

test('error: a voucher that comes before the chain is read after a start is refused for now, and taken later', async () => {
  const { signer, config } = await store.open()
  const headers = await store.sign('/item', { signer, config, base: priceAtomic })
  const tap = store.shop.taps[base]
  if (tap) tap.intercept = () => new Response('the node is gone', { status: 502 })
  await store.shop.restart()
  await store.refused('/item', headers, { status: 503 })
  if (tap) tap.intercept = undefined
  await until('it is taken', async () => (await store.send('/item', headers)).status === 200)
})

describe('what strangers cost', () => {
  test('attack: vouchers of channels that are nowhere write nothing, and cost one read each', async () => {
    const many = await Promise.all(
      Array.from({ length: 20 }, () => store.sign('/item', { signer: freshWallet() })),
    )
    const before = await store.books()
    const calls = store.shop.calls()
    for (const headers of many) {
      const response = await store.send('/item', headers)
      const problem = (await response.json()) as Record<string, unknown>
      expect([response.status, problem.reason]).toEqual([402, code('channel_not_found')])
    }
    expect(await store.books()).toEqual(before)
    expect(store.shop.calls() - calls).toBeLessThanOrEqual(many.length * 2)
  })

  test('attack: the nonce of the next charge, used by another payment, makes no second charge and no free answer', async () => {
    const { signer, config, id } = await store.open()
    const nonce = Channel.nonceOf(id, priceAtomic)
    const exact = await sign(store.at('/item'), { scheme: 'x402-eip3009', signer, nonce })
    expect((await store.send('/item', exact)).status).toBe(200)
    await untilEnded(store.shop)
    const voucher = await store.sign('/item', { signer, config, base: priceAtomic })
    expect(await store.served('/item', voucher)).toBe(priceAtomic)
    await store.refused('/item', voucher, { reason: mismatch })
    await store.refused('/item', exact)
    expect(store.row(id)?.charged_atomic).toBe('10000')
    // The other way, the payment of the channel has the nonce of an authorization.
    const terms = { scheme: 'x402-eip3009', signer, nonce: Channel.nonceOf(id, 0n) } as const
    await store.refused('/item', await sign(store.at('/item'), terms), { status: 'any' })
  })
})

describe('routes', () => {
  const body = '{"model":"m","max_tokens":1000,"messages":[]}'
  const json = { 'content-type': 'application/json' }
  const init = { method: 'POST', body, headers: json }
  const events = { 'content-type': 'text/event-stream' }
  const event = 'data: {"choices":[]}\n\n'
  const used = 'data: {"usage":{"prompt_tokens":1,"completion_tokens":10}}\n\ndata: [DONE]\n\n'

  test('attack: GET and HEAD do not buy what only POST sells', async () => {
    const { signer, config } = await store.open()
    const post = { method: 'POST' }
    const headers = await store.sign('/post', { signer, config, base: priceAtomic, init: post })
    for (const method of ['GET', 'HEAD', 'PUT', 'DELETE', 'OPTIONS'])
      await store.refused('/post', headers, { status: 'any', init: { method } })
    for (const method of ['PUT', 'DELETE', 'OPTIONS'])
      await store.refused('/item', headers, { status: 'any', init: { method } })
    expect(await store.served('/post', headers, post)).toBe(priceAtomic)
  })

  test('attack: an answer whose use costs more than the ceiling is charged the ceiling', async () => {
    const { signer, config, id } = await store.open()
    store.shop.upstream.script = (_, reply) =>
      reply.send(200, '{"usage":{"prompt_tokens":999999999,"completion_tokens":999999999}}')
    const { whole } = await ask(store.at('/chat'), init)
    const amount = BigInt(channelOffer(whole, base)?.amount ?? 0)
    const headers = await store.sign('/chat', { signer, config, base: priceAtomic, init })
    expect(await store.served('/chat', headers, init)).toBe(amount)
    const charged = priceAtomic + amount
    expect(store.row(id)?.charged_atomic).toBe(String(charged))
    // A voucher of less than the ceiling buys nothing.
    const less = { signer, config, init, base: charged, max: charged + amount - 1n }
    await store.refused('/chat', await store.sign('/chat', less), { init, reason: mismatch })
  })

  test('attack: a metered answer that fails, is cut or is left leaves a channel that goes on', async () => {
    const { signer, config, id } = await store.open(undefined, { amount: 400_000n })
    const { upstream } = store.shop
    const charged = () => BigInt(store.row(id)?.charged_atomic ?? 0)
    const pay = () => store.sign('/chat', { signer, config, base: charged(), init })
    const isFree = () => store.row(id)?.reserved_id === null
    upstream.script = (_, reply) => reply.send(500)
    expect((await store.send('/chat', await pay(), init)).status).toBe(502)
    upstream.script = (_, reply) => {
      reply.head(200, events)
      reply.chunk(event)
      reply.cut()
    }
    await store.send('/chat', await pay(), init).then(
      (each) => each.text().catch(() => ''),
      () => '',
    )
    await until('it has ended', isFree)
    const before = charged()
    // A reader that leaves after the first event.
    upstream.script = (_, reply) => {
      reply.head(200, events)
      reply.chunk(event)
      reply.chunk(used)
      reply.end()
    }
    const lines = Object.entries({ ...(await pay()), ...json, 'content-length': body.length })
    const head = lines.map(([name, value]) => `${name}: ${value}`)
    const socket = connect(store.shop.url, request('/m/store/chat', head, 'POST') + body)
    await new Promise<void>((resolve) =>
      socket.on('data', (chunk) => String(chunk).includes('data:') && resolve()),
    )
    socket.destroy()
    await until('it is charged', () => charged() > before && isFree())
    expect(charged() - before).toBe(601n)
    upstream.script = undefined
    const item = await store.sign('/item', { signer, config, base: charged() })
    expect(await store.served('/item', item)).toBe(priceAtomic)
  })
})

function highS(signature: Hex): Hex {
  const s = order - BigInt(`0x${signature.slice(66, 130)}`)
  const v = signature.slice(130) === '1b' ? '1c' : '1b'
  return `${signature.slice(0, 66)}${hex(s)}${v}` as Hex
}

/** A collector that pays from its own tokens: transfer(msg.sender, amount) of the token. */
const collectorCode =
  '0x63a9059cbb600052336020526044356040526000600060446' + '01c600060243' + '55af100'

/** Funds a channel whose payer has signed nothing, as the contract allows everybody. */
async function fundAsStranger(config: ChannelConfig): Promise<Hex> {
  const collector = freshWallet().address
  await store.chain().rpc('anvil_setCode', [collector, collectorCode])
  await setTokens(store.chain(), config.token, [collector], 100_000n)
  const data = depositCall(config, 100_000n, collector)
  await store.sendFrom(account(9).address, { to: settlementAddress, data })
  return channelIdOf(config)
}
