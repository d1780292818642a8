import { describe, expect, test } from 'bun:test'
import { account } from '../../../src/demo/accounts'
import { mine } from '../../../src/demo/chains'
import * as Voucher from '../../../src/protocol/Channel'
import * as Crypto from '../../../src/protocol/Crypto'
import { setAutomine } from '../../harness/chains'
import { onChain, pay, sync } from '../../harness/channel-rows'
import { authorizerKey, type OwnChannels, ownChannels } from '../../harness/own-channels'
import { isSend } from '../../harness/own-settlement'
import { payee, type RpcCall, signTransfer, startTap, until } from '../../harness/settlement'
import { isPostgres } from '../../harness/test-ledger'

const price = 10_000n

/** Nothing is claimed by time or amount. */
const patient = { claimEveryMs: 3_600_000, claimAboveAtomic: 1_000_000_000n }

const jobs = (own: OwnChannels, kind: string) =>
  own.fixture.sql
    .query<{ id: string; state: string }, [string]>('SELECT id, state FROM jobs WHERE id LIKE ?')
    .all(`${kind}:%`)

const claimedOf = async (own: OwnChannels, config: Voucher.Config) =>
  (await own.read(own.idOf(config))).claimed

const events = (own: OwnChannels, name: string) =>
  own.fixture.events.filter(({ event }) => event === name)

/** Waits until the channels were looked at several times. */
async function looks(own: OwnChannels) {
  const before = own.asked('eth_getLogs')
  await until(() => own.asked('eth_getLogs') > before + 4)
}

/** What a node shows of channels, changed by a test. */
function lies(change: (answer: string) => string) {
  return async ({ method, params }: RpcCall, forward: () => Promise<Response>) => {
    if (method === 'eth_getLogs') return { result: [] }
    const [call] = params as [{ data?: string }]
    const ask = Voucher.pendingWithdrawalCall('0x').data.slice(2)
    if (method !== 'eth_call' || !call.data?.includes(ask)) return undefined
    const { result } = (await (await forward()).json()) as { result: string }
    return { result: change(result) }
  }
}

const wordsOf = (answer: string) => answer.slice(2).match(/.{64}/g) ?? []

/** Hides withdrawals: times of this century as words. */
const hidesWithdrawals = lies((answer) => {
  const words = wordsOf(answer).map((word) => (/^0{56}[67]/.test(word) ? '0'.repeat(64) : word))
  return `0x${words.join('')}`
})

