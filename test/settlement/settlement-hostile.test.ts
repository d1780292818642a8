import { describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute, mine } from '../../src/demo/chains'
import type { Transfer } from '../../src/protocol/Transfer'
import { deploy, setAutomine } from '../harness/chains'
import { delegate, noCode } from '../harness/delegation'
import { isSend, type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { mineWhile, payee, signTransfer, until } from '../harness/settlement'
import * as Wallets from '../harness/wallets'

const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function transfer(address to, uint256 value) returns (bool)',
  'function setMode(uint8 mode)',
  'function setPaused(bool value)',
  'function setBlocked(address account, bool value)',
  'function execute(address to, uint256 value, bytes data)',
])
const gwei = 1_000_000_000n

/**
 * Code that accepts every signature when the condition leaves a value other than 0, and uses all
 * gas otherwise.
 */
const bomb = (condition: string): Hex => {
  const target = (condition.length / 2 + 4).toString(16).padStart(2, '0')
  return `0x${condition}60${target}57fe5b631626ba7e60e01b60005260206000f3`
}

const tells = {
  'the gas that is left': '5a620aae6010',
  'the gas price': '48600202803a11',
  'the lack of a gas price': '3a15',
  'what was read before': '5a73ca11bde05977b3631167028862be2a173976ca113b505a90036103e811',
}

type Row = { kind: string; state: string; members: number }

const rows = ({ fixture }: OwnSettlement) =>
  fixture.sql
    .query<Row, []>(
      `SELECT kind, state, (SELECT count(*) FROM transaction_members
         WHERE transaction_hash = hash) members FROM transactions ORDER BY rowid`,
    )
    .all()

async function mint(
  { net, network }: OwnSettlement,
  to: Address,
  value = 1_000_000n,
): Promise<void> {
  const data = encodeFunctionData({ abi, functionName: 'mint', args: [to, value] })
  await execute(net.chain, [{ from: account(9).address, to: network.asset.address, data }])
}

let made = 0

/** A wallet of the code, with money. */
async function wallet(own: OwnSettlement, code: Hex): Promise<Address> {
  const address: Address = `0x${(0xb0b000 + ++made).toString(16).padStart(40, '0')}`
  await own.net.chain.rpc('anvil_setCode', [address, code])
  await mint(own, address)
  return address
}

/** A GreedyWallet of account 1, which changes its mode on request. */
async function greedy(own: OwnSettlement): Promise<Address> {
  const address = await deploy(own.net.chain, Wallets.GreedyWallet, [account(1).address, 0])
  await mint(own, address)
  return address
}

/** The wallet uses all gas of its next transaction, although it passes the simulation. */
async function payInVain(own: OwnSettlement, payer: Address) {
  own.net.tap.intercept = async ({ method }) => {
    if (!isSend(method)) return undefined
    const data = encodeFunctionData({ abi, functionName: 'setMode', args: [1] })
    await execute(own.net.chain, [{ from: account(1).address, to: payer, data, gas: 100_000n }])
    return undefined
  }
  const outcome = await own.fixture.pay(signTransfer(own.network, { payer }))
  own.net.tap.intercept = undefined
  return outcome
}

const relayerWei = async ({ net }: OwnSettlement) =>
  BigInt((await net.chain.rpc('eth_getBalance', [account(0).address, 'latest'])) as string)

describe.concurrent('a wallet that distinguishes a simulation from a transaction', () => {
  for (const [what, condition] of Object.entries(tells))
    test(`attack: a wallet that distinguishes a simulation by ${what} is refused before it costs gas`, async () => {
      await using own = await ownSettlement()
      // Far above the tip: only a call with the highest fee sees twice the base fee.
      await own.net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [`0x${(5n * gwei).toString(16)}`])
      await mine(own.net.chain)
      const payer = await wallet(own, bomb(condition))
      await own.net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [`0x${(5n * gwei).toString(16)}`])
      await mine(own.net.chain)
      const before = await relayerWei(own)
      const signature: Hex = `0x${'11'.repeat(70)}`
      for (const method of ['eip3009', 'permit2'] as const) {
        const transfer = { ...signTransfer(own.network, { payer, method }), signature }
        expect(await own.fixture.pay(transfer)).toMatchObject({ kind: 'refused' })
        expect(await own.fixture.settlement.verify(transfer)).toMatchObject({ kind: 'refused' })
      }
      expect(await relayerWei(own)).toBe(before)
      expect(rows(own)).toEqual([])
    })

  test('attack: an account with a key of its own that delegated to such code is refused', async () => {
    await using own = await ownSettlement()
    const code = await wallet(own, bomb(tells['what was read before']))
    await delegate(own, 3, code)
    await mine(own.net.chain)
    const before = await relayerWei(own)
    const transfer = signTransfer(own.network, { from: 3 })
    expect(await own.fixture.pay(transfer)).toMatchObject({ kind: 'refused' })
    expect(await relayerWei(own)).toBe(before)
    expect((await own.fixture.pay(signTransfer(own.network, { from: 2 }))).kind).toBe('confirmed')
  })
})

