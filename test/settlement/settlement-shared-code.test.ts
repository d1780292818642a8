import { describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { deploy, setAutomine } from '../harness/chains'
import { delegate } from '../harness/delegation'
import { isSend, ownSettlement } from '../harness/own-settlement'
import { mineWhile, signTransfer, until } from '../harness/settlement'
import * as Wallets from '../harness/wallets'

// Code that many wallets run, and attackers that try to make a gateway refuse all of them.

const gwei = 1_000_000_000n
const abi = parseAbi(['function mint(address to, uint256 value)'])

describe('new wallets that run the same code', () => {
  test('attack: new wallets are not locked out by accounts that take their code after a failed payment', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const sharedWallet = await deploy(net.chain, Wallets.SmartWallet, [account(1).address])
    const bomb: Address = `0x${'b0b'.padStart(40, '0')}`
    await net.chain.rpc('anvil_setCode', [bomb, '0xfe'])
    for (const from of [2, 3, 4, 5, 6]) {
      const args = [account(from).address, 1_000_000n] as const
      const data = encodeFunctionData({ abi, functionName: 'mint', args })
      await execute(net.chain, [{ from: account(9).address, to: network.asset.address, data }])
      let isDone = false
      await setAutomine(net.chain, false)
      net.tap.intercept = async ({ method }) => {
        if (!isSend(method) || isDone) return undefined
        isDone = true
        await delegate(own, from, bomb)
        await delegate(own, from, sharedWallet, { isLast: true })
        return undefined
      }
      const paying = own.fixture.pay(signTransfer(network, { from }))
      const pending = () => net.chain.rpc('eth_getBlockTransactionCountByNumber', ['pending'])
      await until(async () => (await pending()) === '0x3')
      expect((await mineWhile(net.chain, paying)).kind).toBe('reverted')
      await setAutomine(net.chain, true)
    }
    net.tap.intercept = undefined
    await delegate(own, 1, sharedWallet)
    const honest = signTransfer(network)
    expect((await own.fixture.pay(honest)).kind).toBe('confirmed')
  })
})

describe('accounts without code that delegate to gas-wasting code in the block of a batch', () => {
  test('attack: such accounts cost a tenth of the budget, then payments are sent alone and all are paid', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    // A tenth of it is less than the cost of one failed batch.
    const gateway = 10n * 800_000n * gwei
    const gasPerDayWei = { gateway, facilitator: gateway, desk: 0n, sponsor: 0n, channels: 0n }
    await own.reopen({ gasPerDayWei })
    const bomb: Address = `0x${'b0b'.padStart(40, '0')}`
    await net.chain.rpc('anvil_setCode', [bomb, '0xfe'])
    const sizes = () =>
      own.fixture.sql
        .query<{ kind: string; n: number }, []>(
          `SELECT kind, count(*) n FROM transactions GROUP BY kind ORDER BY kind`,
        )
        .all()
    const pay = (from: number, first: number) =>
      Array.from({ length: 4 }, (_, index) =>
        own.fixture.pay(signTransfer(network, { from, amountAtomic: BigInt(first + index) })),
      )
    let isDone = false
    await setAutomine(net.chain, false)
    net.tap.intercept = async ({ method }) => {
      if (isDone || !isSend(method) || !sizes().some(({ kind }) => kind === 'batch'))
        return undefined
      isDone = true
      await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [`0x${gwei.toString(16)}`])
      await delegate(own, 4, bomb)
      return undefined
    }
    // The first payment is sent alone, so that the others collect into a batch.
    const paying = [
      own.fixture.pay(signTransfer(network, { from: 3 })),
      ...pay(4, 100),
      ...pay(1, 200),
    ]
    await until(async () => isDone)
    await mineWhile(net.chain, Promise.all(paying))
    await setAutomine(net.chain, true)
    net.tap.intercept = undefined
    const batches = () => sizes().find(({ kind }) => kind === 'batch')?.n
    expect(batches()).toBe(1)
    const later = await Promise.all([...pay(1, 300), ...pay(2, 400)])
    expect(later.map(({ kind }) => kind)).toEqual(Array(8).fill('confirmed'))
    expect(batches()).toBe(1)
  })
})
