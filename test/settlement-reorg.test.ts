import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { balanceOf, execute, mine } from '../src/demo/chains'
import { createRegistry } from '../src/http/metrics'
import * as Transfer from '../src/protocol/Transfer'
import type { Payment } from '../src/settlement/Payment'
import {
  type Desk,
  networkOf,
  payee,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
} from './harness/settlement'

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk
let registry: ReturnType<typeof createRegistry>

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  await open()
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

async function open(changes: Partial<NetworkConfig> = {}): Promise<void> {
  registry = createRegistry()
  desk = await startDesk([{ ...network, ...changes }], directory.path, { meter: registry })
}

async function paid(): Promise<bigint> {
  return balanceOf(net.chain, network.asset.address, payee)
}

const reorganise = (depth: number) => net.chain.rpc('anvil_reorg', [depth, []])
const eventsOf = (name: string) => desk.events.filter(({ event }) => event === name)
const reorged = () =>
  Number(/^turnpike_reorged_payments_total\{[^}]*\} (\d+)$/m.exec(registry.render())?.[1] ?? 0)

async function payAndDeliver(transfer: Transfer.Transfer): Promise<Payment> {
  const outcome = await desk.pay(transfer)
  if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
  await desk.settlement.beginDelivery(outcome.payment.id)
  await desk.settlement.endDelivery(outcome.payment.id, {
    delivered: true,
    upstreamStatus: 200,
    truncated: false,
  })
  const payment = desk.settlement.findById(outcome.payment.id)
  if (!payment) throw new Error('the payment is gone')
  return payment
}

/** Everything but where and when the transfer was included. */
function essence(payment: Payment | undefined) {
  if (!payment) return undefined
  const { blockNumber, logIndex, confirmedAt, ...rest } = payment
  return rest
}

describe('a reorganisation', () => {
  for (const depth of [1, 2, 3, 4, 5])
    test(`behavior: of depth ${depth} sends the same bytes again, delivers nothing again (attack 35)`, async () => {
      await payAndDeliver(signTransfer(network))
      const payments: Payment[] = []
      for (let index = 0; index < depth; index++)
        payments.push(
          await payAndDeliver(
            signTransfer(network, {
              method: index % 2 ? 'permit2' : 'eip3009',
              from: 1 + (index % 2),
            }),
          ),
        )
      const before = await paid()
      await reorganise(depth)
      expect(await paid()).toBe(before - 5_000n * BigInt(depth))
      await until(() => eventsOf('payment.reorged').length === depth)
      await until(() =>
        payments.every(({ id }) => desk.settlement.findById(id)?.state === 'confirmed'),
      )
      expect(await paid()).toBe(before)
      expect(payments.map(({ id }) => essence(desk.settlement.findById(id)))).toEqual(
        payments.map(essence),
      )
      expect(
        eventsOf('payment.reorged')
          .map(({ fields }) => fields?.payment)
          .sort(),
      ).toEqual(payments.map(({ id }) => id).sort())
      expect(reorged()).toBe(depth)
      const again = async () => desk.settlement.beginDelivery(payments[0]?.id ?? '')
      expect(again()).rejects.toThrow()
      // The lane goes on.
      expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
    })

  for (const depth of [1, 3, 5])
    test(`behavior: of depth ${depth} while the process was down is found by the next one`, async () => {
      const payments: Payment[] = []
      for (let index = 0; index < depth; index++)
        payments.push(await payAndDeliver(signTransfer(network)))
      const undelivered = await desk.pay(signTransfer(network))
      if (undelivered.kind !== 'confirmed') throw new Error(undelivered.kind)
      const before = await paid()
      await desk.crash()
      await reorganise(depth + 1)
      await open()
      expect(eventsOf('payment.reorged')).toHaveLength(depth + 1)
      // A new payment takes no nonce of an old one.
      expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
      const ids = [...payments, undelivered.payment].map(({ id }) => id)
      await until(() => ids.every((id) => desk.settlement.findById(id)?.state === 'confirmed'))
      expect(await paid()).toBe(before + 5_000n)
      expect(payments.map(({ id }) => essence(desk.settlement.findById(id)))).toEqual(
        payments.map(essence),
      )
      // What was not delivered is still to be had.
      expect(await desk.settlement.beginDelivery(undelivered.payment.id)).toMatchObject({
        attempts: 1,
      })
    })

  test('behavior: a process that stops in the middle leaves the rest to the next one', async () => {
    const payment = await payAndDeliver(signTransfer(network))
    net.tap.intercept = ({ method }) =>
      method.startsWith('eth_sendRaw') ? new Response('lost', { status: 503 }) : undefined
    await reorganise(1)
    await until(() => desk.settlement.findById(payment.id)?.state === 'broadcast')
    await desk.crash()
    net.tap.intercept = undefined
    await open()
    await until(() => desk.settlement.findById(payment.id)?.state === 'confirmed')
    expect(essence(desk.settlement.findById(payment.id))).toEqual(essence(payment))
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: a restart without one asks little and changes nothing', async () => {
    const payments: Payment[] = []
    for (let index = 0; index < 5; index++)
      payments.push(await payAndDeliver(signTransfer(network)))
    await desk.stop()
    net.tap.calls.length = 0
    await open()
    expect(eventsOf('payment.reorged')).toEqual([])
    const asked = net.tap.calls.filter(({ method }) => method === 'eth_getTransactionReceipt')
    expect(asked.length).toBeLessThanOrEqual(1)
    expect(payments.map(({ id }) => desk.settlement.findById(id))).toEqual(payments)
  })

  test('behavior: a node that lags behind takes nothing away', async () => {
    const payment = await payAndDeliver(signTransfer(network))
    // Twice in a row would be believed.
    let isLate = false
    net.tap.intercept = ({ method, params }) => {
      if (method !== 'eth_getBlockByNumber' || params[0] === 'latest') return undefined
      isLate = !isLate
      return isLate ? { result: null } : undefined
    }
    const looks = () =>
      net.tap.calls.filter(
        ({ method, params }) => method === 'eth_getBlockByNumber' && params[0] !== 'latest',
      ).length
    await until(() => looks() > 4)
    expect(desk.settlement.findById(payment.id)).toEqual(payment)
    expect(eventsOf('payment.reorged')).toEqual([])
  })

  test('behavior: a fork that is announced is looked at without waiting for the next check', async () => {
    await desk.stop()
    registry = createRegistry()
    desk = await startDesk([{ ...network, wsUrl: net.chain.wsUrl }], directory.path, {
      checkMs: 600_000,
      meter: registry,
    })
    await until(() => desk.settlement.isReady(network.id))
    await until(async () => {
      await mine(net.chain)
      return eventsOf('heads-live').length > 0
    })
    const payment = await payAndDeliver(signTransfer(network))
    await reorganise(2)
    await until(() => eventsOf('payment.reorged').length === 1)
    await until(() => desk.settlement.findById(payment.id)?.state === 'confirmed')
    expect(await paid()).toBe(5_000n)
  })
})

