import { describe, expect, test } from 'bun:test'
import { account } from '../../../src/demo/accounts'
import { mine } from '../../../src/demo/chains'
import * as Voucher from '../../../src/protocol/Channel'
import * as Crypto from '../../../src/protocol/Crypto'
import { setAutomine } from '../../harness/chains'
import { pay } from '../../harness/channel-rows'
import { authorizerKey, type OwnChannels, ownChannels } from '../../harness/own-channels'
import { isSend } from '../../harness/own-settlement'
import { payee, startTap, until } from '../../harness/settlement'
import { isPostgres } from '../../harness/test-ledger'

const price = 10_000n

const jobs = (own: OwnChannels) =>
  own.fixture.sql
    .query<{ id: string; state: string }, []>(
      "SELECT id, state FROM jobs WHERE id LIKE 'channel-refund:%'",
    )
    .all()

/** Asks for a refund with the voucher of all that was charged. */
async function refund(
  own: OwnChannels,
  config: Voucher.Config,
  { amount, max = price, waitMs = 60_000 }: { amount?: bigint; max?: bigint; waitMs?: number } = {},
) {
  const changes = amount === undefined ? {} : { refundAtomic: amount }
  const transfer = own.voucher(config, max, 0n, { kind: 'refund', ...changes })
  return own.fixture.settlement.channels.refund(transfer, { waitMs })
}

/** A refund that the merchant sends itself, which uses a nonce. */
async function refundBeside(own: OwnChannels, config: Voucher.Config, nonce: bigint) {
  const id = own.idOf(config)
  const digest = Voucher.refundDigest(own.network.chainId, id, nonce, 1n)
  const call = Voucher.refundCall(config, 1n, nonce, Crypto.sign(digest, authorizerKey))
  await own.send(account(8).address, call)
}

/** Signed refunds of a channel that its node has seen. `before`: runs before each call of the node. */
function watchRefunds(
  own: OwnChannels,
  config: Voucher.Config,
  before: (method: string) => Promise<void> = async () => {},
): ReadonlySet<string> {
  const selector = Voucher.refundCall(config, 1n, 0n, '0x').data.slice(2, 10)
  const seen = new Set<string>()
  own.net.tap.intercept = async ({ method, params }) => {
    const text = JSON.stringify(params)
    const at = text.indexOf(selector)
    if (at >= 0) seen.add(text.slice(at, at + 14 * 64))
    await before(method)
    return undefined
  }
  return seen
}

const patient = { claimEveryMs: 3_600_000, claimAboveAtomic: 1_000_000_000n }

