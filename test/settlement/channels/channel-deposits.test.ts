import { describe, expect, test } from 'bun:test'
import { method } from '../../../src/chain/multicall'
import { account } from '../../../src/demo/accounts'
import { execute, mine } from '../../../src/demo/chains'
import * as Voucher from '../../../src/protocol/Channel'
import { setAutomine } from '../../harness/chains'
import { type OwnChannels, ownChannels } from '../../harness/own-channels'
import { isSend } from '../../harness/own-settlement'
import { networkOf, startTap, until } from '../../harness/settlement'
import { permit2612 } from '../../harness/upto-contract'

const price = 10_000n

type Method = 'eip3009' | 'permit2'

/** A new channel: its deposit, with the voucher of its first request. */
function first(
  own: OwnChannels,
  { amount = 5_000_000n, method = 'eip3009' as Method, from = 1 } = {},
) {
  const config = own.configOf({}, from)
  const deposit = own.signDeposit(config, amount, method)
  const transfer = own.voucher(config, price, price, { kind: 'deposit', deposit })
  return { config, deposit, transfer, call: Voucher.depositCall(config, deposit) }
}

const transactions = (own: OwnChannels) =>
  own.fixture.sql.query<{ id: string; state: string }, []>('SELECT id, state FROM jobs').all()

