import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi } from 'viem'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { balanceOf, execute, mine, setAutomine } from '../src/demo/chains'
import * as Crypto from '../src/protocol/Crypto'
import * as Transfer from '../src/protocol/Transfer'
import { checkAfterMs } from '../src/settlement/engine'
import { createLane } from '../src/settlement/lane'
import {
  type Desk,
  errandOf,
  mineWhile,
  networkOf,
  relayerKey,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
} from './harness/settlement'
import { robinhood, sign } from './harness/stablecoin'

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk

const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')
const asked = (name: string) => net.tap.calls.filter(({ method }) => method === name).length

beforeEach(async () => {
  directory = temporary()
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

async function start(
  options: Parameters<typeof startNetwork>[1] = {},
  changes: Partial<NetworkConfig> = {},
): Promise<void> {
  net = await startNetwork('usdg', options)
  network = networkOf(net.tap.url, 'usdg', changes)
  desk = await startDesk([network], directory.path)
}

async function cancel({ payer, nonce }: Transfer.Transfer): Promise<void> {
  const signature = await sign(robinhood, 1, 'CancelAuthorization', { authorizer: payer, nonce })
  const data = encodeFunctionData({
    abi: parseAbi(['function cancelAuthorization(address, bytes32, bytes)']),
    args: [payer, nonce, signature],
  })
  await execute(net.chain, [
    { from: account(8).address, to: network.asset.address, data, gas: 200_000n },
  ])
}

describe('an authorization that was cancelled', () => {
  test('behavior: keeps answering that its nonce is used, whenever it is asked', async () => {
    await start()
    const transfer = signTransfer(network)
    net.tap.intercept = async ({ method }) => {
      if (isSend(method)) await cancel(transfer)
      return undefined
    }
    const used = { kind: 'dead', reason: 'invalid_exact_evm_nonce_already_used' }
    expect(await desk.pay(transfer)).toMatchObject({ ...used, payment: { state: 'expired' } })
    net.tap.intercept = undefined
    expect(await desk.pay(transfer)).toMatchObject(used)
    await desk.crash()
    desk = await startDesk([network], directory.path, { now: () => Date.now() + 10_000_000 })
    expect(await desk.pay(transfer)).toMatchObject(used)
  })

  test("behavior: after somebody's settlement of it was taken away, it is asked about for reorg_depth blocks", async () => {
    await start({}, { reorgDepth: 4 })
    const transfer = signTransfer(network)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    expect((await desk.pay(transfer, { bound: true })).kind).toBe('confirmed')
    await desk.crash()
    await net.chain.rpc('anvil_reorg', [2, []])
    await net.chain.rpc('anvil_dropAllTransactions', [])
    await cancel(transfer)
    net.tap.intercept = ({ method }) =>
      method === 'eth_getRawTransactionByHash' ? { result: null } : undefined
    desk = await startDesk([network], directory.path)
    const undecided = () => desk.events.filter(({ event }) => event === 'payment-undecided').length
    await until(() => undecided() > 0)
    expect(desk.settlement.find(transfer)?.state).toBe('broadcast')
    await mine(net.chain, 5)
    await until(() => desk.settlement.find(transfer)?.state === 'expired')
    const looks = asked('eth_getLogs')
    const checks = asked('eth_chainId')
    await until(() => asked('eth_chainId') > checks + 3)
    expect(asked('eth_getLogs')).toBe(looks)
    expect(await desk.pay(transfer, { bound: true })).toMatchObject({
      kind: 'dead',
      reason: 'invalid_exact_evm_nonce_already_used',
    })
  })
})

test('behavior: a payment that is handed back to the queue waits no longer than it wanted', async () => {
  await start()
  await setAutomine(net.chain, false)
  const busy = (index: number) =>
    desk.settlement.run(errandOf(network, { id: `refund:${index}` }), { waitMs: 0 })
  await busy(0)
  // Those who wait behind it are found to be without code.
  const both = () => [signTransfer(network), signTransfer(network, { from: 2 })] as const
  await mineWhile(net.chain, Promise.all(both().map((transfer) => desk.pay(transfer))))
  for (let index = 1; index <= 15; index++) await busy(index)
  // A second look, at a node that is slow, finds that account 2 has delegated meanwhile.
  let looks = 0
  net.tap.intercept = async ({ method, params }) => {
    const [call] = params as [{ to?: string; data: string }]
    if (method !== 'eth_call' || call.to !== undefined) return undefined
    looks++
    await Bun.sleep(600)
    const payers = call.data.slice(-128).match(/.{64}/g) ?? []
    const sizes = payers.map((word) =>
      word.endsWith(account(2).address.slice(2).toLowerCase()) ? 23 : 0,
    )
    return { result: `0x${sizes.map((size) => size.toString(16).padStart(64, '0')).join('')}` }
  }
  const [plain, coded] = both()
  const paying = desk.pay(plain)
  expect(await desk.pay(coded, {}, { waitMs: 300 })).toMatchObject({
    kind: 'unavailable',
    detail: 'The network is busy; try again with the same credential.',
  })
  expect(looks).toBe(1)
  expect(desk.settlement.find(coded)).toBeUndefined()
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  expect((await mineWhile(net.chain, desk.pay(coded))).kind).toBe('confirmed')
})

test('behavior: many announced blocks are not taken for much time', async () => {
  await start({ blockTimeMs: 100 })
  await desk.stop()
  const replaceAfterSeconds = 1.5
  desk = await startDesk(
    [{ ...network, wsUrl: net.chain.wsUrl, replaceAfterSeconds }],
    directory.path,
    { checkMs: 600_000 },
  )
  await until(() => desk.events.some(({ event }) => event === 'heads-live'))
  let sentAt = 0
  net.tap.intercept = ({ method }) => {
    if (method === 'eth_sendRawTransactionSync') {
      return { error: { code: -32601, message: 'the method does not exist' } }
    }
    if (method !== 'eth_sendRawTransaction') return undefined
    sentAt ||= performance.now()
    return { result: `0x${'0'.repeat(64)}` }
  }
  const paying = desk.pay(signTransfer(network), {}, { waitMs: 10_000 })
  await until(() => desk.events.some(({ event }) => event === 'transaction-replaced'))
  expect(performance.now() - sentAt).toBeGreaterThan(replaceAfterSeconds * 900)
  net.tap.intercept = undefined
  expect((await paying).kind).toBe('confirmed')
})

describe('the time to the next check', () => {
  const health = { ready: true, reason: undefined, checks: 1 }
  const lane = (poor?: string) => ({ ...createLane(relayerKey, false), next: 0, poor })
  const reserved = {
    ...createLane(Crypto.bytes(account(5).privateKey), true),
    next: 0,
    poor: 'poor',
  }

  test('behavior: is short while nothing can settle, and not for one poor lane among others', () => {
    const after = (lanes: ReturnType<typeof createLane>[], ready = true) =>
      checkAfterMs({ health: { ...health, ready }, lanes }, 15_000)
    expect(after([lane(), lane()])).toBe(15_000)
    expect(after([lane(), lane('poor')])).toBe(15_000)
    expect(after([lane(), reserved])).toBe(15_000)
    expect(after([lane('poor'), lane('poor')])).toBe(2_000)
    expect(after([lane('poor'), { ...reserved, poor: undefined }])).toBe(2_000)
    expect(after([lane()], false)).toBe(2_000)
  })
})

test('behavior: a disk that refuses the replacement does not end the watch over what was sent', async () => {
  await start({}, { replaceAfterSeconds: 0.2 })
  await setAutomine(net.chain, false)
  net.tap.intercept = ({ method }) =>
    method === 'eth_sendRawTransactionSync'
      ? { error: { code: -32601, message: 'the method does not exist' } }
      : undefined
  const transfer = signTransfer(network)
  const paying = desk.pay(transfer)
  await until(() => desk.settlement.find(transfer) !== undefined)
  desk.db.sqlite.run(
    "CREATE TRIGGER full BEFORE INSERT ON transactions BEGIN SELECT RAISE(ABORT, 'disk full'); END",
  )
  await until(() => desk.events.some(({ event }) => event === 'settlement-fault'))
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  expect(desk.db.sqlite.query('SELECT hash FROM transactions').all()).toHaveLength(1)
})

test('error: a payment whose window closed while it waited for a lane is not sent', async () => {
  await start()
  await desk.stop()
  let ahead = 0
  desk = await startDesk([network], directory.path, { now: () => Date.now() + ahead })
  await setAutomine(net.chain, false)
  for (let index = 0; index < 16; index++)
    await desk.settlement.run(errandOf(network, { id: `refund:${index}` }), { waitMs: 0 })
  const transfer = signTransfer(network)
  const paying = desk.pay(transfer)
  await until(() => asked('eth_sendRawTransactionSync') + asked('eth_sendRawTransaction') >= 16)
  ahead = 400_000
  expect(await mineWhile(net.chain, paying)).toMatchObject({
    kind: 'refused',
    reason: 'invalid_exact_evm_payload_authorization_valid_before',
  })
  expect(desk.settlement.find(transfer)).toBeUndefined()
})

test('error: a balance that was read before a payment was included is not promised again', async () => {
  await start()
  await setAutomine(net.chain, false)
  const amountAtomic = await balanceOf(net.chain, network.asset.address, account(1).address)
  const first = signTransfer(network, { amountAtomic })
  const paying = desk.pay(first)
  await until(() => desk.settlement.find(first) !== undefined)
  // The node answers the second simulation from before, and late.
  const held = Promise.withResolvers<void>()
  let isAsked = false
  net.tap.intercept = async ({ method, params }, forward) => {
    const [call] = params as [{ to?: string }]
    if (method !== 'eth_call' || call.to === undefined) return undefined
    const answer = await (await forward()).text()
    isAsked = true
    await held.promise
    return new Response(answer)
  }
  const second = signTransfer(network, { amountAtomic })
  const late = desk.pay(second)
  await until(() => isAsked)
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  held.resolve()
  expect(await late).toMatchObject({ kind: 'unavailable' })
  expect(desk.settlement.find(second)).toBeUndefined()
})