describe.concurrent('claims', () => {
  test('claims of three channels share a transaction, and a sweep pays them out', async () => {
    await using own = await ownChannels({ terms: patient })
    const paid = await own.balance(payee)
    const configs = [await own.opened(), await own.opened(), await own.opened(600_000n, 50_000n, 2)]
    await looks(own)
    expect(jobs(own, 'claim')).toEqual([])
    // At its start a process claims what is left.
    await own.reopen()
    await until(async () => (await own.balance(payee)) > paid)
    expect(await Promise.all(configs.map((each) => claimedOf(own, each)))).toEqual([
      price,
      price,
      50_000n,
    ])
    expect((await own.balance(payee)) - paid).toBe(70_000n)
    expect([jobs(own, 'claim').length, jobs(own, 'sweep').length]).toEqual([1, 1])
    for (const each of configs)
      await until(async () => {
        const row = await own.row(each)
        return row !== undefined && row.claimedAtomic === row.chargedAtomic
      })
  })

  test('a channel is claimed at once when claim_above is reached', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const config = await own.opened(5_000_000n, 600_000n)
    await looks(own)
    expect(await claimedOf(own, config)).toBe(0n)
    await own.pay(own.voucher(config, 1_200_000n, 600_000n))
    await until(async () => (await claimedOf(own, config)) === 1_200_000n)
  })

  test.skipIf(!isPostgres)('what another gateway has charged is claimed here', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const config = await own.opened()
    const channel = { id: own.idOf(config), network: own.network.id, config }
    const { signature } = own.voucher(config, 2_000_000n, 2_000_000n - price)
    const charge = { baseAtomic: price, amountAtomic: 2_000_000n - price }
    expect(await pay(own.fixture.ledger.channels, channel, charge, { signature })).toBeDefined()
    await until(async () => (await claimedOf(own, config)) === 2_000_000n)
  })

  test('attack: a withdrawal that starts and stays silent is claimed before its delay ends', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const before = await own.balance(config.payer)
    await own.initiateWithdraw(config, 4_990_000n)
    await until(async () => (await claimedOf(own, config)) === price)
    await until(async () => (await own.row(config))?.claimedAtomic === price)
    expect(await own.pay(own.voucher(config, 2n * price, price))).toMatchObject({
      reason: 'invalid_batch_settlement_evm_withdrawal_pending',
    })
    expect(events(own, 'channel-withdrawal')).toHaveLength(1)
    await own.net.chain.rpc('evm_increaseTime', [901])
    await mine(own.net.chain)
    await own.send(config.payer, Voucher.finalizeWithdrawCall(config))
    expect((await own.balance(config.payer)) - before).toBe(4_990_000n)
    await until(async () => (await own.row(config))?.withdrawAt === undefined)
  })

  test('attack: what ends after a withdrawal has begun is claimed at once', async () => {
    await using own = await ownChannels({ terms: { ...patient, withdrawDelayMs: 36_000_000 } })
    const config = await own.opened()
    const begun = await own.authorize(own.voucher(config, 2n * price, price))
    if (begun.kind !== 'authorized') throw new Error(begun.kind)
    await own.initiateWithdraw(config, 4_980_000n)
    await until(async () => (await claimedOf(own, config)) === price)
    await until(async () => (await own.row(config))?.claimedAtomic === price)
    await looks(own)
    const charge = { amountAtomic: price, units: {} }
    await own.fixture.settlement.authorizations.charge(begun.authorization, charge)
    await until(async () => (await claimedOf(own, config)) === 2n * price)
  })

  test('attack: vouchers above many balances share the reads of a slow node', async () => {
    await using own = await ownChannels({ terms: patient })
    const configs = Array.from({ length: 60 }, () => own.configOf())
    for (const config of configs) {
      const agreed = { id: own.idOf(config), network: own.network.id, config }
      const dust = { balanceAtomic: 1n, claimedAtomic: 0n, withdrawAt: undefined, refundNonce: 0n }
      await own.fixture.ledger.channels.insert(agreed, dust, Date.now())
    }
    await looks(own)
    const before = own.asked('eth_call')
    const answered = Promise.withResolvers<void>()
    own.net.tap.intercept = async ({ method }) => {
      if (method === 'eth_call') await answered.promise
      return undefined
    }
    const ends = configs.map((config) => own.pay(own.voucher(config, price, price)))
    await until(() => own.asked('eth_call') > before)
    answered.resolve()
    for (const end of await Promise.all(ends))
      expect(end).toMatchObject({
        reason: 'invalid_batch_settlement_evm_cumulative_exceeds_balance',
      })
    expect(own.asked('eth_call') - before).toBeLessThan(12)
  })

  test('attack: a channel that other processes read all the time delays no claim of another one', async () => {
    await using own = await ownChannels({ terms: patient })
    const [busy, other] = [await own.opened(), await own.opened()]
    const id = own.idOf(busy)
    let overtaken = 0
    own.net.tap.intercept = async ({ method, params }) => {
      if (method !== 'eth_call' || !JSON.stringify(params).includes(id.slice(2))) return undefined
      const state = onChain({ balanceAtomic: 5_000_000n })
      await sync(own.fixture.ledger.channels, { id }, state, Date.now())
      overtaken++
      return undefined
    }
    const above = own.pay(own.voucher(busy, 6_000_000n, 6_000_000n - price))
    await until(() => overtaken > 1)
    await own.initiateWithdraw(other, 1n)
    await until(async () => (await claimedOf(own, other)) === price)
    expect(await above).toMatchObject({
      reason: 'invalid_batch_settlement_evm_cumulative_exceeds_balance',
    })
  })

  test('attack: one of two URLs hides a withdrawal, or shows more as claimed than there is', async () => {
    await using own = await ownChannels({ terms: patient })
    const second = startTap(own.net.chain.url)
    await own.fixture.stop()
    await own.open({ rpcUrls: [own.net.tap.url, second.url] })
    const hidden = await own.opened()
    own.net.tap.intercept = hidesWithdrawals
    await own.initiateWithdraw(hidden, 1n)
    await until(async () => (await claimedOf(own, hidden)) === price)
    const word = (of: bigint) => of.toString(16).padStart(64, '0')
    const shown = await own.opened()
    own.net.tap.intercept = lies((answer) =>
      answer.replace(word(5_000_000n) + word(0n), word(5_000_000n) + word(price)),
    )
    await own.initiateWithdraw(shown, 1n)
    await until(async () => (await claimedOf(own, shown)) === price)
    second.stop()
  })

  test('attack: a node that hides events is read within a tenth of the delay', async () => {
    await using own = await ownChannels({ terms: { ...patient, withdrawDelayMs: 8_000 } })
    const config = await own.opened()
    own.net.tap.intercept = ({ method }) => (method === 'eth_getLogs' ? { result: [] } : undefined)
    await own.initiateWithdraw(config, 1n)
    await until(async () => (await claimedOf(own, config)) === price)
  })

  test('while no node answers for a tenth of the delay, no voucher is taken', async () => {
    await using own = await ownChannels({ terms: { ...patient, withdrawDelayMs: 8_000 } })
    const config = await own.opened()
    own.net.tap.intercept = () => new Response('away', { status: 503 })
    let max = price
    const next = () => own.pay(own.voucher(config, max + price, price))
    await until(async () => {
      const end = await next()
      if (end.kind === 'authorized') max += price
      return end.kind === 'unavailable'
    })
    own.net.tap.intercept = undefined
    await until(async () => (await next()).kind === 'authorized')
  })

  test('another account outruns a claim: ours changes nothing, and nothing is claimed twice', async () => {
    await using own = await ownChannels({ terms: patient })
    const paid = await own.balance(payee)
    const config = await own.opened()
    const { signed, chargedAtomic } = (await own.row(config)) ?? {}
    if (!signed || chargedAtomic === undefined) throw new Error('nothing was charged')
    const rows = [{ config, ...signed, chargedAtomic }]
    const digest = Voucher.claimDigest(own.network.chainId, rows)
    const call = Voucher.claimCall(rows, Crypto.sign(digest, authorizerKey))
    own.net.tap.intercept = async ({ method }) => {
      if (!isSend(method)) return undefined
      own.net.tap.intercept = undefined
      await own.send(account(8).address, call)
      return undefined
    }
    await own.reopen()
    await until(async () => (await own.balance(payee)) > paid)
    expect((await own.balance(payee)) - paid).toBe(price)
    await until(async () => (await own.row(config))?.claimedAtomic === price)
    await looks(own)
    expect(jobs(own, 'claim')).toMatchObject([{ state: 'confirmed' }])
  })

  test('gas is gone when a claim is due: it is reported, and sent with the last gas', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 100 } })
    const relayer = account(0).address
    const setGas = async (wei: bigint) => {
      await own.net.chain.rpc('anvil_setBalance', [relayer, `0x${wei.toString(16)}`])
      const balance = () => own.fixture.settlement.details()[0]?.relayers[0]?.balanceWei
      await until(() => balance() === wei)
    }
    const config = await own.opened(5_000_000n, 10_000n)
    await until(async () => (await own.row(config))?.claimedAtomic === 10_000n)
    await until(() => jobs(own, 'sweep').some(({ state }) => state === 'confirmed'))
    await setGas(0n)
    expect(await own.pay(own.voucher(config, 2_000_000n, 1_990_000n))).toMatchObject({
      kind: 'authorized',
    })
    await until(() => events(own, 'channel-claims-late').length > 0)
    expect(own.fixture.settlement.channels.claimsOf(own.network.id)?.late).toMatchObject({
      unclaimedAtomic: 1_990_000n,
    })
    // Too little for a sale, and enough for a claim.
    await setGas(10n ** 15n)
    expect(await own.fixture.pay(signTransfer(own.network), {}, { waitMs: 100 })).toMatchObject({
      kind: 'unavailable',
    })
    await until(async () => (await claimedOf(own, config)) === 2_000_000n)
    await until(() => own.fixture.settlement.channels.claimsOf(own.network.id)?.late === undefined)
  })

  test('a restart in the middle of a claim and of a sweep sends neither again', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const paid = await own.balance(payee)
    const config = await own.opened(5_000_000n, 600_000n)
    await setAutomine(own.net.chain, false)
    await own.pay(own.voucher(config, 1_200_000n, 600_000n))
    for (const kind of ['claim', 'sweep']) {
      await until(() => jobs(own, kind).length === 1)
      await own.reopen()
      await looks(own)
      await mine(own.net.chain)
    }
    await until(async () => {
      await mine(own.net.chain)
      return (await own.balance(payee)) > paid
    })
    expect((await own.balance(payee)) - paid).toBe(1_200_000n)
    expect([jobs(own, 'claim').length, jobs(own, 'sweep').length]).toEqual([1, 1])
  })

  test('a claim and its sweep that are reorganised away are sent again', async () => {
    await using own = await ownChannels({ terms: patient, chain: { hasKeys: true } })
    const paid = await own.balance(payee)
    const config = await own.opened()
    await own.reopen()
    await until(() => jobs(own, 'sweep').some(({ state }) => state === 'confirmed'))
    const again = Promise.withResolvers<void>()
    own.net.tap.intercept = async ({ method }) => {
      if (isSend(method)) await again.promise
      return undefined
    }
    await own.net.chain.rpc('anvil_reorg', [2, []])
    expect(await claimedOf(own, config)).toBe(0n)
    expect(await own.balance(payee)).toBe(paid)
    await until(async () => (await own.row(config))?.claimedAtomic === 0n)
    again.resolve()
    await until(async () => (await own.balance(payee)) > paid)
    expect((await own.balance(payee)) - paid).toBe(price)
    await until(async () => (await own.row(config))?.claimedAtomic === price)
    expect([jobs(own, 'claim').length, jobs(own, 'sweep').length]).toEqual([1, 1])
  })

  test('above unclaimed_max a voucher waits for a claim', async () => {
    await using own = await ownChannels({ terms: { ...patient, unclaimedMaxAtomic: 2n * price } })
    const config = await own.opened()
    await setAutomine(own.net.chain, false)
    // A look beside the first charge counts it twice, and may have claimed it already.
    let charged = price
    const next = () => own.pay(own.voucher(config, charged + price, price))
    await until(async () => {
      const end = await next()
      if (end.kind === 'authorized') charged += price
      return end.kind === 'unavailable' && (end.detail ?? '').includes('are being claimed')
    })
    expect(charged).toBeLessThanOrEqual(3n * price)
    await until(() => jobs(own, 'claim').length > 0)
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await until(async () => (await next()).kind === 'authorized')
    expect(await claimedOf(own, config)).toBe(charged)
  })

  test('what is worth less than its gas waits for a withdrawal', async () => {
    await using own = await ownChannels({
      terms: { claimEveryMs: 1 },
      network: { ethPriceUsd: 4_000 },
    })
    const config = await own.opened()
    await looks(own)
    expect(jobs(own, 'claim')).toEqual([])
    await own.initiateWithdraw(config, 1n)
    await until(async () => (await claimedOf(own, config)) === price)
  })
})
