import { describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { checkAfterMs } from '../../src/settlement/start'
import { createRelayer } from '../../src/settlement/state/state'
import { setAutomine } from '../harness/chains'
import { ownSettlement } from '../harness/own-settlement'
import { jobOf, mineWhile, relayerKey, signTransfer, until } from '../harness/settlement'
import { failWrites } from '../harness/test-ledger'

test.concurrent('a payment that returns to the queue keeps its time limit', async () => {
  await using own = await ownSettlement()
  const { net, network } = own
  await setAutomine(net.chain, false)
  const busy = (index: number) =>
    own.fixture.settlement.run(jobOf(network, { id: `refund:${index}` }), { waitMs: 0 })
  await busy(0)
  // The payers that wait after it are known to have no code.
  const both = () => [signTransfer(network), signTransfer(network, { from: 2 })] as const
  await mineWhile(net.chain, Promise.all(both().map((transfer) => own.fixture.pay(transfer))))
  for (let index = 1; index <= 15; index++) await busy(index)
  // A second read, at a slow node, finds that account 2 has delegated meanwhile.
  let looks = 0
  net.tap.intercept = async ({ method, params }) => {
    const [call] = params as [{ from?: string; data: string }]
    // Only a simulation has a sender.
    if (method !== 'eth_call' || call.from !== undefined) return undefined
    looks++
    await Bun.sleep(600)
    const payers = call.data.slice(-128).match(/.{64}/g) ?? []
    const sizes = payers.map((word) =>
      word.endsWith(account(2).address.slice(2).toLowerCase()) ? 23 : 0,
    )
    return { result: `0x${sizes.map((size) => size.toString(16).padStart(64, '0')).join('')}` }
  }
  const [plain, coded] = both()
  const paying = own.fixture.pay(plain)
  expect(await own.fixture.pay(coded, {}, { waitMs: 300 })).toMatchObject({
    kind: 'unavailable',
    detail: 'The network is busy; try again with the same credential.',
  })
  expect(looks).toBe(1)
  expect(await own.fixture.settlement.find(coded)).toBeUndefined()
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  expect((await mineWhile(net.chain, own.fixture.pay(coded))).kind).toBe('confirmed')
})

test.concurrent('many announced blocks do not count as elapsed time', async () => {
  await using own = await ownSettlement({ chain: { blockTimeMs: 100 } })
  const { net, network } = own
  const replaceAfterSeconds = 1.5
  await own.reopen({ wsUrl: net.chain.wsUrl, replaceAfterSeconds }, { checkMs: 600_000 })
  await until(() => own.fixture.events.some(({ event }) => event === 'heads-live'))
  let sentAt = 0
  net.tap.intercept = ({ method }) => {
    if (method === 'eth_sendRawTransactionSync') {
      return { error: { code: -32601, message: 'the method does not exist' } }
    }
    if (method !== 'eth_sendRawTransaction') return undefined
    sentAt ||= performance.now()
    return { result: `0x${'0'.repeat(64)}` }
  }
  const paying = own.fixture.pay(signTransfer(network), {}, { waitMs: 120_000 })
  await until(() => own.fixture.events.some(({ event }) => event === 'transaction-replaced'))
  expect(performance.now() - sentAt).toBeGreaterThan(replaceAfterSeconds * 900)
  net.tap.intercept = undefined
  expect((await paying).kind).toBe('confirmed')
})

test.concurrent('a start logs once that the network is ready, and nothing before', async () => {
  await using own = await ownSettlement()
  const told = own.fixture.events.filter(({ event }) => /^network-(not-)?ready$/.test(event))
  expect(told.map(({ event }) => event)).toEqual(['network-ready'])
})

describe('the time to the next check', () => {
  const health = { ready: true, reason: undefined, checks: 1, others: 0, isQuiet: false }
  const relayer = (poor?: string) => ({
    ...createRelayer(relayerKey, { isReserved: false, isHeld: true }),
    next: 0,
    poor,
  })
  const reserved = {
    ...createRelayer(Crypto.bytes(account(5).privateKey), { isReserved: true, isHeld: true }),
    next: 0,
    poor: 'poor',
  }

  test('the time to the next check is short while nothing can settle, and not for one relayer without gas', () => {
    const after = (relayers: ReturnType<typeof createRelayer>[], ready = true) =>
      checkAfterMs({ health: { ...health, ready }, relayers }, 15_000)
    expect(after([relayer(), relayer()])).toBe(15_000)
    expect(after([relayer(), relayer('poor')])).toBe(15_000)
    expect(after([relayer(), reserved])).toBe(15_000)
    expect(after([relayer('poor'), relayer('poor')])).toBe(2_000)
    expect(after([relayer('poor'), { ...reserved, poor: undefined }])).toBe(2_000)
    expect(after([relayer()], false)).toBe(2_000)
  })
})

test.concurrent('a failed write of a replacement does not end the watch of the first transaction', async () => {
  await using own = await ownSettlement({ network: { replaceAfterSeconds: 0.2 } })
  const { net, network } = own
  await setAutomine(net.chain, false)
  net.tap.intercept = ({ method }) =>
    method === 'eth_sendRawTransactionSync'
      ? { error: { code: -32601, message: 'the method does not exist' } }
      : undefined
  const transfer = signTransfer(network)
  const paying = own.fixture.pay(transfer)
  await until(async () => (await own.fixture.settlement.find(transfer)) !== undefined)
  failWrites(own.fixture.sql, 'INSERT', 'transactions')
  await until(() => own.fixture.events.some(({ event }) => event === 'settlement-fault'))
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  expect(own.fixture.sql.query('SELECT hash FROM transactions').all()).toHaveLength(1)
})

test.concurrent('error: a payment whose window closed while it waited for a relayer is not sent', async () => {
  await using own = await ownSettlement()
  const { net, network } = own
  await own.fixture.stop()
  let ahead = 0
  await own.open({}, { now: () => Date.now() + ahead })
  await setAutomine(net.chain, false)
  for (let index = 0; index < 16; index++)
    await own.fixture.settlement.run(jobOf(network, { id: `refund:${index}` }), { waitMs: 0 })
  const transfer = signTransfer(network)
  const paying = own.fixture.pay(transfer)
  await until(
    () => own.asked('eth_sendRawTransactionSync') + own.asked('eth_sendRawTransaction') >= 16,
  )
  ahead = 400_000
  expect(await mineWhile(net.chain, paying)).toMatchObject({
    kind: 'refused',
    reason: 'invalid_exact_evm_payload_authorization_valid_before',
  })
  expect(await own.fixture.settlement.find(transfer)).toBeUndefined()
})

test.concurrent('error: a balance from before a payment is not used for another one', async () => {
  await using own = await ownSettlement()
  const { net, network } = own
  await setAutomine(net.chain, false)
  const amountAtomic = await balanceOf(net.chain, network.asset.address, account(1).address)
  const first = signTransfer(network, { amountAtomic })
  const paying = own.fixture.pay(first)
  await until(async () => (await own.fixture.settlement.find(first)) !== undefined)
  // The node answers the second simulation late, with the older state.
  const held = Promise.withResolvers<void>()
  let isAsked = false
  net.tap.intercept = async ({ method, params }, forward) => {
    const [call] = params as [{ from?: string }]
    if (method !== 'eth_call' || call.from === undefined) return undefined
    const answer = await (await forward()).text()
    isAsked = true
    await held.promise
    return new Response(answer)
  }
  const second = signTransfer(network, { amountAtomic })
  const late = own.fixture.pay(second)
  await until(() => isAsked)
  expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
  held.resolve()
  expect(await late).toMatchObject({ kind: 'unavailable' })
  expect(await own.fixture.settlement.find(second)).toBeUndefined()
})