describe.concurrent('a refund of a channel', () => {
  test('error: a channel that a crash of the database has undone is refunded', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 100 } })
    const config = await own.opened()
    await until(async () => (await own.row(config))?.claimedAtomic === price)
    own.loseChannels()
    expect(await refund(own, config)).toMatchObject({
      ...{ kind: 'refunded', amountAtomic: 5_000_000n - price },
    })
  })

  test('a refund claims what was charged, and sends back the rest', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const before = await own.balance(config.payer)
    expect(await refund(own, config, { amount: 1_000_000n })).toMatchObject({
      kind: 'refunded',
      amountAtomic: 1_000_000n,
      channel: { claimedAtomic: price, balanceAtomic: 4_000_000n, refundNonce: 1n },
    })
    expect(await own.read(own.idOf(config))).toMatchObject({ balance: 4_000_000n, claimed: price })
    // The channel goes on with what is left.
    expect(await own.pay(own.voucher(config, 2n * price, price))).toMatchObject({
      kind: 'authorized',
    })
    expect(await refund(own, config, { max: 2n * price })).toMatchObject({
      kind: 'refunded',
      amountAtomic: 3_980_000n,
    })
    expect((await own.balance(config.payer)) - before).toBe(4_980_000n)
    // A client without an answer asks again.
    expect(await refund(own, config, { max: 2n * price })).toMatchObject({
      kind: 'refunded',
      amountAtomic: 3_980_000n,
    })
    expect(jobs(own)).toHaveLength(2)
    expect((await own.balance(config.payer)) - before).toBe(4_980_000n)
  })

  test('what a refund has claimed is paid out after a restart, though no channel is open', async () => {
    await using own = await ownChannels({ terms: patient })
    const paid = await own.balance(payee)
    const config = await own.opened()
    expect(await refund(own, config)).toMatchObject({ kind: 'refunded', amountAtomic: 4_990_000n })
    expect(await own.balance(payee)).toBe(paid)
    await own.reopen()
    await until(async () => (await own.balance(payee)) > paid)
    expect((await own.balance(payee)) - paid).toBe(price)
  })

  test.skipIf(!isPostgres)('what another gateway has charged is refunded here', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const { channels } = own.fixture.ledger
    const channel = { id: own.idOf(config), network: own.network.id, config }
    const charge = { baseAtomic: price, amountAtomic: price }
    const { signature } = own.voucher(config, 2n * price, price)
    expect(await pay(channels, channel, charge, { signature })).toBeDefined()
    expect(await refund(own, config, { max: 2n * price })).toMatchObject({
      ...{ kind: 'refunded', amountAtomic: 4_980_000n },
      channel: { claimedAtomic: 2n * price },
    })
  })

  test('error: a refund above what is left, or of nothing, sends nothing', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    for (const amount of [0n, 4_990_001n])
      expect(await refund(own, config, { amount })).toMatchObject({
        reason: 'invalid_batch_settlement_evm_refund_amount_invalid',
      })
    expect(jobs(own)).toEqual([])
    expect((await own.row(config))?.reserved).toBeUndefined()
    await own.pay(own.voucher(config, 5_000_000n, 4_990_000n))
    expect(await refund(own, config, { max: 5_000_000n })).toMatchObject({
      reason: 'invalid_batch_settlement_evm_refund_no_balance',
    })
  })

  test('a nonce that was used before, or meanwhile, ends in a refund by the next one', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    await refundBeside(own, config, 0n)
    expect(await refund(own, config, { amount: 7n })).toMatchObject({
      kind: 'refunded',
      amountAtomic: 7n,
      channel: { refundNonce: 2n },
    })
    own.net.tap.intercept = async ({ method }) => {
      if (!isSend(method)) return undefined
      own.net.tap.intercept = undefined
      await refundBeside(own, config, 2n)
      return undefined
    }
    expect(await refund(own, config)).toMatchObject({
      reason: 'invalid_batch_settlement_evm_refund_transaction_failed',
    })
    expect((await own.row(config))?.reserved).toBeUndefined()
    expect(await refund(own, config)).toMatchObject({ amountAtomic: 4_989_991n })
  })

  test('a refund under way takes no voucher, and a restart sends it once', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    await setAutomine(own.net.chain, false)
    expect(await refund(own, config, { waitMs: 200 })).toMatchObject({ kind: 'unavailable' })
    const voucher = () => own.pay(own.voucher(config, 2n * price, price))
    expect((await voucher()).kind).not.toBe('authorized')
    await own.reopen()
    const looks = own.asked('eth_getLogs')
    await until(() => own.asked('eth_getLogs') > looks + 2)
    expect((await own.row(config))?.reserved?.id).toBe('refund:0')
    expect((await voucher()).kind).not.toBe('authorized')
    const again = refund(own, config)
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    expect(await again).toMatchObject({ kind: 'refunded', amountAtomic: 4_990_000n })
    expect(jobs(own)).toHaveLength(1)
    expect((await own.row(config))?.reserved).toBeUndefined()
  })

  test('attack: no voucher is taken while a refund is sent again that failed before', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const { rpc } = own.net.chain
    const code = await rpc('eth_getCode', [Voucher.settlementAddress, 'latest'])
    own.net.tap.intercept = async ({ method }) => {
      if (!isSend(method)) return undefined
      own.net.tap.intercept = undefined
      await rpc('anvil_setCode', [Voucher.settlementAddress, '0xfe'])
      return undefined
    }
    expect((await refund(own, config)).kind).not.toBe('refunded')
    await rpc('anvil_setCode', [Voucher.settlementAddress, code])
    await until(() => jobs(own)[0]?.state === 'failed')
    await own.reopen()
    const failed = own.asked('eth_getLogs')
    await until(() => own.asked('eth_getLogs') > failed + 2)
    // Its signature may still be sent by everybody.
    expect((await own.pay(own.voucher(config, 2n * price, price))).kind).not.toBe('authorized')
    await setAutomine(own.net.chain, false)
    await until(async () => {
      await refund(own, config, { waitMs: 200 })
      return jobs(own).length === 2
    })
    await own.reopen()
    const looks = own.asked('eth_getLogs')
    await until(() => own.asked('eth_getLogs') > looks + 2)
    expect((await own.row(config))?.reserved?.id).toBe('refund:0')
    expect((await own.pay(own.voucher(config, 2n * price, price))).kind).not.toBe('authorized')
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await until(async () => (await own.row(config))?.refundNonce === 1n)
    expect(await own.row(config)).toMatchObject({ balanceAtomic: price, reserved: undefined })
  })

  test('attack: no voucher is taken between a refund that is reorganised away and its return', async () => {
    await using own = await ownChannels({ terms: patient, chain: { hasKeys: true } })
    const config = await own.opened()
    expect(await refund(own, config)).toMatchObject({ kind: 'refunded' })
    const again = Promise.withResolvers<void>()
    own.net.tap.intercept = async ({ method }) => {
      if (isSend(method)) await again.promise
      return undefined
    }
    await own.net.chain.rpc('anvil_reorg', [1, []])
    expect((await own.read(own.idOf(config))).refundNonce).toBe(0n)
    await until(async () => (await own.row(config))?.refundNonce === 0n)
    const voucher = () => own.pay(own.voucher(config, 2n * price, price))
    for (let count = 0; count < 3; count++) expect((await voucher()).kind).not.toBe('authorized')
    again.resolve()
    await until(async () => (await own.read(own.idOf(config))).refundNonce === 1n)
    await until(async () => (await voucher()).kind === 'refused')
    expect(await own.row(config)).toMatchObject({ balanceAtomic: price, chargedAtomic: price })
  })

  test('attack: no node sees the signature of a refund that is not sent', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const seen = watchRefunds(own, config)
    for (let count = 1; count <= 10; count++) {
      expect((await refund(own, config, { amount: 1n })).kind).toBe('refunded')
      expect(seen.size).toBe(count)
    }
    expect(await refund(own, config)).toMatchObject({ kind: 'unavailable' })
    expect(seen.size).toBe(10)
    expect(await own.pay(own.voucher(config, 2n * price, price))).toMatchObject({
      kind: 'authorized',
    })
  })

  test('attack: a refund whose channel is charged meanwhile is not sent', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const seen = watchRefunds(own, config, async (method) => {
      if (method !== 'eth_estimateGas') return
      const { channels } = own.fixture.ledger
      const channel = { id: own.idOf(config), network: own.network.id, config }
      const { signature } = own.voucher(config, 2n * price, price)
      await pay(channels, channel, { baseAtomic: price, amountAtomic: price }, { signature })
    })
    expect(await refund(own, config)).toMatchObject({ kind: 'unavailable' })
    expect(jobs(own)).toEqual([])
    expect(seen.size).toBe(0)
    expect(await own.row(config)).toMatchObject({
      chargedAtomic: 2n * price,
      reserved: undefined,
    })
  })

  test('attack: a second attempt of a refund cannot ask for more than is left', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const { signed } = (await own.row(config)) ?? {}
    if (!signed) throw new Error('nothing was charged')
    const reserved = { ...signed, id: 'refund:0', fingerprint: '', at: Date.now() }
    await own.fixture.ledger.channels.reserve({
      channelId: own.idOf(config),
      ...{ baseAtomic: price, reserved },
    })
    expect(await refund(own, config, { amount: 2n ** 128n - 1n })).toMatchObject({
      reason: 'invalid_batch_settlement_evm_refund_amount_invalid',
    })
    expect(await refund(own, config)).toMatchObject({ amountAtomic: 4_990_000n })
  })

  test('attack: one URL alone does not end the reservation of a refund', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    await setAutomine(own.net.chain, false)
    expect(await refund(own, config, { waitMs: 200 })).toMatchObject({ kind: 'unavailable' })
    await own.fixture.stop()
    const liar = startTap(own.net.chain.url)
    const nonceCall = Voucher.refundNonceCall(own.idOf(config)).data.slice(2)
    let lies = 0
    liar.intercept = async ({ method, params }, forward) => {
      if (method !== 'eth_call' || !JSON.stringify(params).includes(nonceCall)) return undefined
      const { result } = (await (await forward()).json()) as { result: string }
      lies++
      // The nonce is the last word of what is read.
      return { result: `${result.slice(0, -1)}1` }
    }
    await own.open({ rpcUrls: [own.net.tap.url, liar.url] })
    const looks = own.asked('eth_getLogs')
    await until(() => own.asked('eth_getLogs') > looks + 2)
    expect(lies).toBeGreaterThan(0)
    expect((await own.row(config))?.reserved?.id).toBe('refund:0')
    expect((await own.pay(own.voucher(config, 2n * price, price))).kind).not.toBe('authorized')
    liar.stop()
  })

  test('attack: after the first refund a part must be worth its gas', async () => {
    await using own = await ownChannels({ terms: patient, network: { ethPriceUsd: 4_000 } })
    const config = await own.opened()
    expect(await refund(own, config, { amount: 1n })).toMatchObject({ amountAtomic: 1n })
    expect(await refund(own, config, { amount: 1n })).toMatchObject({
      reason: 'invalid_batch_settlement_evm_refund_amount_invalid',
    })
    expect(await refund(own, config)).toMatchObject({ amountAtomic: 4_989_999n })
  })
})
