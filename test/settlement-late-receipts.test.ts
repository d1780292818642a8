import { expect, test } from 'bun:test'
import { account } from '../src/demo/accounts'
import { mine } from '../src/demo/chains'
import { ownSettlement, withoutSync } from './harness/ownsettlement'
import { jobOf, type RpcCall, signTransfer, until } from './harness/settlement'

// A provider whose receipts and logs come later than its state: the account nonce and the payer's
// nonce say "used" for a while, and nothing says by what. That proves nothing against our own
// transaction, which is the most likely one.

/** A desk whose node lags until it is told not to. */
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
    /** Looks at which the relayer's nonce was asked for. */
    looks: () =>
      net.tap.calls.filter(
        ({ method, params }) => method === 'eth_getTransactionCount' && params[1] === 'latest',
      ).length,
  })
}

test.concurrent('error: a job is not given up for a receipt that is late', async () => {
  await using own = await ownLagging()
  const { net, network } = own
  const balance = async () =>
    BigInt((await net.chain.rpc('eth_getBalance', [account(8).address, 'latest'])) as string)
  const before = await balance()
  const running = own.fixture.settlement.run(jobOf(network), { waitMs: 20_000 })
  await until(() => own.looks() > 3)
  expect(await balance()).toBe(before + 7n)
  // On a chain of ten blocks a second that is the work of two seconds.
  await mine(net.chain, 40)
  const seen = own.looks()
  const state = async () => (await own.fixture.settlement.job('refund:1'))?.state
  await until(async () => own.looks() > seen + 3 || (await state()) !== 'broadcast')
  expect(await state()).toBe('broadcast')
  own.lag.isOver = true
  expect((await running).kind).toBe('confirmed')
})

test.concurrent('error: a payment is not given up for a receipt that is late', async () => {
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
  const end = await own.fixture.settlement.resume(payment, transfer, { waitMs: 10_000 })
  // Nothing that would make the buyer pay again.
  expect([first.kind, between, end.kind]).toEqual(['reverted', 'reverted', 'confirmed'])
})