describe.concurrent('wallets that waste gas that no simulation shows', () => {
  test('attack: new wallets with the same code share the failures, others are paid', async () => {
    await using own = await ownSettlement()
    const old = await greedy(own)
    expect((await own.fixture.pay(signTransfer(own.network, { payer: old }))).kind).toBe(
      'confirmed',
    )
    // Five, and one more for the old wallet, which has paid.
    for (let wallets = 0; wallets < 6; wallets++) {
      const payer = await greedy(own)
      expect((await payInVain(own, payer)).kind).toBe('reverted')
      // It never paid, so one failure is its limit.
      const again = await own.fixture.pay(signTransfer(own.network, { payer }))
      expect(again).toMatchObject({ kind: 'unavailable' })
    }
    const sent = rows(own).length
    expect(await payInVain(own, await greedy(own))).toMatchObject({ kind: 'unavailable' })
    expect(rows(own)).toHaveLength(sent)
    const other = await deploy(own.net.chain, Wallets.SmartWallet, [account(1).address])
    await mint(own, other)
    for (const payer of [other, old, account(1).address])
      expect((await own.fixture.pay(signTransfer(own.network, { payer }))).kind).toBe('confirmed')
  })

  test('attack: wallets that move their balance do not lock out others with the same code', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const make = async () => {
      const address = await deploy(net.chain, Wallets.SmartWallet, [account(1).address])
      await mint(own, address)
      return address
    }
    for (let wallets = 0; wallets < 5; wallets++) {
      const payer = await make()
      let isMoved = false
      net.tap.intercept = async ({ method }) => {
        if (!isSend(method) || isMoved) return undefined
        isMoved = true
        const args = [account(8).address, 1_000_000n] as const
        const transfer = encodeFunctionData({ abi, functionName: 'transfer', args })
        const data = encodeFunctionData({
          abi,
          functionName: 'execute',
          args: [network.asset.address, 0n, transfer],
        })
        await execute(net.chain, [{ from: account(1).address, to: payer, data }])
        return undefined
      }
      expect((await own.fixture.pay(signTransfer(network, { payer }))).kind).toBe('reverted')
      expect(await own.fixture.pay(signTransfer(network, { payer }))).toMatchObject({
        kind: 'unavailable',
      })
    }
    net.tap.intercept = undefined
    const payer = await make()
    expect((await own.fixture.pay(signTransfer(network, { payer }))).kind).toBe('confirmed')
  })

  test('attack: wallets that waste hidden gas can spend at most a tenth of the budget, also after a restart', async () => {
    await using own = await ownSettlement()
    // Ten times the cost of two or three wasted transactions.
    const gateway = 20n * 600_000n * gwei
    const gasPerDayWei = { gateway, facilitator: gateway, desk: 0n, sponsor: 0n, channels: 0n }
    await own.reopen({ gasPerDayWei })
    let failures = 0
    for (; ; failures++) {
      const payer = await greedy(own)
      await own.net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [`0x${gwei.toString(16)}`])
      await mine(own.net.chain)
      const { kind } = await payInVain(own, payer)
      if (kind === 'unavailable') break
      expect(kind).toBe('reverted')
    }
    // Fewer than the shared limit of wallets with the same code.
    expect([1, 2, 3, 4]).toContain(failures)
    await own.reopen({ gasPerDayWei })
    const payer = await deploy(own.net.chain, Wallets.SmartWallet, [account(1).address])
    await mint(own, payer)
    const refused = await own.fixture.pay(signTransfer(own.network, { payer }))
    expect(refused).toMatchObject({
      kind: 'unavailable',
      detail: expect.stringContaining('wallets'),
    })
    expect((await own.fixture.pay(signTransfer(own.network))).kind).toBe('confirmed')
    // The facilitator has a budget of its own.
    const facilitator = { product: 'facilitator' } as const
    const outcome = await own.fixture.pay(signTransfer(own.network, { payer }), facilitator)
    expect(outcome.kind).toBe('confirmed')
  })
})

