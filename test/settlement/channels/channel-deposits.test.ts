import { describe, expect, test } from 'bun:test'
import { account } from '../../../src/demo/accounts'
import { execute, mine } from '../../../src/demo/chains'
import { method } from '../../../src/protocol/Abi'
import * as Voucher from '../../../src/protocol/Channel'
import { setAutomine } from '../../harness/chains'
import { onChain, sync } from '../../harness/channel-rows'
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

/** Code that accepts each signature (ERC-1271). */
const agreeing = '0x631626ba7e60e01b60005260206000f3'
/** The same in a simulation, where gas has no price. In a transaction it uses all of its gas. */
const burning = '0x3a156009575b6005565b631626ba7e60e01b60005260206000f3'

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

  test('a deposit that no event has shown counts for the voucher that needs it', async () => {
    await using own = await ownChannels({ terms: { withdrawDelayMs: 6_000_000 } })
    // From the start: a channel whose event is gone is read again.
    own.net.tap.intercept = async ({ method }) =>
      method === 'eth_getLogs' ? { result: [] } : undefined
    const config = await own.opened()
    const more = own.signDeposit(config, 1_000_000n)
    await own.send(account(8).address, Voucher.depositCall(config, more))
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n })
    const above = own.voucher(config, 6_000_001n, 6_000_001n - price)
    expect(await own.pay(above)).toMatchObject({
      reason: 'invalid_batch_settlement_evm_cumulative_exceeds_balance',
    })
    const all = own.voucher(config, 6_000_000n, 6_000_000n - price)
    expect(await own.pay(all)).toMatchObject({ kind: 'authorized' })
  })

  test.each([
    ['older', 6_000_000n],
    ['newer', 5_000_000n],
  ])(
    'a read that is %s than what another process stores is made again',
    async (age, balanceAtomic) => {
      await using own = await ownChannels({ terms: { withdrawDelayMs: 6_000_000 } })
      const config = await own.opened()
      const id = own.idOf(config)
      const more = Voucher.depositCall(config, own.signDeposit(config, 1_000_000n))
      own.net.tap.intercept = async ({ method, params = [] }) => {
        if (method !== 'eth_call' || !JSON.stringify(params).includes(id.slice(2))) return undefined
        own.net.tap.intercept = undefined
        const before = await own.net.chain.rpc(method, params)
        await own.send(account(8).address, more)
        const state = onChain({ balanceAtomic })
        const stored = await sync(own.fixture.ledger.channels, { id }, state, Date.now())
        expect(stored).toMatchObject({ balanceAtomic })
        return age === 'older' ? { result: before } : undefined
      }
      const all = own.voucher(config, 6_000_000n, 6_000_000n - price)
      expect(await own.pay(all)).toMatchObject({ kind: 'authorized' })
      expect(await own.row(config)).toMatchObject({ balanceAtomic: 6_000_000n })
    },
  )

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

  test('a deposit that is not sent takes none of the ten', async () => {
    await using own = await ownChannels()
    await own.reopen({ gasPerDayWei: { ...own.network.gasPerDayWei, channels: 1n } })
    expect(await own.pay(first(own).transfer)).toMatchObject({ kind: 'authorized' })
    for (let count = 0; count < 11; count++)
      expect(await own.pay(first(own).transfer)).toMatchObject({
        kind: 'unavailable',
        detail: 'The gas budget of today is spent; it starts again at 0:00 UTC.',
      })
  })

  test('attack: refunds and deposits end at their own budget, and stay ended after a restart', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const { network } = own
    const config = await own.opened()
    const firstWei = own.fixture.ledger.gas.spentOn(network.id, 'channels', Date.now())
    const reopen = () =>
      own.reopen({ gasPerDayWei: { ...network.gasPerDayWei, channels: 2n * firstWei + 2n } })
    const ask = own.voucher(config, price, 0n, { kind: 'refund', refundAtomic: 100_000n })
    const refund = () => own.fixture.settlement.channels.refund(ask, { waitMs: 60_000 })
    const spent = {
      kind: 'unavailable',
      detail: 'The gas budget of today is spent; it starts again at 0:00 UTC.',
    }
    await reopen()
    expect(await refund()).toMatchObject({ kind: 'refunded' })
    // Only deposits of payers without code may use the second half.
    await reopen()
    expect(await refund()).toMatchObject(spent)
    await own.net.chain.rpc('anvil_setCode', [account(3).address, agreeing])
    expect(await own.pay(first(own, { from: 3 }).transfer)).toMatchObject(spent)
    let end = await own.pay(first(own).transfer)
    expect(end).toMatchObject({ kind: 'authorized' })
    while (end.kind === 'authorized') end = await own.pay(first(own).transfer)
    expect(end).toMatchObject(spent)
    await reopen()
    expect(await own.pay(first(own, { from: 2 }).transfer)).toMatchObject(spent)
    expect(await refund()).toMatchObject(spent)
    // The gas of sales is that of claims.
    const asked = "id LIKE 'deposit:%' OR id LIKE 'channel-refund:%'"
    const ofSales = `SELECT id FROM jobs WHERE (product = 'gateway') = (${asked})`
    expect(own.fixture.sql.query(ofSales).all()).toEqual([])
  })

  test('attack: payers with code that fail may spend a tenth of the gas of deposits', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const { network, net } = own
    const isDeposit = ({ id }: { id: string }) => id.startsWith('deposit:')
    const gas = () => own.fixture.ledger.gas
    const spentWei = () => gas().spentOn(network.id, 'channels', Date.now())
    const pay = (from: number) => own.pay(first(own, { amount: 500_000n, from }).transfer)
    await net.chain.rpc('anvil_setCode', [account(2).address, agreeing])
    for (const from of [1, 2]) expect(await pay(from)).toMatchObject({ kind: 'authorized' })
    expect(gas().wastedOn(network.id, 'channels', Date.now())).toBe(0n)
    // A tenth is one deposit.
    const channels = 5n * spentWei()
    const reopen = () => own.reopen({ gasPerDayWei: { ...network.gasPerDayWei, channels } })
    await reopen()
    for (const from of [3, 4])
      await net.chain.rpc('anvil_setCode', [account(from).address, burning])
    await setAutomine(net.chain, false)
    const one = pay(3)
    await until(() => transactions(own).filter(isDeposit).length === 3)
    const under = 'Payments of wallets with code are under way; send the same credential again.'
    expect(await pay(4)).toMatchObject({ kind: 'unavailable', detail: under })
    await setAutomine(net.chain, true)
    await mine(net.chain)
    expect(await one).toMatchObject({
      reason: 'invalid_batch_settlement_evm_deposit_transaction_failed',
    })
    const wasted = { kind: 'unavailable', detail: expect.stringContaining('wallets with code') }
    expect(await pay(4)).toMatchObject(wasted)
    await reopen()
    expect(await pay(3)).toMatchObject(wasted)
    expect(transactions(own).filter(({ state }) => state === 'failed')).toHaveLength(1)
    expect(2n * spentWei()).toBeLessThan(channels)
    expect(await pay(1)).toMatchObject({ kind: 'authorized' })
  })

  test('attack: a deposit that fails on the chain is looked for once', async () => {
    await using own = await ownChannels()
    const { config, transfer } = first(own)
    const take = method<[to: `0x${string}`, amount: bigint]>('transfer(address,uint256)')
    const channel = own.idOf(config).slice(2)
    let looks: number | undefined
    own.net.tap.intercept = async ({ method, params }) => {
      if (looks !== undefined && method === 'eth_call' && JSON.stringify(params).includes(channel))
        looks++
      if (looks !== undefined || !isSend(method)) return undefined
      looks = 0
      const all = await own.balance(config.payer)
      await own.send(config.payer, take(config.token, account(9).address, all))
      return undefined
    }
    expect(await own.pay(transfer)).toMatchObject({
      reason: 'invalid_batch_settlement_evm_deposit_transaction_failed',
    })
    expect(looks).toBe(1)
  })

  test('attack: a forged deposit beside a voucher that is covered counts for nothing', async () => {
    await using own = await ownChannels()
    const config = await own.opened()
    const forged = { ...own.signDeposit(config, 1_000_000n), amountAtomic: 10n ** 15n }
    const looks: string[] = []
    own.net.tap.intercept = async ({ method, params }) => {
      if (method === 'eth_getLogs') looks.push(JSON.stringify(params))
      return undefined
    }
    const next = own.voucher(config, 2n * price, price, { kind: 'deposit', deposit: forged })
    expect(await own.pay(next)).toMatchObject({
      kind: 'authorized',
      settled: { deposit: { transaction: undefined, amountAtomic: 0n } },
    })
    expect(looks.filter((each) => each.includes(own.idOf(config)))).toEqual([])
    expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n })
  })

  test('a deposit leaves an account the gas of the claims that are worth it', async () => {
    await using own = await ownChannels({ terms: { claimEveryMs: 3_600_000 } })
    const { ledger, settlement } = own.fixture
    const { id: network } = own.network
    const state = { balanceAtomic: 1n, claimedAtomic: 0n, withdrawAt: undefined, refundNonce: 0n }
    // Enough for a sale and for the deposit alone.
    const wei = 5n * 10n ** 15n
    /** A stranger opens channels, and is charged nothing. */
    const open = async () => {
      for (let count = 0; count < 100; count++) {
        const config = own.configOf()
        await ledger.channels.insert({ id: own.idOf(config), network, config }, state, Date.now())
      }
      await own.net.chain.rpc('anvil_setBalance', [account(0).address, `0x${wei.toString(16)}`])
      await until(() => settlement.details()[0]?.relayers[0]?.balanceWei === wei)
      const looks = own.asked('eth_getLogs')
      await until(() => own.asked('eth_getLogs') > looks + 2)
      expect(settlement.isReady(network)).toBe(true)
    }
    await open()
    const { config, transfer } = first(own)
    expect(await own.pay(transfer)).toMatchObject({ kind: 'authorized' })
    expect(await own.row(config)).toMatchObject({ chargedAtomic: price, claimedAtomic: 0n })
    await open()
    expect(await own.pay(first(own).transfer)).toMatchObject({ kind: 'unavailable' })
    expect(transactions(own)).toHaveLength(1)
  })
})
