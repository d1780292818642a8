import { afterEach, beforeEach, expect, test } from 'bun:test'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { mine } from '../src/demo/chains'
import {
  type Desk,
  errandOf,
  networkOf,
  type RpcCall,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
} from './harness/settlement'

// A provider whose receipts and logs come later than its state: the account nonce and the payer's
// nonce say "used" for a while, and nobody can say by what. That proves nothing against our own
// transaction, which is the most likely one.

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk
let isLagging = true

const isLate = ({ method }: RpcCall) =>
  isLagging && (method === 'eth_getTransactionReceipt' || method === 'eth_getLogs')
const withoutSync = ({ method }: RpcCall) =>
  method === 'eth_sendRawTransactionSync'
    ? { error: { code: -32601, message: 'the method does not exist' } }
    : undefined

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  desk = await startDesk([network], directory.path)
  isLagging = true
  net.tap.intercept = (call) => {
    if (isLate(call)) return { result: call.method === 'eth_getLogs' ? [] : null }
    return withoutSync(call)
  }
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

/** Looks at which the relayer's nonce was asked for. */
const looks = () =>
  net.tap.calls.filter(
    ({ method, params }) => method === 'eth_getTransactionCount' && params[1] === 'latest',
  ).length

test('error: an errand is not given up for a receipt that is late', async () => {
  const balance = async () =>
    BigInt((await net.chain.rpc('eth_getBalance', [account(8).address, 'latest'])) as string)
  const before = await balance()
  const running = desk.settlement.run(errandOf(network), { waitMs: 20_000 })
  await until(() => looks() > 3)
  expect(await balance()).toBe(before + 7n)
  // On a chain of ten blocks a second that is the work of two seconds.
  await mine(net.chain, 40)
  const seen = looks()
  const state = () => desk.settlement.errand('refund:1')?.state
  await until(() => looks() > seen + 3 || state() !== 'broadcast')
  expect(state()).toBe('broadcast')
  isLagging = false
  expect((await running).kind).toBe('confirmed')
})

test('error: a payment is not given up for a receipt that is late', async () => {
  const transfer = signTransfer(network)
  const paying = desk.pay(transfer)
  const state = () => desk.settlement.find(transfer)?.state
  await until(() => looks() >= 3)
  const first = await paying
  const between = state()
  isLagging = false
  const payment = desk.settlement.find(transfer)
  if (payment === undefined) throw new Error('no payment')
  const end = await desk.settlement.resume(payment, transfer, { waitMs: 10_000 })
  // Nothing that would make the buyer pay again.
  expect([first.kind, between, end.kind]).toEqual(['reverted', 'reverted', 'confirmed'])
})