/** Counts of `failed_payments_total`. */
function counter() {
  const counts = { failed: 0 }
  const meter = {
    counter: (name: string) => ({
      inc: () => {
        if (name === 'failed_payments_total') counts.failed++
      },
    }),
    gauge: () => ({ set() {} }),
    histogram: () => ({ observe() {} }),
    onRender() {},
  }
  return { counts, meter }
}

const amounts = (network: NetworkConfig, from: number, count: number, first = 100) =>
  Array.from({ length: count }, (_, index) =>
    signTransfer(network, { from, amountAtomic: BigInt(first + index) }),
  )

/** Runs once, when a batch has been signed and is about to be sent. */
function beforeBatch(own: OwnSettlement, action: () => Promise<unknown>): void {
  let isDone = false
  own.net.tap.intercept = async ({ method }) => {
    if (isDone || !isSend(method) || rows(own).at(-1)?.kind !== 'batch') return undefined
    isDone = true
    await action()
    return undefined
  }
}

/** How many payments of the payer shared a transaction. */
const sharedBy = ({ fixture }: OwnSettlement, payer: Address) =>
  fixture.sql
    .query<{ n: number }, [string]>(
      `SELECT count(*) n FROM payments JOIN transaction_members ON payment_id = id
         JOIN transactions ON hash = transaction_members.transaction_hash
         WHERE payer = ? AND kind = 'batch'`,
    )
    .get(payer)?.n ?? 0