describe.concurrent('a deposit', () => {
  test('a deposit by EIP-3009 opens a channel, and its vouchers send nothing', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const config = await own.opened()
    for (let count = 2n; count <= 20n; count++)
      expect(await own.pay(own.voucher(config, count * price, price))).toMatchObject({
        kind: 'authorized',
      })
    expect(await own.row(config)).toMatchObject({
      balanceAtomic: 5_000_000n,
      chargedAtomic: 200_000n,
    })
    expect(await own.read(own.idOf(config))).toMatchObject({ balance: 5_000_000n })
  })

  test('a deposit by Permit2 needs an approve, or a permit of the payer with it', async () => {
    const asset = { ...networkOf('', 'usdc').asset, transfer: ['permit2'] as 'permit2'[] }
    await using own = await ownChannels({ network: { asset } })
    const { network, net } = own
    const revoke = method<[spender: `0x${string}`, amount: bigint]>('approve(address,uint256)')
    const call = revoke(network.asset.address, '0x000000000022D473030F116dDEE9F6B43aC78BA3', 0n)
    await execute(net.chain, [{ from: account(1).address, ...call, gas: 100_000n }])
    const { config, deposit, transfer } = first(own, { method: 'permit2' })
    expect(await own.pay(transfer)).toMatchObject({
      reason: 'invalid_batch_settlement_evm_permit2_allowance_required',
    })
    const { value: valueAtomic, deadline, r, s, v } = await permit2612(1, deposit.amountAtomic)
    const signature = `${r}${s.slice(2)}${v.toString(16)}` as const
    if (deposit.by.method !== 'permit2') throw new Error('not by Permit2')
    const by = { ...deposit.by, permit2612: { valueAtomic, deadline, signature } }
    const again = own.voucher(config, price, price, {
      kind: 'deposit',
      deposit: { ...deposit, by },
    })
    expect(await own.pay(again)).toMatchObject({ kind: 'authorized' })
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n, chargedAtomic: price })
  })

  test('error: a token without a signature in one piece takes no deposit by EIP-3009', async () => {
    await using own = await ownChannels({ manners: 'usdg' })
    expect(own.fixture.settlement.channels.termsOf(own.network.id)?.method).toBe('permit2')
    expect(await own.pay(first(own).transfer)).toMatchObject({
      reason: 'invalid_batch_settlement_evm_payload_type',
    })
    expect(await own.pay(first(own, { method: 'permit2' }).transfer)).toMatchObject({
      kind: 'authorized',
    })
  })

  test('the same deposit again joins the transaction that is under way', async () => {
    await using own = await ownChannels()
    await setAutomine(own.net.chain, false)
    const { config, transfer } = first(own)
    expect(await own.pay(transfer, 200)).toMatchObject({ kind: 'unavailable' })
    const again = own.pay(transfer)
    await until(() => transactions(own).length > 0)
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    expect(await again).toMatchObject({ kind: 'authorized' })
    expect(transactions(own)).toHaveLength(1)
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n, chargedAtomic: price })
  })

  test('a second deposit waits for the one under way, and is sent only where that is too little', async () => {
    await using own = await ownChannels()
    await setAutomine(own.net.chain, false)
    const { config, transfer } = first(own)
    expect(await own.pay(transfer, 200)).toMatchObject({ kind: 'unavailable' })
    // A client without an answer signs another one.
    const another = () => ({
      kind: 'deposit' as const,
      deposit: own.signDeposit(config, 5_000_000n),
    })
    const second = own.pay(own.voucher(config, price, price, another()), 200)
    expect(await second).toMatchObject({ kind: 'unavailable' })
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await until(() => transactions(own)[0]?.state === 'confirmed')
    const third = own.voucher(config, price, price, another())
    expect(await own.pay(third)).toMatchObject({ kind: 'authorized' })
    expect(transactions(own)).toMatchObject([{ state: 'confirmed' }])
    const more = own.voucher(config, 6_000_000n, 6_000_000n - price, another())
    expect(await own.pay(more)).toMatchObject({ kind: 'authorized' })
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 10_000_000n })
  })

  test('a deposit that a crash left under way is found by the same credential', async () => {
    await using own = await ownChannels()
    await setAutomine(own.net.chain, false)
    const { config, transfer } = first(own)
    expect(await own.pay(transfer, 200)).toMatchObject({ kind: 'unavailable' })
    await own.reopen()
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    expect(await own.pay(transfer)).toMatchObject({ kind: 'authorized' })
    expect(transactions(own)).toHaveLength(1)
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n, chargedAtomic: price })
  })

  test('attack: a deposit that another account sends first is taken as it is', async () => {
    await using own = await ownChannels()
    const before = first(own)
    await own.send(account(8).address, before.call)
    expect(await own.pay(before.transfer)).toMatchObject({ kind: 'authorized' })
    expect(transactions(own)).toEqual([])
    // Between the simulation and the block.
    const during = first(own)
    own.net.tap.intercept = async ({ method }) => {
      if (!isSend(method)) return undefined
      own.net.tap.intercept = undefined
      await own.send(account(8).address, during.call)
      return undefined
    }
    expect(await own.pay(during.transfer)).toMatchObject({ kind: 'authorized' })
    expect(transactions(own)).toMatchObject([{ state: 'failed' }])
    for (const { config } of [before, during])
      expect(await own.row(config)).toMatchObject({
        balanceAtomic: 5_000_000n,
        chargedAtomic: price,
      })
  })

  test('error: a deposit that is too small, late, unsigned, or above the balance sends nothing', async () => {
    await using own = await ownChannels()
    const reasonOf = async (transfer: ReturnType<typeof first>['transfer']) => {
      const end = await own.pay(transfer)
      return end.kind === 'refused' ? end.reason.replace('invalid_batch_settlement_evm_', '') : end
    }
    expect(await reasonOf(first(own, { amount: 499_999n }).transfer)).toBe(
      'deposit_below_min_deposit',
    )
    expect(await reasonOf(first(own, { amount: 10n ** 12n }).transfer)).toBe('insufficient_balance')
    const { config, deposit } = first(own)
    const over = own.voucher(config, 5_000_001n, 5_000_001n, { kind: 'deposit', deposit })
    expect(await reasonOf(over)).toBe('cumulative_exceeds_balance')
    const changed = { ...deposit, amountAtomic: 4_000_000n }
    const forged = own.voucher(config, price, price, { kind: 'deposit', deposit: changed })
    expect(await reasonOf(forged)).toBe('receive_authorization_signature')
    if (deposit.by.method !== 'eip3009') throw new Error('not by EIP-3009')
    const late = { ...deposit, by: { ...deposit.by, validBefore: 1n } }
    const expired = own.voucher(config, price, price, { kind: 'deposit', deposit: late })
    expect(await reasonOf(expired)).toBe('payload_authorization_valid_before')
    expect(transactions(own)).toEqual([])
  })

  test('attack: a deposit that is reorganised away, and cannot return, covers no voucher', async () => {
    await using own = await ownChannels({ chain: { hasKeys: true } })
    const config = await own.opened()
    const { asset } = own.network
    const holds = await own.balance(config.payer)
    const take = method<[to: `0x${string}`, amount: bigint]>('transfer(address,uint256)')
    const call = take(asset.address, account(9).address, holds)
    // The deposit is sent again after the payer has moved its money.
    const moved = Promise.withResolvers<void>()
    own.net.tap.intercept = async ({ method }) => {
      if (isSend(method)) await moved.promise
      return undefined
    }
    await own.net.chain.rpc('anvil_reorg', [1, []])
    expect((await own.read(own.idOf(config))).balance).toBe(0n)
    await execute(own.net.chain, [{ from: config.payer, ...call, gas: 200_000n }])
    await execute(own.net.chain, [
      {
        from: config.payer,
        ...take(asset.address, account(9).address, await own.balance(config.payer)),
        gas: 200_000n,
      },
    ])
    moved.resolve()
    await until(async () => (await own.row(config))?.balanceAtomic === 0n)
    await until(async () => {
      const end = await own.pay(own.voucher(config, 2n * price, price))
      if (end.kind === 'authorized') throw new Error('a voucher without a deposit was taken')
      return end.kind === 'refused' && end.reason.endsWith('cumulative_exceeds_balance')
    })
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 0n, chargedAtomic: price })
  })

  test('attack: a balance counts as far as every URL that answers shows it', async () => {
    await using own = await ownChannels()
    const { net } = own
    const second = startTap(net.chain.url)
    /** Shows another balance in place of a deposit of 5, while that returns true. */
    const shows = (balance: bigint, isWanted: () => boolean): (typeof second)['intercept'] => {
      const word = (of: bigint) => of.toString(16).padStart(64, '0')
      return async ({ method }, forward) => {
        if (method !== 'eth_call') return undefined
        const { result } = (await (await forward()).json()) as { result?: string }
        const isRead = result?.includes(word(5_000_000n)) && isWanted()
        return isRead ? { result: result?.replaceAll(word(5_000_000n), word(balance)) } : undefined
      }
    }
    await own.fixture.stop()
    await own.open({ rpcUrls: [net.tap.url, second.url] })
    // The other URL is behind at first.
    let behind = 5
    second.intercept = shows(0n, () => behind-- > 0)
    const { config, transfer } = first(own)
    expect(await own.pay(transfer)).toMatchObject({ kind: 'authorized' })
    expect(behind).toBeLessThanOrEqual(0)
    net.tap.intercept = shows(9_000_000n, () => true)
    await own.fixture.stop()
    await own.open({ rpcUrls: [net.tap.url, second.url] })
    expect(await own.pay(own.voucher(config, 6_000_000n, 6_000_000n - price))).toMatchObject({
      reason: 'invalid_batch_settlement_evm_cumulative_exceeds_balance',
    })
    second.stop()
  })

  test('attack: a payer has ten deposits in an hour', async () => {
    await using own = await ownChannels()
    const config = await own.opened(500_000n)
    // A stranger may ask for refunds, by a voucher that it reads on the chain.
    const ask = own.voucher(config, price, 0n, { kind: 'refund', refundAtomic: 1n })
    for (let count = 0; count < 2; count++)
      expect(await own.fixture.settlement.channels.refund(ask, { waitMs: 60_000 })).toMatchObject({
        kind: 'refunded',
      })
    for (let count = 1; count < 10; count++)
      expect(await own.pay(first(own, { amount: 500_000n }).transfer)).toMatchObject({
        kind: 'authorized',
      })
    expect(await own.pay(first(own, { amount: 500_000n }).transfer)).toMatchObject({
      kind: 'unavailable',
      detail: expect.stringContaining('10 deposits or refunds in an hour'),
    })
    expect(await own.pay(first(own, { from: 2 }).transfer)).toMatchObject({ kind: 'authorized' })
  })

  test('a deposit leaves an account the gas that claims of all open channels need', async () => {
    await using own = await ownChannels()
    const { ledger, settlement } = own.fixture
    const state = { balanceAtomic: 1n, claimedAtomic: 0n, withdrawAt: undefined, refundNonce: 0n }
    for (let count = 0; count < 100; count++) {
      const config = own.configOf()
      await ledger.channels.insert(
        { id: own.idOf(config), network: own.network.id, config },
        state,
        Date.now(),
      )
    }
    // Enough for a sale and for the deposit alone.
    const wei = 5n * 10n ** 15n
    await own.net.chain.rpc('anvil_setBalance', [account(0).address, `0x${wei.toString(16)}`])
    await until(() => settlement.details()[0]?.relayers[0]?.balanceWei === wei)
    const looks = own.asked('eth_getLogs')
    await until(() => own.asked('eth_getLogs') > looks + 2)
    expect(settlement.isReady(own.network.id)).toBe(true)
    expect(await own.pay(first(own).transfer)).toMatchObject({ kind: 'unavailable' })
    expect(transactions(own)).toEqual([])
  })
})
