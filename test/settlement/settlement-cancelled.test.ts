import { describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import * as Transfer from '../../src/protocol/Transfer'
import { isSend, type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { signTransfer, until } from '../harness/settlement'
import { robinhood, sign } from '../harness/stablecoin'

async function cancel(
  { net, network }: OwnSettlement,
  { payer, nonce }: Transfer.Transfer,
): Promise<void> {
  const signature = await sign(robinhood, 1, 'CancelAuthorization', { authorizer: payer, nonce })
  const data = encodeFunctionData({
    abi: parseAbi(['function cancelAuthorization(address, bytes32, bytes)']),
    args: [payer, nonce, signature],
  })
  await execute(net.chain, [
    { from: account(8).address, to: network.asset.address, data, gas: 200_000n },
  ])
}

describe.concurrent('an authorization that was cancelled', () => {
  test('a cancelled authorization is refused as used at every request', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network)
    net.tap.intercept = async ({ method }) => {
      if (isSend(method)) await cancel(own, transfer)
      return undefined
    }
    const used = { kind: 'dead', reason: 'invalid_exact_evm_nonce_already_used' }
    expect(await own.fixture.pay(transfer)).toMatchObject({
      ...used,
      // A reorganisation may remove what cancelled it.
      payment: { state: 'reverted' },
    })
    net.tap.intercept = undefined
    expect(await own.fixture.pay(transfer)).toMatchObject(used)
    await own.reopen({}, { now: () => Date.now() + 10_000_000 })
    expect(await own.fixture.pay(transfer)).toMatchObject(used)
  })

  test('after a reorganisation removed its external settlement, a cancelled authorization is searched during reorg_depth blocks', async () => {
    await using own = await ownSettlement({
      network: { reorgDepth: 4 },
      settlement: { checkMs: 50, payoutExclusive: true },
    })
    const { net, network } = own
    const transfer = signTransfer(network)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    expect((await own.fixture.pay(transfer, { bound: true })).kind).toBe('confirmed')
    await own.fixture.crash()
    await net.chain.rpc('anvil_reorg', [2, []])
    await net.chain.rpc('anvil_dropAllTransactions', [])
    await cancel(own, transfer)
    net.tap.intercept = ({ method }) =>
      method === 'eth_getRawTransactionByHash' ? { result: null } : undefined
    await own.open()
    const undecided = () =>
      own.fixture.events.filter(({ event }) => event === 'payment-undecided').length
    // The blocks count from the second check, which has read the newest one again.
    await until(() => undecided() > 1)
    expect((await own.fixture.settlement.find(transfer))?.state).toBe('broadcast')
    await mine(net.chain, 5)
    await until(async () => (await own.fixture.settlement.find(transfer))?.state === 'reverted')
    expect(await own.fixture.pay(transfer, { bound: true })).toMatchObject({
      kind: 'dead',
      reason: 'invalid_exact_evm_nonce_already_used',
    })
    const looks = own.asked('eth_getLogs')
    const checks = own.asked('eth_chainId')
    await until(() => own.asked('eth_chainId') > checks + 3)
    expect(own.asked('eth_getLogs')).toBe(looks)
  })

  test('error: a reorganisation as deep as reorg_depth does not end that search at its first check', async () => {
    await using own = await ownSettlement({
      network: { reorgDepth: 4 },
      settlement: { checkMs: 50, payoutExclusive: true },
    })
    const { net, network } = own
    const transfer = signTransfer(network)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    let isReorganised = Promise.resolve()
    net.tap.intercept = async ({ method }) => {
      await isReorganised
      return method === 'eth_getRawTransactionByHash' ? { result: null } : undefined
    }
    expect((await own.fixture.pay(transfer, { bound: true })).kind).toBe('confirmed')
    // It sees the other blocks only when the authorization is cancelled in them.
    const reorganised = Promise.withResolvers<void>()
    isReorganised = reorganised.promise
    await net.chain.rpc('anvil_reorg', [2, []])
    await net.chain.rpc('anvil_dropAllTransactions', [])
    await cancel(own, transfer)
    await mine(net.chain, 2)
    reorganised.resolve()
    const undecided = () =>
      own.fixture.events.filter(({ event }) => event === 'payment-undecided').length
    await until(() => undecided() > 2)
    expect((await own.fixture.settlement.find(transfer))?.state).toBe('broadcast')
    await mine(net.chain, 5)
    await until(async () => (await own.fixture.settlement.find(transfer))?.state === 'reverted')
  })
})