describe.concurrent('a batch that one member makes fail', () => {
  for (const isHidden of [false, true])
    test(`attack: a member fails a batch by a delegation in the same block${isHidden ? ', taken back behind it' : ''}`, async () => {
      const { counts, meter } = counter()
      await using own = await ownSettlement({ settlement: { meter } })
      const { net, network } = own
      const evil = account(4).address
      const code = await wallet(own, '0xfe')
      const round = (first: number) =>
        [1, 4, 2].flatMap((from) => amounts(network, from, from === 4 ? 1 : 3, first))
      const outcomes = await Promise.all(round(100).map((each) => own.fixture.pay(each)))
      expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['confirmed']))
      const before = sharedBy(own, evil)
      await setAutomine(net.chain, false)
      beforeBatch(own, async () => {
        await delegate(own, 4, code)
        if (isHidden) await delegate(own, 4, noCode, { isLast: true })
      })
      // The first payment is sent alone, so that the others collect into a batch.
      const paying = [...amounts(network, 3, 1, 50), ...round(200)].map((each) =>
        own.fixture.pay(each),
      )
      // All in one block: the first payment, the delegations, the batch.
      const together = `0x${isHidden ? 4 : 3}`
      const pending = () => net.chain.rpc('eth_getBlockTransactionCountByNumber', ['pending'])
      await until(async () => (await pending()) === together)
      const after = (await mineWhile(net.chain, Promise.all(paying))).map(({ kind }) => kind)
      net.tap.intercept = undefined
      const left = (await net.chain.rpc('eth_getCode', [evil, 'latest'])) as Hex
      expect(left === '0x').toBe(isHidden)
      // The first, three of account 1, the attacker's, three of account 2.
      expect(after.filter((_, index) => index !== 4)).toEqual(Array(7).fill('confirmed'))
      expect(sharedBy(own, evil)).toBe(before + 1)
      expect(counts.failed).toBeGreaterThan(0)
      // Without its code again it is paid, and never shares a batch.
      if (!isHidden) await delegate(own, 4, noCode)
      const honest = account(2).address
      const sharedBefore = sharedBy(own, honest)
      const last = round(300).map((each) => own.fixture.pay(each))
      await mineWhile(net.chain, Promise.all(last))
      expect(sharedBy(own, evil)).toBe(before + 1)
      // The others share batches again, also the payers of the failed batch.
      expect(sharedBy(own, honest)).toBeGreaterThan(sharedBefore)
    })

  test('attack: a payer without code fails a batch by moving its balance in the same block', async () => {
    const { counts, meter } = counter()
    await using own = await ownSettlement({ settlement: { meter } })
    const { net, network } = own
    const evil = account(2).address
    await Promise.all(
      [1, 2].flatMap((from) => amounts(network, from, 3)).map((each) => own.fixture.pay(each)),
    )
    const balance = await balanceOf(net.chain, network.asset.address, evil)
    beforeBatch(own, async () => {
      const args = [account(8).address, balance] as const
      const data = encodeFunctionData({ abi, functionName: 'transfer', args })
      await execute(net.chain, [{ from: evil, to: network.asset.address, data }])
    })
    const honest = amounts(network, 1, 5, 200).map((each) => own.fixture.pay(each))
    const others = amounts(network, 2, 6, 300).map((each) => own.fixture.pay(each))
    expect((await Promise.all(honest)).map(({ kind }) => kind)).toEqual(Array(5).fill('confirmed'))
    const kinds = (await Promise.all(others)).map(({ kind }) => kind)
    expect(kinds).not.toContain('confirmed')
    expect(counts.failed).toBeGreaterThanOrEqual(5)
    net.tap.intercept = undefined
    await mint(own, evil, balance)
    expect(await own.fixture.pay(signTransfer(network, { from: 2 }))).toMatchObject({
      kind: 'unavailable',
      detail: expect.stringContaining('failed on chain'),
    })
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  for (const [name, dataOf] of [
    [
      'a token that is paused in the same block',
      (value: boolean) => encodeFunctionData({ abi, functionName: 'setPaused', args: [value] }),
    ],
    [
      'a payee that the token blocks in the same block',
      (value: boolean) =>
        encodeFunctionData({ abi, functionName: 'setBlocked', args: [payee, value] }),
    ],
  ] as const)
    test(`${name} locks no payer out, of lone payments and of a batch`, async () => {
      const { counts, meter } = counter()
      await using own = await ownSettlement({ settlement: { meter } })
      const { net, network } = own
      const refuse = async (value: boolean) => {
        const call = { from: account(9).address, to: network.asset.address, data: dataOf(value) }
        await execute(net.chain, [call])
      }
      /** Refuses before the next lone transaction, or the next batch, until the payments have ended. */
      const payRefused = async (transfers: readonly Transfer[], kind: string) => {
        let isRefusing = false
        net.tap.intercept = async ({ method }) => {
          if (isRefusing || !isSend(method) || rows(own).at(-1)?.kind !== kind) return undefined
          isRefusing = true
          await refuse(true)
          return undefined
        }
        await Promise.all(transfers.map((each) => own.fixture.pay(each)))
        net.tap.intercept = undefined
        expect(isRefusing).toBe(true)
        await refuse(false)
      }
      for (const transfer of amounts(network, 1, 5)) await payRefused([transfer], 'payment')
      await Promise.all(amounts(network, 2, 3).map((each) => own.fixture.pay(each)))
      await payRefused(amounts(network, 2, 6, 300), 'batch')
      expect(counts.failed).toBe(0)
      for (const from of [1, 2])
        expect((await own.fixture.pay(signTransfer(network, { from }))).kind).toBe('confirmed')
    })

  test('payments of one payer above its limit wait, and all are paid', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await setAutomine(net.chain, false)
    const paying = amounts(network, 1, 40).map((each) => own.fixture.pay(each))
    const underWay = () => rows(own).reduce((sum, { members }) => sum + members, 0)
    await until(() => underWay() === 16)
    // The request of another payer does not wait for those.
    await own.begin(signTransfer(network, { from: 2 }))
    expect(underWay()).toBe(17)
    const outcomes = await mineWhile(net.chain, Promise.all(paying))
    expect(outcomes.map(({ kind }) => kind)).toEqual(Array(40).fill('confirmed'))
  })
})
