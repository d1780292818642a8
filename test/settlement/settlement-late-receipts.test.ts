import { expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { ownSettlement, withoutSync } from '../harness/own-settlement'
import { jobOf, type RpcCall, signTransfer, until } from '../harness/settlement'

// A provider whose receipts and logs lag behind its state. The account nonce and the payer's nonce
// show "used" for a while, and no node shows the transaction. That proves nothing against our own
// transaction, which is the most likely one.

/** A desk whose node lags until the test ends the lag. */
async function ownLagging() {
  const own = await ownSettlement()
  const { net } = own
  const lag = { isOver: false }
  const isLate = ({ method }: RpcCall) =>
    !lag.isOver && (method === 'eth_getTransactionReceipt' || method === 'eth_getLogs')
  net.tap.intercept = (call) => {
    if (isLate(call)) return { result: call.method === 'eth_getLogs' ? [] : null }
    return withoutSync(call)
  }
  return Object.assign(own, {
    lag,
    /** Polls for the relayer's nonce. */
    looks: () =>
      net.tap.calls.filter(
        ({ method, params }) => method === 'eth_getTransactionCount' && params[1] === 'latest',
      ).length,
  })
}

test.concurrent('error: a job with a late receipt is not replaced', async () => {
  await using own = await ownLagging()
  const { net, network } = own
  const balance = async () =>
    BigInt((await net.chain.rpc('eth_getBalance', [account(8).address, 'latest'])) as string)
  const before = await balance()
  const running = own.fixture.settlement.run(jobOf(network), { waitMs: 120_000 })
  await until(() => own.looks() > 3)
  expect(await balance()).toBe(before + 7n)
  // On a chain with ten blocks a second that takes two seconds.
  await mine(net.chain, 40)
  const seen = own.looks()
  const state = async () => (await own.fixture.settlement.job('refund:1'))?.state
  await until(async () => own.looks() > seen + 3 || (await state()) !== 'broadcast')
  expect(await state()).toBe('broadcast')
  own.lag.isOver = true
  expect((await running).kind).toBe('confirmed')
})

test.concurrent('error: a payment with a late receipt is not ended', async () => {
  await using own = await ownLagging()
  const { network } = own
  const transfer = signTransfer(network)
  const paying = own.fixture.pay(transfer)
  const state = async () => (await own.fixture.settlement.find(transfer))?.state
  await until(() => own.looks() >= 3)
  const first = await paying
  const between = await state()
  own.lag.isOver = true
  const payment = await own.fixture.settlement.find(transfer)
  if (payment === undefined) throw new Error('no payment')
  const end = await own.fixture.settlement.resume(payment, transfer, { waitMs: 120_000 })
  // No answer that would make the buyer pay again.
  expect([first.kind, between, end.kind]).toEqual(['reverted', 'reverted', 'confirmed'])
})