describe('a settlement by somebody else', () => {
  /** Settled by account 8 and counted for us. */
  async function adopted(): Promise<Payment> {
    const transfer = signTransfer(network)
    await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    const outcome = await desk.pay(transfer, { bound: true })
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    return outcome.payment
  }
  const hasRaw = () => net.tap.calls.some(({ method }) => method === 'eth_getRawTransactionByHash')
  const isConfirmed = ({ id }: Payment) =>
    desk.settlement.findById(id)?.state === 'confirmed' && eventsOf('payment.reorged').length > 0

  test('behavior: that is reorganised away goes out again with its own bytes', async () => {
    const payment = await adopted()
    await until(hasRaw)
    await reorganise(3)
    expect(await paid()).toBe(0n)
    await until(() => isConfirmed(payment))
    expect(essence(desk.settlement.findById(payment.id))).toEqual(essence(payment))
    expect(await paid()).toBe(5_000n)
    expect(reorged()).toBe(1)
  })

  test('behavior: whose bytes nobody has is settled by ourselves', async () => {
    net.tap.intercept = ({ method }) =>
      method === 'eth_getRawTransactionByHash'
        ? { error: { code: -32601, message: 'method not found' } }
        : undefined
    const payment = await adopted()
    await until(hasRaw)
    await reorganise(3)
    await until(() => isConfirmed(payment))
    expect(desk.settlement.findById(payment.id)?.transaction).not.toBe(payment.transaction)
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: is found to be gone after a restart', async () => {
    const payment = await adopted()
    await desk.crash()
    await reorganise(3)
    await open()
    await until(() => isConfirmed(payment))
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: that nobody can send now waits until somebody can', async () => {
    const payment = await adopted()
    await until(hasRaw)
    net.tap.intercept = ({ method }) =>
      method.startsWith('eth_sendRaw') ? new Response('lost', { status: 503 }) : undefined
    await reorganise(3)
    await until(() => desk.settlement.findById(payment.id)?.state === 'broadcast')
    expect(await paid()).toBe(0n)
    await until(() => eventsOf('rpc-fault').length > 0)
    expect(['broadcast', 'reverted']).toContain(desk.settlement.findById(payment.id)?.state ?? '')
    net.tap.intercept = undefined
    await until(() => isConfirmed(payment))
    expect(await paid()).toBe(5_000n)
  })
})
